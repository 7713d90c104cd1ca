package agent

import (
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/snapshotform"
	"github.com/fealty-io/fealty/snapshot"
)

// loaded is what a data directory holds, verified again.
type loaded struct {
	finished bool // an interrupted join was put in place just now
	me       self
	svid     svid
	next     *pendingKey
	beliefs  *beliefs
	// emergencies are the statements of the signers that are in force here, and
	// statements the same as they were handed in.
	emergencies []*snapshot.Emergency
	statements  [][]byte
	// unsaved are the scopes whose pending snapshot is to be placed, with the bytes
	// that it takes the place of, if any.
	unsaved map[snapshot.Scope][]byte
	dropped []string  // files of what the node is not to hold any more
	refused []refusal // what was found on disk and not used
	earlier []refusal // what was kept of refusals
	notes   []error   // what a person should know
	lost    bool      // the marks were lost: those in memory are a floor, and not on disk
}

// errNoMember is what a data directory without an anchor comes to.
var errNoMember = errors.New("this machine is no member")

// load reads and verifies the data directory at the time of c, which it sets going.
// Errors: errNoMember if this
// machine is none, NodeStateCorrupt or NodeWrong if its identity is of no use. Everything else that is wrong is repaired by the next
// contact, and told.
func (s *localStore) load(c *clock) (*loaded, error) {
	l := &loaded{unsaved: make(map[snapshot.Scope][]byte)}
	note := func(err error) {
		if err != nil {
			l.notes = append(l.notes, err)
		}
	}
	finished, problem, err := s.finishJoin()
	if err != nil {
		return nil, err
	}
	l.finished = finished
	note(problem)
	if _, err := s.read(anchorName, maxAnchorBytes); errors.Is(err, fs.ErrNotExist) {
		return nil, errNoMember
	}
	if l.svid, err = s.readSVID(); err != nil {
		return nil, err
	}
	// A machine may come up with a clock that was never set. Its certificate is later
	// than the root's statement, and says so.
	at := c.now()
	if begin := l.svid.leaf().NotBefore; begin.After(at) {
		at = begin
	}
	if l.me, err = s.readAnchor(at); err != nil {
		return nil, err
	}
	if err := l.me.owns(l.svid.chain); err != nil {
		if wrong, ok := errors.AsType[*wrongNodeError](err); ok {
			return nil, explain.Wrap(err, explain.NodeWrong, "dir", s.dir, "owner", l.me.ID, "identity", "in its certificate is "+wrong.got)
		}
		return nil, s.unusableIdentity(SVIDName, err)
	}
	s.pin = l.me.Pin
	next, err := s.readNext()
	note(err)
	l.next = next
	if data, err := s.read(refusalsName, maxRefusalsBytes); err == nil {
		if err := unseal(data, &l.earlier); err != nil {
			note(s.corrupt(refusalsName, err))
		}
	}
	l.statements, l.emergencies, err = s.readEmergencies(l.me)
	note(err)
	known, lost := s.readLedger()
	kept, err := s.readClock()
	note(err)
	c.resume(kept, known.marks)
	now := c.now()
	if err := lost; err != nil {
		note(s.corrupt(marksAName, err))
		l.beliefs, l.lost = s.floor(l, now), true
	} else {
		l.beliefs = s.recheck(l, known, now)
	}
	l.beliefs.contact, err = l.contact()
	if err != nil {
		return nil, s.corrupt(anchorName, err)
	}
	return l, nil
}

// wrongNodeError says that a certificate is of another node than the anchor.
type wrongNodeError struct{ got, want string }

func (e *wrongNodeError) Error() string { return fmt.Sprintf("it is of %s, want %s", e.got, e.want) }

// owns checks that chain is of this node and leads to its root. Dates are not
// looked at: an expired identity is a reason to rejoin, not to give up.
func (me self) owns(chain []*x509.Certificate) error {
	bundle, err := me.alone(chain, snapshot.Revocations{})
	if err != nil {
		return err
	}
	// Within its own dates, what remains is everything but time.
	v, err := bundle.Verify(chain, chain[0].NotAfter)
	switch {
	case err != nil:
		return err
	case v.IDErr != nil:
		return v.IDErr
	case v.ID != me.ID:
		return &wrongNodeError{v.ID.String(), me.ID.String()}
	}
	return nil
}

// alone is what the anchor believes about certificates without a trust bundle: the
// root, and, for our own chain, its mesh CA. Coordinators need the root only. What
// revoked bans is banned.
func (me self) alone(chain []*x509.Certificate, revoked snapshot.Revocations) (*identity.Bundle, error) {
	ids, keys := revoked.Bans()
	return identity.NewBundle(identity.BundleConfig{
		Cluster: me.Cluster, Roots: []*x509.Certificate{me.root}, MeshKeys: []identity.KeyID{identity.KeyOf(chain[1])}, BannedIDs: ids, BannedKeys: keys,
	})
}

// contact returns what to verify coordinators by: the trust bundle, be it one that
// is not in use, or else the anchor alone, which knows of no ban. What a banned
// coordinator could do with that is to hold back news: what it sends is verified
// all the same.
func (l *loaded) contact() (*identity.Bundle, error) {
	v := l.beliefs.stale
	if h := l.beliefs.held[snapshot.ScopeTrustBundle]; h != nil {
		v = h.v
	}
	if v != nil {
		if content, ok := v.TrustBundle(); ok {
			if b, err := content.IdentityWith(l.beliefs.stated()); err == nil {
				return b, nil
			}
		}
	}
	return l.me.alone(l.svid.chain, l.beliefs.stated())
}

// candidate is a snapshot on disk.
type candidate struct {
	place  string
	raw    []byte
	signed *snapshot.Signed
}

// candidates reads what is on disk of a scope. Damage is recorded.
func (s *localStore) candidates(l *loaded, scope snapshot.Scope, now time.Time) []candidate {
	var out []candidate
	for _, place := range []string{active, pending, previous} {
		raw, err := s.read(snapshotName(scope, place), snapshot.MaxSigned)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var signed *snapshot.Signed
		if err == nil {
			signed, err = snapshot.Unmarshal(raw)
		}
		if err != nil {
			l.refused = append(l.refused, onDisk(scope, place, err, now))
			continue
		}
		out = append(out, candidate{place, raw, signed})
	}
	return out
}

func onDisk(scope snapshot.Scope, place string, err error, now time.Time) refusal {
	r := refusalOf(string(scope), err, now)
	r.Detail = clip(snapshotName(scope, place)+" on disk: "+r.Detail, maxDetailBytes)
	return r
}

// recheck chooses what to use of each scope: the newest on disk that the marks
// know and that verifies.
func (s *localStore) recheck(l *loaded, known ledger, now time.Time) *beliefs {
	b := &beliefs{ledger: known, emergencies: l.emergencies, statements: l.statements}
	marks := known.marks
	for _, scope := range scopes {
		if b.doubts(scope) {
			if scope == snapshot.ScopeTrustBundle {
				b.stale = staleBundle(l.me.trust(b), marks, s.candidates(l, scope, now))
			}
			continue // a coordinator comes first
		}
		if !slices.Contains(foundations, scope) {
			runtime := b.held[snapshot.ScopeNodeRuntime]
			if runtime == nil {
				continue // nothing says that the node is to hold it; the next contact does
			}
			if content, _ := runtime.v.NodeRuntime(); !slices.Contains(content.Companions, scope) {
				l.dropped = append(l.dropped, filesOf(scope)...)
				continue
			}
		}
		var best *held
		var from string
		var old []byte
		found := s.candidates(l, scope, now)
		for _, c := range found {
			v, err := snapshot.Recheck(c.signed, l.me.trust(b), marks, now)
			if err == nil && v.Header().ScopeType != scope {
				err = fmt.Errorf("%w: it is of scope %s", errDamaged, v.Header().ScopeType)
			}
			if err == nil {
				err = vouched(b, scope)
			}
			if err != nil {
				r, ok := errors.AsType[*snapshot.RejectedError](err)
				switch {
				case ok && !slices.Contains(foundations, scope) && (r.Reason == snapshotform.ReasonSubject ||
					r.Reason == snapshotform.ReasonGrants):
					// For what the node was before: it was killed before the end of that.
					l.dropped = append(l.dropped, snapshotName(scope, c.place))
				case ok && c.place == pending && r.Reason == snapshot.ReasonUnrecorded:
					// Nobody accepted it: its activation was cut short.
					l.dropped = append(l.dropped, snapshotName(scope, c.place))
				case ok && c.place == previous && r.Reason == snapshot.ReasonUnrecorded:
				default:
					l.refused = append(l.refused, onDisk(scope, c.place, err, now))
				}
				continue
			}
			if _, barred := known.barred(scope, v.Header().ContentHash); barred {
				continue
			}
			if c.place == active {
				old = c.raw
			}
			if best == nil || compareVerified(v, best.v) > 0 {
				best, from = &held{v, c.raw}, c.place
			} else if c.place == pending {
				l.dropped = append(l.dropped, snapshotName(scope, pending)) // it is in place already
			}
		}
		if best != nil && known.takesBack(best.v) {
			// The bundle before: it would trust again what the one that is gone revoked.
			l.refused = append(l.refused, onDisk(scope, from, &snapshot.RejectedError{
				Scope: scope, Check: 9, Reason: snapshot.ReasonVersion, Detail: "a later trust bundle was accepted that revokes more, and cannot be read",
			}, now))
			best = nil
		}
		if best == nil && scope == snapshot.ScopeTrustBundle {
			b.stale = staleBundle(l.me.trust(b), marks, found)
		}
		if best != nil {
			b = b.with(scope, best)
			if from == pending {
				l.unsaved[scope] = old
			}
		}
	}
	return b
}

// compareVerified orders snapshots of one scope by how new they are.
func compareVerified(a, b *snapshot.Verified) int {
	x, y := a.Header(), b.Header()
	rx, _ := a.Record()
	ry, _ := b.Record()
	return cmp.Or(
		cmp.Compare(x.AuthorityEpoch, y.AuthorityEpoch), cmp.Compare(x.ConfigVersion, y.ConfigVersion), x.IssuedAt.Compare(y.IssuedAt),
		cmp.Compare(rx.AuthorityEpoch, ry.AuthorityEpoch), cmp.Compare(rx.Generation, ry.Generation),
	)
}

// staleBundle returns the newest trust bundle that was accepted and may not be
// used now, as of the time when it was issued; nil if there is none. What it bans
// stays banned, and the roots that it names stay the only ones.
func staleBundle(trust snapshot.Trust, marks snapshot.Marks, found []candidate) *snapshot.Verified {
	mark, ok := marks.Get(snapshot.ScopeTrustBundle, snapshot.ClusterSubject())
	if !ok {
		return nil
	}
	var best *snapshot.Verified
	for _, c := range found {
		v, err := snapshot.Recheck(c.signed, trust, marks, mark.IssuedAt)
		if err == nil && v.Header().ScopeType == snapshot.ScopeTrustBundle && (best == nil || compareVerified(v, best) > 0) {
			best = v
		}
	}
	return best
}

// floor makes marks of what is on disk, for a node that lost them. That somebody
// signed it shows that nothing older is current; it does not show that nothing
// newer is, so that nothing of it is used before a coordinator, over a connection
// on which it proves itself, has sent what holds now.
func (s *localStore) floor(l *loaded, now time.Time) *beliefs {
	b := &beliefs{ledger: ledger{unconfirmed: slices.Sorted(slices.Values(scopes[:]))}, emergencies: l.emergencies, statements: l.statements}
	for _, scope := range scopes {
		for _, c := range s.candidates(l, scope, now) {
			trust := l.me.trust(b)
			v, err := snapshot.Verify(c.signed, trust, b.marks, now)
			if err != nil || v.Header().ScopeType != scope {
				continue
			}
			marks, err := snapshot.Accept(b.marks, v)
			if err != nil {
				continue
			}
			b.marks = marks
			if scope == snapshot.ScopeTrustBundle {
				b.stale = v
			}
		}
	}
	return b
}
