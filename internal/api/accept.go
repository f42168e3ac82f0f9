package api

import (
	"mime"
	"slices"
	"strconv"
	"strings"

	"github.com/counterfoil/counterfoil/internal/ingest"
)

// accepts refuses a caller who can take nothing of what the route offers. A route
// that offers nothing in particular is refused to nobody.
func (c *call) accepts(offers []string) error {
	values := c.r.Header["Accept"]
	if len(offers) == 0 || slices.ContainsFunc(offers, func(media string) bool { return acceptable(values, media) }) {
		return nil
	}
	return (&ingest.Refusal{Code: ingest.CodeNotAcceptable, Allowed: offers}).Say("this address answers with {allowed}", nil)
}

// acceptable says whether an Accept header takes the media type (RFC 9110, section
// 12.5.1): of the ranges that name it the most exact one counts, and it must not have
// the weight 0. Parameters beside the weight are not looked at, and a range that
// cannot be read names nothing.
func acceptable(values []string, media string) bool {
	whole, _, _ := strings.Cut(media, "/")
	ranges := []string{"*/*", whole + "/*", media}
	best, ok := -1, false
	none := true
	for part := range strings.SplitSeq(strings.Join(values, ","), ",") {
		if strings.TrimSpace(part) == "" {
			continue
		}
		none = false
		name, params, err := mime.ParseMediaType(part)
		if err != nil {
			continue
		}
		exact := slices.Index(ranges, name)
		if exact < 0 || exact < best {
			continue
		}
		weight := 1.0
		if q, weighed := params["q"]; weighed {
			if weight, err = strconv.ParseFloat(q, 64); err != nil {
				weight = 1
			}
		}
		if exact > best {
			best, ok = exact, false
		}
		ok = ok || weight > 0
	}
	return ok || none
}

// offers are the media types that the route answers with; none where that is not
// known beforehand, or where nobody is refused.
func (r route) offers() []string {
	if !r.strict() {
		return nil
	}
	var list []string
	for _, o := range r.sheet.answers {
		if o.media == "*/*" {
			return nil
		}
		if o.body != nil {
			list = append(list, jsonType)
		}
		if o.media != "" {
			list = append(list, o.media)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}
