// Package history keeps and verifies the signed chain of changes that says which manifest is in
// force.
//
// A [Transition] is one link: canonical bytes, named by their SHA-256, that name
// the link before. The head is the name of the last link with a signature by the
// transaction key, which only holders of the seed can make. Promises:
//
//   - Nothing is believed that was not replayed. [Verify] walks the whole chain
//     from genesis to head through one table of rules ([Rules]) and is the only
//     way, with [Log.Append], to get a [Verified] history.
//   - The same table checks a link before it is appended, so that no coordinator
//     writes a link that the others refuse.
//   - The head moves only to its child, by compare-and-swap, after the blobs that
//     it needs are in the store. Of two concurrent appends one wins, the other
//     gets a [*ConflictError] with the new head.
//   - An append whose answer was lost is resolved by reading, and told apart:
//     done, not done, or (with the store out of reach) unknown.
//
// A dishonest store can withhold the newest links. A caller that must notice keeps
// a [Mark] and asks [Verified.CheckMark].
package history

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/manifest"
)

// Bounds of a history.
const (
	MaxTransitionBytes = 128 << 10 // of one link; 255 shares and 64 signatures fit
	MaxReasonBytes     = 256
	MaxTransitions     = 100_000
	MaxHistoryBytes    = 512 << 20 // of all links and manifests together
)

// transitionSchema names the form of a link. It also keeps a link from being
// taken for a manifest: both are blobs named by their hash.
const transitionSchema = "fealty.transition/v1"

// Kind says what a transition does, and so what it may change and who must have
// authorized it (docs/explanation/trust.md#3-the-set-and-the-history).
type Kind string

// The kinds.
const (
	KindGenesis Kind = "genesis" // the first manifest
	KindSet     Kind = "set"     // another manifest; signed by the signers of the one in force
	KindRekey   Kind = "rekey"   // a new mesh CA key, nothing else; the transaction key suffices
	KindReshare Kind = "reshare" // other owners, threshold or shares of the same seed; signed
	KindReseed  Kind = "reseed"  // a new seed, and so new keys for all; signed
	KindRestore Kind = "restore" // goes on from a backup, above every mark in the field; signed
)

// Kinds returns every kind.
func Kinds() []Kind {
	return []Kind{KindGenesis, KindSet, KindRekey, KindReshare, KindReseed, KindRestore}
}

// signed reports whether the kind needs the signers of the manifest in force.
func (k Kind) signed() bool {
	return k == KindSet || k == KindReshare || k == KindReseed || k == KindRestore
}

// Undone says of a signed change of kind k that it did not happen.
func (k Kind) Undone() string {
	switch k {
	case KindReshare:
		return "the seed was not reshared"
	case KindReseed:
		return "the seed was not changed"
	case KindRestore:
		return "nothing was restored"
	}
	return "the manifest was not set"
}

// Hash is the SHA-256 of the canonical bytes of a transition, its name. The
// zero Hash is that of no transition.
type Hash [sha256.Size]byte

// String returns the hash in lower-case hex.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// IsZero reports whether h names no transition.
func (h Hash) IsZero() bool { return h == Hash{} }

// MarshalText returns the text of [Hash.String].
func (h Hash) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText reads 64 hex digits.
func (h *Hash) UnmarshalText(text []byte) error { return fixedHex(h[:], text) }

// Salt is the public salt of the keys that derive from the seed.
type Salt [32]byte

// MarshalText returns the salt in lower-case hex.
func (s Salt) MarshalText() ([]byte, error) { return []byte(hex.EncodeToString(s[:])), nil }

// UnmarshalText reads 64 hex digits.
func (s *Salt) UnmarshalText(text []byte) error { return fixedHex(s[:], text) }

func fixedHex(dst, text []byte) error {
	if len(text) != hex.EncodedLen(len(dst)) {
		return fmt.Errorf("%d characters, want %d hex digits", len(text), hex.EncodedLen(len(dst)))
	}
	_, err := hex.Decode(dst, text)
	return err
}

// A ShareCommitment lets everyone check a seed share before it is used.
type ShareCommitment struct {
	Owner string // name of the owner in the manifest
	Hash  Hash   // SHA-256 over context, seed epoch, index and share; see keyring
}

// A Signature is a signer's, over a [Transition.Statement].
type Signature struct {
	Key       manifest.Key
	Signature [64]byte
}

// A Transition is one link of the history. [Transition.Encode] gives its bytes.
type Transition struct {
	Index            uint64 // genesis is 1; grows by one, jumps with restore
	Previous         Hash   // zero for genesis
	AuthorityEpoch   uint64 // genesis is 1
	Kind             Kind
	Manifest         manifest.Hash
	MeshCAKey        identity.KeyID // SHA-256 of the mesh CA's public key
	SeedEpoch        uint64         // genesis is 1; grows by one with reseed
	ShareCommitments []ShareCommitment
	Threshold        int // of the seed's shares, as in the manifest
	Salt             Salt
	Reason           string  // for people; printable, at most MaxReasonBytes
	Reseed           *Reseed // of kind reseed; nil for the others. Not to be written to
	Backup           Hash    // of kind restore: the digest of the backup that is restored; zero for the others
	Signatures       []Signature
}

// Reseed is what a reseed says of the keys of its seed, and how it hangs together
// with the seed before. All but the last two stand in the statement that the
// signers sign: see [Transition.Statement].
type Reseed struct {
	Cluster        string
	PreviousRoot   identity.KeyID // the root CA key of the seed before
	Root           identity.KeyID // that of the new one
	ConfigRoot     [ed25519.PublicKeySize]byte
	TransactionKey [ed25519.PublicKeySize]byte // signs the head from here on

	// PreviousKey is the transaction key of the seed before, and PreviousSignature
	// its signature of the head record before this link: who knows that key alone
	// can follow the history to the new one.
	PreviousKey       [ed25519.PublicKeySize]byte
	PreviousSignature [ed25519.SignatureSize]byte
}

// wire is a Transition as JSON: RFC 8785 orders the members, numbers of 64 bits
// are strings because readers keep only 53 bits of others.
type wire struct {
	Schema           string           `json:"schema"`
	Index            uint64           `json:"index,string"`
	Previous         Hash             `json:"previous"`
	AuthorityEpoch   uint64           `json:"authority_epoch,string"`
	Kind             Kind             `json:"kind"`
	Manifest         Hash             `json:"manifest"`
	MeshCAKey        Hash             `json:"mesh_ca_key"`
	SeedEpoch        uint64           `json:"seed_epoch,string"`
	ShareCommitments []wireCommitment `json:"share_commitments"`
	Threshold        int              `json:"threshold"`
	Salt             Salt             `json:"salt"`
	Reason           string           `json:"reason"`
	Reseed           *wireReseed      `json:"reseed,omitzero"`
	Backup           Hash             `json:"backup,omitzero"`
	Signatures       []wireSignature  `json:"signatures"`
}

type wireReseed struct {
	Cluster           string `json:"cluster"`
	PreviousRoot      Hash   `json:"previous_root"`
	Root              Hash   `json:"root"`
	ConfigRoot        string `json:"config_root_key"` // these in standard base64, padded
	TransactionKey    string `json:"transaction_key"`
	PreviousKey       string `json:"previous_transaction_key"`
	PreviousSignature string `json:"previous_signature"`
}

func (r *Reseed) wire() *wireReseed {
	if r == nil {
		return nil
	}
	text := base64.StdEncoding.EncodeToString
	return &wireReseed{
		Cluster: r.Cluster, PreviousRoot: Hash(r.PreviousRoot), Root: Hash(r.Root), ConfigRoot: text(r.ConfigRoot[:]),
		TransactionKey: text(r.TransactionKey[:]), PreviousKey: text(r.PreviousKey[:]), PreviousSignature: text(r.PreviousSignature[:]),
	}
}

func (w *wireReseed) reseed() (*Reseed, error) {
	if w == nil {
		return nil, nil
	}
	r := &Reseed{Cluster: w.Cluster, PreviousRoot: identity.KeyID(w.PreviousRoot), Root: identity.KeyID(w.Root)}
	for _, f := range []struct {
		name, text string
		dst        []byte
	}{
		{"config_root_key", w.ConfigRoot, r.ConfigRoot[:]},
		{"transaction_key", w.TransactionKey, r.TransactionKey[:]},
		{"previous_transaction_key", w.PreviousKey, r.PreviousKey[:]},
		{"previous_signature", w.PreviousSignature, r.PreviousSignature[:]},
	} {
		raw, err := base64.StdEncoding.DecodeString(f.text)
		if err != nil || len(raw) != len(f.dst) {
			return nil, fmt.Errorf("%w: reseed.%s is not %d bytes in base64", ErrEncoding, f.name, len(f.dst))
		}
		copy(f.dst, raw)
	}
	return r, nil
}

type wireCommitment struct {
	Owner string `json:"owner"`
	Hash  Hash   `json:"hash"`
}

type wireSignature struct {
	Key       manifest.Key `json:"key"`
	Signature string       `json:"signature"` // standard base64, padded
}

// ErrEncoding is matched when bytes are not those of a transition or head
// record, or a transition cannot be put into bytes.
var ErrEncoding = errors.New("malformed history record")

// Encode returns the canonical bytes of t (RFC 8785), with the signatures in the
// order of their keys. Two transitions are equal if their bytes are.
//
// Errors, matching [ErrEncoding]: a reason that is not printable text or too
// long, a key that signed twice, more than [MaxTransitionBytes].
func (t *Transition) Encode() ([]byte, error) {
	if err := checkReason(t.Reason); err != nil {
		return nil, err
	}
	if t.Threshold < 0 || t.Threshold > manifest.MaxOwners ||
		len(t.ShareCommitments) > manifest.MaxOwners || len(t.Signatures) > manifest.MaxSigners {
		return nil, fmt.Errorf("%w: threshold %d, %d shares, %d signatures: beyond what a manifest can hold", ErrEncoding, t.Threshold, len(t.ShareCommitments), len(t.Signatures))
	}
	w := wire{
		Schema: transitionSchema, Index: t.Index, Previous: t.Previous, AuthorityEpoch: t.AuthorityEpoch, Kind: t.Kind,
		Manifest: Hash(t.Manifest), MeshCAKey: Hash(t.MeshCAKey), SeedEpoch: t.SeedEpoch,
		ShareCommitments: []wireCommitment{}, Threshold: t.Threshold, Salt: t.Salt, Reason: t.Reason, Reseed: t.Reseed.wire(), Backup: t.Backup, Signatures: []wireSignature{},
	}
	for _, c := range t.ShareCommitments {
		w.ShareCommitments = append(w.ShareCommitments, wireCommitment(c))
	}
	sorted := slices.SortedStableFunc(slices.Values(t.Signatures), func(a, b Signature) int { return bytes.Compare(a.Key[:], b.Key[:]) })
	for i, s := range sorted {
		if i > 0 && s.Key == sorted[i-1].Key {
			return nil, fmt.Errorf("%w: key %v signed twice: a key counts once, keep one signature", ErrEncoding, s.Key)
		}
		w.Signatures = append(w.Signatures, wireSignature{s.Key, base64.StdEncoding.EncodeToString(s.Signature[:])})
	}
	return canonical(w, MaxTransitionBytes)
}

// Decode reads a transition. It accepts only the bytes that [Transition.Encode]
// gives: one transition has one name. Errors match [ErrEncoding].
func Decode(data []byte) (*Transition, error) {
	var w wire
	if err := strict(data, &w, MaxTransitionBytes); err != nil {
		return nil, err
	}
	if w.Schema != transitionSchema {
		return nil, fmt.Errorf("%w: schema %.64q, want %q: it was written by another release, or is no transition", ErrEncoding, w.Schema, transitionSchema)
	}
	t := &Transition{
		Index: w.Index, Previous: w.Previous, AuthorityEpoch: w.AuthorityEpoch, Kind: w.Kind, Manifest: manifest.Hash(w.Manifest),
		MeshCAKey: identity.KeyID(w.MeshCAKey), SeedEpoch: w.SeedEpoch, Threshold: w.Threshold, Salt: w.Salt, Reason: w.Reason, Backup: w.Backup,
	}
	var err error
	if t.Reseed, err = w.Reseed.reseed(); err != nil {
		return nil, err
	}
	for _, c := range w.ShareCommitments {
		t.ShareCommitments = append(t.ShareCommitments, ShareCommitment(c))
	}
	for _, s := range w.Signatures {
		raw, err := base64.StdEncoding.DecodeString(s.Signature)
		if err != nil || len(raw) != len(Signature{}.Signature) {
			return nil, fmt.Errorf("%w: the signature by %v is not 64 bytes in base64", ErrEncoding, s.Key)
		}
		t.Signatures = append(t.Signatures, Signature{s.Key, [64]byte(raw)})
	}
	again, err := t.Encode()
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(again, data) {
		return nil, fmt.Errorf("%w: the bytes are not canonical (RFC 8785): another writer made them, or they were altered", ErrEncoding)
	}
	return t, nil
}

func checkReason(s string) error {
	if len(s) > MaxReasonBytes {
		return fmt.Errorf("%w: the reason has %d bytes, at most %d are allowed: shorten it", ErrEncoding, len(s), MaxReasonBytes)
	}
	// It is shown on terminals, and decides nothing.
	if !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r >= 0x7f && r <= 0x9f || r >= 0x2028 && r <= 0x202e }) {
		return fmt.Errorf("%w: the reason holds control characters or is not UTF-8: write plain text on one line", ErrEncoding)
	}
	return nil
}

func canonical(v any, most int) ([]byte, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("%w: %v", ErrEncoding, err)
	}
	value := jsontext.Value(data)
	if err := value.Canonicalize(); err != nil {
		return nil, fmt.Errorf("%w: %v", ErrEncoding, err)
	}
	if len(value) > most {
		return nil, fmt.Errorf("%w: %d bytes, at most %d are allowed", ErrEncoding, len(value), most)
	}
	return value, nil
}

func strict(data []byte, v any, most int) error {
	if len(data) > most {
		return fmt.Errorf("%w: %d bytes, at most %d are allowed", ErrEncoding, len(data), most)
	}
	if err := json.Unmarshal(data, v, json.RejectUnknownMembers(true)); err != nil {
		return fmt.Errorf("%w: %v", ErrEncoding, err)
	}
	return nil
}

func hashOf(data []byte) Hash { return sha256.Sum256(data) }
