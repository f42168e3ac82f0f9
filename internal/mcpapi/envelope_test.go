package mcpapi

import (
	"strings"
	"testing"
)

func TestEnvelope(t *testing.T) {
	for _, text := range []string{
		`{}`, `[]`, `[{"id":1},{"id":1}]`, `7`, `{"params":{"arguments":{"a":1,"a":2}}}`, `{"other":{"a":1,"a":2},"params":[{"a":1,"a":2}]}`, " {} \n",
		"[" + strings.Repeat(`{},`, maxBatch-1) + "{}]",
	} {
		if err := checkEnvelope([]byte(text)); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	for _, text := range []string{
		``, `{`, `{}{}`, `{"a":1,"a":1}`, `{"a":1,"\u0061":1}`, `[{"id":1,"id":1}]`, `{"params":{"name":"a","name":"b"}}`, `{"a":}`, `[1,]`, "{\"a\":\"\xff\"}",
		"[" + strings.Repeat(`{},`, maxBatch) + "{}]", `[{}`, `[{}}`, `{"a":1]`,
	} {
		if err := checkEnvelope([]byte(text)); err == nil {
			t.Errorf("%s was let through", text)
		}
	}
}
