package mcpapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/counterfoil/counterfoil/internal/ingest"
)

const (
	maxLine = 16 << 20 // bytes of one message, as the SDK bounds them

	// lastAnswers is how long calls may take that were read before the input ended: a
	// little more than the longest wait of a tool.
	lastAnswers = 70 * time.Second

	// Codes of JSON-RPC 2.0, section 5.1.
	codeParse   = -32700
	codeRequest = -32600

	// batchless is the first revision of the protocol without batches.
	batchless = "2025-06-18"
)

// lines stands between a client's input and output and the SDK, which ends the
// conversation at the first line that is no message, and drops what it was asked when
// the input ends. Such a line is answered and left out here, and the end of the input
// is passed on when all calls are answered.
type lines struct {
	in  io.ReadCloser
	out io.WriteCloser

	mu      sync.Mutex
	opening *opening            // while it is under way
	version string              // of the protocol, once it is agreed on
	asked   map[jsonrpc.ID]bool // ids of requests that were passed on and are not answered
	ended   bool                // the input
	settled chan struct{}       // closed when it has ended and all is answered
}

// opening is the requests that agree on a revision of the protocol: one, or another
// behind one that fails.
type opening struct {
	ids    map[jsonrpc.ID]bool // that are not answered
	agreed chan struct{}       // closed when all are
}

func newLines(in io.ReadCloser, out io.WriteCloser) *lines {
	return &lines{in: in, out: out, asked: map[jsonrpc.ID]bool{}, settled: make(chan struct{})}
}

// messages reads the messages of a line, one or a batch; code is that of the answer
// where it is none, and why says what is wrong.
func messages(line []byte) (list []jsonrpc.Message, code int, why string) {
	const none = `the line is no message of JSON-RPC 2.0: it has "jsonrpc": "2.0", and a method, or an id with a result or an error`
	if err := checkEnvelope(line); err != nil {
		var refusal *ingest.Refusal
		if errors.As(err, &refusal) && refusal.Code == ingest.CodeMalformedJSON {
			return nil, codeParse, "the line is not JSON: a message is one line"
		}
		return nil, codeRequest, err.Error()
	}
	// As the SDK reads it: whatever it cannot read ends the conversation.
	one := func(text json.RawMessage) bool {
		m, err := jsonrpc.DecodeMessage(text)
		if r, ok := m.(*jsonrpc.Response); err != nil || ok && r.Result == nil && r.Error == nil {
			return false
		}
		list = append(list, m)
		return true
	}
	if line[0] != '[' {
		if !one(line) {
			return nil, codeRequest, none
		}
		return list, 0, ""
	}
	var batch []json.RawMessage
	if err := json.Unmarshal(line, &batch); err != nil || len(batch) == 0 {
		return nil, codeRequest, none
	}
	for _, text := range batch {
		if !one(text) {
			return nil, codeRequest, none
		}
	}
	return list, 0, ""
}

// run passes the input on, until it, or ctx, ends. It owns into.
func (l *lines) run(ctx context.Context, into *io.PipeWriter) {
	r := bufio.NewReaderSize(l.in, 64<<10)
	var err error
	for err == nil {
		var line []byte
		line, err = readLine(r)
		if text := bytes.TrimSpace(line); len(text) > 0 {
			if failed := l.pass(ctx, text, into); failed != nil {
				err = failed
			}
		}
	}
	if !errors.Is(err, io.EOF) {
		_ = into.CloseWithError(err) // never fails
		return
	}
	l.end()
	late := time.NewTimer(lastAnswers)
	defer late.Stop()
	select {
	case <-l.settled:
	case <-late.C:
	case <-ctx.Done():
	}
	_ = into.Close() // never fails
}

var errLine = errors.New("a line of the input is longer than 16 MiB")

func readLine(r *bufio.Reader) (line []byte, err error) {
	for {
		part, err := r.ReadSlice('\n')
		if line = append(line, part...); len(line) > maxLine {
			return nil, errLine
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
}

// pass hands one line on, or answers it.
func (l *lines) pass(ctx context.Context, line []byte, into io.Writer) error {
	list, code, why := messages(line)
	if code == 0 {
		batch := line[0] == '['
		if batch && !l.agreed(ctx) {
			return ctx.Err()
		}
		list, code, why = l.note(batch, list)
	}
	if code != 0 {
		return l.refuse(code, why)
	}
	return write(line, list, into)
}

// write hands a line on, of a batch what is left of it. The notifications of a batch go
// before it, each by itself: the SDK would wait for an answer to them, and so with the
// answers to all others.
func write(line []byte, list []jsonrpc.Message, into io.Writer) error {
	if len(list) == 0 {
		return nil
	}
	if line[0] == '[' {
		var apart, rest [][]byte
		for _, m := range list {
			text, err := jsonrpc.EncodeMessage(m)
			if err != nil {
				return err
			}
			if r, ok := m.(*jsonrpc.Request); ok && !r.IsCall() {
				apart = append(apart, text)
			} else {
				rest = append(rest, text)
			}
		}
		if len(rest) > 0 {
			apart = append(apart, slices.Concat([]byte{'['}, bytes.Join(rest, []byte{','}), []byte{']'}))
		}
		line = bytes.Join(apart, []byte{'\n'})
	}
	_, err := into.Write(append(bytes.Clone(line), '\n'))
	return err
}

// agreed waits, where a revision of the protocol is being agreed on, until it is.
func (l *lines) agreed(ctx context.Context) bool {
	l.mu.Lock()
	opening := l.opening
	l.mu.Unlock()
	if opening == nil {
		return true
	}
	select {
	case <-opening.agreed:
		return true
	case <-ctx.Done():
		return false
	}
}

// note takes down what is asked and so must be answered, or says why it is not passed on.
// It keeps what is to be passed on.
func (l *lines) note(batch bool, list []jsonrpc.Message) (kept []jsonrpc.Message, code int, why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if batch && l.version >= batchless {
		return nil, codeRequest, "revision " + l.version + " of the protocol, which this conversation has, knows no batches"
	}
	ids := map[jsonrpc.ID]bool{}
	for _, m := range list {
		r, ok := m.(*jsonrpc.Request)
		if !ok || !r.IsCall() {
			continue
		}
		if ids[r.ID] || l.asked[r.ID] {
			return nil, codeRequest, "a request with this id is not answered yet: each has an id of its own"
		}
		ids[r.ID] = true
	}
	for id := range ids {
		l.asked[id] = true
	}
	kept = make([]jsonrpc.Message, 0, len(list))
	for _, m := range list {
		r, ok := m.(*jsonrpc.Request)
		switch {
		case !ok:
		case r.Method == "initialize" && r.IsCall():
			if l.opening == nil {
				l.opening = &opening{ids: map[jsonrpc.ID]bool{}, agreed: make(chan struct{})}
			}
			l.opening.ids[r.ID] = true // another one may go on where the first fails
		case r.Method == "notifications/cancelled":
			id, ok := cancelled(r.Params)
			switch {
			case ok && l.opens(id):
				continue // it cannot be cancelled, and the SDK would
			case ok:
				l.settledLocked(id) // it may not be answered
			}
		}
		kept = append(kept, m)
	}
	return kept, 0, ""
}

// cancelled is the id of the request that a notification gives up.
func cancelled(params json.RawMessage) (jsonrpc.ID, bool) {
	var p struct {
		ID any `json:"requestId"`
	}
	if err := jsonv2.Unmarshal(params, &p); err != nil { // with names as they are written, as the SDK reads them
		return jsonrpc.ID{}, false
	}
	id, err := jsonrpc.MakeID(p.ID)
	return id, err == nil && id.IsValid()
}

func (l *lines) refuse(code int, text string) error {
	answer, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": nil, "error": map[string]any{"code": code, "message": text}})
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err = l.out.Write(append(answer, '\n'))
	return err
}

func (l *lines) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	l.settle()
}

// settle is called with mu held.
func (l *lines) settle() {
	if l.ended && len(l.asked) == 0 {
		select {
		case <-l.settled:
		default:
			close(l.settled)
		}
	}
}

// settledLocked takes note that nobody waits for the answer to a request any more.
func (l *lines) settledLocked(id jsonrpc.ID) {
	delete(l.asked, id)
	if !l.opens(id) {
		return
	}
	if delete(l.opening.ids, id); len(l.opening.ids) == 0 {
		close(l.opening.agreed)
		l.opening = nil
	}
}

// opens says whether the request is one that agrees on a revision; mu is held.
func (l *lines) opens(id jsonrpc.ID) bool { return l.opening != nil && l.opening.ids[id] }

// Write takes what the SDK says: a line, whole.
func (l *lines) Write(line []byte) (int, error) {
	list, _, _ := messages(bytes.TrimSpace(line))
	l.mu.Lock()
	defer l.mu.Unlock()
	n, err := l.out.Write(line)
	for _, m := range list {
		r, ok := m.(*jsonrpc.Response)
		if !ok {
			continue
		}
		var begun struct {
			Version string `json:"protocolVersion"`
		}
		if l.opens(r.ID) && json.Unmarshal(r.Result, &begun) == nil && begun.Version != "" {
			l.version = begun.Version
		}
		l.settledLocked(r.ID)
	}
	l.settle()
	return n, err
}

// Close ends the output.
func (l *lines) Close() error { return l.out.Close() }
