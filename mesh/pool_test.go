package mesh_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/mesh"
	"github.com/fealty-io/fealty/test/logs"
	"github.com/fealty-io/fealty/test/testlane"
	"github.com/fealty-io/fealty/test/wait"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"pgregory.net/rapid"
)

// Endpoints that are wrong in every way are skipped, named with the reason in one line each, and
// heal when they are mended, without anybody being asked again where they are (I19). No call fails
// meanwhile. It holds for a pool and for a client of grpc.NewClient.
func TestSetSkipsAndHeals(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	cfg := mesh.GuardConfig{Source: credential.Static(material(t, a, identity.Coordinator, "c1"))}
	me := credential.Static(material(t, a, identity.Data, "n1"))
	expect := credential.ExactID(a.ID(t, identity.Coordinator, "c1"))
	for name, connect := range map[string]func(*testing.T, string, mesh.Options) grpc.ClientConnInterface{
		"pool": func(t *testing.T, target string, opts mesh.Options) grpc.ClientConnInterface {
			return pooled(t, newPool(t, opts), target, me, expect)
		},
		"grpc.NewClient": func(t *testing.T, target string, opts mesh.Options) grpc.ClientConnInterface {
			return plainClient(t, target, me, expect, opts)
		},
	} {
		t.Run(name, func(t *testing.T) {
			bad := badSpots(t, a, cfg)
			good := []*spot{newSpot(t, "good", cfg, "", nil), newSpot(t, "good too", cfg, "", nil)}
			all := append(slices.Clone(bad), good...)
			var told logs.Text
			c := connect(t, static(all...), mesh.Options{Log: told.Logger(slog.LevelInfo)})
			call := func() {
				t.Helper()
				if id, err := who(t, c); err != nil || id != "spiffe://prod.example/data/n1" {
					t.Fatalf("a call while two endpoints are good: %q, %v", id, err)
				}
			}
			wait.Until(t, "each bad endpoint is tried again", func() bool {
				call()
				return !slices.ContainsFunc(bad, func(s *spot) bool { return s.shaken.Load() < 3 })
			})
			for _, s := range bad {
				named := told.Lines("endpoint="+s.addr+" ", "rejected", "reason="+string(s.want),
					"expected=spiffe://prod.example/coordinator/c1")
				if len(named) != 1 || len(told.Lines(s.addr)) != 1 {
					t.Errorf("%s has the lines %q of %q, want one", s.name, named, told.Lines(s.addr))
				}
				if s.served.Load() > 0 {
					t.Errorf("%s was called", s.name)
				}
			}
			for _, s := range good {
				if s.served.Load() == 0 {
					t.Errorf("%s was never called", s.name)
				}
				if got := told.Lines(s.addr); len(got) > 0 {
					t.Errorf("%s has the lines %q", s.name, got)
				}
			}
			for _, s := range bad {
				s.mend()
			}
			wait.Until(t, "each mended endpoint is called", func() bool {
				call()
				return !slices.ContainsFunc(all, func(s *spot) bool { return s.served.Load() == 0 })
			})
			for _, s := range bad {
				if healed := told.Lines("endpoint healed", "endpoint="+s.addr, "was="+string(s.want)); len(healed) != 1 {
					t.Errorf("%s has the lines %q after it was mended", s.name, told.Lines(s.addr))
				}
			}
		})
	}
}

// plainClient is a client of grpc.NewClient until the test ends.
func plainClient(tb testing.TB, target string, src credential.Source, expect credential.Expect,
	opts mesh.Options) *grpc.ClientConn {
	tb.Helper()
	options, err := mesh.ClientOptions(src, expect, opts)
	if err != nil {
		tb.Fatal(err)
	}
	c, err := grpc.NewClient(target, options...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { c.Close() })
	return c
}

// When no endpoint is good the error says why of each: what cannot be reached was not rejected, and
// what was rejected was asked once for the call.
func TestNoEndpointOfASet(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	cfg := mesh.GuardConfig{Source: credential.Static(material(t, a, identity.Coordinator, "c1"))}
	me := credential.Static(material(t, a, identity.Data, "n1"))
	expect := credential.ExactID(a.ID(t, identity.Coordinator, "c1"))
	gone := nobody(t)
	// Endpoints are tried again beside a call; here that is to be after the call.
	opts := mesh.Options{Log: new(logs.Text).Logger(slog.LevelInfo), GRPC: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
		Backoff: backoff.Config{BaseDelay: time.Minute, MaxDelay: time.Minute}, MinConnectTimeout: time.Minute})}}
	for name, connect := range map[string]func(*testing.T, string) grpc.ClientConnInterface{
		"pool": func(t *testing.T, target string) grpc.ClientConnInterface {
			return pooled(t, newPool(t, opts), target, me, expect)
		},
		"grpc.NewClient": func(t *testing.T, target string) grpc.ClientConnInterface {
			return plainClient(t, target, me, expect, opts)
		},
	} {
		for _, kind := range []string{"unary", "stream"} {
			t.Run(name+" "+kind, func(t *testing.T) {
				bad := badSpots(t, a, cfg)
				target := static(bad...) + "," + gone
				c := connect(t, target)
				var err error
				if kind == "unary" {
					_, err = who(t, c)
				} else {
					_, _, err = talk(t, c, talkMethod)
				}
				var asked int64
				for _, s := range bad {
					asked += s.shaken.Load()
				}
				none, ok := errors.AsType[*mesh.NoEndpointsError](err)
				if !ok || len(none.Failures) != len(bad)+1 || none.Target != target || status.Code(err) != codes.Unavailable {
					t.Fatalf("%v (%T), want a NoEndpointsError of %d endpoints", err, err, len(bad)+1)
				}
				for _, s := range bad {
					if !slices.ContainsFunc(none.Unwrap(), func(err error) bool {
						h, ok := errors.AsType[*mesh.HandshakeError](err)
						return ok && h.Endpoint == s.addr && h.Reason == s.want
					}) {
						t.Errorf("of %s there is no %s in %v", s.name, s.want, none.Failures)
					}
				}
				if !slices.ContainsFunc(none.Failures, func(err error) bool {
					e, ok := err.(*mesh.EndpointError)
					return ok && e.Endpoint == gone && !errors.As(err, new(*mesh.HandshakeError))
				}) {
					t.Errorf("the one that is gone is not in %v as a failure of the network", none.Failures)
				}
				if asked != int64(len(bad)) {
					t.Errorf("for one call there were %d handshakes with %d endpoints", asked, len(bad))
				}
			})
		}
	}
}

// A set whose endpoints all fail keeps them: once one is mended calls go to it, and nobody was asked
// again where it is.
func TestDrainedSetHeals(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	cfg := mesh.GuardConfig{Source: credential.Static(material(t, a, identity.Coordinator, "c1"))}
	bad := badSpots(t, a, cfg)[:3]
	var told logs.Text
	c := pooled(t, newPool(t, mesh.Options{Log: told.Logger(slog.LevelInfo)}), static(bad...),
		credential.Static(material(t, a, identity.Data, "n1")), credential.ExactID(a.ID(t, identity.Coordinator, "c1")))
	if _, err := who(t, c); !errors.As(err, new(*mesh.NoEndpointsError)) {
		t.Fatalf("with none that is good: %v", err)
	}
	for i, s := range bad {
		s.mend()
		wait.Until(t, s.name+" is called once it is mended", func() bool {
			_, err := who(t, c)
			if i == 0 && errors.As(err, new(*mesh.NoEndpointsError)) {
				return false // it was not tried again yet
			}
			if err != nil {
				t.Fatal(err)
			}
			return s.served.Load() > 0
		})
		if len(told.Lines("rejected", s.addr)) != 1 || len(told.Lines("endpoint healed", s.addr)) != 1 {
			t.Errorf("of %s the log says %q", s.name, told.Lines(s.addr))
		}
	}
}

// An endpoint that advertises no TLS is left out, which one line says, and is not even dialed;
// when discovery changes its mind it is used.
func TestPlainEndpointsAreLeftOut(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	cfg := mesh.GuardConfig{Source: credential.Static(material(t, a, identity.Coordinator, "c1"))}
	s, plain := newSpot(t, "says nothing", cfg, "", nil), newSpot(t, "plain", cfg, "", nil)
	secure := newSpot(t, "secure", cfg, "", nil)
	at := func(s *spot) resolver.Endpoint {
		return resolver.Endpoint{Addresses: []resolver.Address{{Addr: s.addr}}}
	}
	found := manual.NewBuilderWithScheme("found")
	found.InitialState(resolver.State{Endpoints: []resolver.Endpoint{mesh.MarkSecure(at(plain), false)}})
	var told logs.Text
	pool := newPool(t, mesh.Options{Log: told.Logger(slog.LevelInfo), GRPC: []grpc.DialOption{grpc.WithResolvers(found)}})
	c := pooled(t, pool, "found:///x", credential.Static(material(t, a, identity.Data, "n1")),
		credential.AnyOfKind(identity.Coordinator))
	_, err := who(t, c)
	none, ok := errors.AsType[*mesh.NoEndpointsError](err)
	if !ok || len(none.Failures) != 1 || !strings.Contains(err.Error(), "no TLS") || errors.As(err, new(*mesh.HandshakeError)) {
		t.Fatalf("with none but a plain one: %v", err)
	}
	for range 2 { // the second answer is no news
		found.UpdateState(resolver.State{Endpoints: []resolver.Endpoint{at(s), mesh.MarkSecure(at(plain), false),
			mesh.MarkSecure(at(secure), true)}})
	}
	wait.Until(t, "both others are called", func() bool {
		if _, err := who(t, c); err != nil {
			t.Fatal(err)
		}
		return s.served.Load() > 0 && secure.served.Load() > 0
	})
	if plain.shaken.Load() > 0 {
		t.Error("the plain endpoint was dialed")
	}
	if got := told.Lines("left out", plain.addr); len(got) != 1 {
		t.Errorf("the lines are %q, want one", got)
	}
	found.UpdateState(resolver.State{Endpoints: []resolver.Endpoint{at(plain)}})
	wait.Until(t, "it is used once nothing is said against it", func() bool {
		if _, err := who(t, c); err != nil {
			t.Fatal(err)
		}
		return plain.served.Load() > 0
	})
}

// Two that ask for the same share the connection; it stands until the last one left and nothing runs.
func TestPoolShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := pkitest.NewAuthority(t, cluster)
		ln, opts := inMemory()
		s := serve(t, ln, mesh.GuardConfig{Source: credential.Static(material(t, a, identity.Coordinator, "c1"))})
		pool := newPool(t, opts)
		m := material(t, a, identity.Data, "n1")
		ask := func() *mesh.Conn {
			return pooled(t, pool, "passthrough:///c1", credential.Static(m), credential.AnyOfKind(identity.Coordinator))
		}
		first, second := ask(), ask()
		for _, c := range []*mesh.Conn{first, second} {
			if _, err := who(t, c); err != nil {
				t.Fatal(err)
			}
		}
		stands := func(conns, clients int, when string) {
			t.Helper()
			synctest.Wait()
			if s.guard.Live() != conns || pool.Len() != clients {
				t.Fatalf("%s: %d connections of %d clients, want %d and %d", when, s.guard.Live(), pool.Len(), conns, clients)
			}
		}
		stands(1, 1, "two share")
		first.Close()
		first.Close() // leaves once
		if _, err := who(t, first); !errors.Is(err, mesh.ErrClosed) {
			t.Fatalf("a client that was closed: %v", err)
		}
		st, _, err := talk(t, second, talkMethod)
		if err != nil {
			t.Fatal(err)
		}
		second.Close()
		stands(1, 1, "a stream runs")
		if err := echo(st, "still here"); err != nil {
			t.Fatal(err)
		}
		third := ask() // while it is about to end
		if err := st.CloseSend(); err != nil {
			t.Fatal(err)
		}
		st.RecvMsg(new(wrapperspb.BytesValue))
		stands(1, 1, "it was asked for again")
		third.Close()
		stands(0, 0, "the last one left")
		if _, err := who(t, ask()); err != nil {
			t.Fatal(err)
		}
		stands(1, 1, "a fresh one")
	})
}

// held is a source that answers only once it is let, after it was armed.
type held struct {
	credential.Source
	armed chan struct{} // closed: it waits from now on
	let   chan struct{}
}

func (h *held) Current(ctx context.Context) (*credential.Material, error) {
	select {
	case <-h.armed:
		<-h.let
	default:
	}
	return h.Source.Current(ctx)
}

// A pool that was closed runs nothing any more, also of clients that were left before.
func TestPoolCloseWaitsForThoseThatWereLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := pkitest.NewAuthority(t, cluster)
		ln, opts := inMemory()
		serve(t, ln, mesh.GuardConfig{Source: credential.Static(material(t, a, identity.Coordinator, "c1"))})
		mine := credential.NewIssued(material(t, a, identity.Data, "n1"))
		src := &held{mine, make(chan struct{}), make(chan struct{})}
		pool := newPool(t, opts)
		c := pooled(t, pool, "passthrough:///c1", src, credential.AnyOfKind(identity.Coordinator))
		if _, err := who(t, c); err != nil {
			t.Fatal(err)
		}
		close(src.armed)
		if err := mine.Adopt(material(t, a, identity.Data, "n1")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // the source is asked
		c.Close()
		closed := make(chan struct{})
		go func() { defer close(closed); pool.Close() }()
		synctest.Wait()
		select {
		case <-closed:
			t.Error("the pool is closed, and a goroutine of it asks the source")
		default:
		}
		close(src.let)
		<-closed
	})
}

// A client that is asked for after the last one left has a fresh connection, and not one that
// was left because its server could not be reached.
func TestPoolAfterTheLastLeft(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	me := credential.Static(material(t, a, identity.Shard, "eu-1"))
	l, options := inMemory()
	var through atomic.Bool
	reached := options.Dialer
	options.Dialer = func(ctx context.Context, address string) (net.Conn, error) {
		if !through.Load() {
			return nil, errors.New("nobody is there")
		}
		return reached(ctx, address)
	}
	serve(t, l, mesh.GuardConfig{Source: credential.Static(material(t, a, identity.Coordinator, "c-1"))})
	pool := newPool(t, options)
	for i := range 40 {
		through.Store(i%2 == 1)
		c, err := pool.Dial("passthrough:///c-1", me, credential.AnyOfKind(identity.Coordinator))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := who(t, c); (err == nil) != through.Load() {
			t.Fatalf("call %d, with a server %v: %v", i, through.Load(), err)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A pool is bounded, and has room again when one leaves.
func TestPoolIsBounded(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	src, expect := credential.Static(trustOnly(t, a.Bundle())), credential.AnyOfKind(identity.Coordinator)
	pool := newPool(t, mesh.Options{})
	var last *mesh.Conn
	for i := range mesh.MaxPooled {
		last = pooled(t, pool, fmt.Sprintf("passthrough:///%d", i), src, expect)
	}
	if _, err := pool.Dial("passthrough:///more", src, expect); status.Code(err) != codes.ResourceExhausted {
		t.Fatalf("beyond the bound: %v", err)
	}
	pooled(t, pool, "passthrough:///0", src, expect) // is there
	last.Close()
	wait.Until(t, "there is room again", func() bool { return pool.Len() < mesh.MaxPooled })
	pooled(t, pool, "passthrough:///more", src, expect)
	if err := pool.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Dial("passthrough:///0", src, expect); !errors.Is(err, mesh.ErrClosed) {
		t.Fatalf("of a closed pool: %v", err)
	}
	if _, err := who(t, last); !errors.Is(err, mesh.ErrClosed) {
		t.Fatal(err)
	}
}

// Calls are in flight, ten thousand in the night, while the client's material and the servers' changes
// again and again, and none fails; what nobody needs any more is closed.
func TestCallsOutliveRotations(t *testing.T) {
	rotations, each := testlane.Rounds(10, 100), testlane.Rounds(20, 100)
	a := pkitest.NewAuthority(t, cluster)
	theirs := credential.NewIssued(material(t, a, identity.Coordinator, "c1"))
	mine := credential.NewIssued(material(t, a, identity.Data, "n1"))
	expect := credential.ExactID(a.ID(t, identity.Coordinator, "c1"))
	for name, connect := range map[string]func(*testing.T, string) grpc.ClientConnInterface{
		"pool": func(t *testing.T, target string) grpc.ClientConnInterface {
			return pooled(t, newPool(t, mesh.Options{Log: new(logs.Text).Logger(slog.LevelInfo)}), target, mine, expect)
		},
		"grpc.NewClient": func(t *testing.T, target string) grpc.ClientConnInterface {
			return plainClient(t, target, mine, expect, mesh.Options{Log: new(logs.Text).Logger(slog.LevelInfo)})
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := mesh.GuardConfig{Source: theirs, MaxPerIdentity: 4 * rotations}
			spots := []*spot{newSpot(t, "one", cfg, "", nil), newSpot(t, "two", cfg, "", nil)}
			bad := badSpots(t, a, cfg)[:2]
			release := make(chan struct{})
			var began atomic.Int64
			var newest atomic.Pointer[identity.KeyID] // of who called last
			for _, s := range spots {
				s.onWho = func(ctx context.Context) {
					newest.Store(new(identity.FromContext(ctx).Key))
					began.Add(1)
					<-release
				}
			}
			c := connect(t, static(append(spots, bad...)...))
			var calls sync.WaitGroup
			failures := make(chan error, rotations*each)
			for r := range rotations {
				for range each {
					calls.Go(func() {
						ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute) // the first wait for all rotations
						defer cancel()
						if err := c.Invoke(ctx, whoMethod, wrapperspb.Bytes(nil), new(wrapperspb.BytesValue)); err != nil {
							failures <- err
						}
					})
				}
				wait.Until(t, "they are in flight", func() bool { return began.Load() == int64((r+1)*each) || len(failures) > 0 })
				if err := mine.Adopt(material(t, a, identity.Data, "n1")); err != nil {
					t.Fatal(err)
				}
				if r%2 == 0 {
					if err := theirs.Adopt(material(t, a, identity.Coordinator, "c1")); err != nil {
						t.Fatal(err)
					}
				}
			}
			close(release)
			calls.Wait()
			close(failures)
			n := 0
			for err := range failures {
				if n++; n < 4 {
					t.Error(err)
				}
			}
			if n > 0 {
				t.Errorf("%d of %d calls failed", n, rotations*each)
			}
			if _, err := who(t, c); err != nil { // on the newest
				t.Error(err)
			}
			m, err := mine.Current(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if last := newest.Load(); *last != m.Pin() {
				t.Error("the last call did not run on the newest material")
			}
			wait.Until(t, "one connection to each stands", func() bool { return spots[0].guard.Live() <= 1 && spots[1].guard.Live() <= 1 })
		})
	}
}

// Clients share connections exactly if target, source and expectation are the same, where sources
// that cannot change are the same with the same fingerprint. Each call runs on the newest material
// of its client's source, and what nobody holds and no call needs is gone.
func TestPoolKeys(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		type step struct{ Do, Target, Source, Expect, Client, Material int }
		steps := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) step {
			draw := func(name string, n int) int { return rapid.IntRange(0, n-1).Draw(t, name) }
			return step{draw("do", 6), draw("target", 2), draw("source", 5), draw("expect", 3), draw("client", 8),
				draw("material", 3)}
		}), 1, 20).Draw(rt, "steps")
		var failed error
		synctest.Test(t, func(t *testing.T) {
			failed = func() error {
				a := pkitest.NewAuthority(t, cluster)
				ln, opts := inMemory()
				s := serve(t, ln, mesh.GuardConfig{Source: credential.Static(material(t, a, identity.Coordinator, "c1")), MaxPerIdentity: 100})
				var materials []*credential.Material
				for range 3 {
					materials = append(materials, material(t, a, identity.Data, "n1"))
				}
				changing := []*credential.Issued{credential.NewIssued(materials[0]), credential.NewIssued(materials[0])}
				holds := []int{0, 0, 0, 0, 1} // which material each source has
				sources := []credential.Source{changing[0], changing[1], credential.Static(materials[0]),
					credential.Static(materials[0]), credential.Static(materials[1])}
				same := []int{0, 1, 2, 2, 4} // by the index of a source, the first one that is the same
				c1 := a.ID(t, identity.Coordinator, "c1")
				expects := []credential.Expect{credential.ExactID(c1), credential.AnyOfKind(identity.Coordinator), credential.AnyOf(c1, c1)}
				means := []int{0, 1, 0}
				pool := newPool(t, opts)

				type key struct{ target, source, expect int }
				type client struct {
					key
					conn   *mesh.Conn
					source int
				}
				var clients []client
				for i, st := range steps {
					at := st.Client % max(len(clients), 1)
					switch {
					case st.Do <= 1 || len(clients) == 0:
						conn, err := pool.Dial(fmt.Sprint("passthrough:///", st.Target), sources[st.Source], expects[st.Expect])
						if err != nil {
							return err
						}
						clients = append(clients, client{key{st.Target, same[st.Source], means[st.Expect]}, conn, st.Source})
					case st.Do == 2:
						clients[at].conn.Close()
						clients = slices.Delete(clients, at, at+1)
					case st.Do == 3 && st.Source < 2:
						if err := changing[st.Source].Adopt(materials[st.Material]); err != nil {
							return err
						}
						holds[st.Source] = st.Material
					default:
						if _, err := who(t, clients[at].conn); err != nil {
							return err
						}
						if got, want := s.last().Key, materials[holds[clients[at].source]].Pin(); got != want {
							return fmt.Errorf("step %d: a call ran on %v, its source has %v", i, got, want)
						}
					}
					synctest.Wait()
					keys := make(map[key]*mesh.Conn)
					for _, c := range clients {
						if other := keys[c.key]; other != nil && other != c.conn.Shared() {
							return fmt.Errorf("step %d: two of %v do not share", i, c.key)
						}
						keys[c.key] = c.conn.Shared()
					}
					shared := make(map[*mesh.Conn]key)
					for k, c := range keys {
						if other, ok := shared[c]; ok {
							return fmt.Errorf("step %d: %v and %v share", i, other, k)
						}
						shared[c] = k
					}
					if pool.Len() != len(keys) {
						return fmt.Errorf("step %d: the pool has %d clients, %d are held", i, pool.Len(), len(keys))
					}
					if s.guard.Live() > len(keys) {
						return fmt.Errorf("step %d: %d connections stand for %d clients", i, s.guard.Live(), len(keys))
					}
				}
				for _, c := range clients {
					c.conn.Close()
				}
				synctest.Wait()
				if pool.Len() != 0 || s.guard.Live() != 0 {
					return fmt.Errorf("%d clients and %d connections are left", pool.Len(), s.guard.Live())
				}
				return nil
			}()
		})
		if failed != nil {
			rt.Fatal(failed)
		}
	})
}

// A list that is none is refused, and says how to write one.
func TestStaticTargets(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	pool := newPool(t, mesh.Options{})
	for _, target := range []string{"static:///", "static:///127.0.0.1", "static:///127.0.0.1:1,,127.0.0.1:2", "static:///:1"} {
		c := pooled(t, pool, target, credential.Static(trustOnly(t, a.Bundle())), credential.AnyOfKind(identity.Coordinator))
		if _, err := who(t, c); err == nil || !strings.Contains(err.Error(), "static:///10.0.0.1:8443") {
			t.Errorf("%s: %v", target, err)
		}
	}
}

// A client of one target that is a list uses the first endpoint that proves itself.
func TestDialOfAList(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	cfg := mesh.GuardConfig{Source: credential.Static(material(t, a, identity.Coordinator, "c1"))}
	bad, first, second := badSpots(t, a, cfg)[:2], newSpot(t, "first", cfg, "", nil), newSpot(t, "second", cfg, "", nil)
	c := dial(t, static(append(slices.Clone(bad), first, second)...), credential.Static(material(t, a, identity.Data, "n1")),
		credential.AnyOfKind(identity.Coordinator), mesh.Options{})
	for range 20 {
		if _, err := who(t, c); err != nil {
			t.Fatal(err)
		}
	}
	if first.served.Load() != 20 || second.served.Load() != 0 {
		t.Errorf("the first good one was called %d times, the second %d", first.served.Load(), second.served.Load())
	}
}

// A client of grpc.NewClient is told to move its streams when the material changes, its calls run on
// the newest, and its connections end with the trust in their server.
func TestClientOptionsFollowTheSource(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	c1 := material(t, a, identity.Coordinator, "c1")
	s := serve(t, loopback(t), mesh.GuardConfig{Source: credential.Static(c1)})
	src := credential.NewIssued(material(t, a, identity.Data, "n1"))
	c := plainClient(t, s.addr, src, credential.ExactID(c1.ID()), mesh.Options{Log: new(logs.Text).Logger(slog.LevelInfo)})
	st, _, err := talk(t, c, talkMethod)
	if err != nil {
		t.Fatal(err)
	}
	info, ok := mesh.FromContext(st.Context())
	if !ok || info.Peer.ID != c1.ID() {
		t.Fatalf("the stream runs on %+v", info)
	}
	select {
	case <-info.Superseded():
		t.Fatal("superseded before a change")
	default:
	}
	next := material(t, a, identity.Data, "n1")
	if err := src.Adopt(next); err != nil {
		t.Fatal(err)
	}
	receive(t, info.Superseded(), "the word to move")
	if err := echo(st, "still here"); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "a call runs on the newest", func() bool {
		if _, err := who(t, c); err != nil {
			t.Fatal(err)
		}
		return s.last().Key == next.Pin()
	})
	if err := src.Trust(banning(a, c1.ID())); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- st.RecvMsg(new(wrapperspb.BytesValue)) }()
	if err := receive(t, ended, "the end of a stream to a server that is banned"); err == nil {
		t.Error("it said something")
	}
	wait.Until(t, "calls are refused", func() bool {
		_, err := who(t, c)
		return rejected(err, mesh.PeerUntrusted)
	})
}
