// Package instructions stores one-time instructions for members until each member reported the
// outcome (I5).
//
// Any coordinator takes an instruction, delivers it and takes the acknowledgement. The leader alone
// signs it, by a write that a deposed one cannot make, and signs anew what a leader before it left:
// so a member that heard of the newer leader does all of it, and nothing twice. Package
// internal/instruction decides; see docs/explanation/fencing.md.
package instructions

import (
	"context"
	"crypto"
	"crypto/ed25519"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/actuation/grants"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/bundle/current"
	"github.com/fealty-io/fealty/internal/coordinator/election"
	"github.com/fealty-io/fealty/internal/coordinator/finding"
	"github.com/fealty-io/fealty/internal/coordinator/member"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/instruction"
	"github.com/fealty-io/fealty/internal/platform/watch"
	"github.com/fealty-io/fealty/internal/signed/order"
)

// Where records stand, by their member and id.
const (
	Prefix        = "instruction/"
	waitingPrefix = Prefix + "waiting/"
	endedPrefix   = Prefix + "ended/"
)

const (
	// LookEvery is how often the leader looks for what another coordinator took.
	LookEvery = time.Second
	// Kept and maxEnded are how long, and how many, instructions are remembered after their end.
	Kept     = 30 * 24 * time.Hour
	maxEnded = 10_000
	// dropEvery is how often those are dropped that are remembered no longer.
	dropEvery = time.Hour
)

// KeyOf is where an instruction stands that waits for a member, "<kind>/<name>".
func KeyOf(member, id string) string { return waitingPrefix + member + "/" + id }

// endedKeyOf is where an instruction stands that ended.
func endedKeyOf(member, id string) string { return endedPrefix + member + "/" + id }

// Config is what Instructions are made of.
type Config struct {
	Head     *authority.Head
	Bundle   *current.Current
	Election *election.Election
	Asking   member.Asking
	Grants   *grants.Grants // which process of a member is served
	Now      func() time.Time
}

// Instructions serve InstructionService. Make them with [New].
type Instructions struct {
	cfg   Config
	given watch.Signal
}

// New returns Instructions of which none was read.
func New(cfg Config) *Instructions { return &Instructions{cfg: cfg} }

// RegisterServices registers the service over instructions.
func (i *Instructions) RegisterServices(to grpc.ServiceRegistrar) {
	fealtyv1.RegisterInstructionServiceServer(to, server{i: i})
}

// waitingFor reads those that wait for one member, as they were given. They are carried out in that
// order, so that none of them is told if one was altered in the store.
func (i *Instructions) waitingFor(ctx context.Context, s *authority.State, member string) (
	[]record.Versioned[instruction.Order], error) {
	all, err := record.List[instruction.Order](ctx, s.Records, waitingPrefix+member+"/")
	if err != nil {
		return nil, i.cfg.Head.StoreError("list the instructions", err)
	}
	asGiven(all)
	return all, nil
}

// waiting reads those that wait for any member, as they were given, and the keys of those that
// were altered in the store.
func (i *Instructions) waiting(ctx context.Context, s *authority.State) (all []record.Versioned[instruction.Order],
	altered []string, err error) {
	all, altered, err = authority.ListGenuine[instruction.Order](ctx, i.cfg.Head, s, waitingPrefix)
	if err != nil {
		return nil, nil, i.cfg.Head.StoreError("list the instructions", err)
	}
	asGiven(all)
	return all, altered, nil
}

// Findings says which of those that wait were altered in the store. The error is that of
// [authority.Head.StoreError].
func (i *Instructions) Findings(ctx context.Context, s *authority.State) ([]*fealtyv1.Finding, error) {
	_, altered, err := i.waiting(ctx, s)
	return finding.Altered("its member is told neither that instruction nor any other until it is as it was", altered), err
}

func asGiven(all []record.Versioned[instruction.Order]) {
	record.Sort(all, func(a, b *record.Versioned[instruction.Order]) int {
		return instruction.Compare(a.Value, b.Value)
	})
}

// TakeOver signs, under the term in which this coordinator leads, what no leader signed yet or
// one before it did, and ends what is over. It does nothing at a coordinator that does not lead.
func (i *Instructions) TakeOver(ctx context.Context, s *authority.State) error {
	term, _, ok := i.cfg.Election.Leading()
	if !ok {
		return nil
	}
	all, _, err := i.waiting(ctx, s)
	if err != nil {
		return err
	}
	if len(all) == 0 {
		return nil
	}
	key, err := i.cfg.Bundle.StatementSigner(s)
	if err != nil {
		return err
	}
	public, ok := key.Public().(ed25519.PublicKey)
	if !ok {
		return fmt.Errorf("a key of type %T signs no instruction", key.Public())
	}
	now := i.cfg.Now()
	for _, v := range all {
		var err error
		switch o := v.Value; {
		case o.Over(now):
			ended, _, _ := o.Acknowledge(instruction.Expired, "", 0, now.UTC())
			err = i.end(ctx, s, v, ended, i.cfg.Election.NewChange(s), "the leader")
		case o.Due(int64(term), fence.KeyID(public)):
			err = i.sign(ctx, s, v, int64(term), key, fence.KeyID(public))
		}
		// Of what changed meanwhile somebody else said something; of a leader that was deposed the
		// next one does the rest.
		if err := record.IgnoreConflict(err); err != nil {
			return err
		}
	}
	return nil
}

// sign signs one that waits, and keeps it so.
func (i *Instructions) sign(ctx context.Context, s *authority.State, v record.Versioned[instruction.Order],
	term int64, key crypto.Signer, keyID string) error {
	o := v.Value
	kind, name, _ := strings.Cut(o.Member, "/")
	member, err := identity.New(s.Manifest.Cluster, identity.Kind(kind), name)
	if err != nil {
		return err
	}
	text, err := order.Instruction{Cluster: s.Manifest.Cluster, Member: member.String(), ID: o.ID, Kind: o.Kind,
		Term: term, NotAfter: o.Until, AuthorityEpoch: s.Head.AuthorityEpoch}.Sign(key)
	if err != nil {
		return fmt.Errorf("sign instruction %s of %s: %w", o.ID, o.Member, err)
	}
	ch := i.cfg.Election.NewChange(s)
	ch.Put(KeyOf(o.Member, o.ID), v.Version, o.Signed(term, keyID, text))
	_, err = ch.Commit(ctx)
	return err
}

// end keeps what became of one that waited, in its place.
func (i *Instructions) end(ctx context.Context, s *authority.State, v record.Versioned[instruction.Order],
	ended instruction.Ended, ch *record.Change, by string) error {
	ch.Delete(KeyOf(ended.Member, ended.ID), v.Version)
	ch.Put(endedKeyOf(ended.Member, ended.ID), 0, ended)
	ch.Audit(i.cfg.Now(), record.AuditEntry{Actor: by, Action: "instruction.end", Target: ended.Member,
		Fields: map[string]string{"instruction": ended.ID, "kind": ended.Kind, "outcome": string(ended.Outcome),
			"detail": ended.Detail}})
	_, err := ch.Commit(ctx)
	return err
}

// Drop forgets what ended long ago, and of more than may be remembered what ended first.
func (i *Instructions) Drop(ctx context.Context, s *authority.State) error {
	all, _, err := authority.ListGenuine[instruction.Ended](ctx, i.cfg.Head, s, endedPrefix)
	if err != nil {
		return i.cfg.Head.StoreError("list the instructions that ended", err)
	}
	record.Sort(all, func(a, b *record.Versioned[instruction.Ended]) int {
		return a.Value.EndedAt.Compare(b.Value.EndedAt)
	})
	before := i.cfg.Now().Add(-Kept)
	for n, v := range all {
		if len(all)-n <= maxEnded && v.Value.EndedAt.After(before) {
			break
		}
		ch := i.cfg.Election.NewChange(s)
		ch.Delete(endedKeyOf(v.Value.Member, v.Value.ID), v.Version)
		if _, err := ch.Commit(ctx); err != nil {
			return record.IgnoreConflict(err)
		}
	}
	return nil
}

// Follow takes over what waits while this coordinator leads, until ctx ends.
func (i *Instructions) Follow(ctx context.Context, s *authority.State) error {
	dropped := time.Time{}
	for {
		led, given := i.cfg.Election.Changed(), i.given.Wait()
		if _, _, ok := i.cfg.Election.Leading(); !ok {
			if err := watch.Event(ctx, led); err != nil {
				return err
			}
			continue
		}
		if err := i.TakeOver(ctx, s); err != nil {
			return err
		}
		if time.Since(dropped) >= dropEvery {
			if err := i.Drop(ctx, s); err != nil {
				return err
			}
			dropped = time.Now()
		}
		if _, err := watch.Wait(ctx, LookEvery, led, given); err != nil {
			return err
		}
	}
}
