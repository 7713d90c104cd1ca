package admission

import (
	"context"
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
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/platform/humanize"
	"github.com/fealty-io/fealty/internal/store"
)

// Renew certifies a new key of a member that holds a valid SVID. The manifest in
// force decides again, whatever was true when the member joined.
func (a admissionServer) Renew(ctx context.Context, req *fealtyv1.RenewRequest) (*fealtyv1.RenewResponse, error) {
	c := a.c
	peer := identity.FromContext(ctx)
	started := time.Now()
	chain, degraded, err := c.renew(ctx, peer, readRenewRequest(req))
	label := "renewed"
	if degraded {
		label = "recertified"
	}
	if err != nil {
		label = "error"
		if code := errcode.CodeOf(err); code != "" {
			label = code
		}
		c.cfg.Refusals.Log(ctx, c.cfg.Log, slog.LevelWarn, "renewal refused", slog.String("member", peer.ID.String()),
			slog.String("code", errcode.CodeOf(err)), slog.String("reason", err.Error()))
	}
	c.metrics.renewals.WithLabelValues(label).Inc()
	c.metrics.renewSeconds.Observe(time.Since(started).Seconds())
	if err != nil {
		return nil, err
	}
	return &fealtyv1.RenewResponse{Chain: chain}, nil
}

// renew certifies what r asks for. It reports whether that was done without a record,
// which certifies again what is recorded, and nothing else.
func (a *Admission) renew(ctx context.Context, peer identity.Peer, r renewRequest) (chain [][]byte, degraded bool,
	err error) {
	turn := a.oneTurn()
	if lost := a.cfg.StoreGuard.LostError(); lost != nil {
		// The store may show the member as it was before: it is renewed by what is known
		// here, as without the store.
		chain, err = a.renewAlone(ctx, peer, r, turn,
			errcode.Wrap(lost, errcode.StoreUnreachable,
				"what", "the renewal", "cause", "the store went back (FE-S112)"))
		return chain, err == nil, err
	}
	asking, cancel := a.cfg.Head.Patience(ctx)
	defer cancel()
	chain, degraded, err = a.renewRecorded(asking, peer, r, turn)
	if !authority.OutOfReach(ctx, asking, err) {
		return chain, degraded, err
	}
	a.cfg.StoreGuard.Silent()
	chain, err = a.renewAlone(ctx, peer, r, turn, err)
	return chain, err == nil, err
}

func (a *Admission) renewRecorded(ctx context.Context, peer identity.Peer, r renewRequest,
	turn func(identity.Kind, string) error) (chain [][]byte, degraded bool, err error) {
	asked := false // the store, for the record: what memory says was not what it holds
	err = a.cfg.Head.Transact(ctx, "the renewal", func(s *authority.State) error {
		id, now := peer.ID, a.cfg.Now()
		// The version of the record is a condition of the transaction, so memory is as good as the
		// store where it leads to one. Nobody is refused on what memory says; and a store that does not answer
		// is asked a question first, whose answer can be lost and nothing with it.
		var rec record.Versioned[record.Member]
		if !asked && !a.cfg.Head.StoreSilent() {
			rec = a.cfg.Membership.Roster().Recorded(record.PathOf(id))
		}
		n, err := newRenewal(s, rec, peer, r, now)
		banned := a.cfg.Bundle.Bans(id, r.key) || a.cfg.Bundle.Bans(id, peer.Key)
		if err != nil || banned {
			asked = true
			if rec, err = record.Get[record.Member](ctx, s.Records, record.MemberKey(id.Kind(), id.Name())); err != nil {
				return a.cfg.Head.StoreError("read the member", err)
			}
			n, err = newRenewal(s, rec, peer, r, now)
		}
		if err != nil {
			if errors.Is(err, errcode.RenewOlderKey) {
				a.cfg.Membership.OlderKey(ctx, id.Kind(), id.Name(), err.Error())
			}
			return err
		}
		if err := turn(id.Kind(), id.Name()); err != nil {
			return err
		}
		if banned {
			return errcode.New(errcode.JoinBanned, "identity", id.String())
		}
		change := s.Records.NewChange(s.HeadVersion)
		change.Put(record.MemberKey(id.Kind(), id.Name()), rec.Version, n.after)
		if err := a.cfg.Membership.Recount(ctx, s, change, rec.Value.Entry, n.entry.Name); err != nil {
			return err
		}
		change.Require(record.BanIDKey(id.Kind(), id.Name()), 0)
		change.Require(record.BanKeyKey(r.key), 0)
		rev, err := change.Commit(ctx)
		if errors.Is(err, store.ErrConflict) {
			asked = true
			if err := a.bannedNow(ctx, s, id, r.key); err != nil {
				return err
			}
		}
		if err != nil {
			refused := store.ReasonOf(err) != 0
			if err = a.cfg.Head.CommitError("record the renewal", err); refused {
				chain, err = a.renewFull(ctx, s, peer, r, rec, turn, err)
				degraded = err == nil
			}
			return err
		}
		if err := a.cfg.Faults.Hit("renew.after-commit"); err != nil {
			return err
		}
		a.cfg.Membership.Roster().Put(n.after, rev)
		if chain, err = s.Issue(r.publicKey, id, n.entry, n.after.NotAfter, now); err != nil {
			return fmt.Errorf("certify %s: %w", id, err)
		}
		return nil
	})
	return chain, degraded, err
}

// newRecord is what a renewal records, and the entry that covers it.
type newRecord struct {
	after record.Member
	entry *manifest.Entry
}

// newRenewal decides a renewal under s on a record of the member as it is in memory or in the store.
func newRenewal(s *authority.State, rec record.Versioned[record.Member], peer identity.Peer, r renewRequest,
	now time.Time) (newRecord, error) {
	if r.again && r.key != rec.Value.Key && len(rec.Value.Older) > 0 && r.key == rec.Value.Older[0].Key &&
		r.key == peer.Key {
		// The outage swallowed the answer to a renewal: the member holds that newer key
		// too, and asks with it once more. This one shows no second machine.
		return newRecord{}, record.Busy("the renewal")
	}
	member.CatchUp(s, &rec.Value, peer.Leaf, now)
	after, entry, err := renewal(s.Manifest, rec, peer.ID, peer.Key, r.key, r.csr, now)
	if err != nil {
		return newRecord{}, err
	}
	after.MeshKey = s.MeshKey
	return newRecord{after, entry}, nil
}

// bannedNow says so if the conflict of a transaction is a ban.
func (a *Admission) bannedNow(ctx context.Context, s *authority.State, id identity.ID, key identity.KeyID) error {
	for _, k := range []string{record.BanIDKey(id.Kind(), id.Name()), record.BanKeyKey(key)} {
		ban, err := record.Get[record.Ban](ctx, s.Records, k)
		if err != nil {
			return a.cfg.Head.StoreError("read a ban", err)
		}
		if ban.Exists() {
			return errcode.New(errcode.JoinBanned, "identity", id.String())
		}
	}
	return nil
}

// Leave ends the caller's membership: its record goes, and its keys are banned.
func (a admissionServer) Leave(ctx context.Context, _ *fealtyv1.LeaveRequest) (*fealtyv1.LeaveResponse, error) {
	c := a.c
	peer := identity.FromContext(ctx)
	id := peer.ID
	// The ban of its keys ends this very connection, so it takes effect behind the
	// answer.
	err := c.cfg.Membership.ChangeMemberLater(ctx, string(id.Kind()), id.Name(), "let the member leave",
		func(s *authority.State, rec record.Versioned[record.Member], ch *record.Change) (bool, error) {
			if peer.Key != rec.Value.Key {
				// The holder of an earlier certificate must not end the membership.
				err := errcode.New(errcode.RenewOlderKey, "identity", id.String(), "key", peer.Key.String()[:16])
				c.cfg.Membership.OlderKey(ctx, id.Kind(), id.Name(), err.Error())
				return false, err
			}
			if n := len(rec.Value.Domains); n > 0 {
				return false, errcode.New(errcode.MemberOwnsDomains, "member", rec.Value.Path(),
					"domains", humanize.Plural(n, "domain", "domains"))
			}
			return true, c.cfg.Membership.RemoveRecord(ctx, s, ch, rec, id.String(), "member.leave", "")
		})
	if err != nil {
		return nil, err
	}
	return &fealtyv1.LeaveResponse{}, nil
}

// memberTurn takes one turn of a member's renewals and rejoins. Ask once it has
// shown its newest key: whoever holds an earlier one must not use up its turns.
func (a *Admission) memberTurn(kind identity.Kind, name string) error {
	path := string(kind) + "/" + name
	if a.cfg.PerMember.Allow(path, a.cfg.Now()) {
		return nil
	}
	perSecond, burst := a.cfg.PerMember.Limit()
	return errcode.New(errcode.RateLimited, "what", "certificates of "+path, "limit",
		fmt.Sprintf("%v per second, %d at once", perSecond, burst))
}

// oneTurn is memberTurn for a call that decides again after each conflict: it takes
// one turn in all.
func (a *Admission) oneTurn() func(identity.Kind, string) error {
	took := false
	return func(kind identity.Kind, name string) error {
		if took {
			return nil
		}
		took = true
		return a.memberTurn(kind, name)
	}
}
