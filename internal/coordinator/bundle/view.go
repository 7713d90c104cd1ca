package bundle

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"fmt"
	"slices"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/auditlog"
	"github.com/fealty-io/fealty/internal/jwtsvid"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

// View is one version of what the cluster believes: for our own
// connections, and signed for the members. It is immutable.
type View struct {
	Version     uint64
	Epoch       uint64
	MeshKey     identity.KeyID // the current one
	ContentHash snapshot.Digest
	Size        int // of the content
	Revocations snapshot.Digest
	Revoked     snapshot.Revocations // what Revocations is the digest of
	ConfigKeys  []ConfigKey          // that the bundle lists, oldest first
	Rotation    *Rotation            // the one that runs; nil: none
	left        []LeftKey            // that left in rotations not long ago
	nextKey     uint32               // the number that the next rotation introduces
	Bundle      *identity.Bundle
	Signed      []byte // encoding of snapshot.Signed
	IssuedAt    time.Time

	Links       [][]byte // the newest transitions of the history
	RootChanges [][]byte // the changes of root that led to it
	RootEpoch   uint64   // the authority epoch that the last of them began; 0: none
}

// Newer reports whether t takes the place of o.
func (t *View) Newer(o *View) bool {
	return t.Epoch > o.Epoch || t.Epoch == o.Epoch && t.Version > o.Version
}

// HeldAs reports whether a member that holds h needs nothing new. One that is not
// fresh there any more is to be renewed, though nothing in it changed.
func (t *View) HeldAs(h *fealtyv1.HeldSnapshot) bool {
	switch snapshot.Freshness(h.GetFreshness()) {
	case snapshot.Stale, snapshot.Degraded, snapshot.Expired:
		return false
	}
	return h.GetAuthorityEpoch() == t.Epoch && h.GetConfigVersion() == t.Version &&
		bytes.Equal(h.GetContentHash(), t.ContentHash[:])
}

func (t *View) Message() *fealtyv1.SignedSnapshot {
	return &fealtyv1.SignedSnapshot{Scope: string(snapshot.ScopeTrustBundle), Envelope: t.Signed}
}

func (t *View) ChangesMessage() *fealtyv1.ConnectResponse {
	changes := &fealtyv1.RootChanges{Changes: t.RootChanges}
	return &fealtyv1.ConnectResponse{News: &fealtyv1.ConnectResponse_RootChanges{RootChanges: changes}}
}

func (t *View) LinksMessage() *fealtyv1.ConnectResponse {
	links := &fealtyv1.HistoryLinks{Links: t.Links}
	return &fealtyv1.ConnectResponse{News: &fealtyv1.ConnectResponse_HistoryLinks{HistoryLinks: links}}
}

// Signers returns the keys that sign records at now: the newest config signing
// key, and during a rotation the one before it too.
func (t *View) Signers(a *Authority, now time.Time) []crypto.Signer {
	var out []crypto.Signer
	for _, k := range slices.Backward(t.ConfigKeys) {
		if k.Signing(now) && len(out) < internalsnapshot.MaxSignatures {
			out = append(out, a.ConfigKey(k.Number))
		}
	}
	return out
}

// TokenSigner returns the key that signs JWT-SVIDs at now, and its kid. While the config signing
// key is rotated it is the one beside the older, which everybody who verifies knows. nil: none
// may sign.
func (t *View) TokenSigner(a *Authority, now time.Time) (crypto.Signer, string, error) {
	for _, k := range t.ConfigKeys {
		if k.Signing(now) {
			key := a.TokenKey(k.Number)
			der, err := x509.MarshalPKIXPublicKey(key.Public())
			return key, jwtsvid.IDOf(der), err
		}
	}
	return nil, "", nil
}

// TokenKeys are the statements of the config signing keys of the bundle over the keys that sign
// JWT-SVIDs beside them, oldest first, without those that are revoked.
func (t *View) TokenKeys(a *Authority) ([]jwtsvid.Statement, error) {
	var out []jwtsvid.Statement
	for _, k := range t.ConfigKeys {
		if k.revoked() {
			continue
		}
		s, err := jwtsvid.SignKey(a.Manifest.Cluster, a.TokenKey(k.Number).Public(), a.ConfigKey(k.Number))
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

// AuditKeys are the config signing keys of the bundle, as who verifies the log has them.
func (t *View) AuditKeys(a *Authority) auditlog.Keys {
	out := make(auditlog.Keys, 0, len(t.ConfigKeys))
	for _, k := range t.ConfigKeys {
		out = append(out, snapshot.ConfigKey{
			Algorithm: internalsnapshot.AlgorithmTree, Key: a.PublicKey(k.Number),
			NotBefore: k.NotBefore, NotAfter: k.NotAfter, Revoked: !k.RevokedAt.IsZero(),
		})
	}
	return out
}

// Open verifies a trust bundle that this cluster is to have signed. When it was
// valid is of no matter.
func (a *Authority) Open(raw []byte) (*snapshot.TrustBundle, snapshot.Header, error) {
	signed, err := snapshot.Unmarshal(raw)
	if err != nil {
		return nil, snapshot.Header{}, err
	}
	claims, err := signed.Claims()
	if err != nil {
		return nil, snapshot.Header{}, err
	}
	me, err := identity.New(a.Manifest.Cluster, identity.Coordinator, "restored")
	if err != nil {
		return nil, snapshot.Header{}, err
	}
	trust := snapshot.Trust{Me: me, Incarnation: identity.KeyOf(a.Root), ConfigRoot: a.PublicRoot()}
	v, err := snapshot.Verify(signed, trust, snapshot.Marks{}, claims.Header.IssuedAt)
	if err != nil {
		return nil, snapshot.Header{}, err
	}
	bundle, ok := v.TrustBundle()
	if !ok {
		return nil, v.Header(), fmt.Errorf("a %s is no trust bundle", v.Header().ScopeType)
	}
	return &bundle, v.Header(), nil
}

// Reopen returns the view of a trust bundle that was signed before, as open verifies it.
// Which config keys it lists and whether a rotation runs is not in it.
func (a *Authority) Reopen(raw []byte) (*View, error) {
	content, header, err := a.Open(raw)
	if err != nil {
		return nil, err
	}
	believed, err := content.Identity()
	if err != nil {
		return nil, err
	}
	revocations, err := content.Revocations()
	if err != nil {
		return nil, err
	}
	return &View{
		Version: header.ConfigVersion, Epoch: header.AuthorityEpoch, MeshKey: a.MeshKey,
		ContentHash: header.ContentHash, Size: header.ContentSize, Revocations: revocations,
		Revoked: snapshot.RevocationsIn(*content), Bundle: believed, Signed: raw, IssuedAt: header.IssuedAt,
		Links: a.Links, RootChanges: a.RootChanges, RootEpoch: a.RootEpoch,
	}, nil
}
