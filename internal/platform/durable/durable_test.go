package durable_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
)

var (
	oldContent = []byte("old content, not short")
	newContent = []byte("and the new content, which is longer than the old")
)

// read returns a file's content, nil if it is missing; anything else fails.
func read(t *testing.T, disk *durabletest.Disk, name string) []byte {
	t.Helper()
	data, err := disk.FS().ReadFile(name, 1<<20)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestWriteFilePowerCut(t *testing.T) {
	for _, before := range [][]byte{nil, oldContent} {
		for _, after := range durabletest.Afters() {
			for n, ended := 1, false; !ended; n++ {
				name := fmt.Sprintf("before=%q/%v/call %d", before, after, n)
				disk := durabletest.NewDisk()
				disk.Put("state/f", []byte("x"))
				if disk.FS().Remove("state/f"); before != nil {
					disk.Put("state/f", before)
				}
				disk.FailAt(n, durabletest.ErrPowerCut)
				err := disk.FS().WriteFile("state/f", newContent)
				ended = !disk.Failed()
				disk.Restart(after)
				got := read(t, disk, "state/f")
				switch {
				case err == nil && !bytes.Equal(got, newContent):
					t.Errorf("%s: acknowledged, then %q", name, got)
				case bytes.Equal(got, newContent):
				case !bytes.Equal(got, before), (got == nil) != (before == nil):
					t.Errorf("%s: neither old nor new but %q", name, got)
				}

				// The next writer is not disturbed, and nothing is left over.
				if err := disk.FS().WriteFile("state/f", newContent); err != nil {
					t.Errorf("%s: next write: %v", name, err)
				}
				if left, _ := disk.List("state"); !slices.Equal(left, []string{"f"}) {
					t.Errorf("%s: left over: %q", name, left)
				}
				if ended && n != 7 {
					t.Errorf("%s: a write has create, write, sync, close, rename, sync; counted %d calls", name, n-1)
				}
			}
		}
	}
}

func TestWriteFileDiskErrors(t *testing.T) {
	for _, fault := range []error{syscall.EIO, syscall.ENOSPC, syscall.EROFS, syscall.EDQUOT} {
		for _, after := range durabletest.Afters() {
			for n, ended := 1, false; !ended; n++ {
				name := fmt.Sprintf("%v/%v/call %d", fault, after, n)
				disk := durabletest.NewDisk()
				disk.Put("state/f", oldContent)
				fsys := disk.FS()
				disk.FailAt(n, fault)
				err := fsys.WriteFile("state/f", newContent)
				if ended = !disk.Failed(); ended {
					if err != nil {
						t.Errorf("%s: %v", name, err)
					}
					continue
				}
				if !errors.Is(err, fault) {
					t.Errorf("%s: error is %v", name, err)
				}
				seen := read(t, disk, "state/f")
				unknown := errors.Is(err, durable.ErrUnknownOutcome)
				if want := map[bool][]byte{true: newContent, false: oldContent}[unknown]; !bytes.Equal(seen, want) {
					t.Errorf("%s: after %v a reader sees %q", name, err, seen)
				}
				if left, _ := disk.List("state"); !slices.Equal(left, []string{"f"}) {
					t.Errorf("%s: left over: %q", name, left)
				}

				// Trying again is a whole new write, and counts.
				disk.FailAt(0, nil)
				if err := fsys.WriteFile("state/f", newContent); err != nil {
					t.Errorf("%s: again: %v", name, err)
				}
				disk.Restart(after)
				if got := read(t, disk, "state/f"); !bytes.Equal(got, newContent) {
					t.Errorf("%s: acknowledged the second time, then %q", name, got)
				}
			}
		}
	}
}

// A disk that fails for good takes nothing from what was there.
func TestDeadDiskKeepsOld(t *testing.T) {
	disk := durabletest.NewDisk()
	disk.Put("state/f", oldContent)
	fsys := disk.FS()
	for range 20 {
		for n := 1; n <= 5; n++ {
			disk.FailAt(n, syscall.EIO)
			if err := fsys.WriteFile("state/f", newContent); err == nil {
				t.Fatal("no error")
			}
		}
	}
	disk.Restart(durabletest.Synced)
	if got := read(t, disk, "state/f"); !bytes.Equal(got, oldContent) {
		t.Errorf("got %q", got)
	}
}

// The disk itself must be cruel enough: protocols that skip a step lose.
func TestDiskCatchesCarelessWriters(t *testing.T) {
	type step = func(d *durabletest.Disk) error
	write := func(sync, retry bool) step {
		return func(d *durabletest.Disk) error {
			f, err := d.Create("state/t")
			if err != nil {
				return err
			}
			f.Write(newContent)
			if sync {
				if err := f.Sync(); err != nil && retry {
					return f.Sync()
				}
			}
			return nil
		}
	}
	rename := func(d *durabletest.Disk) error { return d.Rename("state/t", "state/f") }
	syncDir := func(d *durabletest.Disk) error { return d.SyncDir("state") }
	for _, test := range []struct {
		name  string
		fault int
		steps []step
		after durabletest.After
		want  []byte
	}{
		{"all steps", 0, []step{write(true, false), rename, syncDir}, durabletest.Synced, newContent},
		{"no file sync, names first", 0, []step{write(false, false), rename, syncDir}, durabletest.NamesFirst, []byte{}},
		{"no file sync, torn", 0, []step{write(false, false), rename, syncDir}, durabletest.Torn, newContent[:len(newContent)/2]},
		{"no directory sync", 0, []step{write(true, false), rename}, durabletest.Synced, oldContent},
		{"fsync tried again", 3, []step{write(true, true), rename, syncDir}, durabletest.Synced, []byte{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			disk := durabletest.NewDisk()
			disk.Put("state/f", oldContent)
			disk.FailAt(test.fault, syscall.EIO)
			for _, step := range test.steps {
				if err := step(disk); err != nil {
					t.Fatal(err)
				}
			}
			disk.Restart(test.after)
			if got := read(t, disk, "state/f"); !bytes.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestRemove(t *testing.T) {
	for _, after := range durabletest.Afters() {
		for _, fault := range []error{durabletest.ErrPowerCut, syscall.EIO} {
			for n := 1; n <= 3; n++ {
				name := fmt.Sprintf("%v/%v/call %d", after, fault, n)
				disk := durabletest.NewDisk()
				disk.Put("state/f", oldContent)
				disk.FailAt(n, fault)
				err := disk.FS().Remove("state/f")
				if (err == nil) != (n == 3) {
					t.Errorf("%s: %v", name, err)
				}
				if n == 2 && !errors.Is(err, durable.ErrUnknownOutcome) {
					t.Errorf("%s: %v, want ErrUnknownOutcome", name, err)
				}
				if fault != durabletest.ErrPowerCut && n == 2 {
					// Asked again, missing means missing for good.
					if err := disk.FS().Remove("state/f"); !errors.Is(err, fs.ErrNotExist) {
						t.Errorf("%s: again: %v", name, err)
					}
					err = nil
				}
				disk.Restart(after)
				got := read(t, disk, "state/f")
				if err == nil && got != nil {
					t.Errorf("%s: came back", name)
				}
				if got != nil && !bytes.Equal(got, oldContent) {
					t.Errorf("%s: %q", name, got)
				}
			}
		}
	}
	disk := durabletest.NewDisk()
	if err := disk.FS().Remove("no/such"); !errors.Is(err, fs.ErrNotExist) || errors.Is(err, durable.ErrUnknownOutcome) {
		t.Errorf("missing directory: %v", err)
	}
}

func TestMkdirAllPowerCut(t *testing.T) {
	for _, after := range durabletest.Afters() {
		for n, ended := 1, false; !ended; n++ {
			name := fmt.Sprintf("%v/call %d", after, n)
			disk := durabletest.NewDisk()
			disk.FailAt(n, durabletest.ErrPowerCut)
			err := disk.FS().MkdirAll("a/b/c")
			ended = !disk.Failed()
			// A killed process leaves directories that nobody synced. The next
			// MkdirAll must not take them for durable because they exist.
			disk.Restart(durabletest.Killed)
			if err != nil {
				if err := disk.FS().MkdirAll("a/b/c"); err != nil {
					t.Fatalf("%s: again: %v", name, err)
				}
			}
			if err := disk.FS().WriteFile("a/b/c/f", newContent); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			disk.Restart(after)
			if got := read(t, disk, "a/b/c/f"); !bytes.Equal(got, newContent) {
				t.Errorf("%s: got %q", name, got)
			}
		}
	}
	disk := durabletest.NewDisk()
	disk.Put("a/f", nil)
	if err := disk.FS().MkdirAll("a/f"); err == nil {
		t.Error("a file passed as a directory")
	}
	if err := disk.FS().MkdirAll("a/f/g"); err == nil {
		t.Error("a directory was made below a file")
	}
}

// A process that was killed between rename and directory sync leaves a file that
// the next one sees, and could lose after acting on it. Lock closes that gap.
func TestLockSettlesWhatItFinds(t *testing.T) {
	disk := durabletest.NewDisk()
	disk.Put("state/lock", nil)
	disk.Put("state/f", oldContent)
	disk.FailAt(6, durabletest.ErrPowerCut) // the directory sync
	if err := disk.FS().WriteFile("state/f", newContent); !errors.Is(err, durable.ErrUnknownOutcome) {
		t.Fatal(err)
	}
	disk.Restart(durabletest.Killed)
	fsys := disk.FS()
	if _, err := fsys.Lock("state/lock"); err != nil {
		t.Fatal(err)
	}
	seen := read(t, disk, "state/f")
	disk.Restart(durabletest.Synced)
	if got := read(t, disk, "state/f"); !bytes.Equal(got, seen) {
		t.Errorf("the holder of the lock saw %q, and after a power cut it is %q", seen, got)
	}
}

func TestLock(t *testing.T) {
	disk := durabletest.NewDisk()
	fsys := disk.FS()
	if err := fsys.MkdirAll("state"); err != nil {
		t.Fatal(err)
	}
	lock, err := fsys.Lock("state/lock")
	if err != nil {
		t.Fatal(err)
	}
	_, err = disk.FS().Lock("state/lock")
	var locked *durable.LockedError
	if !errors.As(err, &locked) || !errors.Is(err, durable.ErrLocked) || locked.PID == 0 || !strings.Contains(err.Error(), fmt.Sprint(locked.PID)) {
		t.Fatalf("second holder: %v", err)
	}
	lock.Close()
	second, err := disk.FS().Lock("state/lock")
	if err != nil {
		t.Fatal(err)
	}
	lock.Close() // again, which must not free the second one's
	if _, err := fsys.Lock("state/lock"); !errors.Is(err, durable.ErrLocked) {
		t.Fatalf("a second Close freed another's lock: %v", err)
	}
	second.Close()

	// If the directory cannot be synced there is no lock, held or reported.
	disk.FailAt(1, syscall.EIO)
	if _, err := fsys.Lock("state/lock"); !errors.Is(err, syscall.EIO) {
		t.Fatal(err)
	}
	if _, err := fsys.Lock("state/lock"); err != nil {
		t.Fatal(err)
	}
}

func TestLockSweeps(t *testing.T) {
	disk := durabletest.NewDisk()
	disk.Put("state/.f.tmp-0123456789abcdef", newContent)
	disk.Put("state/.keep", nil)
	disk.Put("state/.f.tmp-0123456789abcdeg", nil) // not ours
	if _, err := disk.FS().Lock("state/lock"); err != nil {
		t.Fatal(err)
	}
	left, _ := disk.List("state")
	if want := []string{".f.tmp-0123456789abcdeg", ".keep", "lock"}; !slices.Equal(left, want) {
		t.Errorf("left %q, want %q", left, want)
	}
}

func TestReadDirHidesTemporaryFiles(t *testing.T) {
	disk := durabletest.NewDisk()
	for _, name := range []string{"b", "a", ".a.tmp-0123456789abcdef"} {
		disk.Put("state/"+name, nil)
	}
	got, err := disk.FS().ReadDir("state")
	if err != nil || !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("got %q, %v", got, err)
	}
	if err := disk.FS().WriteFile("state/.a.tmp-0123456789abcdef", nil); err == nil {
		t.Error("wrote a file that ReadDir hides and the next sweep removes")
	}
}

// Two processes in one directory, without a lock: the second sweeps what the
// first is writing. The first must notice and write again.
func TestSweptByAnotherProcess(t *testing.T) {
	disk := durabletest.NewDisk()
	disk.Put("state/f", oldContent)
	sweeper := &sweepOnRename{Disk: disk}
	if err := durable.On(sweeper).WriteFile("state/f", newContent); err != nil {
		t.Fatal(err)
	}
	if !sweeper.done {
		t.Fatal("nothing was swept")
	}
	if got := read(t, disk, "state/f"); !bytes.Equal(got, newContent) {
		t.Errorf("got %q", got)
	}
}

// A sweep by the process itself leaves alone what it is writing.
func TestSweepSparesOwn(t *testing.T) {
	disk := durabletest.NewDisk()
	disk.Put("state/f", oldContent)
	locker := &lockOnRename{Disk: disk}
	locker.fsys = durable.On(locker)
	if err := locker.fsys.WriteFile("state/f", newContent); err != nil {
		t.Fatal(err)
	}
	if locker.renames != 1 {
		t.Errorf("%d renames: the first temporary file was swept", locker.renames)
	}
}

type lockOnRename struct {
	*durabletest.Disk
	fsys    durable.FS
	renames int
}

func (d *lockOnRename) Rename(from, to string) error {
	if d.renames++; d.renames == 1 {
		if _, err := d.fsys.Lock("state/lock"); err != nil {
			return err
		}
	}
	return d.Disk.Rename(from, to)
}

type sweepOnRename struct {
	*durabletest.Disk
	done bool
}

func (d *sweepOnRename) Rename(from, to string) error {
	if !d.done {
		d.done = true
		if err := d.Disk.FS().WriteFile("state/other", nil); err != nil {
			return err
		}
	}
	return d.Disk.Rename(from, to)
}

func TestConcurrentWriters(t *testing.T) {
	disk := durabletest.NewDisk()
	fsys := disk.FS()
	if err := fsys.MkdirAll("state"); err != nil {
		t.Fatal(err)
	}
	var g sync.WaitGroup
	for i := range 8 {
		g.Go(func() {
			for range 50 {
				if err := fsys.WriteFile("state/f", bytes.Repeat([]byte{byte(i)}, 100)); err != nil {
					t.Error(err)
				}
				data, err := fsys.ReadFile("state/f", 100)
				if err != nil || len(data) != 100 || bytes.Count(data, data[:1]) != 100 {
					t.Errorf("read %x, %v", data, err)
				}
			}
		})
	}
	g.Wait()
	if left, _ := disk.List("state"); !slices.Equal(left, []string{"f"}) {
		t.Errorf("left over: %q", left)
	}
}

func TestReadSecret(t *testing.T) {
	disk := durabletest.NewDisk()
	fsys := disk.FS()
	disk.Put("state/key", []byte("secret"))
	for mode, want := range map[fs.FileMode]error{0o600: nil, 0o400: nil, 0o700: nil, 0o640: durable.ErrExposed, 0o604: durable.ErrExposed, 0o620: durable.ErrExposed, 0o666: durable.ErrExposed} {
		disk.Chmod("state/key", mode)
		if data, err := fsys.ReadSecret("state/key", 10); !errors.Is(err, want) || (data == nil) != (want != nil) {
			t.Errorf("mode %04o: %q, %v", mode, data, err)
		}
	}
	if _, err := fsys.ReadFile("state/key", 5); !errors.Is(err, durable.ErrTooLarge) {
		t.Errorf("6 bytes within 5: %v", err)
	}
	if _, err := fsys.ReadFile("state/key", 6); err != nil {
		t.Errorf("6 bytes within 6: %v", err)
	}
}
