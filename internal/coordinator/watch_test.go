package coordinator_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/platform/watch"
	"github.com/fealty-io/fealty/internal/store"
)

// A watch that ended with the connection goes on when the store is back, and tells what
// changed meanwhile: who depends on it does not wait for its next poll for ever after.
func TestWatchResumes(t *testing.T) {
	t.Parallel()
	f := coordinatortest.NewFleet(t, nil)
	const key = "watched/key"
	changed, stop := watch.Key(t.Context(), f.C.Store(), key)
	defer stop()
	told := func(what string) {
		t.Helper()
		select {
		case <-changed:
		case <-time.After(time.Minute):
			t.Fatalf("nothing is told of %s", what)
		}
	}
	told("the key as it is at first")
	version := store.Revision(0)
	write := func(value string) {
		t.Helper()
		var err error
		if version, err = f.Store.CompareAndSwap(t.Context(), key, version, []byte(value)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 3 {
		write(fmt.Sprint("with a connection ", i))
		told("a change")
		f.Link.Cut(errors.New("the connection is gone"))
		write(fmt.Sprint("without one ", i))
		f.Link.Cut(nil)
		told("the change while there was no connection")
	}
}
