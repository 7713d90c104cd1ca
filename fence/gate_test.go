package fence_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fealty-io/fealty/fence"
)

// A promise is answered when nobody acts under an older ownership any more.
func TestPromiseWaitsForWhoActs(t *testing.T) {
	a := newAuthority(t)
	synctest.Test(t, func(t *testing.T) {
		g := fence.NewGate(fence.InMemory(fence.NewLedger(believing)), 0)
		p := process{holder: "s1", epoch: 1, me: incarnation('a')}
		if err := g.Promise(t.Context(), a.assign("d", "s1", 1)); err != nil {
			t.Fatal(err)
		}
		claim := func(sequence uint64, domain string) fence.Claim {
			c := p.claim("m", sequence)
			c.Domain, c.Token.Ownership = domain, 1
			return c
		}
		// Created, and then acted on by name alone: both are of the domain.
		if err := g.Do(t.Context(), claim(1, "d"), func(context.Context) error { return nil }); err != nil {
			t.Fatal(err)
		}
		acts, goOn := make(chan struct{}), make(chan struct{})
		done := make(chan error, 1)
		go func() {
			done <- g.Do(t.Context(), claim(2, ""), func(context.Context) error { close(acts); <-goOn; return nil })
		}()
		<-acts

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := g.Promise(ctx, a.assign("d", "s2", 2)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("while the former owner acts: %v", err)
		}
		// Promised it is all the same.
		if err := g.Do(t.Context(), fence.Claim{Holder: "s1", Resource: "n", Domain: "d", Token: claim(3,
			"").Token}, nil); reasonOf(err) != fence.ReasonMoved {
			t.Errorf("the former owner, elsewhere in the domain: %v", err)
		}
		promised := make(chan error, 1)
		go func() { promised <- g.Promise(t.Context(), a.assign("d", "s2", 2)) }()
		synctest.Wait()
		select {
		case err := <-promised:
			t.Fatalf("answered while the former owner acts: %v", err)
		default:
		}
		close(goOn)
		if err := errors.Join(<-done, <-promised); err != nil {
			t.Error(err)
		}
		if err := g.Promise(t.Context(), a.assign("d", "s1", 1)); reasonOf(err) != fence.ReasonMoved {
			t.Errorf("the old assignment: %v", err)
		}
	})
}

// One attempt at a time acts on a resource, those of others do not wait for it, and only
// so many wait.
func TestOneActsAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const waiting = 3
		g := fence.NewGate(fence.InMemory(fence.NewLedger(believing)), waiting)
		acting, most := 0, 0
		release := make(chan struct{})
		results := make(chan error, 10)
		for i := range 1 + waiting {
			p := process{holder: fmt.Sprint("s", i), epoch: 1, me: incarnation('a')}
			go func() {
				results <- g.Do(t.Context(), p.claim("m", 1), func(context.Context) error {
					acting++
					most = max(most, acting)
					<-release
					acting--
					return nil
				})
			}()
		}
		synctest.Wait()
		late := process{holder: "late", epoch: 1, me: incarnation('b')}
		if err := g.Do(t.Context(), late.claim("m", 1), nil); !errors.Is(err, fence.ErrBusy) {
			t.Errorf("one more: %v", err)
		}
		ran := false
		if err := g.Do(t.Context(), late.claim("n", 2),
			func(context.Context) error { ran = true; return nil }); err != nil || !ran {
			t.Errorf("another resource: %v", err)
		}
		for range 1 + waiting {
			release <- struct{}{}
		}
		for range 1 + waiting {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
		if most != 1 {
			t.Errorf("%d acted at once", most)
		}
	})
}

// An attempt that was given up while it waited has moved no mark, and one that failed has.
func TestGivenUpAndFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := fence.NewLedger(believing)
		g := fence.NewGate(fence.InMemory(l), 0)
		p := process{holder: "s1", epoch: 1, me: incarnation('a')}
		failed := errors.New("failed")
		goOn, done := make(chan struct{}), make(chan error, 1)
		go func() {
			done <- g.Do(t.Context(), p.claim("m", 1), func(context.Context) error { <-goOn; return failed })
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		never := func(context.Context) error { t.Error("it acted, and was given up"); return nil }
		if err := g.Do(ctx, p.claim("m", 2), never); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("while another acts: %v", err)
		}
		// A caller whose context is over does not act, though nobody else has the turn.
		for i := range 50 {
			if err := g.Do(ctx, p.claim(fmt.Sprint("free-", i), uint64(10+i)), never); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("with a context that is over: %v", err)
			}
		}
		close(goOn)
		if err := <-done; !errors.Is(err, failed) {
			t.Errorf("what act returned: %v", err)
		}
		if n := l.Mark(fence.Pair{Holder: "s1", Resource: "m"}).Sequence; n != 1 {
			t.Errorf("the mark is at %d, want that of the attempt that failed", n)
		}
		if err := g.Do(t.Context(), p.claim("m", 1), nil); reasonOf(err) != fence.ReasonDuplicate {
			t.Errorf("the failed attempt again: %v", err)
		}
	})
}

// slowMarks hold each Admit until they are let go on: the disk is slow.
type slowMarks struct {
	fence.Marks
	asked, goOn chan struct{}
}

func (m slowMarks) Admit(ctx context.Context, c fence.Claim) error {
	err := m.Marks.Admit(ctx, c)
	m.asked <- struct{}{}
	<-m.goOn
	return err
}

// An attempt whose mark is being saved is waited for by a promise, also the first one of a
// resource: it was admitted, and acts after it.
func TestPromiseWaitsForWhoIsSaved(t *testing.T) {
	a := newAuthority(t)
	for _, first := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			l := fence.NewLedger(believing)
			m := slowMarks{fence.InMemory(l), make(chan struct{}), make(chan struct{})}
			g := fence.NewGate(m, 0)
			c := process{holder: "s1", epoch: 1, me: incarnation('a')}.claim("m", 1)
			c.Domain, c.Token.Ownership = "d", 1
			if err := g.Promise(t.Context(), a.assign("d", "s1", 1)); err != nil {
				t.Fatal(err)
			}
			if !first {
				if err := l.Admit(c); err != nil {
					t.Fatal(err)
				}
				c.Token.Sequence, c.Domain = 2, ""
			}
			order := make(chan string, 2)
			go func() {
				err := g.Do(t.Context(), c, func(context.Context) error { order <- "acts"; return nil })
				if err != nil {
					t.Errorf("first %v: %v", first, err)
				}
			}()
			<-m.asked
			go func() {
				if err := g.Promise(t.Context(), a.assign("d", "s2", 2)); err != nil {
					t.Error(err)
				}
				order <- "promised"
			}()
			synctest.Wait()
			m.goOn <- struct{}{}
			if one, two := <-order, <-order; one != "acts" || two != "promised" {
				t.Errorf("first %v: %s, then %s", first, one, two)
			}
		})
	}
}

// A zombie takes no place from those who may act.
func TestZombiesDoNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := fence.NewGate(fence.InMemory(fence.NewLedger(believing)), 1)
		zombie := process{holder: "s1", epoch: 1, me: incarnation('a')}
		owner := process{holder: "s1", epoch: 2, me: incarnation('b'), lineage: fence.Lineage{incarnation('a')}}
		goOn, done := make(chan struct{}), make(chan error, 2)
		go func() {
			done <- g.Do(t.Context(), owner.claim("m", 1), func(context.Context) error { <-goOn; return nil })
		}()
		synctest.Wait()
		for i := range 4 {
			if err := g.Do(t.Context(), zombie.claim("m", uint64(9+i)), nil); reasonOf(err) != fence.ReasonStale {
				t.Errorf("zombie %d: %v", i, err)
			}
		}
		go func() { done <- g.Do(t.Context(), owner.claim("m", 2), func(context.Context) error { return nil }) }()
		synctest.Wait()
		close(goOn)
		if err := errors.Join(<-done, <-done); err != nil {
			t.Error(err)
		}
	})
}

// A resource that was removed is forgotten before anybody else has its turn, and one whose
// removal failed is not.
func TestRemove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := fence.NewLedger(believing)
		g := fence.NewGate(fence.InMemory(l), 0)
		p := process{holder: "s1", epoch: 1, me: incarnation('a')}
		failed := errors.New("failed")
		if err := g.Remove(t.Context(), p.claim("m", 1), func(context.Context) error { return failed }); !errors.Is(err, failed) ||
			l.Mark(fence.Pair{Holder: "s1", Resource: "m"}).Sequence != 1 {
			t.Errorf("one that fails: %v", err)
		}
		goOn, done := make(chan struct{}), make(chan error, 2)
		go func() {
			done <- g.Remove(t.Context(), p.claim("m", 3), func(context.Context) error { <-goOn; return nil })
		}()
		synctest.Wait()
		q := process{holder: "s2", epoch: 1, me: incarnation('b')}
		go func() {
			done <- g.Do(t.Context(), q.claim("m", 1), func(context.Context) error {
				if l.Mark(fence.Pair{Holder: "s1", Resource: "m"}).Sequence != 0 {
					t.Error("it acts on a resource that is remembered still")
				}
				return nil
			})
		}()
		synctest.Wait()
		close(goOn)
		if err := errors.Join(<-done, <-done); err != nil {
			t.Error(err)
		}
		if err := g.Do(t.Context(), p.claim("m", 2), nil); reasonOf(err) != fence.ReasonLate {
			t.Errorf("a late copy of an attempt for it: %v", err)
		}
	})
}

// brokenMarks cannot save.
type brokenMarks struct{ fence.Marks }

var errDisk = errors.New("disk")

func (brokenMarks) Check(fence.Claim) error                  { return nil }
func (brokenMarks) Admit(context.Context, fence.Claim) error { return errDisk }

// A receiver that cannot save a mark does not act.
func TestNothingActsUnsaved(t *testing.T) {
	g := fence.NewGate(brokenMarks{fence.InMemory(fence.NewLedger(believing))}, 0)
	p := process{holder: "s1", epoch: 1, me: incarnation('a')}
	err := g.Do(t.Context(), p.claim("m", 1), func(context.Context) error { t.Error("it acted"); return nil })
	if !errors.Is(err, errDisk) {
		t.Error(err)
	}
}
