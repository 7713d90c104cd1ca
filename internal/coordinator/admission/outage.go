package admission

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/member"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/pki"
	"github.com/fealty-io/fealty/internal/platform/watch"
	"github.com/fealty-io/fealty/internal/store"
)

// The work of a coordinator while its store is out of reach.
//
// It goes on for MaxHeadAge after the store last showed the head of the history: it
// serves what it knows, and certifies the recorded key of a known member again. It
// admits nobody and changes nothing, because each of these is a transaction.
//
// A certificate that is signed then stands in no record. So it ends at most
// record.Stretch after what the record says, however often it is signed and by how
// many coordinators, and bans count that in: a key that is banned is listed until no
// certificate over it can be valid, those of an outage included.

// renewAlone certifies the recorded key of a known member again, without the store.
// cause is how the store failed.
func (a *Admission) renewAlone(ctx context.Context, peer identity.Peer, r renewRequest,
	turn func(identity.Kind, string) error, cause error) ([][]byte, error) {
	cause = a.cfg.Head.Degraded("the renewal", cause)
	s, err := a.cfg.Head.DegradedState("the renewal", cause)
	if err != nil {
		return nil, err
	}
	// Of a member that was removed there is no record, and the bundle bans its keys: that it
	// is no member is known, and trying again leads nowhere.
	if a.cfg.Bundle.Bans(peer.ID, r.key) || a.cfg.Bundle.Bans(peer.ID, peer.Key) {
		return nil, errcode.New(errcode.JoinBanned, "identity", peer.ID.String())
	}
	rec, ok := a.cfg.Membership.Roster().Find(string(peer.ID.Kind()) + "/" + peer.ID.Name())
	if !ok {
		return nil, cause // it may have joined since: only the store knows
	}
	return a.recertify(ctx, s, peer, r, rec, a.cfg.MaxHeadAge, turn, cause)
}

// recertify certifies the key that rec says again, and records nothing. cause is why
// nothing can be recorded. The certificate ends at most stretch after what rec says.
func (a *Admission) recertify(ctx context.Context, s *authority.State, peer identity.Peer, r renewRequest,
	rec record.Member,
	stretch time.Duration, turn func(identity.Kind, string) error, cause error) ([][]byte, error) {
	id := peer.ID
	if !a.cfg.Head.Acts(s) {
		return nil, errcode.Wrap(cause, errcode.HeadNotFollowed) // the newer manifest may not admit it
	}
	if a.cfg.Bundle.Withdrawn(rec.Path()) {
		return nil, cause // as far as is known it is banned, and the bundle does not say so yet
	}
	if a.cfg.Bundle.Bans(id, r.key) || a.cfg.Bundle.Bans(id, peer.Key) {
		return nil, errcode.New(errcode.JoinBanned, "identity", id.String())
	}
	now := a.cfg.Now()
	until, entry, err := recertified(s.Manifest, rec, id, peer.Key, r.key, now, stretch)
	switch {
	case errors.Is(err, errNotRecorded):
		return nil, cause
	case errors.Is(err, errcode.RenewOlderKey):
		a.cfg.Membership.OlderKey(ctx, id.Kind(), id.Name(), err.Error())
		return nil, err
	case err != nil:
		return nil, err
	}
	if err := turn(id.Kind(), id.Name()); err != nil {
		return nil, err
	}
	chain, err := s.Issue(r.publicKey, id, entry, until, now)
	if err != nil {
		return nil, fmt.Errorf("certify %s: %w", id, err)
	}
	a.cfg.Auditing.Add(record.AuditEntry{
		At: now.UTC(), Actor: id.String(), Action: "member.renew.outage", Target: rec.Path(),
		Fields: map[string]string{"key": r.key.String(), "not_after": until.UTC().Format(time.RFC3339),
			"entry": entry.Name, "cause": errcode.CodeOf(cause)},
	})
	a.cfg.Refusals.Log(ctx, a.cfg.Log, slog.LevelWarn, "nothing can be recorded, a recorded key is certified again",
		slog.String("member", id.String()), slog.Time("not_after", until), slog.String("code", errcode.CodeOf(cause)))
	return chain, nil
}

// errNotRecorded: the key is not the one that the member's record says, as far as
// this coordinator knows the record.
var errNotRecorded = errors.New("the key is not the last one that was recorded")

// recertified decides on a renewal by the record as it was last known. It returns
// until when the key may be certified again: as long as ever, but no longer than
// stretch after the record says.
func recertified(m *manifest.Manifest, rec record.Member, id identity.ID, presented, next identity.KeyID,
	now time.Time, stretch time.Duration) (time.Time, *manifest.Entry, error) {
	switch {
	case presented != rec.Key && rec.WasKey(presented) && next != rec.Key:
		// Known to be an older one, whatever was recorded since: see renewal.
	case next != rec.Key:
		return time.Time{}, nil, errNotRecorded
	case presented != rec.Key && !rec.WasKey(presented):
		return time.Time{}, nil, errNotRecorded // of a renewal that is not known here
	}
	_, entry, err := renewal(m, record.Versioned[record.Member]{Value: rec, Version: 1}, id, presented, next, nil, now)
	if err != nil {
		return time.Time{}, nil, err
	}
	if next != rec.Key {
		return time.Time{}, nil, errNotRecorded
	}
	until := now.Add(entry.SVIDTTL)
	if last := rec.NotAfter.Add(min(stretch, record.StretchOf(entry.SVIDTTL))); last.Before(until) {
		until = last
	}
	if until.Sub(now) < time.Second {
		return time.Time{}, nil, errNotRecorded
	}
	return until.Truncate(time.Second), entry, nil
}

// renewRequest is what a member asks to have certified.
type renewRequest struct {
	publicKey any
	key       identity.KeyID // of publicKey; zero if csr is set
	csr       error          // what is wrong with the request
	again     bool           // it asks for its recorded key, because the store was out of reach
}

func readRenewRequest(req *fealtyv1.RenewRequest) renewRequest {
	r := renewRequest{again: req.GetRecordedKey()}
	csr, err := pki.OpenCSR(req.GetCsr())
	if err == nil {
		r.publicKey, err = csr.Key()
	}
	if err != nil {
		r.csr = csrRejection(err)
		return r
	}
	r.key = identity.KeyID(sha256.Sum256(csr.SPKI())) // it is in its one encoding
	return r
}

// A store may answer and take no writes: a disk is full or fails, a quota is used up, the
// database was made read-only, or its file is gone.
//
// A coordinator is ready then: it serves what it reads, and it has the head of the history confirmed,
// so that there is no end to it as there is to an outage. It admits nobody and changes
// nothing, and nobody leads. It certifies the recorded key of a known member again, as
// in an outage and until the same moment after what the record says; but first it
// reads from the store what the refused transaction would have been conditional on:
// record, head and bans.

// renewFull certifies the recorded key of a member again whose renewal the store refused.
// rec is what the renewal was decided on, and cause how it was refused. A key of the gap
// of a restore is in no record that can be shown, so it is not certified.
func (a *Admission) renewFull(ctx context.Context, s *authority.State, peer identity.Peer, r renewRequest,
	rec record.Versioned[record.Member], turn func(identity.Kind, string) error, cause error) ([][]byte, error) {
	id := peer.ID
	head, err := s.Records.Store.Get(ctx, history.HeadKey)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return nil, a.cfg.Head.StoreError("read what the renewal depends on", err)
	}
	stored, err := record.Get[record.Member](ctx, s.Records, record.MemberKey(id.Kind(), id.Name()))
	if err != nil {
		return nil, a.cfg.Head.StoreError("read what the renewal depends on", err)
	}
	if head.Version != s.HeadVersion || stored.Version != rec.Version {
		a.cfg.Head.LookAgain()
		return nil, record.Busy("the renewal")
	}
	for _, key := range []identity.KeyID{r.key, peer.Key} {
		if err := a.bannedNow(ctx, s, id, key); err != nil {
			return nil, err
		}
	}
	return a.recertify(ctx, s, peer, r, stored.Value, record.Stretch, turn, cause)
}

// Once its store is whole again a coordinator asks those that were certified without it to
// renew, which puts their certificates on record and changes
// the keys that could not be changed. They would come by themselves, but not soon.

const (
	// recallsAtOnce are asked in one RecallPause. A renewal is a transaction, and several
	// coordinators ask at once: this is a small part of what a store bears, so that
	// renewals that are due find their place.
	recallsAtOnce = 50
	RecallPause   = time.Second
	// RecallAgain is how long nobody is asked again: a renewal may fail once more.
	RecallAgain = time.Minute
)

// BackReason is what the members are told.
const BackReason = "the store is back: the present certificate stands in no record"

// Unrecorded reports whether a member's certificate is one that an outage or a full store
// kept out of the records, as far as is known: over the key that its record says, and for
// longer.
func (a *Admission) Unrecorded(path string, leaf *x509.Certificate) bool {
	rec, ok := a.cfg.Membership.Roster().Find(path)
	return ok && leaf != nil && identity.KeyOf(leaf) == rec.Key && leaf.NotAfter.After(rec.NotAfter)
}

// Recall has a stream told when its member is to renew, whose certificate is unrecorded and
// valid until then. [Admission.Recalled] ends it.
func (a *Admission) Recall(until time.Time) *member.ReconnectWait { return a.recalls.Add(until) }

// Recalled ends what [Admission.Recall] began; nil is nothing.
func (a *Admission) Recalled(c *member.ReconnectWait) { a.recalls.Remove(c) }

// whole reports whether a renewal should succeed now.
func (a *Admission) whole() bool {
	_, err := a.cfg.Head.Ready()
	return err == nil && a.cfg.StoreGuard.Lost() == nil && a.cfg.Head.StoreAnswers() &&
		a.cfg.Head.ConfirmedAge(a.cfg.Now()) <= authority.DegradedAfter && !a.cfg.StoreGuard.Writes().Blocks()
}

// FollowRecalls asks members back until ctx ends.
func (a *Admission) FollowRecalls(ctx context.Context) error {
	for {
		if err := watch.Sleep(ctx, RecallPause); err != nil {
			return err
		}
		if a.recalls.Len() > 0 && a.whole() {
			a.recalls.Tell(a.cfg.Now(), recallsAtOnce, RecallAgain)
		}
	}
}

// Alive returns once nobody holds the lock of the rates of members: a watchdog sees that it is not
// held for good.
func (a *Admission) Alive() { a.cfg.PerMember.Alive() }
