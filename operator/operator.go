package operator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/provider"
	"github.com/fealty-io/fealty/internal/shard/scheduler"
	"github.com/fealty-io/fealty/mesh"
)

// Bounds of a demand.
const (
	MaxRows     = scheduler.MaxRows  // rows
	MaxMachines = scheduler.MaxCount // machines of all rows
)

const maxResponse = 4 << 20 // bytes

// Row is a part of a demand: so many machines of a profile.
type Row struct {
	// Profile is what kind of machine: 1 to 128 bytes of printable ASCII without blanks, as providers name it.
	Profile string
	// Priority: machines are given to the highest first, and taken from the lowest for it. It is compared with that of
	// other tenants.
	Priority int32
	// Count is how many, from 1: what is not wanted has no row.
	Count int
}

// Config is what [Open] needs.
type Config struct {
	// Target is where the shard is: a gRPC target such as host:port. Required.
	Target string

	// Source is the certificate and key of the tenant's operator, and its trust in others. The name in the certificate
	// is the tenant. Required, but with Insecure.
	Source credential.Source

	// Expect is who must be on the other end. The zero value: any shard of the cluster.
	Expect credential.Expect

	// Insecure connects without TLS, to a loopback address alone, as the operator of Tenant. It is for trying things
	// out with a shard that was started with --insecure.
	Insecure bool
	Tenant   string // of Insecure alone

	// Dir is a folder of this operator alone, which is made if it is missing. [Operator.Run] counts its runs there, in
	// the file operator-run: the demand of an older run changes nothing any more. Without a file of before the clock
	// says which run it is. Required for Run, but with RunNumber.
	Dir string

	// RunNumber is the number of the run, for a program that counts by itself: greater than each of before, and not 0.
	// Dir stays empty then.
	RunNumber uint64

	// Attempts is how many sessions in a row may fail before Run ends. Zero: any number.
	Attempts int

	// Connected is called when a session begins, Capacity when what the tenant has is another thing than before, and
	// Notice with each notice. A session begins with what the tenant has, and with all notices that are out: one that
	// was told in an earlier session, and is not told again, is over.
	//
	// They are called by one goroutine, one after the other: what takes long holds up those that follow, and no demand.
	// A notice is acknowledged when Notice returns. They may call Set and Release, with the context that they are given,
	// which ends with Run. Nil: not called; notices are acknowledged all the same.
	Connected func(context.Context, Shard)
	Capacity  func(context.Context, []Capacity)
	Notice    func(context.Context, Notice)

	// Now is the clock that a run without a file of before is numbered by. Nil: time.Now.
	Now func() time.Time

	// Log gets why a session ended, and what was not taken when it was stated again. Nil: slog.Default().
	Log *slog.Logger
}

// Shard is the other end of a session.
type Shard struct {
	Name string
	Term int64 // of the leader that it obeyed last; 0: none yet
}

// Capacity is what a tenant has of a profile, in machines, as of the shard's last cycle.
type Capacity struct {
	Profile                                   string
	Wanted                                    int // as far as it was taken
	Configuring, Configured, Draining, Failed int
	// Quota is how many the tenant may have; -1: nothing bounds it, or, in a session, it is not told.
	Quota int
}

// Notice says that a machine is about to be taken from the tenant, or that such a notice is over.
type Notice struct {
	Provider, Machine, Profile string
	// Until is when it is drained, by the shard's clock, unless the tenant releases it before. Zero: the notice is over;
	// the machine is drained, or it stays, and capacity tells.
	Until time.Time
	// Preempted: a higher priority needs it. Otherwise the tenant does not want it, or may not have it.
	Preempted bool
}

// Operator states the demand of one tenant to one shard. Its methods may be called by several goroutines.
type Operator struct {
	cfg    Config
	tenant string
	closed func() error // closes the connection, once
	calls  fealtyv1.ShardServiceClient

	setting  chan struct{}     // holds one value while a Set is under way
	wake     chan struct{}     // holds one value when there is something to state
	releases chan Notice       // to the session
	acked    chan acknowledged // to the session
	events   events

	mu      sync.Mutex
	running bool       // guarded by mu
	ended   error      // why Run is over for good; nil: it is not; guarded by mu
	over    chan error // closed when ended is set
	failure error      // of the last session; nil while there is one; guarded by mu
	pending *statement // guarded by mu
	stands  []Row      // what the shard took last; guarded by mu
	stated  bool       // something was taken; guarded by mu
}

// statement is a demand that is being stated.
type statement struct {
	rows []Row
	done chan error // holds one value when it is answered
}

// Open returns an operator. It connects when it is run or watched; close it when done.
//
// Errors: of the config; a source that has no identity now, or that of anybody but an operator, which matches
// [ErrDenied].
func Open(cfg Config) (*Operator, error) {
	if cfg.Target == "" {
		return nil, errors.New("operator: Config.Target is missing: say where the shard is")
	}
	if cfg.Insecure == (cfg.Source != nil) {
		return nil, errors.New("operator: Config needs either a Source, or Insecure")
	}
	if (cfg.Tenant != "") != cfg.Insecure {
		return nil, errors.New("operator: Config.Tenant is for Insecure alone, and needed there: a certificate names its tenant")
	}
	if cfg.Dir != "" && cfg.RunNumber != 0 {
		return nil, errors.New("operator: Config has both Dir and RunNumber: one of them says which run it is")
	}
	if cfg.Attempts < 0 {
		return nil, fmt.Errorf("operator: Config.Attempts is %d: want 0 or more", cfg.Attempts)
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	o := &Operator{cfg: cfg, tenant: cfg.Tenant, setting: make(chan struct{}, 1), wake: make(chan struct{}, 1),
		releases: make(chan Notice), acked: make(chan acknowledged), events: events{more: make(chan struct{}, 1)},
		over: make(chan error)}
	return o, o.dial()
}

func (o *Operator) dial() error {
	options := []grpc.DialOption{grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxResponse)),
		// A shard that vanished is noticed. It takes no more than one ping in 10 seconds.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 20 * time.Second})}
	if o.cfg.Insecure {
		host, _, err := net.SplitHostPort(o.cfg.Target)
		if addr, problem := netip.ParseAddr(host); err != nil || problem != nil || !addr.IsLoopback() {
			return fmt.Errorf("operator: dial %s: %w", o.cfg.Target, provider.ErrNotLoopback)
		}
		conn, err := grpc.NewClient("passthrough:///"+o.cfg.Target, append(options,
			grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())...)
		if err != nil {
			return fmt.Errorf("operator: dial %s: %w", o.cfg.Target, err)
		}
		o.closed, o.calls = sync.OnceValue(conn.Close), fealtyv1.NewShardServiceClient(conn)
		return nil
	}
	m, err := o.cfg.Source.Current(context.Background())
	if err != nil {
		return fmt.Errorf("operator: dial %s: %w", o.cfg.Target, err)
	}
	id := m.ID()
	if id.Kind() != identity.Operator {
		return &SessionError{Target: o.cfg.Target, Tenant: id.Name(), kind: ErrDenied,
			err: fmt.Errorf("the certificate is that of %s/%s, and a tenant's is that of operator/TENANT", id.Kind(), id.Name())}
	}
	o.tenant = id.Name()
	expect := o.cfg.Expect
	if expect.Equal(credential.Expect{}) {
		expect = credential.AnyOfKind(identity.Shard)
	}
	conn, err := mesh.Dial(o.cfg.Target, o.cfg.Source, expect, mesh.Options{GRPC: options})
	if err != nil {
		return fmt.Errorf("operator: dial %s: %w", o.cfg.Target, err)
	}
	o.closed, o.calls = sync.OnceValue(conn.Close), fealtyv1.NewShardServiceClient(conn)
	return nil
}

// Tenant returns whose operator this is.
func (o *Operator) Tenant() string { return o.tenant }

// Close ends what is under way, with [ErrClosed], and the connection. It may be called again.
func (o *Operator) Close() error {
	o.end(ErrClosed)
	return o.closed()
}

// end has everything end for good, with err; the first one counts.
func (o *Operator) end(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended == nil {
		o.ended = err
		close(o.over)
	}
}

// why returns why everything ended.
func (o *Operator) why() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.ended
}

// Set states all that the tenant wants, in place of what was stated before, and returns once the shard took it. It
// takes rows in any order, of one profile and priority one at most; no rows: the tenant wants nothing any more.
// While there is no session, or the shard does not know yet what the tenant has, it waits: [Operator.Run] has to run.
//
// Errors: an [*InvalidError]; a [*DemandError]; what Run ended with. When ctx ends it is the error of ctx and of the
// last session that failed, and whether the shard took the demand is not known: set it again.
func (o *Operator) Set(ctx context.Context, rows []Row) error {
	if err := Check(rows); err != nil {
		return err
	}
	select {
	case o.setting <- struct{}{}:
	case <-ctx.Done():
		return o.gaveUp(ctx)
	case <-o.over:
		return o.why()
	}
	defer func() { <-o.setting }()
	s := &statement{rows: slices.Clone(rows), done: make(chan error, 1)}
	o.mu.Lock()
	o.pending = s
	o.mu.Unlock()
	defer func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.pending = nil
	}()
	o.wakeUp()
	select {
	case err := <-s.done:
		return err
	case <-ctx.Done():
		return o.gaveUp(ctx)
	case <-o.over:
		select { // it may have been the answer that ended everything
		case err := <-s.done:
			return err
		default:
			return o.why()
		}
	}
}

// gaveUp is the error of a call whose context ended.
func (o *Operator) gaveUp(ctx context.Context) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return errors.Join(context.Cause(ctx), o.failure)
}

// Check says what of a demand cannot be, as an [*InvalidError]. [Operator.Set] does so before it sends anything.
func Check(rows []Row) error {
	if len(rows) > MaxRows { // before they are copied
		return &InvalidError{Row: -1, Field: "demand", Problem: fmt.Sprintf("has %d rows, above %d", len(rows), MaxRows)}
	}
	// Tenant and key are checked elsewhere.
	r := scheduler.RollUp{Tenant: "tenant", Key: scheduler.DemandKey{Run: 1, Number: 1}}
	for _, row := range rows {
		r.Rows = append(r.Rows, scheduler.DemandRow(row))
	}
	if wrong, ok := errors.AsType[*scheduler.DemandInvalidError](r.Check()); ok {
		return &InvalidError{Row: wrong.Row, Field: wrong.Field, Problem: wrong.Problem}
	}
	return nil
}

// Release says that the tenant does not need a machine any more of which it was told: it is drained with the next
// cycle of the shard. One that the tenant was not told of changes nothing. It waits while there is no session.
//
// Errors: that of ctx, with that of the last session; what Run ended with.
func (o *Operator) Release(ctx context.Context, n Notice) error {
	select {
	case o.releases <- n:
		return nil
	case <-ctx.Done():
		return o.gaveUp(ctx)
	case <-o.over:
		return o.why()
	}
}

func (o *Operator) wakeUp() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}
