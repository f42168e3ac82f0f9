package harness

import (
	"io/fs"
	"testing/fstest"
)

// memFS holds contracts by file name.
type memFS map[string]string

func (m memFS) fs() fs.FS {
	out := fstest.MapFS{}
	for name, text := range m {
		out[name] = &fstest.MapFile{Data: []byte(text), Mode: 0o444}
	}
	return out
}
