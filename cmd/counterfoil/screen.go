package main

import (
	"fmt"
	"os"
	"os/signal"
	"strings"

	"golang.org/x/sys/unix"
)

// screen is a terminal that something is shown on in place. It uses the few
// sequences every terminal of the last decades knows, and needs no library:
// nothing is read from the keyboard, and an interrupt comes as a signal.
//
// The other screen of the terminal is used, so that what was there before comes
// back. If the process is killed it does not; reset brings it back.
type screen struct {
	f       *os.File
	resized chan os.Signal
	begun   bool
}

// openScreen gives a screen on f, or nil if that is no terminal.
func openScreen(f *os.File) *screen {
	if _, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err != nil {
		return nil
	}
	return &screen{f: f, resized: make(chan os.Signal, 1)}
}

// view is the size as it is now. A terminal that does not know its own is taken
// for the smallest usual one.
func (s *screen) view(colour bool) view {
	v := view{width: 80, height: 24, colour: colour}
	if size, err := unix.IoctlGetWinsize(int(s.f.Fd()), unix.TIOCGWINSZ); err == nil && size.Col > 0 && size.Row > 0 {
		v.width, v.height = int(size.Col), int(size.Row)
	}
	return v
}

func (s *screen) begin() {
	signal.Notify(s.resized, unix.SIGWINCH)
	s.begun = true
	fmt.Fprint(s.f, "\x1b[?1049h\x1b[?25l") // the other screen, no cursor
}

// draw replaces what is shown, line by line, so that nothing flickers. A line
// is cleared before it is written: behind one as wide as the terminal the
// cursor still stands on its last cell.
func (s *screen) draw(lines []string, v view) {
	var b strings.Builder
	b.WriteString("\x1b[H")
	for i, line := range lines {
		if i > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString("\x1b[K" + line)
	}
	if len(lines) < v.height {
		b.WriteString("\r\n\x1b[J")
	}
	fmt.Fprint(s.f, b.String())
}

// end gives the terminal back as it was.
func (s *screen) end() {
	if !s.begun {
		return
	}
	s.begun = false
	signal.Stop(s.resized)
	fmt.Fprint(s.f, "\x1b[?25h\x1b[?1049l")
}
