package api

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"
)

// page is a document that is the same for everybody as long as the process lives.
type page struct {
	media string
	text  []byte
	etag  string
}

func newPage(media string, text []byte) page { return page{media, text, `"` + sumOf(text) + `"`} }

// sumOf is short, and long enough that two texts of one service do not share it.
func sumOf(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// answer gives the page, or says that the caller has it.
func (p page) answer(c *call) (answer, error) {
	header := map[string]string{"ETag": p.etag, "Cache-Control": "public, max-age=300"}
	if matches(c.r.Header["If-None-Match"], p.etag) {
		return answer{status: http.StatusNotModified, header: header}, nil
	}
	return answer{status: http.StatusOK, header: header, media: p.media, body: p.text}, nil
}

// openapi describes the API.
func (h *handler) openapi(_ context.Context, c *call) (answer, error) { return h.document().answer(c) }

func openapiSheet() sheet {
	s := pageSheet("getOpenAPI", "Read this document", jsonType)
	s.answers[0].body, s.answers[0].media = typeOf[anyObject](), ""
	return s
}

func pageSheet(id, title, media string) sheet {
	return sheet{
		id: id, tag: tagService, title: title, text: "It needs no key.", params: []string{paramNoneMatch},
		answers: []outcome{
			{status: http.StatusOK, text: "The document.", media: media, always: []string{"ETag", "Cache-Control"}},
			same("It is what you have."),
		},
	}
}

// queryOf lists the names of the query's parameters.
func queryOf(s sheet, params map[string]*huma.Param) []string {
	var names []string
	for _, name := range s.params {
		if p := params[name]; p != nil && p.In == "query" {
			names = append(names, p.Name)
		}
	}
	return names
}

// matches says whether an If-None-Match header names the ETag: alone, in a list,
// in its weak form, or by *. Quotes that are missing are forgiven.
func matches(values []string, etag string) bool {
	return slices.ContainsFunc(tags(values), func(t string) bool { return t == "*" || t == etag })
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
