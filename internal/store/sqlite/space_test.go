//go:build unix

package sqlite_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/sqlite"
)

// scattered is a change as a coordinator makes them: little data under several keys,
// which lie on as many pages of the database.
func scattered(i int) store.Tx {
	tx := store.Tx{ID: store.NewTxID()}
	for k := range 8 {
		sum := sha256.Sum256(fmt.Append(nil, (i*8+k)%2000))
		tx.Put = append(tx.Put, store.Write{Key: fmt.Sprintf("scattered/%x", sum[:8]), Value: fmt.Appendf(nil, "%d %x", i, sum)})
	}
	return tx
}

// spaceOptions keep few changes, so that the data does not grow for ever.
var spaceOptions = sqlite.Options{RetainCommits: 64}

// fileSize returns the length of a file; 0 if it is not there.
func fileSize(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// childFileLimit makes changes on a disk that takes no file above 8 MiB.
func childFileLimit(path string) error {
	const limit, changes = 8 << 20, 800
	signal.Ignore(syscall.SIGXFSZ)
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: limit, Max: limit}); err != nil {
		return err
	}
	s, err := sqlite.Open(context.Background(), path, spaceOptions)
	if err != nil {
		return err
	}
	defer s.Close()
	longest := int64(0)
	for i := range changes {
		if _, err := s.Commit(context.Background(), scattered(i)); err != nil {
			return fmt.Errorf("change %d of %d, with a log of %d KiB beside %d KiB: %w", i, changes, fileSize(path+"-wal")>>10, fileSize(path)>>10, err)
		}
		longest = max(longest, fileSize(path+"-wal"))
	}
	fmt.Printf("%d changes, longest log %d KiB, data %d KiB\n", changes, longest>>10, fileSize(path)>>10)
	if longest > limit*3/4 {
		return fmt.Errorf("the log grew to %d bytes", longest)
	}
	return nil
}

// The log is copied by its own length: many small changes do not make a long one.
func TestLogFitsSmallFiles(t *testing.T) {
	t.Parallel()
	out, err := child(t, "file-limit", filepath.Join(t.TempDir(), "store.db")).Output()
	t.Logf("child:\n%s", out)
	if err != nil {
		t.Fatalf("child: %v", err)
	}
}

// The copy in the background may be as late as a disk is slow. The writer waits
// then, so that the log stays within its bound all the same.
func TestLogIsBoundedOnASlowDisk(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "store.db")
	s, err := sqlite.OpenWithoutCheckpointer(t.Context(), path, spaceOptions)
	must(t, err)
	t.Cleanup(func() { s.Close() })
	for i := range 400 {
		mustCommit(t, s, scattered(i))
		// 1,280 pages and what one change writes.
		if size := fileSize(path + "-wal"); size > 5632<<10 {
			t.Fatalf("after %d changes the log has %d KiB", i+1, size>>10)
		}
	}
}

// childSmallDisk uses a disk of 24 MiB up, in a mount namespace of its own.
func childSmallDisk(path string) error {
	ctx, dir := context.Background(), filepath.Dir(path)
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", dir).CombinedOutput(); err != nil {
		fmt.Printf("no disk: %s: %v\n", out, err)
		return nil
	}
	s, err := sqlite.Open(ctx, path, spaceOptions)
	if err != nil {
		return err
	}
	acked := map[string]string{}
	commit := func(tx store.Tx) error {
		_, err := s.Commit(ctx, tx)
		if err != nil {
			return err
		}
		for _, w := range tx.Put {
			acked[w.Key] = string(w.Value)
		}
		for _, key := range tx.Delete {
			delete(acked, key)
		}
		return nil
	}
	check := func(when string) error {
		l, err := s.List(ctx, "")
		if err != nil {
			return fmt.Errorf("%s: %w", when, err)
		}
		if len(l.Entries) != len(acked) {
			return fmt.Errorf("%s: %d entries, %d were acknowledged", when, len(l.Entries), len(acked))
		}
		for _, e := range l.Entries {
			if acked[e.Key] != string(e.Value) {
				return fmt.Errorf("%s: %s is not what was acknowledged", when, e.Key)
			}
		}
		return nil
	}
	changes := func(when string, n int) error {
		for i := range n {
			if err := commit(scattered(i)); err != nil {
				return fmt.Errorf("%s: change %d of %d, with a log of %d KiB beside %d KiB: %w", when, i, n, fileSize(path+"-wal")>>10, fileSize(path)>>10, err)
			}
		}
		return check(when)
	}
	full := func(when string, fill func(i int) store.Tx) (int, error) {
		for i := 0; ; i++ {
			err := commit(fill(i))
			switch {
			case err == nil && i < 100_000:
				continue
			case !errors.Is(err, store.ErrFull) || errors.Is(err, store.ErrUnknownOutcome):
				return i, fmt.Errorf("%s: write %d: %v, want that it is full", when, i, err)
			}
			fmt.Printf("%s: full after %d writes, with a log of %d KiB beside %d KiB\n", when, i, fileSize(path+"-wal")>>10, fileSize(path)>>10)
			return i, check(when)
		}
	}
	const perWrite = 16
	data := func(i int) store.Tx {
		tx := store.Tx{}
		for k := range perWrite {
			sum := sha256.Sum256(fmt.Append(nil, i, k))
			tx.Put = append(tx.Put, store.Write{Key: fmt.Sprintf("data/%08d/%d", i, k), Value: []byte(strings.Repeat(fmt.Sprintf("%x", sum), 64))})
		}
		return tx
	}

	if err := changes("at first", 700); err != nil {
		return err
	}
	n, err := full("with data", data)
	if err != nil {
		return err
	}
	if mib := n * perWrite * 4096 >> 20; mib < 8 {
		return fmt.Errorf("%d MiB of data fill 24 MiB", mib)
	}
	// A write that makes room can be made, and then there is some.
	for i := range n {
		tx := store.Tx{}
		for _, w := range data(i).Put {
			tx.Delete = append(tx.Delete, w.Key)
		}
		if err := commit(tx); err != nil {
			return fmt.Errorf("to make room: %w", err)
		}
	}
	if err := changes("with room made", 100); err != nil {
		return err
	}
	// A process that begins on a full disk reads it, and goes on once it can.
	if _, err := full("with data again", data); err != nil {
		return err
	}
	if err := s.Close(); err != nil {
		return err
	}
	if s, err = sqlite.Open(ctx, path, spaceOptions); err != nil {
		return fmt.Errorf("on a full disk: %w", err)
	}
	if err := check("opened on a full disk"); err != nil {
		return err
	}
	if err := commit(store.Tx{Delete: []string{data(0).Put[0].Key}}); err != nil {
		return fmt.Errorf("to make room on a disk that was full when it was opened: %w", err)
	}
	fmt.Println("done")
	return s.Close()
}

// TestSmallDisk runs on a real disk of 24 MiB, where the system lets a user make one.
func TestSmallDisk(t *testing.T) {
	t.Parallel()
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		t.Skip("no unshare(1) to mount a disk with")
	}
	cmd := child(t, "small-disk", filepath.Join(t.TempDir(), "store.db"))
	cmd.Path, cmd.Args = unshare, []string{unshare, "--user", "--map-root-user", "--mount", os.Args[0]}
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	t.Logf("child:\n%s%s", out, said.String())
	switch text := string(out); {
	case strings.HasPrefix(text, "no disk:"), strings.HasPrefix(said.String(), "unshare:"):
		t.Skip("this system lets no user mount a disk")
	case err != nil || !strings.HasSuffix(text, "done\n"):
		t.Fatalf("child: %v", err)
	}
}

// leaveLongLog leaves a log of some MiB, which a reader kept from being copied, and returns a
// function that ends the reader.
func leaveLongLog(t *testing.T, s *sqlite.Store, path string) (release func()) {
	t.Helper()
	mustCommit(t, s, put("before", "x"))
	tx, err := raw(t, path).Begin()
	must(t, err)
	var n int
	must(t, tx.QueryRow("select count(*) from entries").Scan(&n))
	for i := range 400 {
		mustCommit(t, s, scattered(i))
	}
	if size := fileSize(path + "-wal"); size < 8<<20 {
		t.Fatalf("the log has %d bytes", size)
	}
	return func() { must(t, tx.Rollback()) }
}

// A log that had to grow gives its space back as soon as it can be copied.
func TestLogShrinks(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "store.db")
	s := openAt(t, path, sqlite.Options{})
	release := leaveLongLog(t, s, path)
	release()
	for i := 0; fileSize(path+"-wal") > 3<<20; i++ {
		if i == 400 {
			t.Fatalf("after %d changes the log still has %d bytes", i, fileSize(path+"-wal"))
		}
		mustCommit(t, s, scattered(i))
	}
}

// A log that a process left behind is copied by the next one that opens the store.
func TestLogIsCopiedAtOpen(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "store.db")
	s := openAt(t, path, sqlite.Options{})
	release := leaveLongLog(t, s, path)
	image := filepath.Join(t.TempDir(), "image.db")
	crashImage(t, path, image)
	want, err := s.List(t.Context(), "")
	must(t, err)
	release()
	s = openAt(t, image, sqlite.Options{})
	if size := fileSize(image + "-wal"); size != 0 {
		t.Errorf("the log still has %d bytes", size)
	}
	got, err := s.List(t.Context(), "")
	if err != nil || got.Revision != want.Revision || len(got.Entries) != len(want.Entries) {
		t.Errorf("%d entries at %d, %v; want %d at %d", len(got.Entries), got.Revision, err, len(want.Entries), want.Revision)
	}
}
