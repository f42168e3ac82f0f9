package notice

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/httprule"
)

const (
	keepOutput = 4 << 10         // bytes of a command's output that are kept
	showOutput = 300             // of those, what a line in the log has
	killDelay  = 2 * time.Second // for its pipes, after it was killed
)

// Command gives what runs a program with the notice on its standard input. The
// name is that of a program, without arguments: no shell reads it. The program
// gets the variables of environment and no others.
func Command(name string, environment []string) (func(ctx context.Context, document []byte) Ran, error) {
	path, err := exec.LookPath(name)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return nil, fmt.Errorf("the notice's command: %w", err)
	}
	return func(ctx context.Context, document []byte) Ran {
		said := &bounded{}
		cmd := exec.CommandContext(ctx, path)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(document), said, said
		cmd.Env, cmd.Dir, cmd.WaitDelay = environment, filepath.Dir(path), killDelay
		alone(cmd)
		if err := cmd.Start(); err != nil {
			return Ran{events.CallNotSent, err.Error()}
		}
		err := cmd.Wait()
		var exited *exec.ExitError
		switch {
		case err == nil:
			return Ran{Outcome: events.CallDone}
		case ctx.Err() != nil:
			return Ran{events.CallAmbiguous, said.after("it took too long and was killed")}
		case errors.As(err, &exited):
			return Ran{events.CallRefused, said.after(exited.Error())}
		case cmd.ProcessState != nil && cmd.ProcessState.Success():
			// It ended well without reading what it was given, or left a child that
			// holds its output.
			return Ran{Outcome: events.CallDone}
		}
		return Ran{events.CallAmbiguous, said.after(err.Error())}
	}, nil
}

// bounded keeps the first bytes of what is written to it. It belongs to one
// command, whose output arrives in one goroutine.
type bounded struct{ text []byte }

func (b *bounded) Write(p []byte) (int, error) {
	b.text = append(b.text, p[:min(len(p), keepOutput-len(b.text))]...)
	return len(p), nil
}

func (b *bounded) after(what string) string {
	if len(b.text) == 0 {
		return what
	}
	return what + ": " + httprule.Excerpt(b.text, showOutput)
}
