package cluster_test

import (
	"bytes"
	"io"
	"net"
	"sync"
	"testing"
)

// A link is a forwarder in front of one listener. What passes can be held back,
// in both directions, and is delivered when it is let go: a network that is slow,
// not one that loses.
//
// A route between two servers is one connection for each pinned account, and says
// in its first lines which. So a link tells accounts apart, and the streams of one
// test are cut off while the servers go on for all others.
type link struct {
	listener net.Listener
	running  sync.WaitGroup

	mu     sync.Mutex
	change *sync.Cond          // of mu: a hold or the end
	target string              // of connections to come; guarded by mu
	label  string              // account of connections to come that name none; guarded by mu
	held   map[string]bool     // accounts; guarded by mu
	conns  map[net.Conn]string // to be closed at the end; those that came in with their label; guarded by mu
	ended  bool                // guarded by mu
}

func newLink(t *testing.T) *link {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	k := &link{listener: l, held: map[string]bool{}, conns: map[net.Conn]string{}}
	k.change = sync.NewCond(&k.mu)
	k.running.Go(k.accept)
	return k
}

func (k *link) address() string { return k.listener.Addr().String() }

// leadTo says where connections made from now on lead, and under which account
// they are held if they name none.
func (k *link) leadTo(target, label string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.target, k.label = target, label
}

// leave makes those who came in under the label believe that their connections
// were lost. What they sent and is held is delivered when it is released.
func (k *link) leave(label string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for c, has := range k.conns {
		if has == label {
			_ = c.Close() // that is the point
		}
	}
}

// hold keeps back what connections of the account carry.
func (k *link) hold(account string) { k.set(account, true) }

// release delivers what was held.
func (k *link) release(account string) { k.set(account, false) }

func (k *link) set(account string, held bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.held[account] = held
	k.change.Broadcast()
}

func (k *link) close() {
	_ = k.listener.Close() // nothing was written to it
	k.mu.Lock()
	k.ended = true
	for c := range k.conns {
		_ = c.Close() // both ends are ours and go down too
	}
	k.change.Broadcast()
	k.mu.Unlock()
	k.running.Wait()
}

func (k *link) accept() {
	for {
		near, err := k.listener.Accept()
		if err != nil {
			return
		}
		k.running.Go(func() { k.carry(near) })
	}
}

func (k *link) carry(near net.Conn) {
	k.mu.Lock()
	target, name := k.target, account{name: k.label}
	k.mu.Unlock()
	far, err := net.Dial("tcp", target)
	if err != nil {
		_ = near.Close() // the caller tries again
		return
	}
	if !k.keep(near, far, name.name) {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { k.pump(far, near, &name, true) })
	both.Go(func() { k.pump(near, far, &name, false) })
	both.Wait()
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.conns, near)
	delete(k.conns, far)
}

func (k *link) keep(near, far net.Conn, label string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ended {
		_, _ = near.Close(), far.Close() // nothing was sent on them
		return false
	}
	k.conns[near], k.conns[far] = label, "far"
	return true
}

// account is whose traffic a route connection carries, once it said so.
type account struct {
	mu   sync.Mutex
	name string // guarded by mu
}

func (a *account) read() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.name
}

// learn reads it from the first lines of the side that opened the route.
func (a *account) learn(lines []byte) (known bool) {
	_, rest, found := bytes.Cut(lines, []byte(`"route_account":"`))
	name, _, whole := bytes.Cut(rest, []byte(`"`))
	if !found || !whole {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.name = string(name)
	return true
}

// firstLines is how far into a connection the account is looked for.
const firstLines = 16 << 10

func (k *link) pump(to io.WriteCloser, from net.Conn, name *account, asks bool) {
	var begin []byte
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			if asks && len(begin) < firstLines {
				begin = append(begin, buffer[:n]...)
				if name.learn(begin) {
					begin = make([]byte, firstLines)
				}
			}
			k.wait(name)
			if _, err := to.Write(buffer[:n]); err != nil {
				break
			}
		}
		if err != nil {
			break
		}
	}
	// Only the way on is closed: who leaves does not call back what was sent and
	// is still held.
	_ = to.Close()
}

// wait returns when nothing holds the account back.
func (k *link) wait(name *account) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for k.held[name.read()] && !k.ended {
		k.change.Wait()
	}
}
