package process

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/fealty-io/fealty/internal/platform/durable"
)

const (
	fileName    = "domains.json"
	maxFile     = MaxDomains * 4 << 10 // bytes
	fileVersion = 1
)

// File keeps what a member owns in a folder of its own.
type File struct {
	Files durable.FS
	Dir   string
}

// content is what the file holds. Its statements are signed, and verified again when they are
// read; a lease that somebody made longer is bounded by what receivers promised since.
type content struct {
	Version int    `json:"version"`
	Domains []Held `json:"domains"`
}

// Read returns what is kept; nothing if there is no file. A file that is damaged is an error:
// somebody looks at it, and it may be removed, as a member is told again what it owns.
func (f File) Read() ([]Held, error) {
	name := filepath.Join(f.Dir, fileName)
	text, err := f.Files.ReadFile(name, maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var c content
	if err == nil {
		d := json.NewDecoder(bytes.NewReader(text))
		d.DisallowUnknownFields()
		if err = d.Decode(&c); err == nil && d.More() {
			err = errors.New("there is more behind it")
		}
	}
	if err == nil && (c.Version != fileVersion || len(c.Domains) > MaxDomains) {
		err = fmt.Errorf("version %d with %d domains, want version %d with at most %d", c.Version, len(c.Domains),
			fileVersion, MaxDomains)
	}
	if err != nil {
		return nil, fmt.Errorf("process: read %s: %w: remove it, and the coordinators say again what the member owns",
			name, err)
	}
	return c.Domains, nil
}

// Write keeps it, as a whole.
func (f File) Write(kept []Held) error {
	text, err := json.Marshal(content{fileVersion, kept})
	if err != nil {
		return err
	}
	return f.Files.WriteFile(filepath.Join(f.Dir, fileName), append(text, '\n'))
}
