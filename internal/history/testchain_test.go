package history_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/manifest"
)

// A policy is what the tests vary of a manifest.
type policy struct {
	cluster   string
	trust     manifest.Trust
	nodes     int // entries that hold no authority
	keepers   int // seed owners that are keepers
	persons   int // seed owners with a recipient, of testers.recipients
	signers   []int
	threshold int // of signers
	seed      int // threshold of shares
	comment   int // bytes of a comment
	coord     int // selects the coordinators' key
}

// testers holds the keys of a test run, made in it.
type testers struct {
	transaction ed25519.PrivateKey
	signers     []ed25519.PrivateKey
	coords      []manifest.Key
	meshKeys    byte
	parsed      map[string]*manifest.Manifest // by text; parsing is what costs here
}

func newTesters(t testing.TB) *testers {
	t.Helper()
	k := &testers{parsed: make(map[string]*manifest.Manifest)}
	var err error
	if _, k.transaction, err = ed25519.GenerateKey(rand.Reader); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		_, private, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		k.signers = append(k.signers, private)
		public, _, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		k.coords = append(k.coords, manifest.Key(public))
	}
	return k
}

func (k *testers) public() ed25519.PublicKey { return k.transaction.Public().(ed25519.PublicKey) }

func (k *testers) signer(i int) manifest.Key {
	return manifest.Key(k.signers[i].Public().(ed25519.PublicKey))
}

// seedKey derives a key from its purpose and seed epoch.
func (k *testers) seedKey(purpose string, epoch uint64) ed25519.PrivateKey {
	h := history.HashOf(fmt.Appendf(nil, "%s %d", purpose, epoch))
	return ed25519.NewKeyFromSeed(h[:])
}

// transactionOf is the transaction key of a seed epoch; that of the first is the
// run's own.
func (k *testers) transactionOf(epoch uint64) ed25519.PrivateKey {
	if epoch <= 1 {
		return k.transaction
	}
	return k.seedKey("transaction", epoch)
}

// rootOf is the root CA key of a seed epoch.
func rootOf(epoch uint64) identity.KeyID { return identity.KeyID{0x0a, byte(epoch)} }

var base = policy{cluster: "test.example", trust: manifest.TrustRoot, keepers: 1, persons: 2, signers: []int{0, 1}, threshold: 2, seed: 1}

func (k *testers) manifest(t testing.TB, p policy) *manifest.Manifest {
	t.Helper()
	text := k.text(p)
	if m, ok := k.parsed[text]; ok {
		return m
	}
	m, err := manifest.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	k.parsed[text] = m
	return m
}

func (k *testers) text(p policy) string {
	var b strings.Builder
	fmt.Fprintf(&b, "cluster: %s\ntrust: %s\nseed:\n  threshold: %d\n  owners:\n", p.cluster, p.trust, p.seed)
	for i := range p.keepers {
		fmt.Fprintf(&b, "    - {name: keeper%d, keeper: \"file:/keeper/%d\"}\n", i, i)
	}
	for i := range p.persons {
		public := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{byte(i + 1)}, 32)).Public().(ed25519.PublicKey)
		key := append([]byte("\x00\x00\x00\x0bssh-ed25519\x00\x00\x00\x20"), public...)
		fmt.Fprintf(&b, "    - {name: person%d, recipient: \"ssh-ed25519 %s\"}\n", i, base64.StdEncoding.EncodeToString(key))
	}
	fmt.Fprintf(&b, "signers:\n  threshold: %d\n  keys:\n", p.threshold)
	for _, i := range p.signers {
		fmt.Fprintf(&b, "    - {name: signer%d, key: \"%v\"}\n", i, k.signer(i))
	}
	fmt.Fprintf(&b, "admit:\n  - {name: c0, kind: coordinator, match: [\"key:%v\"]}\n", k.coords[p.coord])
	for i := range p.nodes {
		fmt.Fprintf(&b, "  - {name: node%d, kind: data, match: [\"token:node%d\"]}\n", i, i)
	}
	for i := range p.comment / 100 {
		fmt.Fprintf(&b, "#%98d\n", i)
	}
	return b.String()
}

// meshKey returns the hash of a mesh CA key that no other has.
func (k *testers) meshKey() identity.KeyID {
	k.meshKeys++
	return identity.KeyID{0xca, k.meshKeys}
}

// shares returns commitments for the people of p; which tells one splitting of
// the seed from another.
func shares(p policy, which byte) []history.ShareCommitment {
	var out []history.ShareCommitment
	for i := range p.persons {
		out = append(out, history.ShareCommitment{Owner: fmt.Sprintf("person%d", i), Hash: history.Hash{which, 0xff, byte(i)}})
	}
	return out
}

func (k *testers) sign(statement []byte, signers ...int) []history.Signature {
	var out []history.Signature
	for _, i := range signers {
		out = append(out, history.Signature{Key: k.signer(i), Signature: [64]byte(ed25519.Sign(k.signers[i], statement))})
	}
	return out
}

// A chain builds a history link by link, as it should be or not.
type chain struct {
	t         testing.TB
	k         *testers
	links     []*history.Transition
	manifests []*manifest.Manifest
}

func newChain(t testing.TB, k *testers, p policy) *chain {
	m := k.manifest(t, p)
	g := history.Genesis(m)
	g.MeshCAKey, g.Salt, g.ShareCommitments, g.Reason = k.meshKey(), history.Salt{1}, shares(p, 1), "first"
	return &chain{t: t, k: k, links: []*history.Transition{g}, manifests: []*manifest.Manifest{m}}
}

// verified returns the state at the end of the chain; the chain must be good.
func (c *chain) verified() *history.Verified {
	c.t.Helper()
	v, err := history.Verify(c.history(), c.k.public())
	if err != nil {
		c.t.Fatal(err)
	}
	return v
}

// verifiedUpTo returns the state after the first n links.
func (c *chain) verifiedUpTo(n int) *history.Verified {
	c.t.Helper()
	return (&chain{t: c.t, k: c.k, links: c.links[:n], manifests: c.manifests[:n]}).verified()
}

// add appends the transition that sets p, filled in as it should be.
func (c *chain) add(kind history.Kind, p policy) *history.Transition {
	c.t.Helper()
	m := c.k.manifest(c.t, p)
	t, moves := c.verified().Next(kind, m)
	c.fill(t, p, moves)
	c.links, c.manifests = append(c.links, t), append(c.manifests, m)
	return t
}

func (c *chain) fill(t *history.Transition, p policy, moves bool) {
	if moves {
		t.MeshCAKey = c.k.meshKey()
	}
	if t.ShareCommitments == nil {
		t.ShareCommitments = shares(p, byte(t.Index))
	}
	if (t.Salt == history.Salt{}) {
		t.Salt = history.Salt{byte(t.Index)}
	}
	if t.Kind == history.KindRestore && t.Backup.IsZero() {
		t.Backup = history.Hash{1}
	}
	if t.Kind == history.KindReseed {
		t.Reseed = c.verified().ReseedTo(rootOf(t.SeedEpoch-1), history.SeedKeys{
			Root: rootOf(t.SeedEpoch), ConfigRoot: c.k.seedKey("config root", t.SeedEpoch).Public().(ed25519.PublicKey),
			TransactionKey: c.k.transactionOf(t.SeedEpoch).Public().(ed25519.PublicKey),
		})
	}
	c.authorize(t)
}

// authorize signs t as the signers of the manifest before it, 0 and 1.
func (c *chain) authorize(t *history.Transition) {
	if t.Kind != history.KindGenesis && t.Kind != history.KindRekey {
		t.Signatures = c.k.sign(t.Statement(), 0, 1)
	}
}

func (c *chain) last() *history.Transition { return c.links[len(c.links)-1] }

// history encodes the chain under a head that is signed for its last link.
func (c *chain) history() *history.History {
	c.t.Helper()
	h := &history.History{Manifests: make(map[manifest.Hash][]byte)}
	for _, l := range c.links {
		raw, err := l.Encode()
		if err != nil {
			c.t.Fatal(err)
		}
		h.Links = append(h.Links, raw)
	}
	for _, m := range c.manifests {
		h.Manifests[m.Hash()] = m.Bytes()
	}
	h.Head = c.k.head(c.last(), h.Links[len(h.Links)-1])
	return h
}

// head signs a head record for a link, honest or not, with the transaction key of
// its seed epoch.
func (k *testers) head(t *history.Transition, raw []byte) []byte {
	return headBy(k.transactionOf(t.SeedEpoch), t, raw)
}

func headBy(key ed25519.PrivateKey, t *history.Transition, raw []byte) []byte {
	r := history.Record{Hash: history.HashOf(raw), Index: t.Index, AuthorityEpoch: t.AuthorityEpoch}
	copy(r.Signature[:], ed25519.Sign(key, r.SignedBytes()))
	return r.Encode()
}
