// Package contexts keeps a person's identities, each in a folder under a name, and says which is
// used when none is named.
package contexts

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/fealty-io/fealty/internal/platform/durable"
)

const (
	currentFile = "current"
	maxName     = 253 // the id of a cluster fits
)

var nameForm = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]*$`)

// ErrNone is when no login is current.
var ErrNone = errors.New("nobody is logged in")

// NameError says that a name cannot be one of a login.
type NameError struct{ Name string }

func (e *NameError) Error() string {
	return fmt.Sprintf("%q is no name of a login: it has a-z, 0-9, dots, dashes and underscores, and begins with a letter or a digit", e.Name)
}

// checkName returns a *NameError for what cannot be a name.
func checkName(name string) error {
	if len(name) > maxName || !nameForm.MatchString(name) || name == currentFile {
		return &NameError{name}
	}
	return nil
}

// Logins are the logins below one folder. The zero value has none and keeps none.
type Logins struct {
	files durable.FS
	dir   string
}

// In returns the logins below dir, which need not exist.
func In(files durable.FS, dir string) Logins { return Logins{files, dir} }

// Dir returns the folder of a login, which need not exist.
func (l Logins) Dir(name string) (string, error) {
	if err := checkName(name); err != nil {
		return "", err
	}
	if l.dir == "" {
		return "", errors.New("there is no folder for logins: neither HOME nor XDG_CONFIG_HOME names one")
	}
	return filepath.Join(l.dir, name), nil
}

// Current returns the name of the login that counts; ErrNone if there is none.
func (l Logins) Current() (string, error) {
	if l.dir == "" {
		return "", ErrNone
	}
	raw, err := l.files.ReadFile(filepath.Join(l.dir, currentFile), maxName+1)
	if errors.Is(err, fs.ErrNotExist) {
		return "", ErrNone
	}
	if err != nil {
		return "", fmt.Errorf("read which login is current: %w", err)
	}
	name := strings.TrimSuffix(string(raw), "\n")
	if err := checkName(name); err != nil {
		return "", fmt.Errorf("which login is current: %w", err)
	}
	return name, nil
}

// Use makes a login the current one.
func (l Logins) Use(name string) error {
	if _, err := l.Dir(name); err != nil {
		return err
	}
	if err := l.files.MkdirAll(l.dir); err != nil {
		return fmt.Errorf("make the folder of the logins: %w", err)
	}
	if err := l.files.WriteFile(filepath.Join(l.dir, currentFile), []byte(name+"\n")); err != nil {
		return fmt.Errorf("write which login is current: %w", err)
	}
	return nil
}

// Names returns the names of all logins, sorted.
func (l Logins) Names() ([]string, error) {
	if l.dir == "" {
		return nil, nil
	}
	found, err := l.files.ReadDir(l.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the logins: %w", err)
	}
	return slices.DeleteFunc(found, func(name string) bool { return checkName(name) != nil }), nil
}
