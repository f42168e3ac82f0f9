package api

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/counterfoil/counterfoil/internal/ingest"
)

// Entity tags. One is "v7-1f8a0c5be4d2aa03": the version, so that a caller can say
// by hand what it has seen, and a sum of all that is shown. The sum is over the
// bytes, so that two callers of other rights, of whom one is shown less, never have
// a tag in common, nor have a caller and itself after its rights, the contract's
// words or the program have changed. That is why no version of a policy is in it.
//
// One member is left out of the sum: next_poll_after. It moves with the clock and
// says nothing of the operation but when to ask again, which the header Retry-After
// of a 304 says, too. With it in the sum no answer would ever be "as you have it".

// sumOf is short, and long enough that two texts of one service do not share it.
func sumOf(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// tag is the entity tag of a text at a version.
func tag(version uint64, text []byte) string {
	return `"v` + strconv.FormatUint(version, 10) + "-" + sumOf(text) + `"`
}

// clockMember begins what of an operation moves with the clock. It is the last
// member; a test fails if it no longer is.
const clockMember = `,"next_poll_after":`

// operationTag is the tag of an operation as it is sent.
func operationTag(version uint64, body []byte) string {
	if i := bytes.LastIndex(body, []byte(clockMember)); i >= 0 {
		body = body[:i]
	}
	return tag(version, body)
}

// tags reads the entity tags of a header as strong ones in quotes. None of ours has
// a comma in it.
func tags(values []string) []string {
	var list []string
	for part := range strings.SplitSeq(strings.Join(values, ","), ",") {
		t := strings.TrimPrefix(strings.TrimSpace(part), "W/")
		if t != "*" {
			t = `"` + strings.Trim(t, `"`) + `"`
		}
		list = append(list, t)
	}
	return list
}

// matches says whether an If-None-Match header names the tag: alone, in a list, in
// its weak form, or by *. Quotes that are missing are forgiven, since what is named
// is the same.
func matches(values []string, etag string) bool {
	return slices.ContainsFunc(tags(values), func(t string) bool { return t == "*" || t == etag })
}

// has says whether an If-None-Match header names the operation's tag, or its
// version alone, as one who counts versions by hand does.
func has(values []string, etag string, version uint64) bool {
	return matches(values, etag) || slices.Contains(tags(values), `"v`+strconv.FormatUint(version, 10)+`"`)
}

// encode writes a body as it is sent.
func encode(body any) ([]byte, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("write the answer: %w", err)
	}
	return append(text, '\n'), nil
}

// show answers with an operation.
func (c *call) show(status int, view ingest.View) (answer, error) {
	body, err := encode(view)
	if err != nil {
		return answer{}, err
	}
	c.operation, c.trace = view.ID, view.Trace
	header := map[string]string{"ETag": operationTag(view.Version, body)}
	if !view.Terminal && view.NextPollAfter > 0 {
		header["Retry-After"] = strconv.Itoa(view.NextPollAfter)
	}
	if c.r.Method == http.MethodPost {
		header["Content-Location"] = address(view.ID) // it is this that the ETag is of
	}
	return answer{status: status, header: header, media: jsonType, body: body}, nil
}

// fresh answers with a body under a tag of its own, or says that the caller has it.
func (c *call) fresh(body any, header map[string]string, tag func([]byte) string) (answer, error) {
	text, err := encode(body)
	if err != nil {
		return answer{}, err
	}
	header["ETag"] = tag(text)
	if matches(c.r.Header["If-None-Match"], header["ETag"]) {
		return answer{status: http.StatusNotModified, header: header}, nil
	}
	return answer{status: http.StatusOK, header: header, media: jsonType, body: text}, nil
}

// get shows an operation, at once or when there is news of it.
func (h *handler) get(ctx context.Context, c *call) (answer, error) {
	r := ingest.WaitRequest{Caller: c.caller, ID: c.operation}
	wait, err := c.q.number("wait", 1<<31)
	if err != nil {
		return answer{}, err
	}
	applied := ""
	if prefer := preferredWait(c.r.Header["Prefer"]); wait == 0 && prefer > 0 {
		wait, applied = prefer, waitApplied(prefer)
	}
	r.Wait = min(time.Duration(wait)*time.Second, ingest.MaxWait)
	if r.After, err = c.q.number("after", 1<<62); err != nil {
		return answer{}, err
	}
	switch until := c.q.Get("until"); until {
	case "":
	case "terminal", "done":
		r.UntilDone = true
	default:
		return answer{}, parameter("until", ingest.FieldNotAllowed, "must be terminal", "terminal")
	}
	finish := func(a answer, err error) (answer, error) {
		if err != nil {
			return answer{}, err
		}
		a.header["Vary"] = "Prefer"
		if applied != "" {
			a.header["Preference-Applied"] = applied
		}
		return a, nil
	}
	have := c.r.Header["If-None-Match"]
	if r.After > 0 {
		have = nil // ?after= says the same, and by itself
	}
	if len(have) > 0 {
		if a, known, err := h.compared(ctx, c, &r, have); known || err != nil {
			return finish(a, err)
		}
	}
	if r.Wait <= 0 {
		return finish(h.standing(ctx, c, r, have))
	}
	w, err := h.o.Service.BeginWait(ctx, r)
	if err != nil {
		return answer{}, err
	}
	after := r.After
	return answer{later: func() (a answer, err error) {
		ctx, stop := untilStopping(ctx)
		defer stop()
		changed, err := w.Wait(ctx)
		if err != nil {
			return answer{}, err
		}
		ingest.Aside(func() { a, err = finish(c.news(w.View(), after, changed, have)) }) // all may be told at the same time
		return a, err
	}}, nil
}

// standing answers at once.
func (h *handler) standing(ctx context.Context, c *call, r ingest.WaitRequest, have []string) (answer, error) {
	view, changed, err := h.o.Service.Wait(ctx, r)
	if err != nil {
		return answer{}, err
	}
	return c.news(view, r.After, changed, have)
}

// compared answers who names what it has, if it is known what to without a wait; of that
// it says otherwise what is waited for.
func (h *handler) compared(ctx context.Context, c *call, r *ingest.WaitRequest, have []string) (a answer, known bool, err error) {
	// What is shown may have changed with the version as it was: the caller may do more,
	// or less, than before. That is news, and no wait shows it.
	view, err := h.o.Service.Get(ctx, r.Caller, r.ID)
	if err != nil {
		return answer{}, false, err
	}
	if a, err = c.show(http.StatusOK, view); err != nil {
		return answer{}, false, err
	}
	seen := has(have, a.header["ETag"], view.Version)
	switch {
	case seen && r.Wait == 0:
		return a.unchanged(), true, nil
	case seen:
		r.After = view.Version
	case !r.UntilDone || view.Done:
		return a, true, nil
	}
	return answer{}, false, nil
}

// news shows an operation after a wait, or says that the caller has seen what there is to
// see.
func (c *call) news(view ingest.View, after uint64, changed bool, have []string) (answer, error) {
	a, err := c.show(http.StatusOK, view)
	if err != nil {
		return answer{}, err
	}
	// At the end of a wait for the end the caller has not seen what it is at, unless
	// it said so.
	if !changed && (after == view.Version && len(have) == 0 || has(have, a.header["ETag"], view.Version)) {
		return a.unchanged(), nil
	}
	return a, nil
}

// unchanged is the answer to who has it.
func (a answer) unchanged() answer {
	return answer{status: http.StatusNotModified, header: a.header}
}

// waitApplied says of a preference what is waited of it.
func waitApplied(seconds uint64) string {
	return "wait=" + strconv.FormatUint(min(seconds, uint64(ingest.MaxWait/time.Second)), 10)
}

// longestWish stands for every wish to wait longer, in seconds: it is more than is waited.
const longestWish = 1<<31 - 1

// preferredWait reads the preference wait=N of Prefer headers (RFC 7240); 0 means none,
// or that it cannot be read. Of several the first counts. What stands behind a
// semicolon are parameters of a preference, and none themselves.
func preferredWait(values []string) uint64 {
	for _, preference := range unquotedFields(strings.Join(values, ","), ',') {
		first, _, _ := strings.Cut(preference, ";")
		name, value, _ := strings.Cut(first, "=")
		if strings.EqualFold(strings.TrimSpace(name), "wait") {
			n, err := strconv.ParseUint(strings.Trim(strings.TrimSpace(value), `"`), 10, 31)
			if errors.Is(err, strconv.ErrRange) {
				return longestWish
			}
			if err != nil {
				return 0
			}
			return n
		}
	}
	return 0
}

// unquotedFields cuts a header's value at the separators that are in no quoted string.
func unquotedFields(text string, separator byte) []string {
	var list []string
	quoted, from := false, 0
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			quoted = !quoted
		case quoted && c == '\\':
			i++ // whatever it is, it ends nothing
		case !quoted && c == separator:
			list = append(list, text[from:i])
			from = i + 1
		}
	}
	return append(list, text[from:])
}
