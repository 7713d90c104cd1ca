package mirror

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/snapshot"
)

const testCluster = "prod.example"

var testStart = time.Date(2026, 11, 3, 12, 0, 0, 0, time.UTC)

// tb is what the helpers need of a test, rapid's too.
type tb interface {
	Helper()
	Fatalf(format string, args ...any)
}

// subjectOf names a subject.
func subjectOf(i int) string { return fmt.Sprintf("node:spiffe://%s/data/n%06d#x", testCluster, i) }

// publicationOf returns a publication of headers: header i is of the content
// versions[i], and is left out below 0.
func publicationOf(t tb, generation uint64, versions []int) Publication {
	t.Helper()
	p := Publication{Cluster: testCluster, AuthorityEpoch: 1, Generation: generation, TrustBundle: fmt.Appendf(nil, "bundle %d", generation/3), RootChanges: [][]byte{[]byte("change")}, Links: [][]byte{[]byte("link")}}
	contents := make(map[snapshot.Digest][]byte)
	var leaves []snapshot.Digest
	for i, v := range versions {
		if v < 0 {
			continue
		}
		content := fmt.Appendf(nil, "content %d", v)
		header := fmt.Appendf(nil, "header %d of version %d", i, v)
		h := Header{
			Path: fmt.Sprintf("node_runtime/node/data/n%06d", i), Scope: snapshot.ScopeNodeRuntime, Subject: subjectOf(i),
			Bytes: header, Leaf: snapshot.LeafOf(testCluster, header), Content: snapshot.DigestOf(content),
		}
		contents[h.Content] = content
		p.Headers, leaves = append(p.Headers, h), append(leaves, h.Leaf)
	}
	p.Content = func(h snapshot.Digest) []byte { return contents[h] }
	tree := snapshot.NewTree(leaves)
	p.Root = tree.Root()
	issued := testStart.Add(time.Duration(generation) * time.Second)
	signed, err := snapshot.Record{
		ClusterID: testCluster, AuthorityEpoch: 1, Generation: generation, Root: p.Root, TreeSize: max(1, tree.Size()), IssuedAt: issued, FreshUntil: issued.Add(time.Hour),
	}.Sign(ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)))
	if err != nil {
		t.Fatalf("sign: %v", err)
	}
	p.Signed = *signed
	return p
}

// spread gives the headers other leaves, in a tree with holes, and not in the order of their paths: header i is leaf at(i).
func spread(t tb, p Publication, leaves int, at func(i int) int) Publication {
	t.Helper()
	p.Headers = slices.Clone(p.Headers)
	p.Leaves, p.Hole = leaves, snapshot.Digest{1}
	for i := range p.Headers {
		p.Headers[i].Index = at(i)
	}
	record, err := p.Signed.ReadRecord()
	if err != nil {
		t.Fatalf("read the record: %v", err)
	}
	tree := treeOf(p)
	p.Root, record.Root, record.TreeSize = tree.Root(), tree.Root(), tree.Size()
	signed, err := record.Sign(ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)))
	if err != nil {
		t.Fatalf("sign: %v", err)
	}
	p.Signed = *signed
	return p
}

// treeOf returns the tree of a publication.
func treeOf(p Publication) *snapshot.Tree {
	leaves := slices.Repeat([]snapshot.Digest{p.Hole}, p.Leaves)
	for _, h := range p.Headers {
		if p.Leaves == 0 {
			leaves = append(leaves, h.Leaf)
		} else {
			leaves[h.Index] = h.Leaf
		}
	}
	return snapshot.NewTree(leaves)
}

// onDisk is a source over a file system of this project.
type onDisk struct {
	files durable.FS
	dir   string
	reads map[string]int
}

func (s *onDisk) String() string { return s.dir }

func (s *onDisk) Get(_ context.Context, name string, limit int64) ([]byte, error) {
	if s.reads != nil {
		s.reads[name]++
	}
	data, err := s.files.ReadFile(filepath.Join(s.dir, name), limit)
	if err != nil {
		return nil, &Error{Reason: Unreachable, Name: name, Detail: "it cannot be read", Err: err}
	}
	return data, nil
}

// check reads all of a generation, and that it is p.
func check(t tb, source Source, p Publication) {
	t.Helper()
	ctx := context.Background()
	tree, err := Open(ctx, source, testCluster)
	if err != nil {
		t.Fatalf("generation %d does not open: %v", p.Generation, err)
	}
	if got := tree.Record(); got.Generation != p.Generation || got.Root != p.Root {
		t.Fatalf("generation %d, want %d", got.Generation, p.Generation)
	}
	bundle, err := tree.TrustBundle(ctx)
	if err != nil || string(bundle) != string(p.TrustBundle) {
		t.Fatalf("trust bundle %q, %v", bundle, err)
	}
	if changes, err := tree.RootChanges(ctx); err != nil || len(changes) != len(p.RootChanges) {
		t.Fatalf("changes of root %q, %v", changes, err)
	}
	want := treeOf(p)
	step := max(1, len(p.Headers)/300)
	for i := 0; i < len(p.Headers); i += step {
		h := p.Headers[i]
		got, err := tree.Header(ctx, h.Scope, h.Subject)
		if err != nil {
			t.Fatalf("header %d of %d: %v", i, len(p.Headers), err)
		}
		at := i
		if p.Leaves > 0 {
			at = h.Index
		}
		proof, err := want.Proof(at)
		if err != nil {
			t.Fatalf("proof %d: %v", i, err)
		}
		if string(got.Header) != string(h.Bytes) || got.Proof.Index != proof.Index || !slices.Equal(got.Proof.Hashes, proof.Hashes) {
			t.Fatalf("header %d of %d: %q with proof %v, want %q with %v", i, len(p.Headers), got.Header, got.Proof, h.Bytes, proof)
		}
		content := p.Content(h.Content)
		if got, err := Content(ctx, source, h.Content, len(content)); err != nil || string(got) != string(content) {
			t.Fatalf("content of header %d: %q, %v", i, got, err)
		}
	}
	if _, err := tree.Header(ctx, snapshot.ScopeNodeRuntime, subjectOf(999_999)); ReasonOf(err) != Absent {
		t.Fatalf("a subject without a header: %v", err)
	}
	if _, err := tree.Header(ctx, snapshot.ScopeRoutePolicy, p.Headers[0].Subject); ReasonOf(err) != Absent {
		t.Fatalf("a scope without a header: %v", err)
	}
}

// list returns the names of all files below a directory of a file system, without the
// lock.
func list(t tb, files durable.FS, dir string) []string {
	t.Helper()
	w := NewWriter(files, dir, nil)
	var out []string
	if err := w.walk(func(name string) { out = append(out, name) }); err != nil {
		t.Fatalf("list: %v", err)
	}
	return out
}

// versions returns n headers of version v.
func versions(n, v int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = v
	}
	return out
}

func exists(files durable.FS, name string) bool {
	_, err := files.ReadFile(name, 1<<24)
	return err == nil
}
