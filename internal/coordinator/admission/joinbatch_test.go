package admission_test

import (
	"context"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/auditlog"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/admission"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/test/testlane"
)

// banKey bans a key that no member has yet, in the store and in no bundle that is in
// force.
func banKey(d *coordinatortest.Desk, t *testing.T, key identity.KeyID) {
	t.Helper()
	for {
		s := d.State()
		ch := s.Records.NewChange(s.HeadVersion)
		end := d.Clock().Add(time.Hour)
		ch.Put(record.BanKeyKey(key), 0, record.Ban{Reason: "test", At: d.Clock(), Until: end, CertEnd: end})
		if err := d.C.Parts().Bundle.Touch(t.Context(), s, ch,
			bundle.Delta{Keys: []bundle.KeyBan{{Key: key, CertEnd: end}}},
			bundle.ForOthers); err != nil {
			t.Error(err)
			return
		}
		_, err := ch.Commit(t.Context())
		if err == nil {
			return
		}
		if !errors.Is(err, store.ErrConflict) {
			t.Error(err)
			return
		}
	}
}

// 32 machines that come at once cost a few transactions and a few round trips, with one
// token as with 32, and each transaction is one that every engine commits.
func TestMachinesThatComeTogetherAreCommittedTogether(t *testing.T) {
	const machines = 32
	cost := func(t *testing.T, entry string, tokens int) (transactions, trips int) {
		d := coordinatortest.ReadyDesk(
			t, coordinatortest.PoolEntries+"  - {name: large, kind: data, match: [\"token:large\"], max_members: 1000}\n")
		defer d.C.Close()
		var joins []*coordinatortest.Attempt
		var tok proof.JoinToken
		for i := range machines {
			if i%(machines/tokens) == 0 {
				tok = d.Token(&fealtyv1.CreateTokenRequest{Entry: entry, Uses: uint32(machines / tokens)})
			}
			joins = append(joins, coordinatortest.AttemptAt(d, d.C, tok))
		}
		var n, most atomic.Int64
		d.Store.Follow(func(tx store.Tx) {
			n.Add(1)
			most.Store(max(most.Load(), int64(len(tx.If)+len(tx.Put)+len(tx.Delete))))
		})
		before := d.Store.Calls()
		coordinatortest.AllAtOnce(d, t, joins)
		trips = d.Store.Calls() - before
		d.Store.Follow(nil)
		for _, a := range joins {
			if a.Err != nil {
				t.Errorf("with %d tokens: %v", tokens, a.Err)
			}
		}
		if got := len(d.Store.Keys(record.MemberPrefix)); got != machines {
			t.Errorf("%d members, want %d", got, machines)
		}
		if most.Load() > admission.MaxJoinOps {
			t.Errorf("a transaction of %d operations", most.Load())
		}
		return int(n.Load()), trips
	}
	for _, c := range []struct {
		entry               string
		tokens              int
		transactions, trips int // at most
	}{{"pool", 1, 4, 8}, {"large", 1, 5, 12}, {"pool", 32, 6, 6 + 32}, {"large", 32, 6, 10 + 32}} {
		transactions, trips := cost(t, c.entry, c.tokens)
		t.Logf("%d machines, entry %s, %d tokens: %d transactions, %d round trips", machines, c.entry, c.tokens,
			transactions, trips)
		if transactions > c.transactions || trips > c.trips {
			t.Errorf("%d machines, entry %s, %d tokens: %d transactions and %d round trips, want at most %d and %d",
				machines, c.entry, c.tokens, transactions, trips, c.transactions, c.trips)
		}
	}
}

// While one machine is certified others of its token are admitted, and certified: no lock
// is held over a signature.
func TestNobodyWaitsForASignature(t *testing.T) {
	t.Parallel()
	d := coordinatortest.PoolDesk(t)
	tok := d.Token(&fealtyv1.CreateTokenRequest{Entry: "pool", Uses: 8})
	reached, release := d.Faults.Block("join.after-commit")
	defer release()
	held := coordinatortest.AttemptAt(d, d.C, tok)
	var all sync.WaitGroup
	defer all.Wait()
	defer release()
	all.Go(held.Make)
	<-reached
	d.Faults.Disarm("join.after-commit")
	for range 7 {
		a := coordinatortest.AttemptAt(d, d.C, tok)
		ctx, cancel := context.WithTimeout(t.Context(), coordinatortest.LeadPatience)
		_, err := d.C.Parts().Admission.Join(ctx, a.Challenge, a.Request)
		cancel()
		coordinatortest.WantOnly(t, "a join beside one that is certified", err, "")
	}
	release()
	all.Wait()
	coordinatortest.WantOnly(t, "the join that was held", held.Err, "")
}

// Joins of one batch that are refused are told each its own reason, and the others are
// admitted, whatever is found where: in memory, or only when it is committed.
func TestOneOfABatchSpoilsNoOther(t *testing.T) {
	t.Parallel()
	d := coordinatortest.ReadyDesk(
		t, coordinatortest.PoolEntries+"  - {name: large, kind: data, match: [\"token:large\"], max_members: 7}\n")
	defer d.C.Close()
	tok := d.Token(&fealtyv1.CreateTokenRequest{Entry: "large", Uses: 100})
	last := d.Token(&fealtyv1.CreateTokenRequest{Entry: "large", Uses: 1})
	named := func() proof.JoinToken { return d.Token(&fealtyv1.CreateTokenRequest{Entry: "large", Name: "twin"}) }
	joins := []*coordinatortest.Attempt{coordinatortest.AttemptAt(d, d.C, tok)}
	want := []errcode.Code{""}
	add := func(a *coordinatortest.Attempt, code errcode.Code) *coordinatortest.Attempt {
		joins, want = append(joins, a), append(want, code)
		return a
	}
	// That it is banned stands in the store alone: its own transaction would find it.
	banned := add(coordinatortest.AttemptAt(d, d.C, tok), errcode.JoinBanned)
	banKey(d, t, banned.Key)
	gone := add(coordinatortest.AttemptAt(d, d.C, d.Token(&fealtyv1.CreateTokenRequest{Entry: "large"})), errcode.TokenRevoked)
	if _, err := (coordinatortest.Served[fealtyv1.TokenServiceServer](
		d.C.Parts().Admission.RegisterServices)).RevokeToken(t.Context(),
		&fealtyv1.RevokeTokenRequest{Id: gone.Token.ID}); err != nil {
		t.Fatal(err)
	}
	bad := add(coordinatortest.AttemptAt(d, d.C, tok), errcode.JoinOtherMember)
	bad.Request.Member = "somebody"
	for range 3 {
		add(coordinatortest.AttemptAt(d, d.C, tok), "")
	}
	coordinatortest.AllAtOnce(d, t, joins)
	for i, a := range joins {
		coordinatortest.WantOnly(t, fmt.Sprintf("join %d", i), a.Err, want[i])
	}
	// Of two with one name, of two with the last use, and of more than there is room for, some
	// win.
	rest := map[string][]*coordinatortest.Attempt{
		"one name": {coordinatortest.AttemptAt(d, d.C, named()), coordinatortest.AttemptAt(d, d.C, named())},
		"one use":  {coordinatortest.AttemptAt(d, d.C, last), coordinatortest.AttemptAt(d, d.C, last)},
	}
	var all []*coordinatortest.Attempt
	for _, as := range rest {
		all = append(all, as...)
	}
	coordinatortest.AllAtOnce(d, t, all)
	for what, as := range rest {
		won := 0
		for _, a := range as {
			if a.Err == nil {
				won++
			}
		}
		if won != 1 {
			t.Errorf("%s: %d won: %v, %v", what, won, as[0].Err, as[1].Err)
		}
	}
	all = nil
	for range 6 {
		all = append(all, coordinatortest.AttemptAt(d, d.C, tok))
	}
	coordinatortest.AllAtOnce(d, t, all)
	won := 0
	for _, a := range all {
		if a.Err == nil {
			won++
		} else {
			coordinatortest.WantOnly(t, "no room", a.Err, errcode.JoinEntryFull)
		}
	}
	if won != 1 { // 4 and 2 are in
		t.Errorf("%d got in where one had room", won)
	}
}

// Answers of the store that get lost: who is told that it is not in is not, and who is
// told nothing else is, once, with one use.
func TestLostAnswerOfABatch(t *testing.T) {
	t.Parallel()
	for what, how := range map[string][]coordinatortest.LostAnswer{
		"applied": {coordinatortest.LostApplied}, "not applied": {coordinatortest.LostDropped},
		"applied, for good": {coordinatortest.LostForGood,
			coordinatortest.Answered}, "not applied, for good": {coordinatortest.LostForGoodN,
			coordinatortest.Answered},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			d := coordinatortest.PoolDesk(t)
			defer d.C.Close()
			tok := d.Token(&fealtyv1.CreateTokenRequest{Entry: "pool", Uses: 20})
			var joins []*coordinatortest.Attempt
			for range 10 {
				joins = append(joins, coordinatortest.AttemptAt(d, d.C, tok))
			}
			var lose atomic.Bool
			d.Store.Follow(func(store.Tx) { // of the first transaction; the next is the batch
				if lose.CompareAndSwap(false, true) {
					d.Store.Lose(how...)
				}
			})
			coordinatortest.AllAtOnce(d, t, joins)
			unknowns := 0
			for _, a := range joins {
				if coordinatortest.OutcomeUnknown(a.Err) {
					unknowns++
				} else {
					coordinatortest.WantOnly(t, "join", a.Err, "")
				}
			}
			if want := map[int]int{1: 0, 2: 9}[len(how)]; unknowns != want {
				t.Errorf("%d are told that nobody knows, want %d", unknowns, want)
			}
			used := 10
			if how[0] == coordinatortest.LostForGoodN {
				used = 1
			}
			rec, err := record.Get[admission.Token](t.Context(), d.State().Records, admission.TokenKey(tok.ID))
			if err != nil {
				t.Fatal(err)
			}
			if members := len(d.Store.Keys(record.MemberPrefix)); members != used || int(rec.Value.Used) != used {
				t.Errorf("%d members and %d uses, want %d", members, rec.Value.Used, used)
			}
		})
	}
}

// Several coordinators, tokens near their last use, entries near their maximum, equal
// names, and bans and removals at the same time: uses and counts are exact, nobody is in
// after a ban, and who is refused is refused for what is so.
func TestUsesAndCountsAreExact(t *testing.T) {
	t.Parallel()
	for seed := range testlane.Rounds(4, 100) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { exactOver(t, mathrand.New(mathrand.NewPCG(uint64(seed), 18))) })
	}
}

func exactOver(t *testing.T, r *mathrand.Rand) {
	limit := 3 + r.IntN(6)
	d := coordinatortest.ReadyDesk(t, coordinatortest.PoolEntries)
	defer d.C.Close()
	replicas := []*coordinator.Coordinator{d.C}
	entries := coordinatortest.PoolEntries + fmt.Sprintf(
		"  - {name: few, kind: data, match: [\"token:few\"], max_members: %d}\n",
		limit)
	for i := range 2 {
		c, err := d.Another(fmt.Sprint("replica-", i))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		replicas = append(replicas, c)
		entries += fmt.Sprintf("  - {name: coordinator-%d, kind: coordinator, match: [\"key:%s\"]}\n", i+2,
			c.Parts().Self.EnrolmentKey())
	}
	coordinatortest.WantOnly(t, "set", d.Set(entries), "")
	for _, c := range replicas {
		c.Parts().Moves.Succession.Look(t.Context())
		if phase, why := c.Phase(); phase != "ready" {
			t.Fatal(phase, why)
		}
	}
	type issued struct {
		proof.JoinToken
		entry, name string
		uses        int
		won         int
	}
	var tokens []*issued
	for range 5 {
		tok := &issued{entry: []string{"pool", "few"}[r.IntN(2)], uses: 1 + r.IntN(6)}
		if r.IntN(4) == 0 {
			tok.name, tok.uses = fmt.Sprint("twin-", r.IntN(2)), 1
		}
		tok.JoinToken = d.Token(&fealtyv1.CreateTokenRequest{Entry: tok.entry, Name: tok.name, Uses: uint32(tok.uses)})
		tokens = append(tokens, tok)
	}
	var joins []*coordinatortest.Attempt
	of := make(map[*coordinatortest.Attempt]*issued)
	for range 28 {
		tok := tokens[r.IntN(len(tokens))]
		a := coordinatortest.AttemptAt(d, replicas[r.IntN(len(replicas))], tok.JoinToken)
		joins, of[a] = append(joins, a), tok
	}
	// A commit takes a while, so that others gather and conflict.
	d.Store.Intercept(func(store.Tx) {
		for range 200 {
			runtime.Gosched()
		}
	})
	var committed atomic.Int64
	d.Store.Follow(func(tx store.Tx) {
		if slices.ContainsFunc(tx.Put,
			func(w store.Write) bool { return strings.HasPrefix(w.Key, record.MemberPrefix) }) {
			committed.Add(1)
		}
	})
	var all sync.WaitGroup
	for _, a := range joins {
		all.Go(a.Make)
		if r.IntN(9) == 0 { // a key that is banned before it is in, or at the same time
			all.Go(func() { banKey(d, t, a.Key) })
		}
	}
	all.Go(func() {
		_, err := coordinatortest.Served[fealtyv1.MemberServiceServer](
			replicas[1].Parts().Membership.RegisterServices).BanMember(t.Context(),
			&fealtyv1.BanMemberRequest{Kind: "data", Name: "twin-0", Reason: "test"})
		if err != nil {
			t.Error(err)
		}
	})
	all.Wait()

	ctx, records := t.Context(), d.State().Records
	members, err := record.List[record.Member](ctx, records, record.MemberPrefix)
	if err != nil {
		t.Fatal(err)
	}
	byKey, under := make(map[identity.KeyID]record.Versioned[record.Member]), make(map[string]int)
	for _, m := range members {
		byKey[m.Value.Key] = m
		under[m.Value.Entry]++
	}
	ban := func(key string) record.Versioned[record.Ban] {
		b, err := record.Get[record.Ban](ctx, records, key)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	won := 0
	for _, a := range joins {
		m, in := byKey[a.Key]
		if in != (a.Err == nil) {
			t.Errorf("a join is told %v, and in: %v", a.Err, in)
		}
		if in {
			won++
			of[a].won++
			for _, b := range []record.Versioned[record.Ban]{ban(record.BanKeyKey(a.Key)),
				ban(record.BanIDKey(m.Value.Kind, m.Value.Name))} {
				if b.Exists() && b.Version < m.Version {
					t.Errorf("%s is in by revision %d, and was banned by %d", m.Value.Name, m.Version, b.Version)
				}
			}
		}
	}
	if won != len(members) {
		t.Errorf("%d members, and %d were told so", len(members), won)
	}
	full := under["few"] == limit
	for _, tok := range tokens {
		rec, err := record.Get[admission.Token](ctx, records, admission.TokenKey(tok.ID))
		if err != nil {
			t.Fatal(err)
		}
		if uses := len(d.Store.Keys(admission.TokenUsePrefix + tok.ID + "/")); int(rec.Value.Used) != tok.won ||
			uses != tok.won || tok.won > tok.uses {
			t.Errorf("a token of %d uses says %d, has records of %d, and admitted %d", tok.uses, rec.Value.Used, uses,
				tok.won)
		}
	}
	for _, a := range joins {
		tok := of[a]
		switch {
		case a.Err == nil:
		case errors.Is(a.Err, errcode.TokenSpent) && tok.won == tok.uses:
		case errors.Is(a.Err, errcode.JoinEntryFull) && full && tok.entry == "few":
		case errors.Is(a.Err, errcode.JoinNameTaken) && tok.name != "" && d.Record(identity.Data, tok.name).Exists():
		case errors.Is(a.Err, errcode.JoinBanned) && (ban(record.BanKeyKey(a.Key)).Exists() || tok.name == "twin-0"):
		default:
			t.Errorf("a join by a token of %+v is told: %v", *tok, a.Err)
		}
	}
	if count, err := record.Get[record.EntryCount](ctx, records, record.CountKey("few")); err != nil ||
		under["few"] > limit || count.Value.Members != under["few"] {
		t.Errorf("entry few has %d members of at most %d, and its count is %d (%v)", under["few"], limit,
			count.Value.Members, err)
	}
	told := 0
	for _, key := range d.Store.Keys(auditlog.Prefix) {
		e, err := d.Store.Get(ctx, key)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(e.Value), `"member.admit"`) {
			told++
		}
	}
	t.Logf("%d of %d joins admitted by %d transactions", won, len(joins), committed.Load())
	if told != won {
		t.Errorf("the audit log tells of %d, and %d are in", told, won)
	}
}
