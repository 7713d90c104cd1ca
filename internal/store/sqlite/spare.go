package sqlite

import (
	"errors"
	"io/fs"
	"os"
)

// A spare is a file beside the database that holds nothing. On a full disk there is room
// again once the log was copied, and room within the database once something was deleted
// there; but to be copied the log needs room in the database first, and to be deleted
// anything needs room in the log. So the spare makes way while that is done, and takes its
// space back from the log.
type spare string // its path

// spareBytes is what the longest log can need in the database: a page for each of its
// own. Only one very large transaction leads to more.
const spareBytes = longLog * pageBytes

// leastSpareBytes is enough for small changes one after the other.
const leastSpareBytes = 256 << 10

// keep makes it, unless it is there; a smaller one where there is less space.
func (s spare) keep() error {
	if info, err := os.Stat(string(s)); err == nil && info.Size() == spareBytes {
		return nil
	}
	for bytes := int64(spareBytes); ; bytes /= 2 {
		if err := s.make(bytes); err == nil || bytes <= leastSpareBytes {
			return err
		}
	}
}

func (s spare) make(bytes int64) (err error) {
	f, err := os.OpenFile(string(s), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			os.Remove(string(s)) // half of one would take the space that others need
		}
	}()
	return allocate(f, bytes)
}

// release gives its space to others.
func (s spare) release() error {
	if err := os.Remove(string(s)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// write allocates by writing, where nothing else does it.
func write(f *os.File, bytes int64) error {
	zeros := make([]byte, 64<<10)
	for at := int64(0); at < bytes; at += int64(len(zeros)) {
		if _, err := f.WriteAt(zeros[:min(int64(len(zeros)), bytes-at)], at); err != nil {
			return err
		}
	}
	return nil
}
