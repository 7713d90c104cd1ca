package bench

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/protobuf/proto"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator"
	devcluster "github.com/fealty-io/fealty/internal/dev/cluster"
	"github.com/fealty-io/fealty/internal/platform/watch"
	joinproof "github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/mesh"
	"github.com/fealty-io/fealty/snapshot"
)

// BenchmarkStreams measures what members cost a coordinator that hold a stream and have nothing to
// do, beside a bare grpc-go server with mutual TLS that sends the same messages over the same
// certificates. Coordinator, bare server and members are a process each, and the two servers take
// turns. Both have the same settings of gRPC, and GOGC=200 of the environment or whatever it says.
//
//   - open: the CPU time of a member that connects and opens its stream, until it has all that it is
//     sent; and then the memory that it takes, after collections that give back to the system all
//     that is free.
//   - ban: the CPU time of one change of the trust bundle, for each stream.
//   - route: the same of one route of the config. What it costs without streams, to compile and to
//     sign, is taken off.
//   - idle: the CPU time of a minute in which nothing happens. It runs with -benchtime=1x or
//     longer, unless the tests are short.
func BenchmarkStreams(b *testing.B) {
	for _, n := range []int{1000, 5000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) { benchStreams(b, n) })
	}
}

// streamServer is one of the two servers that are compared.
type streamServer struct {
	process[serverOrder, usage]
	addr string
}

func benchStreams(b *testing.B, n int) {
	ours := streamServer{process: startProcess[serverOrder, usage](b, coordinatorRole)}
	dir := b.TempDir()
	made := ours.tell(b, serverOrder{Dir: dir})
	ours.addr = made.Address
	admin, err := mesh.DialLocal(made.Socket)
	if err != nil {
		b.Fatal(err)
	}
	defer admin.Close()
	put := func(records ...string) {
		b.Helper()
		req := &fealtyv1.PutConfigRequest{}
		for _, r := range records {
			req.Records = append(req.Records, []byte(r))
		}
		if _, err := fealtyv1.NewConfigServiceClient(admin).PutConfig(b.Context(), req); err != nil {
			b.Fatal(err)
		}
	}
	fleet := startProcess[fleetOrder, fleetReport](b, membersRole)
	joined := fleet.tell(b, fleetOrder{Token: made.Token, N: n})
	routes, bans := 0, 0
	route := func() string {
		routes++
		return fmt.Sprintf("kind: route\nname: changes\norganization: acme\nmatch: host=shop.acme.example\nto: [shop]\npriority: %d\n", routes)
	}
	put("kind: organization\nname: acme\n", "kind: peer\nname: shop\norganization: acme\nmember: "+joined.Member+"\naddresses: [\"127.0.0.1:7001\"]\nclass: active\n", route())
	ours.settle(b)

	bare := streamServer{process: startProcess[serverOrder, usage](b, bareRole)}
	bare.addr = bare.tell(b, serverOrder{Key: joined.Key, Chain: joined.Chain}).Address

	// A change without streams: from before the command until nothing is left to do.
	anyway := ours.anyway(b, 10*time.Second)
	without := make([]time.Duration, rounds)
	for i := range without {
		before, began := ours.tell(b, serverOrder{}).CPU, time.Now()
		put(route())
		after := ours.settle(b)
		without[i] = after.Busy - before - time.Duration(anyway*float64(after.at.Sub(began)))
	}
	alone := max(0, median(without))

	// What a member is sent at first, and with each change, so that the bare server sends it too.
	sent := fleet.tell(b, fleetOrder{Open: ours.addr})
	learn := func(scope snapshot.Scope, change func()) [][]byte {
		b.Helper()
		fleet.tell(b, fleetOrder{Scope: scope, Began: time.Now()})
		change()
		return fleet.tell(b, fleetOrder{Wait: true}).Sent
	}
	ban := func() {
		bans++
		if _, err := fealtyv1.NewMemberServiceClient(admin).BanMember(b.Context(), &fealtyv1.BanMemberRequest{
			Kind: string(identity.Data), Name: fmt.Sprintf("nobody-%d", bans), Reason: "benchmark"}); err != nil {
			b.Fatal(err)
		}
	}
	banned := learn(snapshot.ScopeTrustBundle, ban)
	ours.settle(b)
	routed := learn(snapshot.ScopeRoutePolicy, func() { put(route()) })
	ours.settle(b)
	bare.tell(b, serverOrder{Opening: sent.Sent})
	fleet.tell(b, fleetOrder{Close: ours.addr})
	ours.settle(b)

	servers := []streamServer{ours, bare}
	// With -outputdir there are profiles of each phase, and of the end.
	profile := func(b *testing.B, phase string) (end func()) {
		dir := flag.Lookup("test.outputdir").Value.String()
		if dir == "" {
			return func() {}
		}
		for _, s := range servers {
			s.tell(b, serverOrder{Profile: filepath.Join(dir, s.role+"."+phase)})
		}
		return func() {
			for _, s := range servers {
				s.tell(b, serverOrder{Profiled: true})
			}
		}
	}
	b.Run("open", func(b *testing.B) {
		took, kept := make([][]time.Duration, 2), make([][]usage, 2)
		round := func() {
			turn := len(took[0])
			for i := range servers {
				i = (i + turn) % 2
				s := servers[i]
				before, began := s.settle(b), time.Now()
				fleet.tell(b, fleetOrder{Open: s.addr})
				after := s.settle(b)
				used := after.Busy - before.CPU
				if i == 0 {
					used -= time.Duration(anyway * float64(after.at.Sub(began)))
				}
				took[i] = append(took[i], used/time.Duration(n))
				kept[i] = append(kept[i], after.less(before, n))
				fleet.tell(b, fleetOrder{Close: s.addr})
			}
		}
		end := profile(b, "open")
		for b.Loop() {
			round()
		}
		for len(took[0]) < 3 {
			round()
		}
		end()
		both(b, "cpu-µs", float64(median(took[0]))/1e3, float64(median(took[1]))/1e3)
		for _, m := range []struct {
			unit string
			of   func(usage) int64
		}{
			{"rss-B", func(u usage) int64 { return u.RSS }}, {"heap-B", func(u usage) int64 { return u.Heap }},
			{"stack-B", func(u usage) int64 { return u.Stacks }}, {"objects", func(u usage) int64 { return u.Objects }},
			{"goroutines/1000", func(u usage) int64 { return u.Goroutines }},
		} {
			var of [2][]int64
			for i := range kept {
				for _, u := range kept[i] {
					of[i] = append(of[i], m.of(u))
				}
				slices.Sort(of[i])
			}
			both(b, m.unit, float64(of[0][len(of[0])/2]), float64(of[1][len(of[1])/2]))
		}
	})
	for _, s := range servers {
		fleet.tell(b, fleetOrder{Open: s.addr})
		s.settle(b)
	}
	spread := func(b *testing.B, change func(), messages [][]byte, scope snapshot.Scope, alone time.Duration) {
		took, last := make([][]time.Duration, 2), make([][]time.Duration, 2)
		// What a server does anyway, in each second of a round: a coordinator looks at its store.
		anyway := [2]float64{ours.anyway(b, 3*time.Second), bare.anyway(b, 3*time.Second)}
		round := func() {
			turn := len(took[0])
			for i := range servers {
				i = (i + turn) % 2
				s := servers[i]
				before, began := s.tell(b, serverOrder{}), time.Now()
				fleet.tell(b, fleetOrder{Scope: scope, Began: began})
				if i == 0 {
					change()
				} else {
					s.tell(b, serverOrder{Change: messages})
				}
				r := fleet.tell(b, fleetOrder{Wait: true})
				after := s.settle(b)
				used := after.Busy - before.CPU - time.Duration(anyway[i]*float64(after.at.Sub(began)))
				if i == 0 {
					used -= alone
				}
				took[i], last[i] = append(took[i], used/time.Duration(n)), append(last[i], r.Last-r.First)
			}
		}
		end := profile(b, string(scope))
		for b.Loop() {
			round()
		}
		for len(took[0]) < rounds {
			round()
		}
		end()
		both(b, "cpu-µs", float64(median(took[0]))/1e3, float64(median(took[1]))/1e3)
		both(b, "first-to-last-ms", float64(median(last[0]))/1e6, float64(median(last[1]))/1e6)
		b.ReportMetric(float64(size(messages)), "sent-B")
	}
	b.Run("ban", func(b *testing.B) { spread(b, ban, banned, snapshot.ScopeTrustBundle, 0) })
	b.Run("route", func(b *testing.B) {
		spread(b, func() { put(route()) }, routed, snapshot.ScopeRoutePolicy, alone)
		b.ReportMetric(float64(alone)/1e6, "without-streams-cpu-ms")
	})
	b.Run("idle", func(b *testing.B) {
		if testing.Short() {
			b.Skip("it takes a minute")
		}
		const minute = time.Minute
		var before, after [2]usage
		for i, s := range servers {
			s.settle(b)
			before[i] = s.tell(b, serverOrder{})
		}
		time.Sleep(minute)
		for i, s := range servers {
			after[i] = s.tell(b, serverOrder{})
		}
		of := func(i int) float64 { return float64(after[i].CPU-before[i].CPU) / float64(minute) }
		both(b, "milli-cores", 1000*of(0), 1000*of(1))
		b.ReportMetric(1000*anyway, "without-streams-milli-cores")
	})
	profile(b, "end")()
}

// both reports the same of both servers, and the ratio.
func both(b *testing.B, unit string, ours, bare float64) {
	b.ReportMetric(ours, "ours-"+unit)
	b.ReportMetric(bare, "bare-"+unit)
	b.ReportMetric(ours/bare, "ours/bare-"+unit)
	b.ReportMetric(0, "ns/op") // of a round
}

func size(messages [][]byte) (n int) {
	for _, m := range messages {
		n += len(m)
	}
	return n
}

// settle waits until the server has nothing to do, and returns what it uses then.
func (s streamServer) settle(b *testing.B) usage {
	b.Helper()
	last := s.tell(b, serverOrder{})
	for range 300 {
		time.Sleep(200 * time.Millisecond)
		now := s.tell(b, serverOrder{})
		if now.CPU-last.CPU < 2*time.Millisecond && now.Goroutines == last.Goroutines {
			at := time.Now()
			out := s.tell(b, serverOrder{Collect: true})
			out.Busy, out.at = now.CPU, at
			return out
		}
		last = now
	}
	b.Fatalf("the %s has work without end", s.role)
	return usage{}
}

// anyway returns the part of a core that a server takes while nothing happens.
func (s streamServer) anyway(b *testing.B, d time.Duration) float64 {
	b.Helper()
	before, began := s.tell(b, serverOrder{}), time.Now()
	time.Sleep(d)
	return float64(s.tell(b, serverOrder{}).CPU-before.CPU) / float64(time.Since(began))
}

// serverOrder is a line to one of the servers; each is answered by its [usage].
type serverOrder struct {
	Dir     string   `json:"dir,omitempty"`     // coordinator: begin in this folder
	Key     []byte   `json:"key,omitempty"`     // bare: begin with this key (PKCS #8)
	Chain   [][]byte `json:"chain,omitempty"`   // of it, the root last; clients have certificates of the same root
	Opening [][]byte `json:"opening,omitempty"` // bare: what each stream is sent at first
	Change  [][]byte `json:"change,omitempty"`  // bare: send this to all
	Collect bool     `json:"collect,omitempty"` // garbage, before memory is looked at

	Profile  string `json:"profile,omitempty"`  // begin a profile of the CPU there, beside those of heap and goroutines
	Profiled bool   `json:"profiled,omitempty"` // it is over
}

// usage is what a server uses.
type usage struct {
	Address string `json:"address,omitempty"`
	Socket  string `json:"socket,omitempty"`
	Token   string `json:"token,omitempty"`

	CPU        time.Duration `json:"cpu"`
	Goroutines int64         `json:"goroutines"`

	// After a collection.
	RSS     int64 `json:"rss,omitempty"`
	Heap    int64 `json:"heap,omitempty"`
	Objects int64 `json:"objects,omitempty"`
	Stacks  int64 `json:"stacks,omitempty"`

	Busy time.Duration `json:"-"` // CPU before that collection
	at   time.Time     // of that
}

// less returns what u uses more than before, for each of n; goroutines for 1,000 of them.
func (u usage) less(before usage, n int) usage {
	each := int64(n)
	return usage{RSS: (u.RSS - before.RSS) / each, Heap: (u.Heap - before.Heap) / each,
		Stacks: (u.Stacks - before.Stacks) / each, Objects: (u.Objects - before.Objects) / each,
		Goroutines: (u.Goroutines - before.Goroutines) * 1000 / each}
}

// used returns what this process uses, and does what every server does.
func used(o serverOrder) (u usage, err error) {
	u.Goroutines = int64(runtime.NumGoroutine())
	if o.Collect {
		for range 3 { // stacks shrink by half each time
			runtime.GC()
		}
		debug.FreeOSMemory()
		samples := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"},
			{Name: "/gc/heap/objects:objects"}}
		metrics.Read(samples)
		u.Heap, u.Stacks, u.Objects = int64(samples[0].Value.Uint64()), int64(samples[1].Value.Uint64()), int64(samples[2].Value.Uint64())
		if u.RSS, err = residentBytes(); err != nil {
			return u, err
		}
	}
	if u.CPU, err = cpuTime(); err != nil {
		return u, err
	}
	switch {
	case o.Profiled:
		pprof.StopCPUProfile()
	case o.Profile != "":
		for _, name := range []string{"heap", "goroutine"} {
			f, err := os.Create(o.Profile + "." + name)
			if err != nil {
				return u, err
			}
			runtime.GC()
			if err := errors.Join(pprof.Lookup(name).WriteTo(f, 0), f.Close()); err != nil {
				return u, err
			}
		}
		f, err := os.Create(o.Profile + ".cpu") // open for as long as it is written
		if err != nil {
			return u, err
		}
		return u, pprof.StartCPUProfile(f)
	}
	return u, nil
}

// residentBytes is how much memory this process has.
func residentBytes() (int64, error) {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(b))
	if len(fields) < 2 {
		return 0, fmt.Errorf("/proc/self/statm holds %q", b)
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize()), err
}

// beCoordinator is the process of the coordinator.
func beCoordinator(in io.Reader, out io.Writer) error {
	ctx := context.Background()
	var c *devcluster.Cluster
	err := obey(in, out, func(o serverOrder) (u usage, err error) {
		if o.Dir != "" {
			if c, err = devcluster.Start(ctx, devcluster.Options{
				DataDir: o.Dir, Coordinators: 1, Members: []string{}, Release: "bench", Log: slog.New(slog.DiscardHandler),
				Rates: coordinator.Rates{PerSource: 1e9, SourceBurst: 1e9, Overall: 1e9, OverallBurst: 1e9, PerMember: 1e9, MemberBurst: 1e9},
			}); err != nil {
				return u, err
			}
			tok, err := c.Token(ctx, &fealtyv1.CreateTokenRequest{Entry: devcluster.PoolEntry, Uses: 100_000})
			if err != nil {
				return u, err
			}
			return usage{Address: c.Address(), Socket: c.AdminSocket(), Token: tok.Line()}, nil
		}
		return used(o)
	})
	if c != nil {
		err = errors.Join(err, c.Close())
	}
	return err
}

// beBare is the process of the bare server.
func beBare(in io.Reader, out io.Writer) error {
	s := &bareServer{}
	var server *grpc.Server
	var serving sync.WaitGroup
	err := obey(in, out, func(o serverOrder) (u usage, err error) {
		switch {
		case o.Key != nil:
			cfg, err := bareTLS(o.Key, o.Chain)
			if err != nil {
				return u, err
			}
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				return u, err
			}
			server = grpc.NewServer(grpc.Creds(credentials.NewTLS(cfg)), grpc.ReadBufferSize(0), grpc.WriteBufferSize(4096),
				grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
				grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}))
			fealtyv1.RegisterAgentServiceServer(server, s)
			serving.Go(func() { _ = server.Serve(l) })
			return usage{Address: l.Addr().String()}, nil
		case o.Opening != nil:
			if s.opening, err = messages(o.Opening); err != nil {
				return u, err
			}
		case o.Change != nil:
			change, err := messages(o.Change)
			if err != nil {
				return u, err
			}
			s.change.Store(&change)
			s.changed.Notify()
		}
		return used(o)
	})
	if server != nil {
		server.Stop()
		serving.Wait()
	}
	return err
}

// bareTLS is a config of crypto/tls alone.
func bareTLS(key []byte, chain [][]byte) (*tls.Config, error) {
	cert, root, err := keyPair(key, chain)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AddCert(root)
	return &tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: roots,
		MinVersion: tls.VersionTLS13, SessionTicketsDisabled: true}, nil
}

func keyPair(key []byte, chain [][]byte) (cert tls.Certificate, root *x509.Certificate, err error) {
	if cert.PrivateKey, err = x509.ParsePKCS8PrivateKey(key); err != nil {
		return cert, nil, err
	}
	cert.Certificate = chain[:len(chain)-1]
	root, err = x509.ParseCertificate(chain[len(chain)-1])
	return cert, root, err
}

func messages(raw [][]byte) (out []*fealtyv1.ConnectResponse, err error) {
	for _, r := range raw {
		m := &fealtyv1.ConnectResponse{}
		if err := proto.Unmarshal(r, m); err != nil {
			return nil, err
		}
		out = append(out, m)
	}
	return out, nil
}

// bareServer is the least that a server of such streams is: it receives until the stream ends, and
// sends what comes to all.
type bareServer struct {
	fealtyv1.UnimplementedAgentServiceServer

	opening []*fealtyv1.ConnectResponse // set before the first stream
	change  atomic.Pointer[[]*fealtyv1.ConnectResponse]
	changed watch.Signal
}

func (s *bareServer) Connect(stream fealtyv1.AgentService_ConnectServer) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	changed := s.changed.Wait()
	for _, m := range s.opening {
		if err := stream.Send(m); err != nil {
			return err
		}
	}
	ended := make(chan error, 1)
	go func() { // ends with the stream
		for {
			if _, err := stream.Recv(); err != nil {
				ended <- err
				return
			}
		}
	}()
	for {
		select {
		case err := <-ended:
			return err
		case <-changed:
		}
		changed = s.changed.Wait()
		for _, m := range *s.change.Load() {
			if err := stream.Send(m); err != nil {
				return err
			}
		}
	}
}

// fleetOrder is a line to the process of the members.
type fleetOrder struct {
	Token string `json:"token,omitempty"` // join this many with it
	N     int    `json:"n,omitempty"`

	Open  string `json:"open,omitempty"`  // streams to this address, one for each member
	Close string `json:"close,omitempty"` // those

	Scope snapshot.Scope `json:"scope,omitempty"` // count who is sent it
	Began time.Time      `json:"began,omitzero"`  // from here
	Wait  bool           `json:"wait,omitempty"`  // until all were
}

type fleetReport struct {
	Member string   `json:"member,omitempty"` // the first one
	Key    []byte   `json:"key,omitempty"`    // of one more
	Chain  [][]byte `json:"chain,omitempty"`

	Sent  [][]byte      `json:"sent,omitempty"` // to the first member, since the streams were opened or the round began
	First time.Duration `json:"first,omitempty"`
	Last  time.Duration `json:"last,omitempty"`
}

// fleet is the members of [BenchmarkStreams].
type fleet struct {
	coordinator string
	members     []fleetMember
	streams     map[string]*fleetStreams // by address

	// Of a round.
	scope atomic.Pointer[snapshot.Scope]
	began atomic.Int64 // Unix nanoseconds
	took  []atomic.Int64
	left  atomic.Int64
	done  chan struct{}

	mu   sync.Mutex
	sent [][]byte // guarded by mu
}

type fleetMember struct {
	*devcluster.Candidate
	chain [][]byte
	id    identity.ID
	epoch uint64 // of its node_bootstrap
	run   string
}

// fleetStreams are one of each member to one server.
type fleetStreams struct {
	cancel context.CancelFunc
	conns  []*grpc.ClientConn // of the bare server
	meshes []*mesh.Conn       // of the coordinator
	ended  sync.WaitGroup
}

// beMembers is the process of the members.
func beMembers(in io.Reader, out io.Writer) error {
	f := &fleet{streams: make(map[string]*fleetStreams), done: make(chan struct{}, 1)}
	err := obey(in, out, func(o fleetOrder) (r fleetReport, err error) {
		switch {
		case o.Token != "":
			return f.join(o.Token, o.N)
		case o.Open != "":
			f.take()
			err = f.open(o.Open)
			r.Sent = f.take()
		case o.Close != "":
			f.close(o.Close)
		case o.Wait:
			var took []time.Duration
			if took, err = f.wait(); err == nil {
				r.First, r.Last, r.Sent = took[0], took[len(took)-1], f.take()
			}
		default:
			f.take()
			for i := range f.took {
				f.took[i].Store(0)
			}
			f.left.Store(int64(len(f.took)))
			f.scope.Store(&o.Scope)
			f.began.Store(o.Began.UnixNano())
		}
		return r, err
	})
	for addr := range f.streams {
		f.close(addr)
	}
	return err
}

// take returns what the first member was sent, and forgets it.
func (f *fleet) take() [][]byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	sent := f.sent
	f.sent = nil
	return sent
}

// each does f for 0 to n-1, 32 at once.
func each(n int, do func(int) error) error {
	var next atomic.Int64
	var all sync.WaitGroup
	failed := make(chan error, 32)
	for range cap(failed) {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				if err := do(i); err != nil {
					failed <- fmt.Errorf("member %d: %w", i, err)
					return
				}
			}
		})
	}
	all.Wait()
	close(failed)
	return <-failed
}

// join joins n members, and one whose certificate the bare server has.
func (f *fleet) join(line string, n int) (r fleetReport, err error) {
	tok, err := joinproof.ParseJoinToken(line)
	if err != nil {
		return r, err
	}
	first, err := devcluster.NewCandidate(tok)
	if err != nil {
		return r, err
	}
	f.coordinator = tok.Addresses[0]
	all := make([]fleetMember, n+1)
	if err := each(n+1, func(i int) (err error) {
		m := &all[i]
		if m.Candidate, err = first.Again(); err != nil {
			return err
		}
		grant, err := m.Join(context.Background(), identity.Data, joinproof.NewTokenProver(tok))
		for again := 0; err != nil && again < 3; again++ { // on a busy machine a connection may end
			grant, err = m.Join(context.Background(), identity.Data, joinproof.NewTokenProver(tok))
		}
		if err != nil {
			return err
		}
		signed, err := snapshot.Unmarshal(grant.GetNodeBootstrap().GetEnvelope())
		if err != nil {
			return err
		}
		claims, err := signed.Claims()
		if err != nil {
			return err
		}
		leaf, err := x509.ParseCertificate(grant.GetChain()[0])
		if err != nil {
			return err
		}
		m.chain, m.epoch = grant.GetChain(), claims.Header.AuthorityEpoch
		m.id, err = identity.FromCertificate(leaf)
		run := make([]byte, 16)
		rand.Read(run)
		m.run = hex.EncodeToString(run)
		return err
	}); err != nil {
		return r, err
	}
	f.members, f.took = all[:n], make([]atomic.Int64, n)
	r.Member = string(all[0].id.Kind()) + "/" + all[0].id.Name()
	r.Chain = all[n].chain
	r.Key, err = x509.MarshalPKCS8PrivateKey(all[n].Key)
	return r, err
}

// open has each member connect to addr and listen. It returns once each has what it is sent at first.
func (f *fleet) open(addr string) error {
	ctx, cancel := context.WithCancel(context.Background())
	s := &fleetStreams{cancel: cancel, conns: make([]*grpc.ClientConn, len(f.members)), meshes: make([]*mesh.Conn, len(f.members))}
	f.streams[addr] = s
	// As agents do.
	alive := grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second})
	return each(len(f.members), func(i int) error {
		m := &f.members[i]
		var conn grpc.ClientConnInterface
		if addr == f.coordinator {
			c, _, err := m.DialAs(m.chain, alive, grpc.WithStaticStreamWindowSize(1<<20), grpc.WithStaticConnWindowSize(1<<20))
			if err != nil {
				return err
			}
			s.meshes[i], conn = c, c
		} else {
			c, err := dialBare(addr, m, alive)
			if err != nil {
				return err
			}
			s.conns[i], conn = c, c
		}
		stream, err := fealtyv1.NewAgentServiceClient(conn).Connect(ctx)
		if err != nil {
			return err
		}
		if err := stream.Send(&fealtyv1.ConnectRequest{Name: m.id.Name(), Run: m.run, Release: "bench",
			Held: []*fealtyv1.HeldSnapshot{{Scope: string(snapshot.ScopeNodeBootstrap), AuthorityEpoch: m.epoch}}}); err != nil {
			return err
		}
		ready := make(chan error, 1)
		s.ended.Go(func() {
			err := f.listen(i, stream, func() { ready <- nil })
			select {
			case ready <- err:
			default: // it was ready
				if ctx.Err() == nil {
					fmt.Fprintf(os.Stderr, "the stream of member %d ended: %v\n", i, err)
				}
			}
		})
		return <-ready
	})
}

// dialBare connects by crypto/tls alone. The server's certificate is of a member, whom nothing names.
func dialBare(addr string, m *fleetMember, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	key, err := x509.MarshalPKCS8PrivateKey(m.Key)
	if err != nil {
		return nil, err
	}
	cert, _, err := keyPair(key, m.chain)
	if err != nil {
		return nil, err
	}
	return grpc.NewClient("passthrough:///"+addr, append(opts, grpc.WithTransportCredentials(credentials.NewTLS(
		&tls.Config{Certificates: []tls.Certificate{cert}, InsecureSkipVerify: true, MinVersion: tls.VersionTLS13})))...)
}

// listen receives for member i until stream ends. ready is called once it has what comes at first.
func (f *fleet) listen(i int, stream grpc.ServerStreamingClient[fealtyv1.ConnectResponse], ready func()) error {
	var standing, runtime bool
	ready = sync.OnceFunc(ready)
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		scope := snapshot.Scope(m.GetSnapshot().GetScope())
		if i == 0 {
			raw, err := proto.Marshal(m)
			if err != nil {
				return err
			}
			f.mu.Lock()
			f.sent = append(f.sent, raw)
			f.mu.Unlock()
		}
		standing, runtime = standing || m.GetStanding() != nil, runtime || scope == snapshot.ScopeNodeRuntime
		if standing && runtime {
			ready()
		}
		if began, of := f.began.Load(), f.scope.Load(); began != 0 && scope == *of &&
			f.took[i].CompareAndSwap(0, max(1, time.Now().UnixNano()-began)) && f.left.Add(-1) == 0 {
			f.done <- struct{}{}
		}
	}
}

func (f *fleet) close(addr string) {
	s := f.streams[addr]
	delete(f.streams, addr)
	s.cancel()
	for i := range f.members {
		if c := s.conns[i]; c != nil {
			c.Close()
		}
		if c := s.meshes[i]; c != nil {
			c.Close()
		}
	}
	s.ended.Wait()
}

// wait returns how long each took, sorted.
func (f *fleet) wait() ([]time.Duration, error) {
	select {
	case <-f.done:
	case <-time.After(time.Minute):
		return nil, fmt.Errorf("%d members were not sent it", f.left.Load())
	}
	f.began.Store(0)
	out := make([]time.Duration, len(f.took))
	for i := range f.took {
		out[i] = time.Duration(f.took[i].Load())
	}
	slices.Sort(out)
	return out, nil
}
