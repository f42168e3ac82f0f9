package mcpapi

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

type written struct{ bytes.Buffer }

func (*written) Close() error { return nil }

// converse has the lines read to the end of the input, and gives the lines of the output.
func converse(t *testing.T, use UseCases, list ...string) []string {
	t.Helper()
	var out written
	in := io.NopCloser(strings.NewReader(strings.Join(list, "\n")))
	o := Options{Build: "test", Base: "http://127.0.0.1:7766", Now: time.Now, Stopping: t.Context(), Log: slog.New(slog.DiscardHandler)}
	if err := Serve(t.Context(), o, use, in, &out); err != nil {
		t.Errorf("it ended with %v", err)
	}
	return strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
}

const (
	begin = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`
	begun = `{"jsonrpc":"2.0","method":"notifications/initialized"}`
)

func ping(id string) string { return `{"jsonrpc":"2.0","id":` + id + `,"method":"ping"}` }

// slow is a service whose answers take their time.
type slow struct {
	UseCases
	release chan struct{}
}

func (s slow) Get(ctx context.Context, _ string) (Answer, error) {
	select {
	case <-s.release:
	case <-ctx.Done():
		return Answer{}, ctx.Err()
	}
	return Answer{Document: []byte(`{"id":"op_1","state":"succeeded"}`)}, nil
}

func (s slow) Capabilities(context.Context) (Answer, error) {
	return Answer{Document: []byte(`{"actions":[{"action":"read","allowed":true}]}`)}, nil
}

func TestLinesThatAreNoMessages(t *testing.T) {
	wrong := map[string]string{
		`garbage`: "-32700", `{"jsonrpc":"2.0","id":`: "-32700", `42`: "-32600", `null`: "-32600", `[]`: "-32600", `[1]`: "-32600",
		ping(`null`): "-32600", ping(`true`): "-32600", ping(`[]`): "-32600", ping(`{}`): "-32600", ping(`1.5`): "-32600", ping(`1e2`): "-32600", ping(`-0`): "-32600",
		ping(`9007199254740993`): "-32600", ping(`123456789012345678901234567890`): "-32600", ping(`"\ud800"`): "-32700",
		`{"jsonrpc":"2.0","id":5,"error":7}`: "-32600", `{"jsonrpc":"2.0","id":5,"error":{"code":"a","message":"x"}}`: "-32600",
		`{"jsonrpc":"2.0","id":5,"error":{"code":1.5,"message":"x"}}`: "-32600", `{"jsonrpc":"2.0","id":6,"method":"ping","error":7}`: "-32600",
		`{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}`: "-32600", "[" + ping("2") + "," + ping("3") + "]": "no batches",
		"[" + strings.Repeat(ping("2")+",", maxBatch) + ping("3") + "]": "more than 32",
		`{"jsonrpc":"1.0","id":1,"method":"ping"}`:                      "-32600", `{"jsonrpc":"2.0","id":1}`: "-32600", `{"jsonrpc":"2.0","id":1,"method":7}`: "-32600",
	}
	for line, code := range wrong {
		got := converse(t, nil, begin, begun, line, "", ping("7"))
		if len(got) != 3 || !strings.Contains(strings.Join(got, "\n"), code) || !strings.Contains(strings.Join(got, "\n"), `"id":7,"result"`) {
			t.Errorf("%s is answered\n%s", line, strings.Join(got, "\n"))
		}
	}
}

// What was read is answered, also where the input ends right behind it, without a line
// end, and the answer takes a while.
func TestWhatWasAskedIsAnswered(t *testing.T) {
	s := slow{release: make(chan struct{})}
	go func() { close(s.release) }()
	got := converse(t, s, begin, begun, `{"jsonrpc":"2.0","id":"last","method":"tools/call","params":{"name":"get_operation","arguments":{"id":"op_1"}}}`)
	if text := strings.Join(got, "\n"); !strings.Contains(text, `"id":"last","result"`) || !strings.Contains(text, "succeeded") {
		t.Errorf("answered\n%s", text)
	}
}

// Names are what they are to the letter, as the SDK reads them: nothing else is waited
// for at the end.
func TestNamesInOtherCase(t *testing.T) {
	for line, answers := range map[string]int{
		`{"jsonrpc":"2.0","ID":5,"method":"ping"}`: 1, `{"jsonrpc":"2.0","id":6,"Id":true,"method":"ping"}`: 2, `{"jsonrpc":"2.0","id":6,"method":"ping","iD":9}`: 2,
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestid":0}}`: 1,
	} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			if got := converse(t, nil, begin, begun, line); len(got) != answers || time.Since(start) > 0 {
				t.Errorf("%s: after %s\n%s", line, time.Since(start), strings.Join(got, "\n"))
			}
		})
	}
}

// The answers to a batch do not wait for one to a notification in it.
func TestBatchesWithNotifications(t *testing.T) {
	const progress = `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}`
	old := strings.Replace(begin, "2025-11-25", "2025-03-26", 1)
	for _, batch := range []string{"[" + ping("2") + "," + progress + "]", "[" + progress + "," + ping("2") + "," + begun + "]"} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			got := converse(t, nil, old, begun, batch, "["+progress+"]", ping("7"))
			if text := strings.Join(got, "\n"); len(got) != 3 || !strings.Contains(text, `[{"jsonrpc":"2.0","id":2,"result":{}}]`) || !strings.Contains(text, `"id":7,"result"`) || time.Since(start) > 0 {
				t.Errorf("%s is answered after %s\n%s", batch, time.Since(start), text)
			}
		})
	}
}

// One that opens the conversation in vain is followed by another: a batch waits for both.
func TestOpenedTwice(t *testing.T) {
	wrong := `{"jsonrpc":"2.0","id":"wrong","method":"initialize","params":7}`
	got := converse(t, nil, wrong, begin, "["+ping("2")+"]", begun, ping("7"))
	if text := strings.Join(got, "\n"); !strings.Contains(text, "no batches") || !strings.Contains(text, `"id":7,"result"`) {
		t.Errorf("answered\n%s", text)
	}
}

// The request that opens the conversation cannot be cancelled: a batch behind it waits for
// its answer.
func TestOpeningIsNotCancelled(t *testing.T) {
	got := converse(t, nil, begin, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":0}}`, "["+ping("2")+"]", begun, ping("7"))
	if text := strings.Join(got, "\n"); !strings.Contains(text, "no batches") || !strings.Contains(text, `"id":7,"result"`) {
		t.Errorf("answered\n%s", text)
	}
}

// Where batches are known they are answered as a whole, and no id is asked for twice at
// once.
func TestBatchedLines(t *testing.T) {
	old := strings.Replace(begin, "2025-11-25", "2025-03-26", 1)
	s := slow{release: make(chan struct{})}
	go func() { close(s.release) }()
	got := converse(t, s, old, begun, "["+ping("2")+","+ping(`"\u0061<"`)+"]", "["+ping("4")+","+ping("4")+"]", ping("5"))
	if text := strings.Join(got, "\n"); len(got) != 4 || !strings.Contains(text, `"id":2,"result"`) || !strings.Contains(text, "of its own") || !strings.Contains(text, `"id":5,"result"`) {
		t.Errorf("answered\n%s", text)
	}
}

// releasing lets the slow answer come once the second request under its id is refused.
type releasing struct {
	written
	once func()
}

func (r *releasing) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("of its own")) {
		r.once()
	}
	return r.written.Write(line)
}

func TestIDsUnderWay(t *testing.T) {
	s := slow{release: make(chan struct{})}
	get := `{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"get_operation","arguments":{"id":"op_1"}}}`
	out := &releasing{once: sync.OnceFunc(func() { close(s.release) })}
	in, into := io.Pipe()
	o := Options{Build: "test", Base: "http://127.0.0.1:7766", Now: time.Now, Stopping: t.Context(), Log: slog.New(slog.DiscardHandler)}
	ended := make(chan error, 1)
	go func() { ended <- Serve(t.Context(), o, s, in, out) }()
	for _, line := range []string{begin, begun, get, ping(`"\u0061"`)} {
		if _, err := io.WriteString(into, line+"\n"); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(into.Close(), <-ended); err != nil {
		t.Fatal(err)
	}
	if text := out.String(); strings.Count(text, `"id":"a"`) != 1 || !strings.Contains(text, "of its own") || !strings.Contains(text, "succeeded") {
		t.Errorf("answered\n%s", text)
	}
}

func TestLongLineEndsIt(t *testing.T) {
	in := io.NopCloser(strings.NewReader(begin + "\n" + strings.Repeat("x", maxLine+1)))
	o := Options{Build: "test", Now: time.Now, Stopping: t.Context(), Log: slog.New(slog.DiscardHandler)}
	if err := Serve(t.Context(), o, nil, in, &written{}); err == nil || !strings.Contains(err.Error(), "16 MiB") {
		t.Errorf("it ended with %v", err)
	}
}

// FuzzLines: whatever the line, it is passed on or answered, and nothing of it is lost.
func FuzzLines(f *testing.F) {
	for _, line := range []string{begin, begun, ping("1"), "garbage", "[]", `[{"jsonrpc":"2.0","method":"x"}]`, `{"jsonrpc":"2.0","id":null,"error":{}}`, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		if line = bytes.TrimSpace(line); len(line) == 0 {
			return
		}
		var out written
		var passed bytes.Buffer
		l := newLines(nil, &out)
		if err := l.pass(t.Context(), line, &passed); err != nil {
			t.Fatal(err)
		}
		if (passed.Len() == 0) == (out.Len() == 0) || line[0] != '[' && passed.Len() > 0 && !bytes.Equal(passed.Bytes(), append(bytes.Clone(line), '\n')) {
			t.Fatalf("%q is passed on as %q and answered with %q", line, &passed, &out)
		}
	})
}
