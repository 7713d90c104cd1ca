package node

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/snapshot"
)

// Content is what is in use of a scope. The agent verified it, it is not expired, and what was
// revoked since it was signed is not in it.
type Content struct {
	Scope                         snapshot.Scope
	AuthorityEpoch, ConfigVersion uint64
	JSON                          []byte          // canonical, of the scope's type in package snapshot
	Hash                          snapshot.Digest // SHA-256 of what was signed
	Freshness                     snapshot.Freshness
	Expires                       time.Time
	OnTrial                       bool // it is new, and a verdict on it counts: see [Node.ReportVerdict]
}

// Decode reads the content into a value of its scope's type, such as a [snapshot.NodeRuntime] of
// [snapshot.ScopeNodeRuntime]: see [snapshot.Decode]. Texts in the value share no memory with JSON.
func (c Content) Decode(into snapshot.Content) error {
	if err := snapshot.Decode(c.Scope, c.JSON, into); err != nil {
		return fmt.Errorf("node: %w", err)
	}
	return nil
}

// RefusedError says that the agent refuses, and why.
type RefusedError struct {
	Code   string // such as FE-N108, of docs/reference/errors.md; empty of a scope that is over in Watch
	Reason string // what was refused and why, in one line
	Remedy string // what to do, in one line; may be empty
}

func (e *RefusedError) Error() string {
	text := "node: "
	if e.Code != "" {
		text += e.Code + ": "
	}
	if text += e.Reason; e.Remedy != "" {
		text += ": " + e.Remedy
	}
	return text
}

// Snapshot returns what is in use of a scope now. The agent has to run: it alone knows how long
// the node has been without news. A refusal is a [*RefusedError]: the node does not have the
// scope, or nothing of it may be used.
func (n *Node) Snapshot(ctx context.Context, scope snapshot.Scope) (Content, error) {
	got, err := n.local().GetScope(ctx, &fealtyv1.GetScopeRequest{Scope: string(scope)})
	if err != nil {
		return Content{}, n.failed(err)
	}
	return contentOf(got.GetContent()), nil
}

// again is how long a watch waits before it asks an agent again that went away.
const again = time.Second

// Watch yields what is in use of a scope, at once and each time when it changes; a reader that is
// slower than the changes gets the newest alone. When nothing of the scope may be used any more
// it yields a [*RefusedError], and when the agent goes away an error of another kind, once; it
// goes on with what comes after. It ends with ctx, when the reader stops, and with [ErrClosed]
// after [Node.Close].
func (n *Node) Watch(ctx context.Context, scope snapshot.Scope) iter.Seq2[Content, error] {
	return func(yield func(Content, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		w := &watching{newest: make(chan told, 1)}
		go n.follow(ctx, scope, w)
		for {
			select {
			case <-ctx.Done():
				return
			case <-n.ctx.Done():
				yield(Content{}, ErrClosed)
				return
			case t := <-w.newest:
				if !yield(t.content, t.err) {
					return
				}
			}
		}
	}
}

// watching is what a watch was told, and what its reader has yet to take.
type watching struct {
	newest chan told // has room for one, and one sender
	last   told      // owned by follow
}

type told struct {
	content Content
	err     error
	away    bool // err is of the agent's absence
}

// tell puts t in the place of what the reader has not taken, unless it is no news.
func (w *watching) tell(t told) {
	same := t.err == nil && w.last.err == nil && w.last.content.JSON != nil &&
		t.content.ConfigVersion == w.last.content.ConfigVersion &&
		t.content.AuthorityEpoch == w.last.content.AuthorityEpoch && t.content.OnTrial == w.last.content.OnTrial &&
		t.content.Freshness == w.last.content.Freshness && bytes.Equal(t.content.JSON, w.last.content.JSON)
	if same || t.away && w.last.away {
		return
	}
	w.last = t
	select {
	case <-w.newest:
	default:
	}
	w.newest <- t
}

// follow keeps a stream to the agent, until ctx ends or the node is closed.
func (n *Node) follow(ctx context.Context, scope snapshot.Scope, w *watching) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(n.ctx, cancel)()
	for {
		err := n.stream(ctx, scope, w)
		if ctx.Err() != nil {
			return
		}
		w.tell(told{err: n.failed(err), away: true})
		pause := time.NewTimer(again)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
		}
	}
}

// stream follows one stream to its end.
func (n *Node) stream(ctx context.Context, scope snapshot.Scope, w *watching) error {
	stream, err := n.local().WatchScope(ctx, &fealtyv1.WatchScopeRequest{Scope: string(scope)})
	for err == nil {
		var next *fealtyv1.WatchScopeResponse
		if next, err = stream.Recv(); err != nil {
			break
		}
		if o := next.GetOver(); o != nil {
			refused := &RefusedError{Reason: fmt.Sprintf("nothing of scope %s may be used: %s", scope, o.GetReason())}
			if o.GetBound() != "" {
				refused.Reason += " (" + o.GetBound() + ")"
			}
			w.tell(told{err: refused})
			continue
		}
		w.tell(told{content: contentOf(next.GetContent())})
	}
	return err
}

// Permit asks the agent whether an action may be begun now. Nil: it may. A refusal is a [*RefusedError], and so is
// that of an action that does not exist, in contact too: its Code is FE-N113. Any other error says that nobody
// permitted it.
func (n *Node) Permit(ctx context.Context, action Action) error {
	if !slices.Contains(actions, action) {
		// Also by an agent of an earlier release, which permits what it does not know while it is in contact.
		return refused(errcode.New(errcode.ActionUnknown, "action", string(action)))
	}
	if _, err := n.local().PermitAction(ctx, &fealtyv1.PermitActionRequest{Action: string(action)}); err != nil {
		return n.failed(err)
	}
	return nil
}

// ReportVerdict tells the agent whether content that is on trial works. If it does not, the
// content before it comes back into use, where that still may be used. The reason is one line of at most
// 512 bytes. A version that is not on trial any more is a [*RefusedError].
func (n *Node) ReportVerdict(ctx context.Context, c Content, works bool, reason string) error {
	_, err := n.local().ReportVerdict(ctx, &fealtyv1.ReportVerdictRequest{Scope: string(c.Scope),
		ConfigVersion: c.ConfigVersion, Works: works, Reason: reason})
	if err != nil {
		return n.failed(err)
	}
	return nil
}

func (n *Node) local() fealtyv1.LocalConfigServiceClient {
	return fealtyv1.NewLocalConfigServiceClient(n.config)
}

// failed says why the agent did not do what it was asked.
func (n *Node) failed(err error) error {
	if n.ctx.Err() != nil {
		return ErrClosed
	}
	if e, ok := errcode.FromStatus(err); ok {
		return refused(e)
	}
	switch status.Code(err) {
	case codes.Unavailable:
		return fmt.Errorf("node: the agent of %s does not answer at %s: start it, or say where it serves: %w", n.dir,
			n.socket, err)
	case codes.Canceled:
		return fmt.Errorf("node: %w: %w", context.Canceled, err)
	case codes.DeadlineExceeded:
		return fmt.Errorf("node: %w: %w", context.DeadlineExceeded, err)
	}
	return fmt.Errorf("node: ask the agent of %s: %w", n.dir, err)
}

func refused(e *errcode.Error) error {
	return &RefusedError{Code: string(e.Code), Reason: e.What + ": " + e.Why, Remedy: advice(e)}
}

func contentOf(c *fealtyv1.ScopeContent) Content {
	out := Content{Scope: snapshot.Scope(c.GetScope()), AuthorityEpoch: c.GetAuthorityEpoch(),
		ConfigVersion: c.GetConfigVersion(), JSON: c.GetContent(), Freshness: snapshot.Freshness(c.GetFreshness()),
		Expires: c.GetExpiresAt().AsTime(), OnTrial: c.GetOnTrial()}
	copy(out.Hash[:], c.GetContentHash())
	return out
}
