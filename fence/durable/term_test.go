package durable_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"sync"
	"syscall"
	"testing"

	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/fence/durable"
	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
)

// A deposed leader is refused after a restart, too.
func TestTermOutlivesItsProcess(t *testing.T) {
	dir := t.TempDir()
	if term, err := durable.OpenTerm(dir); !errors.Is(err, durable.ErrMissing) {
		t.Fatalf("no file: %v, %v", term, err)
	}
	term, err := durable.EnrolTerm(dir)
	if err == nil {
		err = term.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	// Nothing was heard yet, and a start finds that.
	for i, step := range []struct {
		check, mark int64
		stale       bool
	}{{0, 0, true}, {3, 3, false}, {2, 3, true}, {3, 3, false}, {0, 3, true}, {5, 5, false}, {4, 5, true},
		{math.MaxInt64, math.MaxInt64, false}, {5, math.MaxInt64, true}} {
		term, err := durable.OpenTerm(dir)
		if err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
		if two, err := durable.OpenTerm(dir); !errors.Is(err, durable.ErrLocked) {
			t.Errorf("step %d: beside it: %v, %v", i, two, err)
		}
		if err := term.Check(step.check); errors.Is(err, fence.ErrStaleTerm) != step.stale || !step.stale && err != nil {
			t.Errorf("step %d: %v", i, err)
		}
		if term.Mark() != step.mark {
			t.Errorf("step %d: mark %d, want %d", i, term.Mark(), step.mark)
		}
		if err := term.Close(); err != nil {
			t.Fatal(err)
		}
		// The directory may be somebody else's now.
		if err := term.Check(math.MaxInt64); !errors.Is(err, fs.ErrClosed) {
			t.Errorf("step %d: after Close: %v", i, err)
		}
	}
	if term, err := durable.EnrolTerm(dir); !errors.Is(err, durable.ErrEnrolled) {
		t.Errorf("enrolled again: %v, %v", term, err)
	}
}

// A term that was heard of and could not be saved is not obeyed, and neither is the one that
// it deposed.
func TestTermOnAFullDisk(t *testing.T) {
	disk := durabletest.NewDisk()
	if err := disk.FS().MkdirAll("/m"); err != nil {
		t.Fatal(err)
	}
	term, err := durable.OpenTermOn(disk.FS(), "/m", true)
	if err == nil {
		err = term.Check(3)
	}
	if err != nil {
		t.Fatal(err)
	}
	disk.Refuse(syscall.ENOSPC)
	for range 2 {
		if err := term.Check(5); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("the next term: %v", err)
		}
		if err := term.Check(3); !errors.Is(err, fence.ErrStaleTerm) {
			t.Errorf("the one of before: %v", err)
		}
	}
	disk.Refuse(nil)
	if err := term.Check(5); err != nil || term.Mark() != 5 {
		t.Errorf("with room: %v, mark %d", err, term.Mark())
	}
}

// Every step of a save fails or is the last, and every bit of the file may be another one:
// what was believed is never forgotten, and nothing is believed that is not on disk.
func TestTermCrash(t *testing.T) {
	for _, fault := range []error{durabletest.ErrPowerCut, syscall.EIO, syscall.ENOSPC} {
		for _, after := range durabletest.Afters() {
			for n := 1; ; n++ {
				disk := durabletest.NewDisk()
				if err := disk.FS().MkdirAll("/m"); err != nil {
					t.Fatal(err)
				}
				term, err := durable.OpenTermOn(disk.FS(), "/m", true)
				if err == nil {
					err = term.Check(3)
				}
				if err != nil {
					t.Fatal(err)
				}
				disk.FailAt(n, fault)
				failed := term.Check(5)
				if failed != nil && (errors.Is(failed, fence.ErrStaleTerm) || term.Mark() != 3) {
					t.Errorf("call %d: %v, mark %d", n, failed, term.Mark())
				}
				over := !disk.Failed()
				disk.Restart(after)
				again, err := durable.OpenTermOn(disk.FS(), "/m", false)
				if err != nil {
					t.Fatalf("%v, %v at call %d: %v", after, fault, n, err)
				}
				if mark := again.Mark(); failed == nil && mark != 5 || mark != 3 && mark != 5 {
					t.Errorf("%v, %v at call %d: mark %d after %v", after, fault, n, mark, failed)
				}
				if err := again.Check(5); err != nil {
					t.Error(err)
				}
				if over {
					break
				}
			}
		}
	}
}

func TestTermDamaged(t *testing.T) {
	disk := durabletest.NewDisk()
	if err := disk.FS().MkdirAll("/m"); err != nil {
		t.Fatal(err)
	}
	term, err := durable.OpenTermOn(disk.FS(), "/m", true)
	if err == nil {
		err = errors.Join(term.Check(12345), term.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	whole, err := disk.FS().ReadFile("/m/term", 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	refused := func(text []byte, how string) {
		t.Helper()
		disk.Put("/m/term", text)
		if term, err := durable.OpenTermOn(disk.FS(), "/m", false); !errors.Is(err, durable.ErrCorrupt) {
			t.Fatalf("%s: %v, %v", how, term, err)
		}
	}
	for i := range whole {
		refused(whole[:i], fmt.Sprintf("cut at %d", i))
		for bit := range 8 {
			text := bytes.Clone(whole)
			text[i] ^= 1 << bit
			refused(text, fmt.Sprintf("bit %d of byte %d", bit, i))
		}
	}
	refused(make([]byte, 1<<20), "much")
}

// Many orders at once, of terms that begin meanwhile: the mark is the highest, and no
// lower one passes after it.
func TestTermsAtOnce(t *testing.T) {
	disk := durabletest.NewDisk()
	if err := disk.FS().MkdirAll("/m"); err != nil {
		t.Fatal(err)
	}
	term, err := durable.OpenTermOn(disk.FS(), "/m", true)
	if err != nil {
		t.Fatal(err)
	}
	var wait sync.WaitGroup
	for worker := range 4 {
		wait.Go(func() {
			for i := range 100 {
				n := int64(1 + i + worker)
				before := term.Mark()
				switch err := term.Check(n); {
				case err == nil && n < before:
					t.Errorf("term %d passed after %d", n, before)
				case err != nil && !errors.Is(err, fence.ErrStaleTerm):
					t.Error(err)
				}
			}
		})
	}
	wait.Wait()
	if term.Mark() != 103 {
		t.Errorf("mark %d", term.Mark())
	}
}
