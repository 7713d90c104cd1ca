package history

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"

	"github.com/fealty-io/fealty/internal/manifest"
)

const (
	signatureSchema = "fealty.signature/v1"

	// MaxSignatureFileBytes bounds a signature file.
	MaxSignatureFileBytes = 4 << 10
)

// A SignatureFile carries one signer's signature from where the key is to where the
// change is set. It names what was signed, so that a signature for something else is
// told apart from a broken one.
type SignatureFile struct {
	Cluster   string // as the manifest says; for people
	Kind      Kind   // set, reshare, reseed or restore
	Manifest  manifest.Hash
	Current   Hash // the transition that it follows
	Signature Signature

	// Index, AuthorityEpoch and Backup are those of a restore; zero for the others.
	Index, AuthorityEpoch uint64
	Backup                Hash
}

type wireSignatureFile struct {
	Schema    string       `json:"schema"`
	Cluster   string       `json:"cluster"`
	Kind      Kind         `json:"kind"`
	Manifest  Hash         `json:"manifest"`
	Current   Hash         `json:"current"`
	Key       manifest.Key `json:"key"`
	Signature string       `json:"signature"` // standard base64, padded

	Index          uint64 `json:"index,string,omitzero"`
	AuthorityEpoch uint64 `json:"authority_epoch,string,omitzero"`
	Backup         Hash   `json:"backup,omitzero"`
}

const (
	requestSchema = "fealty.restore-request/v1"

	// MaxRestoreRequestBytes bounds a request to sign a restore.
	MaxRestoreRequestBytes = 4 << 10
)

// A RestoreRequest carries what the signers of a restore sign to where their keys are.
type RestoreRequest struct {
	Cluster               string // as the manifest says; for people
	Manifest              manifest.Hash
	Current               Hash // the head that the history goes on from
	Index, AuthorityEpoch uint64
	Backup                Hash // the digest of the backup
}

type wireRestoreRequest struct {
	Schema         string `json:"schema"`
	Cluster        string `json:"cluster"`
	Manifest       Hash   `json:"manifest"`
	Current        Hash   `json:"current"`
	Index          uint64 `json:"index,string"`
	AuthorityEpoch uint64 `json:"authority_epoch,string"`
	Backup         Hash   `json:"backup"`
}

// RequestRestore returns what signers of m sign for the restore t.
func RequestRestore(t *Transition, m *manifest.Manifest) RestoreRequest {
	return RestoreRequest{m.Cluster, m.Hash(), t.Previous, t.Index, t.AuthorityEpoch, t.Backup}
}

// Encode returns the bytes of the request: JSON, one line.
func (r RestoreRequest) Encode() []byte {
	data, err := canonical(wireRestoreRequest{requestSchema, r.Cluster, Hash(r.Manifest), r.Current, r.Index, r.AuthorityEpoch, r.Backup}, MaxRestoreRequestBytes)
	if err != nil {
		panic("history: a request always fits: " + err.Error()) // its fields have bounds of their own
	}
	return append(data, '\n')
}

// DecodeRestoreRequest reads what Encode writes; space around it is allowed. Errors
// match [ErrEncoding].
func DecodeRestoreRequest(data []byte) (RestoreRequest, error) {
	var w wireRestoreRequest
	if err := strict(bytes.TrimSpace(data), &w, MaxRestoreRequestBytes); err != nil {
		return RestoreRequest{}, err
	}
	if w.Schema != requestSchema || len(w.Cluster) > 255 {
		return RestoreRequest{}, fmt.Errorf("%w: schema %.64q, want %q: it was written by another release, or is no request", ErrEncoding, w.Schema, requestSchema)
	}
	return RestoreRequest{w.Cluster, manifest.Hash(w.Manifest), w.Current, w.Index, w.AuthorityEpoch, w.Backup}, nil
}

func (r RestoreRequest) statement() []byte {
	return (&Transition{Kind: KindRestore, Manifest: r.Manifest, Previous: r.Current, Index: r.Index, AuthorityEpoch: r.AuthorityEpoch, Backup: r.Backup}).Statement()
}

// Sign consents to the restore, and to nothing else.
func (r RestoreRequest) Sign(key ed25519.PrivateKey) (SignatureFile, error) {
	public, err := manifest.NewKey(key.Public().(ed25519.PublicKey))
	if err != nil {
		return SignatureFile{}, err
	}
	f := SignatureFile{Cluster: r.Cluster, Kind: KindRestore, Manifest: r.Manifest, Current: r.Current, Signature: Signature{Key: public}, Index: r.Index, AuthorityEpoch: r.AuthorityEpoch, Backup: r.Backup}
	copy(f.Signature.Signature[:], ed25519.Sign(key, r.statement()))
	return f, nil
}

// CheckRestoreSignature reports whether f counts for the restore r of a history in
// which inForce says who signs. Errors: a [*SignatureError].
func CheckRestoreSignature(f SignatureFile, r RestoreRequest, inForce *manifest.Manifest) error {
	key := f.Signature.Key
	switch {
	case f.Kind != KindRestore:
		return &SignatureError{key, fmt.Sprintf("it consents to a %s, and this is a restore", f.Kind), ErrOtherChange}
	case f.Manifest != r.Manifest || f.Current != r.Current:
		return &SignatureError{key, fmt.Sprintf("it goes on from head %v, and this backup ends at %v", f.Current, r.Current), ErrOtherHead}
	case f.Index != r.Index || f.AuthorityEpoch != r.AuthorityEpoch:
		return &SignatureError{key, fmt.Sprintf("it is for index %d and epoch %d, and this restore was planned with %d and %d", f.Index, f.AuthorityEpoch, r.Index, r.AuthorityEpoch), ErrOtherHead}
	case f.Backup != r.Backup:
		return &SignatureError{key, fmt.Sprintf("it is for the backup with digest %v, and this one has %v", f.Backup, r.Backup), ErrOtherHead}
	case !ed25519.Verify(key.Public(), r.statement(), f.Signature.Signature[:]):
		return &SignatureError{key, "the file was changed, or its key is not the one that signed", ErrBadSignature}
	case !slices.ContainsFunc(inForce.Signers.Keys, func(s manifest.Signer) bool { return s.Key == key }):
		return &SignatureError{key, fmt.Sprintf("the manifest of the backup has %d signers, and this is none of them", len(inForce.Signers.Keys)), ErrNoSigner}
	}
	return nil
}

// SignChange signs the change that brings m into force by a transition of kind after
// the transition current, and nothing else.
func SignChange(kind Kind, m *manifest.Manifest, current Hash, key ed25519.PrivateKey) (SignatureFile, error) {
	public, err := manifest.NewKey(key.Public().(ed25519.PublicKey))
	if err != nil {
		return SignatureFile{}, err
	}
	f := SignatureFile{Cluster: m.Cluster, Kind: kind, Manifest: m.Hash(), Current: current, Signature: Signature{Key: public}}
	copy(f.Signature.Signature[:], ed25519.Sign(key, StatementOf(kind, f.Manifest, current)))
	return f, nil
}

// Encode returns the bytes of the file: JSON, one line.
func (f SignatureFile) Encode() []byte {
	data, err := canonical(wireSignatureFile{signatureSchema, f.Cluster, f.Kind, Hash(f.Manifest), f.Current, f.Signature.Key,
		base64.StdEncoding.EncodeToString(f.Signature.Signature[:]), f.Index, f.AuthorityEpoch, f.Backup}, MaxSignatureFileBytes)
	if err != nil {
		panic("history: a signature file always fits: " + err.Error()) // its fields have bounds of their own
	}
	return append(data, '\n')
}

// DecodeSignatureFile reads what Encode writes; space around it is allowed. Errors
// match [ErrEncoding].
func DecodeSignatureFile(data []byte) (SignatureFile, error) {
	var w wireSignatureFile
	if err := strict(bytes.TrimSpace(data), &w, MaxSignatureFileBytes); err != nil {
		return SignatureFile{}, err
	}
	if w.Schema != signatureSchema {
		return SignatureFile{}, fmt.Errorf("%w: schema %.64q, want %q: it was written by another release, or is no signature", ErrEncoding, w.Schema, signatureSchema)
	}
	if restore := w.Kind == KindRestore; !slices.Contains(Kinds(), w.Kind) || !w.Kind.signed() || restore != (w.Index != 0) || restore != (w.AuthorityEpoch != 0) || restore == w.Backup.IsZero() {
		return SignatureFile{}, fmt.Errorf("%w: kind %.32q is none that signers consent to, or has clocks that are not its", ErrEncoding, w.Kind)
	}
	raw, err := base64.StdEncoding.Strict().DecodeString(w.Signature)
	// The decoder skips line breaks: the length shows them.
	if err != nil || len(raw) != ed25519.SignatureSize || len(w.Signature) != base64.StdEncoding.EncodedLen(len(raw)) ||
		len(w.Cluster) > 255 {
		return SignatureFile{}, fmt.Errorf("%w: the signature is not 64 bytes in base64, or the cluster's name is too long", ErrEncoding)
	}
	if w.Key.IsZero() {
		return SignatureFile{}, fmt.Errorf("%w: it does not say whose signature it is", ErrEncoding)
	}
	return SignatureFile{w.Cluster, w.Kind, manifest.Hash(w.Manifest), w.Current, Signature{w.Key, [64]byte(raw)}, w.Index, w.AuthorityEpoch, w.Backup}, nil
}

// Faults of a signature file: a [*SignatureError] matches one of them.
var (
	ErrOtherManifest = errors.New("signature over another manifest")
	ErrOtherChange   = errors.New("signature for another kind of change")
	ErrOtherHead     = errors.New("signature for another head")
	ErrBadSignature  = errors.New("signature that does not verify")
	ErrNoSigner      = errors.New("signature by no signer")
	ErrSignedTwice   = errors.New("key that signed twice")
)

// A SignatureError says why a signature does not count for a change.
type SignatureError struct {
	Key    manifest.Key
	Detail string // what was found, and what was expected
	cause  error
}

func (e *SignatureError) Error() string {
	return fmt.Sprintf("history: %v: %v: %s", e.Key, e.cause, e.Detail)
}

// Is reports whether target is what is wrong.
func (e *SignatureError) Is(target error) bool { return target == e.cause }

// CheckSignatures reports whether each of files counts for the change that brings
// next into force by a transition of kind after current, in which inForce is the
// manifest that says who signs. It does not count them: see [Authorize].
//
// Errors: a [*SignatureError] for the first that does not.
func CheckSignatures(files []SignatureFile, kind Kind, next *manifest.Manifest, current Hash, inForce *manifest.Manifest) error {
	seen := make(map[manifest.Key]bool)
	for _, f := range files {
		key := f.Signature.Key
		refuse := func(cause error, detail string, args ...any) error {
			return &SignatureError{key, fmt.Sprintf(detail, args...), cause}
		}
		switch {
		case f.Manifest != next.Hash():
			return refuse(ErrOtherManifest, "it is over manifest %v, and this one is %v", f.Manifest, next.Hash())
		case f.Kind != kind:
			return refuse(ErrOtherChange, "it consents to a %s, and this is a %s", f.Kind, kind)
		case f.Current != current:
			return refuse(ErrOtherHead, "it was made for head %v, and the head is %v", f.Current, current)
		case !ed25519.Verify(key.Public(), StatementOf(kind, f.Manifest, f.Current), f.Signature.Signature[:]):
			return refuse(ErrBadSignature, "the file was changed, or its key is not the one that signed")
		case !slices.ContainsFunc(inForce.Signers.Keys, func(s manifest.Signer) bool { return s.Key == key }):
			return refuse(ErrNoSigner, "the manifest in force has %d signers, and this is none of them", len(inForce.Signers.Keys))
		case seen[key]:
			return refuse(ErrSignedTwice, "a key counts once")
		}
		seen[key] = true
	}
	return nil
}
