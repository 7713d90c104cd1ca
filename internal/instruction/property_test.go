package instruction_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/instruction"
	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
	"github.com/fealty-io/fealty/internal/signed/order"
)

// fleet is coordinators that lead one after the other over one store, of which earlier ones go on
// answering, and a member whose power is cut.
type fleet struct {
	t    *rapid.T
	key  ed25519.PrivateKey
	now  time.Time
	id   identity.ID
	term int64

	waits map[string]instruction.Order
	ended map[string]instruction.Ended
	old   []*fealtyv1.PollInstructionsResponse // that were made before, and come late

	disk  *durabletest.Disk
	mark  fence.Term // on a disk of its own, which keeps it
	book  *instruction.Book
	exec  *instruction.Executor
	does  map[string]int // how often each was carried out
	heard int64          // the highest term that the member heard of
	next  *fealtyv1.PollInstructionsResponse
	loses bool // acknowledgements, on their way there
	drops bool // and on their way back
}

func (f *fleet) authority() fence.Authority {
	public := f.key.Public().(ed25519.PublicKey)
	return fence.Authority{Cluster: "test.example", Key: func(id string) (ed25519.PublicKey, bool) {
		return public, id == fence.KeyID(public)
	}}
}

func (f *fleet) must(text string, err error) string {
	if err != nil {
		f.t.Fatal(err)
	}
	return text
}

// lead begins the next term: its leader signs all that waits.
func (f *fleet) lead() {
	f.term++
	f.sign()
}

func (f *fleet) sign() {
	for id, o := range f.waits {
		if o.Due(f.term, "key") {
			f.waits[id] = o.Signed(f.term, "key", f.must(order.Instruction{Cluster: "test.example", Member: f.id.String(),
				ID: id, Kind: o.Kind, Term: f.term, NotAfter: o.Until, AuthorityEpoch: 1}.Sign(f.key)))
		}
	}
}

func (f *fleet) answer() *fealtyv1.PollInstructionsResponse {
	out := &fealtyv1.PollInstructionsResponse{Term: f.must(fence.TermStatement{Cluster: "test.example", Term: f.term,
		AuthorityEpoch: 1}.Sign(f.key))}
	var all []instruction.Order
	for _, o := range f.waits {
		all = append(all, o)
	}
	slices.SortFunc(all, instruction.Compare)
	for _, o := range all {
		out.Instructions = append(out.Instructions, &fealtyv1.DeliveredInstruction{Statement: o.Statement})
	}
	return out
}

// Invoke is what reaches the coordinators.
func (f *fleet) Invoke(_ context.Context, _ string, args, reply any, _ ...grpc.CallOption) error {
	switch r := args.(type) {
	case *fealtyv1.PollInstructionsRequest:
		proto.Merge(reply.(proto.Message), f.next)
		term, err := f.authority().OpenTerm(f.next.GetTerm())
		if s, _ := term.Get(); err == nil {
			f.heard = max(f.heard, s.Term)
		}
		return nil
	case *fealtyv1.AcknowledgeInstructionRequest:
		if f.loses {
			return errLost
		}
		if o, ok := f.waits[r.GetId()]; ok {
			outcome := map[fealtyv1.InstructionOutcome]instruction.Outcome{1: instruction.Done, 2: instruction.Failed,
				3: instruction.Unknown, 4: instruction.Unsupported, 5: instruction.Stale}[r.GetOutcome()]
			ended, waits, ends := o.Acknowledge(outcome, r.GetDetail(), r.GetTerm(), f.now)
			if f.waits[o.ID] = waits; ends {
				delete(f.waits, o.ID)
				f.ended[o.ID] = ended
			}
		}
		if f.drops {
			return errLost
		}
		return nil
	}
	return errors.New("nobody asked for this")
}

func (f *fleet) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, errors.New("there is no stream")
}

// start starts the member's process; it may fail while its disk does.
func (f *fleet) start(first bool) bool {
	open := instruction.OpenBook
	if first {
		open = instruction.EnrolBook
	}
	book, err := open(f.disk.FS(), "/m")
	if err != nil {
		return false
	}
	f.book = book
	do := map[string]func(context.Context) error{}
	for _, id := range ids {
		do["do-"+id] = func(context.Context) error {
			f.does[id]++
			if o := f.latest(id); o != 0 && o < f.heard {
				f.t.Fatalf("%s was carried out in term %d, after term %d was heard of", id, o, f.heard)
			}
			return nil
		}
	}
	f.exec = instruction.NewExecutor(instruction.ExecutorConfig{ID: f.id, Conn: f, Authority: f.authority(), Term: &f.mark, Book: book,
		Do: do, Now: func() time.Time { return f.now }, Log: slog.New(slog.DiscardHandler)})
	return true
}

// latest is the term under which an instruction stands in the answer that is being dealt with.
func (f *fleet) latest(id string) int64 {
	for _, d := range f.next.GetInstructions() {
		if i, err := order.OpenInstruction(f.authority(), d.GetStatement()); err == nil && i.ID == id {
			return i.Term
		}
	}
	return 0
}

var ids = []string{"a", "b", "c", "d", "e"}

// Leaders may come and go, their answers may be late, double or lost; wherever the member's
// power is cut: no instruction is carried out twice, none that only a deposed leader signs, and
// in the end it is known what became of each (I5).
func TestNeverTwice(t *testing.T) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	member, err := identity.New("test.example", identity.Shard, "eu-1")
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(rt *rapid.T) {
		f := &fleet{t: rt, key: key, now: time.Unix(1_900_000_000, 0).UTC(), id: member,
			waits: make(map[string]instruction.Order), ended: make(map[string]instruction.Ended),
			disk: durabletest.NewDisk(), does: make(map[string]int)}
		if err := f.disk.FS().MkdirAll("/m"); err != nil {
			rt.Fatal(err)
		}
		if f.lead(); !f.start(true) {
			rt.Fatal("the member does not start")
		}
		given := 0
		step := func() { f.exec.Step(context.Background()) }
		restart := func(after durabletest.After) {
			f.disk.Restart(after)
			if !f.start(false) {
				rt.Fatal("after a power cut the member does not start")
			}
		}
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			switch rapid.SampledFrom([]string{"give", "lead", "keep", "poll", "poll", "poll", "late", "cut", "restart"}).Draw(rt,
				"step") {
			case "give":
				if given < len(ids) {
					id := ids[given]
					f.waits[id] = instruction.Order{ID: id, Kind: "do-" + id, At: f.now, Until: f.now.Add(time.Hour)}
					f.now = f.now.Add(time.Second)
					given++
					f.sign()
				}
			case "lead":
				f.lead()
			case "keep":
				f.old = append(f.old, f.answer())
			case "poll", "late":
				f.next = f.answer()
				if len(f.old) > 0 && rapid.Bool().Draw(rt, "late") {
					f.next = rapid.SampledFrom(f.old).Draw(rt, "which")
				}
				f.loses, f.drops = rapid.Bool().Draw(rt, "loses"), rapid.Bool().Draw(rt, "drops")
				step()
				f.loses, f.drops = false, false
			case "cut":
				f.next = f.answer()
				f.disk.FailAt(rapid.IntRange(1, 30).Draw(rt, "at"), durabletest.ErrPowerCut)
				step()
				restart(rapid.SampledFrom(durabletest.Afters()).Draw(rt, "after"))
			case "restart":
				restart(durabletest.Killed)
			}
		}
		for range 2 * len(ids) {
			f.next = f.answer()
			step()
		}
		for n := range given {
			id := ids[n]
			switch end, known := f.ended[id]; {
			case f.does[id] > 1:
				rt.Fatalf("%s was carried out %d times", id, f.does[id])
			case !known:
				rt.Fatalf("nobody knows what became of %s", id)
			case end.Outcome == instruction.Done && f.does[id] != 1,
				end.Outcome != instruction.Done && end.Outcome != instruction.Unknown:
				rt.Fatalf("%s ended as %s, and was carried out %d times", id, end.Outcome, f.does[id])
			}
		}
		if len(f.waits) > 0 {
			rt.Fatal(fmt.Sprint("some wait still: ", f.waits))
		}
	})
}
