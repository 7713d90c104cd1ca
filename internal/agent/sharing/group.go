package sharing

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/node/guard"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/snapshot"
)

// groupOf returns the group that caller is in, as raw shows: the caller's node_runtime
// without its content. It is pure; an error says what is wrong with raw, and then the
// caller has shown nothing.
//
// A caller that lost a role or an organization since still has the header of before. So what
// it shows is worth no more than what it may do alone by it: the record over it may not be
// older than most, which is degraded.max, nor of an earlier authority epoch.
func groupOf(b *state.TrustState, most time.Duration, caller identity.ID, raw []byte, now time.Time) (snapshot.Subject,
	error) {
	none := snapshot.Subject{}
	if len(raw) == 0 {
		return none, errors.New("no node_runtime came")
	}
	signed, err := snapshot.Unmarshal(raw)
	if err != nil {
		return none, err
	}
	if len(signed.Content) > 0 || len(signed.Patch) > 0 {
		return none, errors.New("the node_runtime has more than its header")
	}
	claims, err := signed.Claims()
	if err != nil {
		return none, err
	}
	subject, incarnation, ok := claims.Header.Subject.Node()
	if !ok || subject != caller || claims.Header.ScopeType != snapshot.ScopeNodeRuntime {
		return none, fmt.Errorf("it is %.40q of %.80q, not the node_runtime of the caller", claims.Header.ScopeType,
			claims.Header.Subject)
	}
	bundle := b.Active[snapshot.ScopeTrustBundle]
	if bundle == nil {
		return none, errors.New("no trust bundle is in use here")
	}
	checked, err := snapshot.VerifyHeader(signed, snapshot.Trust{Me: caller, Incarnation: incarnation,
		Bundle: bundle.Verified, Revoked: b.Stated()}, snapshot.Marks{}, now)
	if err != nil {
		return none, err
	}
	header := checked.Header()
	record, _ := checked.Record()
	last := record.FreshUntil.Add(guard.StaleFor)
	if alone := record.IssuedAt.Add(most); alone.After(last) {
		last = alone
	}
	switch {
	case min(header.AuthorityEpoch, record.AuthorityEpoch) < bundle.Verified.Header().AuthorityEpoch:
		return none, fmt.Errorf("it is of authority epoch %d, which is over", header.AuthorityEpoch)
	case !now.Before(last):
		return none, fmt.Errorf("nobody says since %s that it holds", state.Stamp(record.IssuedAt))
	case b.Revocations().Withdraws(caller, header.Roles):
		return none, errors.New("one of its roles is revoked")
	}
	return snapshot.GroupSubject(header.Roles, header.OrganizationIDs), nil
}

// shared returns what of a node that believes b a member of group is given at now, the
// trust bundle first. A zero group is that of a member that showed none.
func shared(b *state.TrustState, group snapshot.Subject, now time.Time) []*state.ActiveSnapshot {
	var out []*state.ActiveSnapshot
	for _, scope := range state.Scopes {
		h := b.Active[scope]
		if h == nil || !now.Before(h.Verified.Header().ExpiresAt) {
			continue
		}
		switch subject := h.Verified.Header().Subject; subject {
		case snapshot.ClusterSubject():
			out = append(out, h)
		case group:
			if _, _, one := subject.Node(); !one && !group.IsZero() {
				out = append(out, h)
			}
		}
	}
	return out
}

// linksOf returns the newest links of the history that lead to the head of the trust bundle in
// use, as far as this node heard of them and a caller is given them; nil if it did not.
func linksOf(b *state.TrustState) [][]byte {
	h := b.Active[snapshot.ScopeTrustBundle]
	if h == nil || len(b.Links) == 0 {
		return nil
	}
	// They are those that somebody sent last, whoever that was.
	if bundle, _ := h.Verified.TrustBundle(); snapshot.DigestOf(b.Links[len(b.Links)-1]) != bundle.Head.Hash {
		return nil
	}
	size, from := 0, len(b.Links)
	for from > 0 && size+len(b.Links[from-1]) <= maxLinkBytes {
		from--
		size += len(b.Links[from])
	}
	return b.Links[from:]
}

// news reports whether h is newer than what a member says that it has of the scope, or
// contradicts it: two contents under one version are for the member to see.
func news(h *state.ActiveSnapshot, has *fealtyv1.HeldSnapshot, now time.Time) bool {
	if has == nil {
		return true
	}
	header := h.Verified.Header()
	record, _ := h.Verified.Record()
	switch c := cmp.Or(cmp.Compare(header.AuthorityEpoch, has.GetAuthorityEpoch()),
		cmp.Compare(header.ConfigVersion, has.GetConfigVersion())); {
	case c != 0:
		return c > 0
	case !bytes.Equal(header.ContentHash[:], has.GetContentHash()):
		return true
	case record.Generation == 0: // signed by itself: one that is issued anew has the same version
		return h.Verified.Freshness(now, guard.StaleFor) == snapshot.Fresh &&
			has.GetFreshness() != string(snapshot.Fresh)
	}
	return record.Generation > has.GetGeneration()
}
