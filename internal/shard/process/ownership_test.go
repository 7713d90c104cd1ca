package process_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/shard/process"
)

// ownershipWorld is a real coordinator, and one receiver that members of it share.
type ownershipWorld struct {
	t     *testing.T
	f     *coordinatortest.Fleet
	admin fealtyv1.DomainServiceClient
	*receiver

	mu      sync.Mutex
	start   string        // guarded by mu
	elapsed time.Duration // guarded by mu
}

// receiver promises as a provider does.
type receiver struct {
	gate      *fence.Gate
	authority fence.Authority
	err       error // instead of a promise
	shown     int
}

func (r *receiver) Promise(ctx context.Context, text string) error {
	r.shown++
	if r.err != nil {
		return r.err
	}
	a, err := r.authority.OpenAssignment(text)
	if err != nil {
		return err
	}
	return r.gate.Promise(ctx, a)
}

func newReceiver(cluster string, a fence.Authority) *receiver {
	return &receiver{authority: a,
		gate: fence.NewGate(fence.InMemory(fence.NewLedger(fence.LedgerOptions{Cluster: cluster, BelieveEpochs: true})), 0)}
}

func newOwnershipWorld(t *testing.T) *ownershipWorld {
	t.Helper()
	f := coordinatortest.ReadyFleet(t, nil)
	w := &ownershipWorld{t: t, f: f, admin: fealtyv1.NewDomainServiceClient(f.LocalConn()), start: "boot-1"}
	bundle, _, err := f.State().Bundle.Open(f.C.Parts().Bundle.View().Signed)
	if err != nil {
		t.Fatal(err)
	}
	w.receiver = newReceiver(bundle.ClusterID, bundle.FenceAuthority(f.Clock))
	return w
}

func (w *ownershipWorld) clock() (string, time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.start, w.elapsed
}

func (w *ownershipWorld) pass(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.elapsed += d
}

// boot starts the machine anew.
func (w *ownershipWorld) boot(start string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.start, w.elapsed = start, 0
}

func (w *ownershipWorld) assign(name, to string, force bool) {
	w.t.Helper()
	_, err := w.admin.AssignDomain(w.t.Context(), &fealtyv1.AssignDomainRequest{Name: name, To: to, Force: force,
		Reason: "a test"})
	if err != nil {
		w.t.Fatal(err)
	}
}

// member is one with a folder of its own.
type member struct {
	*process.Holder
	cfg   process.HolderConfig
	conn  *edited
	told  chan string // the domains that it heard are its own
	quiet chan struct{}
	waits chan struct{} // gets one value when the member waits for quiet
}

// edited is a real connection whose answers a test may change.
type edited struct {
	grpc.ClientConnInterface
	edit func(*fealtyv1.PollAssignmentsResponse) error // nil: nothing is changed
}

func (e *edited) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	err := e.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
	if answer, ok := reply.(*fealtyv1.PollAssignmentsResponse); ok && err == nil && e.edit != nil {
		return e.edit(answer)
	}
	return err
}

// terms is the mark in memory.
type terms struct{ fence.Term }

// these are all receivers there are.
func these(all map[string]process.DomainReceiver) func() map[string]process.DomainReceiver {
	return func() map[string]process.DomainReceiver { return all }
}

func (w *ownershipWorld) member(name string) *member {
	w.t.Helper()
	n := w.f.Member(name)
	m := &member{conn: &edited{ClientConnInterface: n.Conn()}, quiet: make(chan struct{}),
		waits: make(chan struct{}, 100), told: make(chan string, 100)}
	close(m.quiet)
	m.cfg = process.HolderConfig{ID: n.ID, Conn: m.conn, Authority: w.authority, Term: &terms{},
		Receivers: these(map[string]process.DomainReceiver{"p": w.receiver}), Clock: w.clock,
		File:  process.File{Files: durable.OS(), Dir: w.t.TempDir()},
		Quiet: func() <-chan struct{} { m.waits <- struct{}{}; return m.quiet },
		Owned: func(domain string) { m.told <- domain }, Log: slog.New(slog.DiscardHandler)}
	m.restart(w.t)
	return m
}

func (m *member) restart(t *testing.T) {
	t.Helper()
	var err error
	if m.Holder, err = process.NewHolder(m.cfg); err != nil {
		t.Fatal(err)
	}
}

func (w *ownershipWorld) step(all ...*member) {
	for _, m := range all {
		m.Step(w.t.Context())
	}
}

// A member owns nothing when it joins; a domain is its own once it was told and the receiver
// promised; and when it moves its owner acts no more before the next one does.
func TestDomainMoves(t *testing.T) {
	t.Parallel()
	w := newOwnershipWorld(t)
	a, b := w.member("node-a"), w.member("node-b")
	w.step(a, b)
	if a.Owns("p", "eu") || b.Owns("p", "eu") || w.shown != 0 {
		t.Fatal("a member that joined owns something")
	}
	if !a.Owns("p", "") {
		t.Error("what is of no domain is nobody's")
	}
	w.assign("eu", "data/node-a", false)
	w.step(b, a)
	first := a.Ownership("p", "eu")
	if first == 0 || b.Owns("p", "eu") || len(a.told) != 1 || <-a.told != "eu" {
		t.Fatalf("the owner has ownership %d, and the other one owns it: %v", first, b.Owns("p", "eu"))
	}
	w.assign("eu", "data/node-b", false)
	w.step(b)
	if b.Owns("p", "eu") {
		t.Fatal("two members own it")
	}
	// While something is under way its owner does not act, and does not say that it let go.
	a.quiet = make(chan struct{})
	stepped := make(chan struct{})
	go func() { defer close(stepped); a.Step(t.Context()) }()
	select {
	case <-a.waits:
	case <-stepped:
		t.Fatal("its owner does not wait for what is under way")
	}
	w.step(b)
	if a.Owns("p", "eu") || b.Owns("p", "eu") {
		t.Fatalf("while its owner lets go of it, that one owns it: %v, and the next one: %v", a.Owns("p", "eu"),
			b.Owns("p", "eu"))
	}
	close(a.quiet)
	<-stepped
	w.step(b)
	if got := b.Ownership("p", "eu"); got != first+1 {
		t.Errorf("the next owner has ownership %d, want %d", got, first+1)
	}
	// By force nobody is asked, and the owner of before hears so with its next answer.
	w.assign("eu", "data/node-a", true)
	w.step(b, a)
	if b.Owns("p", "eu") || a.Ownership("p", "eu") != first+2 {
		t.Errorf("by force they have ownership %d and %d", a.Ownership("p", "eu"), b.Ownership("p", "eu"))
	}
}

// A domain that went to another owner and came back is promised anew before anything is done.
func TestCameBack(t *testing.T) {
	t.Parallel()
	w := newOwnershipWorld(t)
	a := w.member("node-a")
	w.member("node-b")
	w.assign("eu", "data/node-a", false)
	w.step(a)
	w.receiver.err = errors.New("out of reach")
	w.assign("eu", "data/node-b", true)
	w.assign("eu", "data/node-a", true)
	w.step(a)
	if a.Owns("p", "eu") {
		t.Error("it acts under an ownership that the receiver did not promise")
	}
	w.receiver.err = nil
	w.step(a)
	if !a.Owns("p", "eu") {
		t.Error("it does not act once the receiver promised")
	}
}

// Nothing is done at a receiver before that one promised; one that is out of reach holds up no
// other; and one that forgot is shown the assignment again.
func TestPromiseComesFirst(t *testing.T) {
	t.Parallel()
	w := newOwnershipWorld(t)
	a := w.member("node-a")
	silent := newReceiver(w.authority.Cluster, w.authority)
	silent.err = errors.New("out of reach")
	a.cfg.Receivers = these(map[string]process.DomainReceiver{"p": w.receiver, "q": silent})
	a.restart(t)
	w.assign("eu", "data/node-a", false)
	w.step(a)
	if !a.Owns("p", "eu") || a.Owns("q", "eu") || a.Owns("r", "eu") {
		t.Errorf("it owns the domain at p: %v, at q, which did not promise: %v, at nobody: %v", a.Owns("p", "eu"),
			a.Owns("q", "eu"), a.Owns("r", "eu"))
	}
	silent.err = nil
	w.step(a)
	if !a.Owns("q", "eu") || w.shown != 1 {
		t.Errorf("after it answered: %v; the other one was asked %d times", a.Owns("q", "eu"), w.shown)
	}
	w.pass(time.Minute)
	w.step(a)
	if w.shown != 2 || len(a.told) != 4 {
		t.Errorf("a receiver that may have forgotten was asked %d times, want 2, and the shard was told %d times, want 4: "+
			"it may have heard of a refusal of before since", w.shown, len(a.told))
	}
	silent.err = errors.New("out of reach again")
	w.pass(time.Minute)
	w.step(a)
	if !a.Owns("q", "eu") {
		t.Error("a promise that was made does not count any more, as the receiver is out of reach")
	}
}

// A receiver that takes the place of another under its name promised nothing, also if that one's
// promise comes while it does.
func TestReceiverIsReplaced(t *testing.T) {
	t.Parallel()
	w := newOwnershipWorld(t)
	a := w.member("node-a")
	next := newReceiver(w.authority.Cluster, w.authority)
	var mu sync.Mutex
	now := map[string]process.DomainReceiver{"p": w.receiver}
	put := func(r process.DomainReceiver) {
		mu.Lock()
		defer mu.Unlock()
		now = map[string]process.DomainReceiver{"p": r}
	}
	a.cfg.Receivers = func() map[string]process.DomainReceiver { mu.Lock(); defer mu.Unlock(); return now }
	a.restart(t)
	w.assign("eu", "data/node-a", false)
	w.step(a)
	if !a.Owns("p", "eu") {
		t.Fatal("it does not own the domain")
	}
	next.err = errors.New("out of reach")
	put(next)
	a.Forget("p")
	if a.Owns("p", "eu") {
		t.Error("what the one before promised counts for the next")
	}
	w.step(a)
	if a.Owns("p", "eu") || next.shown != 1 {
		t.Errorf("it owns the domain there: %v, after the next was asked %d times", a.Owns("p", "eu"), next.shown)
	}
	// The promise of the one before comes while the next takes its place.
	put(&promising{w.receiver, func() { put(next); a.Forget("p") }})
	a.Forget("p")
	w.step(a)
	if a.Owns("p", "eu") {
		t.Error("a promise that came late counts for the next")
	}
	next.err = nil
	w.step(a)
	if !a.Owns("p", "eu") {
		t.Error("the next promised, and it does not count")
	}
}

// promising is a receiver of which something happens once it promised.
type promising struct {
	process.DomainReceiver
	then func()
}

func (p *promising) Promise(ctx context.Context, text string) error {
	defer p.then()
	return p.DomainReceiver.Promise(ctx, text)
}

// An owner that hears nothing fences itself when its lease is over, also when its process was
// started anew meanwhile; and it goes on when it is told again.
func TestLeaseIsOver(t *testing.T) {
	t.Parallel()
	w := newOwnershipWorld(t)
	a := w.member("node-a")
	w.assign("eu", "data/node-a", false)
	var lease time.Duration
	a.conn.edit = func(answer *fealtyv1.PollAssignmentsResponse) error {
		for _, d := range answer.GetDomains() {
			lease = d.GetLease().AsDuration()
		}
		w.pass(time.Second) // the call takes a second, which is not the owner's
		return nil
	}
	w.step(a)
	if !a.Owns("p", "eu") || lease == 0 {
		t.Fatalf("it owns nothing, with a lease of %v", lease)
	}
	a.conn.edit = func(*fealtyv1.PollAssignmentsResponse) error { return errors.New("no coordinator answers") }
	a.restart(t)
	w.step(a)
	if !a.Owns("p", "eu") {
		t.Fatal("a process that starts while no coordinator answers owns nothing")
	}
	w.pass(lease - time.Second - 1)
	if !a.Owns("p", "eu") {
		t.Error("it fenced itself before its lease was over")
	}
	w.pass(1)
	if a.Owns("p", "eu") {
		t.Error("it acts after its lease was over")
	}
	if s := a.States(); len(s) != 1 || !s[0].Lapsed {
		t.Errorf("it says %+v", s)
	}
	a.restart(t)
	w.step(a)
	if a.Owns("p", "eu") {
		t.Error("a new process took the lease for a new one")
	}
	a.conn.edit = nil
	w.step(a)
	if !a.Owns("p", "eu") {
		t.Error("it owns nothing although it was told so again")
	}
	// Another start of the machine: nobody knows how long it was off.
	a.conn.edit = func(*fealtyv1.PollAssignmentsResponse) error { return errors.New("no coordinator answers") }
	w.boot("boot-2")
	a.restart(t)
	w.step(a)
	if a.Owns("p", "eu") {
		t.Error("after a start of the machine it goes on")
	}
	w.boot("")
	a.conn.edit = nil
	w.step(a)
	if a.Owns("p", "eu") {
		t.Error("without a clock it believes in a lease")
	}
}

// An owner that is asked to let go is given no more time by that answer.
func TestNoMoreTimeToLetGo(t *testing.T) {
	t.Parallel()
	w := newOwnershipWorld(t)
	a := w.member("node-a")
	w.assign("eu", "data/node-a", false)
	w.step(a)
	if _, err := w.admin.UnassignDomain(t.Context(), &fealtyv1.UnassignDomainRequest{Name: "eu"}); err != nil {
		t.Fatal(err)
	}
	a.conn.edit = func(answer *fealtyv1.PollAssignmentsResponse) error {
		for _, d := range answer.GetDomains() {
			if d.GetLease() != nil || !d.GetRelease() {
				t.Errorf("it is told %v", d)
			}
		}
		return nil
	}
	w.step(a)
	a.restart(t)
	if a.Owns("p", "eu") {
		t.Error("what was let go is kept on disk")
	}
}

// An answer counts whole, or not at all.
func TestAnswersThatDoNotCount(t *testing.T) {
	t.Parallel()
	w := newOwnershipWorld(t)
	a, b := w.member("node-a"), w.member("node-b")
	w.assign("eu", "data/node-a", false)
	w.assign("ap", "data/node-b", false)
	w.step(a, b)
	first := a.Ownership("p", "eu")
	if first == 0 {
		t.Fatal("it owns nothing")
	}
	var foreign *fealtyv1.OwnedDomain
	b.conn.edit = func(answer *fealtyv1.PollAssignmentsResponse) error { foreign = answer.GetDomains()[0]; return nil }
	w.step(b)
	for _, tc := range []struct {
		name string
		edit func(*fealtyv1.PollAssignmentsResponse)
	}{
		{"the assignment of another member", func(r *fealtyv1.PollAssignmentsResponse) { r.Domains = append(r.Domains, foreign) }},
		{"another domain than was signed", func(r *fealtyv1.PollAssignmentsResponse) { r.Domains[0].Name = "us" }},
		{"another ownership than was signed", func(r *fealtyv1.PollAssignmentsResponse) { r.Domains[0].Ownership++ }},
		{"no signature", func(r *fealtyv1.PollAssignmentsResponse) { r.Domains[0].Assignment = "" }},
		{"a term that nobody signed", func(r *fealtyv1.PollAssignmentsResponse) { r.Term = "x.y.z" }},
		{"a negative lease", func(r *fealtyv1.PollAssignmentsResponse) { r.Domains[0].Lease = durationpb.New(-1) }},
		{"a lease without end", func(r *fealtyv1.PollAssignmentsResponse) {
			r.Domains[0].Lease = durationpb.New(process.MaxLease + 1)
		}},
		{"a lease that is none", func(r *fealtyv1.PollAssignmentsResponse) {
			r.Domains[0].Lease = &durationpb.Duration{Seconds: 1 << 62}
		}},
		{"too many", func(r *fealtyv1.PollAssignmentsResponse) {
			for len(r.Domains) <= process.MaxDomains {
				r.Domains = append(r.Domains, r.Domains[0])
			}
		}},
	} {
		a.conn.edit = func(answer *fealtyv1.PollAssignmentsResponse) error {
			// Beside it what is right, which must not count either.
			for _, d := range answer.GetDomains() {
				d.Release = true
			}
			tc.edit(answer)
			return nil
		}
		w.step(a)
		if got := a.Ownership("p", "eu"); got != first {
			t.Errorf("%s: ownership %d, want %d", tc.name, got, first)
		}
	}
	// A leader that was deposed says what was.
	if err := a.cfg.Term.Check(1 << 40); err != nil {
		t.Fatal(err)
	}
	a.conn.edit = nil
	w.assign("eu", "data/node-b", true)
	w.step(a)
	if a.Ownership("p", "eu") != first {
		t.Error("it heard a leader with an older term than it knows")
	}
}

// A file that is damaged is an error that says how to mend it, and what does not verify any
// more does not count.
func TestKeptOnDisk(t *testing.T) {
	t.Parallel()
	w := newOwnershipWorld(t)
	a := w.member("node-a")
	w.assign("eu", "data/node-a", false)
	w.step(a)
	name := filepath.Join(a.cfg.File.Dir, "domains.json")
	good, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		after  time.Duration
		writes bool
	}{{time.Second, false}, {30 * time.Second, true}} {
		w.pass(step.after)
		w.step(a)
		now, err := os.ReadFile(name)
		if err != nil || string(now) == string(good) == step.writes {
			t.Errorf("after %v more it is written: %v, %v", step.after, string(now) != string(good), err)
		}
	}
	if _, err := w.admin.UnassignDomain(t.Context(), &fealtyv1.UnassignDomainRequest{Name: "eu"}); err != nil {
		t.Fatal(err)
	}
	a.quiet = make(chan struct{})
	ctx, stop := context.WithCancel(t.Context())
	stepped := make(chan struct{})
	go func() { defer close(stepped); a.Step(ctx) }()
	<-a.waits
	if h, err := process.NewHolder(a.cfg); err != nil || len(h.States()) != 1 || !h.States()[0].Lapsed {
		t.Errorf("while it lets go of it, its lease on disk is not over: %v, %v", h, err)
	}
	stop()
	<-stepped
	for n := range len(good) - 1 {
		if err := os.WriteFile(name, good[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := process.NewHolder(a.cfg); err == nil || !strings.Contains(err.Error(), "remove it") {
			t.Fatalf("cut to %d bytes: %v", n, err)
		}
	}
	for _, tc := range []struct{ name, from, to, want string }{
		{"a version that is not known yet", `"version":1`, `"version":2`, "version 2"},
		{"no version", `"version":1,`, ``, "version 0"},
		{"a field that is not known", `"version":1`, `"version":1,"more":1`, "more"},
		{"more behind it", "\n", `{}`, "more behind it"},
	} {
		text := strings.Replace(string(good), tc.from, tc.to, 1)
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := process.NewHolder(a.cfg); err == nil || !strings.Contains(err.Error(), tc.want) ||
			!strings.Contains(err.Error(), "remove it") {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
	for _, tc := range []struct{ name, from, to string }{
		{"another ownership", `"ownership":`, `"ownership":1`},
		{"another domain", `"domain":"eu"`, `"domain":"us"`},
	} {
		if err := os.WriteFile(name, []byte(strings.Replace(string(good), tc.from, tc.to, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		h, err := process.NewHolder(a.cfg)
		if err != nil || len(h.States()) != 0 {
			t.Errorf("%s: %v, %v", tc.name, h, err)
		}
	}
}
