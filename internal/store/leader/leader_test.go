package leader

import (
	"fmt"
	"testing"
	"time"
)

// life is one process, driven by hand.
type life struct {
	t    *testing.T
	core *Core
	now  time.Duration
}

func newLife(t *testing.T, replica string) *life {
	t.Helper()
	n := 0
	core, err := New(Config{Replica: replica, Lease: testLease, Beat: testBeat, Nonce: func() string { n++; return replica + string(rune('0'+n)) }})
	if err != nil {
		t.Fatal(err)
	}
	return &life{t: t, core: core}
}

// step steps after d, and wants this effect.
func (l *life) step(d time.Duration, e Event, want Effect) {
	l.t.Helper()
	l.now += d
	if got := l.core.Step(l.now, e); got != want {
		l.t.Fatalf("at %v, after %#v: %#v, want %#v", l.now, e, got, want)
	}
}

func (l *life) leads(term uint64) {
	l.t.Helper()
	if got, _, ok := l.core.Leading(l.now); ok != (term != 0) || got != term {
		l.t.Fatalf("at %v it leads under %d (%t), want %d", l.now, got, ok, term)
	}
}

// leader returns a process that leads under term 10 since time 0.
func leader(t *testing.T) *life {
	t.Helper()
	l := newLife(t, "me")
	l.step(0, Fit{}, ReadEntry{})
	l.step(0, Read{}, TakeOver{Nonce: "me1", Lease: testLease})
	l.step(0, Written{10}, nil)
	l.leads(10)
	return l
}

func of(replica, nonce string, term, beat uint64) Entry {
	return Entry{Term: term, Beat: beat, Number: beat, Believed: true, Replica: replica, Nonce: nonce, Lease: testLease}
}

func TestFirstLeadsAtOnceAndBeats(t *testing.T) {
	l := leader(t)
	if got := l.core.Next(l.now); got != testBeat {
		t.Fatalf("the first beat is due at %v", got)
	}
	l.step(testBeat, Tick{}, Renew{Nonce: "me1", Number: 1, Lease: testLease, IfTerm: 10, IfBeat: 10})
	l.step(100*time.Millisecond, Written{12}, nil)
	l.step(testBeat-100*time.Millisecond, Tick{}, Renew{Nonce: "me1", Number: 2, Lease: testLease, IfTerm: 10, IfBeat: 12})
}

// The lease counts from the start of the last beat that arrived, and ends by a tenth
// before the others'.
func TestStopsBeforeItsLeaseEnds(t *testing.T) {
	l := leader(t)
	l.step(testBeat, Tick{}, Renew{Nonce: "me1", Number: 1, Lease: testLease, IfTerm: 10, IfBeat: 10})
	l.step(400*time.Millisecond, Written{12}, Renew{Nonce: "me1", Number: 2, Lease: testLease, IfTerm: 10, IfBeat: 12})
	l.now = testBeat + testLease - testLease/10 - 1
	l.leads(10)
	l.now++
	l.leads(0)
	// It was only out of reach: the next beat that arrives makes it lead on.
	l.step(0, Unknown{}, nil)
	if got, want := l.core.Next(l.now), l.now+testBeat/4; got != want {
		t.Errorf("it wakes at %v, want %v: nothing is due at the end of the lease", got, want)
	}
	l.step(2*testBeat, Tick{}, Renew{Nonce: "me1", Number: 2, Lease: testLease, IfTerm: 10, IfBeat: 12})
	l.leads(0)
	l.step(0, Written{15}, Renew{Nonce: "me1", Number: 3, Lease: 2 * testLease, IfTerm: 10, IfBeat: 15})
	l.leads(0) // that beat was first sent long ago
	l.step(0, Written{16}, nil)
	l.leads(10)
}

// A lease that was lost in time doubles the next one, once for each loss and up to four
// times, and five minutes without one halve it again. A new leader keeps the lease of
// the entry: what starved its leader starves the next one as well.
func TestLeaseAdapts(t *testing.T) {
	l := leader(t)
	beat := uint64(10)
	renew := func(number uint64, lease time.Duration) Renew {
		return Renew{Nonce: "me1", Number: number, Lease: lease, IfTerm: 10, IfBeat: beat}
	}
	number := uint64(0)
	lapse := func(lease, next time.Duration) { // a beat that comes after its lease
		t.Helper()
		number++
		l.step(testBeat, Tick{}, renew(number, lease))
		l.step(lease, Tick{}, nil)
		l.leads(0)
		l.step(lease, Tick{}, nil) // one loss, however long
		beat++
		number++
		l.step(0, Written{beat}, renew(number, next))
		beat++
		l.step(0, Written{beat}, nil)
		l.leads(10)
		if got := l.core.Lease(); got != next {
			t.Fatalf("the lease is %v, want %v", got, next)
		}
	}
	lapse(testLease, 2*testLease)
	lapse(2*testLease, 4*testLease)
	lapse(4*testLease, 4*testLease)
	_, until, _ := l.core.Leading(l.now)
	if want := l.now + 4*testLease - 4*testLease/10; until != want {
		t.Errorf("it leads until %v, want %v", until, want)
	}

	// The shorter lease holds from the beat that begins it, as others read it then.
	calm := func(lease time.Duration) {
		t.Helper()
		for l.now+testBeat-l.core.calm < CalmAfter {
			number++
			l.step(testBeat, Tick{}, renew(number, l.core.Lease()))
			beat++
			l.step(0, Written{beat}, nil)
		}
		number++
		l.step(testBeat, Tick{}, renew(number, lease))
		_, until, _ := l.core.Leading(l.now)
		if want := l.now + lease - lease/10; until > want {
			t.Errorf("it leads until %v, beyond the lease that others read: %v", until, want)
		}
		beat++
		l.step(0, Written{beat}, nil)
	}
	calm(2 * testLease)
	calm(testLease)
	if got := l.core.Lease(); got != testLease {
		t.Errorf("the lease is %v after ten calm minutes, want %v", got, testLease)
	}

	n := newLife(t, "next")
	e := of("other", "o", 7, 7)
	e.Lease = 4 * testLease
	n.step(0, Fit{}, ReadEntry{})
	n.step(0, Read{e}, nil)
	n.step(4*testLease-testBeat, Tick{}, ReadEntry{})
	n.step(0, Read{e}, nil)
	n.step(testBeat, Tick{}, ReadEntry{})
	n.step(0, Read{e}, TakeOver{Nonce: "next1", Lease: 4 * testLease, IfTerm: 7, IfBeat: 7})
}

func TestLeaseOf(t *testing.T) {
	for _, tc := range []struct {
		name              string
		lease, beat, want time.Duration
		beats             bool
	}{
		{"the beat's", testLease, 2 * testLease, 2 * testLease, true},
		{"of an earlier release", testLease, 0, testLease, true},
		{"without a beat", testLease, 0, MaxStretch * testLease, false},
		{"without a beat, and stretched", 2 * testLease, 0, MaxStretch * testLease, false},
		{"without a beat, of one with longer times", 6 * testLease, 0, 6 * testLease, false},
		{"without a beat, at the bound", MaxLease, 0, MaxLease, false},
	} {
		if got := LeaseOf(testLease, tc.lease, tc.beat, tc.beats); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

func TestTakesOverWhatIsUnchangedForALease(t *testing.T) {
	l := newLife(t, "me")
	l.step(0, Fit{}, ReadEntry{})
	l.step(50*time.Millisecond, Read{of("other", "o", 7, 8)}, nil)
	l.step(testBeat, Tick{}, ReadEntry{})
	l.step(0, Read{of("other", "o", 7, 9)}, nil) // it beats
	seen := l.now
	for l.now-seen < testLease-testBeat {
		l.step(testBeat, Tick{}, ReadEntry{})
		l.step(0, Read{of("other", "o", 7, 9)}, nil)
		if _, led, _ := l.core.Seen(l.now); !led {
			t.Fatalf("nobody is said to lead %v after a beat", l.now-seen)
		}
	}
	if got := l.core.Next(l.now); got != seen+testLease {
		t.Fatalf("next at %v, want %v", got, seen+testLease)
	}
	l.step(testBeat, Tick{}, ReadEntry{})
	l.step(0, Read{of("other", "o", 7, 9)}, TakeOver{Nonce: "me1", Lease: testLease, IfTerm: 7, IfBeat: 9})
	if _, led, since := l.core.Seen(l.now); led || since != seen+testLease {
		t.Fatalf("led %t since %v, want nobody since %v", led, since, seen+testLease)
	}
}

// An entry that somebody else writes where the beat is, or puts back there, is no sign
// of life; nor is another forged entry in the place of one.
func TestForgedBeatsAreNoSignOfLife(t *testing.T) {
	l := newLife(t, "me")
	l.step(0, Fit{}, ReadEntry{})
	l.step(0, Read{of("other", "o", 7, 9)}, nil)
	for i := range uint64(3) {
		l.step(testBeat, Tick{}, ReadEntry{})
		e := of("other", "o", 7, 20+i)
		e.Number = []uint64{0, 8, 9}[i]
		l.step(0, Read{e}, nil)
	}
	l.step(testBeat, Tick{}, ReadEntry{})
	e := of("other", "o", 7, 30)
	e.Number = 0
	l.step(0, Read{e}, TakeOver{Nonce: "me1", Lease: testLease, IfTerm: 7, IfBeat: 30})

	l = newLife(t, "me")
	l.step(0, Fit{}, ReadEntry{})
	l.step(0, Read{Entry{Term: 30}}, nil)
	l.step(testLease, Tick{}, ReadEntry{})
	l.step(0, Read{Entry{Term: 40}}, TakeOver{Nonce: "me1", Lease: testLease, IfTerm: 40})
}

func TestWaitsAsLongAsTheLeaderSays(t *testing.T) {
	for given, want := range map[time.Duration]time.Duration{0: testLease, 1: MinLease, 2 * testLease: 2 * testLease, 1 << 60: MaxLease} {
		l := newLife(t, "me")
		l.step(0, Fit{}, ReadEntry{})
		e := of("other", "o", 7, 8)
		e.Lease = given
		l.step(0, Read{e}, nil)
		if got := l.core.takeAt(); got != want {
			t.Errorf("a leader with the lease %v is waited for %v, want %v", given, got, want)
		}
	}
}

// An entry of the same replica, read first, is of a process that has ended: the
// caller holds the lock of its directory.
func TestTakesOverFromItsOwnEarlierLife(t *testing.T) {
	l := newLife(t, "me")
	l.step(0, Fit{}, ReadEntry{})
	l.step(0, Read{of("me", "before", 7, 8)}, TakeOver{Nonce: "me1", Lease: testLease, IfTerm: 7, IfBeat: 8})
	// Once: two that run with one key do not take turns.
	l.step(0, Conflict{KeyTerm}, ReadEntry{})
	l.step(0, Read{of("me", "copy", 9, 9)}, nil)
	if got := l.core.Next(l.now); got != testBeat {
		t.Fatalf("next at %v", got)
	}
}

// A lead handed over in favour of another is that one's, also if the one that led
// starts anew.
func TestTransferOutlivesARestart(t *testing.T) {
	for to, want := range map[string]Effect{"": TakeOver{Nonce: "me1", Lease: testLease, IfTerm: 12, IfBeat: 11}, "other": nil, "me": TakeOver{Nonce: "me1", Lease: testLease, IfTerm: 12, IfBeat: 11}} {
		l := newLife(t, "me")
		l.step(0, Fit{}, ReadEntry{})
		e := of("me", "before", 12, 11)
		e.HandedOver, e.For = true, to
		l.step(0, Read{e}, want)
		if want != nil {
			continue
		}
		l.step(testLease, Tick{}, ReadEntry{}) // it is not there
		l.step(0, Read{e}, TakeOver{Nonce: "me1", Lease: testLease, IfTerm: 12, IfBeat: 11})
	}
}

func TestHandedOver(t *testing.T) {
	for name, c := range map[string]struct {
		to   string
		wait time.Duration
	}{"to anyone": {"", 0}, "to it": {"me", 0}, "to another": {"third", testLease}} {
		t.Run(name, func(t *testing.T) {
			l := newLife(t, "me")
			l.step(0, Fit{}, ReadEntry{})
			e := of("other", "o", 7, 8)
			e.HandedOver, e.For = true, c.to
			var want Effect
			if c.wait == 0 {
				want = TakeOver{Nonce: "me1", Lease: testLease, IfTerm: 7, IfBeat: 8}
			}
			l.step(0, Read{e}, want)
			if got := l.core.takeAt(); got != c.wait {
				t.Fatalf("it waits until %v, want %v", got, c.wait)
			}
			if _, led, _ := l.core.Seen(l.now); led {
				t.Fatal("somebody is said to lead")
			}
		})
	}
}

// A leader in whose place somebody wanted another holds back for a lease, and takes
// it if nobody did.
func TestTransferHoldsBack(t *testing.T) {
	l := leader(t)
	l.step(100*time.Millisecond, Noticed{}, ReadEntry{})
	e := of("me", "me1", 12, 10)
	e.HandedOver = true
	l.step(0, Read{e}, nil)
	l.leads(0)
	if got := l.core.takeAt(); got != l.now+testLease {
		t.Fatalf("it waits until %v, want %v", got, l.now+testLease)
	}
	e.Term, e.For = 13, "me" // somebody wants it back
	l.step(testBeat, Tick{}, ReadEntry{})
	l.step(0, Read{e}, TakeOver{Nonce: "me2", Lease: testLease, IfTerm: 13, IfBeat: 10})
}

// A leader that became unfit takes again at once what nobody else took.
func TestUnfitStepsDownAndComesBack(t *testing.T) {
	l := leader(t)
	l.step(0, Unfit{}, StepDown{Nonce: "me1", IfTerm: 10})
	l.leads(0)
	l.step(0, Written{12}, nil)
	l.step(0, Fit{}, ReadEntry{})
	e := of("me", "me1", 12, 10)
	e.HandedOver = true
	l.step(0, Read{e}, TakeOver{Nonce: "me2", Lease: testLease, IfTerm: 12, IfBeat: 10})
	// Unfit while it is under way: it leads at no time.
	l.step(0, Unfit{}, nil)
	l.step(0, Written{14}, StepDown{Nonce: "me2", IfTerm: 14})
	l.leads(0)
}

func TestStopHandsOverWithinAFewTries(t *testing.T) {
	l := leader(t)
	l.step(0, Stop{}, StepDown{Nonce: "me1", IfTerm: 10})
	for range handOverTries - 1 {
		l.step(0, Failed{}, nil)
		l.step(testBeat, Tick{}, StepDown{Nonce: "me1", IfTerm: 10})
	}
	l.step(0, Unknown{}, nil)
	if got := l.core.Next(l.now); got != never {
		t.Fatalf("it goes on at %v", got)
	}
	// Somebody else leads: nothing is left to hand over.
	l = leader(t)
	l.step(0, Stop{}, StepDown{Nonce: "me1", IfTerm: 10})
	l.step(0, Conflict{KeyTerm}, nil)
	l.step(testLease, Tick{}, nil)
}

// A leader that hands over leads no more as far as others are told, tries again no sooner
// because of what happens meanwhile, and looks at nothing before that is over: its clock is
// set for the next try alone.
func TestHandingOverGoesOnUndisturbed(t *testing.T) {
	l := leader(t)
	if _, led, _ := l.core.Seen(l.now); !led {
		t.Fatal("nobody leads before")
	}
	l.step(0, Unfit{}, StepDown{Nonce: "me1", IfTerm: 10})
	if _, led, since := l.core.Seen(l.now); led || since != l.now {
		t.Errorf("it leads on, until %v", since)
	}
	l.step(0, Failed{}, nil)
	l.step(1, Noticed{}, nil)
	l.step(0, Stop{}, nil)
	if got, want := l.core.Next(l.now), l.now-1+testBeat/4; got != want {
		t.Errorf("it wakes at %v, want %v", got, want)
	}
	l.step(testBeat/4-1, Tick{}, StepDown{Nonce: "me1", IfTerm: 10})
}

// A process that ends while its takeover is under way leads at no time, and hands over.
func TestStopDuringATakeover(t *testing.T) {
	l := newLife(t, "me")
	l.step(0, Fit{}, ReadEntry{})
	l.step(0, Read{}, TakeOver{Nonce: "me1", Lease: testLease})
	l.step(0, Stop{}, nil)
	l.step(0, Written{10}, StepDown{Nonce: "me1", IfTerm: 10})
	l.leads(0)
}

// A takeover of unknown outcome is ours if the entry has its nonce, whenever that is
// seen.
func TestUnknownTakeoverIsSettledByReading(t *testing.T) {
	l := newLife(t, "me")
	l.step(0, Fit{}, ReadEntry{})
	l.step(0, Read{}, TakeOver{Nonce: "me1", Lease: testLease})
	l.step(100*time.Millisecond, Unknown{}, ReadEntry{})
	l.step(0, Read{}, nil) // it is not there, and may yet arrive
	l.step(testBeat, Tick{}, ReadEntry{})
	l.step(0, Read{}, TakeOver{Nonce: "me1", Lease: testLease})
	l.step(0, Conflict{KeyTerm}, ReadEntry{}) // with itself
	l.step(0, Read{of("me", "me1", 10, 10)}, Renew{Nonce: "me1", Number: 1, Lease: testLease, IfTerm: 10, IfBeat: 10})
	l.leads(10)
	if _, until, _ := l.core.Leading(l.now); until != testLease-testLease/10 {
		t.Fatalf("it leads until %v: the lease counts from the first try", until)
	}
}

func TestLostTakeoverIsForgotten(t *testing.T) {
	l := newLife(t, "me")
	l.step(0, Fit{}, ReadEntry{})
	l.step(0, Read{}, TakeOver{Nonce: "me1", Lease: testLease})
	l.step(0, Unknown{}, ReadEntry{})
	l.step(0, Read{of("other", "o", 10, 10)}, nil)
	// Nobody puts it back and makes it lead.
	l.step(testBeat, Tick{}, ReadEntry{})
	l.step(0, Read{of("me", "me1", 12, 10)}, nil)
	l.leads(0)
}

// A lead that was handed over is not ours any more, though the nonce is: also if
// the takeover was of unknown outcome then.
func TestHandedOverIsNotResumed(t *testing.T) {
	l := newLife(t, "me")
	l.step(0, Fit{}, ReadEntry{})
	l.step(0, Read{}, TakeOver{Nonce: "me1", Lease: testLease})
	l.step(0, Unknown{}, ReadEntry{})
	e := of("me", "me1", 12, 10)
	e.HandedOver = true
	l.step(0, Read{e}, TakeOver{Nonce: "me2", Lease: testLease, IfTerm: 12, IfBeat: 10})
	l.leads(0)
}

func TestLoserStopsAsSoonAsItReads(t *testing.T) {
	l := leader(t)
	l.step(testBeat, Tick{}, Renew{Nonce: "me1", Number: 1, Lease: testLease, IfTerm: 10, IfBeat: 10})
	l.step(0, Conflict{KeyTerm}, ReadEntry{})
	l.step(0, Read{of("other", "o", 11, 11)}, nil)
	l.leads(0)
}

// The entry that the caller wrote again, under another key, is another term of the
// same leader.
func TestResealedEntryLeadsOn(t *testing.T) {
	l := leader(t)
	l.step(testBeat, Tick{}, Renew{Nonce: "me1", Number: 1, Lease: testLease, IfTerm: 10, IfBeat: 10})
	l.step(0, Unknown{}, nil) // as of 20 it can arrive no more
	l.step(0, Noticed{}, ReadEntry{})
	l.step(0, Read{of("me", "me1", 20, 0)}, nil)
	l.leads(20)
	l.step(testBeat, Tick{}, Renew{Nonce: "me1", Number: 2, Lease: testLease, IfTerm: 20, IfBeat: 0})
}

// Of two processes with one memory each finds the other's beat, and both begin anew.
func TestCopiedMemoryEndsTheTerm(t *testing.T) {
	l := leader(t)
	l.step(testBeat, Tick{}, Renew{Nonce: "me1", Number: 1, Lease: testLease, IfTerm: 10, IfBeat: 10})
	l.step(0, Conflict{KeyBeat}, StepDown{Nonce: "me1", IfTerm: 10})
	l.leads(0)
	l.step(0, Written{13}, ReadEntry{})
	e := of("me", "me1", 13, 12)
	e.HandedOver = true
	l.step(0, Read{e}, nil) // it leaves the term to the other
}

func TestBeatOfUnknownOutcomeIsSentAgainAsItWas(t *testing.T) {
	l := leader(t)
	l.step(testBeat, Tick{}, Renew{Nonce: "me1", Number: 1, Lease: testLease, IfTerm: 10, IfBeat: 10})
	l.step(0, Unknown{}, nil)
	l.step(testBeat, Tick{}, Renew{Nonce: "me1", Number: 1, Lease: testLease, IfTerm: 10, IfBeat: 10})
	l.step(0, Conflict{KeyOther}, nil) // it can arrive no more
	l.step(testBeat, Tick{}, Renew{Nonce: "me1", Number: 2, Lease: testLease, IfTerm: 10, IfBeat: 10})
}

func TestForgedEntryIsTakenOverInTime(t *testing.T) {
	l := newLife(t, "me")
	l.step(0, Fit{}, ReadEntry{})
	l.step(0, Read{Entry{Term: 30, Beat: 9}}, nil)
	if _, led, _ := l.core.Seen(l.now); led {
		t.Fatal("somebody is said to lead under a forged entry")
	}
	l.step(testLease, Tick{}, ReadEntry{})
	l.step(0, Read{Entry{Term: 30, Beat: 9}}, TakeOver{Nonce: "me1", Lease: testLease, IfTerm: 30, IfBeat: 9})
}

// A store that was restored and not raised gives terms that the field refuses: nobody
// leads under one.
func TestTermBelowTheFloorIsGivenBack(t *testing.T) {
	l := newLife(t, "me")
	l.step(0, Fit{Floor: 1000}, ReadEntry{})
	l.step(0, Read{}, TakeOver{Nonce: "me1", Lease: testLease})
	l.step(0, Written{1000}, StepDown{Nonce: "me1", IfTerm: 1000})
	l.leads(0)
	if !l.core.BelowFloor() {
		t.Fatal("it does not say so")
	}
	l.step(0, Written{1001}, ReadEntry{})
	e := of("me", "me1", 1001, 1000)
	e.HandedOver = true
	l.step(0, Read{e}, nil) // not as fast as it can
	l.step(testLease, Tick{}, ReadEntry{})
	l.step(0, Read{e}, TakeOver{Nonce: "me2", Lease: testLease, IfTerm: 1001, IfBeat: 1000})
	l.step(0, Written{5000}, nil)
	l.leads(5000)
	if l.core.BelowFloor() {
		t.Fatal("it still says so")
	}
}

// A store that went back gives revisions again that it gave before: a leader that slept
// may hold one of them, so that nobody leads under one that is not above all it saw.
func TestStoreThatWentBackRepeatsNoTerm(t *testing.T) {
	l := newLife(t, "me")
	l.step(0, Fit{}, ReadEntry{})
	l.step(0, Read{Entry{Term: 100, Beat: 100, Believed: true, Replica: "you", Nonce: "you1"}}, nil)
	l.step(testBeat, Tick{}, ReadEntry{})
	l.step(0, Read{Entry{Term: 100, Beat: 120, Number: 1, Believed: true, Replica: "you", Nonce: "you1"}}, nil)
	// Back to before that term, and what the store gives next was given already.
	l.step(testLease, Tick{}, ReadEntry{})
	l.step(0, Read{}, TakeOver{Nonce: "me1", Lease: testLease})
	l.step(0, Written{100}, StepDown{Nonce: "me1", IfTerm: 100})
	l.leads(0)
	if !l.core.BelowFloor() {
		t.Fatal("it does not say so")
	}
	l.step(0, Written{101}, ReadEntry{})
	e := of("me", "me1", 101, 100)
	e.HandedOver = true
	l.step(0, Read{e}, nil)
	l.step(testLease, Tick{}, ReadEntry{})
	l.step(0, Read{e}, TakeOver{Nonce: "me2", Lease: testLease, IfTerm: 101, IfBeat: 100})
	l.step(0, Written{121}, nil)
	l.leads(121)
	if l.core.BelowFloor() {
		t.Fatal("it still says so")
	}
}

func TestFailedTakeoverIsTriedAgainAfterAPause(t *testing.T) {
	for _, e := range []Event{Failed{}, Conflict{KeyOther}} {
		l := newLife(t, "me")
		l.step(0, Fit{}, ReadEntry{})
		l.step(0, Read{}, TakeOver{Nonce: "me1", Lease: testLease})
		l.step(0, e, ReadEntry{})
		l.step(0, Read{}, nil)
		l.step(testBeat, Tick{}, ReadEntry{})
		l.step(0, Read{}, TakeOver{Nonce: "me2", Lease: testLease})
	}
}

// A store whose reads are of before its writes refuses a takeover and does not show who
// was first: it is not asked again without a pause, for ever.
func TestRefusedTakeoverOfWhatIsStillReadWaits(t *testing.T) {
	for _, key := range []Key{KeyTerm, KeyBeat} {
		l := newLife(t, "me")
		l.step(0, Fit{}, ReadEntry{})
		l.step(0, Read{}, TakeOver{Nonce: "me1", Lease: testLease})
		l.step(0, Conflict{key}, ReadEntry{})
		l.step(0, Read{}, nil)
		l.step(testBeat/4, Tick{}, TakeOver{Nonce: "me2", Lease: testLease})
	}
}

func TestNobodyIsAskedForWhileUnfitOrStopped(t *testing.T) {
	l := newLife(t, "me")
	l.step(0, Tick{}, nil)
	l.step(0, Fit{}, ReadEntry{})
	l.step(0, Unfit{}, nil)
	l.step(0, Read{}, nil)
	l.step(testLease, Tick{}, nil)
	if got := l.core.Next(l.now); got != never {
		t.Fatalf("it goes on at %v", got)
	}
}

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		lease, beat time.Duration
		ok          bool
	}{
		{testLease, testBeat, true},
		{MinLease, MinLease / 3, true},
		{MaxLease, time.Second, true},
		{MinLease - 1, 10 * time.Millisecond, false},
		{MaxLease + 1, time.Second, false},
		{testLease, 0, false},
		{testLease, testLease/3 + 1, false},
	} {
		cfg := Config{Replica: "me", Lease: c.lease, Beat: c.beat}
		if _, err := New(cfg); (err == nil) != c.ok {
			t.Errorf("lease %v, beat %v: %v", c.lease, c.beat, err)
		}
	}
}

// A candidate that waits for an answer wakes when its lease ends: it must not be taken
// for a leader until somebody asks.
func TestWakesWhenItsLeaseEnds(t *testing.T) {
	l := leader(t)
	l.step(testBeat, Tick{}, Renew{Nonce: "me1", Number: 1, Lease: testLease, IfTerm: 10, IfBeat: 10})
	end := testLease - testLease/10
	l.step(end-l.now-time.Millisecond, Unknown{}, nil)
	if got := l.core.Next(l.now); got != end {
		t.Errorf("it wakes at %v, want %v, when its lease ends", got, end)
	}
}

// The first read is new, whatever it is: also what nobody can have written.
func TestFirstReadIsNews(t *testing.T) {
	l := newLife(t, "me")
	l.now = time.Hour
	forged := Entry{Term: 5, Beat: 5}
	l.step(0, Fit{}, ReadEntry{})
	l.step(0, Read{forged}, nil)
	l.step(testLease-1, Tick{}, ReadEntry{})
	l.step(0, Read{forged}, nil)
	l.step(1, Tick{}, TakeOver{Nonce: "me1", Lease: testLease, IfTerm: 5, IfBeat: 5})
}

// A leader that handed over looks at once: nobody may want to lead but itself. A
// leader that cannot hand over gives up after a few tries, and at once if somebody
// else leads already.
func TestHandingOverEnds(t *testing.T) {
	copied := func() *life {
		l := leader(t)
		l.step(testBeat, Tick{}, Renew{Nonce: "me1", Number: 1, Lease: testLease, IfTerm: 10, IfBeat: 10})
		l.step(0, Conflict{KeyBeat}, StepDown{Nonce: "me1", IfTerm: 10})
		return l
	}
	copied().step(0, Written{11}, ReadEntry{})
	copied().step(0, Conflict{KeyTerm}, ReadEntry{})
	l := copied()
	for range handOverTries - 1 {
		l.step(0, Conflict{KeyOther}, nil)
		l.step(testBeat/4, Tick{}, StepDown{Nonce: "me1", IfTerm: 10})
	}
	l.step(0, Conflict{KeyOther}, ReadEntry{})
}

// The answer to others, of who leads and until when, follows what was read and written last.
func TestTellsWhoLeads(t *testing.T) {
	l := newLife(t, "me")
	tells := func(want Entry, led bool, since time.Duration) {
		t.Helper()
		got, is, at := l.core.Seen(l.now)
		if got != want || is != led || at != since {
			t.Fatalf("at %v: %+v leads: %v, until or since %v; want %+v, %v, %v", l.now, got, is, at, want, led, since)
		}
	}
	l.step(time.Second, Fit{}, ReadEntry{})
	other := of("other", "o", 5, 5)
	l.step(0, Read{other}, nil)
	tells(other, true, l.now+testLease)
	// A forged entry, or one handed over, ends that at once, and not later again.
	forged := Entry{Term: 6, Beat: 5, Lease: MaxLease}
	l.step(time.Second, Noticed{}, ReadEntry{})
	l.step(0, Read{forged}, nil)
	tells(forged, false, l.now)
	over := of("other", "o", 7, 5)
	over.HandedOver = true
	l.step(time.Second, Noticed{}, ReadEntry{})
	l.step(0, Read{over}, TakeOver{Nonce: "me1", Lease: testLease, IfTerm: 7, IfBeat: 5})
	tells(over, false, l.now-time.Second)

	l.step(0, Written{10}, nil)
	mine := Entry{Term: 10, Beat: 10, Believed: true, Replica: "me", Nonce: "me1", Lease: testLease}
	tells(mine, true, l.now+testLease)
	l.step(testBeat, Tick{}, Renew{Nonce: "me1", Number: 1, Lease: testLease, IfTerm: 10, IfBeat: 10})
	l.step(0, Written{12}, nil)
	mine.Beat, mine.Number = 12, 1
	tells(mine, true, l.now+testLease)

	// A beat that arrives after the decision to hand over leads nobody on.
	l.step(testBeat, Tick{}, Renew{Nonce: "me1", Number: 2, Lease: testLease, IfTerm: 10, IfBeat: 12})
	l.step(0, Unfit{}, nil)
	tells(mine, false, l.now)
	l.step(0, Written{13}, StepDown{Nonce: "me1", IfTerm: 10})
	mine.Beat, mine.Number = 13, 2
	tells(mine, false, l.now)
	l.step(time.Second, Written{14}, nil)
	mine.Term, mine.HandedOver = 14, true
	tells(mine, false, l.now-time.Second)
}

// A process that led before, and starts again, tells nobody that it leads.
func TestEarlierLifeLeadsNoMore(t *testing.T) {
	l := newLife(t, "me")
	l.step(testLease, Fit{}, ReadEntry{})
	l.step(0, Read{of("me", "before", 5, 5)}, TakeOver{Nonce: "me1", Lease: testLease, IfTerm: 5, IfBeat: 5})
	if _, led, since := l.core.Seen(l.now); led || since != 0 {
		t.Errorf("led: %v, since %v", led, since)
	}
}

// How long a forged entry is waited for is not what it says of its lease.
func TestForgedLeaseIsNotWaitedFor(t *testing.T) {
	l := newLife(t, "me")
	l.step(0, Fit{}, ReadEntry{})
	forged := Entry{Term: 30, Beat: 9, Lease: MaxLease}
	l.step(0, Read{forged}, nil)
	l.step(testLease, Tick{}, ReadEntry{})
	l.step(0, Read{forged}, TakeOver{Nonce: "me1", Lease: testLease, IfTerm: 30, IfBeat: 9})
}

// A term that is not above all that this process wrote is of a store that went back: its
// own takeovers and beats, and that it handed over, count as well.
func TestTermsBelowOwnWritesAreNotLedUnder(t *testing.T) {
	again := Entry{Term: 5, Beat: 5}
	for name, tc := range map[string]struct {
		newest uint64
		write  func(l *life)
	}{
		"a takeover": {10, func(l *life) {
			l.step(0, Noticed{}, ReadEntry{})
		}},
		"a beat": {11, func(l *life) {
			l.step(testBeat, Tick{}, Renew{Nonce: "me1", Number: 1, Lease: testLease, IfTerm: 10, IfBeat: 10})
			l.step(0, Written{11}, nil)
			l.step(0, Noticed{}, ReadEntry{})
		}},
		"handing over": {11, func(l *life) {
			l.step(0, Unfit{}, StepDown{Nonce: "me1", IfTerm: 10})
			l.step(0, Written{11}, nil)
			l.step(0, Fit{}, ReadEntry{})
		}},
	} {
		for _, term := range []uint64{tc.newest, tc.newest + 1} {
			t.Run(fmt.Sprintf("%s, term %d", name, term), func(t *testing.T) {
				l := leader(t)
				tc.write(l)
				l.step(0, Read{again}, nil)
				l.step(testLease, Tick{}, ReadEntry{})
				l.step(0, Read{again}, TakeOver{Nonce: "me2", Lease: testLease, IfTerm: 5, IfBeat: 5})
				if term > tc.newest {
					l.step(0, Written{term}, nil)
					l.leads(term)
				} else {
					l.step(0, Written{term}, StepDown{Nonce: "me2", IfTerm: term})
					l.leads(0)
				}
				if low := l.core.BelowFloor(); low != (term == tc.newest) {
					t.Errorf("below what was seen: %v", low)
				}
			})
		}
	}
}

// An entry of ours that was written again, below a term that was seen, is one that went
// back with the store.
func TestResealedEntryBelowTheNewest(t *testing.T) {
	l := leader(t)
	l.step(0, Noticed{}, ReadEntry{})
	l.step(0, Read{of("me", "me1", 8, 0)}, StepDown{Nonce: "me1", IfTerm: 8})
	l.leads(0)
}

// A takeover that can never arrive is not sent again: somebody beat under the entry that
// it was for.
func TestTakeoverOfAnEntryThatBeatIsForgotten(t *testing.T) {
	l := newLife(t, "me")
	l.step(0, Fit{}, ReadEntry{})
	over := of("other", "o", 7, 5)
	over.HandedOver = true
	l.step(0, Read{over}, TakeOver{Nonce: "me1", Lease: testLease, IfTerm: 7, IfBeat: 5})
	l.step(0, Unknown{}, ReadEntry{})
	over.Beat = 6
	l.step(0, Read{over}, TakeOver{Nonce: "me2", Lease: testLease, IfTerm: 7, IfBeat: 6})
}

// An entry whose lease is longer than any that this process may keep is waited for, and
// followed by the longest that it may.
func TestInheritsNoMoreThanTheLongestLease(t *testing.T) {
	l := newLife(t, "me")
	l.step(0, Fit{}, ReadEntry{})
	e := of("other", "o", 5, 5)
	e.Lease = MaxLease
	l.step(0, Read{e}, nil)
	l.step(MaxLease, Tick{}, ReadEntry{})
	l.step(0, Read{e}, TakeOver{Nonce: "me1", Lease: MaxStretch * testLease, IfTerm: 5, IfBeat: 5})
}

// A process that could not read what is there looks again a beat later, and decides
// nothing meanwhile.
func TestFailedReadIsTriedAgainAfterABeat(t *testing.T) {
	l := newLife(t, "me")
	l.step(0, Fit{}, ReadEntry{})
	if got := l.core.Next(l.now); got != never {
		t.Errorf("it wakes at %v, before it has an answer", got)
	}
	l.step(0, ReadFailed{}, nil)
	if got := l.core.Next(l.now); got != testBeat {
		t.Errorf("it wakes at %v, want %v", got, testBeat)
	}
	l.step(testBeat-1, Tick{}, nil)
	l.step(1, Tick{}, ReadEntry{})
}
