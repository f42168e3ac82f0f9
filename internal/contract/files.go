package contract

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/counterfoil/counterfoil/events"
)

// FilesType is the media type of a result of several files: a JSON list of the
// files' names, where the contract has some, digests, sizes and media types, in
// the provider's order or that of the names.
const FilesType = "application/vnd.counterfoil.files+json"

// File is one file of a result of several.
type File struct {
	Name      string // the contract's; "" if it has none
	Digest    events.Digest
	Size      int64
	MediaType string
}

// Label names the file for people: its name, or its place in the list, from 0.
func (f File) Label(i int) string {
	if f.Name != "" {
		return f.Name
	}
	return strconv.Itoa(i)
}

// WriteFiles gives the body of a result of several files.
func WriteFiles(files []File) []byte {
	body := []byte(`{"files":[`)
	for i, f := range files {
		if i > 0 {
			body = append(body, ',')
		}
		body = append(body, '{')
		if f.Name != "" {
			body = fmt.Appendf(body, `"name":%q,`, f.Name)
		}
		body = fmt.Appendf(body, `"sha256":%q,"size":%d,"media_type":`, f.Digest, f.Size)
		quoted, err := jsontext.AppendQuote(nil, f.MediaType)
		if err != nil { // text that is not UTF-8 names no media type
			quoted = []byte(`""`)
		}
		body = append(append(body, quoted...), '}')
	}
	return append(body, "]}"...)
}

// ReadFiles reads what WriteFiles wrote.
func ReadFiles(body []byte) ([]File, error) {
	var list struct {
		Files []struct {
			Name      string `json:"name"`
			SHA256    string `json:"sha256"`
			Size      int64  `json:"size"`
			MediaType string `json:"media_type"`
		} `json:"files"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, errors.New("the list of files cannot be read")
	}
	var files []File
	for i, f := range list.Files {
		d, err := events.ParseDigest(f.SHA256)
		if err != nil || d.IsZero() {
			return nil, fmt.Errorf("the list of files: file %d has no digest", i)
		}
		files = append(files, File{f.Name, d, f.Size, f.MediaType})
	}
	return files, nil
}
