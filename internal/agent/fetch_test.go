package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/pace"
	"github.com/fealty-io/fealty/internal/snapshotauthor"
	"github.com/fealty-io/fealty/snapshot"
)

// shelf is a source in memory.
type shelf struct {
	name    string
	news    []notice
	content func(ctx context.Context) (io.Reader, error)
	asked   int // how often for a content
	closed  int
}

func (s *shelf) Name() string       { return s.name }
func (s *shelf) From() state.Origin { return state.ByCoordinator }

func (s *shelf) News(context.Context, []*fealtyv1.HeldSnapshot) ([]notice, error) { return s.news, nil }

func (s *shelf) Content(ctx context.Context, _ snapshot.Scope, _ snapshot.Digest, _ int) (io.ReadCloser, error) {
	s.asked++
	if s.content == nil {
		return nil, errors.New("not here")
	}
	r, err := s.content(ctx)
	if err != nil {
		return nil, err
	}
	return io.NopCloser(r), nil
}

func (s *shelf) Close() error { s.closed++; return nil }

// holding has a source give these bytes.
func holding(b []byte) func(context.Context) (io.Reader, error) {
	return func(context.Context) (io.Reader, error) { return bytes.NewReader(b), nil }
}

// drip gives piece after each pause, for ever.
type drip struct {
	ctx   context.Context
	piece []byte
	pause time.Duration
}

func (d *drip) Read(b []byte) (int, error) {
	if err := sleep(d.ctx, d.pause, nil); err != nil {
		return 0, err
	}
	return copy(b, d.piece), nil
}

func dripping(pause time.Duration, piece []byte) func(context.Context) (io.Reader, error) {
	return func(ctx context.Context) (io.Reader, error) { return &drip{ctx, piece, pause}, nil }
}

// What a source gives instead of a content is told apart, and ends in time.
func TestFetchIsExact(t *testing.T) {
	content := bytes.Repeat([]byte("0123456789abcdef"), 100<<10/16)
	other := bytes.Clone(content)
	other[50<<10] ^= 1
	broken := errors.New("the connection broke")
	for _, c := range []struct {
		name   string
		source func(context.Context) (io.Reader, error)
		want   fetchReason
		within time.Duration
	}{
		{"exact", holding(content), "", 0},
		{"as slow as allowed", func(ctx context.Context) (io.Reader, error) {
			return &slowly{ctx, bytes.NewReader(content), pace.Rate * 11 / 10}, nil
		}, "", pace.Time(int64(len(content)))},
		{"one byte short", holding(content[:len(content)-1]), fetchTruncated, 0},
		{"nothing", holding(nil), fetchTruncated, 0},
		{"broken off", func(context.Context) (io.Reader, error) {
			return io.MultiReader(bytes.NewReader(content[:1000]), iotest.ErrReader(broken)), nil
		}, fetchTruncated, 0},
		{"broken at once", func(context.Context) (io.Reader, error) { return iotest.ErrReader(broken), nil }, fetchUnavailable, 0},
		{"one byte more", holding(append(bytes.Clone(content), 0)), fetchOversized, 0},
		{"endless", dripping(0, content), fetchOversized, 0},
		{"altered", holding(other), fetchAltered, 0},
		{"a byte a second", dripping(time.Second, []byte{1}), fetchSlow, pace.Window},
		{"empty reads", dripping(time.Millisecond, nil), fetchSlow, pace.Window},
		{"fast at first, then silent", func(ctx context.Context) (io.Reader, error) {
			return io.MultiReader(bytes.NewReader(content[:90<<10]), &drip{ctx, []byte{1}, time.Hour}), nil
		}, fetchSlow, 2 * pace.Window},
		{"never opens", func(ctx context.Context) (io.Reader, error) { <-ctx.Done(); return nil, ctx.Err() }, fetchSlow, pace.Time(int64(len(content)))},
		{"not there", nil, fetchUnavailable, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				got, err := fetch(t.Context(), &shelf{name: "shelf", content: c.source}, snapshot.ScopePeerDirectory, snapshot.DigestOf(content), len(content))
				if took := time.Since(began); took > c.within {
					t.Errorf("it took %v, want %v at most", took, c.within)
				}
				if c.want == "" {
					if err != nil || !bytes.Equal(got, content) {
						t.Fatalf("%d bytes, %v", len(got), err)
					}
					return
				}
				e, ok := errors.AsType[*fetchError](err)
				if !ok || e.Reason != c.want || e.Source != "shelf" || got != nil {
					t.Fatalf("%d bytes, %v, want the reason %s", len(got), err, c.want)
				}
			})
		})
	}
}

// slowly gives what r has at rate bytes in a second.
type slowly struct {
	ctx  context.Context
	r    io.Reader
	rate int
}

func (s *slowly) Read(b []byte) (int, error) {
	n, err := s.r.Read(b)
	if slept := sleep(s.ctx, time.Duration(n)*time.Second/time.Duration(s.rate), nil); slept != nil {
		return n, slept
	}
	return n, err
}

// A fetch that its caller gives up says so, and blames nobody.
func TestFetchIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := fetch(ctx, &shelf{name: "shelf", content: dripping(time.Minute, []byte{1})}, snapshot.ScopePeerDirectory, snapshot.Digest{}, 10)
		if e, ok := errors.AsType[*fetchError](err); !ok || e.Reason != fetchUnavailable || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
	})
}

// The whole of a scope is asked for at once, then ever more rarely, and again at once
// after something newer of it was in use.
func TestResyncIsAskedForRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &resyncs{now: time.Now}
		if got := r.due(); len(got) != 0 {
			t.Fatalf("due from the start: %v", got)
		}
		asked := 0
		for began := time.Now(); time.Since(began) < 24*time.Hour; time.Sleep(10 * time.Second) {
			r.want(snapshot.ScopeRoutePolicy) // a patch that does not fit, every time
			if got := r.due(); len(got) > 0 {
				asked++
			}
		}
		if asked < 24 || asked > 30 {
			t.Errorf("asked %d times in a day", asked)
		}
		r.done(snapshot.ScopeRoutePolicy)
		if got := r.due(); len(got) != 0 {
			t.Errorf("due after it was done: %v", got)
		}
		r.want(snapshot.ScopeRoutePolicy)
		if got := r.due(); len(got) != 1 || got[0] != "route_policy" {
			t.Errorf("due: %v", got)
		}
	})
}

// directory is a version of the peer_directory of the nodes without roles and
// organizations, in all its forms.
type directory struct {
	header   snapshot.Header
	content  []byte
	whole    *fealtyv1.SignedSnapshot
	detached *fealtyv1.SignedSnapshot
	patch    *fealtyv1.SignedSnapshot // from the version before; nil for the first
}

// directory signs the directory with n peers that comes after base, or the first one,
// or, of an equal number of peers, the same header again under a newer record.
func (f *fleet) directory(n int, base *directory) *directory {
	f.tb.Helper()
	f.next++
	now := f.clock().UTC().Truncate(time.Second)
	content := &snapshot.PeerDirectory{}
	for i := range n {
		name := fmt.Sprintf("peer-%05d", i)
		id, err := identity.New(testCluster, identity.Data, name)
		f.must(err)
		content.Active = append(content.Active, snapshot.Peer{Name: name, ID: id, Addresses: []string{name + ".prod.example:7000"}, State: snapshot.MemberActive})
	}
	h := snapshot.Header{
		ClusterID: testCluster, Subject: snapshot.GroupSubject(nil, nil), ScopeType: snapshot.ScopePeerDirectory,
		ConfigVersion: f.next, AuthorityEpoch: f.epoch, IssuedAt: now, ValidFrom: now, ExpiresAt: now.Add(30 * 24 * time.Hour), RefreshAfter: now.Add(15 * 24 * time.Hour),
	}
	if base != nil {
		h.Base = &snapshot.Base{ConfigVersion: base.header.ConfigVersion, ContentHash: base.header.ContentHash}
	}
	draft, err := snapshotauthor.Compose(h, content)
	f.must(err)
	if base != nil && bytes.Equal(draft.ContentBytes(), base.content) {
		h = base.header
		draft, err = snapshotauthor.Compose(h, content)
		f.must(err)
	}
	digest, err := f.content().Revocations()
	f.must(err)
	signed, err := draft.Publish(snapshot.Record{
		ClusterID: testCluster, AuthorityEpoch: f.epoch, Generation: f.next, IssuedAt: now, FreshUntil: now.Add(15 * time.Minute), Revocations: digest,
	}, f.configKey)
	f.must(err)
	d := &directory{header: draft.Header(), content: draft.ContentBytes(), whole: f.message(snapshot.ScopePeerDirectory, signed)}
	detached := *signed
	detached.Content = nil
	d.detached = f.message(snapshot.ScopePeerDirectory, &detached)
	if base != nil {
		if patch, ok := snapshotauthor.Diff(snapshot.ScopePeerDirectory, base.content, d.content); ok {
			patched := detached
			patched.Patch = patch
			d.patch = f.message(snapshot.ScopePeerDirectory, &patched)
		}
	}
	return d
}

// companions has a node_runtime name the peer_directory.
func companions(_ *snapshot.Header, content *snapshot.NodeRuntime, _ *snapshot.Record) {
	content.Companions = []snapshot.Scope{snapshot.ScopePeerDirectory}
}

// serves has the fleet give content to who asks for it.
func serves(content []byte) func(snapshot.Digest, fealtyv1.SnapshotService_GetContentServer) error {
	return func(hash snapshot.Digest, stream fealtyv1.SnapshotService_GetContentServer) error {
		if hash != snapshot.DigestOf(content) {
			return explain.New(explain.NotFound, "what", "content", "name", hash.String())
		}
		for chunk := range slices.Chunk(content, 16<<10) {
			if err := stream.Send(&fealtyv1.GetContentResponse{Chunk: chunk}); err != nil {
				return err
			}
		}
		return nil
	}
}

// peersOf returns the version of the directory in use and how many peers it has; 0 and -1
// without one.
func peersOf(a *Agent) (uint64, int) {
	h := a.beliefs.Load().Held[snapshot.ScopePeerDirectory]
	if h == nil {
		return 0, -1
	}
	d, _ := h.Verified.PeerDirectory()
	return h.Verified.Header().ConfigVersion, len(d.Active)
}

// refusalFor returns the reason of the refusal of a scope that stands, or "".
func refusalFor(a *Agent, scope snapshot.Scope) string {
	for _, r := range a.status.Refusals() {
		if r.Scope == string(scope) {
			return r.Reason
		}
	}
	return ""
}

func received(a *Agent, how form) float64 {
	return testutil.ToFloat64(a.metrics.received.WithLabelValues("peer_directory", string(how)))
}

// withDirectory starts a node that is to hold a peer_directory.
func withDirectory(t *testing.T, addresses ...string) (*fleet, *node, *Agent) {
	t.Helper()
	f := newFleet(t, addresses...)
	n := newNode(f)
	n.mustJoin()
	a := n.mustOpen()
	m := f.member(a.me.ID)
	f.send(asNews(f.runtime(&m, companions)))
	n.run(a)
	time.Sleep(10 * time.Second)
	if generation(a) == 0 {
		t.Fatal("no node_runtime")
	}
	return f, n, a
}

// Content in each form leads to the same: pulled once, patched, completed by what is
// held; and over a restart what is on disk is whole.
func TestFormsLeadToTheSame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, n, a := withDirectory(t)
		first := f.directory(1000, nil)
		f.do(func() { f.pull = serves(first.content) })
		f.send(asNews(first.detached))
		f.send(asNews(f.directory(1000, first).detached)) // while it is pulled, or after
		time.Sleep(time.Minute)
		if version, peers := peersOf(a); version != first.header.ConfigVersion || peers != 1000 {
			t.Fatalf("version %d with %d peers, refused for %q", version, peers, refusalFor(a, snapshot.ScopePeerDirectory))
		}
		if got := f.count(&f.pulls); got != 1 {
			t.Errorf("pulled %d times", got)
		}
		newest, _ := a.beliefs.Load().Held[snapshot.ScopePeerDirectory].Verified.Record()
		if newest.Generation != f.next {
			t.Errorf("the record is of generation %d, not %d", newest.Generation, f.next)
		}
		second := f.directory(1001, first)
		if second.patch == nil || len(second.patch.GetEnvelope()) > 4<<10 {
			t.Fatal("no small patch")
		}
		f.send(asNews(second.patch))
		time.Sleep(time.Second)
		if version, peers := peersOf(a); version != second.header.ConfigVersion || peers != 1001 {
			t.Fatalf("version %d with %d peers", version, peers)
		}
		third := f.directory(2, second)
		f.send(asNews(third.whole))
		time.Sleep(time.Second)
		for how, want := range map[form]float64{formWhole: 1, formPatch: 1, formPulled: 1, formHeld: 1} {
			if got := received(a, how); got != want {
				t.Errorf("%v came as %s, want %v", got, how, want)
			}
		}
		raw := n.read(dir.SnapshotName(snapshot.ScopePeerDirectory, dir.Previous))
		if s, err := snapshot.Unmarshal(raw); err != nil || !bytes.Equal(s.Content, second.content) {
			t.Errorf("on disk is no whole snapshot: %v", err)
		}
	})
}

// A patch to anything else than what is active changes nothing. The whole is asked for
// once, and then rarely, and what comes then is taken.
func TestPatchThatDoesNotFit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _, a := withDirectory(t)
		first := f.directory(100, nil)
		f.send(asNews(first.whole))
		time.Sleep(time.Second)
		gap := f.directory(102, f.directory(101, first))
		asked := func() int {
			n := 0
			f.do(func() {
				for _, r := range f.reports {
					if slices.Contains(r.GetResync(), "peer_directory") {
						n++
					}
				}
			})
			return n
		}
		for range 60 {
			f.send(asNews(gap.patch))
			time.Sleep(time.Second)
		}
		if version, peers := peersOf(a); version != first.header.ConfigVersion || peers != 100 {
			t.Fatalf("active is version %d with %d peers", version, peers)
		}
		if got := refusalFor(a, snapshot.ScopePeerDirectory); got != string(snapshot.ReasonBase) {
			t.Errorf("refused for %q", got)
		}
		if got := asked(); got < 1 || got > 2 {
			t.Errorf("the whole was asked for %d times in a minute", got)
		}
		f.send(asNews(gap.whole))
		time.Sleep(time.Second)
		if version, peers := peersOf(a); version != gap.header.ConfigVersion || peers != 102 || refusalFor(a, snapshot.ScopePeerDirectory) != "" {
			t.Fatalf("active is version %d with %d peers", version, peers)
		}
		was := asked()
		time.Sleep(time.Hour)
		if got := asked(); got != was {
			t.Errorf("the whole was asked for %d times more after it came", got-was)
		}
	})
}

// Whatever a coordinator sends instead of a content, what is active stays, why is
// recorded, and another one is asked.
func TestCoordinatorThatLies(t *testing.T) {
	lies := map[string]func(content []byte) func(snapshot.Digest, fealtyv1.SnapshotService_GetContentServer) error{
		"truncated": func(content []byte) func(snapshot.Digest, fealtyv1.SnapshotService_GetContentServer) error {
			return func(_ snapshot.Digest, stream fealtyv1.SnapshotService_GetContentServer) error {
				return stream.Send(&fealtyv1.GetContentResponse{Chunk: content[:len(content)-1]})
			}
		},
		"oversized": func(content []byte) func(snapshot.Digest, fealtyv1.SnapshotService_GetContentServer) error {
			return func(_ snapshot.Digest, stream fealtyv1.SnapshotService_GetContentServer) error {
				for { // endless
					if err := stream.Send(&fealtyv1.GetContentResponse{Chunk: content}); err != nil {
						return err
					}
				}
			}
		},
		"altered": func(content []byte) func(snapshot.Digest, fealtyv1.SnapshotService_GetContentServer) error {
			return func(_ snapshot.Digest, stream fealtyv1.SnapshotService_GetContentServer) error {
				other := bytes.Clone(content)
				other[100] ^= 1
				return stream.Send(&fealtyv1.GetContentResponse{Chunk: other})
			}
		},
		"slow": func(content []byte) func(snapshot.Digest, fealtyv1.SnapshotService_GetContentServer) error {
			return func(_ snapshot.Digest, stream fealtyv1.SnapshotService_GetContentServer) error {
				for i := range content {
					if err := stream.Send(&fealtyv1.GetContentResponse{Chunk: content[i : i+1]}); err != nil {
						return err
					}
					if err := sleep(stream.Context(), time.Second, nil); err != nil {
						return err
					}
				}
				return nil
			}
		},
		"unavailable": func([]byte) func(snapshot.Digest, fealtyv1.SnapshotService_GetContentServer) error {
			return func(snapshot.Digest, fealtyv1.SnapshotService_GetContentServer) error {
				return explain.New(explain.NotFound, "what", "content", "name", "")
			}
		},
	}
	for reason, lie := range lies {
		t.Run(reason, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, _, a := withDirectory(t)
				first := f.directory(1, nil)
				f.send(asNews(first.whole))
				time.Sleep(time.Second)
				large := f.directory(1000, first)
				f.do(func() { f.pull = lie(large.content) })
				f.send(asNews(large.detached))
				time.Sleep(20 * time.Second)
				if version, _ := peersOf(a); version != first.header.ConfigVersion {
					t.Fatalf("active is version %d", version)
				}
				rejected := testutil.ToFloat64(a.metrics.rejected.WithLabelValues("peer_directory", reason))
				if rejected == 0 || refusalFor(a, snapshot.ScopePeerDirectory) == "" {
					t.Errorf("counted %v, recorded %q", rejected, refusalFor(a, snapshot.ScopePeerDirectory))
				}
				// News of other scopes goes on meanwhile.
				f.trustChanged(func() {})
				time.Sleep(time.Second)
				if trustVersion(a) != f.version {
					t.Error("a content that is not got holds up the trust bundle")
				}
				// The truth is taken whenever it comes.
				f.do(func() { f.pull = serves(large.content) })
				time.Sleep(2 * time.Minute)
				if version, peers := peersOf(a); version != large.header.ConfigVersion || peers != 1000 || refusalFor(a, snapshot.ScopePeerDirectory) != "" {
					t.Errorf("then version %d with %d peers is active, refused for %q", version, peers, refusalFor(a, snapshot.ScopePeerDirectory))
				}
			})
		})
	}
}

// What is announced is judged before any of it is got: nothing is pulled for a header
// that does not verify.
func TestNothingIsPulledForABadHeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _, a := withDirectory(t)
		d := f.directory(1000, nil)
		f.do(func() { f.pull = serves(d.content) })
		for i := range d.detached.GetEnvelope() {
			if i%7 != 0 {
				continue
			}
			bad := bytes.Clone(d.detached.GetEnvelope())
			bad[i] ^= 0x20
			f.send(asNews(&fealtyv1.SignedSnapshot{Scope: "peer_directory", Envelope: bad}))
		}
		other := newFleet(t)
		f.send(asNews(other.directory(1000, nil).detached))
		time.Sleep(time.Minute)
		if got := f.count(&f.pulls); got != 0 {
			t.Errorf("%d pulls", got)
		}
		if version, _ := peersOf(a); version != 0 {
			t.Error("something is active")
		}
		f.send(asNews(d.detached))
		time.Sleep(time.Minute)
		if version, peers := peersOf(a); version != d.header.ConfigVersion || peers != 1000 {
			t.Errorf("version %d with %d peers", version, peers)
		}
	})
}

// A content that was announced before the node_runtime that makes the node one of its
// group is got after it.
func TestContentBeforeItsRuntime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		n := newNode(f)
		n.mustJoin()
		a := n.mustOpen()
		m := f.member(a.me.ID)
		d := f.directory(1000, nil)
		f.do(func() { f.pull = serves(d.content) })
		f.send(asNews(f.runtime(&m, func(_ *snapshot.Header, content *snapshot.NodeRuntime, _ *snapshot.Record) {
			content.Roles = []string{"core"}
		})))
		f.send(asNews(d.detached))
		n.run(a)
		time.Sleep(10 * time.Second)
		if version, _ := peersOf(a); version != 0 || f.count(&f.pulls) != 0 {
			t.Fatalf("version %d of another group's directory, %d pulls", version, f.count(&f.pulls))
		}
		f.send(asNews(f.runtime(&m, companions)))
		time.Sleep(10 * time.Second)
		if version, _ := peersOf(a); version != d.header.ConfigVersion || f.count(&f.pulls) != 1 {
			t.Errorf("version %d, %d pulls", version, f.count(&f.pulls))
		}
	})
}

// A node whose file of a large content was damaged gets that content again.
func TestDamagedContentIsPulledAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		n := newNode(f)
		n.mustJoin()
		a := n.mustOpen()
		m := f.member(a.me.ID)
		d := f.directory(1000, nil)
		f.do(func() { f.pull = serves(d.content) })
		f.send(asNews(f.runtime(&m, companions)))
		f.send(asNews(d.detached))
		stop := n.run(a)
		time.Sleep(10 * time.Second)
		_ = stop()
		name := dir.SnapshotName(snapshot.ScopePeerDirectory, dir.Active)
		data := n.read(name)
		data[len(data)/2] ^= 1
		n.disk.Put(n.path(name), data)
		a = n.mustOpen()
		if version, _ := peersOf(a); version != 0 {
			t.Fatal("damage is in use")
		}
		n.run(a)
		time.Sleep(10 * time.Second)
		if version, peers := peersOf(a); version != d.header.ConfigVersion || peers != 1000 || f.count(&f.pulls) != 2 {
			t.Errorf("version %d with %d peers, %d pulls", version, peers, f.count(&f.pulls))
		}
	})
}
