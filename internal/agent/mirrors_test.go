package agent_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/agent"
	"github.com/fealty-io/fealty/internal/agent/fetch"
	"github.com/fealty-io/fealty/internal/mirror"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/nodetest"
	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
	"github.com/fealty-io/fealty/internal/signed/signedtest"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

// withMirrors opens the node with mirrors.
func (n *node) withMirrors(mirrors ...*signedtest.Replica) *agent.Agent {
	n.Fleet.TB.Helper()
	cfg := agent.Config{DataDir: n.Dir, FS: n.Disk.FS(), Now: n.Fleet.Clock, Log: n.said.Logger(slog.LevelDebug), Dial: n.Fleet.Dial,
		Release: "v0.1.0"}
	for _, r := range mirrors {
		cfg.Mirrors = append(cfg.Mirrors, r)
	}
	a, err := agent.Open(context.Background(), cfg)
	n.Fleet.Must(err)
	a.Serve("", "")
	return a
}

// mirrorReads returns how often looks at mirrors had an outcome.
func mirrorReads(a *agent.Agent, outcome string) float64 {
	return testutil.ToFloat64(a.Counters().Mirrors().WithLabelValues(outcome))
}

// With every coordinator out of reach, fresh records from a mirror keep a node fresh,
// also when its certificate ended meanwhile; without them it becomes stale.
func TestMirrorKeepsFresh(t *testing.T) {
	for _, live := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			f := nodetest.New(t)
			f.SVIDTTL, f.RenewEvery = 2*time.Hour, time.Hour
			n := newNode(f)
			n.MustJoin()
			m := f.Member(n.mustID())
			r := signedtest.NewReplica("mirror")
			f.Publish(&m, []*signedtest.Replica{r})
			a := n.withMirrors(r)
			f.Send(nodetest.News(f.Runtime(&m)))
			f.Publish(&m, []*signedtest.Replica{r})
			stop := n.run(a)
			time.Sleep(10 * time.Second)
			f.Do(func() { f.Faults.Down["all"] = true })
			f.Cut()
			first := generation(a)
			for range 6 * 3 { // longer than the certificate lasts
				time.Sleep(10 * time.Minute)
				if live {
					f.Publish(&m, []*signedtest.Replica{r})
				}
			}
			time.Sleep(time.Minute)
			state := a.Node().Autonomy.Facts().Overall(a.Node().Now())
			if live && (state != snapshot.Fresh || generation(a) <= first) {
				t.Errorf("it is %s, at generation %d after %d", state, generation(a), first)
			}
			if !live && state == snapshot.Fresh {
				t.Error("it is fresh without news")
			}
			if live && a.Contact().Presentable(context.Background()) {
				t.Error("its certificate did not end: this shows nothing")
			}
			_ = stop()
		})
	}
}

// mustID returns the id of a node that joined.
func (n *node) mustID() identity.ID {
	a := n.mustOpen()
	defer a.Close()
	return a.Node().Me().ID
}

// A mirror can keep news back, and nothing else: whatever it does, the node takes what
// is signed for it, from another one, and what it has stays.
func TestMirrorAttacks(t *testing.T) {
	contentOnly := func(bend func([]byte) []byte) func(*scene) {
		return func(s *scene) {
			s.bad.Bend = func(_ context.Context, name string, data []byte) ([]byte, error) {
				if strings.HasPrefix(name, "object/") && bytes.Contains(data, []byte(`"entry"`)) {
					return bend(data), nil
				}
				return data, nil
			}
		}
	}
	for _, tc := range []struct {
		name    string
		attack  func(*scene)
		outcome string // counted of mirrors; "": nothing
		refused string // the reason of a refusal of a node_runtime; "": none
	}{
		{"honest", func(*scene) {}, "ok", ""},
		{"down", func(s *scene) { s.bad.Down = true }, "unreachable", ""},
		{"empty", func(s *scene) { s.bad.Disk = durabletest.NewDisk() }, "unreachable", ""},
		{"garbage", func(s *scene) {
			s.bad.Bend = func(_ context.Context, _ string, data []byte) ([]byte, error) {
				return []byte("garbage"),
					nil
			}
		}, "malformed", ""},
		{"endless", func(s *scene) {
			s.bad.Bend = func(context.Context, string, []byte) ([]byte, error) { return make([]byte, 1<<24), nil }
		}, "too_large", ""},
		{"never answers", func(s *scene) {
			s.bad.Bend = func(ctx context.Context, _ string, _ []byte) ([]byte, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}
		}, "unreachable", ""},
		{"never gives the header", func(s *scene) {
			s.bad.Bend = func(ctx context.Context, name string, data []byte) ([]byte, error) {
				if strings.HasPrefix(name, "tree/") {
					<-ctx.Done()
					return nil, ctx.Err()
				}
				return data, nil
			}
		}, "", ""},
		{"another cluster's", func(s *scene) {
			s.bad.Disk = durabletest.NewDisk()
			s.f.PublishAs(s.m, "other.example", []*signedtest.Replica{s.bad})
		}, "other_cluster", ""},
		{"an older generation", func(s *scene) {
			s.bad.Disk = durabletest.NewDisk()
			s.f.Publish(s.m, []*signedtest.Replica{s.bad},
				func(h *snapshot.Header, _ *snapshot.NodeRuntime, r *snapshot.Record) {
					h.ConfigVersion, r.Generation = 1, 1
				})
		}, "stale", ""},
		{"signed by a stranger, and claims to be the newest", func(s *scene) {
			s.bad.Disk = durabletest.NewDisk()
			key := s.f.ConfigKey
			s.f.ConfigKey = ed25519.NewKeyFromSeed(bytes.Repeat([]byte{7}, ed25519.SeedSize))
			s.f.Publish(s.m, []*signedtest.Replica{s.bad},
				func(h *snapshot.Header, _ *snapshot.NodeRuntime, r *snapshot.Record) {
					h.ConfigVersion, r.Generation = 1<<40, 1<<40
				})
			s.f.ConfigKey = key
		}, "ok", "signature"},
		{"for another node", func(s *scene) {
			s.bad.Disk = durabletest.NewDisk()
			m := *s.m
			m.Incarnation[0] ^= 1
			s.f.Publish(&m, []*signedtest.Replica{s.bad},
				func(_ *snapshot.Header, _ *snapshot.NodeRuntime, r *snapshot.Record) { r.Generation += 100 })
		}, "ok", ""},
		{"a content that is cut", contentOnly(func(d []byte) []byte { return d[:len(d)-1] }), "truncated",
			"unavailable"},
		{"a content that goes on", contentOnly(func(d []byte) []byte {
			return append(bytes.Clone(d),
				make([]byte, 1<<20)...)
		}), "too_large", "unavailable"},
		{"another content", contentOnly(func(d []byte) []byte { d = bytes.Clone(d); d[5] ^= 1; return d }),
			"wrong_bytes", "unavailable"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := nodetest.New(t)
				n := newNode(f)
				n.MustJoin()
				m := f.Member(n.mustID())
				bad, good := signedtest.NewReplica("bad"), signedtest.NewReplica("good")
				a := n.withMirrors(bad, good)
				defer a.Close()
				f.Do(func() { f.Faults.Down["all"] = true })
				f.Publish(&m, []*signedtest.Replica{good})
				a.Fetcher().Inquire(t.Context())
				first := generation(a)
				if first == 0 {
					t.Fatal("nothing came from the mirror")
				}
				time.Sleep(5 * time.Minute)
				f.Publish(&m, []*signedtest.Replica{bad, good},
					func(_ *snapshot.Header, c *snapshot.NodeRuntime, _ *snapshot.Record) { c.Entry = "entry" })
				tc.attack(&scene{f, &m, bad})
				was := mirrorReads(a, tc.outcome)
				began := time.Now()
				a.Fetcher().Inquire(t.Context())
				if generation(a) <= first {
					t.Errorf("the news of the good mirror did not come: generation %d", generation(a))
				}
				if tc.outcome != "" && mirrorReads(a, tc.outcome) <= was {
					t.Errorf("the outcome %s is not counted", tc.outcome)
				}
				if took := time.Since(began); took > fetch.CycleTime {
					t.Errorf("it took %v", took)
				}
				if tc.refused == "signature" && !n.said.Has("snapshot refused", "reason="+tc.refused, `source="mirror bad"`) {
					t.Error("no line of the log says which mirror it was")
				}
				for _, reason := range []string{"signature", "unavailable", "stale_record", "config_version",
					"equivocation", "malformed", "subject"} {
					got := testutil.ToFloat64(a.Counters().Rejected().WithLabelValues("node_runtime", reason)) > 0
					if got && reason != tc.refused {
						t.Errorf("a node_runtime was refused: %s", reason)
					}
					if !got && reason == tc.refused && tc.refused != "unavailable" {
						t.Errorf("no node_runtime was refused with %s", reason)
					}
				}
			})
		})
	}
}

// scene is what an attack has.
type scene struct {
	f   *nodetest.Fleet
	m   *signedtest.Member
	bad *signedtest.Replica
}

// Mirrors that are behind each other by turns bring nobody back, and are no alarm.
func TestMirrorsFlipFlop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := nodetest.New(t)
		n := newNode(f)
		n.MustJoin()
		m := f.Member(n.mustID())
		x, y := signedtest.NewReplica("x"), signedtest.NewReplica("y")
		a := n.withMirrors(x, y)
		defer a.Close()
		f.Do(func() { f.Faults.Down["all"] = true })
		last := uint64(0)
		for i := range 20 {
			time.Sleep(time.Minute)
			to := x
			if i%3 == 0 {
				to = y
			}
			f.Publish(&m, []*signedtest.Replica{to})
			x.Down, y.Down = i%5 == 1, i%5 == 2 // now and then only one answers
			a.Fetcher().Inquire(t.Context())
			x.Down, y.Down = false, false
			if got := generation(a); got < last {
				t.Fatalf("generation %d after %d", got, last)
			} else {
				last = got
			}
		}
		a.Fetcher().Inquire(t.Context())
		if got := generation(a); got != f.Next {
			t.Errorf("generation %d, the newest is %d", got, f.Next)
		}
		if mirrorReads(a, "stale") == 0 {
			t.Error("no mirror was seen to be behind: this shows nothing")
		}
		if refused := a.Node().Status().Refusals(); len(refused) > 0 {
			t.Errorf("a mirror that is behind raised an alarm: %+v", refused)
		}
	})
}

// Two trees under one generation are proof that a signer lies: it is told, and what is
// in use stays.
func TestMirrorShowsEquivocation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := nodetest.New(t)
		n := newNode(f)
		n.MustJoin()
		m := f.Member(n.mustID())
		x, y := signedtest.NewReplica("x"), signedtest.NewReplica("y")
		a := n.withMirrors(x, y)
		defer a.Close()
		f.Do(func() { f.Faults.Down["all"] = true })
		f.Publish(&m, []*signedtest.Replica{x})
		a.Fetcher().Inquire(t.Context())
		first, held := generation(a), a.Node().TrustState().Active[snapshot.ScopeNodeRuntime]
		if first == 0 {
			t.Fatal("nothing came from the mirror")
		}
		f.Publish(&m, []*signedtest.Replica{y}, func(_ *snapshot.Header, c *snapshot.NodeRuntime, r *snapshot.Record) {
			c.Entry, r.Generation = "another", first
		})
		x.Down = true
		a.Fetcher().Inquire(t.Context())
		if a.Node().TrustState().Active[snapshot.ScopeNodeRuntime] != held {
			t.Error("what is in use was replaced")
		}
		if got := testutil.ToFloat64(a.Counters().Rejected().WithLabelValues("node_runtime", "equivocation")); got != 1 {
			t.Errorf("%v equivocations are counted", got)
		}
		if !n.Has(dir.SnapshotName(snapshot.ScopeNodeRuntime, dir.Refused)) {
			t.Error("the evidence was not kept")
		}
	})
}

// A node that lost its marks takes no mirror's word for what holds now.
func TestMirrorIsNotBelievedWithoutMarks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := nodetest.New(t)
		n := newNode(f)
		n.MustJoin()
		m := f.Member(n.mustID())
		r := signedtest.NewReplica("mirror")
		n.Disk.Put(n.Path(dir.MarksAName), []byte("x"))
		n.Disk.Put(n.Path(dir.MarksBName), nil)
		a := n.withMirrors(r)
		defer a.Close()
		f.Do(func() { f.Faults.Down["all"] = true })
		f.Publish(&m, []*signedtest.Replica{r})
		a.Fetcher().Inquire(t.Context())
		if generation(a) != 0 || len(a.Node().TrustState().Active) != 0 {
			t.Errorf("it uses %v on the word of a mirror", a.Node().TrustState().Active)
		}
	})
}

// A node does not ask more mirrors than it can in a round.
func TestTooManyMirrors(t *testing.T) {
	f := nodetest.New(t)
	n := newNode(f)
	n.MustJoin()
	cfg := agent.Config{DataDir: n.Dir, FS: n.Disk.FS(), Now: f.Clock, Log: nodetest.Quiet()}
	for i := range fetch.MaxMirrors + 1 {
		cfg.Mirrors = append(cfg.Mirrors, signedtest.NewReplica(fmt.Sprint(i)))
	}
	if a, err := agent.Open(context.Background(), cfg); err == nil {
		a.Close()
		t.Error("it was opened")
	} else if errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// The endpoints of the storage directory are mirrors too, as far as the guard and the
// revocations let them, for their families, by their priority.
func TestStorageEndpoints(t *testing.T) {
	const first, second = "https://first.example/", "https://second.example/"
	families := []snapshot.Scope{snapshot.ScopeNodeRuntime, snapshot.ScopeTrustBundle}
	for _, tc := range []struct {
		name     string
		families []snapshot.Scope
		allow    []string
		age      time.Duration // since the last word of a coordinator
		revoke   []snapshot.Revoked
		want     []string // opened, in this order
		news     bool
	}{
		{"while the record is fresh", families, nil, time.Minute, nil, []string{first, second}, true},
		{"degraded, and allowed", families, []string{"use_storage_endpoints"}, 3 * time.Hour, nil,
			[]string{first, second}, true},
		{"degraded, and not allowed", families, []string{"continue_services"}, 3 * time.Hour, nil, nil, false},
		{"of other families", []snapshot.Scope{snapshot.ScopeRoutePolicy}, nil, time.Minute, nil,
			[]string{first, second}, false},
		{"one is revoked by its URL", families, nil, time.Minute,
			[]snapshot.Revoked{{Kind: internalsnapshot.RevokedStorage, Name: first}}, []string{second}, true},
		{"both are revoked by their names", families, nil, time.Minute,
			[]snapshot.Revoked{{Kind: internalsnapshot.RevokedStorage, Name: "a"},
				{Kind: internalsnapshot.RevokedStorage, Name: "b"}}, nil, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := nodetest.New(t)
				n := newNode(f)
				n.MustJoin()
				m := f.Member(n.mustID())
				shelf := signedtest.NewReplica("shelf")
				var opened []string
				cfg := agent.Config{DataDir: n.Dir, FS: n.Disk.FS(), Now: f.Clock, Log: nodetest.Quiet(), Dial: f.Dial,
					OpenMirror: func(url string) (mirror.Source, error) {
						opened = append(opened, url)
						return shelf, nil
					}}
				a, err := agent.Open(t.Context(), cfg)
				f.Must(err)
				defer a.Close()
				runtime := func(_ *snapshot.Header, c *snapshot.NodeRuntime, _ *snapshot.Record) {
					c.Companions = []snapshot.Scope{snapshot.ScopeStorageDirectory}
					c.Degraded.Allow = tc.allow
				}
				f.Must(n.take(a, f.Runtime(&m, runtime)))
				f.Must(n.take(a, f.Companion(&m, snapshot.ScopeStorageDirectory,
					&snapshot.StorageDirectory{Endpoints: []snapshot.StorageEndpoint{
						{Name: "a", URL: second, Families: tc.families, Priority: 1},
						{Name: "b", URL: first, Families: tc.families, Priority: 9},
					}})))
				if len(tc.revoke) > 0 {
					h, content := f.TrustHeader(), f.Content()
					h.ConfigVersion += 100
					content.Revoked = tc.revoke
					f.Must(n.take(a, f.SignTrust(h, content)))
				}
				before := generation(a)
				if before == 0 || a.Node().TrustState().Active[snapshot.ScopeStorageDirectory] == nil {
					t.Fatal("the node does not hold what it was told")
				}
				f.Do(func() { f.Faults.Down["all"] = true })
				time.Sleep(tc.age)
				f.Publish(&m, []*signedtest.Replica{shelf}, runtime)
				opened = nil
				a.Fetcher().Inquire(t.Context())
				if !slices.Equal(opened, tc.want) {
					t.Errorf("opened %q, want %q", opened, tc.want)
				}
				if got := generation(a) > before; got != tc.news {
					t.Errorf("news came: %v, want %v", got, tc.news)
				}
			})
		})
	}
}

// service is a service_assignment and route the route_policy beside it, which differ with n.
func service(n int) snapshot.Content { return signedtest.ContentOf(snapshot.ScopeServiceAssignment, n) }
func route(n int) snapshot.Content   { return signedtest.ContentOf(snapshot.ScopeRoutePolicy, n) }

// One round at a mirror brings what the node is to hold by what it is now: what it was
// given just now, and all that follows from another role or organization.
func TestMirrorBringsWhatTheNewRuntimeGives(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := nodetest.New(t)
		n := newNode(f)
		n.MustJoin()
		m := f.Member(n.mustID())
		r := signedtest.NewReplica("mirror")
		a := n.withMirrors(r)
		defer a.Close()
		f.Do(func() { f.Faults.Down["all"] = true })
		holds := func(what string, scopes ...snapshot.Scope) {
			t.Helper()
			a.Fetcher().Inquire(t.Context())
			b := a.Node().TrustState()
			for _, scope := range scopes {
				if h := b.Active[scope]; h == nil || h.Verified.Header().ConfigVersion != f.Next {
					t.Errorf("%s: %s of this generation is not in use after one round", what, scope)
				}
			}
			if lacks := b.Lacks(); len(lacks) > 0 || len(a.Node().Status().Refusals()) > 0 {
				t.Errorf("%s: it lacks %v, and refused %+v", what, lacks, a.Node().Status().Refusals())
			}
			time.Sleep(time.Minute)
		}
		runtime := snapshot.ScopeNodeRuntime
		f.GenerationOf(&m, []*signedtest.Replica{r}, nil)
		holds("nothing is assigned", runtime)
		f.GenerationOf(&m, []*signedtest.Replica{r}, nil, service(1), route(1))
		holds("services and routes", runtime, snapshot.ScopeServiceAssignment, snapshot.ScopeRoutePolicy)
		f.GenerationOf(&m, []*signedtest.Replica{r}, func(c *snapshot.NodeRuntime) {
			c.Organizations = []string{"acme",
				"globex"}
		}, service(1), route(1))
		holds("another organization", runtime, snapshot.ScopeServiceAssignment, snapshot.ScopeRoutePolicy)
		f.GenerationOf(&m, []*signedtest.Replica{r}, func(c *snapshot.NodeRuntime) { c.Roles = nil }, service(2),
			route(2))
		holds("another role", runtime, snapshot.ScopeServiceAssignment, snapshot.ScopeRoutePolicy)
		f.GenerationOf(&m, []*signedtest.Replica{r}, nil, route(2))
		holds("no services", runtime, snapshot.ScopeRoutePolicy)
		if a.Node().TrustState().Active[snapshot.ScopeServiceAssignment] != nil {
			t.Error("it still holds services that it has lost")
		}
	})
}

// A mirror that breaks off between what the node is and what goes with that brings half:
// the next one is asked for the rest.
func TestMirrorThatBreaksOff(t *testing.T) {
	t.Parallel()
	for _, second := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			f := nodetest.New(t)
			n := newNode(f)
			n.MustJoin()
			m := f.Member(n.mustID())
			x, y := signedtest.NewReplica("x"), signedtest.NewReplica("y")
			a := n.withMirrors(x, y)
			defer a.Close()
			f.Do(func() { f.Faults.Down["all"] = true })
			f.GenerationOf(&m, []*signedtest.Replica{x, y}, nil, service(1))
			broken := false
			x.Bend = func(_ context.Context, _ string, data []byte) ([]byte, error) {
				if broken {
					return nil, errors.New("it is gone")
				}
				broken = bytes.Contains(data, []byte(`"entry"`))
				return data, nil
			}
			y.Down = !second
			a.Fetcher().InquireOf(t.Context(), a.Fetcher().Surveyed(true))
			if lacks := a.Node().TrustState().Lacks(); len(lacks) == 0 != second || generation(a) == 0 {
				t.Errorf("with a second mirror: %v; it lacks %v at generation %d", second, lacks, generation(a))
			}
			if second {
				return
			}
			// It looks again, although the mirror did not move.
			x.Bend = nil
			stop := n.run(a)
			time.Sleep(2 * fetch.DefaultMirrorEvery)
			if lacks := a.Node().TrustState().Lacks(); len(lacks) > 0 {
				t.Errorf("a minute later it lacks %v", lacks)
			}
			_ = stop()
		})
	}
}

// While no coordinator is heard news at a mirror are taken within a look, however fresh
// the node is; a look without news reads the pointer alone, and beside a stream there is
// none.
func TestMirrorsAreLookedAt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := nodetest.New(t)
		n := newNode(f)
		n.MustJoin()
		m := f.Member(n.mustID())
		r := signedtest.NewReplica("mirror")
		var reads, most atomic.Int64
		r.Bend = func(_ context.Context, name string, data []byte) ([]byte, error) {
			reads.Add(1)
			most.Store(max(most.Load(), int64(len(data))))
			return data, nil
		}
		a := n.withMirrors(r)
		f.GenerationOf(&m, []*signedtest.Replica{r}, nil)
		f.Send(nodetest.News(f.Runtime(&m)))
		stop := n.run(a)
		time.Sleep(5 * time.Minute)
		if n := reads.Load(); n != 0 {
			t.Errorf("%d files were read beside a stream", n)
		}
		f.Do(func() { f.Faults.Down["all"] = true })
		f.Cut()
		f.GenerationOf(&m, []*signedtest.Replica{r}, nil, service(1))
		time.Sleep(2 * fetch.DefaultMirrorEvery)
		if a.Node().TrustState().Active[snapshot.ScopeServiceAssignment] == nil {
			t.Error("what was assigned is not there")
		}
		f.Do(func() { f.Banned = append(f.Banned, identity.KeyID{7}); f.Version++ })
		f.GenerationOf(&m, []*signedtest.Replica{r}, nil, service(1))
		time.Sleep(2 * fetch.DefaultMirrorEvery)
		if c, err := a.Node().Source().Current(t.Context()); err != nil ||
			!c.Bundle().Banned(identity.ID{}, identity.KeyID{7}) {
			t.Errorf("a ban did not come: %v", err)
		}
		reads.Store(0)
		most.Store(0)
		time.Sleep(4 * time.Minute)
		if n := reads.Load(); n < 6 || n > 10 || most.Load() > 400 {
			t.Errorf("%d files of up to %d bytes were read in four minutes without news", n, most.Load())
		}
		_ = stop()
	})
}
