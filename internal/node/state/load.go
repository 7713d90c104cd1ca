package state

import (
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/node/dir"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/internal/trust"
	"github.com/fealty-io/fealty/snapshot"
)

// Loaded is what a data directory holds, verified again.
type Loaded struct {
	Finished   bool // an interrupted join was put in place just now
	Me         Self
	SVID       dir.SVID
	Next       *PendingKey
	TrustState *TrustState
	// emergencies are the statements of the signers that are in force here, and
	// statements the same as they were handed in.
	emergencies []*trust.Emergency
	statements  [][]byte
	// Unsaved are the scopes whose pending snapshot is to be placed, with the bytes
	// that it takes the place of, if any.
	Unsaved map[snapshot.Scope][]byte
	Dropped []string  // files of what the node is not to hold any more
	Refused []Refusal // what was found on disk and not used
	Earlier []Refusal // what was kept of refusals
	Notes   []error   // what a person should know
	Lost    bool      // the marks were lost: those in memory are a floor, and not on disk
}

// ErrNoMember is what a data directory without an anchor comes to.
var ErrNoMember = errors.New("this machine is no member")

// Load reads and verifies the folder at the time of c, which it sets going. Errors:
// ErrNoMember if this machine is none, NodeStateCorrupt or NodeWrong if its identity is
// of no use. Everything else that is wrong is repaired by the next contact, and told.
func (s *Store) Load(c *Clock) (*Loaded, error) {
	l := &Loaded{Unsaved: make(map[snapshot.Scope][]byte)}
	note := func(err error) {
		if err != nil {
			l.Notes = append(l.Notes, err)
		}
	}
	finished, problem, err := s.finishJoin()
	if err != nil {
		return nil, err
	}
	l.Finished = finished
	note(problem)
	if _, err := s.Read(dir.AnchorName, dir.MaxAnchorBytes); errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNoMember
	}
	if l.SVID, err = s.readSVID(); err != nil {
		return nil, err
	}
	// A machine may come up with a clock that was never set. Its certificate is later
	// than the root's statement, and says so.
	at := c.Now()
	if begin := l.SVID.Leaf().NotBefore; begin.After(at) {
		at = begin
	}
	if l.Me, err = s.readAnchor(at); err != nil {
		return nil, err
	}
	if err := l.Me.Owns(l.SVID.Chain); err != nil {
		if wrong, ok := errors.AsType[*wrongNodeError](err); ok {
			return nil, errcode.Wrap(err, errcode.NodeWrong, "dir", s.Dir, "owner", l.Me.ID, "identity",
				"in its certificate is "+wrong.got)
		}
		return nil, s.unusableIdentity(dir.SVIDName, err)
	}
	s.Pin = l.Me.Pin
	next, err := s.ReadNext()
	note(err)
	l.Next = next
	if data, err := s.Read(dir.RefusalsName, dir.MaxRefusalsBytes); err == nil {
		if err := dir.Unseal(data, &l.Earlier); err != nil {
			note(s.Corrupt(dir.RefusalsName, err))
		}
	}
	l.statements, l.emergencies, err = s.ReadEmergencies(l.Me)
	note(err)
	known, lost := s.ReadLedger()
	kept, err := s.readClock()
	note(err)
	c.resume(kept, known.Marks)
	now := c.Now()
	if err := lost; err != nil {
		note(s.Corrupt(dir.MarksAName, err))
		l.TrustState, l.Lost = s.floor(l, now), true
	} else {
		l.TrustState = s.recheck(l, known, now)
	}
	l.TrustState.Contact, err = l.contact()
	if err != nil {
		return nil, s.Corrupt(dir.AnchorName, err)
	}
	return l, nil
}

// wrongNodeError says that a certificate is of another node than the anchor.
type wrongNodeError struct{ got, want string }

func (e *wrongNodeError) Error() string { return fmt.Sprintf("it is of %s, want %s", e.got, e.want) }

// Owns checks that chain is of this node and leads to its root. Dates are not
// looked at: an expired identity is a reason to rejoin, not to give up.
func (me Self) Owns(chain []*x509.Certificate) error {
	bundle, err := me.Alone(chain, snapshot.Revocations{})
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

// Alone is what the anchor believes about certificates without a trust bundle: the
// root, and, for our own chain, its mesh CA. Coordinators need the root only. A
// member that revoked bans is banned.
func (me Self) Alone(chain []*x509.Certificate, revoked snapshot.Revocations) (*identity.Bundle, error) {
	ids, keys := revoked.Bans()
	return identity.NewBundle(identity.BundleConfig{
		Cluster: me.Cluster, Roots: []*x509.Certificate{me.Root}, MeshKeys: []identity.KeyID{identity.KeyOf(chain[1])},
		BannedIDs: ids, BannedKeys: keys,
	})
}

// contact returns what to verify coordinators by: the trust bundle, be it one that
// is not in use, or else the anchor alone, which knows of no ban. A banned
// coordinator could hold back news with that: what it sends is verified
// all the same.
func (l *Loaded) contact() (*identity.Bundle, error) {
	v := l.TrustState.Stale
	if h := l.TrustState.Active[snapshot.ScopeTrustBundle]; h != nil {
		v = h.Verified
	}
	if v != nil {
		if content, ok := v.TrustBundle(); ok {
			if b, err := content.IdentityWith(l.TrustState.Stated()); err == nil {
				return b, nil
			}
		}
	}
	return l.Me.Alone(l.SVID.Chain, l.TrustState.Stated())
}

// candidate is a snapshot on disk.
type candidate struct {
	place  string
	raw    []byte
	signed *snapshot.Signed
}

// candidates reads what is on disk of a scope. Damage is recorded.
func (s *Store) candidates(l *Loaded, scope snapshot.Scope, now time.Time) []candidate {
	var out []candidate
	for _, place := range []string{dir.Active, dir.Pending, dir.Previous} {
		raw, err := s.Read(dir.SnapshotName(scope, place), internalsnapshot.MaxSigned)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var signed *snapshot.Signed
		if err == nil {
			signed, err = snapshot.Unmarshal(raw)
		}
		if err != nil {
			l.Refused = append(l.Refused, onDisk(scope, place, err, now))
			continue
		}
		out = append(out, candidate{place, raw, signed})
	}
	return out
}

func onDisk(scope snapshot.Scope, place string, err error, now time.Time) Refusal {
	r := RefusalOf(string(scope), err, now)
	r.Detail = Clip(dir.SnapshotName(scope, place)+" on disk: "+r.Detail, MaxDetailBytes)
	return r
}

// recheck chooses what to use of each scope: the newest on disk that the marks
// know and that verifies.
func (s *Store) recheck(l *Loaded, known Ledger, now time.Time) *TrustState {
	b := &TrustState{Ledger: known, Emergencies: l.emergencies, Statements: l.statements}
	marks := known.Marks
	for _, scope := range Scopes {
		if b.Doubts(scope) {
			if scope == snapshot.ScopeTrustBundle {
				b.Stale = staleBundle(l.Me.Trust(b), marks, s.candidates(l, scope, now))
			}
			continue // a coordinator comes first
		}
		if !slices.Contains(Foundations, scope) {
			runtime := b.Active[snapshot.ScopeNodeRuntime]
			if runtime == nil {
				continue // nothing says that the node is to hold it; the next contact does
			}
			if content, _ := runtime.Verified.NodeRuntime(); !slices.Contains(content.Companions, scope) {
				l.Dropped = append(l.Dropped, dir.FilesOf(scope)...)
				continue
			}
		}
		var best *ActiveSnapshot
		var from string
		var old []byte
		found := s.candidates(l, scope, now)
		for _, c := range found {
			v, err := snapshot.Recheck(c.signed, l.Me.Trust(b), marks, now)
			if err == nil && v.Header().ScopeType != scope {
				err = fmt.Errorf("%w: it is of scope %s", dir.ErrDamaged, v.Header().ScopeType)
			}
			if err == nil {
				err = Vouched(b, scope)
			}
			if err != nil {
				r, ok := errors.AsType[*snapshot.RejectedError](err)
				switch {
				case ok && !slices.Contains(Foundations, scope) &&
					(r.Reason == internalsnapshot.ReasonSubject || r.Reason == internalsnapshot.ReasonGrants):
					// For what the node was before: it was killed before the end of that.
					l.Dropped = append(l.Dropped, dir.SnapshotName(scope, c.place))
				case ok && c.place == dir.Pending && r.Reason == snapshot.ReasonUnrecorded:
					// Nobody accepted it: its activation was cut short.
					l.Dropped = append(l.Dropped, dir.SnapshotName(scope, c.place))
				case ok && c.place == dir.Previous && r.Reason == snapshot.ReasonUnrecorded:
				default:
					l.Refused = append(l.Refused, onDisk(scope, c.place, err, now))
				}
				continue
			}
			if _, barred := known.Barred(scope, v.Header().ContentHash); barred {
				continue
			}
			if c.place == dir.Active {
				old = c.raw
			}
			if best == nil || compareVerified(v, best.Verified) > 0 {
				best, from = &ActiveSnapshot{v, c.raw}, c.place
			} else if c.place == dir.Pending {
				l.Dropped = append(l.Dropped, dir.SnapshotName(scope, dir.Pending)) // it is in place already
			}
		}
		if best != nil && known.takesBack(best.Verified) {
			// The bundle before: it would trust again what the one that is gone revoked.
			l.Refused = append(l.Refused, onDisk(scope, from, &snapshot.RejectedError{
				Scope: scope, Check: 9, Reason: snapshot.ReasonVersion,
				Detail: "a later trust bundle was accepted that revokes more, and cannot be read",
			}, now))
			best = nil
		}
		if best == nil && scope == snapshot.ScopeTrustBundle {
			b.Stale = staleBundle(l.Me.Trust(b), marks, found)
		}
		if best != nil {
			b = b.With(scope, best)
			if from == dir.Pending {
				l.Unsaved[scope] = old
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
		cmp.Compare(x.AuthorityEpoch, y.AuthorityEpoch), cmp.Compare(x.ConfigVersion, y.ConfigVersion),
		x.IssuedAt.Compare(y.IssuedAt),
		cmp.Compare(rx.AuthorityEpoch, ry.AuthorityEpoch), cmp.Compare(rx.Generation, ry.Generation),
	)
}

// staleBundle returns the newest trust bundle that was accepted and may not be
// used now, as of the time when it was issued; nil if there is none. Members that
// it bans stay banned, and the roots that it names stay the only ones.
func staleBundle(trust snapshot.Trust, marks snapshot.Marks, found []candidate) *snapshot.Verified {
	mark, ok := marks.Get(snapshot.ScopeTrustBundle, snapshot.ClusterSubject())
	if !ok {
		return nil
	}
	var best *snapshot.Verified
	for _, c := range found {
		v, err := snapshot.Recheck(c.signed, trust, marks, mark.IssuedAt)
		if err == nil && v.Header().ScopeType == snapshot.ScopeTrustBundle &&
			(best == nil || compareVerified(v, best) > 0) {
			best = v
		}
	}
	return best
}

// floor makes marks of what is on disk, for a node that lost them. That somebody
// signed it shows that nothing older is current; it does not show that nothing
// newer is, so that nothing of it is used before a coordinator, over a connection
// on which it proves itself, has sent what holds now.
func (s *Store) floor(l *Loaded, now time.Time) *TrustState {
	b := &TrustState{Ledger: Ledger{unconfirmed: slices.Sorted(slices.Values(Scopes[:]))}, Emergencies: l.emergencies,
		Statements: l.statements}
	for _, scope := range Scopes {
		for _, c := range s.candidates(l, scope, now) {
			trust := l.Me.Trust(b)
			v, err := snapshot.Verify(c.signed, trust, b.Marks, now)
			if err != nil || v.Header().ScopeType != scope {
				continue
			}
			marks, err := snapshot.Accept(b.Marks, v)
			if err != nil {
				continue
			}
			b.Marks = marks
			if scope == snapshot.ScopeTrustBundle {
				b.Stale = v
			}
		}
	}
	return b
}
