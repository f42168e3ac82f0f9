package api

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/counterfoil/counterfoil/internal/ingest"
)

// rateLimit tells what quotas there are and what is left of them, in the fields of
// draft-ietf-httpapi-ratelimit-headers-12: Structured Fields, whose lists have an item
// for each quota. q is the limit and w the seconds it is over, r what can be begun now
// and t after how many seconds there is one more. What has no window has no w and no t.
func rateLimit(header http.Header, quotas []ingest.QuotaView) {
	var policies, left []string
	for _, q := range quotas {
		name := `"` + string(q.Policy) + `"` // a word of ours, so nothing is to be escaped
		policy := name + ";q=" + strconv.Itoa(q.Limit)
		if q.Window > 0 {
			policy += ";w=" + strconv.Itoa(q.Window)
		}
		policies = append(policies, policy)
		if q.Remaining == nil {
			continue
		}
		item := name + ";r=" + strconv.Itoa(*q.Remaining)
		if q.More > 0 {
			item += ";t=" + strconv.Itoa(q.More)
		}
		left = append(left, item)
	}
	header.Set("RateLimit-Policy", strings.Join(policies, ", "))
	header.Set("RateLimit", strings.Join(left, ", "))
}
