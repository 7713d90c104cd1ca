package agent_test

import (
	"bytes"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/agent"
	"github.com/fealty-io/fealty/internal/agent/fetch"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/nodetest"
	"github.com/fealty-io/fealty/internal/platform/clock"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

// companions has a node_runtime name the peer_directory.
func companions(_ *snapshot.Header, content *snapshot.NodeRuntime, _ *snapshot.Record) {
	content.Companions = []snapshot.Scope{snapshot.ScopePeerDirectory}
}

// peersOf returns the version of the directory in use and how many peers it has; 0 and -1
// without one.
func peersOf(a *agent.Agent) (uint64, int) {
	h := a.Node().TrustState().Active[snapshot.ScopePeerDirectory]
	if h == nil {
		return 0, -1
	}
	d, _ := h.Verified.PeerDirectory()
	return h.Verified.Header().ConfigVersion, len(d.Active)
}

// refusalFor returns the reason of the refusal of a scope that stands, or "".
func refusalFor(a *agent.Agent, scope snapshot.Scope) string {
	for _, r := range a.Node().Status().Refusals() {
		if r.Scope == string(scope) {
			return r.Reason
		}
	}
	return ""
}

func received(a *agent.Agent, how fetch.Form) float64 {
	return testutil.ToFloat64(a.Counters().Received().WithLabelValues("peer_directory", string(how)))
}

// withDirectory starts a node that is to hold a peer_directory.
func withDirectory(t *testing.T, addresses ...string) (*nodetest.Fleet, *node, *agent.Agent) {
	t.Helper()
	f := nodetest.New(t, addresses...)
	n := newNode(f)
	n.MustJoin()
	a := n.mustOpen()
	m := f.Member(a.Node().Me().ID)
	f.Send(nodetest.News(f.Runtime(&m, companions)))
	n.run(a)
	time.Sleep(10 * time.Second)
	if generation(a) == 0 {
		t.Fatal("no node_runtime")
	}
	return f, n, a
}

// Content in each form leads to the same: pulled once, patched, completed by what is
// held; and over a restart what is on disk is whole. So it is whether the news that needs the
// content again comes while it is pulled, or after.
func TestFormsLeadToTheSame(t *testing.T) {
	for _, tc := range []struct {
		name string
		// send sends first and again, which has the same content; let lets the pull go on.
		send func(f *nodetest.Fleet, first, again *fealtyv1.ConnectResponse, let func())
	}{
		{"while it is pulled", func(f *nodetest.Fleet, first, again *fealtyv1.ConnectResponse, let func()) {
			f.Send(first)
			synctest.Wait() // the pull began, and waits
			f.Send(again)
			synctest.Wait() // that came
			let()
		}},
		{"after it was pulled", func(f *nodetest.Fleet, first, again *fealtyv1.ConnectResponse, let func()) {
			let()
			f.Send(first)
			synctest.Wait()
			f.Send(again)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { formsLeadToTheSame(t, tc.send) }) })
	}
}

func formsLeadToTheSame(t *testing.T, send func(f *nodetest.Fleet, first, again *fealtyv1.ConnectResponse, let func())) {
	f, n, a := withDirectory(t)
	first := f.Directory(1000, nil)
	gate := make(chan struct{})
	f.Do(func() {
		serve := nodetest.Serves(first.Content)
		f.Pull = func(hash snapshot.Digest, stream fealtyv1.SnapshotService_GetContentServer) error {
			<-gate
			return serve(hash, stream)
		}
	})
	send(f, nodetest.News(first.Detached), nodetest.News(f.Directory(1000, first).Detached), func() { close(gate) })
	synctest.Wait()
	if version, peers := peersOf(a); version != first.Header.ConfigVersion || peers != 1000 {
		t.Fatalf("version %d with %d peers, refused for %q", version, peers,
			refusalFor(a, snapshot.ScopePeerDirectory))
	}
	if got := f.Count(&f.Seen.Pulls); got != 1 {
		t.Errorf("pulled %d times", got)
	}
	newest, _ := a.Node().TrustState().Active[snapshot.ScopePeerDirectory].Verified.Record()
	if newest.Generation != f.Next {
		t.Errorf("the record is of generation %d, not %d", newest.Generation, f.Next)
	}
	second := f.Directory(1001, first)
	if second.Patch == nil || len(second.Patch.GetEnvelope()) > 4<<10 {
		t.Fatal("no small patch")
	}
	f.Send(nodetest.News(second.Patch))
	synctest.Wait()
	if version, peers := peersOf(a); version != second.Header.ConfigVersion || peers != 1001 {
		t.Fatalf("version %d with %d peers", version, peers)
	}
	third := f.Directory(2, second)
	f.Send(nodetest.News(third.Whole))
	synctest.Wait()
	for how, want := range map[fetch.Form]float64{fetch.FormWhole: 1, fetch.FormPatch: 1, fetch.FormPulled: 1,
		fetch.FormHeld: 1} {
		if got := received(a, how); got != want {
			t.Errorf("%v came as %s, want %v", got, how, want)
		}
	}
	raw := n.Read(dir.SnapshotName(snapshot.ScopePeerDirectory, dir.Previous))
	if s, err := snapshot.Unmarshal(raw); err != nil || !bytes.Equal(s.Content, second.Content) {
		t.Errorf("on disk is no whole snapshot: %v", err)
	}
}

// A patch to anything else than what is active changes nothing. The whole is asked for
// once, and then rarely, and what comes then is taken.
func TestPatchThatDoesNotFit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _, a := withDirectory(t)
		first := f.Directory(100, nil)
		f.Send(nodetest.News(first.Whole))
		time.Sleep(time.Second)
		gap := f.Directory(102, f.Directory(101, first))
		asked := func() int {
			n := 0
			f.Do(func() {
				for _, r := range f.Seen.Reports {
					if slices.Contains(r.GetResync(), "peer_directory") {
						n++
					}
				}
			})
			return n
		}
		for range 60 {
			f.Send(nodetest.News(gap.Patch))
			time.Sleep(time.Second)
		}
		if version, peers := peersOf(a); version != first.Header.ConfigVersion || peers != 100 {
			t.Fatalf("active is version %d with %d peers", version, peers)
		}
		if got := refusalFor(a, snapshot.ScopePeerDirectory); got != internalsnapshot.ReasonBase {
			t.Errorf("refused for %q", got)
		}
		if got := asked(); got < 1 || got > 2 {
			t.Errorf("the whole was asked for %d times in a minute", got)
		}
		f.Send(nodetest.News(gap.Whole))
		time.Sleep(time.Second)
		if version, peers := peersOf(a); version != gap.Header.ConfigVersion || peers != 102 ||
			refusalFor(a, snapshot.ScopePeerDirectory) != "" {
			t.Fatalf("active is version %d with %d peers", version, peers)
		}
		was := asked()
		time.Sleep(time.Hour)
		if got := asked(); got != was {
			t.Errorf("the whole was asked for %d times more after it came", got-was)
		}
	})
}

// The active content stays, whatever a coordinator sends instead of a content;
// the reason is recorded, and another one is asked.
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
					if err := clock.Sleep(stream.Context(), time.Second, nil); err != nil {
						return err
					}
				}
				return nil
			}
		},
		"unavailable": func([]byte) func(snapshot.Digest, fealtyv1.SnapshotService_GetContentServer) error {
			return func(snapshot.Digest, fealtyv1.SnapshotService_GetContentServer) error {
				return errcode.New(errcode.NotFound, "what", "content", "name", "")
			}
		},
	}
	for reason, lie := range lies {
		t.Run(reason, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, _, a := withDirectory(t)
				first := f.Directory(1, nil)
				f.Send(nodetest.News(first.Whole))
				time.Sleep(time.Second)
				large := f.Directory(1000, first)
				f.Do(func() { f.Pull = lie(large.Content) })
				f.Send(nodetest.News(large.Detached))
				time.Sleep(20 * time.Second)
				if version, _ := peersOf(a); version != first.Header.ConfigVersion {
					t.Fatalf("active is version %d", version)
				}
				rejected := testutil.ToFloat64(a.Counters().Rejected().WithLabelValues("peer_directory", reason))
				if rejected == 0 || refusalFor(a, snapshot.ScopePeerDirectory) == "" {
					t.Errorf("counted %v, recorded %q", rejected, refusalFor(a, snapshot.ScopePeerDirectory))
				}
				// News of other scopes goes on meanwhile.
				f.TrustChanged(func() {})
				time.Sleep(time.Second)
				if trustVersion(a) != f.Version {
					t.Error("a content that is not got holds up the trust bundle")
				}
				// The truth is taken whenever it comes.
				f.Do(func() { f.Pull = nodetest.Serves(large.Content) })
				time.Sleep(2 * time.Minute)
				if version, peers := peersOf(a); version != large.Header.ConfigVersion || peers != 1000 ||
					refusalFor(a, snapshot.ScopePeerDirectory) != "" {
					t.Errorf("then version %d with %d peers is active, refused for %q", version, peers,
						refusalFor(a, snapshot.ScopePeerDirectory))
				}
			})
		})
	}
}

// An announcement is judged before any of it is got: nothing is pulled for a header
// that does not verify.
func TestNothingIsPulledForABadHeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _, a := withDirectory(t)
		d := f.Directory(1000, nil)
		f.Do(func() { f.Pull = nodetest.Serves(d.Content) })
		for i := range d.Detached.GetEnvelope() {
			if i%7 != 0 {
				continue
			}
			bad := bytes.Clone(d.Detached.GetEnvelope())
			bad[i] ^= 0x20
			f.Send(nodetest.News(&fealtyv1.SignedSnapshot{Scope: "peer_directory", Envelope: bad}))
		}
		other := nodetest.New(t)
		f.Send(nodetest.News(other.Directory(1000, nil).Detached))
		time.Sleep(time.Minute)
		if got := f.Count(&f.Seen.Pulls); got != 0 {
			t.Errorf("%d pulls", got)
		}
		if version, _ := peersOf(a); version != 0 {
			t.Error("something is active")
		}
		f.Send(nodetest.News(d.Detached))
		time.Sleep(time.Minute)
		if version, peers := peersOf(a); version != d.Header.ConfigVersion || peers != 1000 {
			t.Errorf("version %d with %d peers", version, peers)
		}
	})
}

// A content that was announced before the node_runtime that makes the node one of its
// group is got after it.
func TestContentBeforeItsRuntime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := nodetest.New(t)
		n := newNode(f)
		n.MustJoin()
		a := n.mustOpen()
		m := f.Member(a.Node().Me().ID)
		d := f.Directory(1000, nil)
		f.Do(func() { f.Pull = nodetest.Serves(d.Content) })
		f.Send(nodetest.News(f.Runtime(&m, func(_ *snapshot.Header, content *snapshot.NodeRuntime,
			_ *snapshot.Record) {
			content.Roles = []string{"core"}
		})))
		f.Send(nodetest.News(d.Detached))
		n.run(a)
		time.Sleep(10 * time.Second)
		if version, _ := peersOf(a); version != 0 || f.Count(&f.Seen.Pulls) != 0 {
			t.Fatalf("version %d of another group's directory, %d pulls", version, f.Count(&f.Seen.Pulls))
		}
		f.Send(nodetest.News(f.Runtime(&m, companions)))
		time.Sleep(10 * time.Second)
		if version, _ := peersOf(a); version != d.Header.ConfigVersion || f.Count(&f.Seen.Pulls) != 1 {
			t.Errorf("version %d, %d pulls", version, f.Count(&f.Seen.Pulls))
		}
	})
}

// A node whose file of a large content was damaged gets that content again.
func TestDamagedContentIsPulledAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := nodetest.New(t)
		n := newNode(f)
		n.MustJoin()
		a := n.mustOpen()
		m := f.Member(a.Node().Me().ID)
		d := f.Directory(1000, nil)
		f.Do(func() { f.Pull = nodetest.Serves(d.Content) })
		f.Send(nodetest.News(f.Runtime(&m, companions)))
		f.Send(nodetest.News(d.Detached))
		stop := n.run(a)
		time.Sleep(10 * time.Second)
		_ = stop()
		name := dir.SnapshotName(snapshot.ScopePeerDirectory, dir.Active)
		data := n.Read(name)
		data[len(data)/2] ^= 1
		n.Disk.Put(n.Path(name), data)
		a = n.mustOpen()
		if version, _ := peersOf(a); version != 0 {
			t.Fatal("damage is in use")
		}
		n.run(a)
		time.Sleep(10 * time.Second)
		if version, peers := peersOf(a); version != d.Header.ConfigVersion || peers != 1000 ||
			f.Count(&f.Seen.Pulls) != 2 {
			t.Errorf("version %d with %d peers, %d pulls", version, peers, f.Count(&f.Seen.Pulls))
		}
	})
}
