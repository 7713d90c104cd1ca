package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/ca"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/lifetimes"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/manifest"
)

// What a coordinator does while its store is out of reach.
//
// It goes on for MaxHeadAge after the store last showed the head of the history: it
// serves what it knows, and certifies the recorded key of a known member again. It
// admits nobody and changes nothing, because each of these is a transaction.
//
// A certificate that is signed then stands in no record. So it ends at most
// lifetimes.Stretch after what the record says, however often it is signed and by how
// many coordinators, and bans count that in: a key that is banned is listed until no
// certificate over it can be valid, those of an outage included.

// renewAlone certifies the recorded key of a known member again, without the store.
// cause is how the store failed.
func (c *Admission) renewAlone(ctx context.Context, peer identity.Peer, r renewRequest,
	turn func(identity.Kind, string) error, cause error) ([][]byte, error) {
	cause = authority.InOutage("the renewal", cause)
	s, err := c.cfg.Head.Alone("the renewal", cause)
	if err != nil {
		return nil, err
	}
	// Of a member that was removed there is no record, and the bundle bans its keys: that it
	// is no member is known, and trying again leads nowhere.
	if c.cfg.Bundle.Bans(peer.ID, r.key) || c.cfg.Bundle.Bans(peer.ID, peer.Key) {
		return nil, explain.New(explain.JoinBanned, "identity", peer.ID.String())
	}
	rec, ok := c.cfg.Membership.Roster().Find(string(peer.ID.Kind()) + "/" + peer.ID.Name())
	if !ok {
		return nil, cause // it may have joined since: only the store knows
	}
	return c.recertify(ctx, s, peer, r, rec, c.cfg.MaxHeadAge, turn, cause)
}

// recertify certifies the key that rec says again, and records nothing. cause is why
// nothing can be recorded. The certificate ends at most stretch after what rec says.
func (c *Admission) recertify(ctx context.Context, s *authority.State, peer identity.Peer, r renewRequest,
	rec record.Member,
	stretch time.Duration, turn func(identity.Kind, string) error, cause error) ([][]byte, error) {
	id := peer.ID
	if !c.cfg.Head.Acts(s) {
		return nil, explain.Wrap(cause, explain.HeadNotFollowed) // the newer manifest may not admit it
	}
	if c.cfg.Bundle.Withdrawn(rec.Path()) {
		return nil, cause // as far as is known it is banned, and the bundle does not say so yet
	}
	if c.cfg.Bundle.Bans(id, r.key) || c.cfg.Bundle.Bans(id, peer.Key) {
		return nil, explain.New(explain.JoinBanned, "identity", id.String())
	}
	now := c.cfg.Now()
	until, entry, err := recertified(s.Manifest, rec, id, peer.Key, r.key, now, stretch)
	switch {
	case errors.Is(err, errNotRecorded):
		return nil, cause
	case errors.Is(err, explain.RenewOlderKey):
		c.cfg.Membership.olderKey(ctx, id.Kind(), id.Name(), err.Error())
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
	c.cfg.Auditing.Add(record.AuditEntry{
		At: now.UTC(), Actor: id.String(), Action: "member.renew.outage", Target: rec.Path(),
		Fields: map[string]string{"key": r.key.String(), "not_after": until.UTC().Format(time.RFC3339),
			"entry": entry.Name, "cause": explain.CodeOf(cause)},
	})
	c.cfg.Refusals.Log(ctx, c.cfg.Log, slog.LevelWarn, "nothing can be recorded, a recorded key is certified again",
		slog.String("member", id.String()), slog.Time("not_after", until), slog.String("code", explain.CodeOf(cause)))
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
	if last := rec.NotAfter.Add(min(stretch, lifetimes.StretchOf(entry.SVIDTTL))); last.Before(until) {
		until = last
	}
	if until.Sub(now) < time.Second {
		return time.Time{}, nil, errNotRecorded
	}
	return until.Truncate(time.Second), entry, nil
}

// knownMembers returns the members below prefix as they were last known.
func (c *Membership) knownMembers(s *authority.State, prefix string) []*fealtyv1.Member {
	var out []*fealtyv1.Member
	for _, r := range c.members.All() {
		if strings.HasPrefix(record.MemberPrefix+r.Path(), prefix) {
			out = append(out, c.memberMessage(s, r, c.knownBan(s, r)))
		}
	}
	return out
}

// knownBan returns whether the bundle in force bans the identity of r. Why and by
// whom only the store knows.
func (c *Membership) knownBan(s *authority.State, r record.Member) record.Versioned[record.Ban] {
	id, err := identity.New(s.Manifest.Cluster, r.Kind, r.Name)
	if err != nil || !c.cfg.Bundle.Bans(id, identity.KeyID{}) {
		return record.Versioned[record.Ban]{}
	}
	return record.Versioned[record.Ban]{Version: 1}
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
	var err error
	if r.publicKey, err = ca.ParseCSR(req.GetCsr()); err == nil {
		r.key, err = identity.KeyOfPublic(r.publicKey)
	}
	if err != nil {
		r.csr = csrRejection(err)
	}
	return r
}
