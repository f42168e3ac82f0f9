package api

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"html/template"
	"net/http"
	"strings"
	"time"

	"github.com/counterfoil/counterfoil/internal/ingest"
)

// operationPage shows an operation to a person who followed a link. It runs no script
// and changes nothing: what can be done is said as commands.
const operationPage = `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{.View.State}} - {{.View.ID}}</title>
<style>` + operationStyle + `</style>
<h1><code>{{.View.ID}}</code></h1>
<p class="state"><strong>{{.View.State}}</strong>{{with .View.Quarantine}} ({{.}}){{end}}{{with .View.Reason}}: {{.}}{{end}}
since <time datetime="{{utc .View.Since}}">{{utc .View.Since}}</time>{{if .View.Terminal}}; nothing moves it any more{{else if .View.Done}}; it waits for a decision or late evidence{{end}}
{{with .View.Because}}<p>{{.}}{{end}}
<table class="facts">
<tr><th>provider<td>{{.View.Provider}}, account {{.View.Account}}
{{with .View.Principal}}<tr><th>asked for by<td>{{.}}
{{end}}{{with .View.WaitingFor}}<tr><th>waiting for<td>{{.}}{{with $.View.NextLook}}, next look <time datetime="{{utc .}}">{{utc .}}</time>{{end}}
{{end}}{{with .View.Approval}}<tr><th>approval<td>{{.State}}{{with .By}} by {{.}}{{end}}{{with .At}} at <time datetime="{{utc .}}">{{utc .}}</time>{{end}}{{range .Demands}}<br>rule {{.Rule}}{{with .Why}}: {{.}}{{end}}{{with .Failed}}, which could not be evaluated: {{.}}{{end}}{{end}}<br>what is sent has the digest <code>{{.Digest}}</code>
{{end}}{{with .Params}}<tr><th>parameters<td><pre>{{.}}</pre>
{{end}}<tr><th>after a lost answer<td>{{.View.Guarantee.Words}}
{{with .View.Job}}<tr><th>job<td><code>{{.ID}}</code>{{with .RemoteState}}, the provider says <q>{{.}}</q>{{end}}{{with .Progress}} ({{.}}){{end}}{{if .Adopted}}, not created here{{end}}
{{end}}{{with .View.Input}}<tr><th>it waits for<td>{{.Text}}{{with .URL}} <a href="{{.}}" rel="noopener noreferrer">answer at the provider</a>{{end}}{{with .Question}} (question {{.}}){{end}}{{with .Given}} answer {{.Number}} by {{.By}}: {{.Status}}{{end}}
{{end}}{{with .View.Cleanup}}<tr><th>cleanup<td>of {{.JobID}}, asked for by {{.By}}: {{.Status}}{{with .Removed}}; removed: {{range .}}{{.}} {{end}}{{end}}
{{end}}{{with .View.Cancel}}<tr><th>cancel<td>wished{{if .TooLate}}, too late{{else if not .Possible}}, not possible{{end}}
{{end}}{{with .View.Problem}}<tr><th>problem<td>{{.Code}} {{.Message}}{{with .Class}} ({{.}}){{end}}
{{end}}{{with .View.Result}}<tr><th>result<td>{{.Size}} bytes of {{.MediaType}}, sha256 <code>{{.SHA256}}</code>{{range .Checks}}<br>check {{.Name}}: {{if .Passed}}passed{{else}}failed {{.Detail}}{{end}}{{end}}
{{end}}{{with .View.Expect}}<tr><th>expected<td><code>{{.}}</code>
{{end}}{{range .View.Tags}}<tr><th>{{.Name}}<td>{{.Value}}
{{end}}{{with .Commands}}<tr><th>what you may do<td>{{range .}}<code>{{.}}</code><br>{{end}}
{{end}}</table>
<h2>What happened</h2>
<table class="timeline">
<thead><tr><th>seq<th>time (UTC)<th>fact<th>verdict<th>state<th>by<th>details
<tbody>
{{range .Timeline.Entries}}<tr id="{{.Sequence}}"><td>{{.Sequence}}<td>{{utc .Time}}<td>{{.Type}}<td>{{.Verdict}}{{with .Reason}} {{.}}{{end}}<td>{{if eq .From .To}}{{.To}}{{else}}{{.From}} &rarr; {{.To}}{{end}}<td>{{.Source}}{{with .Actor}} {{.}}{{end}}<td>{{range .Fields}}<span><b>{{.Name}}</b> {{.Value}}</span> {{end}}
{{end}}</table>
{{with .Timeline.NextAfter}}<p><a href="?after={{.}}">What happened next</a>
{{end}}<p>As of version {{.View.Version}}. This page does not change by itself.
</html>
`

const operationStyle = `body{font:1rem/1.5 system-ui,sans-serif;margin:2rem;max-width:80rem;color:#111;background:#fff}` +
	`h1{font-size:1.2rem}table{border-collapse:collapse}th,td{text-align:left;vertical-align:top;padding:.25rem .75rem .25rem 0;border-bottom:1px solid #ddd}` +
	`.timeline{font-size:.85rem}.timeline span{display:inline-block;margin-right:.75rem;overflow-wrap:anywhere}code{overflow-wrap:anywhere}` +
	`@media (prefers-color-scheme:dark){body{color:#eee;background:#111}th,td{border-color:#444}a{color:#9cf}}`

// htmlType is the media type of pages for people.
const htmlType = "text/html; charset=utf-8"

// styleSum lets a browser take the page's style and no other.
func styleSum() string {
	sum := sha256.Sum256([]byte(operationStyle))
	return base64.StdEncoding.EncodeToString(sum[:])
}

// operationShown is what the page shows.
type operationShown struct {
	View     ingest.View
	Timeline ingest.TimelinePage
	Commands []string
	Params   string // where somebody is to approve them
}

// person shows an operation to a person.
func (h *handler) person(ctx context.Context, c *call) (answer, error) {
	after, err := c.q.number("after", 1<<62)
	if err != nil {
		return answer{}, err
	}
	view, err := h.o.Service.Get(ctx, c.caller, c.operation)
	if err != nil {
		return answer{}, err
	}
	c.trace = view.Trace
	timeline, err := h.o.Service.Timeline(ctx, c.caller, c.operation, after, 0)
	if err != nil {
		return answer{}, err
	}
	params, err := h.toApprove(ctx, c, view)
	if err != nil {
		return answer{}, err
	}
	page, err := template.New("operation").Funcs(template.FuncMap{"utc": utc}).Parse(operationPage)
	if err != nil {
		return answer{}, fmt.Errorf("page of an operation: %w", err)
	}
	var out bytes.Buffer
	if err := page.Execute(&out, operationShown{view, timeline, commands(view), params}); err != nil {
		return answer{}, fmt.Errorf("page of an operation: %w", err)
	}
	return answer{status: http.StatusOK, media: htmlType, body: out.Bytes(), header: map[string]string{
		"Content-Security-Policy": "default-src 'none'; style-src 'sha256-" + styleSum() + "'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
		"Referrer-Policy":         "no-referrer",
	}}, nil
}

// shownParams bounds the parameters on the page, in bytes.
const shownParams = 16 << 10

// toApprove gives what somebody is to look at before it is sent.
func (h *handler) toApprove(ctx context.Context, c *call, view ingest.View) (string, error) {
	if view.Approval == nil || view.Approval.State != ingest.ApprovalPending {
		return "", nil
	}
	params, _, err := h.o.Service.Params(ctx, c.caller, view.ID)
	if err != nil {
		return "", err
	}
	if len(params) > shownParams {
		return "They are too long for this page: GET " + address(view.ID) + "/params has them.", nil
	}
	return string(params), nil
}

// commands says what the caller may do now as it is typed.
func commands(v ingest.View) (list []string) {
	for _, a := range v.Allowed {
		switch a.Action {
		case "decide":
		case "input":
			list = append(list, "counterfoil input "+v.ID+" --question "+v.Input.Question+" --input JSON")
		default:
			list = append(list, "counterfoil "+a.Action+" "+v.ID)
		}
		for _, kind := range a.Decisions {
			if kind == ingest.Approve || kind == ingest.Deny {
				list = append(list, "counterfoil "+string(kind)+" "+v.ID+" --digest "+v.Approval.Digest)
				continue
			}
			list = append(list, "counterfoil decide "+v.ID+" "+string(kind))
		}
	}
	return list
}

// utc writes a time, or a pointer to one, as RFC 3339 in UTC.
func utc(v any) (string, error) {
	switch t := v.(type) {
	case time.Time:
		return t.UTC().Format(time.RFC3339Nano), nil
	case *time.Time:
		return t.UTC().Format(time.RFC3339Nano), nil
	}
	return "", fmt.Errorf("%T is no time", v)
}

// asBearer reads a browser's Authorization header, whose password is a key and whose
// user name is nothing, as the one that programs send (RFC 7617). What is anything else
// is left as it is.
func asBearer(values []string) []string {
	if len(values) != 1 {
		return values
	}
	scheme, text, _ := strings.Cut(values[0], " ")
	raw, err := base64.StdEncoding.DecodeString(strings.TrimSpace(text))
	if err != nil || !strings.EqualFold(scheme, "Basic") {
		return values
	}
	_, password, _ := strings.Cut(string(raw), ":")
	return []string{"Bearer " + password}
}
