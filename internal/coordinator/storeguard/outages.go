package storeguard

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/finding"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/health"
	"github.com/fealty-io/fealty/internal/store/timeout"
)

// Outage is why the store did not answer some calls, as it was seen.
type Outage struct {
	Outage  store.Outage // of the last call that failed for one; 0: none did
	Said    string       // the server's own words about it
	Since   time.Time    // of the first of them
	Last    time.Time    // of the last
	Answers time.Time    // since when calls are answered again; zero: none was since Last
}

func (o Outage) over(now time.Time) bool {
	return !o.Answers.IsZero() && now.Sub(o.Last) > health.WriteSettles
}

// Reason says why, with the server's words.
func (o Outage) Reason() string { return reasonOf(o.Outage, o.Said) }

func reasonOf(o store.Outage, said string) string {
	if said == "" {
		return o.String()
	}
	return o.String() + `; in its words: "` + said + `"`
}

// Text says it for a person; empty if every call is answered.
func (o Outage) Text(now time.Time) string {
	switch {
	case o.Outage == 0:
		return ""
	case o.Answers.IsZero():
		return fmt.Sprintf("the store has answered no call for %s: %s", now.Sub(o.Since).Round(time.Second), o.Reason())
	}
	return fmt.Sprintf("the store did not answer some calls until %s: %s", o.Last.UTC().Format("15:04:05 MST"), o.Reason())
}

// outages notes how calls of the store end. The zero value knows of none.
type outages struct {
	mu sync.Mutex
	o  Outage // guarded by mu
}

func (r *outages) state(now time.Time) Outage {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.o.over(now) {
		r.o = Outage{}
	}
	return r.o
}

// note takes in how a call ended, and returns the word for why it failed; empty if it was answered, or
// whoever called gave up.
func (r *outages) note(err error, now time.Time) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.o.over(now) {
		r.o = Outage{}
	}
	out, failed := errors.AsType[*store.OutageError](err)
	switch {
	case failed:
		since := r.o.Since
		if r.o.Outage == 0 {
			since = now
		}
		r.o = Outage{Outage: out.Outage, Said: out.Said, Since: since, Last: now}
		return OutageWord(out.Outage)
	case store.ReasonOf(err) != 0:
		return Word(store.ReasonOf(err))
	case answered(err):
		if r.o.Outage != 0 && r.o.Answers.IsZero() {
			r.o.Answers = now
		}
		return ""
	case errors.Is(err, context.Canceled), errors.Is(err, store.ErrClosed):
		return ""
	case errors.Is(err, timeout.ErrOver), errors.Is(err, context.DeadlineExceeded):
		return noAnswer
	}
	return unknown
}

// These are the reasons of calls that ended without one.
const (
	noAnswer = "no-answer" // in the time that whoever called had
	unknown  = "unknown"
)

// answered reports whether err, if it is one, is what the store said.
func answered(err error) bool {
	for _, said := range []error{store.ErrNotFound, store.ErrConflict, store.ErrInvalid, store.ErrVoided, store.ErrCompacted} {
		if errors.Is(err, said) {
			return true
		}
	}
	return err == nil
}

// noteCall takes in how a call ended.
func (g *Guard) noteCall(err error) {
	if reason := g.outages.note(err, g.cfg.Now()); reason != "" {
		g.failures.WithLabelValues(reason).Inc()
	}
}

// Outage returns why the store does not answer, as it was seen. It clears itself.
func (g *Guard) Outage() Outage { return g.outages.state(g.cfg.Now()) }

// Unanswered words err, with which the store failed a call, by why: see [CodeOf]. If err itself does not say
// it, as where whoever called had no more patience, why the store did not answer others is said.
func (g *Guard) Unanswered(what string, err error) error {
	now := g.Outage()
	if out, ok := errors.AsType[*store.OutageError](err); ok {
		now = Outage{Outage: out.Outage, Said: out.Said}
	}
	if now.Outage == 0 {
		return errcode.Wrap(err, errcode.StoreUnreachable, "what", what, "cause", "the coordinator's log says how")
	}
	return errcode.Wrap(err, CodeOf(now.Outage), "what", what, "cause", now.Reason(), "reason", OutageWord(now.Outage))
}

// ForStrangers returns err, which [Guard.Unanswered] made, without the words of the server: who is no member
// learns why, and neither addresses nor names of users.
func ForStrangers(err error) error {
	e := errcode.Of(err)
	if e.Fields["reason"] == "" {
		return err
	}
	for _, o := range store.Outages() {
		if OutageWord(o) == e.Fields["reason"] {
			return errcode.New(e.Code, "what", e.Fields["what"], "cause", o.String(), "reason", OutageWord(o))
		}
	}
	return err
}

// OutageFindings says why the store does not answer; nil if it does.
func (g *Guard) OutageFindings(what string) []*fealtyv1.Finding {
	o := g.Outage()
	if o.Outage == 0 {
		return nil
	}
	cause := "since " + o.Since.UTC().Format(time.RFC3339) + ": " + o.Reason()
	if !o.Answers.IsZero() {
		cause = "some calls from " + o.Since.UTC().Format(time.RFC3339) + " until " + o.Last.UTC().Format(time.RFC3339) + ": " + o.Reason()
	}
	f := finding.New(CodeOf(o.Outage), "what", what, "cause", cause)
	if o.Answers.IsZero() {
		f = finding.NewCritical(CodeOf(o.Outage), "what", what, "cause", cause)
	}
	return []*fealtyv1.Finding{f}
}

// CodeOf returns the code for an outage: [errcode.StoreUnreachable], or a case of it.
func CodeOf(o store.Outage) errcode.Code {
	switch o {
	case store.Locked:
		return errcode.StoreHeld
	case store.LoginRefused:
		return errcode.StoreLoginRefused
	case store.Overloaded:
		return errcode.StoreOverloaded
	case store.Standby, store.Unsuitable:
		return errcode.StoreUnsuitable
	}
	return errcode.StoreUnreachable
}

// OutageWord is what readiness and metrics call an outage.
func OutageWord(o store.Outage) string { return outageWords[o] }

var outageWords = map[store.Outage]string{
	store.Unreachable:  "unreachable",
	store.Locked:       "locked",
	store.LoginRefused: "login-refused",
	store.Overloaded:   "too-many-connections",
	store.Standby:      "standby",
	store.Unsuitable:   "unsuitable",
	store.Unreadable:   "unreadable",
}
