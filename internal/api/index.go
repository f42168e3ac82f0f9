package api

import (
	"bytes"
	"context"
	"fmt"
	"html/template"

	"github.com/counterfoil/counterfoil/internal/ingest"
)

// indexPath is what somebody asks for who knows the address and nothing else.
const indexPath = "/"

// indexPage shows it to people.
const indexPage = `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Counterfoil</title>
<h1>Counterfoil</h1>
<p>{{.Text}}
<ul>
{{range .Links}}<li><a href="{{.Href}}">{{.Title}}</a> <code>{{.Href}}</code>
{{end}}</ul>
</html>
`

// indexView is where a caller goes on.
type indexView struct {
	Name  string      `json:"name"`
	Text  string      `json:"text" doc:"What this is."`
	Links []indexLink `json:"links"`
}

// indexLink is one of the links.
type indexLink struct {
	Rel   string `json:"rel" doc:"A relation of the IANA registry."`
	Href  string `json:"href" format:"uri-reference"`
	Type  string `json:"type,omitempty" doc:"A media type that it is answered with."`
	Title string `json:"title"`
}

// index leads on from the address alone. What there is, is said once: the catalog has the
// same links.
func (h *handler) index(_ context.Context, c *call) (answer, error) {
	view := indexView{Name: "Counterfoil", Text: "Counterfoil submits jobs to asynchronous providers, follows them to their end, and says what is known of each. Requests about operations need a key; what is read here to learn how needs none."}
	if h.o.Service == nil {
		view.Text = "This process of Counterfoil takes the webhooks of providers. The API is served by another one."
	}
	api, items := h.links()
	for _, of := range []struct {
		rel  string
		list []link
	}{{"service-doc", api.ServiceDoc}, {"service-desc", api.ServiceDesc}, {"service-meta", api.ServiceMeta}, {"item", items}, {"status", api.Status}} {
		for _, l := range of.list {
			view.Links = append(view.Links, indexLink{of.rel, l.Href, l.Type, l.Title})
		}
	}
	header := map[string]string{"Vary": "Accept"}
	if h.o.Service != nil {
		view.Links = append(view.Links, indexLink{"api-catalog", catalogPath, "application/linkset+json", "The same links for programs (RFC 9727)"})
		header["Link"] = "<" + catalogPath + `>; rel="api-catalog"`
	}
	view.Links = append(view.Links, indexLink{"service-doc", ingest.ManualURL, "text/html", "The manual"})
	media, text, err := "", []byte(nil), error(nil)
	if wantsHTML(c.r.Header["Accept"]) {
		media, header["Content-Security-Policy"] = htmlType, "default-src 'none'"
		text, err = executed(view)
	} else {
		media = jsonType
		text, err = encode(view)
	}
	if err != nil {
		return answer{}, fmt.Errorf("index: %w", err)
	}
	a, err := newPage(media, text).answer(c)
	for name, value := range header {
		a.header[name] = value
	}
	return a, err
}

func executed(view indexView) ([]byte, error) {
	page, err := template.New("index").Parse(indexPage)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = page.Execute(&out, view)
	return out.Bytes(), err
}

func indexSheet() sheet {
	s := pageSheet("getIndex", "Find what there is", "text/html")
	s.text = "Where to go on, for who knows the address alone, as JSON or as a page. It needs no key."
	s.answers[0].body = typeOf[indexView]()
	for i := range s.answers {
		s.answers[i].always = append(s.answers[i].always, "Vary")
	}
	return s
}
