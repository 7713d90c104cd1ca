package bundle

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/manifest"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

// Next returns the trust state that fits a at now, and whether it is
// another one than that of in.
func (a *Authority) Next(in Input, now time.Time) (State, bool) {
	t := in.State.Value
	changed := in.outlived(now)
	if len(t.ConfigKeys) == 0 {
		t.ConfigKeys = []ConfigKey{newConfigKey(1, now)}
		t.LastConfigKey = 1
		changed = true
	}
	if t.SeedEpoch != a.Head.SeedEpoch {
		// The numbers are of other keys now: nobody holds one that is revoked.
		if t.SeedEpoch != 0 {
			t.ConfigKeys = slices.DeleteFunc(slices.Clone(t.ConfigKeys), ConfigKey.revoked)
			t.Left = nil
			t.Emergencies = nil // they are of the root before; what they revoked by name stays
		}
		t.SeedEpoch, changed = a.Head.SeedEpoch, true
	}
	keys := slices.Clone(t.MeshKeys)
	keys = slices.DeleteFunc(keys, func(k MeshKey) bool {
		gone := !k.AcceptUntil.IsZero() && !now.Before(k.AcceptUntil)
		changed = changed || gone
		return gone
	})
	if len(keys) == 0 || keys[0].Key != a.MeshKey {
		for i := range keys {
			if keys[i].AcceptUntil.IsZero() {
				// The last SVID that it can have signed ends no later than this.
				keys[i].AcceptUntil = now.Add(keys[i].LongestTTL)
			}
		}
		keys = slices.Insert(keys, 0, MeshKey{Key: a.MeshKey, AuthorityEpoch: a.Head.AuthorityEpoch})
		changed = true
	}
	if ttl := a.Manifest.LongestSVIDTTL(); ttl > keys[0].LongestTTL {
		keys[0].LongestTTL, changed = ttl, true
	}
	roots := slices.DeleteFunc(slices.Clone(t.Roots), func(r Root) bool {
		gone := !r.AcceptUntil.IsZero() && !now.Before(r.AcceptUntil)
		changed = changed || gone
		return gone
	})
	if len(roots) == 0 || !bytes.Equal(roots[0].DER, a.Root.Raw) {
		for i := range roots {
			if roots[i].AcceptUntil.IsZero() {
				// No SVID under it outlives the mesh CA keys that signed it.
				for _, k := range keys[1:] {
					roots[i].AcceptUntil = record.Later(roots[i].AcceptUntil, k.AcceptUntil)
				}
			}
		}
		roots = slices.Insert(roots, 0, Root{DER: a.Root.Raw})
		changed = true
	}
	t.Roots = roots
	if !t.Config {
		t.Config, changed = true, true
	}
	if t.UnbansFrom == 0 {
		t.UnbansFrom, changed = in.State.Version+1, true
	}
	if t.Head != a.Head.Hash {
		t.Head, changed = a.Head.Hash, true
	}
	t.MeshKeys = keys
	t.Bans = in.Sum()
	if changed {
		t.Change++
		t.AsOf = now
	}
	return t, changed
}

// Compile makes the content of the trust bundle. It is a function of the
// store and the history alone: two replicas compile equal bytes.
func (a *Authority) Compile(in Input) snapshot.TrustBundle {
	b := snapshot.TrustBundle{
		ClusterID:      a.Manifest.Cluster,
		AuthorityEpoch: a.Head.AuthorityEpoch,
		Roots:          [][]byte{a.Root.Raw},
		BannedIDs:      slices.Clone(in.BannedIDs),
		BannedKeys:     in.Listed(),
		ConfigRoot:     a.PublicRoot(),
		Head:           snapshot.Head{Index: a.Head.Index, Hash: snapshot.Digest(a.Head.Hash)},
		Signers:        snapshot.Signers{Threshold: a.Manifest.Signers.Threshold},
	}
	for _, r := range in.State.Value.Revoked {
		b.Revoked = append(b.Revoked, r.thing())
	}
	for _, k := range in.State.Value.MeshKeys {
		b.MeshKeys = append(b.MeshKeys, k.Key)
	}
	for _, k := range in.State.Value.ConfigKeys {
		b.ConfigKeys = append(b.ConfigKeys, snapshot.ConfigKey{
			Algorithm: internalsnapshot.AlgorithmTree,
			Key:       a.PublicKey(k.Number),
			NotBefore: k.NotBefore, NotAfter: k.NotAfter,
			Revoked: !k.RevokedAt.IsZero(), Scopes: configScopes(),
		})
	}
	for _, signer := range a.Manifest.Signers.Keys {
		b.Signers.Keys = append(b.Signers.Keys, snapshot.SignerKey{Name: signer.Name, Key: signer.Key.Public()})
	}
	for _, r := range in.State.Value.Roots {
		if !bytes.Equal(r.DER, a.Root.Raw) {
			b.RetiredRoots = append(b.RetiredRoots, r.DER)
		}
	}
	slices.SortFunc(b.RetiredRoots, bytes.Compare)
	slices.SortFunc(b.BannedIDs, identity.ID.Compare)
	slices.SortFunc(b.BannedKeys, compareKeys)
	slices.SortFunc(b.MeshKeys, compareKeys)
	slices.SortStableFunc(b.ConfigKeys, func(a, b snapshot.ConfigKey) int { return bytes.Compare(a.Key, b.Key) })
	slices.SortStableFunc(b.Signers.Keys, func(a, b snapshot.SignerKey) int { return bytes.Compare(a.Key, b.Key) })
	return b
}

func compareKeys(a, b identity.KeyID) int { return bytes.Compare(a[:], b[:]) }

// configScopes are the scopes that config signing keys sign: all but the trust
// bundle, which is the config root key's.
func configScopes() []snapshot.Scope {
	return slices.DeleteFunc(snapshot.Scopes(), func(s snapshot.Scope) bool { return s == snapshot.ScopeTrustBundle })
}

// Sign compiles and signs the bundle of in, which is valid from now on and for [Life]. An error
// says that no bundle can be made of it, as when it would be larger than a snapshot may be.
func (a *Authority) Sign(in Input, now time.Time) (*View, error) {
	content := a.Compile(in)
	bundle, err := content.Identity()
	if err != nil {
		return nil, fmt.Errorf("the trust bundle trusts nobody: %w", err)
	}
	revocations, err := content.Revocations()
	if err != nil {
		return nil, fmt.Errorf("digest the revocations: %w", err)
	}
	issued := now.UTC().Truncate(time.Second)
	life := Life(a.Manifest)
	draft, err := snapshot.Compose(snapshot.Header{
		ClusterID:      a.Manifest.Cluster,
		Subject:        snapshot.ClusterSubject(),
		ScopeType:      snapshot.ScopeTrustBundle,
		ConfigVersion:  uint64(in.State.Version),
		AuthorityEpoch: a.Head.AuthorityEpoch,
		IssuedAt:       issued, ValidFrom: issued,
		ExpiresAt:    issued.Add(life).Truncate(time.Second),
		RefreshAfter: issued.Add(min(RefreshPause, life/2)).Truncate(time.Second),
	}, &content)
	if err != nil {
		return nil, fmt.Errorf("compose the trust bundle: %w", err)
	}
	signed, err := draft.Sign(a.ConfigRoot())
	if err != nil {
		return nil, fmt.Errorf("sign the trust bundle: %w", err)
	}
	raw, err := signed.Marshal()
	if err != nil {
		return nil, fmt.Errorf("encode the trust bundle: %w", err)
	}
	return &View{
		Version: uint64(in.State.Version), Epoch: a.Head.AuthorityEpoch, MeshKey: a.MeshKey,
		ContentHash: draft.Header().ContentHash, Size: draft.Header().ContentSize, Revocations: revocations,
		Revoked: snapshot.RevocationsIn(content), ConfigKeys: slices.Clone(in.State.Value.ConfigKeys),
		Rotation: in.State.Value.Rotation, left: slices.Clone(in.State.Value.Left), nextKey: in.State.Value.next(),
		Bundle: bundle, Signed: raw, IssuedAt: issued, Links: a.Links,
		RootChanges: a.RootChanges, RootEpoch: a.RootEpoch,
	}, nil
}

// RefreshPause is how old a bundle may get before it is signed anew: that of a
// connected member is never older.
const RefreshPause = time.Hour

// Life is how long a trust bundle is valid without a newer one: as long as
// a mesh CA certificate, so that an identity is never cut short by its bundle.
func Life(m *manifest.Manifest) time.Duration { return 2 * m.LongestSVIDTTL() }

// Reserve is what of a bundle's size is kept for what must not fail: the keys,
// roots and signers that a change of the manifest or of authority adds.
const Reserve = 64 << 10

// ErrFull is matched when a bundle could not list what it has to.
var ErrFull = errors.New("the trust bundle is full")
