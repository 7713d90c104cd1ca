package agent_test

import (
	"errors"
	"io/fs"
	"testing"

	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/nodetest"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/snapshot"
)

// A reader of a node's folder from outside sees what its agent believes, while that
// runs, and changes nothing.
func TestReadTrustView(t *testing.T) {
	f := nodetest.New(t)
	n := newNode(f)
	if _, err := state.ReadTrustView(n.Disk.FS(), n.Dir, f.Clock()); !errors.Is(err, errcode.NodeNotJoined) {
		t.Errorf("without a node: %v", err)
	}
	n = joinedNode(f)
	a := n.mustOpen()
	defer a.Close()
	before := make(map[string][]byte)
	for _, name := range nodetest.Files {
		before[name] = n.Read(name)
	}
	n.Disk.FailAt(1, errors.New("a reader wrote"))
	o, err := state.ReadTrustView(n.Disk.FS(), n.Dir, f.Clock())
	if err != nil || o.Lost || o.Trust.Me != a.Node().Self().ID || o.Trust.Bundle == nil ||
		len(o.Marks.All()) != len(a.Node().TrustState().Marks.All()) {
		t.Fatalf("trust view %+v, %v", o, err)
	}
	raw, err := state.ReadActive(n.Disk.FS(), n.Dir, snapshot.ScopeTrustBundle)
	if err != nil || string(raw) != string(before[dir.SnapshotName(snapshot.ScopeTrustBundle, dir.Active)]) {
		t.Errorf("the trust bundle in use was not read: %v", err)
	}
	if _, err := state.ReadActive(n.Disk.FS(), n.Dir, snapshot.ScopeRoutePolicy); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a scope that is not held: %v", err)
	}
	if n.Disk.Failed() {
		t.Error("the disk was written")
	}

	// A node that lost its marks takes nothing as new.
	n = n.clone()
	n.Disk.Put(n.Path(dir.MarksAName), []byte("x"))
	n.Disk.Put(n.Path(dir.MarksBName), nil)
	if o, err := state.ReadTrustView(n.Disk.FS(), n.Dir, f.Clock()); err != nil || !o.Lost || len(o.Marks.All()) == 0 ||
		o.Trust.Bundle == nil {
		t.Errorf("with lost marks: %+v, %v", o, err)
	}
	// A damaged identity is told.
	n.Disk.Put(n.Path(dir.AnchorName), []byte("x"))
	if _, err := state.ReadTrustView(n.Disk.FS(), n.Dir, f.Clock()); !errors.Is(err, errcode.NodeStateCorrupt) {
		t.Errorf("with a damaged anchor: %v", err)
	}
}
