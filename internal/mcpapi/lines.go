package mcpapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"sync"
	"time"
)

const (
	maxLine = 16 << 20 // bytes of one message, as the SDK bounds them

	// lastAnswers is how long calls may take that were read before the input ended: a
	// little more than the longest wait of a tool.
	lastAnswers = 70 * time.Second

	// Codes of JSON-RPC 2.0, section 5.1.
	codeParse   = -32700
	codeRequest = -32600
)

// lines stands between a client's input and output and the SDK, which ends the
// conversation at the first line that is no message, and drops what it was asked when
// the input ends. Such a line is answered and left out here, and the end of the input
// is passed on when all calls are answered.
type lines struct {
	in  io.ReadCloser
	out io.WriteCloser

	mu      sync.Mutex
	asked   map[string]bool // ids of requests that were passed on and are not answered
	ended   bool            // the input
	settled chan struct{}   // closed when it has ended and all is answered
}

func newLines(in io.ReadCloser, out io.WriteCloser) *lines {
	return &lines{in: in, out: out, asked: map[string]bool{}, settled: make(chan struct{})}
}

// message is what is to be known of one.
type message struct {
	Version string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Method  string          `json:"method"`
	Result  json.RawMessage `json:"result"`
	Error   json.RawMessage `json:"error"`
	Params  struct {
		RequestID json.RawMessage `json:"requestId"`
	} `json:"params"`
}

// messages reads the messages of a line, one or a batch; code is that of the answer
// where it is none.
func messages(line []byte) (list []message, code int) {
	if !json.Valid(line) {
		return nil, codeParse
	}
	one := func(text json.RawMessage) bool {
		var m message
		err := json.Unmarshal(text, &m)
		var wrong *json.UnmarshalTypeError
		if err != nil && (!errors.As(err, &wrong) || wrong.Field != "params" && wrong.Field != "params.requestId") {
			return false
		}
		list = append(list, m)
		return m.Version == "2.0" && (m.Method != "" || len(m.ID) > 0 && (m.Result != nil || m.Error != nil))
	}
	if line[0] != '[' {
		if !one(line) {
			return nil, codeRequest
		}
		return list, 0
	}
	var batch []json.RawMessage
	if err := json.Unmarshal(line, &batch); err != nil || len(batch) == 0 || len(batch) > maxBatch {
		return nil, codeRequest
	}
	for _, text := range batch {
		if !one(text) {
			return nil, codeRequest
		}
	}
	return list, 0
}

// run passes the input on, until it, or ctx, ends. It owns into.
func (l *lines) run(ctx context.Context, into *io.PipeWriter) {
	r := bufio.NewReaderSize(l.in, 64<<10)
	var err error
	for err == nil {
		var line []byte
		line, err = readLine(r)
		if text := bytes.TrimSpace(line); len(text) > 0 {
			if failed := l.pass(text, into); failed != nil {
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
func (l *lines) pass(line []byte, into io.Writer) error {
	list, code := messages(line)
	switch code {
	case codeParse:
		return l.refuse(code, "the line is not JSON: a message is one line")
	case codeRequest:
		return l.refuse(code, `the line is no message of JSON-RPC 2.0: it has "jsonrpc": "2.0", and a method, or an id with a result or an error`)
	}
	l.mu.Lock()
	for _, m := range list {
		switch {
		case m.Method != "" && len(m.ID) > 0:
			l.asked[string(m.ID)] = true
		case m.Method == "notifications/cancelled":
			delete(l.asked, string(m.Params.RequestID)) // it may not be answered
		}
	}
	l.mu.Unlock()
	_, err := into.Write(append(bytes.Clone(line), '\n'))
	return err
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

// Write takes what the SDK says: a line, whole.
func (l *lines) Write(line []byte) (int, error) {
	list, _ := messages(bytes.TrimSpace(line))
	l.mu.Lock()
	defer l.mu.Unlock()
	n, err := l.out.Write(line)
	for _, m := range list {
		if m.Method == "" {
			delete(l.asked, string(m.ID))
		}
	}
	l.settle()
	return n, err
}

// Close ends the output.
func (l *lines) Close() error { return l.out.Close() }
