package admission

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/platform/hostinfo"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/snapshot"
)

// Admission decides here, without I/O: who a candidate is by the manifest in
// force, and what one transaction must then change. join.go and renew.go read
// what it needs, apply what it says, and sign afterwards.

// candidate is one whose proof was verified. There is no other way to ask for
// admission, so an anonymous join cannot be represented.
type candidate struct {
	kind   identity.Kind   // what it wants to be
	proven proof.Proven    // what it showed
	key    identity.KeyID  // the key to certify
	token  *versionedToken // set for a token proof
	member string          // the name of the member that it says it is already; "" for none

	machine hostinfo.Facts // as it said, within bounds; it decides nothing, as seen does
	seen    string         // the address that it came from
}

// provingKey returns the key that made the proof, if it is a machine's own and
// another one than the key to certify.
func (c candidate) provingKey() (identity.KeyID, bool) {
	key := c.proven.KeyID()
	return key, c.proven.Type() != proof.TypeToken && key != c.key
}

// versionedToken is a token and, if there is one, its earlier use by this key.
type versionedToken struct {
	record.Versioned[Token]
	use record.Versioned[TokenUse]
}

// match is what the manifest in force says of a candidate: the entry that covers
// it, and the name that it gets.
type match struct {
	entry    *manifest.Entry
	id       identity.ID
	selector string
	token    bool // the selector is a token's: many can show it
}

// tokenFault says why a token that was proven does not admit any more. Only who
// proved its secret is told.
func tokenFault(tok Token, now time.Time) error {
	switch {
	case tok.Revoked:
		return errcode.New(errcode.TokenRevoked, "token", tok.ID)
	case !now.Before(tok.ExpiresAt):
		return errcode.New(errcode.TokenExpired, "token", tok.ID,
			"expired_at", tok.ExpiresAt.UTC().Format(time.RFC3339), "now", now.UTC().Format(time.RFC3339))
	case tok.Used >= tok.Uses:
		return errcode.New(errcode.TokenSpent, "token", tok.ID, "uses", fmt.Sprint(tok.Uses))
	}
	return nil
}

// identify finds the entry of the manifest in force that covers c, and its name.
// member is the record that an svid proof speaks for. generated is the name that
// the seed made up, for a token that fixes none: a candidate never chooses.
//
// It decides two things: that an entry matches, and that the entry allows the kind asked
// for.
func identify(m *manifest.Manifest, c candidate, member record.Versioned[record.Member], generated string) (match,
	error) {
	selectors := c.proven.Selectors()
	unauthorized := errcode.New(errcode.JoinUnauthorized)
	if len(selectors) > 0 {
		unauthorized = errcode.New(errcode.JoinUnauthorized, "shown", fmt.Sprint(selectors))
	}
	if c.proven.Type() == proof.TypeSVID {
		// A member may come back while an entry still covers what it once showed:
		// taking the entry away sticks.
		if !member.Exists() {
			return match{}, unauthorized
		}
		if member.Value.Kind != c.kind {
			return match{}, kindMismatch(member.Value.Path(), member.Value.Kind, c.kind)
		}
		selectors = member.Value.Selectors
	}
	found, ok := m.Match(c.kind, selectors)
	if ok && !found.Token && member.Exists() && found.Name != member.Value.Name {
		return match{}, unauthorized // the manifest gives what it showed another name
	}
	if c.token != nil && ok && found.Entry.Name != c.token.Value.Entry {
		ok = false // a token speaks for its own entry only
	}
	if !ok {
		if allowed := m.KindsFor(selectors); len(allowed) > 0 {
			return match{}, kindMismatch(fmt.Sprint(selectors), allowed[0], c.kind)
		}
		return match{}, unauthorized
	}
	name := found.Name
	switch {
	case c.proven.Type() == proof.TypeSVID:
		name = member.Value.Name
	case c.token != nil && c.token.use.Exists():
		// The grant of an earlier use was lost: the same key gets the same name.
		_, name, _ = strings.Cut(c.token.use.Value.Member, "/")
	case c.token != nil && c.token.Value.Name != "":
		name = c.token.Value.Name
	case c.token != nil:
		name = generated
	}
	id, err := identity.New(m.Cluster, c.kind, name)
	if err == nil {
		err = nameable(id)
	}
	if err != nil {
		return match{}, errcode.Wrap(err, errcode.JoinUnauthorized, "shown", fmt.Sprint(selectors))
	}
	return match{entry: found.Entry, id: id, selector: found.Selector, token: found.Token}, nil
}

// nameable says why a member cannot be called so: others are told of it by its name,
// and no snapshot holds what looks like a raw secret. It would be one member that keeps
// the others from what they are told.
func nameable(id identity.ID) error {
	if what := snapshot.CheckedIn("", id.String()); what != "" {
		return fmt.Errorf("the name of the member looks like a %s: no snapshot could hold it", what)
	}
	return nil
}

func kindMismatch(who string, allowed, requested identity.Kind) error {
	do := "join with --kind " + string(allowed) + ", or have an admin change the entry with fealty manifest set"
	person := func(k identity.Kind) bool { return k == identity.Admin || k == identity.Readonly }
	switch {
	case allowed == identity.Coordinator:
		do = "start a coordinator with it: fealty coordinator"
	case person(allowed):
		do = "it is for a person or a tool, and not for a machine: fealty login --kind " + string(allowed) +
			", with the same proof"
	case person(requested):
		do = "it is for a machine, and not for a person: fealty join --kind " + string(allowed) +
			", with the same proof"
	}
	return errcode.New(errcode.JoinKindMismatch, "identity", who, "allowed", string(allowed),
		"requested", string(requested), "do", do)
}

// admissionView is what one admission is decided on. The versions in it are the
// conditions of its transaction.
type admissionView struct {
	member    record.Versioned[record.Member]
	bannedID  record.Versioned[record.Ban]
	bannedKey record.Versioned[record.Ban]
	// bannedProof is the ban of the key that proved, which need not be the new one.
	bannedProof  record.Versioned[record.Ban]
	bundleBanned bool // the bundle in force bans the name or a key
	members      int  // under the entry; read only for one with max_members
}

// admission is what a transaction must write, and what the candidate is told.
type admission struct {
	record  record.Member
	already bool // the member existed
	// token is the token's record after this use, if the admission uses it up by
	// one; tokenUse is what binds the use to the key.
	token    *Token
	tokenUse *TokenUse
	from     string // the entry that covered it before; "" for a new member
}

// admit decides on a candidate whose proof holds: first the bans, then csr, which is what is wrong
// with its request for a certificate (nil for nothing), then whether the name is free or the candidate
// proves that it is the member of that name.
func admit(m match, c candidate, v admissionView, csr error, now time.Time) (admission, error) {
	if v.bannedID.Exists() || v.bannedKey.Exists() || v.bannedProof.Exists() || v.bundleBanned {
		return admission{}, errcode.New(errcode.JoinBanned, "identity", m.id.String())
	}
	if err := stillMember(m, c, v.member); err != nil {
		return admission{}, err
	}
	if csr != nil {
		return admission{}, csr
	}
	if c.token != nil {
		if err := tokenAdmits(c, v.member, now); err != nil {
			return admission{}, err
		}
	}
	a := admission{record: record.Member{
		Kind:        m.id.Kind(),
		Name:        m.id.Name(),
		State:       record.Active,
		Entry:       m.entry.Name,
		JoinedAt:    now.UTC().Round(0),
		Shown:       proof.Shown{ProofType: c.proven.Type(), Selectors: c.proven.Selectors()},
		Incarnation: c.key,
		Seen:        hostinfo.Seen{Machine: c.machine, SeenAddress: c.seen},
	}}
	if c.token != nil {
		tok := c.token.Value
		a.record.Token, a.record.NarrowTo, a.record.Labels = tok.ID, tok.Organizations, tok.Labels
	}
	if v.member.Exists() {
		if err := rejoins(m, c, v.member.Value, now); err != nil {
			return admission{}, err
		}
		old := v.member.Value
		a.already, a.from = true, old.Entry
		a.record.JoinedAt = old.JoinedAt
		a.record.Domains = old.Domains
		a.record.Drain = old.Drain
		a.record.State = a.record.HeldState()
		a.record.Key, a.record.Older, a.record.NotAfter = old.Key, old.Older, old.NotAfter
		if c.proven.Type() == proof.TypeSVID {
			// It is the same enrolment, under the proof that first admitted it.
			a.record.ProofType, a.record.Selectors = old.ProofType, old.Selectors
			a.record.Incarnation, a.record.Token = old.Incarnation, old.Token
			a.record.NarrowTo, a.record.Labels = old.NarrowTo, old.Labels
			if c.machine.IsZero() {
				a.record.Machine = old.Machine // an agent of an earlier release, which says nothing
			}
		}
	} else if m.entry.MaxMembers > 0 {
		if v.members >= m.entry.MaxMembers {
			return admission{}, errcode.New(errcode.JoinEntryFull, "entry", m.entry.Name,
				"max", fmt.Sprint(m.entry.MaxMembers))
		}
	}
	if c.token != nil && !c.token.use.Exists() {
		used := c.token.Value
		used.Used++
		a.token = &used
		a.tokenUse = &TokenUse{Member: a.record.Path(), At: now.UTC()}
	}
	a.record.Cover(m.entry)
	if !a.record.Rekey(c.key, now.Add(m.entry.SVIDTTL), now, record.StretchOf(m.entry.SVIDTTL)) {
		return admission{}, renewedTooOften(m.id)
	}
	return a, nil
}

// stillMember refuses who says that it is a member already and is another one by its
// proof, or none any more: it would be admitted beside what it was.
func stillMember(m match, c candidate, member record.Versioned[record.Member]) error {
	other := func(problem string) error {
		return errcode.New(errcode.JoinOtherMember, "claimed", ratelimit.Clip(c.member, ratelimit.MaxShownBytes),
			"problem", problem)
	}
	switch {
	case c.member == "":
	case c.member != m.id.Name():
		return other("what it shows is " + m.id.String())
	case !member.Exists() || !member.Value.Held():
		return other("that member was removed or replaced")
	}
	return nil
}

// tokenAdmits says why the token of c does not admit it. A key that the token
// admitted already may ask again, as its grant may have been lost, for as long as
// it is that member's last one; afterwards its use is spent like any other.
func tokenAdmits(c candidate, member record.Versioned[record.Member], now time.Time) error {
	tok := c.token.Value
	if !c.token.use.Exists() {
		return tokenFault(tok, now)
	}
	switch m := member.Value; {
	case tok.Revoked:
		return tokenFault(tok, now)
	case !member.Exists() || !m.Held() || m.Key != c.key || m.Token != tok.ID:
		return errcode.New(errcode.TokenSpent, "token", tok.ID, "uses", fmt.Sprint(tok.Uses))
	}
	return nil
}

// nameTaken is the refusal of a name that another machine has, or another login of a person.
func nameTaken(id identity.ID) *errcode.Error {
	name := string(id.Kind()) + "/" + id.Name()
	do := "if the machine was replaced, an admin runs fealty member replace " + name + "; otherwise join under a free name"
	if record.IsSession(id.Kind()) {
		do = "go on with that login until it ends; if it is lost, an admin ends it: fealty member replace " + name
	}
	return errcode.New(errcode.JoinNameTaken, "identity", id.String(), "do", do)
}

// rejoins reports whether c proved that it is the member that old records.
func rejoins(m match, c candidate, old record.Member, now time.Time) error {
	taken := nameTaken(m.id)
	switch {
	case c.proven.Type() == proof.TypeSVID:
		// The verifier compared the key with the record, but with what it was then.
		if old.Held() && c.proven.KeyID() == old.Key {
			return nil
		}
		return errcode.New(errcode.JoinClone, "identity", m.id.String(), "key", c.proven.KeyID().String()[:16])
	case old.State == record.Replacing:
		return nil
	case c.token != nil && c.token.use.Exists() && c.key == old.Key:
		return nil // its grant was lost
	case !m.token && slices.Contains(old.Selectors, m.selector):
		return nil
	case record.IsSession(old.Kind) && !now.Before(old.CertifiedUntil()):
		return nil // a person's session that is over holds no name
	}
	return taken
}

// renewal decides a renewal: by the manifest in force, whatever was true when
// the member joined.
//
// presented is the key of the SVID that the caller holds; next is the key that
// it wants certified.
func renewal(m *manifest.Manifest, rec record.Versioned[record.Member], id identity.ID, presented,
	next identity.KeyID, csr error, now time.Time) (record.Member, *manifest.Entry, error) {
	gone := errcode.New(errcode.RenewEntryGone, "identity", id.String())
	if record.IsSession(id.Kind()) || !rec.Exists() || !rec.Value.Held() {
		return record.Member{}, nil, gone
	}
	old := rec.Value
	found, lost := coveredBy(m, old)
	if lost.kind != "" {
		return record.Member{}, nil, kindMismatch(id.String(), lost.kind, old.Kind)
	}
	if lost.why != "" {
		return record.Member{}, nil, gone
	}
	switch age := old.Age(presented); {
	case age == record.KeyRecorded:
	case age == record.KeyBefore && next == old.Key:
		// The answer to the last renewal was lost: the same new key again.
	default:
		// An older key is in use: two machines hold this identity.
		return record.Member{}, nil, errcode.New(errcode.RenewOlderKey, "identity", id.String(), "key",
			presented.String()[:16])
	}
	if csr != nil {
		return record.Member{}, nil, csr
	}
	if next != old.Key && old.WasKey(next) {
		return record.Member{}, nil, errcode.New(errcode.RenewOlderKey, "identity", id.String(), "key",
			next.String()[:16])
	}
	if !rec.Value.Rekey(next, now.Add(found.Entry.SVIDTTL), now, record.StretchOf(found.Entry.SVIDTTL)) {
		return record.Member{}, nil, renewedTooOften(id)
	}
	rec.Value.Cover(found.Entry)
	return rec.Value, found.Entry, nil
}

// A loss says why a manifest does not cover a member. The zero loss: it does.
type loss struct {
	why  string
	kind identity.Kind // set if what the member showed is of this kind now
}

// coveredBy returns the entry of m that covers a member, by what it once showed.
func coveredBy(m *manifest.Manifest, rec record.Member) (manifest.Match, loss) {
	found, ok := m.Match(rec.Kind, rec.Selectors)
	switch {
	case !ok:
		if allowed := m.KindsFor(rec.Selectors); len(allowed) > 0 {
			return found, loss{"what it showed is of kind " + string(allowed[0]), allowed[0]}
		}
		return found, loss{why: "no entry admits what it showed"}
	case !found.Token && found.Name != rec.Name:
		return found, loss{why: "what it showed gets the name " + found.Name}
	}
	return found, loss{}
}

func renewedTooOften(id identity.ID) error {
	return errcode.New(errcode.RateLimited, "what", "renewals of "+id.String(), "limit",
		fmt.Sprintf("%d valid certificates", record.MaxLiveKeys))
}

// maxPreview bounds the members and the tokens that one preview names.
const maxPreview = 1000

// Preview names in out which members and tokens the manifest next would cut off under s, by the
// rule that decides renewals. A record that was altered in the store ends it: who is left out of the answer
// would be cut off without a word, once the record is as it was.
func (a *Admission) Preview(ctx context.Context, s *authority.State, next *manifest.Manifest,
	out *fealtyv1.PreviewManifestResponse) error {
	recs, err := record.List[record.Member](ctx, s.Records, record.MemberPrefix)
	if err != nil {
		return a.cfg.Head.StoreError("read the members", err)
	}
	for _, r := range recs {
		rec := r.Value
		if record.IsSession(rec.Kind) || rec.State != record.Active {
			continue // a session is not renewed, and who waits to be replaced is not either
		}
		if _, was := coveredBy(s.Manifest, rec); was.why != "" {
			continue // lost already
		}
		_, lost := coveredBy(next, rec)
		if lost.why == "" {
			continue
		}
		if out.MembersTotal++; out.MembersTotal <= maxPreview {
			out.Members = append(out.Members,
				&fealtyv1.LosingMember{Kind: string(rec.Kind), Name: rec.Name, Entry: rec.Entry, Why: lost.why})
		}
	}
	tokens, err := record.List[Token](ctx, s.Records, TokenPrefix)
	if err != nil {
		return a.cfg.Head.StoreError("read the tokens", err)
	}
	now := a.cfg.Now()
	for _, t := range tokens {
		admits := func(m *manifest.Manifest) bool {
			e, ok := m.EntryByName(t.Value.Entry)
			return ok && e.AdmitsTokens()
		}
		if tokenFault(t.Value, now) != nil || !admits(s.Manifest) || admits(next) {
			continue
		}
		if out.TokensTotal++; out.TokensTotal <= maxPreview {
			out.Tokens = append(out.Tokens, &fealtyv1.LosingToken{Id: t.Value.ID, Entry: t.Value.Entry})
		}
	}
	return nil
}
