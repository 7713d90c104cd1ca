package audit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/auditlog"
	auditlogstore "github.com/fealty-io/fealty/internal/auditlog/store"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/publication"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/timeout"
	"github.com/fealty-io/fealty/test/testlane"
	"github.com/fealty-io/fealty/test/wait"
)

// TestAuditAltered alters the log in the store, where no coordinator sees it: verify finds it at
// once, and the leader within as many minutes as there are checkpoints, for good.
func TestAuditAltered(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		edit func(d *coordinatortest.Desk, entries []string)
	}{
		{"an entry is altered", func(d *coordinatortest.Desk, entries []string) {
			d.Store.Alter(entries[1], func(v []byte) []byte {
				return []byte(strings.Replace(string(v), `"action":"`, `"action":"x`, 1))
			})
		}},
		{"an entry is removed", func(d *coordinatortest.Desk, entries []string) { d.Store.Remove(entries[0]) }},
		{"two entries are exchanged", func(d *coordinatortest.Desk, entries []string) {
			was := d.Store.Snapshot()
			d.Store.Write(entries[0], was[entries[1]].Value)
			d.Store.Write(entries[1], was[entries[0]].Value)
		}},
		{"an entry that is new is altered below another", func(d *coordinatortest.Desk, _ []string) {
			d.Joined("a")
			keys := d.Store.Keys(auditlog.ChainPrefix)
			d.Joined("b")
			d.Store.Alter(keys[len(keys)-1],
				func(v []byte) []byte { return []byte(strings.Replace(string(v), `"reason"`, `"season"`, 1) + " ") })
		}},
		{"an entry that is new is removed below another", func(d *coordinatortest.Desk, _ []string) {
			d.Joined("a")
			keys := d.Store.Keys(auditlog.ChainPrefix)
			d.Joined("b")
			d.Store.Remove(keys[len(keys)-1])
		}},
		{"a checkpoint is removed", func(d *coordinatortest.Desk, _ []string) {
			d.Store.Remove(auditlog.CheckpointKey(
				2))
		}},
		{"the last checkpoint is removed, and the note says so", func(d *coordinatortest.Desk, _ []string) {
			last := d.C.Parts().Audit.Last(d.State())
			d.Store.Remove(auditlog.CheckpointKey(last.Number))
			d.Store.Write(auditlog.LastKey, []byte(`{"number":1,"hash":"`+strings.Repeat("ab", 32)+`"}`))
		}},
		{"the note is removed", func(d *coordinatortest.Desk, _ []string) { d.Store.Remove(auditlog.LastKey) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			d, entries := coordinatortest.AuditDesk(t)
			known := d.C.Parts().Audit.Last(d.State())
			if len(coordinatortest.BrokenLog(d)) > 0 {
				t.Fatalf("of a whole log: %v", coordinatortest.BrokenLog(d))
			}
			tc.edit(d, entries)
			if r := coordinatortest.AuditReport(t, d.C, d.Store, d.Clock(), known); r.Wrong == 0 {
				t.Error("verify finds nothing")
			}
			for range 8 {
				coordinatortest.Checkpointed(d)
			}
			if len(coordinatortest.BrokenLog(d)) != 1 {
				t.Errorf("the leader found %v", coordinatortest.BrokenLog(d))
			}
			status, err := d.C.Parts().Shown.Status.GetStatus(
				t.Context(), &fealtyv1.GetStatusRequest{})
			if err != nil || !slices.ContainsFunc(status.GetFindings(), func(f *fealtyv1.Finding) bool {
				return f.GetCode() == string(errcode.AuditBroken)
			}) {
				t.Errorf("status says %v, %v", status.GetFindings(), err)
			}
			// It stays wrong, whatever is written after it.
			if r := coordinatortest.AuditReport(t, d.C, d.Store, d.Clock()); r.Wrong == 0 {
				t.Error("after new checkpoints verify finds nothing")
			}
		})
	}
}

// TestAuditNoteAltered alters the notes of how far chains are behind a checkpoint, so that the leader would
// no longer cover what a chain gets. It is found by the leader that was there, by one that starts
// meanwhile and has the signed checkpoints alone, and by whoever verifies the log then; and
// nothing stays uncovered.
func TestAuditNoteAltered(t *testing.T) {
	t.Parallel()
	notes := func(d *coordinatortest.Desk) []string { return d.Store.Keys(auditlog.HeadPrefix) }
	for _, tc := range []struct {
		name string
		edit func(d *coordinatortest.Desk, note string, before []byte)
	}{
		{"it is removed", func(d *coordinatortest.Desk, note string, _ []byte) { d.Store.Remove(note) }},
		{"all notes are removed", func(d *coordinatortest.Desk, _ string, _ []byte) {
			for _, k := range notes(d) {
				d.Store.Remove(k)
			}
		}},
		{"it goes back", func(d *coordinatortest.Desk, note string, before []byte) { d.Store.Write(note, before) }},
		{"it goes ahead", func(d *coordinatortest.Desk, note string, _ []byte) {
			d.Store.Write(note,
				[]byte(`{"number":1000,"hash":"`+strings.Repeat("ab", 32)+`","at":"2026-01-02T03:04:05Z"}`))
		}},
		{"it names another entry", func(d *coordinatortest.Desk, note string, _ []byte) {
			d.Store.Alter(note,
				func(v []byte) []byte {
					return []byte(strings.Replace(string(v), `"hash":"`, `"hash":"00`,
						1)[:len(v)])
				})
		}},
		{"it says that the chain is broken", func(d *coordinatortest.Desk, note string, _ []byte) {
			d.Store.Alter(note,
				func(v []byte) []byte { return []byte(strings.Replace(string(v), "{", `{"broken":true,`, 1)) })
		}},
		{"it cannot be read", func(d *coordinatortest.Desk, note string, _ []byte) {
			d.Store.Write(note,
				[]byte("{"))
		}},
	} {
		for _, restarts := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, and the leader starts anew %v", tc.name, restarts), func(t *testing.T) {
				t.Parallel()
				d := coordinatortest.PoolDesk(t)
				d.Joined("a")
				coordinatortest.WantWholeLog(t, d.Store, coordinatortest.Checkpointed(d))
				note := notes(d)[0]
				before := d.Store.Snapshot()[note].Value
				d.Joined("b")
				coordinatortest.WantWholeLog(t, d.Store, coordinatortest.Checkpointed(d))
				d.Joined("c")
				tc.edit(d, note, before)
				if restarts {
					d.Restart()
					coordinatortest.WantOnlyNil(t, d.C.Parts().Bundle.Refresh(t.Context(), d.State(), true))
				}
				r := coordinatortest.Checkpointed(d)
				if got := coordinatortest.BrokenLog(d); len(got) != 1 || r.Wrong == 0 ||
					r.Problems[0].Rule != auditlog.RuleBreak {
					t.Fatalf("the leader found %v, and verify %v", got, r.Problems)
				}
				if !strings.Contains(r.Problems[0].String(), strings.TrimPrefix(note, auditlog.HeadPrefix)) {
					t.Errorf("it does not name the chain: %v", r.Problems[0])
				}
				// It is told once, and the chain goes on.
				told := r.Wrong
				d.Joined("d")
				r = coordinatortest.Checkpointed(d)
				if n := len(d.Store.Keys(auditlog.ChainPrefix)); uint64(n) != r.Covered || r.Uncovered != 0 ||
					r.Wrong != told {
					t.Errorf("%d of %d entries are behind a checkpoint, %d are not, wrong is %v", r.Covered, n,
						r.Uncovered, r.Problems)
				}
			})
		}
	}
}

// TestAuditWhole has transactions fail, their answers lost, and coordinators end at any moment:
// what is in the log is whole, and each entry in it once.
func TestAuditWhole(t *testing.T) {
	t.Parallel()
	d := coordinatortest.PoolDesk(t)
	ctx := t.Context()
	coordinatortest.WantOnly(t, "bundle", d.C.Parts().Bundle.Refresh(ctx, d.State(), true), "")
	random := mathrand.New(mathrand.NewPCG(testlane.Seed(t), 1))
	sure, maybe := map[string]bool{}, map[string]bool{}
	made := 0
	note := func() {
		made++
		target := fmt.Sprint("noted ", made)
		ch := d.State().Records.NewChange(d.State().HeadVersion)
		for range 1 + random.IntN(2) {
			ch.Audit(d.Clock(), record.AuditEntry{Actor: "a", Action: "test.noted", Target: target})
			target += " too"
			switch {
			case len(ch.Entries) == 1:
				maybe[ch.Entries[0].Target] = true
			default:
				maybe[ch.Entries[1].Target] = true
			}
		}
		entries := ch.Entries
		_, err := ch.Commit(ctx)
		switch unknown := errors.Is(err, store.ErrUnknownOutcome); {
		case unknown && random.IntN(2) == 0:
			d.C.Parts().Auditing.Again(ch)
		case unknown:
			return
		case err != nil:
			for _, e := range entries {
				delete(maybe, e.Target)
			}
			return
		}
		for _, e := range entries {
			sure[e.Target] = true
		}
	}
	drain := func() {
		for d.C.Parts().Auditing.Waiting() > 0 {
			coordinatortest.WantOnly(t, "write the queue", d.C.Parts().Auditing.Write(ctx), "")
		}
	}
	lost := [][]coordinatortest.LostAnswer{{coordinatortest.LostApplied}, {coordinatortest.LostDropped},
		{coordinatortest.LostForGood, coordinatortest.Answered}, {coordinatortest.LostForGoodN,
			coordinatortest.Answered}}
	for step := range 400 {
		switch random.IntN(12) {
		default:
			note()
		case 0, 1, 2:
			d.Store.Lose(lost[random.IntN(len(lost))]...)
			note()
			d.Store.ForgetLost()
		case 3:
			d.Store.SetRefusing(coordinatortest.ErrFull)
			note()
			d.Store.SetRefusing(nil)
		case 4, 5:
			target := fmt.Sprint("queued ", step)
			sure[target] = true
			d.C.Parts().Auditing.Add(record.AuditEntry{At: d.Clock(), Actor: "a", Action: "test.noted", Target: target})
		case 6, 7:
			d.Store.Lose(lost[random.IntN(2)]...)
			_ = d.C.Parts().Auditing.Write(ctx)
			d.Store.ForgetLost()
		case 8:
			coordinatortest.WantWholeLog(t, d.Store, coordinatortest.Checkpointed(d))
		case 9:
			if random.IntN(8) == 0 {
				drain()
				d.Restart()
				coordinatortest.WantOnly(t, "bundle", d.C.Parts().Bundle.Refresh(ctx, d.State(), true), "")
			}
		}
	}
	drain()
	coordinatortest.WantWholeLog(t, d.Store, coordinatortest.Checkpointed(d))
	entries, _ := coordinatortest.Audits(d, "test.noted")
	told := map[string]int{}
	for _, e := range entries {
		told[e.Target]++
		if !sure[e.Target] && !maybe[e.Target] {
			t.Errorf("%s is told, and was not made", e.Target)
		}
	}
	for target := range sure {
		if told[target] == 0 {
			t.Errorf("%s is not told", target)
		}
	}
	for target, n := range told {
		if n != 1 {
			t.Errorf("%s is told %d times", target, n)
		}
	}
}

// TestAuditDoesNotQueue: while one transaction is under way, another one of the same process is
// committed. So the chains cost no wait.
func TestAuditDoesNotQueue(t *testing.T) {
	t.Parallel()
	d := coordinatortest.PoolDesk(t)
	held, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	d.Store.Intercept(func(store.Tx) {
		first := false
		once.Do(func() { first = true })
		if first {
			close(held)
			<-release
		}
	})
	done := make(chan error, 1)
	go func() {
		_, err := coordinatortest.Served[fealtyv1.TokenServiceServer](
			d.C.Parts().Admission.RegisterServices).CreateToken(
			context.Background(),
			&fealtyv1.CreateTokenRequest{Entry: "pool"})
		done <- err
	}()
	<-held
	for range 3 {
		_, err := coordinatortest.Served[fealtyv1.TokenServiceServer](
			d.C.Parts().Admission.RegisterServices).CreateToken(
			t.Context(),
			&fealtyv1.CreateTokenRequest{Entry: "pool"})
		coordinatortest.WantOnly(t, "a token while another one is being made", err, "")
	}
	close(release)
	coordinatortest.WantOnly(t, "the one that was held", <-done, "")
	d.Store.Intercept(nil)
	r := coordinatortest.Checkpointed(d)
	coordinatortest.WantWholeLog(t, d.Store, r)
	chains := map[string]int{}
	for _, k := range d.Store.Keys(auditlog.ChainPrefix) {
		chain, _, _ := auditlog.ParseKey(k)
		chains[chain]++
	}
	if len(chains) != 2 {
		t.Errorf("the entries of two transactions at once are in the chains %v", chains)
	}
}

// joinCost is what joins cost the store.
type joinCost struct{ transactions, trips, operations, bytes, logBytes int }

// joinsCounted has machines join at three coordinators in turn, and then some at one of them at once, and publishes
// what they are told, with entries in chains or as a release before chains wrote them. Round trips are those of the
// joins.
func joinsCounted(t *testing.T, plain bool) (in joinCost, d *coordinatortest.Desk) {
	t.Helper()
	const inTurn, atOnce = 90, 32
	d = coordinatortest.PoolDesk(t)
	entries, all := coordinatortest.PoolEntries, []*coordinator.Coordinator{d.C}
	for i := range 2 {
		c, err := d.Another(fmt.Sprint("replica-", i))
		coordinatortest.WantOnly(t, "another coordinator", err, "")
		t.Cleanup(func() { c.Close() })
		all = append(all, c)
		entries += fmt.Sprintf("  - {name: coordinator-%d, kind: coordinator, match: [\"key:%s\"]}\n", i+2,
			c.Parts().Self.EnrolmentKey())
	}
	coordinatortest.WantOnly(t, "set", d.Set(entries), "")
	for _, c := range all {
		c.Parts().Moves.Succession.Look(t.Context())
		if phase, why := c.Phase(); phase != "ready" {
			t.Fatal(phase, why)
		}
		newSwitched(t, c, d.Clock).choose(plain)
	}
	var joins []*coordinatortest.Attempt
	for i := range inTurn {
		if i < len(all) { // so that its chain is there
			coordinatortest.AttemptAt(d, all[i], d.Token(&fealtyv1.CreateTokenRequest{Entry: "pool"})).Make()
		}
	}
	of := make([]proof.JoinToken, len(all))
	for i := range of {
		of[i] = d.Token(&fealtyv1.CreateTokenRequest{Entry: "pool", Uses: inTurn + atOnce})
	}
	for i := range inTurn {
		joins = append(joins, coordinatortest.AttemptAt(d, all[i%len(all)], of[i%len(all)]))
	}
	var together []*coordinatortest.Attempt
	for range atOnce {
		together = append(together, coordinatortest.AttemptAt(d, d.C, of[0]))
	}
	var mu sync.Mutex
	written := map[string]bool{}
	d.Store.Follow(func(tx store.Tx) {
		mu.Lock()
		defer mu.Unlock()
		in.transactions++
		in.operations += len(tx.If) + len(tx.Put) + len(tx.Delete)
		for _, w := range tx.Put {
			in.bytes += len(w.Key) + len(w.Value)
			switch log := strings.HasPrefix(w.Key, auditlog.Prefix); {
			case log && written[w.Key]:
				t.Errorf("%s is written by two transactions", w.Key)
			case log:
				written[w.Key] = true
				in.logBytes += len(w.Key) + len(w.Value)
			case strings.HasPrefix(w.Key, auditlog.CheckpointPrefix) || w.Key == auditlog.LastKey:
				t.Errorf("a join writes %s", w.Key)
			}
		}
		for _, i := range tx.If {
			if i.Version != 0 && (strings.HasPrefix(i.Key, auditlog.Prefix) ||
				strings.HasPrefix(i.Key, auditlog.NotePrefix)) {
				t.Errorf("a join depends on %s, which somebody else may write", i.Key)
			}
		}
	})
	before := d.Store.Calls()
	for _, a := range joins {
		a.Make()
	}
	coordinatortest.AllAtOnce(d, t, together)
	in.trips = d.Store.Calls() - before
	coordinatortest.FollowMembers(d, d.C)
	coordinatortest.MustPublish(d, publication.NewPublisher())
	d.Store.Follow(nil)
	for _, a := range slices.Concat(joins, together) {
		coordinatortest.WantOnly(t, "join", a.Err, "")
	}
	if len(written) != inTurn+atOnce {
		t.Errorf("%d joins wrote %d entries", inTurn+atOnce, len(written))
	}
	return in, d
}

// TestChainsCostJoinsLittle counts what joins on three coordinators cost the store with chains and without: as many
// transactions and as many round trips, none of which waits for another one's entry, and within 5%
// of the operations, and 7% of the bytes of all that a join has written. A checkpoint is no part of any of them,
// and costs a few calls.
func TestChainsCostJoinsLittle(t *testing.T) {
	t.Parallel()
	without, _ := joinsCounted(t, true)
	with, d := joinsCounted(t, false)
	t.Logf("without chains %+v, with chains %+v", without, with)
	if with.transactions != without.transactions || with.trips != without.trips {
		t.Errorf("%d transactions and %d round trips with chains, %d and %d without", with.transactions, with.trips,
			without.transactions, without.trips)
	}
	if 100*with.bytes > 107*without.bytes || 100*with.operations > 105*without.operations {
		t.Errorf("%d bytes and %d operations with chains, %d and %d without", with.bytes, with.operations,
			without.bytes, without.operations)
	}
	entries := len(d.Store.Keys(auditlog.ChainPrefix))
	chains, before, made := len(d.Store.Keys(auditlog.HeadPrefix)), d.Store.Calls(), 0
	d.Store.Follow(func(store.Tx) { made++ })
	coordinatortest.WantOnlyNil(t, d.C.Parts().Audit.Checkpoint(t.Context(), d.State(), 0))
	d.Store.Follow(nil)
	calls := d.Store.Calls() - before
	t.Logf("a checkpoint over %d entries in %d chains: %d calls", entries, chains, calls)
	if most := 16 + chains + entries/auditlog.BucketSize; made != 1 || calls > most {
		t.Errorf("a checkpoint over %d entries in %d chains took %d transactions and %d calls, want 1 and at most %d",
			entries, chains, made, calls, most)
	}
	coordinatortest.WantWholeLog(t, d.Store, coordinatortest.AuditReport(t, d.C, d.Store, d.Clock()))
}

// TestAuditOverMoves: a checkpoint comes before each move of the head, and the log verifies
// under the keys that a new seed brings.
func TestAuditOverMoves(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	last := func() auditlog.Last {
		last, err := auditlogstore.Last(f.Context(), f.Store)
		coordinatortest.WantOnly(t, "read the last checkpoint", err, "")
		return last
	}
	coordinatortest.WantOnly(t, "set", f.Set(f.Manifest(coordinatortest.CoordinatorEntry(t, 2))), "")
	before := last()
	if before.Number == 0 {
		t.Fatal("no checkpoint came before the head moved")
	}
	coordinatortest.ReseedIn(f)
	if last := last(); last.Number <= before.Number {
		t.Errorf("checkpoint %d is the last before and after a new seed", last.Number)
	}
	// Its own loop vouches under its new keys.
	var r *auditlog.Report
	wait.Until(t, "the log verifies under the new keys", func() bool {
		r = coordinatortest.AuditReport(t, f.C, f.Store, f.Clock())
		return r.Uncovered == 0 && r.Wrong == 0
	})
	if r.Wrong != 0 || r.Covered == 0 || r.Last.Number <= before.Number {
		t.Errorf("after a new seed: %+v", r)
	}
}

// TestCheckpointOutlivesPatience: a checkpoint that is made in a request is known to be made, though
// its answer was lost with the last of the request's patience.
func TestCheckpointOutlivesPatience(t *testing.T) {
	t.Parallel()
	d, _ := coordinatortest.AuditDesk(t)
	d.Joined("late")
	before := d.C.Parts().Audit.Last(d.State())
	ctx := timeout.Grant(t.Context(), time.Hour)
	d.Store.Intercept(func(store.Tx) { timeout.Spend(ctx, time.Hour) })
	d.Store.Lose(coordinatortest.LostApplied)
	d.C.Parts().Audit.BeforeMove(ctx, d.State())
	d.Store.Intercept(nil)
	if after := d.C.Parts().Audit.Last(d.State()); after.Number != before.Number+1 {
		t.Errorf("checkpoint %d is known, and was made after %d", after.Number, before.Number)
	}
	coordinatortest.WantWholeLog(t, d.Store, coordinatortest.AuditReport(t, d.C, d.Store, d.Clock()))
}

// TestGetAudit reads the log over the API, as another coordinator serves it: filtered, followed,
// and with entries of a release before chains.
func TestGetAudit(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	_, err := f.Store.Commit(f.Context(), store.Tx{Put: []store.Write{{
		Key: fmt.Sprintf("%s%020d-0011aabb", auditlog.Prefix, f.Clock().Add(-48*time.Hour).UnixNano()),
		Value: fmt.Appendf(nil, `{"at":%q,"actor":"old","action":"member.ban","target":"data/old"}`,
			f.Clock().Add(-48*time.Hour).UTC().Format(time.RFC3339)),
	}}})
	coordinatortest.WantOnly(t, "write an old entry", err, "")
	f.Member("n1")
	read := func(req *fealtyv1.GetAuditRequest) (out []*fealtyv1.AuditEntry) {
		t.Helper()
		stream, err := fealtyv1.NewAuditServiceClient(f.LocalConn()).GetAudit(f.Context(), req)
		coordinatortest.WantOnly(t, "ask", err, "")
		for {
			part, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return out
			}
			coordinatortest.WantOnly(t, "read", err, "")
			if e := part.GetEntry(); e != nil {
				out = append(out, e)
			}
		}
	}
	actions := func(entries []*fealtyv1.AuditEntry) (out []string) {
		for _, e := range entries {
			out = append(out, e.GetAction())
		}
		return out
	}
	all := read(&fealtyv1.GetAuditRequest{})
	if len(all) < 4 || all[0].GetTarget() != "data/old" || all[0].GetChain() != "" {
		t.Fatalf("the log: %v", all)
	}
	for _, e := range all[1:] {
		if e.GetChain() == "" || e.GetNumber() == 0 {
			t.Errorf("an entry in no chain: %v", e)
		}
	}
	for _, tc := range []struct {
		req  *fealtyv1.GetAuditRequest
		want []string
	}{
		{&fealtyv1.GetAuditRequest{Member: "data/n1"}, []string{"member.admit"}},
		{&fealtyv1.GetAuditRequest{Action: "member"}, []string{"member.ban", "member.admit"}},
		{&fealtyv1.GetAuditRequest{Action: "member.admit"}, []string{"member.admit"}},
		{&fealtyv1.GetAuditRequest{Action: "member", Since: timestamppb.New(f.Clock().Add(-time.Hour))},
			[]string{"member.admit"}},
		{&fealtyv1.GetAuditRequest{Until: timestamppb.New(f.Clock().Add(-time.Hour))}, []string{"member.ban"}},
	} {
		if got := actions(read(tc.req)); !slices.Equal(got, tc.want) {
			t.Errorf("%v: %v, want %v", tc.req, got, tc.want)
		}
	}
	for _, req := range []*fealtyv1.GetAuditRequest{
		{Exact: true,
			Action: "member"}, {Since: &timestamppb.Timestamp{Seconds: -1}}, {Member: strings.Repeat("x", 1<<16)},
	} {
		stream, err := fealtyv1.NewAuditServiceClient(f.LocalConn()).GetAudit(f.Context(), req)
		if err == nil {
			_, err = stream.Recv()
		}
		coordinatortest.WantCode(t, err, errcode.RequestField)
	}

	// New entries come once, in the order of the commits.
	ctx, cancel := context.WithTimeout(f.Context(), coordinatortest.LeadPatience)
	defer cancel()
	stream, err := fealtyv1.NewAuditServiceClient(f.LocalConn()).GetAudit(ctx,
		&fealtyv1.GetAuditRequest{Follow: true, Action: "token.create"})
	coordinatortest.WantOnly(t, "follow", err, "")
	seen := 0
	for following := false; !following; {
		part, err := stream.Recv()
		coordinatortest.WantOnly(t, "read", err, "")
		following = part.GetFollowing() != nil
		if part.GetEntry() != nil {
			seen++
		}
	}
	if seen != 1 {
		t.Errorf("%d tokens were told of before, want 1", seen)
	}
	var want, got []string
	for range 3 {
		want = append(want, f.Token(&fealtyv1.CreateTokenRequest{Entry: "pool"}).ID)
	}
	for len(got) < len(want) {
		part, err := stream.Recv()
		coordinatortest.WantOnly(t, "read", err, "")
		if e := part.GetEntry(); e != nil {
			got = append(got, e.GetTarget())
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("followed %v, want %v", got, want)
	}
}
