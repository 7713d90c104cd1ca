package snapshot

import (
	"bytes"
	"crypto/ed25519"
	"crypto/x509"
	"fmt"
	"slices"
	"time"

	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/canonical"
	internalidentity "github.com/fealty-io/fealty/internal/identity"
	"github.com/fealty-io/fealty/internal/snapshot"
)

// Limits of a trust bundle, beside its size.
const (
	maxKeyBytes = 1 << 10 // of a config key of any algorithm
)

// TrustBundle is the content of scope trust_bundle: what a node believes. Lists
// are sorted, without duplicates: roots, keys and hashes by their bytes, ids by
// identity.ID.Compare, names as strings.
type TrustBundle struct {
	ClusterID      string
	AuthorityEpoch uint64 // the header's

	Roots [][]byte // root CA certificates, DER; at least one
	// RetiredRoots are root CA certificates that another root took the place of, DER:
	// they vouch for members alone, see [identity.BundleConfig].
	RetiredRoots [][]byte
	MeshKeys     []identity.KeyID // mesh CA keys that are accepted
	BannedIDs    []identity.ID    // members that are banned
	BannedKeys   []identity.KeyID // keys of leaves or mesh CAs that are banned

	// Revoked is what nobody may rely on any more. It only grows.
	Revoked []Revoked

	// ConfigRoot signs trust bundles. It is the key that the verifier pins: a bundle
	// cannot replace it.
	ConfigRoot ed25519.PublicKey

	// ConfigKeys sign all other scopes.
	ConfigKeys []ConfigKey

	// Signers may change the manifest, Threshold of them together.
	Signers Signers

	// Head is the head of the manifest history that the bundle was made from.
	Head Head
}

// ConfigKey is a config signing key, as its bundle describes it.
type ConfigKey struct {
	// Algorithm is the signature algorithm that the key is for. A key of an algorithm
	// that this package does not know stays in the bundle and verifies nothing.
	Algorithm string
	Key       []byte    // for ed25519-tree, an Ed25519 public key
	NotBefore time.Time // inclusive
	NotAfter  time.Time // exclusive
	Revoked   bool
	Scopes    []Scope // what it may sign; names that are not known are kept
}

// ID returns the key's id: the first 8 bytes of the SHA-256 of Key, in hex.
func (k *ConfigKey) ID() string { return snapshot.KeyIDOf(k.Key) }

// Signers are the keys that may change the manifest.
type Signers struct {
	Threshold int // within 1 and len(Keys)
	Keys      []SignerKey
}

// SignerKey is one signer's Ed25519 key.
type SignerKey struct {
	Name string
	Key  ed25519.PublicKey
}

// Head names a link of the manifest history.
type Head struct {
	Index uint64
	Hash  Digest
}

func walkKeyID(c *codec, k *identity.KeyID) { c.Fixed(k[:]) }

func (b *TrustBundle) scope() Scope { return ScopeTrustBundle }

func (b *TrustBundle) walk(c *codec) {
	c.Begin()
	c.Member("authority_epoch")
	c.Number64(&b.AuthorityEpoch)
	c.Member("banned_ids")
	canonical.List(c, &b.BannedIDs, snapshot.MaxBans, canonical.ID)
	c.Member("banned_keys")
	canonical.List(c, &b.BannedKeys, snapshot.MaxBans, walkKeyID)
	c.Member("cluster_id")
	c.Text(&b.ClusterID, internalidentity.MaxClusterBytes)
	c.Member("config_keys")
	canonical.List(c, &b.ConfigKeys, snapshot.MaxConfigKeys, func(c *codec, k *ConfigKey) { k.walk(c) })
	c.Member("config_root_key")
	c.Blob((*[]byte)(&b.ConfigRoot), ed25519.PublicKeySize)
	c.Member("head")
	c.Begin()
	c.Member("hash")
	c.Fixed(b.Head.Hash[:])
	c.Member("index")
	c.Number64(&b.Head.Index)
	c.End()
	c.Member("mesh_keys")
	canonical.List(c, &b.MeshKeys, snapshot.MaxMeshKeys, walkKeyID)
	// The member is there if the list is not empty: one content has one form.
	if c.Has("retired_roots", len(b.RetiredRoots) > 0) {
		c.Member("retired_roots")
		canonical.List(c, &b.RetiredRoots, snapshot.MaxRoots, func(c *codec, der *[]byte) { c.Blob(der, internalidentity.MaxCertificateBytes) })
		if c.Err() == nil && len(b.RetiredRoots) == 0 {
			c.Fail("retired_roots is empty: it is left out then")
		}
	}
	canonical.Revoked(c, &b.Revoked)
	c.Member("roots")
	canonical.List(c, &b.Roots, snapshot.MaxRoots, func(c *codec, der *[]byte) { c.Blob(der, internalidentity.MaxCertificateBytes) })
	c.Member("signers")
	c.Begin()
	c.Member("keys")
	canonical.List(c, &b.Signers.Keys, snapshot.MaxSigners, func(c *codec, k *SignerKey) {
		c.Begin()
		c.Member("key")
		c.Blob((*[]byte)(&k.Key), ed25519.PublicKeySize)
		c.Member("name")
		c.Text(&k.Name, maxName)
		c.End()
	})
	c.Member("threshold")
	c.Number(&b.Signers.Threshold, snapshot.MaxSigners)
	c.End()
	c.End()
}

func (k *ConfigKey) walk(c *codec) {
	c.Begin()
	c.Member("algorithm")
	c.Text(&k.Algorithm, snapshot.MaxAlgorithm)
	c.Member("key")
	c.Blob(&k.Key, maxKeyBytes)
	c.Member("not_after")
	c.Instant(&k.NotAfter)
	c.Member("not_before")
	c.Instant(&k.NotBefore)
	c.Member("revoked")
	c.Boolean(&k.Revoked)
	c.Member("scopes")
	walkScopes(c, &k.Scopes)
	c.End()
}

// grants: a bundle is trust, not access.
func (b *TrustBundle) grants(*Header) string { return "" }

func (b *TrustBundle) fault(h *Header) string {
	switch {
	case b.ClusterID != h.ClusterID:
		return fmt.Sprintf("cluster_id is %.80q, the header's %.80q", b.ClusterID, h.ClusterID)
	case b.AuthorityEpoch != h.AuthorityEpoch:
		return fmt.Sprintf("authority_epoch is %d, the header's %d", b.AuthorityEpoch, h.AuthorityEpoch)
	case len(b.ConfigRoot) != ed25519.PublicKeySize:
		return fmt.Sprintf("config_root_key has %d bytes, want %d", len(b.ConfigRoot), ed25519.PublicKeySize)
	case !canonical.Ascending(b.Roots, bytes.Compare):
		return "roots are out of order or double"
	case !canonical.Ascending(b.RetiredRoots, bytes.Compare):
		return "retired_roots are out of order or double"
	case !canonical.Ascending(b.MeshKeys, identity.KeyID.Compare):
		return "mesh_keys are out of order or double"
	case !canonical.Ascending(b.BannedIDs, identity.ID.Compare):
		return "banned_ids are out of order or double"
	case !canonical.Ascending(b.BannedKeys, identity.KeyID.Compare):
		return "banned_keys are out of order or double"
	// By their bytes: one key under two ids would count as two.
	case !canonical.Ascending(b.ConfigKeys, func(x, y ConfigKey) int { return bytes.Compare(x.Key, y.Key) }):
		return "config_keys are out of order or double"
	case !canonical.Ascending(b.Signers.Keys, func(x, y SignerKey) int { return bytes.Compare(x.Key, y.Key) }):
		return "the signers' keys are out of order or double"
	case b.Signers.Threshold < 1 || b.Signers.Threshold > len(b.Signers.Keys):
		return fmt.Sprintf("a threshold of %d with %d signers", b.Signers.Threshold, len(b.Signers.Keys))
	case b.Head.Hash.IsZero():
		return "no head"
	}
	if msg := faultOfRevoked(b.ClusterID, b.Revoked); msg != "" {
		return msg
	}
	for i := range b.ConfigKeys {
		if msg := b.ConfigKeys[i].fault(b.ConfigRoot); msg != "" {
			return fmt.Sprintf("config key %s: %s", b.ConfigKeys[i].ID(), msg)
		}
	}
	for _, k := range b.Signers.Keys {
		if len(k.Key) != ed25519.PublicKeySize || !validName(k.Name) {
			return fmt.Sprintf("signer %.40q: want a name and a key of %d bytes", k.Name, ed25519.PublicKeySize)
		}
	}
	if _, err := b.Identity(); err != nil {
		return err.Error()
	}
	return ""
}

func (k *ConfigKey) fault(root ed25519.PublicKey) string {
	switch {
	case !validName(k.Algorithm):
		return fmt.Sprintf("algorithm %.40q is no name", k.Algorithm)
	case len(k.Key) == 0 || k.Algorithm == snapshot.AlgorithmTree && len(k.Key) != ed25519.PublicKeySize:
		return fmt.Sprintf("a key of %d bytes", len(k.Key))
	// A thief of a config signing key must not get at the bundle with it.
	case bytes.Equal(k.Key, root):
		return "it is the config root key"
	case !k.NotAfter.After(k.NotBefore):
		return "not_after is not after not_before"
	case !canonical.Ascending(k.Scopes, func(x, y Scope) int { return bytes.Compare([]byte(x), []byte(y)) }):
		return "scopes are out of order or double"
	case slices.Contains(k.Scopes, ScopeTrustBundle):
		return "scope trust_bundle is for the config root key"
	}
	for _, s := range k.Scopes {
		if !validName(string(s)) {
			return fmt.Sprintf("scope %.40q is no name", s)
		}
	}
	return ""
}

// trusts says why the key may not sign scope at now, or "".
func (k *ConfigKey) trusts(scope Scope, now time.Time) string {
	switch {
	case k.Revoked:
		return "is revoked"
	case !slices.Contains(k.Scopes, scope):
		return fmt.Sprintf("may not sign %.40s", scope)
	case now.Add(snapshot.ClockTolerance).Before(k.NotBefore):
		return fmt.Sprintf("is not valid before %s", k.NotBefore.Format(canonical.TimeLayout))
	case !now.Before(k.NotAfter):
		return fmt.Sprintf("expired at %s", k.NotAfter.Format(canonical.TimeLayout))
	}
	return ""
}

// follows says why b under h cannot take the place of old, or "". Nothing that
// the config root key signs alone may move the cluster's roots, take the history
// back, or give trust again to what was revoked. A node may lose its marks and
// still have its bundle: an older one must not take it back then either.
func (b *TrustBundle) follows(h *Header, old *TrustBundle, oldHeader *Header) string {
	for _, k := range old.ConfigKeys {
		// It stays in the bundle until it is over: once it is left out, a bundle after
		// that could list it again as if it were new.
		if k.Revoked && h.IssuedAt.Before(k.NotAfter) && !slices.ContainsFunc(b.ConfigKeys, func(n ConfigKey) bool { return bytes.Equal(n.Key, k.Key) && n.Revoked }) {
			return fmt.Sprintf("config key %s was revoked and is not any more", k.ID())
		}
	}
	for _, r := range old.Revoked {
		if !b.Revokes(r.Kind, r.Name) {
			return fmt.Sprintf("%.40s %.80q was revoked and is not any more", r.Kind, r.Name)
		}
	}
	was, err1 := old.rootKeys()
	is, err2 := b.rootKeys()
	switch {
	case h.AuthorityEpoch < oldHeader.AuthorityEpoch || h.AuthorityEpoch == oldHeader.AuthorityEpoch && h.ConfigVersion < oldHeader.ConfigVersion:
		return fmt.Sprintf("version %d of epoch %d, the active bundle is version %d of epoch %d",
			h.ConfigVersion, h.AuthorityEpoch, oldHeader.ConfigVersion, oldHeader.AuthorityEpoch)
	case err1 != nil || err2 != nil || !slices.Equal(was, is):
		return "the root CA keys changed, which needs the signers of the manifest"
	case slices.ContainsFunc(b.RetiredRoots, func(der []byte) bool {
		return !slices.ContainsFunc(old.RetiredRoots, func(known []byte) bool { return bytes.Equal(known, der) })
	}):
		return "it lists a retired root that is new, which needs the signers of the manifest"
	case b.AuthorityEpoch == old.AuthorityEpoch && b.Head.Index < old.Head.Index:
		return fmt.Sprintf("the head of the history went back from %d to %d", old.Head.Index, b.Head.Index)
	case b.AuthorityEpoch == old.AuthorityEpoch && b.Head.Index == old.Head.Index && b.Head.Hash != old.Head.Hash:
		return fmt.Sprintf("another head of the history at %d: the history forked", b.Head.Index)
	}
	return ""
}

// rootKeys returns the roots' keys, sorted: a root certificate that was renewed
// over the same key is the same root.
func (b *TrustBundle) rootKeys() ([]identity.KeyID, error) {
	keys := make([]identity.KeyID, len(b.Roots))
	for i, der := range b.Roots {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, err
		}
		keys[i] = identity.KeyOf(cert)
	}
	slices.SortFunc(keys, identity.KeyID.Compare)
	return slices.Compact(keys), nil
}

// FenceAuthority returns whose statements package [fence] believes of the bundle's cluster:
// grants, assignments and terms signed with a config key that may sign scope node_runtime,
// which is what the cluster tells each member of itself. now says when a key's time is;
// required. Take the authority of the next bundle when there is one: a key that it revokes
// goes on to count by this one.
func (b TrustBundle) FenceAuthority(now func() time.Time) fence.Authority {
	return b.FenceAuthorityWith(Revocations{}, now)
}

// FenceAuthorityWith is [TrustBundle.FenceAuthority] without the config keys that r revokes.
func (b TrustBundle) FenceAuthorityWith(r Revocations, now func() time.Time) fence.Authority {
	keys := make(map[string]ConfigKey)
	for _, k := range b.clone().ConfigKeys {
		if k.Algorithm == snapshot.AlgorithmTree && !r.revokesKey(k.Key) {
			keys[k.ID()] = k
		}
	}
	return fence.Authority{Cluster: b.ClusterID, Key: func(id string) (ed25519.PublicKey, bool) {
		k, ok := keys[id]
		return k.Key, ok && k.trusts(ScopeNodeRuntime, now()) == ""
	}}
}

// Identity returns what the bundle says about certificates.
func (b TrustBundle) Identity() (*identity.Bundle, error) {
	cfg := identity.BundleConfig{Cluster: b.ClusterID, MeshKeys: b.MeshKeys, BannedIDs: b.BannedIDs, BannedKeys: b.BannedKeys}
	for i, der := range b.Roots {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, fmt.Errorf("snapshot: root %d of the trust bundle is no certificate: %w", i, err)
		}
		cfg.Roots = append(cfg.Roots, cert)
	}
	for i, der := range b.RetiredRoots {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, fmt.Errorf("snapshot: retired root %d of the trust bundle is no certificate: %w", i, err)
		}
		cfg.RetiredRoots = append(cfg.RetiredRoots, cert)
	}
	bundle, err := identity.NewBundle(cfg)
	if err != nil {
		return nil, fmt.Errorf("snapshot: trust bundle: %w", err)
	}
	return bundle, nil
}

// revocations is what a record's digest of the revocations covers.
type revocations struct{ b *TrustBundle }

func (r revocations) walk(c *codec) {
	revoked := make([]string, 0, len(r.b.ConfigKeys))
	for i := range r.b.ConfigKeys {
		if r.b.ConfigKeys[i].Revoked {
			revoked = append(revoked, DigestOf(r.b.ConfigKeys[i].Key).String())
		}
	}
	c.Begin()
	c.Member("banned_ids")
	canonical.List(c, &r.b.BannedIDs, snapshot.MaxBans, canonical.ID)
	c.Member("banned_keys")
	canonical.List(c, &r.b.BannedKeys, snapshot.MaxBans, walkKeyID)
	canonical.Revoked(c, &r.b.Revoked)
	c.Member("revoked_keys")
	c.Names(&revoked, snapshot.MaxConfigKeys, 64)
	c.End()
}

// Revocations returns the digest of all that the bundle revokes: banned ids,
// banned keys, revoked config keys and what is revoked by name. It fails only for a bundle above a limit.
func (b TrustBundle) Revocations() (Digest, error) {
	out, err := encode(revocations{&b})
	if err != nil {
		return Digest{}, fmt.Errorf("snapshot: revocations: %w", err)
	}
	return DigestOf(out), nil
}

// clone returns a copy that shares nothing that can be written.
func (b *TrustBundle) clone() TrustBundle {
	n := *b
	n.Roots = slices.Clone(b.Roots)
	for i := range n.Roots {
		n.Roots[i] = bytes.Clone(n.Roots[i])
	}
	n.RetiredRoots = slices.Clone(b.RetiredRoots)
	for i := range n.RetiredRoots {
		n.RetiredRoots[i] = bytes.Clone(n.RetiredRoots[i])
	}
	n.MeshKeys = slices.Clone(b.MeshKeys)
	n.BannedIDs = slices.Clone(b.BannedIDs)
	n.BannedKeys = slices.Clone(b.BannedKeys)
	n.Revoked = slices.Clone(b.Revoked)
	n.ConfigRoot = bytes.Clone(b.ConfigRoot)
	n.ConfigKeys = slices.Clone(b.ConfigKeys)
	for i := range n.ConfigKeys {
		n.ConfigKeys[i].Key = bytes.Clone(n.ConfigKeys[i].Key)
		n.ConfigKeys[i].Scopes = slices.Clone(n.ConfigKeys[i].Scopes)
	}
	n.Signers.Keys = slices.Clone(b.Signers.Keys)
	for i := range n.Signers.Keys {
		n.Signers.Keys[i].Key = bytes.Clone(n.Signers.Keys[i].Key)
	}
	return n
}
