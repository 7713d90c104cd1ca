package snapshot

import (
	"crypto"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/fealty-io/fealty/internal/canonical"
	"github.com/fealty-io/fealty/internal/identity"
	"github.com/fealty-io/fealty/internal/snapshot"
)

// Signature is one signature. The key id and the algorithm only help to find the
// key: what counts is what the verifier's bundle says about the key.
type Signature struct {
	KeyID     string // the first 8 bytes of the SHA-256 of the key, in hex
	Algorithm string
	Bytes     []byte
}

// Publication is a signed publication record: the exact bytes of a Record.
type Publication struct {
	Record     []byte
	Signatures []Signature // 1 or 2
}

// Proof shows that a header is in the tree of a record (RFC 6962, section
// 2.1.1). In a tree of one it is the zero Proof.
type Proof struct {
	Index  uint64   // of the header in the tree
	Hashes []Digest // from the leaf's sibling up; at most 40
}

// Signed is a snapshot as it travels and as it is kept: the exact bytes that
// were signed, and what shows that they were. It is not trusted; see Verify.
//
// Either Signatures is set, or Publication and Proof. With a Publication the content
// may be left out, to be got by its hash, or a patch may come in its place.
type Signed struct {
	Header  []byte // canonical JSON of a Header
	Content []byte // canonical JSON of the scope's content
	Patch   []byte // what makes the content of the header's base

	Signatures []Signature // 1 or 2 over the header

	Publication *Publication
	Proof       Proof
}

// The encoding of Signed, integers big endian:
//
//	magic  "FLTYSNP1"
//	form   1 byte: 0 signatures and content
//	               1 publication, proof and content
//	               2 publication and proof, the content detached
//	               3 publication, proof and a patch
//	header                       4-byte length, bytes
//	forms 0, 1: content          4-byte length, bytes
//	form 3: patch                4-byte length, bytes
//	forms 1 to 3: record         4-byte length, bytes
//	signatures                   1-byte count; each: three times 2-byte length, bytes
//	forms 1 to 3: proof          8-byte index, 1-byte count, 32 bytes each
//
// There is one encoding of a value, and nothing after it.
const (
	signedMagic  = "FLTYSNP1"
	formPlain    = 0
	formTree     = 1
	formDetached = 2
	formPatch    = 3
)

// With returns s with its whole content, whatever it came with: what is kept on
// disk. It shares s's memory.
func (s *Signed) With(content []byte) *Signed {
	whole := *s
	whole.Content, whole.Patch = content, nil
	return &whole
}

// fault says why s cannot be an envelope, or "". It looks at counts and sizes
// alone.
func (s *Signed) fault() string {
	if s == nil {
		return "no envelope"
	}
	signatures := s.Signatures
	if s.Publication != nil {
		if len(s.Signatures) != 0 {
			return "signatures over the header, and a publication too"
		}
		signatures = s.Publication.Signatures
		if n := len(s.Publication.Record); n == 0 || n > snapshot.MaxRecord {
			return fmt.Sprintf("a record of %d bytes, limit %d", n, snapshot.MaxRecord)
		}
	}
	switch {
	case s.Publication == nil && (len(s.Proof.Hashes) != 0 || s.Proof.Index != 0):
		return "a proof without a publication"
	case s.Publication == nil && len(s.Content) == 0:
		return "neither content nor a publication"
	case s.Publication == nil && len(s.Patch) != 0:
		return "a patch without a publication"
	case len(s.Content) != 0 && len(s.Patch) != 0:
		return "content, and a patch too"
	case len(s.Header) == 0 || len(s.Header) > snapshot.MaxHeader:
		return fmt.Sprintf("a header of %d bytes, limit %d", len(s.Header), snapshot.MaxHeader)
	case max(len(s.Content), len(s.Patch)) > snapshot.MaxContent:
		return fmt.Sprintf("content of %d bytes, limit %d", max(len(s.Content), len(s.Patch)), snapshot.MaxContent)
	case len(signatures) == 0 || len(signatures) > snapshot.MaxSignatures:
		return fmt.Sprintf("%d signatures, want 1 to %d", len(signatures), snapshot.MaxSignatures)
	case len(s.Proof.Hashes) > snapshot.MaxProof:
		return fmt.Sprintf("a proof of %d hashes, limit %d", len(s.Proof.Hashes), snapshot.MaxProof)
	}
	for _, sig := range signatures {
		if len(sig.KeyID) > snapshot.MaxKeyID || len(sig.Algorithm) > snapshot.MaxAlgorithm || len(sig.Bytes) > snapshot.MaxSignature {
			return fmt.Sprintf("a signature with a key id of %d, an algorithm of %d, a value of %d bytes; limits %d, %d, %d",
				len(sig.KeyID), len(sig.Algorithm), len(sig.Bytes), snapshot.MaxKeyID, snapshot.MaxAlgorithm, snapshot.MaxSignature)
		}
	}
	return ""
}

// ErrMalformed is matched by errors about bytes that are no encoding of what
// they should be.
var ErrMalformed = errors.New("malformed encoding")

// Marshal returns the encoding of s for disk and for the wire. It fails with
// ErrMalformed if s exceeds a limit.
func (s *Signed) Marshal() ([]byte, error) {
	if msg := s.fault(); msg != "" {
		return nil, fmt.Errorf("snapshot: cannot encode an envelope with %s: %w", msg, ErrMalformed)
	}
	form, signatures, parts := byte(formPlain), s.Signatures, [][]byte{s.Header}
	switch {
	case s.Publication == nil:
		parts = append(parts, s.Content)
	case len(s.Content) != 0:
		form, parts = formTree, append(parts, s.Content)
	case len(s.Patch) != 0:
		form, parts = formPatch, append(parts, s.Patch)
	default:
		form = formDetached
	}
	if s.Publication != nil {
		signatures, parts = s.Publication.Signatures, append(parts, s.Publication.Record)
	}
	size := 2048
	for _, b := range parts {
		size += len(b)
	}
	out := make([]byte, 0, size)
	out = append(append(out, signedMagic...), form)
	for _, b := range parts {
		out = append(binary.BigEndian.AppendUint32(out, uint32(len(b))), b...)
	}
	out = append(out, byte(len(signatures)))
	for _, sig := range signatures {
		out = append(binary.BigEndian.AppendUint16(out, uint16(len(sig.KeyID))), sig.KeyID...)
		out = append(binary.BigEndian.AppendUint16(out, uint16(len(sig.Algorithm))), sig.Algorithm...)
		out = append(binary.BigEndian.AppendUint16(out, uint16(len(sig.Bytes))), sig.Bytes...)
	}
	if s.Publication != nil {
		out = append(binary.BigEndian.AppendUint64(out, s.Proof.Index), byte(len(s.Proof.Hashes)))
		for _, h := range s.Proof.Hashes {
			out = append(out, h[:]...)
		}
	}
	return out, nil
}

// Unmarshal reads what Marshal wrote. It copies: data stays the caller's. Sizes
// are checked before anything is allocated for them. Errors match ErrMalformed.
func Unmarshal(data []byte) (*Signed, error) {
	r := canonical.NewParts(data)
	if r.Take(len(signedMagic)) != signedMagic {
		return nil, fmt.Errorf("snapshot: not an encoded snapshot (want %q first): %w", signedMagic, ErrMalformed)
	}
	form := r.Number(1)
	s := &Signed{Header: r.Bytes(4, snapshot.MaxHeader)}
	switch form {
	case formPlain, formTree:
		if s.Content = r.Bytes(4, snapshot.MaxContent); len(s.Content) == 0 {
			r.Fail("no content, in a form that has it")
		}
	case formPatch:
		if s.Patch = r.Bytes(4, snapshot.MaxContent); len(s.Patch) == 0 {
			r.Fail("no patch, in a form that has it")
		}
	}
	switch form {
	case formPlain:
		s.Signatures = readSignatures(r)
	case formTree, formDetached, formPatch:
		s.Publication = &Publication{Record: r.Bytes(4, snapshot.MaxRecord), Signatures: readSignatures(r)}
		s.Proof.Index = r.Number(8)
		s.Proof.Hashes = make([]Digest, r.Count(snapshot.MaxProof))
		for i := range s.Proof.Hashes {
			copy(s.Proof.Hashes[i][:], r.Take(sha256.Size))
		}
		if len(s.Proof.Hashes) == 0 {
			s.Proof.Hashes = nil
		}
	default:
		r.Fail(fmt.Sprintf("form %d is not known", form))
	}
	r.Finish()
	if r.Fault() == "" {
		r.Fail(s.fault())
	}
	if r.Fault() != "" {
		return nil, fmt.Errorf("snapshot: an encoded snapshot with %s: %w", r.Fault(), ErrMalformed)
	}
	return s, nil
}

func readSignatures(r *canonical.Parts) []Signature {
	sigs := make([]Signature, r.Count(snapshot.MaxSignatures))
	for i := range sigs {
		sigs[i] = Signature{
			KeyID:     string(r.Bytes(2, snapshot.MaxKeyID)),
			Algorithm: string(r.Bytes(2, snapshot.MaxAlgorithm)),
			Bytes:     r.Bytes(2, snapshot.MaxSignature),
		}
	}
	return sigs
}

// Draft is a snapshot that is composed and not yet signed: see [Compose].
type Draft struct {
	header  Header
	encoded []byte
	content []byte
}

// Compose makes the canonical bytes of a snapshot of content, once: what is
// stored, signed and sent is these bytes. It fills in SnapshotID, SchemaVersion,
// ScopeType, ContentHash and ContentSize of h, and refuses what a node would
// refuse whatever signed it: a subject that the scope does not allow, content
// that is not valid for its schema, grants beyond the header, a raw secret, a
// size above the limit. Errors match ErrRejected and say which check.
func Compose(h Header, content Content) (*Draft, error) {
	h = h.clone()
	h.SchemaVersion = schemaVersion
	if content == nil {
		return nil, errors.New("snapshot: no content to compose a snapshot of")
	}
	h.ScopeType = content.scope()
	d := &Draft{}
	encoded, c := canonical.Write(content.walk)
	if c.Err() != nil {
		return nil, refuse(checkContent, h.ScopeType, c.Err().Error())
	}
	d.content = encoded
	h.ContentHash, h.ContentSize = DigestOf(d.content), len(d.content)
	// Sorts by time of issue; the rest makes it unique without asking for randomness.
	id := sha256.Sum256(fmt.Appendf(nil, "%s %s %d %d %s", h.ScopeType, h.Subject, h.AuthorityEpoch, h.ConfigVersion, h.ContentHash))
	h.SnapshotID = fmt.Sprintf("%012x-%x", h.IssuedAt.UnixMilli(), id[:10])

	secret := c.Secret()
	hc := &codec{}
	h.walk(hc)
	if hc.Err() != nil {
		return nil, refuse(checkSchema, h.ScopeType, hc.Err().Error())
	}
	d.encoded = hc.Out()
	if secret == "" {
		secret = hc.Secret()
	}
	v := &verification{header: h, rule: ruleOf(h.ScopeType), content: content}
	me, _, _ := h.Subject.Node()
	for _, f := range []struct {
		check int
		msg   string
	}{
		{checkLimits, limitOf("header", len(d.encoded), snapshot.MaxHeader) + limitOf("content", len(d.content), v.rule.maxContent)},
		{checkSchema, v.schemaFault()},
		{checkCluster, faultIf(!me.IsZero() && me.Cluster() != h.ClusterID, "the subject is of another cluster")},
		{checkSubject, v.subjectFormFault()},
		{checkEpoch, faultIf(!inVersions(h.AuthorityEpoch), "authority_epoch is not within 1 and 2^53")},
		{checkVersion, faultIf(!inVersions(h.ConfigVersion), "config_version is not within 1 and 2^53")},
		{checkValidity, v.timesFault()},
		{checkGrants, content.grants(&h)},
		{checkContent, content.fault(&h)},
		{checkSecret, secret},
	} {
		if f.msg != "" {
			return nil, refuse(f.check, h.ScopeType, f.msg)
		}
	}
	d.header = h
	return d, nil
}

func faultIf(is bool, msg string) string {
	if is {
		return msg
	}
	return ""
}

func limitOf(what string, n, limit int) string {
	return faultIf(n > limit, fmt.Sprintf("%s of %d bytes, limit %d", what, n, limit))
}

func inVersions(n uint64) bool { return n >= 1 && n <= snapshot.MaxVersion }

// Header returns the header, with what Compose filled in.
func (d *Draft) Header() Header { return d.header.clone() }

// HeaderBytes returns the exact bytes to sign and store. Do not modify them.
func (d *Draft) HeaderBytes() []byte { return d.encoded }

// ContentBytes returns the exact content to store. Do not modify it.
func (d *Draft) ContentBytes() []byte { return d.content }

// Leaf returns the header's leaf for a [Tree].
func (d *Draft) Leaf() Digest { return LeafOf(d.header.ClusterID, d.encoded) }

// Sign signs the header of a trust bundle itself, with one or, during a
// rotation, two Ed25519 keys. Other scopes are signed by publication.
func (d *Draft) Sign(keys ...crypto.Signer) (*Signed, error) {
	if rule := ruleOf(d.header.ScopeType); rule == nil || rule.algorithm != snapshot.AlgorithmEd25519 {
		return nil, fmt.Errorf("snapshot: a %s is not signed by itself: put its Leaf into a Tree and sign that tree's Record", d.header.ScopeType)
	}
	signatures, err := signAll(snapshot.PAE(snapshot.TypeSnapshot, d.header.ClusterID, d.encoded), snapshot.AlgorithmEd25519, keys)
	if err != nil {
		return nil, fmt.Errorf("snapshot: signing %s: %w", d.header.SnapshotID, err)
	}
	return &Signed{Header: d.encoded, Content: d.content, Signatures: signatures}, nil
}

// Publish signs a tree of this snapshot alone: what a replica does that serves a
// join before the next publication. The record is the caller's but for its tree;
// its generation must not be that of any other record, see Record.
func (d *Draft) Publish(r Record, keys ...crypto.Signer) (*Signed, error) {
	tree := NewTree([]Digest{d.Leaf()})
	r.Root, r.TreeSize = tree.Root(), tree.Size()
	p, err := r.Sign(keys...)
	if err != nil {
		return nil, err
	}
	proof, err := tree.Proof(0)
	if err != nil {
		return nil, err
	}
	return &Signed{Header: d.encoded, Content: d.content, Publication: p, Proof: proof}, nil
}

// signAll signs message with each key.
func signAll(message []byte, algorithm string, keys []crypto.Signer) ([]Signature, error) {
	if len(keys) == 0 || len(keys) > snapshot.MaxSignatures {
		return nil, fmt.Errorf("%d keys, want 1 to %d", len(keys), snapshot.MaxSignatures)
	}
	out := make([]Signature, len(keys))
	for i, key := range keys {
		public, ok := key.Public().(ed25519.PublicKey)
		if !ok {
			return nil, fmt.Errorf("a key of type %T, want Ed25519", key.Public())
		}
		sig, err := key.Sign(nil, message, crypto.Hash(0))
		if err != nil {
			return nil, fmt.Errorf("key %s: %w", snapshot.KeyIDOf(public), err)
		}
		out[i] = Signature{KeyID: snapshot.KeyIDOf(public), Algorithm: algorithm, Bytes: sig}
	}
	return out, nil
}

// Record is what a compile signs: the tree over all current headers of a cluster
// but the trust bundle's.
type Record struct {
	ClusterID string

	// AuthorityEpoch, then Generation order the records of a cluster. Both are within
	// 1 and 2^53. Two records of one generation with different roots are proof
	// that their signer lies or was copied; so a generation is the store's
	// revision of the commit that the record belongs to, and no two share one.
	AuthorityEpoch uint64
	Generation     uint64

	Root     Digest
	TreeSize uint64 // leaves: those of headers, and holes between them

	IssuedAt   time.Time
	FreshUntil time.Time // a node without a newer record is stale from then on

	// Revocations is the digest of what is revoked; see TrustBundle.Revocations. A
	// node whose own differs lacks a trust bundle.
	Revocations Digest
}

func (r *Record) walk(c *codec) {
	version := schemaVersion
	c.Begin()
	c.Member("authority_epoch")
	c.Number64(&r.AuthorityEpoch)
	c.Member("cluster_id")
	c.Text(&r.ClusterID, identity.MaxClusterBytes)
	c.Member("fresh_until")
	c.Instant(&r.FreshUntil)
	c.Member("generation")
	c.Number64(&r.Generation)
	c.Member("issued_at")
	c.Instant(&r.IssuedAt)
	c.Member("revocations")
	c.Fixed(r.Revocations[:])
	c.Member("root")
	c.Fixed(r.Root[:])
	c.Member("schema_version")
	c.Number(&version, 1<<15)
	c.Member("tree_size")
	c.Number64(&r.TreeSize)
	c.End()
	if c.Err() == nil && version != schemaVersion {
		c.Fail("schema version %d, supported is %d", version, schemaVersion)
	}
}

// Sign makes the record's bytes and signs them with one or, during a rotation,
// two Ed25519 keys.
func (r Record) Sign(keys ...crypto.Signer) (*Publication, error) {
	encoded, err := encode(&r)
	switch {
	case err != nil:
		return nil, fmt.Errorf("snapshot: publication record: %w", err)
	case !inVersions(r.AuthorityEpoch) || !inVersions(r.Generation):
		return nil, fmt.Errorf("snapshot: publication record: epoch %d and generation %d, want both within 1 and 2^53", r.AuthorityEpoch, r.Generation)
	case !r.FreshUntil.After(r.IssuedAt):
		return nil, fmt.Errorf("snapshot: publication record: fresh until %v, which is not after its issue at %v", r.FreshUntil, r.IssuedAt)
	case r.TreeSize == 0 || r.TreeSize > 1<<snapshot.MaxProof:
		return nil, fmt.Errorf("snapshot: publication record: a tree of %d, want 1 to 2^%d", r.TreeSize, snapshot.MaxProof)
	}
	signatures, err := signAll(snapshot.PAE(snapshot.TypePublication, r.ClusterID, encoded), snapshot.AlgorithmTree, keys)
	if err != nil {
		return nil, fmt.Errorf("snapshot: signing generation %d: %w", r.Generation, err)
	}
	return &Publication{Record: encoded, Signatures: signatures}, nil
}
