package publication_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/publication"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/mirror"
	"github.com/fealty-io/fealty/snapshot"
	"github.com/fealty-io/fealty/test/wait"
)

// The content that a coordinator publishes is in the publish directory too, and
// verifies for its member as what the stream brings: bundle, header, proof and
// content.
func TestPublishDir(t *testing.T) {
	t.Parallel()
	for tree, from := range map[string]int{"in the order of paths": 0, "in bins": 1} {
		t.Run(tree, func(t *testing.T) { testPublishDir(t, from) })
	}
}

func testPublishDir(t *testing.T, binsFrom int) {
	dir := filepath.Join(t.TempDir(), "pub")
	f := coordinatortest.ReadyFleet(t, func(c *coordinator.Config) { c.Publishing.Dir, c.Publishing.BinsFrom = dir, binsFrom })
	joined := f.Member("db-1")
	id := joined.ID
	state := f.State()
	p := publishedFor(f, id)
	subject := p.Header.Subject
	var tree *mirror.Tree
	source, err := mirror.NewDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the member's header is in the directory", func() bool {
		if tree, err = mirror.Open(f.Context(), source, coordinatortest.Cluster); err != nil {
			return false
		}
		_, err = tree.Header(context.Background(), snapshot.ScopeNodeRuntime, subject)
		return err == nil
	})
	parsed, err := snapshot.ParseSubject(subject)
	if err != nil {
		t.Fatal(err)
	}
	_, incarnation, _ := parsed.Node()
	trust := snapshot.Trust{Me: id, Incarnation: incarnation, ConfigRoot: state.Bundle.PublicRoot()}
	raw, err := tree.TrustBundle(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := snapshot.Unmarshal(raw)
	if err != nil {
		t.Fatal(err)
	}
	if trust.Bundle, err = snapshot.Verify(bundle, trust, snapshot.Marks{}, f.Clock()); err != nil {
		t.Fatal(err)
	}
	signed, err := tree.Header(context.Background(), snapshot.ScopeNodeRuntime, subject)
	if err != nil {
		t.Fatal(err)
	}
	claims, err := (&snapshot.Signed{Header: signed.Header, Content: []byte("{}"),
		Publication: signed.Publication, Proof: signed.Proof}).Claims()
	if err != nil {
		t.Fatal(err)
	}
	if signed.Content, err = mirror.Content(context.Background(), source, claims.Header.ContentHash,
		claims.Header.ContentSize); err != nil {
		t.Fatal(err)
	}
	v, err := snapshot.Verify(signed, trust, snapshot.Marks{}, f.Clock())
	if err != nil {
		t.Fatal(err)
	}
	if holes := tree.Record().TreeSize >= 64; holes != (binsFrom > 0) {
		t.Errorf("a tree of %d leaves", tree.Record().TreeSize)
	}
	if r, ok := v.NodeRuntime(); !ok || r.Entry != "pool" {
		t.Errorf("runtime %+v", r)
	}
	info, err := os.Stat(filepath.Join(dir, mirror.PointerName))
	if err != nil || info.Mode().Perm()&0o007 != 0 || info.Mode().Perm()&0o040 == 0 {
		t.Errorf("the pointer has mode %v, %v: its group may read it, others may not", info.Mode(), err)
	}
	// It is counted after it can be seen.
	wait.Until(t, "a write is counted",
		func() bool {
			return coordinatortest.CounterOf(f.C.Registry(), "fealty_publish_dir_writes_total", "written") >= 1
		})
}

// A directory that cannot be written is told, and holds up nobody: members join and
// are told what they are meanwhile.
func TestPublishDirFails(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "pub")
	if err := os.WriteFile(dir, []byte("in the way"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := coordinatortest.ReadyFleet(t, func(c *coordinator.Config) { c.Publishing.Dir = dir })
	joined := f.Member("db-1")
	publishedFor(f, joined.ID)
	wait.Until(t, "the failure is a finding", func() bool {
		st, err := f.Local().Status.GetStatus(f.Context(), &fealtyv1.GetStatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range st.GetFindings() {
			if x.GetCode() == string(errcode.PublishDirFailed) && strings.Contains(x.GetSummary(), dir) {
				return true
			}
		}
		return false
	})
	wait.Until(t, "a failure is counted", func() bool { // a moment after it is a finding
		return coordinatortest.CounterOf(f.C.Registry(), "fealty_publish_dir_writes_total", "failed") >= 1
	})
	if coordinatortest.CounterOf(f.C.Registry(), "fealty_publish_dir_generation") != 0 {
		t.Error("a generation counts as written")
	}
}

// publishedFor waits until a member has a node_runtime.
func publishedFor(f *coordinatortest.Fleet, id identity.ID) publication.Published {
	f.T.Helper()
	var out publication.Published
	wait.Until(f.T, "the member's node_runtime is published", func() bool {
		p := f.C.Parts().Publication.View()
		if !p.Serves() {
			return false
		}
		i, ok := p.Find(publication.RuntimePath(string(id.Kind()) + "/" + id.Name()))
		if ok {
			out = *p.Header(i)
		}
		return ok
	})
	return out
}
