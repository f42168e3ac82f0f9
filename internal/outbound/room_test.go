package outbound_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/internal/outbound"
)

const mib = 1 << 20

// pattern is n bytes that tell where they stand.
func pattern(n int) []byte {
	b := make([]byte, 0, n+16)
	for i := int64(0); len(b) < n; i++ {
		b = append(strconv.AppendInt(b, i, 16), ',')
	}
	return b[:n]
}

// bodies answers, with what all begins with, GET /<length told, "chunked" or "gzip">/<bytes>[/<bytes that come>].
func bodies(t *testing.T, all []byte) func(int, net.Conn) {
	return func(_ int, c net.Conn) {
		br := bufio.NewReader(c)
		for {
			r, err := http.ReadRequest(br)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, r.Body)
			part := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
			n, err := strconv.Atoi(part[1])
			if err != nil {
				t.Error(err)
				return
			}
			come := n
			if len(part) > 2 {
				come, _ = strconv.Atoi(part[2])
			}
			switch part[0] {
			case "told":
				fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", n)
				_, _ = c.Write(all[:come])
			case "gzip":
				var b bytes.Buffer
				z, _ := gzip.NewWriterLevel(&b, gzip.BestSpeed)
				_, _ = z.Write(all[:n])
				_ = z.Close()
				fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n", b.Len())
				_, _ = c.Write(b.Bytes())
			case "chunked":
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
				for left := all[:come]; len(left) > 0; {
					k := min(len(left), 100_000)
					fmt.Fprintf(c, "%x\r\n%s\r\n", k, left[:k])
					left = left[k:]
				}
				if come == n {
					_, _ = io.WriteString(c, "0\r\n\r\n")
				}
			}
			if come != n {
				return
			}
		}
	}
}

func file(path string) outbound.Request {
	return outbound.Request{Method: "GET", URL: "http://api.example.com/" + path, MaxBody: 16 * mib, Timeout: time.Minute}
}

// Whatever its size and however its length is told, a body comes as it was sent,
// and as much of a cut one as came.
func TestBodiesOfAnySize(t *testing.T) {
	all := pattern(17 * mib)
	for _, n := range []int{0, mib, mib + 1, 4 * mib, 4*mib + 1, 8*mib + 1, 16 * mib, 16*mib + 1} {
		for _, kind := range []string{"told", "chunked", "gzip"} {
			t.Run(fmt.Sprint(kind, n), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					nw := &network{t: t, serve: bodies(t, all)}
					c := newClient(t, nw, func(cfg *outbound.Config) { cfg.MaxResponse, cfg.Room = 64*mib, 9*mib })
					for range min(n/(8*mib), 1) + 1 { // what one took, the next one finds
						a, err := c.Do(t.Context(), file(fmt.Sprintf("%s/%d", kind, n)))
						if n > 16*mib {
							wantFailure(t, err, outbound.BodyTooLarge, outbound.SentUnknown)
						} else if err != nil {
							t.Fatal(err)
						}
						if !bytes.Equal(a.Body, all[:min(n, 16*mib)]) {
							t.Errorf("%d bytes of %d, or others", len(a.Body), n)
						}
						a.Release()
						a.Release()
					}
				})
			})
		}
	}
	for _, kind := range []string{"told", "chunked"} {
		for _, come := range []int{10, mib + 5, 3 * mib, 6 * mib, 12*mib + 7} {
			t.Run(fmt.Sprint(kind, " cut after ", come), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					nw := &network{t: t, serve: bodies(t, all)}
					c := newClient(t, nw, func(cfg *outbound.Config) { cfg.MaxResponse = 64 * mib })
					a, err := c.Do(t.Context(), file(fmt.Sprintf("%s/%d/%d", kind, 15*mib, come)))
					wantFailure(t, err, outbound.BodyCut, outbound.SentUnknown)
					if !a.Truncated || !bytes.Equal(a.Body, all[:come]) {
						t.Errorf("%d bytes of %d, or others", len(a.Body), come)
					}
				})
			})
		}
	}
}

// Bodies that are kept leave room for no more than what is left. Who finds none
// waits, and goes on with what is released; small answers and those of a usual
// size pass by.
func TestRoom(t *testing.T) {
	const room = 40 * mib
	all := pattern(17 * mib)
	for _, c := range []struct {
		name   string
		kept   []string // answers that are held, each of which fits
		asked  string
		waits  bool
		action func(*outbound.Request)
	}{
		{"a third large one", []string{"told/16777216", "told/16777216"}, "told/9437184", true, nil},
		{"one that fits beside them", []string{"told/16777216", "told/12582912"}, "told/9437184", false, nil},
		{"one without a length counts twice while it is read", []string{"told/16777216"}, "chunked/9437184", true, nil},
		{"and once then", []string{"gzip/9437184", "told/9437184", "told/9437184"}, "told/9437184", false, nil},
		{"a small one", []string{"told/16777216", "told/16777216"}, "chunked/1048576", false, nil},
		{"one of a usual size", []string{"told/16777216", "told/16777216"}, "told/4194304", false, nil},
		{"too many of a usual size", []string{"told/6291456", "told/4194304"}, "chunked/2097152", true, nil},
		{"one whose limit is low", []string{"told/16777216", "told/16777216"}, "told/7340032", false, func(r *outbound.Request) { r.MaxBody = 8 * mib }},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				nw := &network{t: t, serve: bodies(t, all)}
				client := newClient(t, nw, func(cfg *outbound.Config) { cfg.MaxResponse, cfg.Room = 64*mib, room })
				var kept []outbound.Answer
				for _, path := range c.kept {
					a, err := client.Do(t.Context(), file(path))
					if err != nil {
						t.Fatal(err)
					}
					kept = append(kept, a)
				}
				r := file(c.asked)
				if c.action != nil {
					c.action(&r)
				}
				waits := func() (time.Duration, error) {
					begun := time.Now()
					a, err := client.Do(t.Context(), r)
					a.Release()
					return time.Since(begun), err
				}
				switch took, err := waits(); {
				case !c.waits && err != nil:
					t.Errorf("waited %v: %v", took, err)
				case c.waits:
					wantFailure(t, err, outbound.Timeout, outbound.SentUnknown)
					if took != time.Minute || !strings.Contains(err.Error(), "no room for a body of more than 1048576 bytes") {
						t.Errorf("after %v: %v", took, err)
					}
				}
				go func() {
					time.Sleep(10 * time.Second)
					for _, a := range kept {
						a.Release()
					}
				}()
				want := time.Duration(0)
				if c.waits {
					want = 10 * time.Second
				}
				if took, err := waits(); err != nil || took != want {
					t.Errorf("%v, %v; want %v", took, err, want)
				}
				synctest.Wait()
				time.Sleep(time.Minute)
				// Everything was given back: a body that needs the whole room gets it.
				if took, err := waits(); err != nil || took != 0 {
					t.Errorf("at last %v, %v", took, err)
				}
				a, err := client.Do(t.Context(), file("chunked/15000000"))
				if a.Release(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A call with side effects waits before it leaves. What never left is not_sent,
// whatever ends the wait.
func TestRoomBeforeASideEffect(t *testing.T) {
	all := pattern(17 * mib)
	for _, c := range []struct {
		name  string
		class outbound.Class
		after time.Duration
		do    func(*outbound.Client, outbound.Request) error
	}{
		{"until its timeout", outbound.Timeout, 30 * time.Second, func(c *outbound.Client, r outbound.Request) error {
			_, err := c.Do(context.Background(), r)
			return err
		}},
		{"until its last moment", outbound.Timeout, 5 * time.Second, func(c *outbound.Client, r outbound.Request) error {
			r.NotAfter = time.Now().Add(5 * time.Second)
			_, err := c.Do(context.Background(), r)
			return err
		}},
		{"until it is given up", outbound.Canceled, 3 * time.Second, func(c *outbound.Client, r outbound.Request) error {
			ctx, cancel := context.WithCancel(context.Background())
			time.AfterFunc(3*time.Second, cancel)
			_, err := c.Do(ctx, r)
			return err
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				nw := &network{t: t, serve: bodies(t, all)}
				client := newClient(t, nw, func(cfg *outbound.Config) { cfg.MaxResponse, cfg.Room = 64*mib, 20*mib })
				kept, err := client.Do(t.Context(), file("told/16777216"))
				if err != nil {
					t.Fatal(err)
				}
				client.Close() // the connection that was kept
				synctest.Wait()
				before := requests(nw.wire())
				r := create("http://api.example.com/told/2097152")
				r.MaxBody = 16 * mib
				begun := time.Now()
				wantFailure(t, c.do(client, r), c.class, outbound.NotSent)
				if took := time.Since(begun); took != c.after {
					t.Errorf("after %v", took)
				}
				// One whose answer cannot be large does not wait.
				small := create("http://api.example.com/told/2097152")
				small.MaxBody = 8 * mib
				if a, err := client.Do(t.Context(), small); err != nil || len(a.Body) != 2*mib {
					t.Error(err)
				}
				synctest.Wait()
				if n := requests(nw.wire()); n != before+1 {
					t.Errorf("%d requests, want one more than %d", n, before)
				}
				kept.Release()
				r.NotAfter = time.Now().Add(time.Minute)
				a, err := client.Do(t.Context(), r)
				if err != nil || len(a.Body) != 2*mib {
					t.Errorf("%d bytes, %v", len(a.Body), err)
				}
				a.Release()
			})
		})
	}
}

// Many large bodies at once all come in the end: no two wait for each other.
func TestRoomWithoutDeadlock(t *testing.T) {
	all := pattern(17 * mib)
	synctest.Test(t, func(t *testing.T) {
		nw := &network{t: t, serve: bodies(t, all)}
		client := newClient(t, nw, func(cfg *outbound.Config) { cfg.MaxResponse, cfg.Room = 64*mib, 20*mib })
		done := make(chan error)
		kinds := []string{"chunked/9437184", "gzip/3145728", "told/9437184", "chunked/5242880", "told/2097152", "chunked/2097152"}
		for i := range 18 {
			go func() {
				a, err := client.Do(t.Context(), file(kinds[i%len(kinds)]))
				time.Sleep(time.Second)
				a.Release()
				done <- err
			}()
		}
		for range 18 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
}
