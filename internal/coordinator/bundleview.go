package coordinator

import (
	"bytes"
	"crypto"
	"fmt"
	"slices"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/auditlog"
	"github.com/fealty-io/fealty/snapshot"
)

// trustView is one version of what the cluster believes: for our own
// connections, and signed for the members. It is immutable.
type trustView struct {
	version     uint64
	epoch       uint64
	meshKey     identity.KeyID // the current one
	contentHash snapshot.Digest
	size        int // of the content
	revocations snapshot.Digest
	revoked     snapshot.Revocations // what revocations is the digest of
	configKeys  []configKey          // that the bundle lists, oldest first
	rotation    *rotation            // the one that runs; nil: none
	bundle      *identity.Bundle
	signed      []byte // encoding of snapshot.Signed
	issuedAt    time.Time

	links       [][]byte // the newest transitions of the history
	rootChanges [][]byte // the changes of root that led to it
	rootEpoch   uint64   // the authority epoch that the last of them began; 0: none
}

// newer reports whether t takes the place of o.
func (t *trustView) newer(o *trustView) bool {
	return t.epoch > o.epoch || t.epoch == o.epoch && t.version > o.version
}

// heldAs reports whether a member that holds h needs nothing new. One that is not
// fresh there any more is to be renewed, though nothing in it changed.
func (t *trustView) heldAs(h *fealtyv1.HeldSnapshot) bool {
	switch snapshot.Freshness(h.GetFreshness()) {
	case snapshot.Stale, snapshot.Degraded, snapshot.Expired:
		return false
	}
	return h.GetAuthorityEpoch() == t.epoch && h.GetConfigVersion() == t.version &&
		bytes.Equal(h.GetContentHash(), t.contentHash[:])
}

func (t *trustView) message() *fealtyv1.SignedSnapshot {
	return &fealtyv1.SignedSnapshot{Scope: string(snapshot.ScopeTrustBundle), Envelope: t.signed}
}

func (t *trustView) changesMessage() *fealtyv1.ConnectResponse {
	changes := &fealtyv1.RootChanges{Changes: t.rootChanges}
	return &fealtyv1.ConnectResponse{News: &fealtyv1.ConnectResponse_RootChanges{RootChanges: changes}}
}

func (t *trustView) linksMessage() *fealtyv1.ConnectResponse {
	links := &fealtyv1.HistoryLinks{Links: t.links}
	return &fealtyv1.ConnectResponse{News: &fealtyv1.ConnectResponse_HistoryLinks{HistoryLinks: links}}
}

// signers returns the keys that sign records at now: the newest config signing
// key, and during a rotation the one before it too.
func (t *trustView) signers(a *bundleAuthority, now time.Time) []crypto.Signer {
	var out []crypto.Signer
	for _, k := range slices.Backward(t.configKeys) {
		if k.signing(now) && len(out) < snapshot.MaxSignatures {
			out = append(out, a.ConfigKey(k.Number))
		}
	}
	return out
}

// auditKeys are the config signing keys of the bundle, as who verifies the log has them.
func (t *trustView) auditKeys(a *bundleAuthority) auditlog.Keys {
	out := make(auditlog.Keys, 0, len(t.configKeys))
	for _, k := range t.configKeys {
		out = append(out, snapshot.ConfigKey{
			Algorithm: snapshot.AlgorithmTree, Key: a.PublicKey(k.Number),
			NotBefore: k.NotBefore, NotAfter: k.NotAfter, Revoked: !k.RevokedAt.IsZero(),
		})
	}
	return out
}

// open verifies a trust bundle that this cluster is to have signed. When it was
// valid is of no matter.
func (a *bundleAuthority) open(raw []byte) (*snapshot.TrustBundle, snapshot.Header, error) {
	signed, err := snapshot.Unmarshal(raw)
	if err != nil {
		return nil, snapshot.Header{}, err
	}
	claims, err := snapshot.ReadClaims(signed)
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

// reopen returns the view of a trust bundle that was signed before, as open verifies it.
// Which config keys it lists and whether a rotation runs is not in it.
func (a *bundleAuthority) reopen(raw []byte) (*trustView, error) {
	content, header, err := a.open(raw)
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
	return &trustView{
		version: header.ConfigVersion, epoch: header.AuthorityEpoch, meshKey: a.MeshKey,
		contentHash: header.ContentHash, size: header.ContentSize, revocations: revocations,
		revoked: snapshot.RevocationsIn(*content), bundle: believed, signed: raw, issuedAt: header.IssuedAt,
		links: a.Links, rootChanges: a.RootChanges, rootEpoch: a.RootEpoch,
	}, nil
}
