package delivery_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/delivery"
	"github.com/fealty-io/fealty/internal/coordinator/publication"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/snapshot"
)

// pulled is the receiving end of a pull in a test's own process. It takes until
// stalled is closed for each message, if that is set.
type pulled struct {
	grpc.ServerStream
	ctx     context.Context
	stalled chan struct{}
	got     []byte
	chunks  int
}

func (p *pulled) Context() context.Context { return p.ctx }

func (p *pulled) Send(m *fealtyv1.GetContentResponse) error {
	if p.stalled != nil {
		<-p.stalled
	}
	p.got, p.chunks = append(p.got, m.GetChunk()...), p.chunks+1
	return nil
}

// as returns a context in which m calls.
func as(ctx context.Context, m *coordinatortest.Machine) context.Context {
	return identity.NewContext(ctx, identity.Peer{ID: m.ID, Leaf: m.Leaf, Key: identity.KeyOf(m.Leaf)})
}

func pull(m *coordinatortest.Machine, stream *pulled, hash []byte) error {
	return coordinatortest.Served[fealtyv1.SnapshotServiceServer](m.Desk.C.Parts().Delivery.RegisterServices).GetContent(
		&fealtyv1.GetContentRequest{Name: m.ID.Name(),
			ContentHash: hash}, stream)
}

// contentOf returns the hash of the content that is published for a member, and
// the content.
func contentOf(p *publication.View, path string) ([]byte, []byte) {
	i, ok := p.Find(publication.RuntimePath(path))
	if !ok {
		return nil, nil
	}
	content := p.Content(p.Header(i).Header.Content)
	hash := sha256.Sum256(content)
	return hash[:], content
}

func getContent(ctx context.Context, conn coordinatortest.Conn, name string, hash []byte) ([]byte, error) {
	stream, err := fealtyv1.NewSnapshotServiceClient(conn).GetContent(ctx,
		&fealtyv1.GetContentRequest{Name: name, ContentHash: hash})
	if err != nil {
		return nil, err
	}
	var out []byte
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		out = append(out, m.GetChunk()...)
	}
}

// A member gets what its own headers name. Content for others, its own of before, and
// content for nobody are the same to it.
func TestPullsItsOwnContentAlone(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	a := f.Member("node-a")
	b := f.Node()
	if err := b.Join(identity.Data,
		proof.NewTokenProver(f.Token(&fealtyv1.CreateTokenRequest{Entry: "small", Name: "node-b"}))); err != nil {
		t.Fatal(err)
	}
	var p *publication.View
	published := func(path string) ([]byte, []byte) {
		for {
			news := f.C.Parts().Publication.Changed()
			if p = f.C.Parts().Publication.View(); p.Serves() {
				if hash, content := contentOf(p, path); hash != nil {
					return hash, content
				}
			}
			select {
			case <-news:
			case <-f.Context().Done():
				t.Fatalf("nothing is published for %s", path)
			}
		}
	}
	hashA, contentA := published("data/node-a")
	hashB, contentB := published("data/node-b")
	if bytes.Equal(hashA, hashB) {
		t.Fatal("both are told the same: the test shows nothing")
	}
	connA, connB := a.Conn(), b.Conn()
	for _, c := range []struct {
		name string
		conn coordinatortest.Conn
		node *coordinatortest.Node
		hash []byte
		want []byte
	}{
		{"its own", connA, a, hashA, contentA},
		{"its own", connB, b, hashB, contentB},
		{"another organization's", connB, b, hashA, nil},
		{"somebody else's", connA, a, hashB, nil},
		{"of nobody", connA, a, bytes.Repeat([]byte{7}, sha256.Size), nil},
	} {
		got, err := getContent(f.Context(), c.conn, c.node.ID.Name(), c.hash)
		if c.want != nil {
			if err != nil || !bytes.Equal(got, c.want) {
				t.Errorf("%s pulls %s: %d bytes, %v", c.node.ID.Name(), c.name, len(got), err)
			}
			continue
		}
		want := errcode.New(errcode.NotFound, "what", "content", "name", snapshot.Digest(c.hash).String()).Error()
		if err == nil || errcode.Of(err).Error() != want {
			t.Errorf("%s pulls what is %s: %v, want %s", c.node.ID.Name(), c.name, err, want)
		}
	}
	for _, hash := range [][]byte{nil, hashA[:31], append(bytes.Clone(hashA), 0)} {
		_, err := getContent(f.Context(), connA, "node-a", hash)
		coordinatortest.WantCode(t, err, errcode.RequestField)
	}
	if err := f.Set(bytes.Replace(f.Manifest(""), []byte("roles: [ingress, egress]"), []byte("roles: [ingress]"),
		1)); err != nil {
		t.Fatal(err)
	}
	for now, _ := published("data/node-a"); bytes.Equal(now, hashA); now, _ = published("data/node-a") {
		if f.Context().Err() != nil {
			t.Fatal("the change is not published")
		}
	}
	_, err := getContent(f.Context(), connA, "node-a", hashA)
	coordinatortest.WantCode(t, err, errcode.NotFound)
}

// Large contents come in parts, and who does not read them gives its place up.
func TestPullIsChunkedAndBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := coordinatortest.PoolDesk(t)
		m, other := d.Joined("a"), d.Joined("b")
		long, addresses := strings.Repeat("x", 60), make([]string, 60)
		for i := range addresses {
			addresses[i] = fmt.Sprintf("%q", fmt.Sprintf("h%d.%s.%s.%s.example:1", i, long, long, long))
		}
		var records []string
		for i := range 20 {
			records = append(records, fmt.Sprintf("kind: peer\nname: p%d\nmember: data/a\naddresses: [%s]\nclass: bootstrap",
				i, strings.Join(addresses, ", ")))
		}
		coordinatortest.MustPut(d, strings.Join(records, "\n---\n"))
		p := coordinatortest.MustPublish(d, publication.NewPublisher())
		sum := coordinatortest.Given(t, d, p, "a")[snapshot.ScopePeerDirectory].ContentHash
		large := p.Content(sum.String())
		chunks := (len(large) + 16<<10 - 1) / (16 << 10) // 16 KiB each

		got := &pulled{ctx: as(t.Context(), m)}
		if err := pull(m, got, sum[:]); err != nil || !bytes.Equal(got.got, large) || got.chunks != chunks || chunks < 13 {
			t.Fatalf("%d bytes in %d parts, %v", len(got.got), got.chunks, err)
		}

		release := make(chan struct{})
		ended := make(chan error, delivery.PullsAtOnce)
		for range delivery.PullsAtOnce {
			go func() {
				ctx, cancel := context.WithCancel(as(t.Context(), m))
				defer cancel()
				ended <- pull(m, &pulled{ctx: ctx, stalled: release}, sum[:])
			}()
		}
		synctest.Wait()
		coordinatortest.WantCode(t, pull(m, &pulled{ctx: as(t.Context(), m)}, sum[:]), errcode.RateLimited)
		hash, _ := contentOf(p, "data/b")
		if err := pull(other, &pulled{ctx: as(t.Context(), other)}, hash); err != nil {
			t.Errorf("a slow member holds up another one: %v", err)
		}
		for range delivery.PullsAtOnce {
			if err := <-ended; !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a pull that nobody reads ended with %v", err)
			}
		}
		if n := d.C.Parts().Delivery.Pulling(); n != 0 {
			t.Errorf("of %d members pulls are under way", n)
		}
		close(release)
		synctest.Wait() // until what was sent late is
		// The rate counts whatever the pulls did.
		var err error
		for range delivery.PullBurst {
			if err = pull(m, &pulled{ctx: as(t.Context(), m)}, sum[:]); err != nil {
				break
			}
		}
		coordinatortest.WantCode(t, err, errcode.RateLimited)
		d.Advance(delivery.PullBurst * 1e9)
		if err := pull(m, &pulled{ctx: as(t.Context(), m)}, sum[:]); err != nil {
			t.Error(err)
		}
	})
}

// poll returns the scopes that a poll brings, in their order.
func poll(t *testing.T, n *coordinatortest.Node, held ...*fealtyv1.HeldSnapshot) (scopes []string,
	out []*fealtyv1.SignedSnapshot) {
	t.Helper()
	stream, err := fealtyv1.NewSnapshotServiceClient(n.Conn()).Poll(n.Fleet.Context(),
		&fealtyv1.PollRequest{Name: n.ID.Name(), Held: held})
	if err != nil {
		t.Fatal(err)
	}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return scopes, out
		}
		if err != nil {
			t.Fatal(err)
		}
		if s := m.GetSnapshot(); s != nil {
			scopes, out = append(scopes, s.GetScope()), append(out, s)
		}
	}
}

// A poll brings what the stream would, once, and nothing to who holds it.
func TestPollBringsWhatIsNews(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	n := f.Member("node-a")
	if _, err := n.VerifyGrant(); err != nil {
		t.Fatal(err)
	}
	for !func() bool { p := f.C.Parts().Publication.View(); return p.Serves() && f.Context().Err() == nil }() {
		<-f.C.Parts().Publication.Changed()
	}
	scopes, out := poll(t, n)
	if !slices.Equal(scopes, []string{string(snapshot.ScopeTrustBundle), string(snapshot.ScopeNodeRuntime),
		string(snapshot.ScopeDegradedModePolicy),
		string(snapshot.ScopePeerDirectory), string(snapshot.ScopeStorageDirectory)}) {
		t.Fatalf("it brings %v", scopes)
	}
	var held []*fealtyv1.HeldSnapshot
	for _, s := range out {
		signed, err := snapshot.Unmarshal(s.GetEnvelope())
		if err != nil {
			t.Fatal(err)
		}
		v, err := snapshot.Verify(signed, n.Trust, snapshot.Marks{}, f.Clock())
		if err != nil {
			t.Fatal(err)
		}
		if runtime, ok := v.NodeRuntime(); ok { // which says what group the others are to be for
			n.Trust.Roles, n.Trust.Organizations = runtime.Roles, runtime.Organizations
		}
		h := v.Header()
		record, _ := v.Record()
		held = append(held, &fealtyv1.HeldSnapshot{Scope: s.GetScope(), AuthorityEpoch: h.AuthorityEpoch,
			ConfigVersion: h.ConfigVersion, ContentHash: h.ContentHash[:], Generation: record.Generation})
	}
	if scopes, _ := poll(t, n, held...); len(scopes) != 0 {
		t.Errorf("to who holds it all it brings %v", scopes)
	}
}

// People see what a member is told, exactly as it is signed.
func TestGetSnapshot(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	f.Member("node-a")
	for !func() bool { p := f.C.Parts().Publication.View(); return p.Serves() && f.Context().Err() == nil }() {
		<-f.C.Parts().Publication.Changed()
	}
	client := fealtyv1.NewSnapshotServiceClient(f.LocalConn())
	for _, c := range []struct {
		req  *fealtyv1.GetSnapshotRequest
		want codes.Code
	}{
		{&fealtyv1.GetSnapshotRequest{Scope: "trust_bundle"}, codes.OK},
		{&fealtyv1.GetSnapshotRequest{Kind: "data", Name: "node-a", Scope: "trust_bundle"}, codes.OK},
		{&fealtyv1.GetSnapshotRequest{Kind: "data", Name: "node-a", Scope: "node_runtime"}, codes.OK},
		{&fealtyv1.GetSnapshotRequest{Kind: "data", Name: "node-a", Scope: "node_bootstrap"}, codes.NotFound},
		{&fealtyv1.GetSnapshotRequest{Kind: "data", Name: "node-z", Scope: "node_runtime"}, codes.NotFound},
		{&fealtyv1.GetSnapshotRequest{Kind: "data", Name: "node-a", Scope: "everything"}, codes.NotFound},
		{&fealtyv1.GetSnapshotRequest{Scope: "node_runtime"}, codes.NotFound},
	} {
		resp, err := client.GetSnapshot(f.Context(), c.req)
		if status.Code(err) != c.want {
			t.Errorf("%v: %v, want %v", c.req, err, c.want)
			continue
		}
		if err != nil {
			continue
		}
		if _, err := snapshot.Unmarshal(resp.GetSnapshot().GetEnvelope()); err != nil ||
			resp.GetSnapshot().GetScope() != c.req.GetScope() {
			t.Errorf("%v: %v, %v", c.req, resp.GetSnapshot().GetScope(), err)
		}
	}
}
