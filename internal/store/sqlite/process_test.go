//go:build unix

package sqlite_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/sqlite"
	"github.com/fealty-io/fealty/test/testlane"
)

// These tests run this test binary again as a process that can be killed or
// limited. Its task stands in these variables.
const (
	childRole = "FEALTY_SQLITE_TEST_ROLE"
	childPath = "FEALTY_SQLITE_TEST_PATH"
)

func TestMain(m *testing.M) {
	role, ok := os.LookupEnv(childRole)
	if !ok {
		os.Exit(m.Run())
	}
	if err := children[role](os.Getenv(childPath)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

var children = map[string]func(path string) error{
	"write":      childWrite,
	"serve":      childServe,
	"hold":       childHold,
	"limit":      childLimit,
	"file-limit": childFileLimit,
	"small-disk": childSmallDisk,

	"rewrite-limit": childRewriteLimit,
}

func child(t *testing.T, role, path string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childRole+"="+role, childPath+"="+path)
	cmd.Stderr = os.Stderr
	return cmd
}

// childWrite commits from many writers until it is killed, and says on standard
// output what was acknowledged: "ID revision". Each transaction puts two keys
// and deletes the ones before.
func childWrite(path string) error {
	ctx := context.Background()
	s, err := sqlite.Open(ctx, path, sqlite.Options{RetainCommits: 500})
	if err != nil {
		return err
	}
	run := store.NewTxID()
	failed := make(chan error)
	var out sync.Mutex
	for w := range 16 {
		go func() {
			for i := 0; ; i++ {
				id := fmt.Sprintf("%s/%d/%d", run, w, i)
				tx := store.Tx{ID: id, Put: []store.Write{
					{Key: "a/" + id, Value: []byte(id)},
					{Key: "b/" + id, Value: []byte(strings.Repeat(id, 1+i%40))},
				}}
				if i > 1 {
					// The one before stays until the next, as evidence.
					old := fmt.Sprintf("%s/%d/%d", run, w, i-2)
					tx.Delete = []string{"a/" + old, "b/" + old}
				}
				r, err := s.Commit(ctx, tx)
				if err != nil {
					failed <- err
					return
				}
				out.Lock()
				fmt.Println(id, r)
				out.Unlock()
			}
		}()
	}
	return <-failed
}

// TestKill kills a writing process again and again, amid group commits, and
// looks for every acknowledged transaction.
func TestKill(t *testing.T) {
	rounds, random := testlane.Rounds(3, 100), rand.New(rand.NewPCG(testlane.Seed(t), 1))
	path := filepath.Join(t.TempDir(), "store.db")
	last := store.Revision(0)
	total := 0
	for round := range rounds {
		cmd := child(t, "write", path)
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		acked := map[string]store.Revision{}
		newest := last
		killed := false
		lines := bufio.NewReader(stdout)
		for enough := 1 + random.IntN(300); ; {
			line, err := lines.ReadString('\n')
			if err == io.EOF {
				break // what was said before the kill is read, a torn line is not
			}
			if err != nil {
				t.Fatal(err)
			}
			id, revision, _ := strings.Cut(strings.TrimSpace(line), " ")
			r, err := strconv.ParseUint(revision, 10, 64)
			if err != nil {
				t.Fatalf("child says %q", line)
			}
			acked[id] = store.Revision(r)
			newest = max(newest, store.Revision(r))
			if store.Revision(r) <= last {
				t.Fatalf("round %d: revision %d was there before", round, r)
			}
			if len(acked) >= enough && !killed {
				killed = true
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		cmd.Wait() // its error is the kill
		total += len(acked)
		if !killed {
			t.Fatalf("round %d: the child ended by itself", round)
		}

		s, err := sqlite.Open(t.Context(), path, sqlite.Options{RetainCommits: 500})
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		l, err := s.List(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		if l.Revision < newest {
			t.Fatalf("round %d: at revision %d, %d was acknowledged", round, l.Revision, newest)
		}
		have := map[string]store.Entry{}
		for _, e := range l.Entries {
			have[e.Key] = e
		}
		// The two keys of a transaction live and die together.
		for key, e := range have {
			id := key[2:]
			if a, b := have["a/"+id], have["b/"+id]; a.Version != b.Version || string(a.Value) != id {
				t.Fatalf("round %d: half of transaction %s: %d and %d", round, id, a.Version, b.Version)
			}
			if want, ok := acked[id]; ok && e.Version != want {
				t.Fatalf("round %d: %s is at %d, acknowledged at %d", round, key, e.Version, want)
			}
		}
		for id, r := range acked {
			// Outcomes are kept for 500 commits at least; within them, each is known.
			if l.Revision-r >= 500 {
				continue
			}
			if got, err := s.Outcome(t.Context(), id); err != nil || got != r {
				t.Fatalf("round %d: Outcome(%s) = %d, %v; acknowledged at %d", round, id, got, err, r)
			}
			// Its keys are there, unless the next but one of its writer took them.
			i := strings.LastIndexByte(id, '/') + 1
			n, _ := strconv.Atoi(id[i:])
			next := fmt.Sprintf("%s%d", id[:i], n+2)
			if _, there := have["a/"+id]; there {
				continue
			}
			if _, err := s.Outcome(t.Context(), next); err != nil {
				t.Fatalf("round %d: %s was acknowledged and is gone, but %s never happened: %v", round, id, next, err)
			}
		}
		if l, err = s.List(t.Context(), "zzz"); err != nil {
			t.Fatal(err)
		}
		last = l.Revision // asking voided some IDs
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		db := raw(t, path)
		var verdict string
		if err := db.QueryRow("pragma integrity_check").Scan(&verdict); err != nil || verdict != "ok" {
			t.Fatalf("round %d: integrity check: %s, %v", round, verdict, err)
		}
		db.Close()
	}
	t.Logf("%d kills, %d acknowledged transactions", rounds, total)
}

// childHold opens the database, says so, and holds it until it is killed.
func childHold(path string) error {
	s, err := sqlite.Open(context.Background(), path, sqlite.Options{})
	if err != nil {
		return err
	}
	if _, err := s.Commit(context.Background(), put("held", "yes")); err != nil {
		return err
	}
	fmt.Println("holding")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

func TestSecondProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	cmd := child(t, "hold", path)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "holding\n" {
		t.Fatalf("child says %q, %v", line, err)
	}
	_, err = sqlite.Open(t.Context(), path, sqlite.Options{})
	locked, ok := errors.AsType[*sqlite.LockedError](err)
	if !ok || locked.PID != cmd.Process.Pid || locked.Path != path {
		t.Fatalf("Open = %v, want a LockedError that names process %d", err, cmd.Process.Pid)
	}
	if text := err.Error(); !strings.Contains(text, strconv.Itoa(cmd.Process.Pid)) || !strings.Contains(text, "stop it") {
		t.Fatalf("message %q names neither process nor remedy", text)
	}
	// However the holder ends, its lock ends with it.
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	s := openAt(t, path, sqlite.Options{})
	if e, err := s.Get(t.Context(), "held"); err != nil || string(e.Value) != "yes" {
		t.Fatalf("Get = %+v, %v", e, err)
	}
}

// childLimit meets a disk that fails its writes with an I/O error: beyond the
// process's file size limit, write(2) fails with EFBIG.
func childLimit(path string) error {
	signal.Ignore(syscall.SIGXFSZ)
	ctx := context.Background()
	s, err := sqlite.Open(ctx, path, sqlite.Options{})
	if err != nil {
		return err
	}
	defer s.Close()
	before, err := s.Commit(ctx, put("before", "x"))
	if err != nil {
		return err
	}
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		return err
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 256 << 10, Max: limit.Max}); err != nil {
		return err
	}
	big := store.Tx{ID: "big", Put: []store.Write{{Key: "big", Value: make([]byte, 1<<20)}}}
	for range 3 {
		_, failed := s.Commit(ctx, big)
		if failed == nil {
			return errors.New("the commit went through")
		}
		fmt.Println(failed)
		if !errors.Is(failed, store.ErrUnknownOutcome) || store.ReasonOf(failed) != store.DiskFailed {
			return errors.New("an I/O error in a commit leaves its outcome unknown, and is told as one of the disk")
		}
		if _, err := s.Get(ctx, "big"); !errors.Is(err, store.ErrNotFound) {
			return fmt.Errorf("after a failed commit: %v, want ErrNotFound", err)
		}
		l, err := s.List(ctx, "")
		if err != nil || l.Revision != before {
			return fmt.Errorf("after a failed commit: revision %d, %v, want %d", l.Revision, err, before)
		}
	}
	// A write that still fits works at once, and one that did not works once there is room.
	small, err := s.Commit(ctx, put("small", "x"))
	if err != nil {
		return fmt.Errorf("small commit on a disk that fails large ones: %w", err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		return err
	}
	r, err := s.Commit(ctx, big)
	if err != nil || r <= small {
		return fmt.Errorf("commit with room again: %d, %v", r, err)
	}
	if got, err := s.Outcome(ctx, "big"); err != nil || got != r {
		return fmt.Errorf("Outcome = %d, %v, want %d", got, err, r)
	}
	fmt.Println("done")
	return nil
}

func TestDiskError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	cmd := child(t, "limit", path)
	out, err := cmd.Output()
	t.Logf("child:\n%s", out)
	if err != nil || !strings.HasSuffix(string(out), "done\n") {
		t.Fatalf("child: %v", err)
	}
	s := openAt(t, path, sqlite.Options{})
	l, err := s.List(t.Context(), "")
	if err != nil || len(l.Entries) != 3 {
		t.Fatalf("%d entries, %v", len(l.Entries), err)
	}
}
