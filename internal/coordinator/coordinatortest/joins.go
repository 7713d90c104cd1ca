package coordinatortest

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/test/wait"
)

// Attempt is one join that is ready to be made.
type Attempt struct {
	At        *coordinator.Coordinator
	Key       identity.KeyID
	Token     proof.JoinToken
	Challenge proof.Challenge
	Request   *fealtyv1.JoinRequest
	Grant     *fealtyv1.JoinGrant // once it was made
	Err       error               // how it ended
}

// AttemptAt returns the join of a new machine at c, with a token.
func AttemptAt(d *Desk, c *coordinator.Coordinator, tok proof.JoinToken) *Attempt {
	d.T.Helper()
	m := d.Machine()
	binding := make([]byte, 32)
	rand.Read(binding)
	ch := proof.NewChallenge(binding)
	return &Attempt{At: c, Key: KeyOf(d.T, m.Key), Token: tok, Challenge: ch,
		Request: JoinRequest(d.T, ch, m.Key, identity.Data, proof.NewTokenProver(tok))}
}

// Make makes the join.
func (a *Attempt) Make() {
	a.Grant, a.Err = a.At.Parts().Admission.Join(context.Background(), a.Challenge, a.Request)
}

// AllAtOnce makes the joins at once. The first transaction waits until all the others
// are in lines, so that how they gather is not left to chance.
func AllAtOnce(d *Desk, t *testing.T, joins []*Attempt) {
	t.Helper()
	lines := func() (n int) {
		s := d.State()
		for _, e := range s.Manifest.Admit {
			n += d.C.Parts().Admission.Waiting(s, e.Name)
		}
		return n
	}
	var first sync.Once
	d.Store.Intercept(func(store.Tx) {
		first.Do(func() {
			for lines() < len(joins)-1 {
				if t.Context().Err() != nil {
					return
				}
				time.Sleep(100 * time.Microsecond)
			}
		})
	})
	defer d.Store.Intercept(nil)
	var all sync.WaitGroup
	before := d.Faults.Hits("join.before-commit")
	all.Go(joins[0].Make)
	wait.Until(t, "the first is on its way alone", func() bool { return d.Faults.Hits("join.before-commit") > before })
	for _, a := range joins[1:] {
		all.Go(a.Make)
	}
	all.Wait()
}

// OutcomeUnknown reports whether err says that a change may have been made.
func OutcomeUnknown(err error) bool { return errors.Is(err, errcode.StoreOutcomeUnknown) }
