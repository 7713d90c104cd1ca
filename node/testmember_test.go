package node_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"testing"

	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/snapshot"
	"github.com/fealty-io/fealty/test/wait"
)

// exampleTB lets an example, which has no testing.TB, have a real coordinator and real agents.
type exampleTB struct {
	testing.TB
	ends []func()
}

func (*exampleTB) Helper()                   {}
func (*exampleTB) Fatal(args ...any)         { panic(fmt.Sprint(args...)) }
func (*exampleTB) Fatalf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }
func (*exampleTB) Error(args ...any)         { panic(fmt.Sprint(args...)) }
func (*exampleTB) Errorf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }
func (*exampleTB) Output() io.Writer         { return io.Discard }
func (*exampleTB) Context() context.Context  { return context.Background() }
func (tb *exampleTB) Cleanup(f func())       { tb.ends = append(tb.ends, f) }
func (tb *exampleTB) TempDir() string {
	dir, err := os.MkdirTemp("", "node")
	if err != nil {
		panic(err)
	}
	tb.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// exampleMembers are the folders of agents that run, each with its config, until end is called.
func exampleMembers(names ...string) (folders []string, end func()) {
	tb := new(exampleTB)
	f := coordinatortest.ReadyFleet(tb, nil)
	for _, name := range names {
		m := join(tb, f, name)
		wait.Until(tb, "there is config", func() bool {
			_, err := m.Snapshot(tb.Context(), snapshot.ScopeNodeRuntime)
			return err == nil
		})
		folders = append(folders, m.Dir)
	}
	return folders, func() {
		for _, end := range slices.Backward(tb.ends) {
			end()
		}
	}
}
