package stand

import (
	"bytes"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Proxy stands between a client and the service, and does what networks do. The
// service always gets the request.
type Proxy struct {
	URL string

	server *httptest.Server
	faults Faults

	mu    sync.Mutex
	seen  map[string]int // guarded by mu: requests by method, path and key
	asked []Asked        // guarded by mu
	kept  []string       // guarded by mu: ids of events that a feed lost
}

// Asked is one request and what became of its answer.
type Asked struct {
	Method, Path, Key, LastEvent string
	Status                       int
	Replayed, Lost               bool // Replayed: the key had been seen before
}

// Faults are what a Proxy does. The zero value does nothing.
type Faults struct {
	// Lose loses every first answer to a request, and so every second of one that is
	// sent again: the connection ends instead, at times in the middle of the answer.
	Lose bool
	// CutAfter ends a stream after so many events; 0 lets it go on.
	CutAfter int
	// LoseFirst cuts each feed of all operations that was begun without an id when its
	// first event comes, which does not arrive.
	LoseFirst bool
	// NoStreams answers every stream with a page that says no.
	NoStreams bool
	// Delay holds each answer.
	Delay time.Duration
}

// NewProxy starts a proxy in front of the service at target.
func NewProxy(target string, f Faults) (*Proxy, error) {
	to, err := url.Parse(target)
	if err != nil {
		return nil, err
	}
	p := &Proxy{faults: f, seen: map[string]int{}}
	transport := &http.Transport{}
	pass := &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(to) },
		Transport: transport, FlushInterval: -1, ModifyResponse: p.answer,
		ErrorLog:     log.New(io.Discard, "", 0),                                                      // what it loses it loses on purpose
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }, // lost
	}
	p.server = httptest.NewUnstartedServer(pass)
	p.server.Config.RegisterOnShutdown(transport.CloseIdleConnections)
	p.server.Start()
	p.URL = p.server.URL
	return p, nil
}

// Close ends it, with all streams through it.
func (p *Proxy) Close() {
	p.server.CloseClientConnections()
	p.server.Close()
}

// Requests are those that came, in order.
func (p *Proxy) Requests() []Asked {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]Asked(nil), p.asked...)
}

// LostFirst are the ids of the events that LoseFirst kept from arriving.
func (p *Proxy) LostFirst() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.kept...)
}

func (p *Proxy) answer(w *http.Response) error {
	r := w.Request
	a := Asked{
		Method: r.Method, Path: r.URL.Path, Key: r.Header.Get("Idempotency-Key"), LastEvent: r.Header.Get("Last-Event-ID"), Status: w.StatusCode,
		Replayed: w.Header.Get("Idempotent-Replayed") == "true",
	}
	stream := strings.HasPrefix(w.Header.Get("Content-Type"), "text/event-stream")
	p.mu.Lock()
	name := a.Method + " " + a.Path + " " + a.Key
	p.seen[name]++
	n := p.seen[name]
	a.Lost = p.faults.Lose && !stream && n%2 == 1
	p.asked = append(p.asked, a)
	total := len(p.asked)
	p.mu.Unlock()
	if p.faults.Delay > 0 {
		timer := time.NewTimer(p.faults.Delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-r.Context().Done():
			return r.Context().Err()
		}
	}
	switch {
	case stream && p.faults.NoStreams:
		_ = w.Body.Close() // nobody reads it
		page := "no streams here\n"
		w.StatusCode, w.Status, w.Body, w.ContentLength = http.StatusNotImplemented, "", io.NopCloser(strings.NewReader(page)), int64(len(page))
		w.Header = http.Header{"Content-Type": {"text/plain"}, "Content-Length": {strconv.Itoa(len(page))}}
	case stream && p.faults.LoseFirst && r.URL.Path == "/v1/events" && a.LastEvent == "" && !r.URL.Query().Has("after"):
		w.Body = &early{ReadCloser: w.Body, lost: func(id string) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.kept = append(p.kept, id)
		}}
	case stream && p.faults.CutAfter > 0:
		w.Body = &cut{ReadCloser: w.Body, left: p.faults.CutAfter}
	case a.Lost && total%2 == 0:
		return errLost
	case a.Lost:
		text, err := io.ReadAll(w.Body)
		if err != nil {
			return err
		}
		// Half of it arrives, of which the headers say that it is not all.
		w.Body = io.NopCloser(io.MultiReader(bytes.NewReader(text[:len(text)/2]), ends{}))
	}
	return nil
}

var errLost = &net.OpError{Op: "read", Err: io.ErrUnexpectedEOF}

// ends is a body that breaks.
type ends struct{}

func (ends) Read([]byte) (int, error) { return 0, errLost }

// cut ends behind so many events, at times within the next one.
type cut struct {
	io.ReadCloser
	left int
}

func (c *cut) Read(b []byte) (int, error) {
	if c.left < 0 {
		return 0, errLost
	}
	n, err := c.ReadCloser.Read(b)
	for i := 0; i < n; i++ {
		if i+1 < n && b[i] == '\n' && b[i+1] == '\n' && bytes.Contains(b[:i], []byte("data:")) {
			if c.left--; c.left <= 0 {
				c.left = -1
				return min(n, i+2+(n-i-2)/2), err
			}
		}
	}
	return n, err
}

// early ends before the first event, of which nothing arrives; what has no data does.
type early struct {
	io.ReadCloser
	lost  func(id string)
	held  []byte // read, and not known to be no part of an event
	ended bool
}

func (e *early) Read(b []byte) (int, error) {
	for !e.ended {
		block, rest, whole := bytes.Cut(e.held, []byte("\n\n"))
		switch {
		case !whole:
			n, err := e.ReadCloser.Read(b)
			e.held = append(e.held, b[:n]...)
			if n == 0 && err != nil {
				return 0, err
			}
			continue
		case !bytes.Contains(block, []byte("data:")):
			n := copy(b, e.held[:len(block)+2])
			e.held = e.held[n:]
			return n, nil
		}
		id, _, _ := strings.Cut(strings.TrimPrefix(string(block), "id: "), "\n")
		e.lost(id)
		e.ended, e.held = true, rest
	}
	return 0, errLost
}
