package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fealty-io/fealty/internal/store"
)

// RejectedError: the database rejected what was to be written, and nothing was. Another
// group may do better: the jobs of this one are tried one by one, and without pruning.
type RejectedError struct{ Err error }

func (e *RejectedError) Error() string { return e.Err.Error() }
func (e *RejectedError) Unwrap() error { return e.Err }

func rejected(err error) bool {
	_, ok := errors.AsType[*RejectedError](err)
	return ok
}

// Unknown returns the error of a Write that may have happened, or may be happening yet,
// because of err. It matches [store.ErrUnknownOutcome].
func Unknown(err error) error { return &unknownError{err} }

type unknownError struct{ err error }

func (e *unknownError) Error() string        { return store.ErrUnknownOutcome.Error() + ": " + e.err.Error() }
func (e *unknownError) Is(target error) bool { return target == store.ErrUnknownOutcome }
func (e *unknownError) Unwrap() error        { return e.err }

// reasonOf returns why an outcome is unknown, as an error that does not say so.
func reasonOf(err error) error {
	if u, ok := errors.AsType[*unknownError](err); ok {
		return u.err
	}
	return err
}

// writer is what the goroutine in run knows.
type writer struct {
	keep   RetentionWindow
	next   *job // taken from the queue, and too much for the group before
	untidy bool // the engine has something to do when nobody waits
	busy   int  // groups that were served

	// unsettled: the outcome of a Write is unknown, and no later one was confirmed.
	unsettled bool
}

// tidyEvery is after how many groups under load the engine does a step of what could wait.
const tidyEvery = 8

// run serves the queue until it is closed.
func (s *Store) run() {
	w := &s.w
	tick := time.NewTicker(w.keep.Interval())
	defer tick.Stop()
	ticked := func() {
		revision, logged := s.cfg.Hub.State()
		w.keep.Tick(time.Now(), revision, logged)
		s.upkeep(Ticked)
	}
	for open := true; open; {
		var j *job
		switch {
		case w.next != nil:
			// The queue may never be empty, and time must go on all the same.
			select {
			case <-tick.C:
				ticked()
			case <-s.cfg.Wake:
				s.upkeep(Ticked)
			default:
			}
			j, w.next = w.next, nil
		case w.keep.Due() || w.untidy:
			// Tidying happens when nobody waits; under load some old changes go along with
			// groups. Time must go on meanwhile.
			select {
			case <-tick.C:
				ticked()
			case <-s.cfg.Wake:
				s.upkeep(Ticked)
			default:
			}
			select {
			case j, open = <-s.queue:
			default:
				s.tidy()
			}
		default:
			select {
			case j, open = <-s.queue:
			case <-tick.C:
				ticked()
			case <-s.cfg.Wake:
				s.upkeep(Ticked)
			}
		}
		if group := s.collect(j); len(group) > 0 {
			s.serve(group)
			// A queue that is never empty must not keep what is old for ever.
			if w.busy++; w.untidy && w.busy%tidyEvery == 0 {
				w.untidy = s.cfg.Writer.Upkeep(Idle)
			}
		}
	}
}

func (s *Store) upkeep(when Occasion) {
	if s.cfg.Writer.Upkeep(when) {
		s.w.untidy = true
	}
}

// tidy does one step of what can wait.
func (s *Store) tidy() {
	w := &s.w
	if !w.keep.Due() {
		w.untidy = s.cfg.Writer.Upkeep(Idle)
		return
	}
	if _, _, err := s.turn(nil); err != nil {
		w.keep.Postpone() // until the next tick
		s.cfg.Log.Error("old changes could not be pruned, trying again later", "store", s.cfg.Name, "err", err)
	}
}

func (s *Store) cost(j *job) Cost {
	switch {
	case j.kind != commit:
		return s.cfg.Look
	case s.cfg.Cost == nil:
		return Cost{Bytes: j.tx.Size()}
	}
	return s.cfg.Cost(j.tx)
}

// collect takes j, unless it is nil, and whatever else is waiting and goes along with it.
func (s *Store) collect(j *job) []*job {
	var group []*job
	var sum Cost
	for j != nil {
		if j.state.Load() == waiting {
			with := sum.add(s.cost(j))
			if len(group) > 0 && !with.Within(s.cfg.Most) {
				s.w.next = j
				break
			}
			group, sum = append(group, j), with
			if len(group) == maxGroup {
				break
			}
		}
		select {
		case j = <-s.queue: // nil if it is closed
		default:
			j = nil
		}
	}
	return group
}

// serve commits group and answers. If the database rejects that, the jobs are tried one
// by one, so that one that it cannot store fails alone.
func (s *Store) serve(group []*job) {
	jobs, p, err := s.turn(group)
	if rejected(err) && s.w.keep.Due() {
		// Pruning is no reason for a commit to fail.
		s.w.keep.Postpone()
		jobs, p, err = s.turn(group)
	}
	switch {
	case err == nil:
		for i, j := range jobs {
			s.answer(j, p.results[i].revision, p.results[i].err)
		}
	case errors.Is(err, store.ErrUnknownOutcome):
		s.answerLost(jobs, p.results, err)
	case len(group) > 1 && rejected(err):
		for _, j := range group {
			if j.state.Load() == waiting {
				s.serve([]*job{j})
			}
		}
		return
	default:
		for _, j := range group {
			s.answer(j, 0, fmt.Errorf("store: commit to %s: %w", s.cfg.Name, err))
		}
	}
	s.upkeep(Answered)
}

func (s *Store) answer(j *job, revision store.Revision, err error) {
	if j.state.Load() == taken {
		s.taken.Add(-1)
	}
	j.revision, j.err = revision, err
	close(j.done)
}

// answerLost answers a group of which nobody knows whether it was committed. Jobs that
// have no part in what it writes get their answers all the same.
func (s *Store) answerLost(jobs []*job, results []result, err error) {
	for i, j := range jobs {
		r := results[i]
		switch {
		case r.certain:
		case j.kind == commit && r.err != nil:
			// It met something that may not be there; but neither is it.
			r.err = fmt.Errorf("store: commit to %s: nothing was written: %w", s.cfg.Name, reasonOf(err))
		case j.kind == outcome:
			r = result{err: fmt.Errorf("store: outcome of %q in %s: %w", j.id, s.cfg.Name, reasonOf(err))}
		default:
			r = result{err: fmt.Errorf("store: commit to %s: %w", s.cfg.Name, err)}
		}
		s.answer(j, r.revision, r.err)
	}
}

// turn makes attempts to decide and commit group until one succeeds or the engine gives
// up. It returns the jobs that were not given up before, to which the plan belongs. An
// error means that nothing was written, unless it matches store.ErrUnknownOutcome; then
// the plan says what was tried.
//
// It is not bound to any caller's context: one caller's leaving must not fail the others.
func (s *Store) turn(group []*job) ([]*job, *Plan, error) {
	ctx := context.Background()
	if s.cfg.Patience > 0 {
		within, cancel := context.WithTimeout(ctx, s.cfg.Patience)
		defer cancel()
		ctx = within
	}
	for tries := 1; ; tries++ {
		jobs, p, err := s.attempt(ctx, group)
		if err == nil || errors.Is(err, store.ErrUnknownOutcome) {
			return jobs, p, err
		}
		if err = s.cfg.Writer.Mend(ctx, err, tries); err != nil {
			return nil, nil, err
		}
	}
}

// attempt decides group and commits it, along with some pruning.
func (s *Store) attempt(ctx context.Context, group []*job) ([]*job, *Plan, error) {
	w := &s.w
	question := ask(group)
	question.Oldest = w.keep.Due()
	state, err := s.cfg.Writer.Read(ctx, question)
	if err != nil {
		return nil, nil, err
	}
	// From here on a caller cannot give up without doubt.
	jobs := s.take(group)
	p := decide(state, jobs, &s.cfg)
	w.keep.Found(time.Now(), state.Revision, state.Compacted, state.Logged)
	if p.Prune = w.keep.Next(state.Compacted, len(group)); p.Prune != state.Compacted {
		// Never beyond what was committed before: that would be the group's own changes.
		p.Prune = min(w.keep.Skip(p.Prune, state.Oldest), state.Revision)
	}
	if !p.Writes() && p.Prune == p.Compacted && !w.unsettled {
		s.cfg.Writer.Leave()
		w.keep.Committed(time.Now(), p.Revision, p.Compacted, p.Logged) // others may have written and pruned
		return jobs, p, nil                                             // what was read is durable
	}
	switch err := s.cfg.Writer.Write(ctx, p); {
	case errors.Is(err, store.ErrUnknownOutcome):
		if w.unsettled {
			// The state that it was decided on is not settled either.
			for i := range p.results {
				p.results[i].certain = false
			}
		}
		w.unsettled = !s.cfg.Settled
		// It may be there to be seen, and nobody may tell of it later: who waits looks.
		s.cfg.Hub.Committed(p.Revision, p.Revision, 0, p.Keys())
		return jobs, p, err
	case err != nil:
		for _, j := range jobs {
			j.state.Store(waiting)
		}
		s.taken.Add(-int32(len(jobs)))
		return nil, nil, err
	}
	w.unsettled = false
	w.keep.Committed(time.Now(), p.Revision, p.Prune, p.Logged)
	if p.Writes() {
		s.cfg.Hub.Committed(p.Before, p.Revision, p.Logged, p.Keys())
	}
	return jobs, p, nil
}

// take takes the jobs that were not given up.
func (s *Store) take(group []*job) []*job {
	jobs := make([]*job, 0, len(group))
	for _, j := range group {
		if j.state.CompareAndSwap(waiting, taken) {
			jobs = append(jobs, j)
		}
	}
	s.taken.Add(int32(len(jobs)))
	return jobs
}
