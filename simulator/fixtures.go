package simulator

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
)

// Fixtures are recorded exchanges of a real provider, to be played as answers.
//
// A fixture is a JSON file with members scenario, base_url, request {method,
// path} and response {status, headers, body or body_raw}; one with direction
// "inbound", and index.json, are left out.
type Fixtures struct {
	// FS holds the files at its top.
	FS fs.FS
	// Order names the scenarios that answer, in order. Those with the same
	// method and path answer one call after the other; the last one repeats.
	Order []string
	// Replace maps text of the answers, headers and body, to other text, in
	// which {base} stands for the mount's absolute URL. The fixture's base_url
	// is replaced by {base} always.
	Replace map[string]string
	// Files are extra bodies, by path below the mount, answered to GET as
	// application/octet-stream: what result links lead to.
	Files map[string][]byte
}

// MountFixtures adds a provider that answers from fixtures. A create answered
// 2xx counts as a job with the id its body names as id or job_id; the same id
// again counts as a replay.
func (s *Simulator) MountFixtures(base string, f Fixtures, rules ...Rule) (*Mount, error) {
	sc := &script{files: f.Files, replace: f.Replace}
	for _, name := range f.Order {
		x, err := readExchange(f.FS, name)
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(sc.slots, func(sl *slot) bool {
			return sl.method == x.Request.Method && sl.path == x.path && sl.query.Encode() == x.query.Encode()
		})
		if i < 0 {
			sc.slots = append(sc.slots, &slot{method: x.Request.Method, path: x.path, query: x.query})
			i = len(sc.slots) - 1
		}
		sc.slots[i].queue = append(sc.slots[i].queue, x)
	}
	// A path with a query is more exact than one without.
	slices.SortStableFunc(sc.slots, func(a, b *slot) int { return len(b.query) - len(a.query) })
	m := s.Mount(base, Recorded, rules...)
	s.mu.Lock()
	defer s.mu.Unlock()
	m.script = sc
	return m, nil
}

// exchange is a fixture file.
type exchange struct {
	Scenario  string `json:"scenario"`
	Direction string `json:"direction"`
	BaseURL   string `json:"base_url"`
	Request   struct {
		Method string `json:"method"`
		Path   string `json:"path"`
	} `json:"request"`
	Response struct {
		Status  int               `json:"status"`
		Headers map[string]string `json:"headers"`
		Body    json.RawMessage   `json:"body"`
		BodyRaw *string           `json:"body_raw"`
	} `json:"response"`

	path  string // escaped, without the query
	query url.Values
}

func readExchange(fsys fs.FS, name string) (*exchange, error) {
	file := name + ".json"
	raw, err := fs.ReadFile(fsys, file)
	if err != nil {
		return nil, fmt.Errorf("read fixture %s: %w", name, err)
	}
	var x exchange
	if err := json.Unmarshal(raw, &x); err != nil {
		return nil, fmt.Errorf("decode fixture %s: %w", file, err)
	}
	if x.Direction == "inbound" {
		return nil, fmt.Errorf("fixture %s is a webhook, not an answer", file)
	}
	if x.Request.Method == "" || x.Response.Status == 0 {
		return nil, fmt.Errorf("fixture %s lacks request.method or response.status", file)
	}
	u, err := url.Parse(x.Request.Path)
	if err != nil {
		return nil, fmt.Errorf("read the path of fixture %s: %w", file, err)
	}
	if x.path = u.EscapedPath(); !strings.HasPrefix(x.path, "/") {
		return nil, fmt.Errorf("read the path of fixture %s: %w", file, errors.New("it must start with a slash"))
	}
	x.query = u.Query()
	return &x, nil
}

// body is the answer's body as it stands in the file.
func (x *exchange) body() []byte {
	switch {
	case x.Response.BodyRaw != nil:
		return []byte(*x.Response.BodyRaw)
	case bytes.Equal(bytes.TrimSpace(x.Response.Body), []byte("null")):
		return nil
	}
	return x.Response.Body
}

// A script holds the answers left to play. Guarded by the Simulator's mutex.
type script struct {
	slots   []*slot
	files   map[string][]byte
	replace map[string]string
}

// slot holds the answers of one method and path, in order.
type slot struct {
	method, path string
	query        url.Values // all of these the request must carry
	queue        []*exchange
	played       int
}

func (sl *slot) current() *exchange { return sl.queue[min(sl.played, len(sl.queue)-1)] }

func (sl *slot) match(method, path string, query url.Values) bool {
	if sl.method != method || sl.path != path {
		return false
	}
	for name, values := range sl.query {
		if !slices.Equal(query[name], values) {
			return false
		}
	}
	return true
}

func (sc *script) find(c *call) *slot {
	at := strings.TrimPrefix(c.entry.Path, c.mount.base)
	for _, sl := range sc.slots {
		if sl.match(c.entry.Method, at, c.query) {
			return sl
		}
	}
	return nil
}

// route tells the kind of call from the scenarios of its method and path.
func (sc *script) route(c *call) route {
	if _, ok := sc.files[strings.TrimPrefix(c.entry.Path, c.mount.base)]; ok {
		return route{call: Result, link: true, found: true}
	}
	sl := sc.find(c)
	if sl == nil {
		return route{call: Other}
	}
	r := route{call: sl.kind(), found: true}
	if r.call == Status || r.call == Cancel || r.call == Result {
		for _, j := range c.mount.order {
			if j.id != "" && slices.Contains(strings.Split(sl.path, "/"), url.PathEscape(j.id)) {
				r.id = j.id
			}
		}
	}
	return r
}

// kind goes by the scenario names, of which those of errors tell nothing.
func (sl *slot) kind() Call {
	for _, x := range sl.queue {
		switch kind, _, _ := strings.Cut(x.Scenario, "_"); kind {
		case "create":
			return Create
		case "status":
			return Status
		case "result":
			return Result
		case "cancel":
			return Cancel
		case "reconcile":
			return List
		case "cleanup":
			return Other
		}
	}
	if sl.method == http.MethodPost {
		return Create
	}
	return Status
}

// play answers with the next exchange.
func (sc *script) play(c *call) reply {
	if body, ok := sc.files[strings.TrimPrefix(c.entry.Path, c.mount.base)]; ok && c.entry.Method == http.MethodGet {
		return reply{status: http.StatusOK, raw: body}.with("Content-Type", "application/octet-stream")
	}
	sl := sc.find(c)
	if sl == nil {
		return problem(http.StatusNotFound, "no_fixture", "no fixture answers "+c.entry.Method+" "+path.Clean("/"+c.entry.Path))
	}
	x := sl.current()
	sl.played++
	if c.route.call == Create && x.Response.Status/100 == 2 {
		sc.file(c, x)
	}
	if c.job != nil && c.route.call == Status {
		c.job.reads++
	}
	pairs := make([]string, 0, 2+2*len(sc.replace))
	if x.BaseURL != "" {
		pairs = append(pairs, x.BaseURL, c.base())
	}
	for _, from := range sortedKeys(sc.replace) {
		pairs = append(pairs, from, strings.ReplaceAll(sc.replace[from], "{base}", c.base()))
	}
	rewrite := strings.NewReplacer(pairs...)
	rep := reply{status: x.Response.Status, header: http.Header{}, raw: []byte(rewrite.Replace(string(x.body())))}
	for name, value := range x.Response.Headers {
		rep.header.Set(name, rewrite.Replace(value))
	}
	return rep
}

// file counts a create as a job, or as a replay of one.
func (sc *script) file(c *call, x *exchange) {
	var b struct {
		ID    json.RawMessage `json:"id"`
		JobID json.RawMessage `json:"job_id"`
	}
	// A body of another form leaves the id empty.
	_ = json.Unmarshal(x.body(), &b)
	id := string(b.ID)
	if id == "" {
		id = string(b.JobID)
	}
	id = strings.Trim(id, `"`)
	m, now := c.mount, c.sim.now()
	if first := m.jobs[id]; first != nil && id != "" {
		c.about(first)
		c.entry.Replayed = true
		return
	}
	j := &job{
		mount: m, id: id, token: c.token, reference: c.reference, key: c.entry.Key, body: c.body,
		created: now, visible: now, plan: Plan{PerRead: true}.orDefault(Recorded), frozen: true,
		changes: []Change{{"", now}},
	}
	m.keep(j)
	c.entry.Stored = true
	c.about(j)
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
