package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
)

// page is a document that is the same for everybody as long as the process lives.
type page struct {
	media string
	text  []byte
	etag  string
}

func newPage(media string, text []byte) page { return page{media, text, `"` + sumOf(text) + `"`} }

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
