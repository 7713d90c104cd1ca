package mesh_test

import (
	"context"
	"fmt"
	"io"
	"testing"
	"testing/synctest"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/mesh"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"pgregory.net/rapid"
)

// However calls, streams and rotations follow one another: each call starts on
// the newest material, a stream stays on what it started with, and what stands
// in the end is one connection for each material that is in use.
func TestConnFollowsItsSource(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		// Drawn beforehand: rapid ends a failing run by a panic, which must not happen
		// on the bubble's goroutine.
		steps := rapid.SliceOfN(rapid.SampledFrom([]string{"rotate", "call", "open", "end first", "end last", "echo"}), 1, 12).Draw(rt, "steps")
		var failed error
		synctest.Test(t, func(t *testing.T) { failed = follow(t, steps) })
		if failed != nil {
			rt.Fatal(failed)
		}
	})
}

func follow(t *testing.T, steps []string) error {
	a := pkitest.NewAuthority(t, cluster)
	ln, opts := inMemory()
	s := serve(t, ln, mesh.GuardConfig{Source: credential.Static(material(t, a, identity.Coordinator, "c1"))})
	newest := material(t, a, identity.Data, "n1")
	src := credential.NewIssued(newest)
	c := dial(t, "passthrough:///c1", src, credential.AnyOfKind(identity.Coordinator), opts)

	type stream struct {
		st  grpc.ClientStream
		key identity.KeyID
	}
	var open []stream
	connected := map[identity.KeyID]bool{} // materials that a call ran on
	ran := func() error {
		if key := s.last().Key; key != newest.Pin() {
			return fmt.Errorf("a call ran on %s, the newest is %s", key, newest.Pin())
		}
		connected[newest.Pin()] = true
		return nil
	}
	end := func(i int) error {
		st := open[i].st
		open = append(open[:i:i], open[i+1:]...)
		if err := st.CloseSend(); err != nil {
			return err
		}
		if err := st.RecvMsg(&wrapperspb.BytesValue{}); err != io.EOF {
			return fmt.Errorf("a stream ended with %v", err)
		}
		return nil
	}
	step := func(name string) error {
		switch name {
		case "rotate":
			newest = material(t, a, identity.Data, "n1")
			return src.Adopt(newest)
		case "call":
			if err := c.Invoke(context.Background(), whoMethod, wrapperspb.Bytes(nil), &wrapperspb.BytesValue{}); err != nil {
				return err
			}
			return ran()
		case "open":
			st, _, err := talk(t, c, talkMethod)
			if err != nil {
				return err
			}
			open = append(open, stream{st, newest.Pin()})
			return ran()
		case "end first":
			if len(open) > 0 {
				return end(0)
			}
		case "end last":
			if len(open) > 0 {
				return end(len(open) - 1)
			}
		case "echo":
			for _, o := range open {
				if err := echo(o.st, "x"); err != nil {
					return fmt.Errorf("an open stream: %w", err)
				}
			}
		}
		return nil
	}
	for i, name := range steps {
		if err := step(name); err != nil {
			return fmt.Errorf("step %d, %s: %w", i, name, err)
		}
		synctest.Wait()
		inUse := map[identity.KeyID]bool{}
		if connected[newest.Pin()] {
			inUse[newest.Pin()] = true
		}
		for _, o := range open {
			inUse[o.key] = true
		}
		if n := s.guard.Live(); n != len(inUse) {
			return fmt.Errorf("step %d, %s: %d connections stand, %d materials are in use", i, name, n, len(inUse))
		}
		if n := c.Running(); n != len(open) {
			return fmt.Errorf("step %d, %s: %d calls are counted, %d run", i, name, n, len(open))
		}
		for _, o := range open {
			info, ok := mesh.FromContext(o.st.Context())
			if !ok {
				return fmt.Errorf("step %d: a stream has no connection", i)
			}
			select {
			case <-info.Superseded():
				if o.key == newest.Pin() {
					return fmt.Errorf("step %d: told to move from the newest", i)
				}
			default:
				if o.key != newest.Pin() {
					return fmt.Errorf("step %d: not told to move", i)
				}
			}
		}
	}
	return nil
}
