package quota_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/identity"
	internaldocument "github.com/fealty-io/fealty/internal/document"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
	internalquota "github.com/fealty-io/fealty/internal/quota"
	"github.com/fealty-io/fealty/internal/signed/order"
)

const (
	cluster = "test.example"
	folder  = "/shard/plan"
	file    = "plan.json"
	epoch   = 3 // of the authority
	newest  = uint64(epoch<<32 | 1<<32 - 1)
)

// errAway is of a coordinator that nobody reaches.
var errAway = status.Error(codes.Unavailable, "no coordinator answers")

// coordinator stands for the process at the other end of a connection. It signs as that one does.
type coordinator struct {
	grpc.ClientConnInterface
	key ed25519.PrivateKey

	mu     sync.Mutex
	answer func(context.Context, *fealtyv1.PollPlanRequest) (*fealtyv1.PollPlanResponse, error) // guarded by mu
	asked  []*fealtyv1.PollPlanRequest                                                          // guarded by mu
}

func (c *coordinator) Invoke(ctx context.Context, method string, args, reply any, _ ...grpc.CallOption) error {
	request, ok := args.(*fealtyv1.PollPlanRequest)
	if !ok || method != fealtyv1.RegistryService_PollPlan_FullMethodName {
		return status.Errorf(codes.Internal, "it was asked %s", method)
	}
	c.mu.Lock()
	c.asked = append(c.asked, request)
	answer := c.answer
	c.mu.Unlock()
	response, err := answer(ctx, request)
	if err != nil {
		return err
	}
	proto.Merge(reply.(proto.Message), response)
	return nil
}

// answers sets what it says to all who ask.
func (c *coordinator) answers(answer func(context.Context, *fealtyv1.PollPlanRequest) (*fealtyv1.PollPlanResponse,
	error)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answer = answer
}

func (c *coordinator) fails(err error) {
	c.answers(func(context.Context, *fealtyv1.PollPlanRequest) (*fealtyv1.PollPlanResponse, error) {
		return nil, err
	})
}

func (c *coordinator) says(statement, plan string) {
	c.answers(func(context.Context, *fealtyv1.PollPlanRequest) (*fealtyv1.PollPlanResponse, error) {
		return &fealtyv1.PollPlanResponse{Statement: statement, Plan: plan}, nil
	})
}

// tells has it answer as a real one does: whoever has that version gets the statement alone.
func (c *coordinator) tells(t testing.TB, version uint64, plan internalquota.Plan) {
	t.Helper()
	text := encoded(t, plan)
	statement := c.signed(t, version, text)
	c.answers(func(_ context.Context, r *fealtyv1.PollPlanRequest) (*fealtyv1.PollPlanResponse, error) {
		if r.GetHave() == version {
			return &fealtyv1.PollPlanResponse{Statement: statement}, nil
		}
		return &fealtyv1.PollPlanResponse{Statement: statement, Plan: text}, nil
	})
}

// signed returns the statement over a text as a plan of a version.
func (c *coordinator) signed(t testing.TB, version uint64, text string) string {
	t.Helper()
	return signedBy(t, c.key, document(version, text))
}

func document(version uint64, text string) order.Document {
	return order.Document{Cluster: cluster, Kind: internalquota.Kind, Version: version,
		Digest: sha256.Sum256([]byte(text)), AuthorityEpoch: epoch}
}

func signedBy(t testing.TB, key ed25519.PrivateKey, d order.Document) string {
	t.Helper()
	statement, err := d.Sign(key)
	if err != nil {
		t.Fatal(err)
	}
	return statement
}

func encoded(t testing.TB, plan internalquota.Plan) string {
	t.Helper()
	text, err := plan.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// quotas is a plan that bounds one tenant.
func quotas(machines int) internalquota.Plan {
	price := 0.25
	return internalquota.Plan{Quotas: []internalquota.Quota{{Tenant: "acme", Profile: "web", Machines: machines}},
		Providers: []internalquota.Provider{{Name: "rack", Address: "rack.example:7443", Price: &price}}}
}

// world is a shard, its disk, and the coordinator that it asks.
type world struct {
	*internalquota.Follower
	t    testing.TB
	c    *coordinator
	disk *durabletest.Disk
	log  bytes.Buffer
	now  time.Time
	cfg  internalquota.FollowerConfig
}

func newWorld(t testing.TB) *world {
	t.Helper()
	public, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	id, err := identity.New(cluster, identity.Shard, "eu-1")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, c: &coordinator{key: key}, disk: durabletest.NewDisk(), now: time.Unix(1_900_000_000, 0)}
	w.c.fails(errAway)
	if err := w.disk.FS().MkdirAll(folder); err != nil {
		t.Fatal(err)
	}
	w.cfg = internalquota.FollowerConfig{ID: id, Conn: w.c, Dir: folder, Now: func() time.Time { return w.now },
		Authority: fence.Authority{Cluster: cluster, NotBefore: epoch,
			Key: func(id string) (ed25519.PublicKey, bool) { return public, id == fence.KeyID(public) }},
		Log: slog.New(slog.NewTextHandler(&w.log, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	w.open()
	return w
}

// open starts the shard's process.
func (w *world) open() {
	w.t.Helper()
	w.cfg.Files = w.disk.FS()
	f, err := internalquota.OpenFollower(w.cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	w.Follower = f
}

// restart cuts the power, and starts the shard's process again: it knows what is on disk.
func (w *world) restart() {
	w.t.Helper()
	w.disk.Restart(durabletest.Synced)
	w.open()
}

// step asks once, a second after it asked last.
func (w *world) step() internalquota.FollowerState {
	w.now = w.now.Add(time.Second)
	w.Step(w.t.Context())
	return w.State()
}

// told is what a shard knows after it was told now.
func (w *world) told(version uint64, plan internalquota.Plan) internalquota.FollowerState {
	return internalquota.FollowerState{Known: true, Plan: plan, Version: version, Heard: w.now}
}

// known is what a shard knows after a start.
func known(version uint64, plan internalquota.Plan) internalquota.FollowerState {
	return internalquota.FollowerState{Known: true, Plan: plan, Version: version}
}

func (w *world) knows(when string, want internalquota.FollowerState) {
	w.t.Helper()
	if got := w.State(); !reflect.DeepEqual(got, want) {
		w.t.Errorf("%s it knows %+v, want %+v", when, got, want)
	}
}

// lines returns what was logged since, each line without its time.
func (w *world) lines() []string {
	var out []string
	for line := range strings.Lines(w.log.String()) {
		_, line, _ = strings.Cut(strings.TrimSpace(line), " ")
		out = append(out, line)
	}
	w.log.Reset()
	return out
}

func (w *world) read() []byte {
	w.t.Helper()
	text, err := w.disk.FS().ReadFile(filepath.Join(folder, file), 1<<30)
	if err != nil {
		w.t.Fatal(err)
	}
	return text
}

// A plan is in force and on disk once a shard is told it; and the next process goes on with it
// although no coordinator answers.
func TestTold(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.knows("at first", internalquota.FollowerState{})
	w.c.tells(t, 7, quotas(3))
	w.step()
	w.knows("once told", w.told(7, quotas(3)))
	w.c.fails(errAway)
	before := w.State()
	w.step()
	w.knows("while no coordinator answers", before)
	for _, after := range durabletest.Afters() {
		w.disk.Restart(after)
		w.open()
		w.knows("after a start, "+after.String(), known(7, quotas(3)))
		w.step()
		w.knows("after a start without a coordinator", known(7, quotas(3)))
	}
	w.c.tells(t, 8, quotas(2))
	w.step()
	w.knows("once told of the next one", w.told(8, quotas(2)))
	w.c.tells(t, 9, internalquota.Plan{})
	w.step()
	w.knows("once told that there are no quotas any more", w.told(9, internalquota.Plan{}))
	w.restart()
	w.knows("after a start with no quotas", known(9, internalquota.Plan{}))
	var have []uint64
	for _, r := range w.c.asked {
		if have = append(have, r.GetHave()); r.GetName() != "eu-1" {
			t.Errorf("it says that it is %q", r.GetName())
		}
	}
	if want := []uint64{0, 7, 7, 7, 7, 7, 7, 8}; !slices.Equal(have, want) {
		t.Errorf("it says that it has %d, want %d", have, want)
	}
}

// A coordinator that has nothing newer says so in a few bytes: the plan is in force for longer, and
// is not written again.
func TestNothingNewer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.c.tells(t, 7, quotas(3))
	w.step()
	w.lines()
	w.disk.FailAt(0, nil) // it counts from here
	for range 3 {
		w.step()
		w.knows("told again", w.told(7, quotas(3)))
	}
	calls := w.disk.Calls()
	w.restart()
	w.disk.FailAt(0, nil) // it counts from here
	w.step()
	w.knows("told again after a start", w.told(7, quotas(3)))
	if after := w.disk.Calls(); calls != 0 || after != 0 {
		t.Errorf("what is on disk was written again, in %d calls, and after a start in %d", calls, after)
	}
	if lines := w.lines(); len(lines) != 0 {
		t.Errorf("it logged %q", lines)
	}
	// A coordinator that signs another plan under the same version changes nothing with it, and
	// people are told.
	heard := w.State().Heard
	for _, text := range []string{encoded(t, quotas(9)), "{}", "no plan"} {
		w.c.says(w.c.signed(t, 7, text), text)
		w.step()
		if s := w.State(); !reflect.DeepEqual(s.Plan, quotas(3)) || s.Version != 7 || !s.Heard.Equal(heard) {
			t.Errorf("by version 7 with %s it knows %+v", text, s)
		}
	}
	if lines := w.lines(); len(lines) != 1 || !strings.Contains(lines[0], "version 7 of the plan was signed twice") {
		t.Errorf("it logged %q", lines)
	}
	w.restart()
	w.knows("after another start", known(7, quotas(3)))
}

// A shard that was told nothing knows nothing, however long no coordinator answers.
func TestNeverTold(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, code := range []codes.Code{codes.Unavailable, codes.PermissionDenied, codes.Internal,
		codes.DeadlineExceeded, codes.NotFound, codes.FailedPrecondition} {
		w.c.fails(status.Error(code, "a test"))
		w.step()
		w.knows("answered "+code.String(), internalquota.FollowerState{})
		w.restart()
		w.knows("answered "+code.String()+", and after a start", internalquota.FollowerState{})
	}
	if names, err := w.disk.FS().ReadDir(folder); err != nil || len(names) != 0 {
		t.Errorf("it wrote %q, %v", names, err)
	}
}

// An older coordinator that does not know the call says nothing of quotas: a shard that knows none
// waits, and one that does keeps them.
func TestOlderCoordinator(t *testing.T) {
	t.Parallel()
	for name, older := range map[string]error{
		"as coordinators say it": errcode.New(errcode.Denied, "denied", "unknown-method").GRPCStatus().Err(),
		"as servers of gRPC do":  status.Error(codes.Unimplemented, "unknown service fealty.v1.RegistryService"),
	} {
		w := newWorld(t)
		w.c.fails(older)
		for range 2 {
			w.step()
			w.knows(name, internalquota.FollowerState{})
		}
		w.c.tells(t, 1, quotas(3))
		w.step()
		before := w.told(1, quotas(3))
		w.knows("told by a newer one", before)
		w.c.fails(older)
		w.step()
		w.knows("told by an older one again", before)
		w.restart()
		w.step()
		w.knows("told by an older one after a start", known(1, quotas(3)))
	}
}

// An answer counts whole, or not at all: what was known before stays, also on disk, and of what was
// never known nothing is made up.
func TestRefused(t *testing.T) {
	t.Parallel()
	_, stranger, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	next := encoded(t, quotas(9))
	// altered is the statement over the next plan, with something else in it.
	altered := func(alter func(*order.Document)) func(*coordinator) (string, string) {
		return func(c *coordinator) (string, string) {
			d := document(8, next)
			alter(&d)
			return signedBy(t, c.key, d), next
		}
	}
	// text is what is signed and sent in place of a plan.
	text := func(text string) func(*coordinator) (string, string) {
		return func(c *coordinator) (string, string) { return c.signed(t, 8, text), text }
	}
	const quota = `"tenant":"acme","profile":"web","machines":9`
	for _, tc := range []struct {
		name string
		// says is part of what is logged.
		says   string
		answer func(c *coordinator) (statement, plan string)
		lower  bool // it has a plan of a version below that of before
	}{
		{"a lower version", "version 6 of the plan is the newest, and it was 7 before",
			func(c *coordinator) (string, string) { return c.signed(t, 6, next), "" }, true},
		{"a version above its authority epoch", "is above those of authority epoch 3",
			altered(func(d *order.Document) { d.Version = (epoch + 1) << 32 }), false},
		{"the lowest version", "version 1 of the plan is the newest, and it was 7 before",
			func(c *coordinator) (string, string) { return c.signed(t, 1, next), "" }, true},

		{"nothing", "the statement over the plan", func(*coordinator) (string, string) { return "", "" }, false},
		{"a plan without a statement", "the statement over the plan",
			func(*coordinator) (string, string) { return "", next }, false},
		{"a statement that is none", "the statement over the plan",
			func(*coordinator) (string, string) { return "a.b.c", next }, false},
		{"the statement of another key", "does not sign for cluster", func(*coordinator) (string, string) {
			return signedBy(t, stranger, document(8, next)), next
		}, false},
		{"the statement of another cluster", "did not sign this statement", altered(func(d *order.Document) {
			d.Cluster = "other.example"
		}), false},
		{"a document of another kind", "another kind",
			altered(func(d *order.Document) { d.Kind = "shard-plans" }), false},
		{"the statement of an authority that is over", "no longer count", altered(func(d *order.Document) {
			d.AuthorityEpoch = epoch - 1
		}), false},
		{"a statement of another type", "did not sign this statement", func(c *coordinator) (string, string) {
			s, err := fence.Grant{Cluster: cluster, Holder: "s", Number: 8, AuthorityEpoch: epoch}.Sign(c.key)
			if err != nil {
				t.Fatal(err)
			}
			return s, next
		}, false},

		{"another digest", "is not the one that was signed",
			altered(func(d *order.Document) { d.Digest[31] ^= 1 }), false},
		{"the digest of another plan", "is not the one that was signed", func(c *coordinator) (string, string) {
			return c.signed(t, 8, encoded(t, quotas(3))), next
		}, false},
		{"no plan, although it is new", "is not the one that was signed", func(c *coordinator) (string, string) {
			return c.signed(t, 8, next), ""
		}, false},
		{"a plan with a blank more", "is not the one that was signed", func(c *coordinator) (string, string) {
			return c.signed(t, 8, next), next + " "
		}, false},

		{"a plan of no bytes", "version 8 of the plan: invalid plan", text(""), false},
		{"half a plan", "version 8 of the plan: invalid plan", text(next[:len(next)-1]), false},
		{"two plans", "version 8 of the plan: invalid plan", text(next + next), false},
		{"a part that this release does not know", "unknown field",
			text(`{"quotas":[{` + quota + `}],"windows":[]}`), false},
		{"a bound that this release does not know", "unknown field",
			text(`{"quotas":[{` + quota + `,"cores":8}]}`), false},
		{"a quota that cannot be", "its machines",
			text(`{"quotas":[{"tenant":"a","profile":"b","machines":-1}]}`), false},
		{"a quota twice", "its place", text(`{"quotas":[{` + quota + `},{` + quota + `}]}`), false},
		{"a plan that is too long", "version 8 of the plan: invalid plan",
			text("{}" + strings.Repeat(" ", internalquota.MaxBytes)), false},
	} {
		for _, knows := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/known=%v", tc.name, knows), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				if knows {
					w.c.tells(t, 7, quotas(3))
					w.step()
				}
				before, onDisk := w.State(), w.state()
				w.lines()
				statement, sent := tc.answer(w.c)
				if tc.lower && knows {
					sent = next
				}
				w.c.says(statement, sent)
				if tc.lower && knows {
					// Of two coordinators one may be a little behind: that is no news.
					w.step()
					w.knows("told so at once", before)
					if lines := w.lines(); len(lines) != 0 {
						t.Errorf("at once it logged %q", lines)
					}
					w.now = w.now.Add(time.Minute)
				}
				for range 2 {
					w.step()
					w.knows("told so", before)
				}
				lines := w.lines()
				says := tc.says
				if tc.lower && !knows {
					says = "is not the one that was signed" // no version is lower than none
				}
				if len(lines) != 1 || !strings.HasPrefix(lines[0], "level=WARN") || !strings.Contains(lines[0], says) {
					t.Errorf("it logged %q, want %q once", lines, says)
				}
				if now := w.state(); now != onDisk {
					t.Errorf("on disk is %q, and before %q", now, onDisk)
				}
				w.restart()
				w.knows("after a start", internalquota.FollowerState{Known: knows, Plan: before.Plan, Version: before.Version})
				w.c.tells(t, 9, quotas(2))
				w.step()
				w.knows("told of a good one", w.told(9, quotas(2)))
			})
		}
	}
}

// state returns what is on disk, "" if there is nothing.
func (w *world) state() string {
	w.t.Helper()
	names, err := w.disk.FS().ReadDir(folder)
	if err != nil {
		w.t.Fatal(err)
	}
	if len(names) == 0 {
		return ""
	}
	return string(w.read())
}

// A disk that takes nothing holds up no quota: what was told is in force, and is written with the
// next answer that the disk takes.
func TestDiskTakesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.c.tells(t, 7, quotas(3))
	w.step()
	for _, next := range []struct {
		version  uint64
		machines int
	}{{8, 2}, {9, 1}} {
		w.disk.Refuse(syscall.ENOSPC)
		w.c.tells(t, next.version, quotas(next.machines))
		for range 3 {
			w.step()
			w.knows("on a full disk", w.told(next.version, quotas(next.machines)))
		}
		if lines := w.lines(); !slices.ContainsFunc(lines, func(line string) bool {
			return strings.HasPrefix(line, "level=ERROR") && strings.Contains(line, "keep the plan")
		}) {
			t.Errorf("nobody is told of the full disk: %q", lines)
		}
		// An answer that does not come writes nothing, and forgets nothing.
		w.c.fails(errAway)
		w.step()
		w.disk.Refuse(nil)
		w.step()
		w.c.tells(t, next.version, quotas(next.machines))
		w.step()
		if lines := w.lines(); len(lines) == 0 || !strings.Contains(lines[len(lines)-1], "again") {
			t.Errorf("nobody is told that the disk is full no more: %q", lines)
		}
		w.restart()
		w.knows("after a start", known(next.version, quotas(next.machines)))
	}
	// The first plan of all.
	for name, tell := range map[string]func(*world) internalquota.FollowerState{
		"the first plan": func(w *world) internalquota.FollowerState {
			w.c.tells(t, 7, quotas(3))
			return known(7, quotas(3))
		},
	} {
		w := newWorld(t)
		want := tell(w)
		w.disk.Refuse(syscall.EIO)
		w.step()
		w.knows(name+", on a full disk", w.told(want.Version, want.Plan))
		w.disk.Refuse(nil)
		w.step()
		w.restart()
		w.knows(name+", after a start", want)
	}
}

// A disk that stays full is logged once, as nobody reads the same line every five seconds.
func TestFullDiskIsLoggedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.disk.Refuse(syscall.ENOSPC)
	w.c.tells(t, 7, quotas(3))
	for range 4 {
		w.step()
	}
	var warned []string
	for _, line := range w.lines() {
		if strings.HasPrefix(line, "level=ERROR") {
			warned = append(warned, line)
		}
	}
	if len(warned) != 1 {
		t.Errorf("of a disk that stays full it logged %d lines:\n%s", len(warned), strings.Join(warned, "\n"))
	}
}

// A failure is logged when it begins, when it becomes another one, and when it is over; and not at
// all when the shard ends.
func TestLog(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	logs := func(when string, want ...string) {
		t.Helper()
		for range 3 {
			w.step()
		}
		lines := w.lines()
		if !slices.EqualFunc(lines, want, strings.Contains) {
			t.Errorf("%s it logged %q, want %q", when, lines, want)
		}
	}
	logs("with nothing known", "level=WARN msg=\"the shard was never told of quotas and providers: it does nothing")
	w.c.fails(status.Error(codes.PermissionDenied, "this shard is banned"))
	logs("with another failure", "this shard is banned")
	w.c.tells(t, 7, quotas(3))
	logs("told at last", "told of quotas and providers\" version=7 quotas=1 providers=1", "providers again")
	w.c.fails(errAway)
	logs("with a plan", "level=WARN msg=\"the shard was not told of quotas and providers: it goes on with those")
	w.c.tells(t, 7, quotas(3))
	logs("told again", "level=INFO msg=\"the shard is told of quotas and providers again\"")
	logs("told as before")
	w.c.tells(t, 8, quotas(2))
	logs("told of the next one", "version=8")

	ctx, end := context.WithCancel(t.Context())
	w.c.answers(func(ctx context.Context, _ *fealtyv1.PollPlanRequest) (*fealtyv1.PollPlanResponse, error) {
		end()
		return nil, status.FromContextError(ctx.Err()).Err()
	})
	before := w.State()
	w.Step(ctx)
	w.knows("at its end", before)
	if lines := w.lines(); len(lines) != 0 {
		t.Errorf("at its end it logged %q", lines)
	}
}

// A damaged file is no plan, and is no reason to forget one: somebody has to look.
func TestDamaged(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.c.tells(t, 7, quotas(3))
	w.step()
	name, good := filepath.Join(folder, file), w.read()
	refused := func(what string, text []byte) {
		t.Helper()
		w.disk.Put(name, text)
		f, err := internalquota.OpenFollower(w.cfg)
		if !errors.Is(err, internalquota.ErrDamaged) || f != nil {
			t.Errorf("%s: %v", what, err)
		} else if !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "remove it") {
			t.Errorf("%s: nobody knows what to do from %q", what, err)
		}
	}
	for n := range good {
		refused(fmt.Sprintf("cut to %d bytes", n), good[:n])
		for _, bits := range []byte{1, 0x20, 0x80, 0xff} {
			bad := slices.Clone(good)
			bad[n] ^= bits
			refused(fmt.Sprintf("with byte %d as %q", n, bad[n]), bad)
		}
	}
	refused("with a byte more", append(slices.Clone(good), '\n'))
	refused("twice", slices.Concat(good, good))
	refused("of zeros", make([]byte, len(good)))
	refused("far too large", bytes.Repeat([]byte("x"), 3*internalquota.MaxBytes))
	// These are written as they should be, and say nothing.
	for _, body := range []string{"", "null", "{}", "[]", `{"version":7}`, `{"version":7,"plan":""}`,
		`{"version":-7,"plan":"{}"}`, `{"version":7,"plan":"{\"windows\":[]}"}`, `{"version":7,"plan":"{}{}"}`,
		`{"version":7,"plan":"{}"} x`} {
		refused("with "+body, sealed(body))
	}
	w.disk.Put(name, good)
	w.open()
	w.knows("with the file as it was", known(7, quotas(3)))
	if err := w.cfg.Files.Remove(name); err != nil {
		t.Fatal(err)
	}
	w.open()
	w.knows("once it was removed", internalquota.FollowerState{})
}

// sealed is a file of form 1 with a body.
func sealed(body string) []byte {
	body += "\n"
	return fmt.Appendf(nil, "plan, form 1: %x\n%s", sha256.Sum256([]byte(body)), body)
}

// The file is read by the releases that come: its form is written here once more.
func TestForm(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	plan := encoded(t, quotas(3))
	text, err := json.Marshal(plan)
	if err != nil {
		t.Fatal(err)
	}
	want := sealed(`{"version":` + fmt.Sprint(newest) + `,"plan":` + string(text) + `}`)
	w.disk.Put(filepath.Join(folder, file), want)
	w.open()
	w.knows("from form 1", known(newest, quotas(3)))
	w = newWorld(t)
	w.c.tells(t, newest, quotas(3))
	w.step()
	if got := w.read(); !bytes.Equal(got, want) {
		t.Errorf("it writes %q, want %q", got, want)
	}
}

// A file that cannot be read is another trouble than one that is damaged: removing it helps nobody.
func TestUnreadable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if err := w.cfg.Files.MkdirAll(filepath.Join(folder, file)); err != nil {
		t.Fatal(err)
	}
	if f, err := internalquota.OpenFollower(w.cfg); err == nil || errors.Is(err, internalquota.ErrDamaged) || f != nil {
		t.Errorf("a folder in its place: %v", err)
	}
	w = newWorld(t)
	w.disk.FailAt(1, durabletest.ErrPowerCut)
	if err := w.cfg.Files.WriteFile("/shard/other", nil); !w.disk.Failed() {
		t.Fatal(err)
	}
	if f, err := internalquota.OpenFollower(w.cfg); !errors.Is(err, durabletest.ErrPowerCut) || errors.Is(err,
		internalquota.ErrDamaged) || f != nil {
		t.Errorf("a disk that answers nothing: %v", err)
	}
}

// Wherever the power is cut while a plan is written, there is the plan of before or the new one,
// whole; and the new one if the shard could go on.
func TestPowerCut(t *testing.T) {
	t.Parallel()
	for _, knew := range []bool{false, true} {
		for _, after := range durabletest.Afters() {
			for n, ended := 1, false; !ended; n++ {
				name := fmt.Sprintf("with a plan before: %v, %v, at call %d", knew, after, n)
				w := newWorld(t)
				var before internalquota.FollowerState
				if knew {
					w.c.tells(t, 7, quotas(3))
					w.step()
					before = known(7, quotas(3))
				}
				w.c.tells(t, 8, quotas(2))
				w.disk.FailAt(n, durabletest.ErrPowerCut)
				w.step()
				w.knows(name+", in force", w.told(8, quotas(2)))
				ended = !w.disk.Failed()
				w.disk.Restart(after)
				w.open()
				switch got := w.State(); {
				case reflect.DeepEqual(got, known(8, quotas(2))):
				case ended || !reflect.DeepEqual(got, before):
					t.Errorf("%s: it knows %+v", name, got)
				}
				w.step()
				w.knows(name+", told again", w.told(8, quotas(2)))
				w.c.tells(t, 9, quotas(1))
				w.step()
				w.restart()
				w.knows(name+", told of the next one", known(9, quotas(1)))
				if ended && n < 6 {
					t.Errorf("a write has %d calls", n-1)
				}
			}
		}
	}
}

// A plan that a process found on disk and acted by is not undone by a power cut, although the
// process that wrote it died before it was done; and less so if a coordinator said it again.
func TestFoundPlanLasts(t *testing.T) {
	t.Parallel()
	for _, again := range []bool{false, true} {
		for n, ended := 1, false; !ended; n++ {
			w := newWorld(t)
			w.c.tells(t, 7, quotas(3))
			w.step()
			w.c.tells(t, 8, quotas(2))
			w.disk.FailAt(n, durabletest.ErrPowerCut)
			w.step()
			ended = !w.disk.Failed()
			w.disk.Restart(durabletest.Killed)
			w.open()
			if again {
				w.step()
			}
			found := w.State().Version
			w.restart()
			if got := w.State().Version; got != found {
				t.Errorf("killed at call %d, the next process acts by version %d (told again: %v), and the one after "+
					"a power cut by %d", n, found, again, got)
			}
		}
	}
}

// The largest plans are kept, of whatever characters their names are, also by a coordinator that
// writes them in fewer bytes: a shard that takes a plan can start with it.
func TestLargest(t *testing.T) {
	t.Parallel()
	for _, character := range []string{"x", `"`, `\`, "<"} {
		t.Run(character, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			var plan internalquota.Plan
			for n := range internalquota.MaxQuotas {
				name := fmt.Sprintf("%06d", n)
				name += strings.Repeat(character, internaldocument.MaxNameBytes-len(name))
				plan.Quotas = append(plan.Quotas, internalquota.Quota{Tenant: name, Profile: name,
					Machines: internalquota.MaxMachines})
			}
			for n := range internalquota.MaxProviders {
				number := fmt.Sprintf("%06d", n)
				plan.Providers = append(plan.Providers, internalquota.Provider{
					Name:    number + strings.Repeat("x", internaldocument.MaxNameBytes-len(number)),
					Address: strings.Repeat("x", internalquota.MaxAddress-len(":65535")) + ":65535"})
			}
			var text bytes.Buffer
			out := json.NewEncoder(&text)
			out.SetEscapeHTML(false)
			if err := out.Encode(plan); err != nil {
				t.Fatal(err)
			}
			written := strings.TrimSuffix(text.String(), "\n")
			w.c.says(w.c.signed(t, 7, written), written)
			w.step()
			if s := w.State(); !s.Known || len(s.Plan.Quotas) != internalquota.MaxQuotas {
				t.Fatalf("it is not taken: %q", w.lines())
			}
			w.disk.Restart(durabletest.Synced)
			w.cfg.Files = w.disk.FS()
			f, err := internalquota.OpenFollower(w.cfg)
			if err != nil {
				t.Fatalf("the shard took a plan of %d bytes, wrote %d, and does not start again: %v", text.Len(),
					len(w.read()), err)
			}
			if got := f.State(); !reflect.DeepEqual(got, known(7, plan)) {
				t.Errorf("after a start it knows another one, of version %d", got.Version)
			}
		})
	}
}

// A shard asks when it starts, and then every five seconds, or as often as it was told to.
func TestRun(t *testing.T) {
	t.Parallel()
	for every, want := range map[time.Duration]time.Duration{0: internalquota.DefaultEvery, time.Minute: time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.cfg.Every = every
			w.open()
			ctx, end := context.WithCancel(t.Context())
			defer end()
			var asked []time.Duration
			begin := time.Now()
			w.c.answers(func(context.Context, *fealtyv1.PollPlanRequest) (*fealtyv1.PollPlanResponse, error) {
				if asked = append(asked, time.Since(begin)); len(asked) == 3 {
					end()
				}
				return nil, errAway
			})
			if err := w.Run(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("it ended with %v", err)
			}
			if !slices.Equal(asked, []time.Duration{0, want, 2 * want}) {
				t.Errorf("it asked after %v, want every %v", asked, want)
			}
		})
	}
}

// A coordinator that does not answer holds up nobody who looks, and is given up after a while.
func TestSilence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.c.tells(t, 7, quotas(3))
		w.step()
		before, begin := w.State(), time.Now()
		w.c.answers(func(ctx context.Context, _ *fealtyv1.PollPlanRequest) (*fealtyv1.PollPlanResponse, error) {
			w.knows("while it asks", before)
			<-ctx.Done()
			return nil, status.FromContextError(ctx.Err()).Err()
		})
		w.step()
		w.knows("afterwards", before)
		if took := time.Since(begin); took == 0 || took > 10*time.Second {
			t.Errorf("it gave up after %v", took)
		}
		if lines := w.lines(); len(lines) != 2 || !strings.Contains(lines[1], "DeadlineExceeded") {
			t.Errorf("it logged %q", lines)
		}
	})
}

// Several goroutines ask and look at once: the version that any of them sees never falls, and each
// plan is that of its version.
func TestTogether(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.Log = slog.New(slog.DiscardHandler)
	w.open()
	var all []*fealtyv1.PollPlanResponse
	for n := range 50 {
		text := encoded(t, quotas(n+1))
		all = append(all, &fealtyv1.PollPlanResponse{Statement: w.c.signed(t, uint64(n+1), text), Plan: text})
	}
	var next int
	var mu sync.Mutex
	w.c.answers(func(context.Context, *fealtyv1.PollPlanRequest) (*fealtyv1.PollPlanResponse, error) {
		mu.Lock()
		defer mu.Unlock()
		next++
		// Every other answer is of a coordinator that lags behind.
		return all[max(0, min(next-1-3*(next%2), len(all)-1))], nil
	})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			var last uint64
			for range 20 {
				w.Step(t.Context())
				s := w.State()
				if !s.Known || s.Version < last || s.Plan.Quotas[0].Machines != int(s.Version) {
					t.Errorf("after version %d it knows %+v", last, s)
				}
				last = s.Version
			}
		})
	}
	wg.Wait()
	w.restart()
	if s := w.State(); s.Version != uint64(len(all)) {
		t.Errorf("at last it knows version %d", s.Version)
	}
}
