package domains

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/store"
)

// change is what somebody wants of a domain.
type change struct {
	name, action, reason string
	by                   string // blank: the caller
	force, dryRun        bool
	process              bool // the process that calls has to be the newest of its member
	// decide returns the domain as it is to be. gone says that its owner cannot let go any more,
	// and why; blank: it may.
	decide func(d Domain, authorityEpoch uint64, gone string) (Domain, error)
}

// apply makes a change in one transaction, with the records of the members whose domains it
// changes, or nothing of it. It returns the domain as it is then, and whether it changed.
func (d *Domains) apply(ctx context.Context, c change) (after Record, changed bool, err error) {
	err = d.cfg.Head.Transact(ctx, "the domain "+c.name, func(s *authority.State) (err error) {
		after, changed, err = d.try(ctx, s, c)
		return err
	})
	if changed = changed && err == nil; changed && !c.dryRun {
		d.cfg.Log.LogAttrs(ctx, slog.LevelInfo, "a domain was changed", slog.String("domain", c.name),
			slog.String("owner", after.Owner), slog.Uint64("ownership", after.Ownership),
			slog.Bool("moving", after.Moving), slog.String("next", after.Next), slog.String("by", after.By))
	}
	return after, changed, err
}

func (d *Domains) try(ctx context.Context, s *authority.State, c change) (Record, bool, error) {
	ch := s.Records.NewChange(s.HeadVersion)
	if c.process {
		// Before anything else, so that a zombie learns nothing, and with the change: no other
		// process of the member is granted anything meanwhile.
		served, err := d.cfg.Grants.Serve(ctx, s)
		if err != nil {
			return Record{}, false, err
		}
		served.Require(ch)
	}
	have, err := record.Get[Record](ctx, s.Records, KeyOf(c.name))
	if err != nil {
		return Record{}, false, d.cfg.Head.StoreError("read the domain", err)
	}
	before := have.Value.Domain
	before.Name = c.name
	owner, err := d.standing(ctx, s, before.Owner)
	if err != nil {
		return Record{}, false, err
	}
	next, err := c.decide(before, s.Head.AuthorityEpoch, owner.gone)
	switch {
	case errors.Is(err, ErrExhausted):
		return Record{}, false, errcode.New(errcode.DomainExhausted, "domain", c.name)
	case err != nil:
		return Record{}, false, err
	case next == before:
		have.Value.Domain = next
		return have.Value, false, nil
	}
	after := Record{Domain: next, At: d.cfg.Now().UTC(), By: cmp.Or(c.by, record.Actor(ctx)), Reason: c.reason,
		Lease: have.Value.Lease}
	if next.Ownership != before.Ownership {
		after.Lease = leaseOf(s.Manifest)
	}
	ch.Put(KeyOf(c.name), have.Version, after)
	if !have.Exists() {
		if err := d.roomForOneMore(ctx, s); err != nil {
			return Record{}, false, err
		}
	}
	if next.Owner != before.Owner {
		if err := d.passMember(ctx, s, ch, before.Owner, without(c.name)); err != nil {
			return Record{}, false, err
		}
		if err := d.passMember(ctx, s, ch, next.Owner, with(c.name)); err != nil {
			return Record{}, false, err
		}
	}
	if next.Moving && next.Next != "" && next.Next != next.Owner {
		// The next owner has to be one now, so that an admin is told in time, and again when
		// it gets the domain.
		if _, err := d.member(ctx, s, next.Next, true); err != nil {
			return Record{}, false, err
		}
	}
	for _, to := range []string{next.Owner, next.Next} {
		// Nobody bans it meanwhile.
		if kind, name, _ := strings.Cut(to, "/"); to != "" && to != before.Owner {
			ch.Require(record.BanIDKey(identity.Kind(kind), name), 0)
		}
	}
	fields := map[string]string{"owner": next.Owner, "ownership": fmt.Sprint(next.Ownership), "before": before.Owner}
	if next.Moving {
		fields["next"] = next.Next
	}
	if c.force {
		fields["force"] = "true"
	}
	if owner.gone != "" {
		owner.require(ch)
		fields["owner_gone"] = owner.gone
	}
	ch.Audit(d.cfg.Now(), record.AuditEntry{Actor: after.By, Action: c.action, Target: c.name, Reason: c.reason,
		Fields: fields})
	if c.dryRun {
		return after, true, nil
	}
	if _, err := ch.Commit(ctx); err != nil {
		return Record{}, false, d.cfg.Head.CommitError("record the domain", err)
	}
	return after, true, nil
}

// roomForOneMore refuses a domain above the bound. Two that are made at once may go past it
// by their number.
func (d *Domains) roomForOneMore(ctx context.Context, s *authority.State) error {
	l, err := s.Records.Store.List(ctx, Prefix)
	if err != nil {
		return d.cfg.Head.StoreError("count the domains", err)
	}
	if len(l.Entries) >= MaxDomains {
		return errcode.New(errcode.DomainTooMany, "what", "the cluster", "limit", fmt.Sprint(MaxDomains))
	}
	return nil
}

func with(name string) func([]string) []string {
	return func(owned []string) []string {
		i, found := slices.BinarySearch(owned, name)
		if found {
			return owned
		}
		return slices.Insert(slices.Clone(owned), i, name)
	}
}

func without(name string) func([]string) []string {
	return func(owned []string) []string {
		return slices.DeleteFunc(slices.Clone(owned), func(n string) bool { return n == name })
	}
}

// passMember adds to ch what the domains of a member become. A domain that is taken leaves the
// record of a member that is gone as it is.
func (d *Domains) passMember(ctx context.Context, s *authority.State, ch *record.Change, path string,
	edit func([]string) []string) error {
	if path == "" {
		return nil
	}
	rec, err := d.member(ctx, s, path, false)
	if err != nil {
		return err
	}
	owned := edit(rec.Value.Domains)
	gets := len(owned) > len(rec.Value.Domains)
	switch {
	case !rec.Exists() && !gets:
		return nil
	case gets:
		if rec, err = d.member(ctx, s, path, true); err != nil {
			return err
		}
		if len(owned) > MaxOwned {
			return errcode.New(errcode.DomainTooMany, "what", path, "limit", fmt.Sprint(MaxOwned))
		}
	}
	rec.Value.Domains = owned
	ch.Put(record.MemberKey(rec.Value.Kind, rec.Value.Name), rec.Version, rec.Value)
	return nil
}

// member reads the record of a member. fit says that it is to own something: then it is one
// that a machine holds, of a kind that may own, that can be heard, and that does not drain.
func (d *Domains) member(ctx context.Context, s *authority.State, path string,
	fit bool) (record.Versioned[record.Member], error) {
	kind, name, _ := strings.Cut(path, "/")
	rec, err := record.Get[record.Member](ctx, s.Records, record.MemberKey(identity.Kind(kind), name))
	if err != nil {
		return rec, d.cfg.Head.StoreError("read the member", err)
	}
	if !fit {
		return rec, nil
	}
	unfit := func(problem, remedy string) (record.Versioned[record.Member], error) {
		return rec, errcode.New(errcode.DomainUnfit, "member", path, "problem", problem, "remedy", remedy)
	}
	const another = "name another member: fealty member list --kind "
	switch {
	case !slices.Contains(Kinds(), identity.Kind(kind)):
		return rec, errcode.New(errcode.DomainKind, "member", path, "kind", kind)
	case !rec.Exists():
		return rec, errcode.New(errcode.NotFound, "what", "member", "name", path)
	}
	switch stands, err := d.standing(ctx, s, path); {
	case err != nil:
		return rec, err
	case !rec.Value.Held():
		// Before its key, which is banned then: no ban is to be lifted.
		return unfit("no machine holds it now", another+kind+"; or let a machine join under its name")
	case stands.gone != "":
		return unfit(stands.gone, another+kind+stands.remedy)
	case !rec.Value.Drain.At.IsZero():
		return unfit("it drains", another+kind+"; or let it stay: fealty member undrain "+path)
	}
	return rec, nil
}

// standing is whether a member can still be heard.
type standing struct {
	gone   string // why not; blank: it can, or nobody is asked for
	remedy string // what may bring it back, as the end of a sentence
	needs  []store.Condition
}

// require has a change fail if that is not so any more.
func (w standing) require(ch *record.Change) {
	for _, c := range w.needs {
		ch.Require(c.Key, c.Version)
	}
}

// standing reads whether the member at a path is banned, has no certificate any more or is none:
// no coordinator and no receiver hears it then, so that it can neither let go nor be told to.
func (d *Domains) standing(ctx context.Context, s *authority.State, path string) (w standing, err error) {
	if path == "" {
		return w, nil
	}
	kind, name, _ := strings.Cut(path, "/")
	rec, err := record.Get[record.Member](ctx, s.Records, record.MemberKey(identity.Kind(kind), name))
	if err != nil {
		return w, d.cfg.Head.StoreError("read the member", err)
	}
	ban, err := record.Get[record.Ban](ctx, s.Records, record.BanIDKey(identity.Kind(kind), name))
	if err != nil {
		return w, d.cfg.Head.StoreError("read the ban", err)
	}
	w.needs = []store.Condition{{Key: record.BanIDKey(identity.Kind(kind), name), Version: ban.Version}}
	id, err := identity.New(s.Manifest.Cluster, identity.Kind(kind), name)
	switch {
	case err != nil:
		return w, err
	case ban.Exists():
		w.gone, w.remedy = "it is banned", "; or lift the ban, if it was a mistake: fealty member unban "+path
	case rec.Exists() && d.cfg.Bundle.Bans(id, rec.Value.Key):
		w.gone, w.remedy = "its key is banned", "; or let another machine take its name: fealty member replace "+path
	case !rec.Exists():
		w.gone = "it is a member no more"
	case !d.cfg.Now().Before(rec.Value.CertifiedUntil()):
		w.gone = "its certificate ended at " + rec.Value.CertifiedUntil().UTC().Format(time.RFC3339)
		w.remedy = "; or see why this one does not renew: fealty member show " + path
	}
	return w, nil
}

// Kinds are those of members that can own a domain.
func Kinds() []identity.Kind { return []identity.Kind{identity.Data, identity.Shard} }
