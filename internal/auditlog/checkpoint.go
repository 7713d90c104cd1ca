package auditlog

import (
	"bytes"
	"crypto"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

// Limits of a checkpoint. The rest goes into the next one, at once.
const (
	MaxLines           = 32   // chains that grew
	MaxCovered         = 1024 // entries behind it, and not behind the one before
	MaxCoveredBytes    = 8 << 20
	MaxBreaks          = 32
	MaxCheckpointBytes = 128 << 10
	checkpointDigits   = 20
	maxClusterBytes    = 255
	maxProblemBytes    = 256
)

// Head says how far a chain is behind a checkpoint. It is a note for who makes the next one,
// and proves nothing.
type Head struct {
	Number uint64    `json:"number"`
	Hash   Hash      `json:"hash,omitzero"`
	At     time.Time `json:"at"` // of that checkpoint, or of the chain's start
	// Broken: what comes after Number does not follow it.
	Broken bool `json:"broken,omitempty"`
}

// Last says which checkpoint is the last one. It proves nothing either.
type Last struct {
	Number uint64 `json:"number"`
	Hash   Hash   `json:"hash"`
	// Dropped is up to which checkpoint all is removed that is kept no longer.
	Dropped uint64 `json:"dropped,omitempty"`
	// Broken is the break that was found last.
	Broken *Break    `json:"broken,omitempty"`
	Found  time.Time `json:"found,omitzero"` // when
}

// Line is what a checkpoint says of one chain: the entries after From up to To are there, and
// Hash is that of the last of them.
type Line struct {
	Chain string `json:"chain"`
	From  uint64 `json:"from"`
	To    uint64 `json:"to"`
	Hash  Hash   `json:"hash"`
}

// Break is what whoever made a checkpoint found to be wrong.
type Break struct {
	// Chain and Number are the entry's; empty if it is no entry. Without a number it is of the
	// chain, which goes on.
	Chain   string `json:"chain,omitempty"`
	Number  uint64 `json:"number,omitempty"`
	Problem string `json:"problem"`
}

func (b Break) String() string {
	switch {
	case b.Chain == "":
		return b.Problem
	case b.Number == 0:
		return fmt.Sprintf("chain %s: %s", b.Chain, b.Problem)
	}
	return fmt.Sprintf("entry %d of chain %s: %s", b.Number, b.Chain, b.Problem)
}

// Checkpoint vouches for the audit log up to a moment.
type Checkpoint struct {
	Cluster string `json:"cluster"`
	// Number counts the checkpoints of the cluster, from 1.
	Number uint64    `json:"number"`
	At     time.Time `json:"at"`
	// Previous is the hash of the checkpoint before it; zero for the first.
	Previous Hash `json:"previous,omitzero"`
	// First is the first checkpoint that is kept. Those before it, and the entries behind them,
	// are over: they may be gone.
	First uint64 `json:"first"`
	// Lines are the chains that grew since the checkpoint before, sorted.
	Lines []Line `json:"lines,omitempty"`
	// Breaks are what was found to be wrong since then.
	Breaks []Break `json:"breaks,omitempty"`
}

// Signature is one over a checkpoint. The key's id only helps to find the key.
type Signature struct {
	Key   string `json:"key"` // as of snapshot.KeyIDOf
	Bytes []byte `json:"signature"`
}

// Signed is a checkpoint as it stands in the store. It is not trusted.
type Signed struct {
	Payload    []byte      `json:"payload"` // JSON of a Checkpoint
	Signatures []Signature `json:"signatures"`
}

// CheckpointKey is where a checkpoint stands.
func CheckpointKey(number uint64) string {
	return fmt.Sprintf("%s%0*d", CheckpointPrefix, checkpointDigits, number)
}

// CheckpointBucket is the prefix of the keys of checkpoints that share all but the last digits with
// number's: [BucketSize] of them.
func CheckpointBucket(number uint64) string {
	k := CheckpointKey(number)
	return k[:len(k)-bucketDigits]
}

// ParseCheckpointKey reads what CheckpointKey makes.
func ParseCheckpointKey(key string) (number uint64, ok bool) {
	digits, ok := strings.CutPrefix(key, CheckpointPrefix)
	if !ok || !isDigits(digits, checkpointDigits, false) {
		return 0, false
	}
	number, err := strconv.ParseUint(digits, 10, 64)
	return number, err == nil && number > 0
}

// Sign encodes and signs a checkpoint with one or, during a rotation, two config signing keys.
// It returns its value for the store, and its hash.
func (c *Checkpoint) Sign(keys ...crypto.Signer) ([]byte, Hash, error) {
	if len(keys) == 0 || len(keys) > internalsnapshot.MaxSignatures {
		return nil, Hash{}, fmt.Errorf("auditlog: %d keys to sign checkpoint %d with, want 1 to %d",
			len(keys), c.Number, internalsnapshot.MaxSignatures)
	}
	if problem := c.fault(); problem != "" {
		return nil, Hash{}, fmt.Errorf("auditlog: checkpoint %d: %s", c.Number, problem)
	}
	payload, err := json.Marshal(c)
	if err != nil {
		return nil, Hash{}, fmt.Errorf("auditlog: checkpoint %d: %w", c.Number, err)
	}
	s := Signed{Payload: payload}
	message := internalsnapshot.PAE(internalsnapshot.TypeAuditCheckpoint, c.Cluster, payload)
	for _, key := range keys {
		public, ok := key.Public().(ed25519.PublicKey)
		if !ok {
			return nil, Hash{}, fmt.Errorf("auditlog: a key of type %T, want Ed25519", key.Public())
		}
		sig, err := key.Sign(nil, message, crypto.Hash(0))
		if err != nil {
			return nil, Hash{}, fmt.Errorf("auditlog: sign checkpoint %d: %w", c.Number, err)
		}
		s.Signatures = append(s.Signatures, Signature{internalsnapshot.KeyIDOf(public), sig})
	}
	value, err := json.Marshal(s)
	if err == nil && len(value) > MaxCheckpointBytes {
		err = fmt.Errorf("it has %d bytes, above %d", len(value), MaxCheckpointBytes)
	}
	if err != nil {
		return nil, Hash{}, fmt.Errorf("auditlog: checkpoint %d: %w", c.Number, err)
	}
	return value, sha256.Sum256(message), nil
}

// A Claim is a checkpoint that was read, and that nobody vouched for yet.
type Claim struct {
	Checkpoint
	Hash   Hash
	signed Signed
}

// Size is how many bytes the checkpoint has.
func (c *Claim) Size() int { return len(c.signed.Payload) }

// DecodeCheckpoint reads a checkpoint. It checks no signature.
func DecodeCheckpoint(value []byte) (*Claim, error) {
	if len(value) > MaxCheckpointBytes {
		return nil, fmt.Errorf("it has %d bytes, above %d", len(value), MaxCheckpointBytes)
	}
	var out Claim
	if err := decodeStrictly(value, &out.signed); err != nil {
		return nil, errors.New("it is no signed checkpoint: " + err.Error())
	}
	if n := len(out.signed.Signatures); n == 0 || n > internalsnapshot.MaxSignatures {
		return nil, fmt.Errorf("it has %d signatures, want 1 to %d", n, internalsnapshot.MaxSignatures)
	}
	if err := decodeStrictly(out.signed.Payload, &out.Checkpoint); err != nil {
		return nil, errors.New("what is signed is no checkpoint: " + err.Error())
	}
	if problem := out.fault(); problem != "" {
		return nil, errors.New(problem)
	}
	out.Hash = sha256.Sum256(internalsnapshot.PAE(internalsnapshot.TypeAuditCheckpoint, out.Cluster, out.signed.Payload))
	return &out, nil
}

// decodeStrictly reads one JSON value with nothing in it that is not known, and nothing after
// it.
func decodeStrictly(data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if d.More() {
		return errors.New("there is more after it")
	}
	return nil
}

// fault says what of a checkpoint cannot be, whoever signed it.
func (c *Checkpoint) fault() string {
	switch {
	case c.Cluster == "" || len(c.Cluster) > maxClusterBytes:
		return "it names no cluster"
	case c.Number == 0 || (c.Number == 1) != c.Previous.IsZero():
		return "the first checkpoint, and no other, follows none"
	case c.First == 0 || c.First > c.Number:
		return fmt.Sprintf("it says that checkpoint %d is the first one kept, and is number %d", c.First, c.Number)
	case len(c.Lines) > MaxLines:
		return fmt.Sprintf("it tells of %d chains, above %d", len(c.Lines), MaxLines)
	case len(c.Breaks) > MaxBreaks:
		return fmt.Sprintf("it tells of %d breaks, above %d", len(c.Breaks), MaxBreaks)
	}
	covered := uint64(0)
	for i, l := range c.Lines {
		switch {
		case !ValidChain(l.Chain):
			return fmt.Sprintf("%.*q is no chain", MaxChainBytes, l.Chain)
		case i > 0 && l.Chain <= c.Lines[i-1].Chain:
			return "its chains are not sorted"
		case l.To <= l.From || l.To > maxNumber || l.Hash.IsZero():
			return fmt.Sprintf("what it says of chain %s cannot be", l.Chain)
		}
		if covered += l.To - l.From; covered > MaxCovered {
			return fmt.Sprintf("it covers more than %d entries", MaxCovered)
		}
	}
	for _, b := range c.Breaks {
		if b.Problem == "" || len(b.Problem) > maxProblemBytes || b.Chain != "" && !ValidChain(b.Chain) {
			return "it tells of a break that cannot be"
		}
	}
	return ""
}

// Keys are the config signing keys of a cluster that may vouch for a checkpoint.
type Keys []snapshot.ConfigKey

// standing is what keys say of a checkpoint.
type standing int

const (
	vouched   standing = iota // by a key that was to sign it
	unknown                   // it names none of the keys
	untrusted                 // it is by a key that was not to sign it then, or not any more
	forged                    // it names a key that did not sign it
)

// signedBy returns what the keys say of a checkpoint, and why it is not vouched for.
func (k Keys) signedBy(c *Claim) (standing, string) {
	message := internalsnapshot.PAE(internalsnapshot.TypeAuditCheckpoint, c.Cluster, c.signed.Payload)
	is, problem := unknown, "no key of the trust bundle signed it"
	for _, sig := range c.signed.Signatures {
		for i := range k {
			key := &k[i]
			if len(key.Key) != ed25519.PublicKeySize || key.ID() != sig.Key {
				continue
			}
			switch {
			case !ed25519.Verify(key.Key, message, sig.Bytes):
				is, problem = forged, fmt.Sprintf("the signature that names key %s is forged", sig.Key)
			case key.Revoked:
				is, problem = max(is, untrusted), fmt.Sprintf("key %s, which signed it, is revoked", sig.Key)
			case c.At.Before(key.NotBefore.Add(-internalsnapshot.ClockTolerance)) ||
				!c.At.Before(key.NotAfter.Add(internalsnapshot.ClockTolerance)):
				is, problem = max(is, untrusted), fmt.Sprintf("key %s, which signed it, was not to sign then", sig.Key)
			default:
				return vouched, ""
			}
		}
	}
	return is, problem
}

// Vouch reports whether a key of k vouches for the checkpoint. The error says that a signature
// of it is forged: its key is one of k, and did not make it.
func (k Keys) Vouch(c *Claim) (bool, error) {
	is, problem := k.signedBy(c)
	if is == forged {
		return false, errors.New(problem)
	}
	return is == vouched, nil
}
