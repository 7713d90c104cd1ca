package instruction_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/instruction"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/test/wait"
)

const (
	done  = fealtyv1.InstructionOutcome_INSTRUCTION_OUTCOME_DONE
	waits = fealtyv1.InstructionOutcome_INSTRUCTION_OUTCOME_UNSPECIFIED
)

// cut is a real connection on which a test loses answers, or changes them.
type cut struct {
	grpc.ClientConnInterface
	loses func(method string) bool
	edit  func(*fealtyv1.PollInstructionsResponse)
}

var errLost = errors.New("the answer was lost")

func (c *cut) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	err := c.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
	if polled, ok := reply.(*fealtyv1.PollInstructionsResponse); ok && err == nil && c.edit != nil {
		c.edit(polled)
	}
	if c.loses != nil && c.loses(method) {
		return errLost
	}
	return err
}

// world is a real coordinator, and a shard of it that does what it is told.
type world struct {
	t     *testing.T
	f     *coordinatortest.Fleet
	admin fealtyv1.InstructionServiceClient
	id    identity.ID
	conn  *cut
	dir   string
	term  *fence.Term
	does  []string      // what was done
	fails error         // of what is done
	ahead time.Duration // of the member's clock
	exec  *instruction.Executor
	book  *instruction.Book
}

func newWorld(t *testing.T) *world {
	t.Helper()
	f := coordinatortest.NewFleet(t, nil)
	if err := f.Set(f.Manifest("  - {name: shards, kind: shard, match: [\"token:shards\"]}\n")); err != nil {
		t.Fatal(err)
	}
	n := f.Node()
	if err := n.Join(identity.Shard, proof.NewTokenProver(f.Token(&fealtyv1.CreateTokenRequest{Entry: "shards",
		Name: "eu-1"}))); err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, f: f, admin: fealtyv1.NewInstructionServiceClient(f.LocalConn()), id: n.ID,
		conn: &cut{ClientConnInterface: n.Conn()}, dir: t.TempDir(), term: new(fence.Term)}
	w.begin(instruction.EnrolBook)
	t.Cleanup(func() { w.book.Close() })
	return w
}

// begin starts the shard's process.
func (w *world) begin(open func(durable.FS, string) (*instruction.Book, error)) {
	w.t.Helper()
	bundle, _, err := w.f.State().Bundle.Open(w.f.C.Parts().Bundle.View().Signed)
	if err != nil {
		w.t.Fatal(err)
	}
	if w.book, err = open(durable.OS(), w.dir); err != nil {
		w.t.Fatal(err)
	}
	do := func(what string) func(context.Context) error {
		return func(context.Context) error { w.does = append(w.does, what); return w.fails }
	}
	w.exec = instruction.NewExecutor(instruction.ExecutorConfig{ID: w.id, Conn: w.conn, Authority: bundle.FenceAuthority(w.f.Clock),
		Term: w.term, Book: w.book, Do: map[string]func(context.Context) error{instruction.Pause: do("pause"),
			instruction.Resume: do("resume")}, Now: func() time.Time { return w.f.Clock().Add(w.ahead) }, Log: slog.New(slog.DiscardHandler)})
}

// restart ends the shard's process, and starts the next one.
func (w *world) restart() {
	w.t.Helper()
	if err := w.book.Close(); err != nil {
		w.t.Fatal(err)
	}
	w.begin(instruction.OpenBook)
}

func (w *world) instruct(id, kind string) *fealtyv1.InstructResponse {
	w.t.Helper()
	resp, err := w.admin.Instruct(w.t.Context(), &fealtyv1.InstructRequest{Id: id, Member: "shard/eu-1", Kind: kind,
		Reason: "a test"})
	if err != nil {
		w.t.Fatal(err)
	}
	return resp
}

// of returns what is recorded of an instruction.
func (w *world) of(id string) *fealtyv1.Instruction {
	w.t.Helper()
	resp, err := w.admin.ListInstructions(w.t.Context(), &fealtyv1.ListInstructionsRequest{Member: "shard/eu-1"})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, i := range resp.GetInstructions() {
		if i.GetId() == id {
			return i
		}
	}
	w.t.Fatalf("there is no instruction %s", id)
	return nil
}

// signed waits until the leader signed an instruction.
func (w *world) signed(id string) {
	w.t.Helper()
	wait.Until(w.t, "it is signed", func() bool {
		term := w.f.C.Parts().Election.Message().GetTerm()
		return term != 0 && w.of(id).GetTerm() == term
	})
}

func (w *world) step() { w.exec.Step(w.t.Context()) }

// An instruction is carried out once, in the order in which they were given, and what became of
// it is known: also if the answers of both sides are lost, and if the process ends.
func TestOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if resp := w.instruct("one", instruction.Pause); !resp.GetChanged() {
		t.Error("it is not new")
	}
	if resp := w.instruct("one", instruction.Pause); resp.GetChanged() {
		t.Error("given again it is another one")
	}
	w.instruct("two", instruction.Resume)
	w.signed("two")
	w.conn.loses = func(string) bool { return true }
	w.step()
	if len(w.does) != 0 {
		t.Fatalf("it did %q without an answer", w.does)
	}
	// Its answers are lost on their way.
	w.conn.loses = func(method string) bool { return strings.HasSuffix(method, "AcknowledgeInstruction") }
	for range 3 {
		w.step()
		w.restart()
	}
	w.conn.loses = nil
	w.step()
	if !slices.Equal(w.does, []string{"pause", "resume"}) {
		t.Errorf("it did %q", w.does)
	}
	for _, id := range []string{"one", "two"} {
		if i := w.of(id); i.GetOutcome() != done || i.GetEndedAt() == nil {
			t.Errorf("%s: %v", id, i)
		}
	}
	w.instruct("one", instruction.Pause) // after its end it is the same one still
	w.step()
	if len(w.does) != 2 {
		t.Errorf("then it did %q", w.does)
	}
}

// A new leader takes over what waits, and signs it under its own term: a member that heard of it
// obeys none that a leader before it signed.
func TestTakenOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.instruct("one", instruction.Pause)
	w.signed("one")
	var old *fealtyv1.PollInstructionsResponse
	w.conn.edit = func(r *fealtyv1.PollInstructionsResponse) { old = r }
	w.conn.loses = func(string) bool { return true }
	w.step()
	w.conn.loses, w.conn.edit = nil, nil
	before := w.of("one").GetTerm()
	w.f.Restart()
	w.admin = fealtyv1.NewInstructionServiceClient(w.f.LocalConn())
	wait.Until(t, "the next leader signs it", func() bool { return w.of("one").GetTerm() > before })

	// It heard of the next leader, and then what the one before said: the answer of that one
	// counts for nothing, whatever else is in it.
	if err := w.term.Check(int64(w.of("one").GetTerm())); err != nil {
		t.Fatal(err)
	}
	w.conn.edit = func(r *fealtyv1.PollInstructionsResponse) {
		*r = fealtyv1.PollInstructionsResponse{
			Term: old.GetTerm(), Instructions: r.GetInstructions()}
	} //nolint:govet // a copy of a message for this test
	w.step()
	if len(w.does) != 0 || w.of("one").GetRefusedTerm() != 0 {
		t.Fatalf("it did %q, as an old leader said so", w.does)
	}
	// In a new answer, one that the old leader signed: it is refused, and goes on waiting.
	w.conn.edit = func(r *fealtyv1.PollInstructionsResponse) { r.Instructions = old.GetInstructions() }
	w.step()
	if i := w.of("one"); len(w.does) != 0 || i.GetRefusedTerm() != before || i.GetOutcome() != waits {
		t.Fatalf("it did %q, and %v is recorded", w.does, i)
	}
	w.conn.edit = nil
	w.step()
	if i := w.of("one"); len(w.does) != 1 || i.GetOutcome() != done {
		t.Errorf("it did %q, and %v is recorded", w.does, i)
	}
	if i := w.of("one"); i.GetRefusedTerm() != before {
		t.Errorf("nobody knows any more that it was refused: %v", i)
	}
}

// An outcome is known of each that a member cannot do, or does not succeed with; and one that is
// over is not begun.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fails = errors.New("the disk is full" + strings.Repeat("!", 1000))
	w.instruct("fails", instruction.Pause)
	w.signed("fails")
	w.step()
	if i := w.of("fails"); i.GetOutcome() != fealtyv1.InstructionOutcome_INSTRUCTION_OUTCOME_FAILED ||
		!strings.HasPrefix(i.GetDetail(), "the disk is full!") || len(i.GetDetail()) > instruction.MaxDetail {
		t.Errorf("%v", i)
	}
	w.fails, w.does = nil, nil
	w.instruct("late", instruction.Pause)
	w.signed("late")
	w.ahead = instruction.Lasts
	if w.step(); len(w.does) != 0 || w.of("late").GetOutcome() != waits {
		t.Errorf("it did %q, which was over by its clock", w.does)
	}
	w.f.Advance(instruction.Lasts)
	wait.Until(t, "it expired", func() bool {
		return w.of("late").GetOutcome() == fealtyv1.InstructionOutcome_INSTRUCTION_OUTCOME_EXPIRED
	})
}

// A process that ended while it carried one out does not begin it again.
func TestStoppedMeanwhile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.instruct("one", instruction.Pause)
	w.signed("one")
	if err := w.book.Begin("one", w.f.Clock().Add(time.Hour), w.f.Clock()); err != nil {
		t.Fatal(err)
	}
	w.restart()
	w.step()
	if i := w.of("one"); len(w.does) != 0 || i.GetOutcome() != fealtyv1.InstructionOutcome_INSTRUCTION_OUTCOME_UNKNOWN {
		t.Errorf("it did %q, and %v is recorded", w.does, i)
	}
}

// An instruction that nobody signed for this member counts for nothing.
func TestForged(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.instruct("one", instruction.Pause)
	w.signed("one")
	for name, edit := range map[string]func(*fealtyv1.PollInstructionsResponse){
		"no signature": func(r *fealtyv1.PollInstructionsResponse) { r.Instructions[0].Statement = "a.b.c" },
		"a signature over something else": func(r *fealtyv1.PollInstructionsResponse) {
			r.Instructions[0].Statement = r.GetTerm()
		},
		"a term that nobody signed": func(r *fealtyv1.PollInstructionsResponse) { r.Term = r.Instructions[0].Statement },
		"too many": func(r *fealtyv1.PollInstructionsResponse) {
			for len(r.Instructions) <= instruction.MaxDelivered {
				r.Instructions = append(r.Instructions, r.Instructions[0])
			}
		},
	} {
		w.conn.edit = edit
		w.step()
		if len(w.does) != 0 || w.of("one").GetOutcome() != waits {
			t.Fatalf("%s: it did %q", name, w.does)
		}
	}
	// One that was signed for another member of the same name, of another kind.
	w.id = mustID(t, w.id.Cluster(), identity.Data, w.id.Name())
	w.restart()
	w.conn.edit = nil
	w.step()
	if len(w.does) != 0 {
		t.Errorf("it did %q, which another member was told", w.does)
	}
}

func mustID(t *testing.T, cluster string, kind identity.Kind, name string) identity.ID {
	t.Helper()
	id, err := identity.New(cluster, kind, name)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// A member that lost its book, or has a damaged one, does not start: it would do again what it did.
func TestBookIsLost(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := instruction.OpenBook(durable.OS(), dir); !errors.Is(err, instruction.ErrMissing) {
		t.Errorf("without a book: %v", err)
	}
	b, err := instruction.EnrolBook(durable.OS(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := instruction.OpenBook(durable.OS(), dir); !errors.Is(err, durable.ErrLocked) {
		t.Errorf("two processes have it: %v", err)
	}
	now := time.Unix(1_900_000_000, 0).UTC()
	if err := b.Begin("one", now, now); err != nil {
		t.Fatal(err)
	}
	if err := b.End("one", instruction.End{Outcome: done}, now, now); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "instructions")
	good, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for n := range good {
		for _, bad := range [][]byte{good[:n], slices.Concat(good[:n], []byte{good[n] ^ 1}, good[n+1:])} {
			if err := os.WriteFile(name, bad, 0o600); err != nil {
				t.Fatal(err)
			}
			if b, err := instruction.OpenBook(durable.OS(), dir); !errors.Is(err, instruction.ErrDamaged) {
				if err == nil {
					b.Close()
				}
				t.Fatalf("damaged at byte %d: %v", n, err)
			}
		}
	}
}

// An outcome counts from when it is on disk; and an instruction that was begun is not begun again,
// whatever the disk says meanwhile.
func TestDiskFailsForAWhile(t *testing.T) {
	t.Parallel()
	disk := durabletest.NewDisk()
	if err := disk.FS().MkdirAll("/m"); err != nil {
		t.Fatal(err)
	}
	b, err := instruction.EnrolBook(disk.FS(), "/m")
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1_900_000_000, 0).UTC()
	if err := b.Begin("one", now, now); err != nil {
		t.Fatal(err)
	}
	full := errors.New("no space left")
	for range 2 {
		disk.FailAt(1, full)
		if err := b.End("one", instruction.End{Outcome: done}, now, now); !errors.Is(err, full) {
			t.Fatalf("on a full disk: %v", err)
		}
		if b.Begun("one") {
			t.Error("nobody knows what became of it")
		}
		if err := b.Begin("one", now, now); err == nil {
			t.Error("it is begun again")
		}
	}
	disk.FailAt(1, full)
	if end, known := b.Ended("one"); known {
		t.Errorf("it ended as %v, and that is not on disk", end)
	}
	if _, known := b.Ended("one"); !known {
		t.Fatal("it did not end")
	}
	disk.Restart(durabletest.Synced)
	if b, err = instruction.OpenBook(disk.FS(), "/m"); err != nil {
		t.Fatal(err)
	}
	if _, known := b.Ended("one"); !known {
		t.Error("after a power cut it did not end")
	}
}

// A book that is full of what may come again takes nothing new, and forgets what cannot.
func TestBookIsFull(t *testing.T) {
	t.Parallel()
	b, err := instruction.EnrolBook(durable.OS(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	now := time.Unix(1_900_000_000, 0).UTC()
	for n := range instruction.MaxRemembered {
		end := now.Add(time.Duration(n) * time.Hour)
		if err := b.End(id(n), instruction.End{Outcome: done}, end, now); err != nil {
			t.Fatal(err)
		}
	}
	week := 7 * 24 * time.Hour
	if err := b.Begin("new", now.Add(week), now.Add(week)); !errors.Is(err, instruction.ErrFull) || b.Begun("new") {
		t.Errorf("a full book: %v", err)
	}
	if err := b.Begin("new", now.Add(2*week), now.Add(week+time.Second)); err != nil || !b.Begun("new") {
		t.Errorf("when the first one can come no more: %v", err)
	}
	if _, known := b.Ended(id(0)); known {
		t.Error("what can come no more is remembered")
	}
	if _, known := b.Ended(id(1)); !known {
		t.Error("what can come again is forgotten")
	}
}

func id(n int) string { return "i-" + time.Duration(n).String() }
