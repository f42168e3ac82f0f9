package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

// Scopes of a hold.
const (
	HoldCreates = "creates" // no create leaves, nor a preparation before one
	HoldAll     = "all"     // no call leaves at all; deadlines run on
)

// Hold is a hold on one provider or, without a provider, on all of them.
type Hold struct {
	Provider   string     `json:"provider,omitempty"`
	Scope      string     `json:"scope"` // "" once released
	By         string     `json:"by,omitempty"`
	KeyID      string     `json:"key_id,omitempty"`
	Why        string     `json:"why,omitempty"`
	Since      *time.Time `json:"since,omitempty"`
	Unreadable string     `json:"unreadable,omitempty"` // why everything is held although nobody asked for it
	Was        *Hold      `json:"was,omitempty"`        // the one that the request ended or replaced
	// OriginalStatus is the HTTP status of the first answer where the call's key had
	// recorded it before; 0 where it had not.
	OriginalStatus int `json:"original_status,omitempty"`
}

// HoldWish asks for a hold. Replace lets a weaker scope take the place of a
// stronger one.
type HoldWish struct {
	Provider string `json:"provider,omitempty"`
	Scope    string `json:"scope"`
	Why      string `json:"why"`
	Replace  bool   `json:"replace,omitempty"`
}

// Holds lists the holds in force. It needs the key of an operator, as do
// [Client.PlaceHold] and [Client.ReleaseHold].
func (c *Client) Holds(ctx context.Context) ([]Hold, error) {
	var answer struct {
		Holds []Hold `json:"holds"`
	}
	return answer.Holds, c.read(ctx, "/v1/holds", &answer)
}

// PlaceHold places a hold. The one that is in force afterwards is answered;
// placed is false where the same one was in force already.
func (c *Client) PlaceHold(ctx context.Context, w HoldWish) (h Hold, placed bool, err error) {
	h, status, err := c.changeHold(ctx, "/v1/holds", w)
	return h, status == http.StatusCreated, err
}

// ReleaseHold ends the hold on a provider, or with "" the one on all of them.
// Where there is none the error is a [*Problem] with code not_held.
func (c *Client) ReleaseHold(ctx context.Context, provider, why string) (Hold, error) {
	h, _, err := c.changeHold(ctx, "/v1/holds/release", struct {
		Provider string `json:"provider,omitempty"`
		Why      string `json:"why"`
	}{provider, why})
	return h, err
}

func (c *Client) changeHold(ctx context.Context, path string, wish any) (Hold, int, error) {
	body, err := json.Marshal(wish)
	if err != nil {
		return Hold{}, 0, fmt.Errorf("change a hold: %w", err)
	}
	r, err := c.do(ctx, http.MethodPost, path, body, c.onceKey()) //nolint:bodyclose // decode closes it
	if err != nil {
		return Hold{}, 0, err
	}
	var h Hold
	_, err = decode(r, &h)
	return h, r.StatusCode, err
}
