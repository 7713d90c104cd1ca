package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/writable"
)

// What a coordinator does while its store answers and takes no writes: a disk is full or
// fails, a quota is used up, the database was made read-only, or its file is gone.
//
// It is ready: it serves what it reads, and it has the head of the history confirmed,
// so that there is no end to it as there is to an outage. It admits nobody and changes
// nothing, and nobody leads. It certifies the recorded key of a known member again, as
// in an outage and until the same moment after what the record says; but first it
// reads from the store what the refused transaction would have been conditional on:
// record, head and bans.

func (c *StoreGuard) noteWrite(err error) {
	switch now := c.now(); c.writes.Note(err, now) {
	case writable.Refuses:
		c.log.LogAttrs(context.Background(), slog.LevelError, "the store takes no writes: known members are certified again, nobody is admitted and nothing is changed until it does",
			slog.String("reason", store.ReasonOf(err).String()), slog.Any("err", err))
	case writable.Again:
		c.log.LogAttrs(context.Background(), slog.LevelInfo, "the store takes writes again")
	}
}

// renewFull certifies the recorded key of a member again whose renewal the store refused.
// rec is what the store shows of the member, and cause how it refused. A key of the gap
// of a restore is in no record that can be shown, so it is not certified.
func (c *Admission) renewFull(ctx context.Context, s *authority.State, peer identity.Peer, r renewRequest,
	rec record.Versioned[record.Member], turn func(identity.Kind, string) error, cause error) ([][]byte, error) {
	id := peer.ID
	for _, want := range []store.Condition{{Key: history.HeadKey, Version: s.HeadVersion},
		{Key: record.MemberKey(id.Kind(), id.Name()), Version: rec.Version}} {
		e, err := s.Records.Store.Get(ctx, want.Key)
		switch {
		case err != nil && !errors.Is(err, store.ErrNotFound):
			return nil, c.authority.storeError("read what the renewal depends on", err)
		case e.Version != want.Version:
			c.authority.headDue.Notify()
			return nil, record.Busy("the renewal")
		}
	}
	for _, key := range []identity.KeyID{r.key, peer.Key} {
		if err := c.bannedNow(ctx, s, id, key); err != nil {
			return nil, err
		}
	}
	return c.recertify(ctx, s, peer, r, rec.Value, outageStretch, turn, cause)
}

// refusedWrite words that the store refused to do what, if that is known to be why err
// came; nil if not.
func refusedWrite(what string, err error) error {
	switch reason := store.ReasonOf(err); reason {
	case 0:
		return nil
	case store.NoSpace:
		return explain.New(explain.StoreFull, "what", what)
	default:
		return explain.New(explain.StoreRefuses, "what", what, "reason", reason.String(), "do", writableAgain[reason])
	}
}

// writableAgain is what makes a store take writes again.
var writableAgain = map[store.Reason]string{
	store.ReadOnly:   "if its disk is full make space; otherwise find out who made it read-only and why, or name the server that takes writes",
	store.Forbidden:  "give the user of the store back what it may write: the coordinator's log says what was refused",
	store.FileGone:   "put the file back under its name, with its -wal file; or stop the coordinator, and start it with the file that is to count",
	store.DiskFailed: "look at the disk and the system's log; move the file to a good disk while the coordinator is stopped",
}

// storeFindings says why the store takes no writes, if it does not.
func (c *Coordinator) storeFindings() []*fealtyv1.Finding {
	now := c.now()
	s := c.storeguard.writes.State(now)
	if s.Reason == 0 {
		return nil
	}
	what := "every change since " + s.Since.UTC().Format(time.RFC3339)
	if !s.Takes.IsZero() {
		what = fmt.Sprintf("some changes from %s until %s", s.Since.UTC().Format(time.RFC3339), s.Last.UTC().Format(time.RFC3339))
	}
	e := explain.Of(refusedWrite(what, &store.RefusedError{Reason: s.Reason}))
	f := &fealtyv1.Finding{Code: string(e.Code), Severity: "warning", Summary: e.What + ": " + e.Why, Remedy: e.Do}
	if !s.Takes.IsZero() {
		f.Summary += "; since " + s.Takes.UTC().Format(time.RFC3339) + " it takes some"
	}
	return []*fealtyv1.Finding{f}
}

// storeWord is what readiness calls a store that takes no writes.
var storeWord = map[store.Reason]string{
	store.NoSpace: "full", store.ReadOnly: "read-only", store.Forbidden: "forbidden", store.FileGone: "file-gone", store.DiskFailed: "disk-failed",
}

// refusing says in a word and in a sentence that the store takes no writes; both are
// empty if it does.
func (c *Coordinator) refusing() (word, reason string) {
	now := c.now()
	s := c.storeguard.writes.State(now)
	switch {
	case s.Reason == 0:
		return "", ""
	case !s.Takes.IsZero():
		return storeWord[s.Reason], s.Text(now)
	}
	return storeWord[s.Reason], s.Text(now) + ": known members are certified again, and nothing else is changed"
}
