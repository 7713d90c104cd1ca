//go:build unix

package sqlite_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/sqlite"
	"github.com/fealty-io/fealty/internal/store/storetest"
	"github.com/fealty-io/fealty/test/testlane"
)

// A call goes to the process that has the database as one line, and its answer comes
// back as another.
type (
	call struct {
		ID   int
		Name string // get, list, commit, outcome
		Key  string // or prefix, or transaction
		Tx   store.Tx
	}
	callAnswer struct {
		ID       int
		Entry    store.Entry
		Listing  store.Listing
		Revision store.Revision
		Conflict *store.ConflictError
		Failure  string // name of one of failures
		Text     string // of any other error
	}
)

var failures = map[string]error{"not found": store.ErrNotFound, "unknown": store.ErrUnknownOutcome, "voided": store.ErrVoided, "deadline": context.DeadlineExceeded}

// childServe answers calls, all at once, until it is killed.
func childServe(path string) error {
	s, err := sqlite.Open(context.Background(), path, sqlite.Options{})
	if err != nil {
		return err
	}
	in, out, mu := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout), sync.Mutex{}
	for {
		var c call
		if err := in.Decode(&c); err != nil {
			return err
		}
		go func() {
			a := serveCall(s, c)
			mu.Lock()
			defer mu.Unlock()
			_ = out.Encode(a) // nobody is left to hear it
		}()
	}
}

func serveCall(s store.Store, c call) callAnswer {
	ctx, a := context.Background(), callAnswer{ID: c.ID}
	var err error
	switch c.Name {
	case "get":
		a.Entry, err = s.Get(ctx, c.Key)
	case "list":
		a.Listing, err = s.List(ctx, c.Key)
	case "commit":
		a.Revision, err = s.Commit(ctx, c.Tx)
	case "outcome":
		a.Revision, err = s.Outcome(ctx, c.Key)
	}
	if errors.As(err, &a.Conflict) || err == nil {
		return a
	}
	for name, known := range failures {
		if errors.Is(err, known) {
			a.Failure = name
		}
	}
	a.Text = err.Error()
	return a
}

// errGone says that the process which has the database is not there: nothing was asked.
var errGone = errors.New("no process has the database")

// served is a database in a process of its own, which can be killed and started again.
type served struct {
	t    testing.TB
	path string

	mu      sync.Mutex
	cmd     *exec.Cmd               // guarded by mu
	in      io.WriteCloser          // nil: no process runs; guarded by mu
	waiting map[int]chan callAnswer // guarded by mu
	last    int                     // ID of a call; guarded by mu
	ended   chan struct{}           // closed when all answers of the process were read
}

func (d *served) start() error {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childRole+"=serve", childPath+"="+d.path)
	cmd.Stderr = d.t.Output()
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cmd, d.in, d.waiting, d.ended = cmd, in, map[int]chan callAnswer{}, make(chan struct{})
	go d.read(out, d.ended)
	return nil
}

// read passes answers on; calls that have none when they end get none.
func (d *served) read(out io.Reader, ended chan struct{}) {
	defer close(ended)
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			break // a torn line is no answer
		}
		var a callAnswer
		if err := json.Unmarshal(line, &a); err != nil {
			d.t.Errorf("the process answers %q", line)
			break
		}
		d.mu.Lock()
		d.waiting[a.ID] <- a
		delete(d.waiting, a.ID)
		d.mu.Unlock()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, w := range d.waiting {
		close(w)
		delete(d.waiting, id)
	}
	d.in = nil
}

// kill ends the process as it is, and waits until it is gone.
func (d *served) kill() error {
	d.mu.Lock()
	cmd, ended := d.cmd, d.ended
	d.mu.Unlock()
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-ended
	cmd.Wait() // its error is the kill
	return nil
}

// ask makes a call, and returns its answer. Of one that has none nobody knows whether it
// was done.
func (d *served) ask(ctx context.Context, c call) (callAnswer, error) {
	answer := make(chan callAnswer, 1)
	d.mu.Lock()
	if d.in == nil {
		d.mu.Unlock()
		return callAnswer{}, errGone
	}
	d.last++
	c.ID = d.last
	line, err := json.Marshal(c)
	if err == nil {
		d.waiting[c.ID] = answer
		_, _ = d.in.Write(append(line, '\n')) // who is gone answers nothing
	}
	d.mu.Unlock()
	if err != nil {
		return callAnswer{}, err
	}
	select {
	case a, ok := <-answer:
		if !ok {
			return a, fmt.Errorf("the process was killed: %w", store.ErrUnknownOutcome)
		}
		if a.Conflict != nil {
			return a, a.Conflict
		}
		if known := failures[a.Failure]; known != nil {
			return a, fmt.Errorf("%s: %w", a.Text, known)
		}
		if a.Text != "" {
			return a, errors.New(a.Text)
		}
		return a, nil
	case <-ctx.Done():
		return callAnswer{}, fmt.Errorf("%w: %w", store.ErrUnknownOutcome, ctx.Err())
	}
}

// remote is a handle of a database that is served. It watches nothing.
type remote struct {
	store.Store
	d *served
}

func (r remote) Get(ctx context.Context, key string) (store.Entry, error) {
	a, err := r.read(ctx, call{Name: "get", Key: key})
	return a.Entry, err
}

func (r remote) List(ctx context.Context, prefix string) (store.Listing, error) {
	a, err := r.read(ctx, call{Name: "list", Key: prefix})
	return a.Listing, err
}

func (r remote) Outcome(ctx context.Context, id string) (store.Revision, error) {
	a, err := r.read(ctx, call{Name: "outcome", Key: id})
	return a.Revision, err
}

// read is ask of what may be asked again: no answer says nothing.
func (r remote) read(ctx context.Context, c call) (callAnswer, error) {
	a, err := r.d.ask(ctx, c)
	if errors.Is(err, store.ErrUnknownOutcome) {
		return a, errGone
	}
	return a, err
}

func (r remote) Commit(ctx context.Context, tx store.Tx) (store.Revision, error) {
	a, err := r.d.ask(ctx, call{Name: "commit", Tx: tx})
	return a.Revision, err
}

func (r remote) Close() error { return nil }

// TestLinearizableWhileKilled records random calls while the process that has the
// database is killed and started again and again, amid group commits.
func TestLinearizableWhileKilled(t *testing.T) {
	testlane.Nightly(t)
	d := &served{t: t, path: filepath.Join(t.TempDir(), "store.db")}
	if err := d.start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.kill(); err != nil {
			t.Error(err)
		}
	})
	storetest.LinearizableWhileBroken(t, func(testing.TB) store.Store { return remote{d: d} }, func(int) error {
		return errors.Join(d.kill(), d.start())
	})
}
