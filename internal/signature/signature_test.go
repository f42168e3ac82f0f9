package signature

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"os"
	"testing"
	"time"
)

// TestVectors plays known answers, checked against the schemes' own libraries.
func TestVectors(t *testing.T) {
	raw, err := os.ReadFile("testdata/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Vectors []struct {
			ID, Scheme, Secret, Why string
			Headers                 map[string]string
			Body                    string `json:"body_base64"`
			Now                     int64
			Valid                   bool
		}
	}
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	schemes := map[string]Scheme{
		"standard-webhooks-v1": {Name: StandardWebhooks},
		"github":               {Name: HMACSHA256Hex, Header: "X-Hub-Signature-256", Prefix: "sha256="},
	}
	played := map[string]int{}
	for _, v := range file.Vectors {
		t.Run(v.ID, func(t *testing.T) {
			body, err := base64.StdEncoding.DecodeString(v.Body)
			if err != nil {
				t.Fatal(err)
			}
			header := map[string][]string{}
			for name, value := range v.Headers {
				header[name] = []string{value}
			}
			_, err = Verify(schemes[v.Scheme], v.Secret, Delivery{header, body}, time.Unix(v.Now, 0))
			if (err == nil) != v.Valid {
				t.Errorf("%s: got %v, want valid %v", v.Why, err, v.Valid)
			}
			if err != nil && !errors.Is(err, ErrRefused) {
				t.Errorf("error %v is not ErrRefused", err)
			}
		})
		played[v.Scheme]++
	}
	for name := range schemes {
		if played[name] < 10 {
			t.Errorf("only %d vectors of %s were played", played[name], name)
		}
	}
}

func TestSignVerifies(t *testing.T) {
	at := time.Unix(1790000000, 0)
	for _, s := range []Scheme{{Name: StandardWebhooks}, {HMACSHA256Hex, "X-Signature", "sha256="}} {
		secret := "whsec_JOr7BJMCy1w41XClfvdQW38KCej/oeI3"
		signed, err := Sign(s, secret, []byte("body"), "evt_1", at)
		if err != nil {
			t.Fatal(err)
		}
		header := map[string][]string{}
		for name, value := range signed {
			header[name] = []string{value}
		}
		if _, err := Verify(s, secret, Delivery{header, []byte("body")}, at); err != nil {
			t.Errorf("%s: %v", s.Name, err)
		}
		if _, err := Verify(s, secret, Delivery{header, []byte("bodY")}, at); !errors.Is(err, ErrRefused) {
			t.Errorf("%s: changed body: %v", s.Name, err)
		}
		for name := range header {
			header[name] = append(header[name], header[name][0])
			if _, err := Verify(s, secret, Delivery{header, []byte("body")}, at); !errors.Is(err, ErrRefused) {
				t.Errorf("%s: %s twice: %v", s.Name, name, err)
			}
			break
		}
	}
}

func TestEmptySecretAndUnknownScheme(t *testing.T) {
	if _, err := Verify(Scheme{Name: HMACSHA256Hex, Header: "X"}, "", Delivery{}, time.Time{}); !errors.Is(err, ErrRefused) {
		t.Error(err)
	}
	if _, err := Verify(Scheme{Name: "none"}, "x", Delivery{}, time.Time{}); !errors.Is(err, ErrScheme) {
		t.Error(err)
	}
}

func FuzzVerify(f *testing.F) {
	f.Add("v1,AAAA v1,BBBB", "1790000000", []byte("{}"))
	f.Add("sha256=00", "soon", []byte(nil))
	f.Fuzz(func(t *testing.T, sig, stamp string, body []byte) {
		header := map[string][]string{
			"webhook-id": {"id"}, "webhook-timestamp": {stamp}, "webhook-signature": {sig}, "x-signature": {sig},
		}
		for _, s := range []Scheme{{Name: StandardWebhooks}, {HMACSHA256Hex, "X-Signature", "sha256="}} {
			// A forged signature cannot be found by a fuzzer: anything accepted is a defect.
			if _, err := Verify(s, "JOr7BJMCy1w41XClfvdQW38KCej/oeI3", Delivery{header, body}, time.Unix(1790000000, 0)); err == nil {
				t.Errorf("%s accepted %q", s.Name, sig)
			}
		}
	})
}
