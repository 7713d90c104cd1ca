package instruction

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/platform/durable"
)

const (
	bookName = "instructions"
	lockName = "instructions.lock"
	maxBook  = MaxRemembered * 2 << 10 // bytes
	// late is how long after its end an id is remembered still: the member's clock may have been
	// set back since.
	late = 7 * 24 * time.Hour
)

// Errors of a book.
var (
	// ErrFull is matched when nothing new is begun, as all that is remembered may come again.
	ErrFull = errors.New("the member remembers as many instructions as it may")
	// ErrMissing is matched when there is no book where one was.
	ErrMissing = errors.New("the book of instructions is missing")
	// ErrDamaged is matched when it is not what was written.
	ErrDamaged = errors.New("the book of instructions is damaged")
)

// End is what became of an instruction.
type End struct {
	Outcome fealtyv1.InstructionOutcome `json:"outcome"`
	Detail  string                      `json:"detail,omitempty"`
}

// entry is one instruction that was begun, or refused for good.
type entry struct {
	ID       string    `json:"id"`
	NotAfter time.Time `json:"not_after"`
	End      *End      `json:"end,omitempty"` // nil: it was begun, and nothing more is known
}

// Book is what a member remembers of instructions, on disk. It may be used by several goroutines.
type Book struct {
	files durable.FS
	name  string
	lock  io.Closer

	mu      sync.Mutex
	entries []entry // in the order in which they were begun; guarded by mu
	unsaved bool    // what is in memory is newer than the file; guarded by mu
}

// EnrolBook begins the book of a member that was never told anything: the first start of its folder.
// One that is there already is opened.
func EnrolBook(files durable.FS, dir string) (*Book, error) { return open(files, dir, true) }

// OpenBook opens a member's book, and holds its folder until Close. One that is missing matches
// [ErrMissing]; it and a damaged one are errors, as a member that forgot what it did would do it
// again: the caller says how to mend it.
func OpenBook(files durable.FS, dir string) (*Book, error) { return open(files, dir, false) }

func open(files durable.FS, dir string, enrol bool) (_ *Book, err error) {
	b := &Book{files: files, name: filepath.Join(dir, bookName)}
	if b.lock, err = files.Lock(filepath.Join(dir, lockName)); err != nil {
		return nil, fmt.Errorf("instruction: open %s: %w", b.name, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.lock.Close())
		}
	}()
	text, err := files.ReadFile(b.name, maxBook)
	switch {
	case errors.Is(err, fs.ErrNotExist) && enrol:
		return b, b.save()
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("instruction: %s: %w", b.name, ErrMissing)
	case errors.Is(err, durable.ErrTooLarge):
		return nil, fmt.Errorf("instruction: %s: %w: %w", b.name, ErrDamaged, err)
	case err != nil:
		return nil, fmt.Errorf("instruction: read %s: %w", b.name, err)
	}
	if b.entries, err = decode(text); err != nil {
		return nil, fmt.Errorf("instruction: %s: %w: %w", b.name, ErrDamaged, err)
	}
	return b, nil
}

// Close gives the folder back.
func (b *Book) Close() error { return b.lock.Close() }

// bookHead begins the file, whose entries are in JSON: what one bit of an id would change is told
// from what was written.
const bookHead = "instructions, form 1: "

func decode(text []byte) ([]entry, error) {
	var entries []entry
	if err := durable.Decode(bookHead, text, &entries); err != nil {
		return nil, err
	}
	if len(entries) > MaxRemembered {
		return nil, fmt.Errorf("it has %d entries, limit %d", len(entries), MaxRemembered)
	}
	return entries, nil
}

// save writes the book. The caller holds b.mu, or is alone.
func (b *Book) save() error {
	text, err := durable.Encode(bookHead, b.entries)
	if err == nil {
		err = b.files.WriteFile(b.name, text)
	}
	b.unsaved = err != nil
	return err
}

// Ended returns what became of an instruction that is on disk, and whether it ended.
func (b *Book) Ended(id string) (End, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := b.find(id)
	if i < 0 || b.entries[i].End == nil {
		return End{}, false
	}
	if b.unsaved && b.save() != nil {
		return End{}, false
	}
	return *b.entries[i].End, true
}

// Begun reports whether an instruction was begun, and nobody knows what became of it.
func (b *Book) Begun(id string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := b.find(id)
	return i >= 0 && b.entries[i].End == nil
}

func (b *Book) find(id string) int {
	return slices.IndexFunc(b.entries, func(e entry) bool { return e.ID == id })
}

// Begin notes that an instruction is begun: with an error it is not. An error matches [ErrFull],
// or is that of the disk.
func (b *Book) Begin(id string, notAfter, now time.Time) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.find(id) >= 0 {
		return fmt.Errorf("instruction: %s was begun before", id)
	}
	return b.add(entry{ID: id, NotAfter: notAfter}, now)
}

// add adds an entry, and nothing if that is not on disk. The caller holds b.mu.
func (b *Book) add(e entry, now time.Time) error {
	before := b.entries
	b.entries = append(slices.Clone(before), e)
	if len(b.entries) > MaxRemembered {
		b.entries = slices.DeleteFunc(b.entries, func(e entry) bool { return now.After(e.NotAfter.Add(late)) })
	}
	if len(b.entries) > MaxRemembered {
		b.entries = before
		return ErrFull
	}
	if err := b.save(); err != nil {
		b.entries = before
		return err
	}
	return nil
}

// End notes what became of an instruction, begun or not. With an error it is not on disk yet, and
// is what counts all the same while this process lives.
func (b *Book) End(id string, end End, notAfter, now time.Time) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := b.find(id)
	if i < 0 {
		return b.add(entry{ID: id, NotAfter: notAfter, End: &end}, now)
	}
	b.entries = slices.Clone(b.entries)
	b.entries[i].End = &end
	return b.save()
}
