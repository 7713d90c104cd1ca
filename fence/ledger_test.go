package fence_test

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/fealty-io/fealty/fence"
	internalsigned "github.com/fealty-io/fealty/internal/signed"
)

const cluster = "test.example"

// How strict a ledger is: about grants, or not.
var (
	strict    = fence.LedgerOptions{Cluster: cluster}
	believing = fence.LedgerOptions{Cluster: cluster, BelieveEpochs: true}
)

// authority signs statements for tests, and opens them.
type authority struct {
	fence.Authority
	key ed25519.PrivateKey
}

func newAuthority(t testing.TB) authority {
	t.Helper()
	public, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	return authority{fence.Authority{Cluster: cluster, Key: func(id string) (ed25519.PublicKey, bool) {
		return public, id == fence.KeyID(public)
	}}, key}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func (a authority) grant(holder string, number uint32) fence.Verified[fence.Grant] {
	return must(a.OpenGrant(must(fence.Grant{Cluster: a.Cluster, Holder: holder, Number: number,
		AuthorityEpoch: 1}.Sign(a.key))))
}

func (a authority) assign(domain, holder string, ownership uint64) fence.Verified[fence.Assignment] {
	return must(a.OpenAssignment(must(fence.Assignment{Cluster: a.Cluster, Domain: domain, Holder: holder,
		Ownership: ownership, AuthorityEpoch: 1}.Sign(a.key))))
}

// process is one life of a holder.
type process struct {
	holder  string
	epoch   fence.Epoch
	me      fence.Incarnation
	lineage fence.Lineage
}

// incarnation returns a fixed one for each letter.
func incarnation(letter byte) (i fence.Incarnation) {
	i[0] = letter
	return i
}

func (p process) claim(resource string, sequence uint64) fence.Claim {
	return fence.Claim{Holder: p.holder, Resource: resource, Lineage: p.lineage, Token: fence.Token{Epoch: p.epoch,
		Sequence: sequence, Incarnation: p.me, Digest: fence.DigestOf(fmt.Append(nil, p.me, sequence))}}
}

func reasonOf(err error) fence.Reason {
	if err == nil {
		return ""
	}
	if r, ok := errors.AsType[*fence.RefusedError](err); ok {
		return r.Reason
	}
	if r, ok := errors.AsType[*fence.PromiseError](err); ok {
		return r.Reason
	}
	return fence.Reason("other: " + err.Error())
}

// dump is all that a ledger remembers.
func dump(l *fence.Ledger) map[string]bool {
	all := make(map[string]bool)
	for c := range l.All() {
		all[fmt.Sprint(c)] = true
	}
	return all
}

func same(a, b map[string]bool) bool {
	if len(a) != len(b) {
		return false
	}
	for k := range a {
		if !b[k] {
			return false
		}
	}
	return true
}

// TestAdmit tells what each claim after the others gets. A refusal changes nothing.
func TestAdmit(t *testing.T) {
	a := newAuthority(t)
	life := func(holder string, grant, n uint32, me byte, before ...byte) process {
		p := process{holder: holder, epoch: fence.NewEpoch(grant, n), me: incarnation(me)}
		for _, b := range before {
			p.lineage = append(p.lineage, incarnation(b))
		}
		return p
	}
	own := func(c fence.Claim, ownership uint64) fence.Claim { c.Token.Ownership = ownership; return c }
	in := func(c fence.Claim, domain string) fence.Claim { c.Domain = domain; return c }
	granted := func(c fence.Claim, v fence.Verified[fence.Grant]) fence.Claim { c.Grant = v; return c }
	type step struct {
		do   any // a claim, or an assignment to promise
		want fence.Reason
	}
	elsewhere := a
	elsewhere.Cluster = "other.example"
	many := life("s1", 0, internalsigned.MaxLineage+2, 'z')
	for i := range internalsigned.MaxLineage {
		many.lineage = append(many.lineage, fence.Incarnation{1, byte(i)})
	}
	s1, s1restarted := life("s1", 0, 1, 'a'), life("s1", 0, 2, 'b', 'a')
	for _, test := range []struct {
		name    string
		options fence.LedgerOptions
		steps   []step
	}{
		{"first contact is admitted, whatever its numbers", believing, []step{{life("s1", 7, 9, 'a').claim("m", 5), ""}}},
		{"only what is strictly newer", believing, []step{
			{s1.claim("m", 2), ""}, {s1.claim("m", 1), fence.ReasonStale}, {s1.claim("m", 3), ""},
			{s1.claim("m", 2), fence.ReasonStale}}},
		{"an equal token of the same request is a duplicate", believing, []step{
			{s1.claim("m", 1), ""}, {s1.claim("m", 1), fence.ReasonDuplicate}, {s1.claim("m", 1), fence.ReasonDuplicate}}},
		{"an equal token of another request is a clone", believing, []step{{s1.claim("m", 1), ""},
			{func() fence.Claim { c := s1.claim("m", 1); c.Token.Digest[0]++; return c }(), fence.ReasonClone}}},
		{"a new life begins its sequence again", believing, []step{
			{s1.claim("m", 90), ""}, {s1restarted.claim("m", 1), ""}, {s1.claim("m", 91), fence.ReasonStale}}},
		{"resources of one holder do not fence one another", believing, []step{
			{s1.claim("m1", 9), ""}, {s1.claim("m2", 3), ""}, {s1.claim("m3", 1), ""}}},
		{"holders of no domain do not fence one another", believing, []step{
			{life("s1", 0, 9, 'a').claim("m", 9), ""}, {life("s2", 0, 1, 'b').claim("m", 1), ""}}},
		{"however many holders there are", believing, []step{
			{s1.claim("m", 2), ""}, {life("s2", 0, 1, 'b').claim("m", 2), ""}, {life("s3", 0, 1, 'c').claim("m", 2), ""},
			{life("s4", 0, 1, 'd').claim("m", 2), ""}, {s1.claim("m", 1), fence.ReasonStale},
			{life("s2", 0, 1, 'b').claim("m", 1), fence.ReasonStale}, {life("s3", 0, 1, 'c').claim("m", 1), fence.ReasonStale},
			{life("s4", 0, 1, 'd').claim("m", 1), fence.ReasonStale}, {life("s3", 0, 1, 'c').claim("m", 3), ""}}},
		{"a process of before acts nowhere, where its successor never was either", believing, []step{
			{s1.claim("m1", 1), ""}, {s1restarted.claim("m1", 1), ""}, {s1.claim("m2", 2), fence.ReasonStale}}},
		{"another process under the same epoch is a clone, elsewhere too", believing, []step{
			{s1.claim("m", 1), ""}, {life("s1", 0, 1, 'z').claim("m", 2), fence.ReasonClone},
			{life("s1", 0, 1, 'z').claim("n", 2), fence.ReasonClone}, {s1.claim("m", 2), ""}}},
		{"a copied directory that starts once more than the original is a clone", believing, []step{
			{s1.claim("m", 1), ""}, {s1restarted.claim("m", 1), ""},
			{life("s1", 0, 3, 'y', 'a', 'z').claim("m", 1), fence.ReasonClone}, {s1restarted.claim("m", 2), ""}}},
		{"a life whose lineage has the last one is no clone", believing, []step{
			{s1.claim("m", 1), ""}, {life("s1", 0, 5, 'e', 'a', 'b', 'c', 'd').claim("m", 1), ""},
			{life("s1", 0, 9, 'i', 'e').claim("m", 1), fence.ReasonClone},
			{life("s1", 0, 7, 'i', 'e', 'f', 'g').claim("m", 1), fence.ReasonClone}, {life("s1", 0, math.MaxUint32, 'i', 'e').claim("m", 1), fence.ReasonClone}}},
		{"after more lives than are named a new grant is wanted", believing, []step{
			{s1.claim("m", 1), ""}, {many.claim("m", 1), fence.ReasonUngranted}, {life("s1", 1, 1, 'z').claim("m", 1), ""}}},
		{"a new grant needs no lineage", believing, []step{
			{s1.claim("m", 1), ""}, {life("s1", 1, 1, 'z').claim("m", 1), ""}}},
		{"no epoch, no sequence, no incarnation", believing, []step{
			{life("s1", 3, 0, 'a').claim("m", 1), fence.ReasonMalformed}, {s1.claim("m", 0), fence.ReasonMalformed},
			{life("s1", 0, 1, 0).claim("m", 1), fence.ReasonMalformed}}},
		{"no names, names with a blank, long names", believing, []step{
			{s1.claim("", 1), fence.ReasonMalformed}, {s1.claim("m\n", 1), fence.ReasonMalformed},
			{s1.claim("m n", 1), fence.ReasonMalformed}, {s1.claim(strings.Repeat("m", internalsigned.MaxName), 1), ""},
			{s1.claim(strings.Repeat("m", internalsigned.MaxName+1), 1), fence.ReasonMalformed},
			{life("", 0, 1, 'a').claim("m", 1), fence.ReasonMalformed}, {in(s1.claim("m", 1), "d\x00"), fence.ReasonMalformed}}},
		{"a lineage with the process itself, or too long", believing, []step{
			{life("s1", 0, 2, 'a', 'a').claim("m", 1), fence.ReasonMalformed},
			{fence.Claim{Holder: "s1", Resource: "m", Token: s1.claim("m", 1).Token,
				Lineage: make(fence.Lineage, internalsigned.MaxLineage+1)}, fence.ReasonMalformed}}},
		{"the last numbers there are", believing, []step{
			{life("s1", math.MaxUint32, math.MaxUint32, 'a').claim("m", math.MaxUint64-1), ""},
			{life("s1", math.MaxUint32, math.MaxUint32, 'a').claim("m", math.MaxUint64), ""},
			{life("s1", math.MaxUint32, math.MaxUint32, 'a').claim("m", math.MaxUint64), fence.ReasonDuplicate},
			{life("s1", 0, 1, 'a').claim("m", 1), fence.ReasonStale}}},

		{"a grant counts with its statement alone", strict, []step{
			{s1.claim("m", 1), fence.ReasonUngranted},
			{life("s1", 1, 1, 'a').claim("m", 1), fence.ReasonUngranted},
			{granted(life("s1", 1, 1, 'a').claim("m", 1), a.grant("s2", 1)), fence.ReasonUngranted},
			{granted(life("s1", 1, 1, 'a').claim("m", 1), a.grant("s1", 2)), fence.ReasonUngranted},
			{granted(life("s1", 1, 1, 'a').claim("m", 1), elsewhere.grant("s1", 1)), fence.ReasonUngranted},
			{granted(life("s1", 1, 1, 'a').claim("m", 1), a.grant("s1", 1)), ""},
			{life("s1", 1, 1, 'a').claim("m", 2), ""}, {life("s1", 1, 2, 'b', 'a').claim("m", 1), ""},
			{life("s1", math.MaxUint32, 1, 'z').claim("m", 1), fence.ReasonUngranted},
			{life("s1", 1, 2, 'b', 'a').claim("m", 2), ""}}},
		{"a holder acts under its newest grant alone", strict, []step{
			{granted(life("s1", 2, 1, 'b').claim("m1", 1), a.grant("s1", 2)), ""},
			{granted(life("s1", 1, 1, 'a').claim("m2", 1), a.grant("s1", 1)), fence.ReasonStale}}},
		{"without a cluster no statement counts", fence.LedgerOptions{}, []step{
			{granted(life("s1", 1, 1, 'a').claim("m", 1), a.grant("s1", 1)), fence.ReasonUngranted},
			{a.assign("d", "s1", 1), fence.ReasonMalformed}}},

		{"a promise stops the former owner, where the new one never was too", believing, []step{
			{a.assign("d", "s1", 1), ""}, {own(in(s1.claim("m", 1), "d"), 1), ""},
			{a.assign("d", "s2", 2), ""},
			{own(s1.claim("m", 2), 1), fence.ReasonMoved}, {own(in(s1.claim("n", 3), "d"), 1), fence.ReasonMoved},
			{own(life("s2", 0, 1, 'b').claim("m", 1), 2), ""}}},
		{"an attempt under an older assignment to the same holder", believing, []step{
			{a.assign("d", "s1", 1), ""}, {own(in(s1.claim("m", 1), "d"), 1), ""}, {a.assign("d", "s1", 2), ""},
			{own(s1.claim("m", 2), 1), fence.ReasonMoved}, {own(s1.claim("m", 3), 2), ""}}},
		{"an ownership counts once it is promised", believing, []step{
			{own(in(s1.claim("m", 1), "d"), 1), fence.ReasonUnpromised}, {in(s1.claim("m", 1), "d"), fence.ReasonUnpromised},
			{a.assign("d", "s1", 1), ""},
			{own(in(s1.claim("m", 1), "d"), 1), ""}, {own(s1.claim("m", 2), math.MaxUint64), fence.ReasonUnpromised}}},
		{"two holders with one ownership are an alarm", believing, []step{
			{a.assign("d", "s1", 1), ""}, {own(in(life("s2", 0, 1, 'b').claim("m", 1), "d"), 1), fence.ReasonOwner},
			{a.assign("d", "s2", 1), fence.ReasonOwner}}},
		{"a domain that was taken from everybody", believing, []step{
			{a.assign("d", "s1", 1), ""}, {own(in(s1.claim("m", 1), "d"), 1), ""}, {a.assign("d", "", 2), ""},
			{own(s1.claim("m", 2), 1), fence.ReasonMoved}, {own(s1.claim("m", 2), 2), fence.ReasonMoved}}},
		{"promises never go down, and can be made again", believing, []step{
			{a.assign("d", "s1", 2), ""}, {a.assign("d", "s1", 2), ""}, {a.assign("d", "s1", 1), fence.ReasonMoved},
			{fence.Verified[fence.Assignment]{}, fence.ReasonMalformed},
			{elsewhere.assign("d", "s1", math.MaxUint64), fence.ReasonMalformed}, {a.assign("d", "s2", 3), ""}}},
		{"a resource stays in its domain", believing, []step{
			{a.assign("d", "s1", 1), ""}, {a.assign("e", "s1", 1), ""}, {own(in(s1.claim("m", 1), "d"), 1), ""},
			{own(in(s1.claim("m", 2), "e"), 1), fence.ReasonDomain}, {own(in(s1.claim("m", 2), "d"), 1), ""},
			{own(s1.claim("m", 3), 1), ""}, {own(s1.claim("n", 1), 1), fence.ReasonDomain}}},
		{"nobody puts a resource of no domain into one", believing, []step{
			{s1.claim("m", 1), ""}, {a.assign("d", "s2", 1), ""},
			{own(in(life("s2", 0, 1, 'b').claim("m", 1), "d"), 1), fence.ReasonDomain},
			{in(s1.claim("m", 2), "d"), fence.ReasonDomain}, {s1.claim("m", 2), ""}}},
		{"an ownership of another domain is no alarm, and ends nobody", believing, []step{
			{a.assign("d", "s1", 1), ""}, {a.assign("e", "s2", 1), ""}, {own(in(life("s2", 0, 1, 'b').claim("m", 1), "e"), 1), ""},
			{own(in(s1.claim("m", 1), "d"), 1), fence.ReasonDomain}, {own(s1.claim("m", 1), 1), fence.ReasonMoved},
			{own(in(s1.claim("m", 1), "e"), 1), fence.ReasonOwner}, {a.assign("e", "s2", 2), ""},
			{own(in(s1.claim("m", 1), "d"), 1), fence.ReasonDomain}}},
		{"where every resource has to be in a domain", fence.LedgerOptions{Cluster: cluster, BelieveEpochs: true, RequireDomain: true},
			[]step{{s1.claim("m", 1), fence.ReasonDomain}, {a.assign("d", "s1", 1), ""}, {own(in(s1.claim("m", 1), "d"), 1), ""},
				{own(s1.claim("m", 2), 1), ""}}},

		{"no room for another pair, and those that are there go on", fence.LedgerOptions{BelieveEpochs: true, MaxPairs: 2}, []step{
			{s1.claim("m1", 1), ""}, {life("s2", 0, 1, 'b').claim("m2", 2), ""}, {s1.claim("m3", 3), fence.ReasonFull},
			{s1.claim("m1", 4), ""}}},
		{"one holder does not take all the room", fence.LedgerOptions{BelieveEpochs: true, MaxOfHolder: 2}, []step{
			{s1.claim("m1", 1), ""}, {s1.claim("m2", 2), ""}, {s1.claim("m3", 3), fence.ReasonFull},
			{life("s2", 0, 1, 'b').claim("m3", 1), ""}, {s1.claim("m2", 4), ""}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := fence.NewLedger(test.options)
			for i, step := range test.steps {
				before := dump(l)
				var err error
				switch do := step.do.(type) {
				case fence.Claim:
					err = l.Admit(do)
				case fence.Verified[fence.Assignment]:
					err = l.Promise(do)
				}
				if got := reasonOf(err); got != step.want {
					t.Fatalf("step %d: %q (%v), want %q", i, got, err, step.want)
				}
				if err == nil {
					continue
				}
				if !same(before, dump(l)) {
					t.Errorf("step %d: a refusal changed the ledger", i)
				}
				if !errors.Is(err, fence.ErrRefused) || errors.Is(err, fence.ErrFenced) != step.want.Fenced() || errors.Is(err, fence.ErrEnded) != step.want.Ends() {
					t.Errorf("step %d: %v matches ErrRefused %v, ErrFenced %v", i, err, errors.Is(err,
						fence.ErrRefused), errors.Is(err, fence.ErrFenced))
				}
				if text := err.Error(); strings.HasSuffix(text, ": ") {
					t.Errorf("step %d: %q has no remedy", i, text)
				}
			}
		})
	}
}

// Each reason says whether the sender is not in charge, whether its process is over, and
// whether somebody has to be told.
func TestReasons(t *testing.T) {
	for _, test := range []struct {
		reason              fence.Reason
		fenced, ends, alarm bool
	}{
		{fence.ReasonStale, true, true, false}, {fence.ReasonMoved, true, false, false}, {fence.ReasonClone, true, true, true},
		{fence.ReasonOwner, true, true, true}, {fence.ReasonDuplicate, false, false, false}, {fence.ReasonLate, false, false, false},
		{fence.ReasonUngranted, false, false, false}, {fence.ReasonUnpromised, false, false, false},
		{fence.ReasonDomain, false, false, false}, {fence.ReasonMalformed, false, false, false}, {fence.ReasonFull, false, false, false},
	} {
		r := test.reason
		if r.Fenced() != test.fenced || r.Ends() != test.ends || r.Alarm() != test.alarm {
			t.Errorf("%s: fenced %v, ends %v, alarm %v", r, r.Fenced(), r.Ends(), r.Alarm())
		}
	}
}

// The changes that a ledger tells of itself make another one that decides the same.
func TestLedgerAgain(t *testing.T) {
	a := newAuthority(t)
	l := fence.NewLedger(strict)
	p := process{holder: "s1", epoch: fence.NewEpoch(3, 1), me: incarnation('a')}
	claim := func(resource string, sequence uint64) fence.Claim {
		c := p.claim(resource, sequence)
		c.Domain, c.Token.Ownership = "d", 2
		return c
	}
	c := claim("m", 4)
	c.Grant = a.grant("s1", 3)
	if err := errors.Join(l.Promise(a.assign("d", "s1", 2)), l.Admit(c), l.Admit(claim("gone", 7))); err != nil {
		t.Fatal(err)
	}
	l.Forget("gone")
	before := dump(l)
	again := fence.NewLedger(strict)
	for change := range l.All() {
		again.Set(change)
	}
	if !same(before, dump(again)) {
		t.Fatalf("%v\nwant %v", dump(again), before)
	}
	for i, step := range []struct {
		claim fence.Claim
		want  fence.Reason
	}{
		{claim("m", 4), fence.ReasonDuplicate}, {claim("m", 5), ""}, {claim("gone", 7), fence.ReasonLate}, {claim("n", 8), ""},
		{process{holder: "s1", epoch: fence.NewEpoch(3, 2), me: incarnation('z')}.claim("o", 1), fence.ReasonClone},
	} {
		if got := reasonOf(again.Admit(step.claim)); got != step.want {
			t.Errorf("step %d: %q, want %q", i, got, step.want)
		}
	}
	if err := again.Promise(a.assign("d", "s2", 3)); err != nil {
		t.Fatal(err)
	}
	// A change that is set never takes anything down.
	after := dump(again)
	for change := range l.All() {
		again.Set(change)
	}
	for older := range l.All() {
		older.Process.Floor = 0
		again.Set(older)
	}
	if !same(after, dump(again)) {
		t.Errorf("%v\nwant %v", dump(again), after)
	}
	if again.DomainOf("m") != "d" || again.Promised("d") != (fence.Assigned{Ownership: 3, Holder: "s2"}) ||
		again.Mark(fence.Pair{Holder: "s1", Resource: "m"}).Sequence != 5 ||
		again.ProcessOf("s1") != (fence.Process{Epoch: fence.NewEpoch(3, 1), Incarnation: incarnation('a'), Floor: 7}) {
		t.Errorf("it remembers %v", after)
	}
}

// A resource that is gone takes no room, leaves those of others alone, and does not come
// back by a late copy of what made it.
func TestForget(t *testing.T) {
	a := newAuthority(t)
	l := fence.NewLedger(fence.LedgerOptions{Cluster: cluster, BelieveEpochs: true, MaxPairs: 3, MaxOfHolder: 2})
	p, q := process{holder: "s1", epoch: 1, me: incarnation('a')}, process{holder: "s2", epoch: 1, me: incarnation('b')}
	for _, c := range []fence.Claim{p.claim("m", 1), q.claim("m", 1), p.claim("n", 2), p.claim("m", 3)} {
		if err := l.Admit(c); err != nil {
			t.Fatal(err)
		}
	}
	l.Forget("m")
	if err := l.Promise(a.assign("d", "s1", 1)); err != nil {
		t.Fatal(err)
	}
	elsewhere := p.claim("m", 6)
	elsewhere.Domain, elsewhere.Token.Ownership = "d", 1
	for i, step := range []struct {
		claim fence.Claim
		want  fence.Reason
	}{
		{p.claim("n", 2), fence.ReasonDuplicate}, // another one, as before
		{p.claim("m", 1), fence.ReasonLate}, {p.claim("m", 3), fence.ReasonLate}, {q.claim("m", 1), fence.ReasonLate},
		{p.claim("n", 4), ""}, {elsewhere, ""}, // made anew, in another domain
		{q.claim("new", 2), ""}, {q.claim("more", 3), fence.ReasonFull},
	} {
		if got := reasonOf(l.Admit(step.claim)); got != step.want {
			t.Errorf("step %d: %q, want %q", i, got, step.want)
		}
	}
}

// Of two copies that come at once, to different resources, one is admitted: what a newer
// process changes is decided and noted as one.
func TestCopiesAtOnce(t *testing.T) {
	first := process{holder: "s1", epoch: 1, me: incarnation('a')}
	twins := []process{{holder: "s1", epoch: 2, me: incarnation('b'), lineage: fence.Lineage{first.me}},
		{holder: "s1", epoch: 2, me: incarnation('c'), lineage: fence.Lineage{first.me}}}
	for range 5000 {
		l := fence.NewLedger(believing)
		if err := l.Admit(first.claim("m", 1)); err != nil {
			t.Fatal(err)
		}
		var admitted, there atomic.Int32
		var wait sync.WaitGroup
		for i, twin := range twins {
			c := twin.claim(fmt.Sprint("m-", i), 1)
			wait.Go(func() {
				for there.Add(1); there.Load() < int32(len(twins)); { // both at the same instant
					runtime.Gosched()
				}
				if l.Admit(c) == nil {
					admitted.Add(1)
				}
			})
		}
		wait.Wait()
		if n := admitted.Load(); n != 1 {
			t.Fatalf("%d copies were admitted", n)
		}
	}
}

// One live holder that sends at concurrency 32 to 1,000 resources is never fenced, in
// whatever order its attempts arrive: that is why marks are of pairs.
func TestOneLiveHolderIsNeverFenced(t *testing.T) {
	l := fence.NewLedger(believing)
	s := must(fence.NewSender(fence.Life{Epoch: 1, Incarnation: incarnation('a')}))
	var resources [1000]sync.Mutex // one attempt under way for each
	var wait sync.WaitGroup
	for worker := range 32 {
		wait.Go(func() {
			for i := range 500 {
				n := (worker*31 + i*17) % len(resources)
				resources[n].Lock()
				token, err := s.Next(0, nil)
				if err == nil {
					err = s.Heard(l.Admit(fence.Claim{Holder: "s1", Resource: fmt.Sprint(n), Token: token}))
				}
				resources[n].Unlock()
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wait.Wait()
	if err := s.Err(); err != nil {
		t.Error(err)
	}
}
