package dashboard

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/cli/client"
	"github.com/fealty-io/fealty/internal/errcode"
)

// Bounds of what is asked and kept.
const (
	membersFresh = 5 * time.Second // a list of all members, which is large, is shown that long
	mostMembers  = 100_000
	fresh        = time.Second     // an answer this old is shown without asking again
	patience     = 2 * time.Second // a page waits for an answer this long, and then shows what there is
	pollEvery    = 500 * time.Millisecond
	auditKept    = 500
	auditWindow  = 24 * time.Hour
	reconnect    = time.Second
)

// seen is what was answered last, and whether that is what there is.
type seen[T any] struct {
	value T
	at    time.Time // when value came; zero: never
	err   error     // of the last attempt; nil: value is of it
	tried time.Time // when the last attempt ended
	since time.Time // when the attempt that runs began; zero: none runs
}

// known reports whether there is a value, however old.
func (s seen[T]) known() bool { return !s.at.IsZero() }

// late reports whether the answer to what was asked is missing for longer than a page waits.
func (s seen[T]) late(now time.Time) bool { return !s.since.IsZero() && now.Sub(s.since) >= patience }

// kept keeps the last answer to one question. Of those who ask at once, one asks a coordinator, for all.
type kept[T any] struct {
	mu     sync.Mutex
	last   seen[T]       // guarded by mu
	flight chan struct{} // closed when the attempt that runs is over; nil: none runs; guarded by mu
}

// get returns the answer. It asks if the last one is older than fresh, and waits for at most patience. What it asked goes on
// then, and the next one who asks gets it.
func (k *kept[T]) get(ctx context.Context, s *source, fresh, patience time.Duration, ask func(context.Context) (T, error)) seen[T] {
	k.mu.Lock()
	now := s.now()
	if k.flight == nil && now.Sub(k.last.tried) >= fresh {
		over := make(chan struct{})
		k.flight, k.last.since = over, now
		s.asks.Go(func() {
			value, err := ask(s.life)
			k.mu.Lock()
			defer k.mu.Unlock()
			defer close(over)
			k.flight = nil
			k.last.err, k.last.tried, k.last.since = err, s.now(), time.Time{}
			if err == nil {
				k.last.value, k.last.at = value, k.last.tried
			}
		})
	}
	over := k.flight
	k.mu.Unlock()
	if over != nil {
		wait := time.NewTimer(patience)
		defer wait.Stop()
		select {
		case <-over:
		case <-ctx.Done():
		case <-wait.C:
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.last
}

// source asks the coordinators, as the operator, and keeps what they answered last. All questions are of calls that change
// nothing.
type source struct {
	services *client.Services
	now      func() time.Time
	life     context.Context // of [Serve]: what was asked goes on when the page that asked is gone
	asks     sync.WaitGroup

	status  kept[*fealtyv1.GetStatusResponse]
	members kept[allMembers]

	mu       sync.Mutex
	audit    []*fealtyv1.AuditEntry // the newest, oldest first; guarded by mu
	auditErr error                  // why nothing is heard of the audit log; guarded by mu
	reigns   []reign                // who was seen to lead, the newest last; guarded by mu
}

// allMembers are the members of a fleet.
type allMembers struct {
	list    []*fealtyv1.Member
	knownAt *timestamppb.Timestamp // set: the store is out of reach, and they are as they were then
	altered []string
	more    bool // there are more than are kept
}

func (s *source) getStatus(ctx context.Context, patience time.Duration) seen[*fealtyv1.GetStatusResponse] {
	return s.status.get(ctx, s, min(fresh, patience), patience, func(ctx context.Context) (*fealtyv1.GetStatusResponse, error) {
		st, err := client.NeedSomebody(ctx, s.services.Status)
		if err == nil {
			s.mu.Lock()
			s.reigns = note(s.reigns, st)
			s.mu.Unlock()
		}
		return st, err
	})
}

func (s *source) getMembers(ctx context.Context, patience time.Duration) seen[allMembers] {
	return s.members.get(ctx, s, membersFresh, patience, func(ctx context.Context) (all allMembers, err error) {
		for token := ""; ; {
			resp, err := s.services.Members.ListMembers(ctx, &fealtyv1.ListMembersRequest{PageSize: 1000, PageToken: token})
			if err != nil {
				return allMembers{}, err
			}
			all.list = append(all.list, resp.GetMembers()...)
			all.altered = append(all.altered, resp.GetAltered()...)
			all.knownAt = cmp.Or(all.knownAt, resp.GetKnownAt())
			if token = resp.GetNextPageToken(); token == "" || len(resp.GetMembers()) == 0 {
				return all, nil
			}
			if len(all.list) >= mostMembers {
				all.more = true
				return all, nil
			}
		}
	})
}

// lastAudit returns the newest entries, the newest first, and why there is nothing newer, if that is so.
func (s *source) lastAudit() ([]*fealtyv1.AuditEntry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := slices.Clone(s.audit)
	slices.SortStableFunc(out, func(a, b *fealtyv1.AuditEntry) int { return b.GetAt().AsTime().Compare(a.GetAt().AsTime()) })
	return out, s.auditErr
}

// followAudit hears of each entry of the audit log as it is written, until ctx ends. Changed is told of each.
func (s *source) followAudit(ctx context.Context, changed func()) {
	for ctx.Err() == nil {
		err := s.hearAudit(ctx, changed)
		s.mu.Lock()
		s.auditErr = err
		s.mu.Unlock()
		changed()
		select {
		case <-ctx.Done():
		case <-time.After(reconnect):
		}
	}
}

func (s *source) hearAudit(ctx context.Context, changed func()) error {
	req := &fealtyv1.GetAuditRequest{Since: timestamppb.New(s.now().Add(-auditWindow)), Follow: true}
	stream, _, end, err := client.FirstOf(ctx, s.services.Line, "GetAudit",
		func(ctx context.Context) (grpc.ServerStreamingClient[fealtyv1.GetAuditResponse], error) {
			return s.services.Audit.GetAudit(ctx, req)
		})
	if err != nil {
		return err
	}
	defer end()
	var entries []*fealtyv1.AuditEntry
	whole := false // all that was there has come: what came before is dropped only then
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return errcode.New(errcode.Unreachable, "endpoint", "the coordinator", "problem", "it ended the stream of the audit log")
		}
		if err != nil {
			return s.services.Line.OfStream(ctx, err, "GetAudit")
		}
		if e := part.GetEntry(); e != nil {
			if entries = append(entries, e); len(entries) >= 2*auditKept {
				entries = slices.Clone(entries[len(entries)-auditKept:])
			}
		}
		if whole = whole || part.GetFollowing() != nil; whole {
			s.mu.Lock()
			s.audit, s.auditErr = entries[max(0, len(entries)-auditKept):len(entries):len(entries)], nil
			s.mu.Unlock()
			changed()
		}
	}
}

// version names what is shown: pages that were made of another one are old. What only grows older is not in it, nor is what
// one page alone asks for: pages load themselves again every few seconds too.
func (s *source) version(ctx context.Context) string {
	st := s.getStatus(ctx, pollEvery)
	h := sha256.New()
	if st.known() {
		shown := proto.CloneOf(st.value)
		shown.Now, shown.StoreLatency, shown.HeadConfirmedAt = nil, nil, nil
		for _, r := range shown.GetReplicas() {
			r.HeardAt, r.UnheardFor = nil, nil
		}
		if l := shown.GetLeader(); l != nil {
			l.NobodyFor = nil
		}
		if v := shown.GetVerdict(); v != nil {
			v.SettlesIn = nil
		}
		// What does not encode cannot have come by the wire.
		raw, _ := proto.MarshalOptions{Deterministic: true}.Marshal(shown)
		h.Write(raw)
	}
	write := func(text string) { _, _ = io.WriteString(h, text+"\x00") }
	if st.err != nil {
		write(errcode.CodeOf(st.err))
	}
	if st.late(s.now()) {
		write("late")
	}
	entries, err := s.lastAudit()
	if len(entries) > 0 {
		e := entries[0]
		write(e.GetChain() + e.GetAt().AsTime().String() + e.GetAction() + e.GetTarget())
	}
	if err != nil {
		write(errcode.CodeOf(err))
	}
	return hexOf(h.Sum(nil)[:8])
}
