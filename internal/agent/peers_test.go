package agent_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/agent"
	"github.com/fealty-io/fealty/internal/agent/sharing"
	"github.com/fealty-io/fealty/internal/mirror"
	"github.com/fealty-io/fealty/internal/node/nodetest"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/internal/signed/signedtest"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/mesh"
	"github.com/fealty-io/fealty/snapshot"
)

// neighbours are members of one group that hear no coordinator, and can reach each other.
type neighbours struct {
	f  *nodetest.Fleet
	at map[string]*bufconn.Listener // by address
	// peers are those of the bootstrap list, by address.
	peers   map[string]identity.ID
	mirrors []mirror.Source // of those that open later
	dialed  atomic.Int64
}

func newNeighbours(f *nodetest.Fleet) *neighbours {
	return &neighbours{f: f, at: make(map[string]*bufconn.Listener), peers: make(map[string]identity.ID)}
}

// dial is the network.
func (s *neighbours) dial(ctx context.Context, addr string) (net.Conn, error) {
	if l := s.at[addr]; l != nil {
		s.dialed.Add(1)
		return l.DialContext(ctx)
	}
	return s.f.Dial(ctx, addr)
}

// open opens the agent of n, which serves peers at address if that is not blank.
func (s *neighbours) open(n *node, address string) *agent.Agent {
	s.f.TB.Helper()
	cfg := agent.Config{DataDir: n.Dir, FS: n.Disk.FS(), Now: s.f.Clock, Log: n.said.Logger(slog.LevelDebug), Dial: s.dial,
		Release: "v0.1.0", Mirrors: s.mirrors}
	if address != "" {
		l := bufconn.Listen(1 << 16)
		s.at[address], cfg.Sockets.Peers = l, l
	}
	a, err := agent.Open(context.Background(), cfg)
	s.f.Must(err)
	a.Serve("", "")
	return a
}

// group are the scopes of the group that the members are in.
var group = slices.DeleteFunc(slices.Clone(nodetest.AllCompanions),
	func(s snapshot.Scope) bool { return s == snapshot.ScopeServiceAssignment })

// lasts is the degraded policy of all of them.
var lasts = &snapshot.DegradedModePolicy{
	Allow: []string{"continue_services", "reconnect_peers", "validate_peers"}, Max: 24 * time.Hour,
}

// directory is the peer_directory of the group.
func (s *neighbours) directory() *snapshot.PeerDirectory {
	out := new(snapshot.PeerDirectory)
	for _, address := range slices.Sorted(maps.Keys(s.peers)) {
		out.Bootstrap = append(out.Bootstrap, snapshot.Peer{Name: strings.ReplaceAll(strings.Split(address, ":")[0],
			".", "-"), ID: s.peers[address], Addresses: []string{address}, State: snapshot.MemberActive})
	}
	slices.SortFunc(out.Bootstrap, func(x, y snapshot.Peer) int { return strings.Compare(x.Name, y.Name) })
	return out
}

// member joins a machine. All that ask or are asked join before anything is published.
func (s *neighbours) member(address string) *node {
	s.f.TB.Helper()
	n := newNode(s.f)
	id := n.MustJoin().ID
	if address != "" {
		s.peers[address] = id
	}
	return n
}

// publish gives a the next version of all that is for it: what is for its group, what is for
// itself alone, and the trust bundle.
func (s *neighbours) publish(a *agent.Agent, edits ...func(*snapshot.NodeRuntime)) {
	s.f.TB.Helper()
	m := s.f.Member(a.Node().Me().ID)
	var all []*fealtyv1.SignedSnapshot
	s.f.Do(func() {
		s.f.Version++
		all = []*fealtyv1.SignedSnapshot{s.f.TrustBundle(), s.f.Gives(&m, nodetest.AllCompanions,
			append([]func(*snapshot.NodeRuntime){func(c *snapshot.NodeRuntime) {
				c.Degraded.Allow = []string{"continue_services", "reconnect_peers", "validate_peers"}
			}}, edits...)...)}
		for _, scope := range nodetest.AllCompanions {
			content := signedtest.ContentOf(scope, int(s.f.Next))
			switch scope {
			case snapshot.ScopePeerDirectory:
				content = s.directory()
			case snapshot.ScopeDegradedModePolicy:
				content = lasts
			}
			all = append(all, s.f.OfGroup(&m, content))
		}
	})
	s.f.Must(a.Contact().Take(s.f.TB.Context(), state.ByCoordinator, offers(all...)...))
	if got := a.Node().Status().Refusals(); len(got) != 0 {
		s.f.TB.Fatalf("refused: %v", got)
	}
}

// down takes every coordinator away.
func (s *neighbours) down() { s.f.Do(func() { s.f.Faults.Down["all"] = true }) }

func asked(a *agent.Agent, outcome string) float64 {
	return testutil.ToFloat64(a.Counters().Asked().WithLabelValues("peer", outcome))
}

func answers(a *agent.Agent, outcome string) float64 {
	return testutil.ToFloat64(a.Counters().Shared().WithLabelValues(outcome))
}

// A node that starts with every coordinator away gets from a bootstrap peer the newer trust
// bundle, and what is signed for its group; of what is for itself alone it keeps what it has.
func TestPeersBringWhatIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := nodetest.New(t)
		s := newNeighbours(f)
		knows, n := s.member("knows.example:7000"), s.member("")
		a := s.open(n, "")
		s.publish(a)
		a.Close()
		peer := s.open(knows, "knows.example:7000")
		time.Sleep(30 * time.Minute) // what it holds is stale by then
		s.publish(peer)
		s.down()
		stop := knows.run(peer)
		a = s.open(n, "")
		before, want := inUse(a), inUse(peer)
		end := n.run(a)
		time.Sleep(2 * time.Minute)
		got := inUse(a)
		for _, scope := range append(slices.Clone(group), snapshot.ScopeTrustBundle) {
			if got[scope] != want[scope] || got[scope] == before[scope] {
				t.Errorf("%s: version %d in use, the peer has %d, it was %d", scope, got[scope], want[scope],
					before[scope])
			}
		}
		for _, scope := range []snapshot.Scope{snapshot.ScopeNodeRuntime, snapshot.ScopeServiceAssignment} {
			if got[scope] != before[scope] {
				t.Errorf("%s is for one node alone, and came from another", scope)
			}
		}
		if len(a.Node().Status().Refusals()) != 0 || asked(a, "news") == 0 || answers(peer, sharing.Given) == 0 {
			t.Errorf("refused: %v; %v asked with news, %v given", a.Node().Status().Refusals(), asked(a, "news"),
				answers(peer, sharing.Given))
		}
		n.wellKept(t, a)
		if !bytes.Contains(n.Read("state.json"), []byte(`"source":"peer"`)) {
			t.Error("nothing says that it came from a peer")
		}
		// It knows no better what it is by that: there is no newer word on it.
		if f := a.Node().Autonomy.Facts().Overall(a.Node().Now()); f == snapshot.Fresh {
			t.Error("it is fresh, and nobody said that its node_runtime holds")
		}
		// With nothing newer, nothing more comes.
		news := asked(a, "news")
		time.Sleep(20 * time.Minute)
		if asked(a, "news") != news || asked(a, "none") == 0 {
			t.Errorf("news came %v times, and then %v times", news, asked(a, "news"))
		}
		_, _ = end(), stop()
	})
}

// scopesOf lists which scopes a member is given that shows runtime and holds nothing.
func scopesOf(ctx context.Context, client fealtyv1.SharedServiceClient, name string, runtime []byte) ([]string,
	error) {
	stream, err := client.ListShared(ctx, &fealtyv1.ListSharedRequest{Name: name, NodeRuntime: runtime})
	if err != nil {
		return nil, err
	}
	var out []string
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			slices.Sort(out)
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		if sent := m.GetSnapshot(); sent != nil {
			out = append(out, sent.GetScope())
		}
	}
}

// contentOf pulls a content.
func contentOf(ctx context.Context, client fealtyv1.SharedServiceClient, name string, runtime, hash []byte) ([]byte,
	error) {
	stream, err := client.GetShared(ctx, &fealtyv1.GetSharedRequest{Name: name, NodeRuntime: runtime,
		ContentHash: hash})
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

// caller is a client of the peer at address that is the member of a.
func (s *neighbours) caller(t *testing.T, a *agent.Agent, address string) fealtyv1.SharedServiceClient {
	t.Helper()
	conn, err := mesh.Dial("passthrough:///"+address, a.Source(), credential.AnyOfKind(identity.Data),
		mesh.Options{Dialer: s.dial, Now: s.f.Clock})
	s.f.Must(err)
	t.Cleanup(func() { conn.Close() })
	return fealtyv1.NewSharedServiceClient(conn)
}

// bareOf is an envelope without its content.
func bareOf(t *testing.T, raw []byte) []byte {
	t.Helper()
	signed, err := snapshot.Unmarshal(raw)
	if err != nil {
		t.Fatal(err)
	}
	out, err := signed.With(nil).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Snapshots of a group are given to those alone that show to be in it, by what is signed and
// holds; the trust bundle is for every member, and a snapshot of one node for nobody.
func TestSharedIsForTheGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := nodetest.New(t)
		s := newNeighbours(f)
		knows, n := s.member("knows.example:7000"), s.member("")
		peer, a := s.open(knows, "knows.example:7000"), s.open(n, "")
		defer a.Close()
		s.publish(peer)
		s.publish(a)
		stop := knows.run(peer)
		me, other := f.Member(a.Node().Me().ID), f.Member(peer.Node().Me().ID)
		client := s.caller(t, a, "knows.example:7000")
		sign := func(edits ...func(*snapshot.Header, *snapshot.NodeRuntime, *snapshot.Record)) []byte {
			var out []byte
			f.Do(func() {
				out = f.Runtime(&me, append([]func(*snapshot.Header, *snapshot.NodeRuntime,
					*snapshot.Record){func(_ *snapshot.Header, c *snapshot.NodeRuntime, _ *snapshot.Record) {
					c.Roles, c.Organizations = signedtest.GroupRoles, signedtest.GroupOrganizations
				}}, edits...)...).GetEnvelope()
			})
			return bareOf(t, out)
		}
		edited := func(edit func(*snapshot.Header, *snapshot.NodeRuntime, *snapshot.Record)) func() []byte {
			return func() []byte { return sign(edit) }
		}
		bareIn := func(a *agent.Agent, scope snapshot.Scope) func() []byte {
			return func() []byte { return bareOf(t, a.Node().TrustState().Active[scope].Raw) }
		}
		mine := bareIn(a, snapshot.ScopeNodeRuntime)
		trustOnly := []string{"trust_bundle"}
		var all []string
		for _, scope := range append(slices.Clone(group), snapshot.ScopeTrustBundle) {
			all = append(all, string(scope))
		}
		slices.Sort(all)
		for _, tc := range []struct {
			name  string
			shows func() []byte
			want  []string
		}{
			{"its own", mine, all},
			{"nothing", func() []byte { return nil }, trustOnly},
			{"garbage", func() []byte { return []byte("garbage") }, trustOnly},
			{"that of the peer itself", bareIn(peer, snapshot.ScopeNodeRuntime), trustOnly},
			{"a header of the group", bareIn(peer, snapshot.ScopeRoutePolicy), trustOnly},
			{"its own, of another scope", bareIn(a, snapshot.ScopeServiceAssignment), trustOnly},
			{"with a proof that is bent", func() []byte {
				b := mine()
				b[len(b)-1] ^= 1
				return b
			}, trustOnly},
			{"signed by a stranger", func() []byte {
				key := f.ConfigKey
				f.ConfigKey = ed25519.NewKeyFromSeed(bytes.Repeat([]byte{7}, ed25519.SeedSize))
				defer func() { f.ConfigKey = key }()
				return sign()
			}, trustOnly},
			{"with its content", func() []byte { return a.Node().TrustState().Active[snapshot.ScopeNodeRuntime].Raw },
				trustOnly},
			{"of another organization", edited(func(_ *snapshot.Header, c *snapshot.NodeRuntime, _ *snapshot.Record) {
				c.Organizations = []string{"acme", "other"}
			}), trustOnly},
			{"of more roles", edited(func(_ *snapshot.Header, c *snapshot.NodeRuntime, _ *snapshot.Record) {
				c.Roles = []string{"core", "storage"}
			}), trustOnly},
			{"as old as it may be", edited(func(_ *snapshot.Header, _ *snapshot.NodeRuntime, r *snapshot.Record) {
				r.IssuedAt = r.IssuedAt.Add(-lasts.Max + time.Minute)
				r.FreshUntil = r.IssuedAt.Add(time.Minute)
			}), all},
			{"older than that", edited(func(_ *snapshot.Header, _ *snapshot.NodeRuntime, r *snapshot.Record) {
				r.IssuedAt = r.IssuedAt.Add(-lasts.Max - time.Second)
				r.FreshUntil = r.IssuedAt.Add(time.Minute)
			}), trustOnly},
			{"expired", edited(func(h *snapshot.Header, _ *snapshot.NodeRuntime, _ *snapshot.Record) {
				h.IssuedAt, h.ValidFrom = h.IssuedAt.Add(-time.Hour), h.ValidFrom.Add(-time.Hour)
				h.RefreshAfter, h.ExpiresAt = h.IssuedAt.Add(time.Minute), h.IssuedAt.Add(2*time.Minute)
			}), trustOnly},
		} {
			time.Sleep(time.Minute) // what may be asked in a while is another test's matter
			shows := tc.shows()
			got, err := scopesOf(t.Context(), client, me.ID.Name(), shows)
			if err != nil || !slices.Equal(got, tc.want) {
				t.Errorf("%s: given %v, %v; want %v", tc.name, got, err, tc.want)
			}
			routes := peer.Node().TrustState().Active[snapshot.ScopeRoutePolicy].Verified
			hash := routes.Header().ContentHash
			content, err := contentOf(t.Context(), client, me.ID.Name(), shows, hash[:])
			if whole := len(tc.want) > 1; whole && string(content) != routes.ContentJSON() ||
				!whole && status.Code(err) != codes.NotFound {
				t.Errorf("%s: got content %q, %v", tc.name, content, err)
			}
		}
		// Nobody but the caller of the certificate, and never what is for one node alone.
		if _, err := scopesOf(t.Context(), client, other.ID.Name(), nil); status.Code(err) != codes.PermissionDenied {
			t.Errorf("in the name of another: %v", err)
		}
		for _, scope := range []snapshot.Scope{snapshot.ScopeServiceAssignment, snapshot.ScopeNodeRuntime} {
			hash := peer.Node().TrustState().Active[scope].Verified.Header().ContentHash
			if _, err := contentOf(t.Context(), client, me.ID.Name(), mine(), hash[:]); status.Code(err) != codes.NotFound {
				t.Errorf("the peer's own %s: %v", scope, err)
			}
		}
		_ = stop()
	})
}

// A liar is a member that serves others what a test says.
type liar struct {
	fealtyv1.UnimplementedSharedServiceServer
	list func(stream fealtyv1.SharedService_ListSharedServer) error
	get  func(hash snapshot.Digest, stream fealtyv1.SharedService_GetSharedServer) error
}

func (l *liar) ListShared(_ *fealtyv1.ListSharedRequest, stream fealtyv1.SharedService_ListSharedServer) error {
	return l.list(stream)
}

func (l *liar) GetShared(req *fealtyv1.GetSharedRequest, stream fealtyv1.SharedService_GetSharedServer) error {
	if l.get == nil {
		return status.Error(codes.NotFound, "nothing")
	}
	return l.get(snapshot.Digest(req.GetContentHash()), stream)
}

// lie has the member of a serve at address what l says.
func (s *neighbours) lie(t *testing.T, a *agent.Agent, address string, l *liar) {
	t.Helper()
	guard, err := mesh.NewGuard(mesh.GuardConfig{Source: a.Source(), Now: s.f.Clock})
	s.f.Must(err)
	server := grpc.NewServer(guard.ServerOptions()...)
	fealtyv1.RegisterSharedServiceServer(server, l)
	at := bufconn.Listen(1 << 16)
	s.at[address] = at
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(at) }()
	t.Cleanup(func() { server.Stop(); <-done })
}

// gives sends snapshots, as they are.
func gives(of ...*fealtyv1.SignedSnapshot) func(fealtyv1.SharedService_ListSharedServer) error {
	return func(stream fealtyv1.SharedService_ListSharedServer) error {
		for _, m := range of {
			if err := stream.Send(&fealtyv1.ListSharedResponse{News: &fealtyv1.ListSharedResponse_Snapshot{
				Snapshot: m}}); err != nil {
				return err
			}
		}
		return nil
	}
}

// bareOne is a snapshot without its content, and that.
func bareOne(t *testing.T, m *fealtyv1.SignedSnapshot) (bare *fealtyv1.SignedSnapshot, content []byte) {
	t.Helper()
	signed, err := snapshot.Unmarshal(m.GetEnvelope())
	if err != nil {
		t.Fatal(err)
	}
	return &fealtyv1.SignedSnapshot{Scope: m.GetScope(), Envelope: bareOf(t, m.GetEnvelope())}, signed.Content
}

// A peer that lies changes nothing of what a node has, is named in the log, and keeps nobody
// from getting the news of an honest one.
func TestPeerAttacks(t *testing.T) {
	const bad, good = "bad.example:7000", "good.example:7000"
	type scene struct {
		*neighbours
		t         *testing.T
		me, other *signedtest.Member // the node that asks, and another
	}
	qos := func(s *scene, edits ...func(*snapshot.Header, *snapshot.Record)) *fealtyv1.SignedSnapshot {
		var out *fealtyv1.SignedSnapshot
		s.f.Do(func() { out = s.f.OfGroup(s.me, signedtest.QoS(99), edits...) })
		return out
	}
	bare := func(s *scene, m *fealtyv1.SignedSnapshot) *fealtyv1.SignedSnapshot {
		out, _ := bareOne(s.t, m)
		return out
	}
	withContent := func(bend func(content []byte, send func([]byte) error) error) func(*scene) *liar {
		return func(s *scene) *liar {
			m, content := bareOne(s.t, qos(s))
			return &liar{list: gives(m),
				get: func(hash snapshot.Digest, stream fealtyv1.SharedService_GetSharedServer) error {
					if hash != snapshot.DigestOf(content) {
						return status.Error(codes.NotFound, "nothing")
					}
					return bend(bytes.Clone(content), func(b []byte) error {
						return stream.Send(&fealtyv1.GetSharedResponse{Chunk: b})
					})
				}}
		}
	}
	for _, tc := range []struct {
		name string
		does func(*scene) *liar
		// reason is that of a refusal which names the peer; blank: its answer as a whole is no
		// news, and the log says why.
		reason string
	}{
		{"garbage", func(*scene) *liar {
			return &liar{list: gives(&fealtyv1.SignedSnapshot{Scope: "qos_policy", Envelope: []byte("garbage")})}
		}, ""},
		{"a message that is too large", func(*scene) *liar {
			return &liar{list: gives(&fealtyv1.SignedSnapshot{Scope: "qos_policy", Envelope: make([]byte, 2<<20)})}
		}, ""},
		{"messages without end", func(s *scene) *liar {
			m := bare(s, qos(s))
			return &liar{list: func(stream fealtyv1.SharedService_ListSharedServer) error {
				for {
					if err := gives(m)(stream); err != nil {
						return err
					}
				}
			}}
		}, ""},
		{"no answer", func(*scene) *liar {
			return &liar{list: func(stream fealtyv1.SharedService_ListSharedServer) error {
				<-stream.Context().Done()
				return stream.Context().Err() // the end of a stream without news would be an answer
			}}
		}, ""},
		{"an older version", func(s *scene) *liar {
			return &liar{list: gives(bare(s, qos(s, func(h *snapshot.Header, r *snapshot.Record) {
				h.ConfigVersion, r.Generation = 1, 1
			})))}
		}, "config_version"},
		{"an older trust bundle", func(s *scene) *liar {
			h := s.f.TrustHeader()
			h.ConfigVersion = 1
			return &liar{list: gives(s.f.SignTrust(h, s.f.Content()))}
		}, "config_version"},
		{"signed by a stranger", func(s *scene) *liar {
			key := s.f.ConfigKey
			s.f.ConfigKey = ed25519.NewKeyFromSeed(bytes.Repeat([]byte{7}, ed25519.SeedSize))
			defer func() { s.f.ConfigKey = key }()
			return &liar{list: gives(bare(s, qos(s, func(h *snapshot.Header, r *snapshot.Record) {
				h.ConfigVersion, r.Generation = 1<<40, 1<<40
			})))}
		}, "signature"},
		{"another cluster's", func(s *scene) *liar {
			return &liar{list: gives(bare(s, qos(s, func(h *snapshot.Header, _ *snapshot.Record) {
				h.ClusterID = "other.example"
			})))}
		}, "signature"}, // what is signed begins with the cluster
		{"for another group", func(s *scene) *liar {
			var m *fealtyv1.SignedSnapshot
			s.f.Do(func() {
				m = s.f.OfGroup(s.me, &snapshot.QoSPolicy{},
					func(h *snapshot.Header, _ *snapshot.Record) { h.OrganizationIDs = []string{"other"} })
			})
			return &liar{list: gives(bare(s, m))}
		}, "subject"},
		{"for another node", func(s *scene) *liar {
			var m *fealtyv1.SignedSnapshot
			s.f.Do(func() { m = s.f.Gives(s.other, nodetest.AllCompanions) })
			return &liar{list: gives(bare(s, m))}
		}, ""},
		{"for the node alone, and good", func(s *scene) *liar {
			var m *fealtyv1.SignedSnapshot
			s.f.Do(func() { m = s.f.Gives(s.me, nodetest.AllCompanions) })
			return &liar{list: gives(bare(s, m))}
		}, ""},
		{"expired", func(s *scene) *liar {
			return &liar{list: gives(bare(s, qos(s, func(h *snapshot.Header, _ *snapshot.Record) {
				h.IssuedAt, h.ValidFrom = h.IssuedAt.Add(-time.Hour), h.ValidFrom.Add(-time.Hour)
				h.RefreshAfter, h.ExpiresAt = h.IssuedAt.Add(time.Minute), h.IssuedAt.Add(2*time.Minute)
			})))}
		}, "validity"},
		{"of an epoch to come", func(s *scene) *liar {
			return &liar{list: gives(bare(s, qos(s, func(h *snapshot.Header, r *snapshot.Record) {
				h.AuthorityEpoch, r.AuthorityEpoch = 9, 9
			})))}
		}, "authority_epoch"},
		{"with its content", func(s *scene) *liar { return &liar{list: gives(qos(s))} }, ""},
		{"a content that does not come", withContent(func([]byte, func([]byte) error) error { return nil }), "truncated"},
		{"a content that is cut", withContent(func(c []byte, send func([]byte) error) error {
			return send(c[:len(c)-1])
		}), "truncated"},
		{"a content that goes on", withContent(func(c []byte, send func([]byte) error) error {
			for {
				if err := send(c); err != nil {
					return err
				}
			}
		}), "oversized"},
		{"another content", withContent(func(c []byte, send func([]byte) error) error {
			c[5] ^= 1
			return send(c)
		}), "altered"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := nodetest.New(t)
				s := newNeighbours(f)
				lies, knows, n := s.member(bad), s.member(good), s.member("")
				a, liar, peer := s.open(n, ""), s.open(lies, ""), s.open(knows, good)
				defer a.Close()
				defer liar.Close()
				s.publish(a)
				s.publish(peer)
				time.Sleep(20 * time.Minute)
				s.publish(peer)
				s.down()
				me, other := f.Member(a.Node().Me().ID), f.Member(peer.Node().Me().ID)
				s.lie(t, liar, bad, tc.does(&scene{s, t, &me, &other}))
				honest := s.at[good]
				delete(s.at, good)
				before := a.Node().TrustState().Active
				began := time.Now()
				a.Fetcher().Inquire(t.Context())
				if took := time.Since(began); took > time.Minute {
					t.Errorf("it took %v", took)
				}
				if !maps.Equal(before, a.Node().TrustState().Active) {
					t.Errorf("in use are %v", inUse(a))
				}
				name := `source="peer data/` + liar.Node().Me().ID.Name() + `"`
				if tc.reason == "" && !n.said.Has("no news from a source", name) ||
					tc.reason != "" && !n.said.Has("snapshot refused", "reason="+tc.reason, name) {
					t.Errorf("nothing says that it was %s, and why: %s", name, n.said.String())
				}
				s.at[good] = honest
				stop := knows.run(peer)
				time.Sleep(time.Second) // the connection that failed is gone
				a.Fetcher().Inquire(t.Context())
				got, want := inUse(a), inUse(peer)
				for _, scope := range append(slices.Clone(group), snapshot.ScopeTrustBundle) {
					if got[scope] != want[scope] {
						t.Errorf("%s: version %d in use, an honest peer has %d", scope, got[scope], want[scope])
					}
				}
				_ = stop()
			})
		})
	}
}

// Things that were taken away by name, or with an epoch, are not given by a peer that knows of it; one
// that is banned is refused, and one that is banned is not asked.
func TestPeersHeedRevocations(t *testing.T) {
	const at = "knows.example:7000"
	for _, tc := range []struct {
		name string
		// of what the trust bundle of the peer says, or that of the node
		peerSays, nodeSays func(b *snapshot.TrustBundle, node, peer identity.ID)
		epoch              bool // the peer is in a newer epoch
		trust, all         bool // the node gets the trust bundle, and all
		line               []string
	}{
		{name: "nothing", trust: true, all: true, line: []string{"news from a source"}},
		{name: "a role of the node", peerSays: func(b *snapshot.TrustBundle, node, _ identity.ID) {
			b.Revoked = []snapshot.Revoked{{Kind: internalsnapshot.RevokedRole, Name: "data/" + node.Name() + "/core"}}
		}, trust: true, line: []string{"news from a source"}},
		{name: "an epoch", epoch: true, trust: true, line: []string{"news from a source"}},
		{name: "the node", peerSays: func(b *snapshot.TrustBundle, node, _ identity.ID) {
			b.BannedIDs = []identity.ID{node}
		}, line: []string{"no news from a source", "peer data/"}},
		{name: "the peer", nodeSays: func(b *snapshot.TrustBundle, _, peer identity.ID) {
			b.BannedIDs = []identity.ID{peer}
		}},
		{name: "the record of the peer", nodeSays: func(b *snapshot.TrustBundle, _, _ identity.ID) {
			b.Revoked = []snapshot.Revoked{{Kind: internalsnapshot.RevokedPeer, Name: "knows-example"}}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := nodetest.New(t)
				s := newNeighbours(f)
				knows, n := s.member(at), s.member("")
				peer, a := s.open(knows, at), s.open(n, "")
				defer a.Close()
				s.publish(a)
				s.publish(peer)
				if tc.epoch {
					f.Do(func() { f.Epoch++ })
					s.publish(peer)
				}
				says := func(to *agent.Agent, edit func(*snapshot.TrustBundle, identity.ID, identity.ID)) {
					if edit == nil {
						return
					}
					var bundle *fealtyv1.SignedSnapshot
					f.Do(func() {
						bundle = f.BundleWith(func(b *snapshot.TrustBundle) {
							edit(b, a.Node().Me().ID, peer.Node().Me().ID)
						})
					})
					f.Must(n.take(to, bundle))
				}
				time.Sleep(2 * time.Second) // a bundle is later than the record before it
				says(peer, tc.peerSays)
				says(a, tc.nodeSays)
				s.down()
				stop := knows.run(peer)
				before, want := inUse(a), inUse(peer)
				a.Fetcher().Inquire(t.Context())
				got := inUse(a)
				if trust := got[snapshot.ScopeTrustBundle] != before[snapshot.ScopeTrustBundle]; trust != tc.trust {
					t.Errorf("the trust bundle came: %v, want %v", trust, tc.trust)
				}
				for _, scope := range group {
					if all := got[scope] == want[scope]; all != tc.all {
						t.Errorf("%s came: %v, want %v", scope, all, tc.all)
					}
				}
				if tc.line != nil && !n.said.Has(tc.line...) {
					t.Errorf("no line says %q: %s", tc.line, n.said.String())
				}
				if served := answers(peer, sharing.Given) + answers(peer, sharing.TrustOnly); (served > 0) != tc.trust {
					t.Errorf("it was served %v times", served)
				}
				if tc.line == nil && s.dialed.Load() != 0 {
					t.Error("it was asked")
				}
				_ = stop()
			})
		})
	}
}

// deaf is a listener that fails.
type deaf struct{ net.Listener }

func (deaf) Accept() (net.Conn, error) { return nil, errors.New("the network card is gone") }

// An agent that ends because it cannot listen for peers says why.
func TestPeersCannotBeHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := nodetest.New(t)
		n := newNode(f)
		n.MustJoin()
		a, err := agent.Open(context.Background(), agent.Config{DataDir: n.Dir, FS: n.Disk.FS(), Now: f.Clock,
			Log: n.said.Logger(slog.LevelDebug), Dial: f.Dial, Release: "v0.1.0",
			Sockets: agent.Sockets{Peers: deaf{bufconn.Listen(1 << 10)}}})
		f.Must(err)
		a.Serve("", "")
		if err := a.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "the network card is gone") {
			t.Error(err)
		}
	})
}

// A member cannot keep a peer busy: how often it calls, how many calls it leaves open, and how
// much it is given, is bounded, and one that does not read is given up.
func TestPeersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const at = "knows.example:7000"
		f := nodetest.New(t)
		s := newNeighbours(f)
		knows, n, second := s.member(at), s.member(""), s.member("")
		peer, a, b := s.open(knows, at), s.open(n, ""), s.open(second, "")
		defer a.Close()
		defer b.Close()
		s.publish(peer)
		s.publish(a)
		s.publish(b)
		large := new(snapshot.PeerDirectory)
		for i := range 350 {
			name := fmt.Sprintf("peer-%05d", i)
			id, err := identity.New(signedtest.Cluster, identity.Data, name)
			f.Must(err)
			p := snapshot.Peer{Name: name, ID: id, State: snapshot.MemberActive}
			for port := range 64 {
				p.Addresses = append(p.Addresses, fmt.Sprintf("%s.%s:%d", name, strings.Repeat("x", 270), 7000+port))
			}
			large.Active = append(large.Active, p)
		}
		m := f.Member(peer.Node().Me().ID)
		f.Do(func() { f.Must(knows.take(peer, f.OfGroup(&m, large))) })
		directory := peer.Node().TrustState().Active[snapshot.ScopePeerDirectory].Verified
		hash, size := directory.Header().ContentHash, directory.Header().ContentSize
		stop := knows.run(peer)
		client, other := s.caller(t, a, at), s.caller(t, b, at)
		me, mine := a.Node().Me().ID.Name(), bareOf(t, a.Node().TrustState().Active[snapshot.ScopeNodeRuntime].Raw)
		limited := func(err error) bool { return status.Code(err) == codes.ResourceExhausted }

		if _, err := scopesOf(t.Context(), client, me, make([]byte, 30<<10)); status.Code(err) != codes.InvalidArgument {
			t.Errorf("a node_runtime of 30 KiB: %v", err)
		}
		if _, err := scopesOf(t.Context(), client, me, make([]byte, 80<<10)); !limited(err) {
			t.Errorf("a request of 80 KiB: %v", err)
		}
		refused := 0
		for range 20 {
			if _, err := scopesOf(t.Context(), client, me, nil); limited(err) {
				refused++
			} else if err != nil {
				t.Fatal(err)
			}
		}
		if refused != 5 { // the node_runtime above was a call too
			t.Errorf("of 21 calls at once, %d were refused", refused)
		}
		if _, err := scopesOf(t.Context(), other, b.Node().Me().ID.Name(), nil); err != nil {
			t.Errorf("another member: %v", err)
		}

		time.Sleep(time.Minute)
		open := func() error {
			stream, err := client.GetShared(t.Context(), &fealtyv1.GetSharedRequest{Name: me, NodeRuntime: mine,
				ContentHash: hash[:]})
			if err != nil {
				return err
			}
			_, err = stream.Recv() // and no more
			return err
		}
		for i := range 3 {
			if err := open(); limited(err) != (i == 2) {
				t.Errorf("call %d that is left open: %v", i+1, err)
			}
		}
		was := answers(peer, sharing.Broken)
		time.Sleep(ratelimit.TransferTime(int64(size)) + time.Second)
		if got := answers(peer, sharing.Broken) - was; got != 2 {
			t.Errorf("%v of 2 calls that read nothing were given up", got)
		}

		time.Sleep(18 * time.Minute) // what it was given is paid for
		pulled := 0
		for range 4 {
			got, err := contentOf(t.Context(), client, me, mine, hash[:])
			if err == nil && string(got) == directory.ContentJSON() {
				pulled++
			} else if !limited(err) {
				t.Errorf("%d bytes, %v", len(got), err)
			}
		}
		if want := (16 << 20) / size; pulled != want {
			t.Errorf("pulled %d times %d bytes, want %d times", pulled, size, want)
		}
		_ = stop()
	})
}

// In degraded mode peers are asked, and serve others, as far as the policy permits.
func TestPeersInDegradedMode(t *testing.T) {
	const at = "knows.example:7000"
	for _, tc := range []struct {
		name       string
		node, peer []string // permissions
		asks, gets bool
	}{
		{"both may", []string{"reconnect_peers"}, []string{"validate_peers"}, true, true},
		{"the node may not ask", []string{"validate_peers"}, []string{"validate_peers"}, false, false},
		{"the peer may not judge others", []string{"reconnect_peers"}, []string{"reconnect_peers"}, true, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := nodetest.New(t)
				s := newNeighbours(f)
				knows, n := s.member(at), s.member("")
				peer, a := s.open(knows, at), s.open(n, "")
				defer a.Close()
				may := func(list []string) func(*snapshot.NodeRuntime) {
					return func(c *snapshot.NodeRuntime) { c.Degraded.Allow = list }
				}
				s.publish(a, may(tc.node))
				s.publish(peer, may(tc.peer))
				s.down()
				stop := knows.run(peer)
				time.Sleep(77 * time.Minute)
				if !a.Node().Autonomy.Facts().Degraded(a.Node().Now()) {
					t.Fatal("it is not degraded: this shows nothing")
				}
				before, want := inUse(a), inUse(peer)
				a.Fetcher().Inquire(t.Context())
				if got := s.dialed.Load() > 0; got != tc.asks {
					t.Errorf("it asked: %v, want %v", got, tc.asks)
				}
				if got := inUse(a); tc.gets != (got[snapshot.ScopeQoSPolicy] == want[snapshot.ScopeQoSPolicy]) ||
					!tc.gets && !maps.Equal(got, before) {
					t.Errorf("in use are %v, were %v", got, before)
				}
				if withheld := answers(peer, sharing.Withheld) > 0; withheld != (tc.asks && !tc.gets) {
					t.Errorf("the peer withheld it: %v", withheld)
				}
				_ = stop()
			})
		})
	}
}

// A member in the place of a coordinator is told nothing, and is named in one line of the log by
// each pool that an agent calls coordinators by.
func TestNoCoordinatorAtItsAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := nodetest.New(t)
		s := newNeighbours(f)
		other, n := s.member(""), s.member("")
		imposter, a := s.open(other, ""), s.open(n, "")
		defer imposter.Close()
		defer a.Close()
		s.lie(t, imposter, signedtest.Coordinator, new(liar))
		for name, call := range map[string]func() error{
			"news":  func() error { a.Fetcher().Inquire(t.Context()); return nil },
			"calls": func() error { return a.Renewal().Renew(t.Context()) },
		} {
			n.said.Reset()
			if err := call(); err == nil && name == "calls" {
				t.Errorf("%s: a member renewed it", name)
			}
			if !n.said.Has("endpoint rejected", "endpoint="+signedtest.Coordinator, "reason=IdentityMismatch") {
				t.Errorf("%s: no line names it: %s", name, n.said.String())
			}
		}
	})
}

// News of peers do not make a mirror one that is behind, as long as it has the newest word on
// what peers have nothing of.
func TestMirrorAfterPeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const at = "knows.example:7000"
		f := nodetest.New(t)
		s := newNeighbours(f)
		knows, n := s.member(at), s.member("")
		r := signedtest.NewReplica("mirror")
		peer := s.open(knows, at)
		s.mirrors = []mirror.Source{r}
		a := s.open(n, "")
		defer a.Close()
		s.publish(a)
		m := f.Member(a.Node().Me().ID)
		f.Do(func() {
			f.Publish(&m, []*signedtest.Replica{r},
				func(_ *snapshot.Header, c *snapshot.NodeRuntime, _ *snapshot.Record) {
					c.Roles, c.Organizations = signedtest.GroupRoles, signedtest.GroupOrganizations
					c.Companions = nodetest.AllCompanions
				})
		})
		s.publish(peer) // the mirror is behind that
		s.down()
		r.Down = true
		stop := knows.run(peer)
		before, want := inUse(a), inUse(peer)
		a.Fetcher().Inquire(t.Context())
		got := inUse(a)
		if got[snapshot.ScopeQoSPolicy] != want[snapshot.ScopeQoSPolicy] {
			t.Fatalf("in use are %v: nothing came from the peer", got)
		}
		r.Down = false
		a.Fetcher().Inquire(t.Context())
		if got := inUse(a); got[snapshot.ScopeNodeRuntime] <= before[snapshot.ScopeNodeRuntime] {
			t.Errorf("the mirror's node_runtime did not come: %v", got)
		}
		if got := inUse(a); got[snapshot.ScopeQoSPolicy] != want[snapshot.ScopeQoSPolicy] ||
			len(a.Node().Status().Refusals()) != 0 {
			t.Errorf("in use are %v, refused %v", got, a.Node().Status().Refusals())
		}
		_ = stop()
	})
}
