package ingest

import (
	"fmt"
	"runtime/debug"
)

// Aside does something on a stack of its own, which is gone when it is done. A stack
// doubles when it is too small, and only a collection halves it: where a goroutine goes on
// for minutes, as those of who waits do, what it did first would be kept in memory for
// that long, times the thousands who wait.
//
// A panic goes on in the caller, with where it came from.
func Aside(do func()) {
	ended := make(chan error, 1)
	go func() {
		whole := false
		defer func() {
			if whole {
				ended <- nil
				return
			}
			ended <- fmt.Errorf("panic: %v\n%s", recover(), debug.Stack())
		}()
		do()
		whole = true
	}()
	if err := <-ended; err != nil {
		panic(err)
	}
}
