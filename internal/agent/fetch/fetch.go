package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/node/accept"
	"github.com/fealty-io/fealty/internal/node/state"
	pausepkg "github.com/fealty-io/fealty/internal/platform/clock"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

// Limits on what is fetched. The exact size of a content is known before any of it
// is: it is signed.
const (
	// CycleTime and maxCycleBytes bound one round of asking sources, whatever they
	// have; maxNotices what one of them says in it.
	CycleTime     = 10 * time.Minute
	maxCycleBytes = 4 * internalsnapshot.MaxContent
	maxNotices    = 64
)

// Notice is an envelope as a source gave it: with its content, without, or with a
// patch.
type Notice struct {
	Scope string // what the source calls it: a hint
	Raw   []byte // the encoding of a snapshot.Signed
}

// Source is somebody who may have what is signed for the node. Nothing that it gives
// is trusted, and an error of it is no news from it: others are asked. One that is an
// io.Closer is closed after the round for which it was made.
type Source interface {
	// Name says where it is, such as "coordinator c1.example:7443". It tells no secret.
	Name() string

	// From says what it is.
	From() state.Origin

	// News returns what is newer than what the node holds, as far as the source can
	// tell, or all that it has for the node. In which order does not matter. It ends
	// with ctx.
	News(ctx context.Context, have []*fealtyv1.HeldSnapshot) ([]Notice, error)

	// Content opens the content of scope with this hash, which has size bytes. The
	// caller reads no more than one byte above that. Opening and reading end with ctx.
	Content(ctx context.Context, scope snapshot.Scope, hash snapshot.Digest, size int) (io.ReadCloser, error)
}

// closeAll ends the connections of sources that are done with.
func closeAll(sources []Source) {
	for _, s := range sources {
		if c, ok := s.(io.Closer); ok {
			_ = c.Close() // it was only read from
		}
	}
}

// FetchReason says what was wrong with a content that a source gave, in one word: a
// metric label beside the reasons of package snapshot.
type FetchReason string

const (
	FetchTruncated   FetchReason = "truncated"   // it ended before its size
	FetchOversized   FetchReason = "oversized"   // it went on after its size
	FetchSlow        FetchReason = "slow"        // see package ratelimit
	FetchAltered     FetchReason = "altered"     // it is not of the hash
	FetchUnavailable FetchReason = "unavailable" // nobody had it
)

// FetchError says why a source did not give a content.
type FetchError struct {
	Source string
	Reason FetchReason
	Err    error
}

func (e *FetchError) Error() string { return e.Source + ": " + e.Err.Error() }

// Unwrap returns the failure.
func (e *FetchError) Unwrap() error { return e.Err }

// Fetch gets one content from s, exactly: another size, another hash and a transfer
// that crawls are errors, all of them a [*fetchError].
func Fetch(ctx context.Context, s Source, scope snapshot.Scope, hash snapshot.Digest, size int) ([]byte, error) {
	fail := func(reason FetchReason, err error) ([]byte, error) { return nil, &FetchError{s.Name(), reason, err} }
	caller := ctx
	ctx, transfer := ratelimit.BeginTransfer(ctx, int64(size))
	defer transfer.End()
	r, err := s.Content(ctx, scope, hash, size)
	if err != nil {
		if caller.Err() == nil && transfer.Slow() {
			return fail(FetchSlow, ratelimit.ErrSlowTransfer)
		}
		return fail(FetchUnavailable, err)
	}
	defer r.Close()
	// One byte more than there are tells who has more from who has enough. The
	// bytes kept grow with those that come.
	content, err := io.ReadAll(io.LimitReader(transfer.Reader(r), int64(size)+1))
	switch {
	case caller.Err() != nil:
		return fail(FetchUnavailable, caller.Err())
	case transfer.Slow():
		return fail(FetchSlow, fmt.Errorf("%w: %d bytes of %d came", ratelimit.ErrSlowTransfer, len(content), size))
	case len(content) > size:
		return fail(FetchOversized, fmt.Errorf("more than the %d bytes that are signed", size))
	case err != nil && len(content) == 0:
		return fail(FetchUnavailable, err)
	case err != nil:
		return fail(FetchTruncated, fmt.Errorf("it broke off after %d of %d bytes: %w", len(content), size, err))
	case len(content) < size:
		return fail(FetchTruncated, fmt.Errorf("it ended after %d of %d bytes", len(content), size))
	case snapshot.DigestOf(content) != hash:
		return fail(FetchAltered, errors.New("it is not the content that is signed"))
	}
	return content, nil
}

// Form says how the node came to a content. It is a metric label.
type Form string

const (
	FormWhole  Form = "whole"  // it came with its header
	FormHeld   Form = "held"   // the node had it already
	FormPatch  Form = "patch"  // it was made of what is active
	FormPulled Form = "pulled" // it was pulled by its hash
)

// SourceFetcher takes in what one source says. It belongs to one goroutine.
type SourceFetcher struct {
	F    *Fetcher
	From state.Origin
	// Giver names the source, for people.
	Giver string
	// Sources are asked for contents, in their order.
	Sources func() []Source
	// pull gets the content that is lacking, later. Nil: it is got at once.
	pull func(lacking)
	// left is how many bytes may still be pulled; nil: there is no bound but that of
	// each of them.
	left *int
	// waiting are notices without their content that were refused for want of what may
	// follow, by scope.
	waiting map[string]Notice
	// missed is set if a content was not got.
	missed bool
}

// offer is what the source gave, for the node to judge.
func (in *SourceFetcher) offer(scope string, raw []byte) state.Offer {
	return state.Offer{Scope: scope, Raw: raw, Giver: in.Giver}
}

// lacking is a notice whose header was verified and whose content is not here.
type lacking struct {
	Notice
	signed *snapshot.Signed
	header snapshot.Header
}

// Take verifies a notice, gets the content that it lacks, and activates it. Refusals
// are recorded and are no error; the error is one of the disk, or ctx's.
func (in *SourceFetcher) Take(ctx context.Context, n Notice) error {
	before := in.F.Node.TrustState()
	if err := in.takeOne(ctx, n, false); err != nil {
		return err
	}
	after := in.F.Node.TrustState()
	if !slices.ContainsFunc(state.Foundations,
		func(s snapshot.Scope) bool { return before.Active[s] != after.Active[s] }) {
		return nil
	}
	// A content that came before one that it needs gets a second look.
	waiting := in.waiting
	in.waiting = nil
	for _, scope := range state.Scopes {
		if n, ok := waiting[string(scope)]; ok {
			if err := in.takeOne(ctx, n, true); err != nil {
				return err
			}
		}
	}
	return nil
}

// takeOne takes a notice, for the first time or again.
func (in *SourceFetcher) takeOne(ctx context.Context, n Notice, again bool) error {
	f := in.F
	signed, err := snapshot.Unmarshal(n.Raw)
	if err != nil || len(signed.Content) > 0 {
		return in.finish(ctx, n.Scope, n.Raw, FormWhole) // bad bytes are refused there, too
	}
	b := f.Node.TrustState()
	checked, err := accept.CheckHeader(f.Node.Self(), b, signed, f.Node.Now())
	if err != nil {
		r := state.RefusalOf(n.Scope, err, f.Node.Now())
		if state.Waits(snapshot.Scope(r.Scope), snapshot.Reason(r.Reason)) {
			if again && b.Overtook(snapshot.Scope(r.Scope), signed) {
				return nil
			}
			if in.waiting == nil {
				in.waiting = make(map[string]Notice)
			}
			in.waiting[r.Scope] = n
		}
		return f.Node.Decline(ctx, r, err, in.offer(n.Scope, n.Raw))
	}
	if checked == nil {
		return nil // in use already
	}
	l := lacking{n, signed, checked.Header()}
	scope := l.header.ScopeType
	if len(signed.Patch) > 0 {
		var active *snapshot.Verified
		if h := b.Active[scope]; h != nil {
			active = h.Verified
		}
		_, content, err := checked.CompletePatch(active, signed.Patch)
		if err != nil {
			f.Resyncs.Want(scope)
			return f.Node.Decline(ctx, state.RefusalOf(n.Scope, err, f.Node.Now()), err, in.offer(n.Scope, n.Raw))
		}
		return in.complete(ctx, l, content, FormPatch)
	}
	if content := accept.ContentAtHand(f.Node.Store(), b, scope, l.header.ContentHash); content != nil {
		return in.complete(ctx, l, content, FormHeld)
	}
	if in.pull != nil {
		in.pull(l)
		return nil
	}
	return in.pullNow(ctx, l)
}

// pullNow gets what l lacks from the first source that has it, and activates it.
func (in *SourceFetcher) pullNow(ctx context.Context, l lacking) error {
	f, h := in.F, &l.header
	refused := func(reason FetchReason, err error) error {
		scope := string(h.ScopeType)
		return f.Node.Decline(ctx, state.Refusal{Scope: scope, Reason: string(reason),
			Detail: state.Clip(err.Error(), state.MaxDetailBytes), At: f.Node.Now().UTC()}, err, in.offer(scope, l.Raw))
	}
	last := errors.New("there is no source to ask")
	for _, s := range in.Sources() {
		if in.left != nil {
			if *in.left < h.ContentSize {
				last = fmt.Errorf("a round pulls no more than %d bytes", maxCycleBytes)
				break
			}
			*in.left -= h.ContentSize
		}
		content, err := Fetch(ctx, s, h.ScopeType, h.ContentHash, h.ContentSize)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil {
			return in.complete(ctx, l, content, FormPulled)
		}
		f.Log.LogAttrs(ctx, slog.LevelInfo, "a content was not got", slog.String("scope", string(h.ScopeType)),
			slog.String("reason", state.OneLine(err)))
		last = err
		if e, ok := errors.AsType[*FetchError](err); ok && e.Reason != FetchUnavailable {
			if err := refused(e.Reason, err); err != nil {
				return err
			}
		}
	}
	in.missed = true
	return refused(FetchUnavailable, last)
}

// complete activates a snapshot with the content that it came without. All of it is
// verified again: time passed.
func (in *SourceFetcher) complete(ctx context.Context, l lacking, content []byte, how Form) error {
	raw, err := l.signed.With(content).Marshal()
	if err != nil {
		return in.F.Node.Decline(ctx, state.RefusalOf(l.Scope, err, in.F.Node.Now()), err, in.offer(l.Scope, l.Raw))
	}
	return in.finish(ctx, string(l.header.ScopeType), raw, how)
}

// finish verifies and activates what is whole.
func (in *SourceFetcher) finish(ctx context.Context, hint string, raw []byte, how Form) error {
	f, scope, label := in.F, snapshot.Scope(hint), hint
	if !state.Known(scope) {
		label = "other" // what a sender makes up must not become a label
	}
	f.Count.Received(label, string(how))
	before := f.Node.TrustState().Active[scope]
	if err := f.Contact.Take(ctx, in.From, in.offer(hint, raw)); err != nil {
		return err
	}
	if f.Node.TrustState().Active[scope] != before {
		f.Resyncs.Done(scope)
	}
	return nil
}

// streamFetcher fetches the contents that a stream announces, beside it: what is large or slow
// holds up no other news. Of each scope it gets the newest alone, and what it did not
// get it tries again.
type streamFetcher struct {
	f       *Fetcher
	of      Source // that announces them
	sources func() []Source

	mu     sync.Mutex
	want   map[snapshot.Scope]lacking // guarded by mu
	notify chan struct{}              // capacity 1
}

// NewStreamFetcher returns one of what a source announces to f. It fetches when it is run.
func NewStreamFetcher(f *Fetcher, of Source, sources func() []Source) *streamFetcher {
	return &streamFetcher{f: f, of: of, sources: sources, want: make(map[snapshot.Scope]lacking),
		notify: make(chan struct{}, 1)}
}

func (p *streamFetcher) Add(l lacking) {
	p.mu.Lock()
	p.want[l.header.ScopeType] = l
	p.mu.Unlock()
	state.Notify(p.notify)
}

// again adds what was not got, unless something newer is wanted.
func (p *streamFetcher) again(missed []lacking) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range missed {
		if _, ok := p.want[l.header.ScopeType]; !ok {
			p.want[l.header.ScopeType] = l
		}
	}
}

// next takes what is wanted of the first scope.
func (p *streamFetcher) next() (lacking, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, scope := range state.Scopes {
		if l, ok := p.want[scope]; ok {
			delete(p.want, scope)
			return l, true
		}
	}
	return lacking{}, false
}

// Run fetches until ctx ends. The error is one of the disk, or ctx's.
func (p *streamFetcher) Run(ctx context.Context) error {
	var pause pausepkg.Backoff
	for {
		var missed []lacking
		for l, ok := p.next(); ok; l, ok = p.next() {
			// It is judged anew: it waited, and may be overtaken or here by now.
			sources := p.sources()
			in := &SourceFetcher{F: p.f, From: p.of.From(), Giver: p.of.Name(),
				Sources: func() []Source { return sources }}
			err := in.Take(ctx, l.Notice)
			closeAll(sources)
			if err != nil {
				return err
			}
			if in.missed {
				missed = append(missed, l)
			} else {
				pause.Reset()
			}
		}
		if len(missed) > 0 {
			if err := pausepkg.Sleep(ctx, pullRetry+pause.Next(), nil); err != nil {
				return err
			}
			p.again(missed)
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.notify:
		}
	}
}

// pullRetry is the least pause after a content that nobody gave.
const pullRetry = 5 * time.Second

// Resyncs are the scopes of which the whole content is to be asked for, because a
// patch did not fit. It is asked for at once and then ever more rarely: who sends
// such patches again and again is not to be kept busy by it.
type Resyncs struct {
	Now func() time.Time

	mu     sync.Mutex
	scopes map[snapshot.Scope]*resync // guarded by mu
}

type resync struct {
	pause time.Duration // after the next time; 0: it was never asked for
	next  time.Time
}

// Pauses between asking for the whole of a scope.
const (
	resyncPause    = time.Minute
	maxResyncPause = time.Hour
)

// Want notes that the whole of a scope is to be asked for.
func (r *Resyncs) Want(scope snapshot.Scope) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.scopes == nil {
		r.scopes = make(map[snapshot.Scope]*resync)
	}
	if r.scopes[scope] == nil {
		r.scopes[scope] = &resync{pause: resyncPause, next: r.Now()}
	}
}

// Done ends the wish for a scope, of which something newer is in use.
func (r *Resyncs) Done(scope snapshot.Scope) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.scopes, scope)
}

// Due returns the scopes to ask for now, and counts that as asking.
func (r *Resyncs) Due() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.Now()
	var out []string
	for _, scope := range state.Scopes {
		// A clock that was set back must not keep it from asking.
		if s := r.scopes[scope]; s != nil && (!now.Before(s.next) || s.next.Sub(now) > s.pause) {
			out = append(out, string(scope))
			s.next, s.pause = now.Add(s.pause), min(2*s.pause, maxResyncPause)
		}
	}
	return out
}
