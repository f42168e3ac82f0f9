package api

import (
	"bytes"
	"context"
	"fmt"
	"html/template"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/counterfoil/counterfoil/internal/ingest"
)

// errorsPage shows the registry, or one entry, to people.
const errorsPage = `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Problem codes</title>
<h1>Problem codes</h1>
<table>
<tr><th>code<th>status<th>title<th>retryable<th>retry_with<th>what to do
{{range .}}<tr><td><a href="{{.Type}}"><code>{{.Code}}</code></a><td>{{.Status}}<td>{{.Title}}<td>{{.Retryable}}<td><code>{{.RetryWith}}</code><td>{{.Hint}} <a href="{{.Docs}}">docs</a>
{{end}}</table>
<p><a href="/errors">All codes</a>
</html>
`

// fieldMeaning is a field code as /errors lists it.
type fieldMeaning struct {
	Code    ingest.FieldCode `json:"code"`
	Meaning string           `json:"meaning"`
}

// codeList is the registry.
type codeList struct {
	Codes      []ingest.CodeEntry `json:"codes"`
	FieldCodes []fieldMeaning     `json:"field_codes"`
}

// codes lists the registry. It needs no key: a problem's type leads here, also
// that of a problem with the key.
func (h *handler) codes(_ context.Context, c *call) (answer, error) {
	registry := ingest.Registry()
	fields := []fieldMeaning{}
	for _, code := range ingest.FieldCodes() {
		fields = append(fields, fieldMeaning{code, ingest.FieldMeanings()[code]})
	}
	return c.explain(registry, codeList{registry, fields})
}

// code says what one code means.
func (h *handler) code(_ context.Context, c *call) (answer, error) {
	for _, e := range ingest.Registry() {
		if string(e.Code) == c.r.PathValue("code") {
			return c.explain([]ingest.CodeEntry{e}, e)
		}
	}
	return answer{}, &ingest.Refusal{Code: ingest.CodeNotFound, Detail: "there is no such code; /errors lists them"}
}

// explain answers with rows to a browser and with JSON to everybody else.
func (c *call) explain(rows []ingest.CodeEntry, machine any) (answer, error) {
	a := answer{status: http.StatusOK, body: machine, header: map[string]string{"Cache-Control": "public, max-age=3600", "Vary": "Accept"}}
	if !wantsHTML(c.r.Header["Accept"]) {
		return a, nil
	}
	page, err := template.New("errors").Parse(errorsPage)
	if err != nil {
		return answer{}, fmt.Errorf("page of problem codes: %w", err)
	}
	var out bytes.Buffer
	if err := page.Execute(&out, rows); err != nil {
		return answer{}, fmt.Errorf("page of problem codes: %w", err)
	}
	a.media, a.body = htmlType, out.Bytes()
	a.header["Content-Security-Policy"] = "default-src 'none'"
	return a, nil
}

// wantsHTML says whether text/html is named in Accept with more weight than
// JSON is. Who names neither is no browser.
func wantsHTML(values []string) bool {
	weight := map[string]float64{}
	for _, part := range strings.Split(strings.Join(values, ","), ",") {
		media, parameters, _ := strings.Cut(part, ";")
		q := 1.0
		for _, p := range strings.Split(parameters, ";") {
			if name, value, ok := strings.Cut(p, "="); ok && strings.EqualFold(strings.TrimSpace(name), "q") {
				if n, err := strconv.ParseFloat(strings.TrimSpace(value), 64); err == nil {
					q = n
				}
			}
		}
		weight[strings.ToLower(strings.TrimSpace(media))] = q
	}
	html := weight["text/html"]
	return html > 0 && !slices.ContainsFunc([]string{"application/json", "application/problem+json"}, func(m string) bool { return weight[m] > html })
}

func codesSheet() sheet {
	return sheet{
		id: "listCodes", tag: tagService, title: "Read what the problem codes mean", text: "All of them, as JSON or as a page. It needs no key.",
		answers: []outcome{{
			status: http.StatusOK, text: "The codes.", body: typeOf[codeList](), media: "text/html", always: []string{"Cache-Control", "Vary"},
		}},
	}
}

func codeSheet() sheet {
	return sheet{
		id: "getCode", tag: tagService, title: "Read what one problem code means", text: "As JSON or as a page. It needs no key.",
		params: []string{paramCode},
		answers: []outcome{{
			status: http.StatusOK, text: "The code.", body: typeOf[ingest.CodeEntry](), media: "text/html", always: []string{"Cache-Control", "Vary"},
		}},
		codes: []ingest.Code{ingest.CodeNotFound},
	}
}
