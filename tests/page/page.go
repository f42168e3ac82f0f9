// Package page keeps what a program under test writes.
package page

import (
	"bytes"
	"strings"
	"sync"
)

// Page is text that can be read while it is written. The zero Page is empty.
type Page struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

// Write adds to it. There is no error.
func (p *Page) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.Write(b)
}

// String is all that was written so far.
func (p *Page) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

// With lists the lines that hold the text, in order.
func (p *Page) With(text string) []string {
	var list []string
	for line := range strings.Lines(p.String()) {
		if strings.Contains(line, text) {
			list = append(list, line)
		}
	}
	return list
}
