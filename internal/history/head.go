package history

import (
	"bytes"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"fmt"
)

const (
	recordSchema   = "fealty.head/v1"
	maxRecordBytes = 1 << 10
)

// A Record says which transition is the head, signed by the transaction key.
// Index and epoch stand in it so that two records can be ordered without
// reading the chain.
type Record struct {
	Hash           Hash
	Index          uint64
	AuthorityEpoch uint64
	Signature      [ed25519.SignatureSize]byte
}

type wireRecord struct {
	Schema         string `json:"schema"`
	Hash           Hash   `json:"hash"`
	Index          uint64 `json:"index,string"`
	AuthorityEpoch uint64 `json:"authority_epoch,string"`
	Signature      string `json:"signature"` // standard base64, padded
}

// signedBytes is what the transaction key signs:
//
//	"fealty history head v1" 0x00 | hash (32) | index (8) | authority epoch (8)
//
// with numbers big endian. The key signs nothing else that begins so.
func (r Record) signedBytes() []byte {
	b := append([]byte("fealty history head v1\x00"), r.Hash[:]...)
	b = binary.BigEndian.AppendUint64(b, r.Index)
	return binary.BigEndian.AppendUint64(b, r.AuthorityEpoch)
}

// signRecord makes the head record of t, whose name is hash.
func signRecord(t *Transition, hash Hash, key crypto.Signer) (Record, error) {
	r := Record{Hash: hash, Index: t.Index, AuthorityEpoch: t.AuthorityEpoch}
	if _, ok := key.Public().(ed25519.PublicKey); !ok {
		return Record{}, fmt.Errorf("history: the transaction key is a %T, want Ed25519", key.Public())
	}
	signature, err := key.Sign(rand.Reader, r.signedBytes(), crypto.Hash(0))
	if err != nil {
		return Record{}, fmt.Errorf("history: signing the head %v: %w", hash, err)
	}
	if copy(r.Signature[:], signature) != ed25519.SignatureSize || len(signature) != ed25519.SignatureSize {
		return Record{}, fmt.Errorf("history: signing the head %v gave %d bytes", hash, len(signature))
	}
	return r, nil
}

// VerifySignature reports whether the transaction key signed r.
func (r Record) VerifySignature(transactionKey ed25519.PublicKey) bool {
	return len(transactionKey) == ed25519.PublicKeySize && ed25519.Verify(transactionKey, r.signedBytes(), r.Signature[:])
}

// Encode returns the canonical bytes of r, as the store and the API carry them.
func (r Record) Encode() []byte {
	data, err := canonical(wireRecord{recordSchema, r.Hash, r.Index, r.AuthorityEpoch, base64.StdEncoding.EncodeToString(r.Signature[:])}, maxRecordBytes)
	if err != nil {
		panic("history: a head record always fits: " + err.Error()) // all its fields have a fixed size
	}
	return data
}

// DecodeRecord reads a head record, and only in its canonical form. It does not
// check the signature. Errors match [ErrEncoding].
func DecodeRecord(data []byte) (Record, error) {
	var w wireRecord
	if err := strict(data, &w, maxRecordBytes); err != nil {
		return Record{}, err
	}
	if w.Schema != recordSchema {
		return Record{}, fmt.Errorf("%w: schema %.64q, want %q: it was written by another release, or is no head record", ErrEncoding, w.Schema, recordSchema)
	}
	raw, err := base64.StdEncoding.DecodeString(w.Signature)
	if err != nil || len(raw) != ed25519.SignatureSize {
		return Record{}, fmt.Errorf("%w: the signature is not 64 bytes in base64", ErrEncoding)
	}
	r := Record{Hash: w.Hash, Index: w.Index, AuthorityEpoch: w.AuthorityEpoch, Signature: [64]byte(raw)}
	if !bytes.Equal(r.Encode(), data) {
		return Record{}, fmt.Errorf("%w: the bytes are not canonical (RFC 8785)", ErrEncoding)
	}
	return r, nil
}
