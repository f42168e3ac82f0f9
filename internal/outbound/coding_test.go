package outbound_test

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/klauspost/compress/zstd"

	"github.com/counterfoil/counterfoil/internal/outbound"
)

func squeezed(t testing.TB, coding string, plain []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	var w io.WriteCloser
	var err error
	switch coding {
	case "gzip":
		w = gzip.NewWriter(&out)
	case "deflate":
		w = zlib.NewWriter(&out)
	case "raw deflate":
		w, err = flate.NewWriter(&out, flate.DefaultCompression)
	case "stored gzip":
		w, err = gzip.NewWriterLevel(&out, gzip.NoCompression)
	case "zstd":
		w, err = zstd.NewWriter(&out, zstd.WithEncoderConcurrency(1))
	}
	if err == nil {
		_, err = w.Write(plain)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// coded is an answer with a length; its body ends the connection without one.
func coded(header string, body []byte, length bool) string {
	if length {
		header += fmt.Sprintf("Content-Length: %d\r\n", len(body))
	}
	return "HTTP/1.1 200 OK\r\nX-Kept: 1\r\n" + header + "\r\n" + string(body)
}

func TestContentCodings(t *testing.T) {
	noise := make([]byte, 1<<16)
	_, _ = rand.Read(noise)
	plain := []byte(strings.Repeat("result ", 1000))
	z := squeezed(t, "gzip", plain)
	corrupt := bytes.Clone(z)
	corrupt[len(corrupt)-6] ^= 1 // in the checksum
	const limit = 1 << 16
	for _, c := range []struct {
		name, header string
		body         []byte
		class        outbound.Class
		want         []byte
		coding       string
	}{
		{"none", "", plain, "", plain, ""},
		{"identity", "Content-Encoding: identity\r\n", plain, "", plain, ""},
		{"gzip", "Content-Encoding: gzip\r\n", z, "", plain, "gzip"},
		{"any case, blanks", "content-encoding:  GZip \r\n", z, "", plain, "gzip"},
		{"x-gzip", "Content-Encoding: x-gzip\r\n", z, "", plain, "gzip"},
		{"gzip beside identity", "Content-Encoding: identity, gzip\r\nContent-Encoding: identity\r\n", z, "", plain, "gzip"},
		{"gzip in two members", "Content-Encoding: gzip\r\n", append(squeezed(t, "gzip", plain[:100]), squeezed(t, "gzip", plain[100:])...), "", plain, "gzip"},
		{"deflate", "Content-Encoding: deflate\r\n", squeezed(t, "deflate", plain), "", plain, "deflate"},
		{"deflate without its frame", "Content-Encoding: deflate\r\n", squeezed(t, "raw deflate", plain), "", plain, "deflate"},
		{"zstd", "Content-Encoding: zstd\r\n", squeezed(t, "zstd", plain), "", plain, "zstd"},
		{"empty body in gzip", "Content-Encoding: gzip\r\n", nil, "", nil, ""},
		{"empty body in an unknown coding", "Content-Encoding: br\r\n", nil, "", nil, ""},
		{"nothing, compressed", "Content-Encoding: gzip\r\n", squeezed(t, "gzip", nil), "", nil, "gzip"},
		{"exactly the limit", "Content-Encoding: gzip\r\n", squeezed(t, "gzip", noise), "", noise, "gzip"},
		{"exactly the limit, grown by compression", "Content-Encoding: gzip\r\n", squeezed(t, "stored gzip", noise), "", noise, "gzip"},

		{"one byte over the limit", "Content-Encoding: gzip\r\n", squeezed(t, "gzip", append(bytes.Clone(noise), 'x')), outbound.BodyTooLarge, noise, "gzip"},
		{"bomb", "Content-Encoding: gzip\r\n", squeezed(t, "gzip", make([]byte, 4<<20)), outbound.BodyTooLarge, make([]byte, limit), "gzip"},
		{"deflate bomb", "Content-Encoding: deflate\r\n", squeezed(t, "deflate", make([]byte, 4<<20)), outbound.BodyTooLarge, make([]byte, limit), "deflate"},
		{"zstd bomb", "Content-Encoding: zstd\r\n", squeezed(t, "zstd", make([]byte, 4<<20)), outbound.BodyTooLarge, make([]byte, limit), "zstd"},
		{"members without content for ever", "Content-Encoding: gzip\r\n", bytes.Repeat(squeezed(t, "gzip", nil), 1<<14), outbound.BodyTooLarge, nil, "gzip"},

		{"cut", "Content-Encoding: gzip\r\n", z[:len(z)-9], outbound.BodyCut, nil, "gzip"},
		{"cut in the frame's end", "Content-Encoding: gzip\r\n", z[:len(z)-1], outbound.BodyCut, plain, "gzip"},
		{"cut in the frame's head", "Content-Encoding: gzip\r\n", z[:5], outbound.BodyCut, nil, "gzip"},
		{"deflate cut", "Content-Encoding: deflate\r\n", squeezed(t, "deflate", plain)[:20], outbound.BodyCut, nil, "deflate"},
		{"zstd cut", "Content-Encoding: zstd\r\n", squeezed(t, "zstd", plain)[:20], outbound.BodyCut, nil, "zstd"},
		{"wrong checksum", "Content-Encoding: gzip\r\n", corrupt, outbound.BodyCut, plain, "gzip"},
		{"not compressed at all", "Content-Encoding: gzip\r\n", plain, outbound.BodyCut, nil, "gzip"},
		{"more after the end", "Content-Encoding: gzip\r\n", append(bytes.Clone(z), "tail"...), outbound.BodyCut, plain, "gzip"},
		{"more after deflate's end", "Content-Encoding: deflate\r\n", append(squeezed(t, "deflate", plain), 0), outbound.BodyCut, plain, "deflate"},

		{"unknown", "Content-Encoding: br\r\n", []byte("\x0b\x02\x80ok\x03"), outbound.Encoding, nil, ""},
		{"two", "Content-Encoding: gzip\r\nContent-Encoding: gzip\r\n", squeezed(t, "gzip", z), outbound.Encoding, nil, ""},
		{"two, one unknown", "Content-Encoding: gzip, aws-chunked\r\n", z, outbound.Encoding, nil, ""},
	} {
		for _, length := range []bool{true, false} {
			for _, side := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s/%v/%v", c.name, length, side), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						nw := &network{t: t, serve: once(coded(c.header, c.body, length))}
						r := create("http://api.example.com")
						if !side {
							r = outbound.Request{Method: "GET", URL: r.URL}
						}
						r.MaxBody = limit
						a, err := newClient(t, nw, nil).Do(t.Context(), r)
						if c.class == "" {
							if err != nil || a.Truncated {
								t.Fatalf("truncated %v, %v", a.Truncated, err)
							}
						} else {
							wantFailure(t, err, c.class, outbound.SentUnknown)
							if !a.Truncated {
								t.Error("not marked as truncated")
							}
							why := ""
							switch {
							case c.class == outbound.Encoding:
								why = "the body's content coding is not read here: "
							case c.name == "more after deflate's end":
								why = "the body goes on behind the end of its " + c.coding
							case c.name == "wrong checksum", c.name == "not compressed at all":
								why = "the body is labelled gzip, and cannot be read as that"
							}
							if !strings.HasPrefix(a.Cut, why) || why == "" && a.Cut != "" {
								t.Errorf("it is said of it: %q", a.Cut)
							}
						}
						if c.class == "" || c.want != nil {
							if !bytes.Equal(a.Body, c.want) {
								t.Errorf("%d bytes, want %d", len(a.Body), len(c.want))
							}
						} else if !bytes.HasPrefix(plain, a.Body) {
							t.Errorf("the beginning of a cut body is %q", a.Body)
						}
						if a.Status != 200 || a.Coding != c.coding || a.Header.Get("X-Kept") != "1" {
							t.Errorf("status %d, coding %q", a.Status, a.Coding)
						}
						if c.coding != "" && (a.Header.Get("Content-Encoding") != "" || a.Header.Get("Content-Length") != "") {
							t.Errorf("headers about other bytes are left: %v", a.Header)
						}
						if c.class == outbound.Encoding && (len(a.Body) != 0 || !strings.Contains(err.Error(), strings.ToLower(strings.Join(a.Header.Values("Content-Encoding"), ", ")))) {
							t.Errorf("%d bytes, %v", len(a.Body), err)
						}
						if strings.Contains(nw.wire()[0], "Accept-Encoding") {
							t.Error("compression was asked for")
						}
					})
				})
			}
		}
	}
}

// An echo of the credential is found in what was compressed.
func TestCodedEchoIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		body := squeezed(t, "gzip", []byte(`{"you sent": "`+marker+`"}`))
		nw := &network{t: t, serve: once(coded("Content-Encoding: gzip\r\n", body, true))}
		r := create("http://api.example.com")
		r.Credential = outbound.Credential{Ref: "env:KEY", In: outbound.InHeader, Name: "X-Key"}
		a, err := newClient(t, nw, func(cfg *outbound.Config) { cfg.Resolve = secrets{"KEY": marker} }).Do(t.Context(), r)
		if err != nil || string(a.Body) != `{"you sent": "[redacted]"}` || a.Scrubbed != 1 {
			t.Errorf("%s, %d, %v", a.Body, a.Scrubbed, err)
		}
	})
}

// A coded body that was read to its end leaves the connection to the next read.
func TestCodedBodyLeavesTheConnection(t *testing.T) {
	for _, coding := range []string{"gzip", "deflate", "zstd"} {
		synctest.Test(t, func(t *testing.T) {
			nw := &network{t: t, serve: answering(coded("Content-Encoding: "+coding+"\r\n", squeezed(t, coding, []byte("ok")), true))}
			client := newClient(t, nw, nil)
			for range 2 {
				a, err := client.Do(t.Context(), outbound.Request{Method: "GET", URL: "http://api.example.com"})
				if err != nil || string(a.Body) != "ok" {
					t.Errorf("%q, %v", a.Body, err)
				}
				synctest.Wait()
			}
			if w := nw.wire(); len(w) != 1 {
				t.Errorf("%s: %d connections", coding, len(w))
			}
		})
	}
}

// The head of an answer to HEAD may name any coding.
func TestCodingOfNoBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nw := &network{t: t, serve: once("HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nContent-Length: 10\r\n\r\n")}
		a, err := newClient(t, nw, nil).Do(t.Context(), outbound.Request{Method: "HEAD", URL: "http://api.example.com"})
		if err != nil || len(a.Body) != 0 || a.Header.Get("Content-Encoding") != "br" {
			t.Errorf("%+v, %v", a, err)
		}
	})
}

// The frame of a chunked body is bounded as the body is.
func TestChunkedFrameIsBounded(t *testing.T) {
	const head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
	for _, c := range []struct {
		name, raw string
	}{
		{"one extension without end", head + "1;x=" + strings.Repeat("x", 1<<20) + "\r\nA\r\n0\r\n\r\n"},
		{"an extension with each byte", head + strings.Repeat("1;x="+strings.Repeat("x", 1000)+"\r\nA\r\n", 1000) + "0\r\n\r\n"},
		{"trailers without end", head + "1\r\nA\r\n0\r\n" + strings.Repeat("X: "+strings.Repeat("x", 1000)+"\r\n", 1000) + "\r\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				nw := &network{t: t, serve: once(c.raw)}
				a, err := newClient(t, nw, nil).Do(t.Context(), create("http://api.example.com"))
				wantFailure(t, err, outbound.BodyCut, outbound.SentUnknown)
				if !a.Truncated || len(a.Body) > 100 {
					t.Errorf("%d bytes", len(a.Body))
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		nw := &network{t: t, serve: once(head + "1;x=y\r\nA\r\n0\r\nX-Trailer: 1\r\n\r\n")}
		a, err := newClient(t, nw, nil).Do(t.Context(), create("http://api.example.com"))
		if err != nil || string(a.Body) != "A" || a.Header.Get("X-Trailer") != "" {
			t.Errorf("%+v, %v", a, err)
		}
	})
}

// Whatever a host sends as compressed, the answer holds at most the limit, and
// only a whole body is one without a failure.
func FuzzContentCoding(f *testing.F) {
	plain := []byte("result result result")
	for _, coding := range []string{"gzip", "deflate", "zstd"} {
		z := squeezed(f, coding, plain)
		f.Add(coding, z)
		f.Add(coding, z[:len(z)/2])
		f.Add(coding+", identity", squeezed(f, coding, make([]byte, 1<<12)))
	}
	f.Add("br", []byte("x"))
	f.Fuzz(func(t *testing.T, coding string, body []byte) {
		if strings.ContainsAny(coding, "\r\n") {
			return
		}
		const limit = 1 << 10
		nw := &network{t: t, serve: func(n int, c net.Conn) {
			once(coded("Content-Encoding: "+coding+"\r\n", body, true))(n, c)
		}}
		r := create("http://api.example.com")
		r.MaxBody = limit
		a, err := newClient(t, nw, nil).Do(t.Context(), r)
		if len(a.Body) > limit || (err != nil) != a.Truncated && a.Status == 200 {
			t.Errorf("%d bytes, truncated %v, %v", len(a.Body), a.Truncated, err)
		}
	})
}
