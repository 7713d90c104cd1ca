package durable_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
)

func parts(all ...string) func(io.Writer) error {
	return func(w io.Writer) error {
		for _, part := range all {
			if _, err := io.WriteString(w, part); err != nil {
				return err
			}
		}
		return nil
	}
}

// A log is replaced as a whole, and grows: at each step that fails, and however the disk
// comes back, there is the old content or the new one with all that was synced.
func TestWriteLogCrash(t *testing.T) {
	for _, fault := range []error{durabletest.ErrPowerCut, syscall.EIO, syscall.ENOSPC} {
		for _, after := range durabletest.Afters() {
			for n := 1; ; n++ {
				name := fmt.Sprintf("%v/%v/call %d", fault, after, n)
				disk := durabletest.NewDisk()
				disk.Put("state/f", oldContent)
				disk.FailAt(n, fault)
				synced, whole := oldContent, "new log, second more"
				f, err := disk.FS().WriteLog("state/f", parts("new log", ", second"))
				unknown := errors.Is(err, durable.ErrUnknownOutcome)
				if err == nil {
					synced = []byte("new log, second")
					if _, err = io.WriteString(f, " more"); err == nil {
						err = f.Sync()
					}
					if err == nil {
						synced = []byte(whole)
						if err := f.Close(); err != nil && !disk.Failed() {
							t.Fatal(err)
						}
					}
				}
				if !disk.Failed() {
					if err != nil {
						t.Fatalf("%s: %v", name, err)
					}
					break
				}
				if len(synced) < len(whole) && !errors.Is(err, fault) {
					t.Errorf("%s: nobody was told: %v", name, err)
				}
				if left, _ := disk.List("state"); fault != durabletest.ErrPowerCut && !slices.Equal(left, []string{"f"}) {
					t.Errorf("%s: left over: %q", name, left)
				}
				disk.Restart(after)
				is := read(t, disk, "state/f")
				if !bytes.HasPrefix(is, synced) && (!unknown && fault != durabletest.ErrPowerCut || string(is) != "new log, second") ||
					bytes.HasPrefix(is, []byte("new")) && !bytes.HasPrefix([]byte(whole), is) {
					t.Errorf("%s: %q, want %q and perhaps more", name, is, synced)
				}
				// It is read as it is.
				log, err := disk.FS().OpenLog("state/f")
				if err != nil {
					t.Fatal(err)
				}
				if data, err := io.ReadAll(log); err != nil || !bytes.Equal(data, is) {
					t.Errorf("%s: read %q, %v", name, data, err)
				}
			}
		}
	}
}

// The synced bytes of a file that grows survive, and of the rest those that the test says.
func TestDiskKeepsWhatWasSynced(t *testing.T) {
	for _, test := range []struct {
		name  string
		left  func(string, []byte) []byte
		names bool
		want  string
	}{
		{"nothing more", func(string, []byte) []byte { return nil }, false, "synced"},
		{"three bytes", func(_ string, unsynced []byte) []byte { return unsynced[:3] }, false, "syncedlos"},
		{"zeros", func(_ string, unsynced []byte) []byte { return make([]byte, len(unsynced)) }, true, "synced\x00\x00\x00\x00"},
	} {
		disk := durabletest.NewDisk()
		disk.Put("state/g", nil)
		f, err := disk.FS().WriteLog("state/f", parts("synced"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(f, "lost"); err != nil {
			t.Fatal(err)
		}
		disk.RestartWith(test.names, func(name string, unsynced []byte) []byte {
			if name != "/state/f" || string(unsynced) != "lost" {
				t.Errorf("%s: asked about %q of %s", test.name, unsynced, name)
			}
			return test.left(name, unsynced)
		})
		if got := read(t, disk, "state/f"); string(got) != test.want {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
		if _, err := io.WriteString(f, "more"); err == nil {
			t.Errorf("%s: a file of a process that ended takes bytes", test.name)
		}
	}
	// A sync that failed has lost bytes that no later one brings.
	disk := durabletest.NewDisk()
	disk.Put("state/g", nil)
	f, err := disk.FS().WriteLog("state/f", parts("synced"))
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(f, "lost")
	disk.FailAt(1, syscall.EIO)
	if err := f.Sync(); !errors.Is(err, syscall.EIO) {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	disk.Restart(durabletest.Synced)
	if got := read(t, disk, "state/f"); string(got) != "synced" {
		t.Errorf("after a sync that was tried again: %q", got)
	}
}

func TestWriteLog(t *testing.T) {
	fsys, dir := durable.OS(), t.TempDir()
	name := filepath.Join(dir, "log")
	failed := errors.New("failed")
	if f, err := fsys.WriteLog(name, func(io.Writer) error { return failed }); f != nil || !errors.Is(err, failed) {
		t.Errorf("%v, %v", f, err)
	}
	if f, err := fsys.OpenLog(dir); !errors.Is(err, durable.ErrNotRegular) {
		t.Errorf("a folder: %v, %v", f, err)
	}
	f, err := fsys.WriteLog(name, parts("a", "b"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.WriteString(f, "c")
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
	log, err := fsys.OpenLog(name)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if data, err := io.ReadAll(log); err != nil || string(data) != "abc" {
		t.Errorf("%q, %v", data, err)
	}
	if names, err := fsys.ReadDir(dir); err != nil || !slices.Equal(names, []string{"log"}) {
		t.Errorf("%q, %v", names, err)
	}
}
