package outbound

import (
	"bufio"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/klauspost/compress/zstd"
)

var (
	errCoding   = errors.New("the body's content coding is not read here")
	errTrailing = errors.New("bytes after the end of the compressed body")
)

// zstdWindow is what a decoder must be able to hold, and the most that may be
// asked of one, RFC 9659 section 3.
const zstdWindow = 8 << 20

// content is a response's body with its content coding undone.
//
// What arrives is bounded besides what comes out, since a stream of empty
// blocks decodes to nothing for ever: a body that fits, but was compressed
// badly, needs 1/256 more bytes and the frame.
type content struct {
	coding string // that is undone; empty: none
	body   io.Reader
	wire   io.LimitedReader
	in     *bufio.Reader // of a coded body
	out    io.Reader
	close  func()
	err    error // the coding cannot be undone
	whole  bool  // body was read to its end
	broken bool  // body could not be read on
}

// newContent reads no more than it must; an unreadable coding shows at the first Read.
func newContent(h http.Header, body io.Reader, limit int64) *content {
	c := &content{body: body, close: func() {}}
	c.wire = io.LimitedReader{R: (*untilEnd)(c), N: limit + 1}
	c.out = &c.wire
	coding, err := codingOf(h)
	if coding == "" && err == nil {
		return c
	}
	c.in = bufio.NewReader(&c.wire)
	c.out = c.in
	c.wire.N += limit/256 + 1024
	// An empty body is empty in every coding, as that of an answer to HEAD.
	switch _, peeked := c.in.Peek(1); {
	case errors.Is(peeked, io.EOF):
		return c
	case peeked != nil:
		c.err = peeked
		return c
	case err != nil:
		c.err = err
		return c
	}
	c.coding = coding
	h.Del("Content-Encoding")
	h.Del("Content-Length")
	c.err = c.decode()
	return c
}

// untilEnd reads the body and notes its end.
type untilEnd content

func (u *untilEnd) Read(p []byte) (int, error) {
	n, err := u.body.Read(p)
	u.whole = u.whole || err == io.EOF
	u.broken = u.broken || err != nil && err != io.EOF
	return n, err
}

func (c *content) decode() error {
	switch c.coding {
	case "gzip":
		z, err := gzip.NewReader(c.in)
		if err != nil {
			return fmt.Errorf("gzip: %w", err)
		}
		c.out = z
	case "zstd":
		z, err := zstd.NewReader(c.in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(zstdWindow))
		if err != nil {
			return fmt.Errorf("zstd: %w", err)
		}
		c.out, c.close = z, z.Close
	default: // deflate, which is zlib's format, or by mistake without its frame
		head, _ := c.in.Peek(2)
		if len(head) < 2 || head[0]&0x0f != 8 || (int(head[0])<<8|int(head[1]))%31 != 0 {
			c.out = flate.NewReader(c.in)
			return nil
		}
		z, err := zlib.NewReader(c.in)
		if err != nil {
			return fmt.Errorf("deflate: %w", err)
		}
		c.out = z
	}
	return nil
}

func (c *content) Read(p []byte) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	return c.out.Read(p)
}

// end says whether the body is over where its decoder stopped.
func (c *content) end() error {
	if c.coding == "" {
		return nil
	}
	_, err := c.in.Peek(1)
	switch {
	case err == nil:
		return errTrailing
	case errors.Is(err, io.EOF):
		return nil
	}
	return err
}

// wrong says, for people, what is wrong with a body that was not cut and cannot
// be decoded; "" if it was cut.
func (c *content) wrong(err error) string {
	switch {
	case errors.Is(err, errTrailing):
		return "the body goes on behind the end of its " + c.coding
	case c.coding == "" || c.broken || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return ""
	}
	return "the body is labelled " + c.coding + ", and cannot be read as that"
}

// tooLong says whether more arrived than a coded body of the limit can need.
func (c *content) tooLong() bool { return c.coding != "" && c.wire.N <= 0 }

func (c *content) Close() { c.close() }

// codingOf names the one content coding of a body, or says that it is not known.
func codingOf(h http.Header) (string, error) {
	var found []string
	for _, line := range h.Values("Content-Encoding") {
		for name := range strings.SplitSeq(line, ",") {
			if name = strings.ToLower(strings.TrimSpace(name)); name != "" && name != "identity" {
				found = append(found, name)
			}
		}
	}
	if len(found) == 0 {
		return "", nil
	}
	switch name := found[0]; {
	case len(found) > 1:
	case name == "gzip", name == "x-gzip":
		return "gzip", nil
	case name == "deflate", name == "zstd":
		return name, nil
	}
	return "", fmt.Errorf("%w: %.60q", errCoding, strings.Join(found, ", "))
}
