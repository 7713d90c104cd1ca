package mesh_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/mesh"
)

// counted counts how often a source is asked.
type counted struct {
	credential.Source
	asked atomic.Int64
}

func (c *counted) Current(ctx context.Context) (*credential.Material, error) {
	c.asked.Add(1)
	return c.Source.Current(ctx)
}

// Many calls ask their sources a few times, at either end, and each change that a source tells of is
// used by the next call all the same: a ban at the server too.
func TestCallsAskTheirSourcesNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := pkitest.NewAuthority(t, cluster)
		me := material(t, a, identity.Data, "n1")
		issued, mine := credential.NewIssued(material(t, a, identity.Coordinator, "c1")), credential.NewIssued(me)
		server, client := &counted{Source: issued}, &counted{Source: mine}
		ln, opts := inMemory()
		s := serve(t, ln, mesh.GuardConfig{Source: server})
		c := dial(t, "passthrough:///c1", client, credential.AnyOfKind(identity.Coordinator), opts)
		call := func() {
			t.Helper()
			if _, err := who(t, c); err != nil {
				t.Fatal(err)
			}
		}
		call()
		synctest.Wait()
		before := [2]int64{server.asked.Load(), client.asked.Load()}
		for range 100 { // at one moment
			call()
		}
		if n := [2]int64{server.asked.Load() - before[0], client.asked.Load() - before[1]}; n[0] > 1 || n[1] > 1 {
			t.Errorf("for 100 calls at a moment the sources were asked %v times", n)
		}
		time.Sleep(6 * time.Millisecond) // in virtual time
		before = [2]int64{server.asked.Load(), client.asked.Load()}
		call()
		if server.asked.Load() == before[0] || client.asked.Load() == before[1] {
			t.Error("a source that notices changes when it is asked was not asked again")
		}
		next := material(t, a, identity.Data, "n1")
		if err := mine.Adopt(next); err != nil {
			t.Fatal(err)
		}
		if call(); s.last().Key != next.Pin() {
			t.Error("the call after a change runs on the material of before")
		}
		if err := issued.Trust(banning(a, me.ID())); err != nil {
			t.Fatal(err)
		}
		if _, err := who(t, c); err == nil {
			t.Error("the call after a ban was served")
		}
	})
}
