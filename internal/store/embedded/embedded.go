// Package embedded runs the etcd server that a coordinator brings along with --store embedded.
//
// The server is a program of its own, fealty-store (cmd/fealty-store), so that its dependencies are not the
// coordinator's, and that none of its code is in a process that holds the secrets of a cluster. The coordinator
// starts it with a [Process], which tells it by [Settings] what to do, starts it again when it dies, and ends it.
//
// All that the server has is in one folder, of mode 0700:
//
//	data         what etcd keeps: its log, its snapshots and its database
//	client.sock  where it serves the coordinator, of mode 0600: who opens it can read and write the whole store
//	lock         held by the server while it runs, so that two never use one folder
//	owner        held by who started the server
//
// The server listens on no network. Everybody who reaches the socket can do what somebody can do to any store of a
// cluster: delete records and bring back old ones, but neither make any up nor read the seed.
package embedded

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// ProgramName is what the program is called beside that of the coordinator.
const ProgramName = "fealty-store"

// Names in the folder of a store.
const (
	DataName   = "data"
	SocketName = "client.sock"
	LockName   = "lock"
	ownerName  = "owner"
)

// ReadyLine is what the server writes to its standard output once it serves.
const ReadyLine = "ready"

// Settings are what the server is told. It reads them as one line of JSON from its standard input, and ends when that
// ends: so it never outlives who started it, however that ended.
type Settings struct {
	// Protocol is [Protocol] of who started the server.
	Protocol int `json:"protocol"`

	// Dir is the folder of the store, absolute.
	Dir string `json:"dir"`

	// QuotaBytes is how large the database may become before it takes no more writes. 0 means 2 GiB, etcd's default.
	QuotaBytes int64 `json:"quota_bytes,omitempty"`
}

// Protocol is the version of [Settings]. Both programs come from one release; a number that differs shows that one of
// them was left behind.
const Protocol = 1

// maxSettingsBytes bounds the line of settings.
const maxSettingsBytes = 64 << 10

// ReadSettings reads what [Process] writes.
func ReadSettings(r io.Reader) (Settings, error) {
	var s Settings
	line, err := bufio.NewReaderSize(io.LimitReader(r, maxSettingsBytes), maxSettingsBytes).ReadSlice('\n')
	if err != nil {
		return s, fmt.Errorf("no line of settings of at most %d bytes on the standard input", maxSettingsBytes)
	}
	if err := json.Unmarshal(line, &s); err != nil {
		return s, fmt.Errorf("the settings on the standard input: %w", err)
	}
	switch {
	case s.Protocol != Protocol:
		return s, fmt.Errorf("fealty of another release started it (protocol %d, and this one speaks %d): install both programs of one release",
			s.Protocol, Protocol)
	case !filepath.IsAbs(s.Dir):
		return s, errors.New("the settings name no folder by its whole path")
	case s.QuotaBytes < 0:
		return s, errors.New("the settings name a quota below 0")
	}
	return s, nil
}

// FindProgram returns the path of the program of the store: the one named, or, if named is blank, what is called [ProgramName]
// and lies beside the running program, to which a link may lead. It looks nowhere else: who runs a coordinator says
// which programs it starts.
func FindProgram(named string) (string, error) {
	if named != "" {
		return filepath.Abs(named)
	}
	own, err := os.Executable()
	if err != nil {
		return "", &ProgramError{Path: ProgramName, Err: err}
	}
	if real, err := filepath.EvalSymlinks(own); err == nil {
		own = real
	}
	return filepath.Join(filepath.Dir(own), ProgramName), nil
}

// CheckProgram returns a *[ProgramError] if there is no program at path.
func CheckProgram(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return &ProgramError{Path: path, Err: bare(err)}
	case !info.Mode().IsRegular() || info.Mode()&0o111 == 0:
		return &ProgramError{Path: path, Err: errors.New("it is no program")}
	}
	return nil
}

// bare returns what the system said, without the path, which the message names.
func bare(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// ProgramError says that there is no program of the store.
type ProgramError struct {
	Path string
	Err  error
}

func (e *ProgramError) Error() string {
	return fmt.Sprintf("embedded store: %s cannot be started: %v", e.Path, e.Err)
}

func (e *ProgramError) Unwrap() error { return e.Err }

// LockedError says that another process has the store's folder.
type LockedError struct {
	Dir string
	PID int // of the holder; 0 if it is not known
}

func (e *LockedError) Error() string {
	return fmt.Sprintf("embedded store: %s is in use by process %d: stop it first", e.Dir, e.PID)
}

// StartError says that the program ended before it served.
type StartError struct {
	Dir  string
	Said string // how it ended, and its last words
}

func (e *StartError) Error() string {
	return fmt.Sprintf("embedded store: the one in %s did not start: %s", e.Dir, e.Said)
}
