package instruction_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/auditlog"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/instruction"
	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/test/testlane"
)

// A haunted shard is one of which several processes run: the one in charge, and those whose place
// it took, which stand still in the middle of a call for as long as they like and go on as if
// nothing was. All are real, and so is the coordinator. A seed decides in which order things happen,
// one at a time.
type haunted struct {
	t      *testing.T
	d      *coordinatortest.Desk
	m      *coordinatortest.Machine
	server fealtyv1.InstructionServiceServer
	random *rand.Rand
	blind  string // in which calls the coordinator takes all processes of the shard for one; "" in none
	trace  strings.Builder

	journals  fealtyv1.JournalServiceServer
	incidents fealtyv1.IncidentServiceServer
	kept      map[string]bool   // keys of entries of journals that were kept of who was in charge
	late      map[string]string // of entries that a zombie gave, and whose
	reported  map[string]bool   // incarnations of zombies whose incident was taken

	live  *process
	old   []*process
	given []string
	does  map[string]int // how often each was carried out
	depth int            // how many calls stand still
	saw   map[string]int
	wrong string // what is broken, "" as long as nothing is
}

// process is one of the shard.
type process struct {
	h    *haunted
	life fence.Life
	disk *durabletest.Disk
	book *instruction.Book
	exec *instruction.Executor
	old  bool // another one is in charge
	busy bool // it is in the middle of a call

	chain    string // of its journal
	number   uint64 // of the last entry that the coordinator has, as far as it knows
	previous auditlog.Hash
}

// What a coordinator can be blind in.
const (
	inInstructions = "instructions"
	inJournals     = "journals"
	inIncidents    = "incidents"
)

func (h *haunted) log(form string, args ...any) {
	fmt.Fprintf(&h.trace, "%s%s\n", strings.Repeat("  ", h.depth), fmt.Sprintf(form, args...))
}

func (h *haunted) breaks(form string, args ...any) {
	if h.wrong == "" {
		h.wrong = fmt.Sprintf(form, args...)
		h.log("BROKEN: %s", h.wrong)
	}
}

func (h *haunted) chance(percent int) bool { return h.random.IntN(100) < percent }

// begin has a process begin on a disk.
func (h *haunted) begin(life fence.Life, disk *durabletest.Disk, first bool) *process {
	p := &process{h: h, life: life, disk: disk, chain: fmt.Sprintf("%s/%020d-%08d", auditlog.WriterOf(h.m.ID.String()),
		h.d.Clock().UnixNano(), h.saw["chains"]%1e8)}
	h.saw["chains"]++
	open := instruction.OpenBook
	if first {
		open = instruction.EnrolBook
	}
	bundle, _, err := h.d.State().Bundle.Open(h.d.C.Parts().Bundle.View().Signed)
	if err != nil {
		h.t.Fatal(err)
	}
	if p.book, err = open(disk.FS(), "/m"); err != nil {
		h.t.Fatal(err)
	}
	do := make(map[string]func(context.Context) error)
	for _, kind := range instruction.Kinds(identity.Shard) {
		do[kind] = p.do
	}
	p.exec = instruction.NewExecutor(instruction.ExecutorConfig{ID: h.m.ID, Conn: p, Authority: bundle.FenceAuthority(h.d.Clock),
		Term: &fence.Term{}, Book: p.book, Do: do, Now: h.d.Clock, Log: slog.New(slog.DiscardHandler)})
	return p
}

func (p *process) name() string {
	if p.old {
		return "zombie " + p.life.Epoch.String()
	}
	return "process " + p.life.Epoch.String()
}

// do carries out the instruction that was begun last, and may stand still meanwhile.
func (p *process) do(context.Context) error {
	i := slices.IndexFunc(p.h.given, p.book.Begun)
	if i < 0 {
		p.h.breaks("%s carries out what it did not begin", p.name())
		return nil
	}
	id := p.h.given[i]
	p.h.does[id]++
	p.h.saw["carried out"]++
	p.h.log("%s carries out %s", p.name(), id)
	if p.h.does[id] > 1 {
		p.h.breaks("%s was carried out %d times", id, p.h.does[id])
	}
	p.h.meanwhile()
	return nil
}

// Invoke is what reaches the coordinator, late as it may be.
func (p *process) Invoke(_ context.Context, _ string, args, reply any, _ ...grpc.CallOption) error {
	h := p.h
	h.meanwhile()
	h.d.Advance(2 * time.Second) // calls are limited by it, and nothing else
	zombie, family := p.old, inInstructions
	calls := func(of string) context.Context {
		family = of
		if h.blind == of {
			return coordinatortest.Calls(h.m, h.live.life)
		}
		return coordinatortest.Calls(h.m, p.life)
	}
	var answer proto.Message
	var err error
	switch request := args.(type) {
	case *fealtyv1.PollInstructionsRequest:
		answer, err = h.server.PollInstructions(calls(inInstructions), request)
	case *fealtyv1.AcknowledgeInstructionRequest:
		answer, err = h.server.AcknowledgeInstruction(calls(inInstructions), request)
		if err == nil {
			h.saw["acknowledged"]++
		}
	case *fealtyv1.KeepJournalRequest:
		key := auditlog.Key(request.GetChain(), request.GetFirst())
		answer, err = h.journals.KeepJournal(calls(inJournals), request)
		switch {
		case zombie && !h.kept[key]:
			h.late[key] = p.name()
			h.saw["zombie's journal"]++
		case err == nil:
			h.kept[key] = true
			h.saw["journal"]++
		}
	case *fealtyv1.ReportFencedRequest:
		// The one call of which a zombie is heard: it says which process it is.
		ctx := calls(inIncidents)
		if h.blind == inIncidents {
			request.Incarnation = h.live.life.Incarnation.String()
		}
		answer, err = h.incidents.ReportFenced(ctx, request)
		switch {
		case errors.Is(err, errcode.RateLimited):
			return err
		case err != nil:
			h.breaks("%s reports that it was fenced: %v", p.name(), err)
			return err
		}
		h.reported[p.life.Incarnation.String()] = true
		h.saw["zombie's incident"]++
		h.looksAtTheLog()
		zombie = false
	}
	switch {
	case zombie && errors.Is(err, errcode.ProcessOvertaken):
		h.saw["refused zombie"]++
		return err
	case zombie && h.blind != family:
		h.breaks("%s calls %T, and is answered as if it was in charge: %v", p.name(), args, err)
		return status.Error(codes.Internal, "it is served")
	case err != nil:
		h.breaks("%s calls %T: %v", p.name(), args, err)
		return err
	}
	if h.chance(15) {
		h.saw["lost answer"]++
		h.meanwhile()
		return status.Error(codes.Unavailable, "the answer is lost")
	}
	proto.Merge(reply.(proto.Message), answer)
	return nil
}

// NewStream is of no call here.
func (p *process) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, status.Error(codes.Unimplemented, "no call is one")
}

// meanwhile has things happen while a process stands still.
func (h *haunted) meanwhile() {
	if h.depth > 1 || !h.chance(25) {
		return
	}
	h.depth++
	h.saw["pause in a call"]++
	for range 1 + h.random.IntN(8) {
		h.step()
	}
	h.depth--
}

// asks has a process ask what it is to do, and do it.
func (p *process) asks() {
	if p.busy {
		return
	}
	p.busy = true
	p.h.log("%s asks", p.name())
	p.exec.Step(context.Background())
	p.busy = false
}

// gives has a process write down a decision, and give it to the audit log.
func (p *process) gives() {
	if p.busy {
		return
	}
	p.busy = true
	defer func() { p.busy = false }()
	e := auditlog.Entry{At: p.h.d.Clock().UTC(), Actor: p.h.m.ID.String(), Previous: p.previous, Action: "machine.create",
		Target: "local/of-" + p.life.Epoch.String()}
	if p.number == 0 {
		e.Action, e.Target = "journal.opened", p.chain
	}
	value, err := json.Marshal(e)
	if err != nil {
		p.h.t.Fatal(err)
	}
	p.h.log("%s gives entry %d of its journal", p.name(), p.number+1)
	reply := &fealtyv1.KeepJournalResponse{}
	err = p.Invoke(context.Background(), fealtyv1.JournalService_KeepJournal_FullMethodName,
		&fealtyv1.KeepJournalRequest{Chain: p.chain, First: p.number + 1, Entries: [][]byte{value}}, reply)
	if err == nil && reply.GetNumber() > 0 {
		p.number, p.previous = reply.GetNumber(), auditlog.Hash(reply.GetHash())
	}
}

// tells has a zombie report that it was fenced.
func (p *process) tells() {
	if p.busy {
		return
	}
	p.busy = true
	defer func() { p.busy = false }()
	p.h.log("%s reports that it was fenced", p.name())
	_ = p.Invoke(context.Background(), fealtyv1.IncidentService_ReportFenced_FullMethodName,
		&fealtyv1.ReportFencedRequest{Name: p.h.m.ID.Name(), Incarnation: p.life.Incarnation.String(),
			Epoch: uint64(p.life.Epoch), Problem: "stale"}, &fealtyv1.ReportFencedResponse{})
}

// looksAtTheLog wants nothing in the audit log that a zombie gave, and those incidents that zombies reported,
// and none of a process that nobody took the place of.
func (h *haunted) looksAtTheLog() {
	for key, whose := range h.late {
		if h.d.Store.Version(key) != 0 {
			h.breaks("the journal of %s is in the audit log, and another process was in charge", whose)
		}
	}
	all, _ := coordinatortest.Audits(h.d, "shard.fenced")
	found := make(map[string]bool)
	for _, e := range all {
		if e.Target == record.PathOf(h.m.ID) {
			found[e.Fields["incarnation"]] = true
		}
	}
	if found[h.live.life.Incarnation.String()] {
		h.breaks("process %s is in charge, and recorded as fenced", h.live.life.Epoch)
	}
	for incarnation := range h.reported {
		if !found[incarnation] {
			h.breaks("process %s reported that it was fenced, and that is not recorded", incarnation)
		}
	}
}

func (h *haunted) lead() {
	h.d.Lead(h.d.C)
	if err := h.d.C.Parts().Fencing.Instructions.TakeOver(context.Background(), h.d.State()); err != nil {
		h.breaks("the leader takes over: %v", err)
	}
}

// step has one thing happen.
func (h *haunted) step() {
	if h.wrong != "" {
		return
	}
	switch n := h.random.IntN(100); {
	case n < 20:
		id := fmt.Sprintf("%s-%d", h.m.ID.Name(), len(h.given))
		kinds := instruction.Kinds(identity.Shard)
		_, err := h.server.Instruct(context.Background(), &fealtyv1.InstructRequest{Id: id,
			Member: "shard/" + h.m.ID.Name(), Kind: kinds[h.random.IntN(len(kinds))], Reason: "a test"})
		if err != nil && !errors.Is(err, errcode.RateLimited) {
			h.breaks("give an instruction: %v", err)
		}
		if err == nil {
			h.given = append(h.given, id)
		}
		h.lead()
	case n < 25:
		h.d.Lapse()
		h.lead()
		h.saw["another leader"]++
	case n < 55:
		h.live.asks()
	case n < 60:
		h.live.gives()
	case n < 72 && len(h.old) > 0:
		h.old[h.random.IntN(len(h.old))].asks()
	case n < 76 && len(h.old) > 0:
		h.old[h.random.IntN(len(h.old))].gives()
	case n < 80 && len(h.old) > 0:
		h.old[h.random.IntN(len(h.old))].tells()
	case n < 90:
		h.overtake()
	case n < 96 && !h.live.busy: // it ends, and begins again while no coordinator answers
		h.live.disk.Restart(durabletest.Afters()[h.random.IntN(len(durabletest.Afters()))])
		h.live = h.begin(coordinatortest.NextLife(h.live.life), h.live.disk, false)
		h.saw["start"]++
		h.log("%s begins", h.live.name())
		h.live.asks()
	}
}

// overtake has another process begin under the next grant, with what was on the disk of the one in
// charge, which goes on wherever it stands.
func (h *haunted) overtake() {
	disk := durabletest.NewDisk()
	err := disk.FS().MkdirAll("/m")
	names, listErr := h.live.disk.List("/m")
	err = errors.Join(err, listErr)
	for _, name := range names {
		data, _, readErr := h.live.disk.Read("/m/"+name, 1<<24)
		disk.Put("/m/"+name, data)
		err = errors.Join(err, readErr)
	}
	if err != nil {
		h.t.Fatal(err)
	}
	h.d.Advance(2 * time.Second)
	h.live.old = true
	h.old = append(h.old, h.live)
	h.live = h.begin(h.d.Process(h.m), disk, false)
	h.saw["zombie"]++
	h.log("%s begins, and the one of before goes on", h.live.name())
}

// heal ends all faults, and looks at what became of all that was given.
func (h *haunted) heal() {
	h.depth = 9 // nobody stands still any more
	h.lead()
	for range 500 {
		if h.wrong != "" {
			return
		}
		h.live.asks()
		for _, p := range h.old {
			p.asks()
		}
		if len(h.waiting()) == 0 {
			break
		}
	}
	if waits := h.waiting(); len(waits) > 0 {
		h.breaks("%v wait still", waits)
	}
	h.looksAtTheLog()
	all, err := h.server.ListInstructions(context.Background(), &fealtyv1.ListInstructionsRequest{Limit: 1000,
		Member: "shard/" + h.m.ID.Name()})
	if err != nil {
		h.breaks("list what became of them: %v", err)
	}
	for _, i := range all.GetInstructions() {
		switch n := h.does[i.GetId()]; i.GetOutcome() {
		case done:
			if n != 1 {
				h.breaks("%s ended as done, and was carried out %d times", i.GetId(), n)
			}
		case fealtyv1.InstructionOutcome_INSTRUCTION_OUTCOME_UNKNOWN:
			h.saw["outcome unknown"]++
		default:
			h.breaks("%s ended as %s", i.GetId(), i.GetOutcome())
		}
	}
}

func (h *haunted) waiting() (out []string) {
	all, err := h.server.ListInstructions(context.Background(), &fealtyv1.ListInstructionsRequest{Limit: 1000,
		Member: "shard/" + h.m.ID.Name()})
	if err != nil {
		h.breaks("list the instructions: %v", err)
	}
	for _, i := range all.GetInstructions() {
		if i.GetEndedAt() == nil {
			out = append(out, i.GetId())
		}
	}
	return out
}

// haunt runs n schedules, the first by first, up to the first that is broken.
func haunt(t *testing.T, first, n uint64, blind string) (broken *haunted, seed uint64, saw map[string]int) {
	t.Helper()
	saw = make(map[string]int)
	var d *coordinatortest.Desk
	for i := range n {
		seed := first + i
		if i%25 == 0 {
			d = coordinatortest.ReadyDesk(t, "  - {name: shards, kind: shard, match: [\"token:shards\"], max_members: 100}\n")
		}
		h := &haunted{t: t, d: d, m: d.Machine(), random: rand.New(rand.NewPCG(seed, 3)), blind: blind,
			server:    coordinatortest.Served[fealtyv1.InstructionServiceServer](d.C.Parts().Fencing.Instructions.RegisterServices),
			journals:  coordinatortest.Served[fealtyv1.JournalServiceServer](d.C.Parts().Fencing.Journals.RegisterServices),
			incidents: coordinatortest.Served[fealtyv1.IncidentServiceServer](d.C.Parts().Fencing.Incidents.RegisterServices),
			kept:      make(map[string]bool), late: make(map[string]string), reported: make(map[string]bool),
			does: make(map[string]int), saw: saw}
		if err := h.m.Join(identity.Shard, proof.NewTokenProver(d.Token(&fealtyv1.CreateTokenRequest{Entry: "shards",
			Name: fmt.Sprintf("eu-%d", seed)}))); err != nil {
			t.Fatal(err)
		}
		disk := durabletest.NewDisk()
		if err := disk.FS().MkdirAll("/m"); err != nil {
			t.Fatal(err)
		}
		h.live = h.begin(d.Process(h.m), disk, true)
		h.live.asks()
		for range 40 {
			h.step()
		}
		if h.heal(); h.wrong != "" {
			return h, seed, saw
		}
	}
	return nil, 0, saw
}

// Processes of a shard whose place another one took go on asking, carrying out and acknowledging,
// at any moment: no instruction is carried out twice, by whomever; each is delivered until the
// process in charge said what became of it, which is what is known in the end; and none of them
// is told anything, or has its word taken (I5), or puts an entry of its journal into the audit log. The one thing that
// each is heard of is that it was fenced: that is recorded of it, and never of who is in charge. They stand still before a
// call, or while they carry something out. One that stood still with an answer of when it was in charge would carry out what
// the answer says, and nobody could keep it from that but the lock of its folder.
func TestZombiesOfAShard(t *testing.T) {
	t.Parallel()
	broken, seed, saw := haunt(t, testlane.Seed(t), testlane.Rounds[uint64](25, 200), "")
	if broken != nil {
		t.Fatalf("%s\nin schedule %d, which is the first with SEED=%[2]d:\n%s", broken.wrong, seed, broken.trace.String())
	}
	for _, what := range []string{"carried out", "acknowledged", "zombie", "refused zombie", "pause in a call", "lost answer",
		"start", "another leader", "outcome unknown", "journal", "zombie's journal", "zombie's incident"} {
		t.Logf("%6d %s", saw[what], what)
		if saw[what] == 0 && testlane.Enough(t) {
			t.Errorf("no schedule came by: %s", what)
		}
	}
}

// A coordinator that takes zombies for who is in charge has them carry out what another one does, keeps what they
// write down, or says of who is in charge that it was fenced: the schedules notice each.
func TestZombiesThatAreServed(t *testing.T) {
	t.Parallel()
	for blind, wrong := range map[string]string{
		inInstructions: "was carried out 2 times",
		inJournals:     "is in the audit log, and another process was in charge",
		inIncidents:    "is in charge, and recorded as fenced",
	} {
		t.Run(blind, func(t *testing.T) {
			t.Parallel()
			broken, seed, _ := haunt(t, 0, 200, blind)
			if broken == nil {
				t.Fatal("no schedule noticed")
			}
			if t.Logf("schedule %d: %s", seed, broken.wrong); !strings.Contains(broken.wrong, wrong) {
				t.Errorf("it is broken otherwise:\n%s", broken.trace.String())
			}
		})
	}
}
