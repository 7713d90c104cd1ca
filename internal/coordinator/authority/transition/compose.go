package transition

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/pki"
)

// Compose makes the move that req asks for, after s. It writes nothing. A move that comes
// with an error is to be wiped.
func Compose(req *fealtyv1.SetManifestRequest, s *authority.State, m *manifest.Manifest, first bool,
	now time.Time) (*Move, error) {
	if s.Phase == authority.Uninitialized {
		if !first {
			return nil, errcode.New(errcode.HistoryUninitialized)
		}
		if k := history.Kind(req.GetKind()); k != "" && k != history.KindSet {
			return nil, errcode.New(errcode.HistoryUninitialized, "method", "a "+string(k))
		}
		return composeGenesis(req, m, now)
	}
	if err := follows(req, s, m); err != nil {
		return nil, err
	}
	kind := history.Kind(req.GetKind())
	if kind == "" {
		kind = history.KindSet
	}
	if err := changesOnly(kind, s.Manifest, m); err != nil {
		return nil, err
	}
	mv := &Move{From: s, Manifest: m, Secrets: s.Secrets, Root: s.Root, Mesh: s.MeshCA()}
	t, moves := s.Chain.Next(kind, m)
	if err := Authorize(req, s, t); err != nil {
		return nil, err
	}
	if kind == history.KindReshare {
		if err := mv.SplitSeed(t); err != nil {
			return nil, err
		}
	}
	if moves {
		if err := mv.NewMesh(t, now); err != nil {
			return nil, err
		}
	}
	return mv, mv.Seal(t)
}

// composeGenesis makes the seed, its root and the first transition.
func composeGenesis(req *fealtyv1.SetManifestRequest, m *manifest.Manifest, now time.Time) (*Move, error) {
	t := history.Genesis(m)
	t.Reason = req.GetReason()
	mv := &Move{Manifest: m}
	if err := mv.MakeSeed(t, now); err != nil {
		return nil, err
	}
	if err := mv.SplitSeed(t); err != nil {
		return mv, err
	}
	if err := mv.NewMesh(t, now); err != nil {
		return mv, err
	}
	return mv, mv.Seal(t)
}

// MakeSeed makes a new seed, and what derives from it, for the move and its transition t.
func (mv *Move) MakeSeed(t *history.Transition, now time.Time) error {
	secrets, salt, err := authority.Make()
	if err != nil {
		return err
	}
	mv.Secrets, mv.NewSeed, t.Salt = secrets, true, salt
	if mv.Root, err = pki.Root(secrets.RootCA(), mv.Manifest.Cluster, now.Add(-pki.Backdate)); err != nil {
		return fmt.Errorf("make the root: %w", err)
	}
	return nil
}

// NewMesh makes the mesh CA of a new authority epoch.
func (mv *Move) NewMesh(t *history.Transition, now time.Time) error {
	mesh, err := pki.NewMeshCA(mv.Root, mv.Secrets.RootCA(), pki.MeshConfig{Cluster: mv.Manifest.Cluster,
		Epoch: t.AuthorityEpoch, Validity: authority.MeshLife(mv.Manifest)}, now)
	if err != nil {
		return fmt.Errorf("make the mesh CA: %w", err)
	}
	mv.Mesh, t.MeshCAKey = mesh, mesh.KeyID()
	return nil
}

// changesOnly reports whether what changes between two manifests is what a
// transition of kind may change. Signers who consented to one kind did not consent
// to what only another may do.
func changesOnly(kind history.Kind, before, after *manifest.Manifest) error {
	switch kind {
	case history.KindSet:
		if !sameOwners(after.Seed, before.Seed) {
			return errcode.New(errcode.ManifestOtherKind,
				"kind", "set", "problem", "it changes the owners of the seed, or how many of them it takes, and a set "+
					"keeps them",
				"do", "set all else first, then: fealty manifest reshare FILE")
		}
	case history.KindReshare:
		if c, beyond := manifest.Diff(before, after).BeyondSeed(); beyond {
			return errcode.New(errcode.ManifestOtherKind,
				"kind", "reshare", "problem", fmt.Sprintf("it also changes %s of %s, and a reshare changes the seed's "+
					"owners alone", c.Class, c.Subject),
				"do", "start from fealty manifest get, change seed alone, and bring the rest with: fealty manifest "+
					"set FILE")
		}
		if len(after.Seed.People()) == 0 && sameOwners(after.Seed, before.Seed) {
			return errcode.New(errcode.ManifestOtherKind,
				"kind", "reshare", "problem", "no owner is a person with a share, and the keepers stay the same: "+
					"there is nothing to share anew", "do", "change seed.owners first")
		}
		for _, o := range after.Seed.Keepers() {
			// The sealed seed is stored under the keeper's name, and a copy that the keeper of
			// the manifest in force opens must not be overwritten before the head moves.
			i := slices.IndexFunc(before.Seed.Owners,
				func(b manifest.Owner) bool { return b.Name == o.Name && b.Keeper != "" && b.Keeper != o.Keeper })
			if i >= 0 {
				return errcode.New(errcode.ManifestOtherKind,
					"kind", "reshare", "problem", fmt.Sprintf("keeper %s was %s and becomes %s under the same name",
						o.Name, before.Seed.Owners[i].Keeper, o.Keeper),
					"do", "give the new keeper another name")
			}
		}
	default:
		return errcode.New(errcode.RequestField,
			"field", "kind", "problem", fmt.Sprintf("%.32q is none that can be asked for: set or reshare", kind))
	}
	return nil
}

// follows reports whether req was made for the state s.
func follows(req *fealtyv1.SetManifestRequest, s *authority.State, m *manifest.Manifest) error {
	switch {
	case len(req.GetCurrentTransition()) == 0:
		return errcode.New(errcode.HistoryInitialized, "cluster", s.Manifest.Cluster)
	case string(req.GetCurrentTransition()) != string(s.Head.Hash[:]):
		return errcode.New(errcode.ManifestStale, "expected", ShortHex(req.GetCurrentTransition()), "head",
			s.Head.Hash.String()[:16], "index", fmt.Sprint(s.Head.Index))
	case m.Cluster != s.Manifest.Cluster:
		return errcode.New(errcode.RequestField, "field", "cluster", "problem",
			fmt.Sprintf("the manifest is of %s, and this cluster is %s", m.Cluster, s.Manifest.Cluster))
	}
	return nil
}

// Authorize gives t reason and signatures of req, and reports whether those reach
// the threshold of the signers in force.
func Authorize(req *fealtyv1.SetManifestRequest, s *authority.State, t *history.Transition) error {
	t.Reason = req.GetReason()
	for _, sig := range req.GetSignatures() {
		key, err := manifest.ParseKey(sig.GetKey())
		if err != nil || len(sig.GetSignature()) != 64 {
			return errcode.New(errcode.ManifestMissigned, "change", t.Kind.Undone(), "signer", sig.GetKey())
		}
		if slices.ContainsFunc(t.Signatures, func(s history.Signature) bool { return s.Key == key }) {
			return errcode.New(errcode.SignatureTwice, "change", t.Kind.Undone(), "signer", key.String())
		}
		t.Signatures = append(t.Signatures, history.Signature{Key: key, Signature: [64]byte(sig.GetSignature())})
	}
	if err := history.Authorize(s.Manifest, t.Statement(), t.Signatures); err != nil {
		return unauthorizedSet(t.Kind, err)
	}
	return nil
}

// linkOf names t by its hash, which is known before anything is written.
func linkOf(t *history.Transition) (history.Link, error) {
	raw, err := t.Encode()
	if err != nil {
		return history.Link{}, errcode.Wrap(err, errcode.RequestField, "field", "transition", "problem", err.Error())
	}
	return history.Link{Transition: *t, Hash: sha256.Sum256(raw)}, nil
}

func sameOwners(a, b manifest.Seed) bool {
	if a.Threshold != b.Threshold || len(a.Owners) != len(b.Owners) {
		return false
	}
	for i := range a.Owners {
		if a.Owners[i] != b.Owners[i] {
			return false
		}
	}
	return true
}

func unauthorizedSet(kind history.Kind, err error) error {
	change := kind.Undone()
	var u *history.UnauthorizedError
	if errors.As(err, &u) && u.Key == nil {
		return errcode.Wrap(err, errcode.ManifestUnsigned, "change", change,
			"sign", "fealty manifest "+string(kind)+" --sign-with "+
				"KEY", "got", fmt.Sprint(u.Have), "want", fmt.Sprint(u.Need))
	}
	if u != nil && u.Foreign {
		return errcode.Wrap(err, errcode.SignatureForeign, "change", change, "signer", u.Key.String())
	}
	if u != nil {
		return errcode.Wrap(err, errcode.ManifestMissigned, "change", change, "signer", u.Key.String())
	}
	return errcode.Wrap(err, errcode.ManifestMissigned, "change", change)
}

// ShortHex shows the beginning of a hash that a caller gave.
func ShortHex(b []byte) string { return fmt.Sprintf("%x", b[:min(len(b), 8)]) }

// Message is l as it is sent; nil if there is none.
func Message(l history.Link) *fealtyv1.Transition {
	if l.Hash.IsZero() {
		return nil
	}
	raw, err := l.Encode()
	if err != nil {
		return nil // it was encoded when its hash was made
	}
	return &fealtyv1.Transition{
		Record: raw, Hash: l.Hash[:], Index: l.Index, AuthorityEpoch: l.AuthorityEpoch, Kind: string(l.Kind),
		Reason:       l.Reason,
		ManifestHash: l.Manifest[:], MeshCaKey: l.MeshCAKey[:],
	}
}
