package identity

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/fealty-io/fealty/internal/identity"

	"slices"
	"time"
)

// BundleConfig is what [NewBundle] makes a bundle of. Order and repetition do not matter.
type BundleConfig struct {
	// Cluster is the trust domain whose identities count. Required.
	Cluster string

	// Roots are the trust anchors, each of the profile of roots and signed by itself; 1 to
	// 16. They may be out of date: that shows when they are used.
	Roots []*x509.Certificate

	// RetiredRoots are roots that another took the place of, while certificates under
	// them are in date. They vouch for members, by mesh CAs of MeshKeys, and for nobody
	// who decides for others, of kinds coordinator, admin and readonly: who kept the
	// keys under a retired root could make one. Together with Roots at most 16.
	RetiredRoots []*x509.Certificate

	// MeshKeys are the keys of the mesh CAs that are accepted, at most 256.
	// A leaf of kind coordinator needs only a root; every other leaf needs its mesh
	// CA's key here. None: coordinators alone are trusted.
	MeshKeys []KeyID

	// BannedIDs and BannedKeys are refused whatever vouches for them, at most
	// 131,072 each. A banned key counts in a leaf, a mesh CA and a root.
	BannedIDs  []ID
	BannedKeys []KeyID
}

// Bundle is what a process believes about certificates. Its answers never change, and it
// is safe for concurrent use. A nil Bundle trusts nobody.
type Bundle struct {
	cluster     string
	roots       []*x509.Certificate // sorted by DER, distinct
	retired     []*x509.Certificate // as roots
	meshKeys    []KeyID             // these are sorted and distinct
	bannedIDs   []ID
	bannedKeys  []KeyID
	fingerprint [sha256.Size]byte

	// operator is set for a bundle of [NewOperatorBundle]: its chains are verified by
	// that alone.
	operator *OperatorRoots

	isMesh      map[KeyID]bool
	isBannedID  map[ID]bool
	isBannedKey map[KeyID]bool

	// checked spares work and changes no verdict.
	checked meshCache
}

// NewBundle checks cfg and makes a bundle of it, which keeps no slice of cfg's. Its roots
// are shared: nobody may change a parsed certificate.
//
// Errors: one that matches [ErrInvalidID] for the cluster, [*ChainError] for a root, or a
// plain one that names the field.
func NewBundle(cfg BundleConfig) (*Bundle, error) {
	if err := CheckCluster(cfg.Cluster); err != nil {
		return nil, fmt.Errorf("identity: BundleConfig.Cluster: %w", err)
	}
	if len(cfg.Roots) == 0 {
		return nil, errors.New("identity: BundleConfig.Roots is empty: a bundle without a root trusts nobody; add the cluster's root certificate")
	}
	for _, limit := range []struct {
		field     string
		got, most int
	}{
		{"Roots", len(cfg.Roots) + len(cfg.RetiredRoots), identity.MaxRoots},
		{"MeshKeys", len(cfg.MeshKeys), identity.MaxMeshKeys},
		{"BannedIDs", len(cfg.BannedIDs), identity.MaxBans},
		{"BannedKeys", len(cfg.BannedKeys), identity.MaxBans},
	} {
		if limit.got > limit.most {
			return nil, fmt.Errorf("identity: BundleConfig.%s has %d entries, at most %d are allowed: remove those that have expired", limit.field, limit.got, limit.most)
		}
	}
	for _, list := range []struct {
		field string
		roots []*x509.Certificate
	}{{"Roots", cfg.Roots}, {"RetiredRoots", cfg.RetiredRoots}} {
		for i, root := range list.roots {
			if r := identity.RootProfile().CheckShape(root); r != nil {
				return nil, fmt.Errorf("identity: BundleConfig.%s[%d]: %w", list.field, i, (*ChainError)(r))
			}
			if r := identity.CheckSelfSigned(root); r != nil {
				return nil, fmt.Errorf("identity: BundleConfig.%s[%d]: %w", list.field, i, (*ChainError)(r))
			}
		}
	}
	for i, retired := range cfg.RetiredRoots {
		if slices.ContainsFunc(cfg.Roots, func(root *x509.Certificate) bool { return KeyOf(root) == KeyOf(retired) }) {
			return nil, fmt.Errorf("identity: BundleConfig.RetiredRoots[%d] has the key of a root that counts in full: list it once", i)
		}
	}
	for i, id := range cfg.BannedIDs {
		if id.Cluster() != cfg.Cluster {
			return nil, fmt.Errorf("identity: BundleConfig.BannedIDs[%d] is %s, which is not of cluster %s: it would ban nobody", i, identity.Clip(id.String()), cfg.Cluster)
		}
	}
	if i := slices.Index(cfg.MeshKeys, KeyID{}); i >= 0 {
		return nil, fmt.Errorf("identity: BundleConfig.MeshKeys[%d] is blank: give the SHA-256 of the mesh CA's public key", i)
	}
	if i := slices.Index(cfg.BannedKeys, KeyID{}); i >= 0 {
		return nil, fmt.Errorf("identity: BundleConfig.BannedKeys[%d] is blank: give the SHA-256 of the banned public key", i)
	}

	byDER := func(a, b *x509.Certificate) int { return bytes.Compare(a.Raw, b.Raw) }
	b := &Bundle{
		cluster:     cfg.Cluster,
		roots:       distinct(cfg.Roots, byDER),
		retired:     distinct(cfg.RetiredRoots, byDER),
		meshKeys:    distinct(cfg.MeshKeys, KeyID.Compare),
		bannedIDs:   distinct(cfg.BannedIDs, ID.Compare),
		bannedKeys:  distinct(cfg.BannedKeys, KeyID.Compare),
		isMesh:      setOf(cfg.MeshKeys),
		isBannedID:  setOf(cfg.BannedIDs),
		isBannedKey: setOf(cfg.BannedKeys),
	}
	b.fingerprint = b.hash()
	return b, nil
}

// hash covers everything that the bundle says. Each list is preceded by its length and
// each entry by its own, so that no two bundles have the same input.
func (b *Bundle) hash() [sha256.Size]byte {
	var in []byte
	add := func(entry []byte) {
		in = binary.BigEndian.AppendUint64(in, uint64(len(entry)))
		in = append(in, entry...)
	}
	count := func(n int) { in = binary.BigEndian.AppendUint64(in, uint64(n)) }

	add([]byte("fealty identity bundle 1"))
	if b.operator != nil {
		add([]byte("operator"))
	}
	add([]byte(b.cluster))
	count(len(b.roots))
	for _, root := range b.roots {
		add(root.Raw)
	}
	if len(b.retired) > 0 {
		add([]byte("retired roots"))
		count(len(b.retired))
		for _, root := range b.retired {
			add(root.Raw)
		}
	}
	count(len(b.meshKeys))
	for _, key := range b.meshKeys {
		add(key[:])
	}
	count(len(b.bannedIDs))
	for _, id := range b.bannedIDs {
		add([]byte(id.uri))
	}
	count(len(b.bannedKeys))
	for _, key := range b.bannedKeys {
		add(key[:])
	}
	return sha256.Sum256(in)
}

// Cluster returns the cluster whose identities count.
func (b *Bundle) Cluster() string {
	if b == nil {
		return ""
	}
	return b.cluster
}

// Roots returns a copy of the list of trust anchors that count in full, sorted by
// their DER.
func (b *Bundle) Roots() []*x509.Certificate {
	if b == nil {
		return nil
	}
	return slices.Clone(b.roots)
}

// RetiredRoots returns a copy of the list of roots on their way out, sorted by their DER.
func (b *Bundle) RetiredRoots() []*x509.Certificate {
	if b == nil {
		return nil
	}
	return slices.Clone(b.retired)
}

// MeshKeys returns a copy of the accepted mesh CA keys, sorted.
func (b *Bundle) MeshKeys() []KeyID {
	if b == nil {
		return nil
	}
	return slices.Clone(b.meshKeys)
}

// BannedIDs returns a copy of the banned identities, sorted.
func (b *Bundle) BannedIDs() []ID {
	if b == nil {
		return nil
	}
	return slices.Clone(b.bannedIDs)
}

// BannedKeys returns a copy of the banned keys, sorted.
func (b *Bundle) BannedKeys() []KeyID {
	if b == nil {
		return nil
	}
	return slices.Clone(b.bannedKeys)
}

// Banned reports whether the identity or the key is banned.
func (b *Bundle) Banned(id ID, key KeyID) bool {
	return b != nil && (b.isBannedID[id] || b.isBannedKey[key])
}

// Outlived reports whether a chain that was accepted under an earlier bundle ended with
// its root: id decides for others, and no root that counts in full made the mesh CA of
// its chain. A peer that kept a connection over a change of root is asked this.
func (b *Bundle) Outlived(id ID, meshCA *x509.Certificate) bool {
	if b == nil || len(b.roots) == 0 || !decides(id.Kind()) {
		return false
	}
	return !slices.ContainsFunc(b.roots, func(root *x509.Certificate) bool { return bytes.Equal(root.SubjectKeyId, meshCA.AuthorityKeyId) })
}

// decides reports whether an identity of kind k decides for others: a retired root
// vouches for none.
func decides(k Kind) bool { return k == Coordinator || k == Admin || k == Readonly }

// Fingerprint is equal for bundles that say the same, and differs for any change.
func (b *Bundle) Fingerprint() [32]byte {
	if b == nil {
		return [32]byte{}
	}
	return b.fingerprint
}

func distinct[T any](list []T, compare func(a, b T) int) []T {
	sorted := slices.SortedFunc(slices.Values(list), compare)
	return slices.CompactFunc(sorted, func(a, b T) bool { return compare(a, b) == 0 })
}

func setOf[T comparable](list []T) map[T]bool {
	set := make(map[T]bool, len(list))
	for _, v := range list {
		set[v] = true
	}
	return set
}

// Verified is what a chain that passed [Bundle.Verify] says.
type Verified struct {
	// ID is the peer's identity, of the bundle's cluster; zero if IDErr is set.
	ID ID

	// IDErr says why the leaf identifies nobody here: it has no URI SAN, several, or
	// one of another form or cluster. It is nil or a [*SANError]. A server goes on with
	// the handshake and refuses each call; a client refuses the handshake.
	IDErr error

	Leaf *x509.Certificate
	Key  KeyID // of Leaf
}

// Peer returns v as the peer at addr.
func (v Verified) Peer(addr string) Peer {
	return Peer{ID: v.ID, Err: v.IDErr, Leaf: v.Leaf, Key: v.Key, Addr: addr}
}

// Verify decides at the time now whether chain is genuine. It is the leaf, its mesh CA,
// and, if the sender gave it too, the root: exactly these, in this order. Under a bundle
// of [NewOperatorBundle] it is what [OperatorRoots.Verify] takes.
//
// The certificates must come from a parser. A bundle remembers a few mesh CAs that it
// accepted, by their bytes, and does not check their profile and signature again: it then
// goes by what these bytes say. Verify stays a function of its arguments and the bundle.
//
// Errors: [*ChainError], with the first rule that refused. A ban outweighs expiry. A
// chain whose leaf identifies nobody is no error: see [Verified.IDErr].
func (b *Bundle) Verify(chain []*x509.Certificate, now time.Time) (Verified, error) {
	v, err := b.verify(chain, now)
	if e, ok := errors.AsType[*ChainError](err); ok {
		if other := b.otherCluster(chain); other != "" {
			e.Presented, e.Cluster = other, b.Cluster()
		}
	}
	return v, err
}

// otherCluster returns the cluster that the leaf of chain names; blank if it is that of b,
// or if the leaf names none.
func (b *Bundle) otherCluster(chain []*x509.Certificate) string {
	if len(chain) == 0 {
		return ""
	}
	id, err := FromCertificate(chain[0])
	if err != nil || id.Cluster() == b.Cluster() {
		return ""
	}
	return id.Cluster()
}

func (b *Bundle) verify(chain []*x509.Certificate, now time.Time) (Verified, error) {
	p := path{bundle: b, chain: chain}
	if b != nil && b.operator != nil {
		if err := b.operator.Verify(chain, now, x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth); err != nil {
			return Verified{}, err
		}
		p.identify()
		return Verified{ID: p.id, IDErr: p.idErr, Leaf: p.leaf(), Key: KeyOf(p.leaf())}, nil
	}
	if err := p.run(formRules); err != nil {
		return Verified{}, err
	}
	p.recall()
	if err := p.run(anchorRules); err != nil {
		return Verified{}, err
	}
	if r := identity.LeafProfile().CheckShape(p.leaf()); r != nil {
		return Verified{}, (*ChainError)(r)
	}
	if !p.recalled {
		if r := identity.MeshCAProfile().CheckShape(p.mesh()); r != nil {
			return Verified{}, (*ChainError)(r)
		}
	}
	// Every root passed its profile in NewBundle.
	if err := p.run(trustRules); err != nil {
		return Verified{}, err
	}
	p.identify()
	if err := p.run(acceptRules); err != nil {
		return Verified{}, err
	}
	if err := p.checkDates(now); err != nil {
		return Verified{}, err
	}
	if !p.recalled {
		p.remember()
	}
	return Verified{ID: p.id, IDErr: p.idErr, Leaf: p.leaf(), Key: KeyOf(p.leaf())}, nil
}
