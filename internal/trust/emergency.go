package trust

import (
	"bytes"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/binary"
	"fmt"
	"slices"
	"time"
	"unicode"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/canonical"
	internalidentity "github.com/fealty-io/fealty/internal/identity"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

// Emergency revokes, on the word of the signers of the manifest alone: no coordinator
// is needed, and none can keep it back from a node that is handed the statement as a
// file. It only takes away. It is for one cluster under one root, so that it means
// nothing in another cluster, or after a reseed, which changes all that it could name.
// It does not expire, and nothing takes it back: lists are sorted, without duplicates.
type Emergency struct {
	ClusterID string
	Root      identity.KeyID // the root CA key in force

	// Number tells the statements under a root apart. They accumulate, and count in
	// whatever order they come: a lower one is no older one that another overrides.
	Number   uint64
	IssuedAt time.Time
	Reason   string

	ConfigKeys []snapshot.Digest // SHA-256 of config signing keys
	Keys       []identity.KeyID  // of leaves or mesh CAs
	Nodes      []identity.ID
	Revoked    []snapshot.Revoked
}

func (e *Emergency) walk(c *canonical.Codec) {
	version := schemaVersion
	c.Begin()
	c.Member("cluster_id")
	c.Text(&e.ClusterID, internalidentity.MaxClusterBytes)
	c.Member("config_keys")
	canonical.List(c, &e.ConfigKeys, internalsnapshot.MaxConfigKeys,
		func(c *canonical.Codec, d *snapshot.Digest) { c.Fixed(d[:]) })
	c.Member("issued_at")
	c.Instant(&e.IssuedAt)
	c.Member("keys")
	canonical.List(c, &e.Keys, internalsnapshot.MaxEmergencyParts, walkKeyID)
	c.Member("nodes")
	canonical.List(c, &e.Nodes, internalsnapshot.MaxEmergencyParts, canonical.ID)
	c.Member("number")
	c.Number64(&e.Number)
	c.Member("reason")
	c.Text(&e.Reason, internalsnapshot.MaxReason)
	canonical.Revoked(c, &e.Revoked)
	c.Member("root")
	c.Fixed(e.Root[:])
	c.Member("schema_version")
	c.Number(&version, 1<<15)
	c.End()
	if c.Err() == nil && version != schemaVersion {
		c.Fail("schema version %d, supported is %d", version, schemaVersion)
	}
}

func (e *Emergency) fault() string {
	switch {
	case identity.CheckCluster(e.ClusterID) != nil:
		return fmt.Sprintf("cluster_id %.80q is no cluster", e.ClusterID)
	case e.Root.IsZero():
		return "it names no root"
	case !inVersions(e.Number):
		return fmt.Sprintf("number %d is not within 1 and 2^53", e.Number)
	case e.Reason == "":
		return "it gives no reason"
	// It is shown to people on terminals.
	case !isPrintable(e.Reason):
		return "its reason has a character that cannot be shown"
	case len(e.ConfigKeys)+len(e.Keys)+len(e.Nodes)+len(e.Revoked) == 0:
		return "it revokes nothing"
	case len(e.Revoked) > internalsnapshot.MaxEmergencyParts:
		return fmt.Sprintf("%d things revoked by name, limit %d", len(e.Revoked), internalsnapshot.MaxEmergencyParts)
	case !canonical.Ascending(e.ConfigKeys, compareDigests):
		return "config_keys are out of order or double"
	case !canonical.Ascending(e.Keys, identity.KeyID.Compare):
		return "keys are out of order or double"
	case !canonical.Ascending(e.Nodes, identity.ID.Compare):
		return "nodes are out of order or double"
	case slices.Contains(e.Keys, e.Root):
		return "it bans the root, which a reseed replaces: nobody would be left to believe"
	case slices.Contains(e.Keys, identity.KeyID{}):
		return "a blank key"
	}
	for _, id := range e.Nodes {
		switch {
		case id.Cluster() != e.ClusterID:
			return fmt.Sprintf("%.80s is of another cluster", id)
		case id.Kind() == identity.Coordinator:
			return fmt.Sprintf("%.80s is a coordinator, which the manifest admits: revoke its key", id)
		}
	}
	return faultOfRevoked(e.ClusterID, e.Revoked)
}

func isPrintable(s string) bool {
	for _, r := range s {
		if !unicode.IsPrint(r) {
			return false
		}
	}
	return true
}

// Encode returns the canonical bytes of e, with its lists sorted, which
// [SignedEmergency] carries. Errors say which part no statement can have.
func (e Emergency) Encode() ([]byte, error) {
	e.ConfigKeys, e.Keys = slices.Clone(e.ConfigKeys), slices.Clone(e.Keys)
	e.Nodes, e.Revoked = slices.Clone(e.Nodes), slices.Clone(e.Revoked)
	slices.SortFunc(e.ConfigKeys, compareDigests)
	slices.SortFunc(e.Keys, identity.KeyID.Compare)
	slices.SortFunc(e.Nodes, identity.ID.Compare)
	slices.SortFunc(e.Revoked, snapshot.Revoked.Compare)
	if msg := e.fault(); msg != "" {
		return nil, fmt.Errorf("snapshot: emergency statement: %s", msg)
	}
	encoded, err := encode(e.walk)
	if err != nil {
		return nil, fmt.Errorf("snapshot: emergency statement: %w", err)
	}
	if len(encoded) > internalsnapshot.MaxEmergency {
		return nil, fmt.Errorf("snapshot: an emergency statement of %d bytes, limit %d",
			len(encoded), internalsnapshot.MaxEmergency)
	}
	return encoded, nil
}

// DecodeEmergency reads the canonical bytes of a statement, which nobody vouches for
// yet: it is for people who are asked to sign it, and for what was verified before.
// Errors match snapshot.ErrMalformed.
func DecodeEmergency(data []byte) (*Emergency, error) {
	if len(data) > internalsnapshot.MaxEmergency {
		return nil, fmt.Errorf("snapshot: an emergency statement of %d bytes, limit %d: %w",
			len(data), internalsnapshot.MaxEmergency, snapshot.ErrMalformed)
	}
	e := new(Emergency)
	if err := decode(data, e.walk); err != nil {
		return nil, fmt.Errorf("snapshot: emergency statement: %w: %w", err, snapshot.ErrMalformed)
	}
	if msg := e.fault(); msg != "" {
		return nil, fmt.Errorf("snapshot: emergency statement: %s: %w", msg, snapshot.ErrMalformed)
	}
	return e, nil
}

// SignedEmergency is a statement as it travels: exact bytes, and signatures.
type SignedEmergency struct {
	Statement  []byte
	Signatures []SignerSignature // at most 64
}

// Digest names the statement, whoever signed it.
func (s *SignedEmergency) Digest() snapshot.Digest { return snapshot.DigestOf(s.Statement) }

// Sign adds the signature of key, unless it is there. The statement is read first:
// nobody signs for another cluster than it names.
func (s *SignedEmergency) Sign(key ed25519.PrivateKey) error {
	e, err := DecodeEmergency(s.Statement)
	if err != nil {
		return err
	}
	var sig SignerSignature
	copy(sig.Key[:], key.Public().(ed25519.PublicKey))
	copy(sig.Signature[:], ed25519.Sign(key, internalsnapshot.PAE(internalsnapshot.TypeEmergency, e.ClusterID, s.Statement)))
	return s.add(sig)
}

// Merge adds the signatures of another copy of the same statement.
func (s *SignedEmergency) Merge(o *SignedEmergency) error {
	if !bytes.Equal(s.Statement, o.Statement) {
		return fmt.Errorf("snapshot: statement %s and statement %s are two, and were signed apart: %w",
			s.Digest(), o.Digest(), snapshot.ErrMalformed)
	}
	for _, sig := range o.Signatures {
		if err := s.add(sig); err != nil {
			return err
		}
	}
	return nil
}

func (s *SignedEmergency) add(sig SignerSignature) error {
	i, found := slices.BinarySearchFunc(s.Signatures, sig, compareSignatures)
	switch {
	case found:
		return nil
	case len(s.Signatures) >= internalsnapshot.MaxSigners:
		return fmt.Errorf("snapshot: %d signatures, limit %d: %w",
			len(s.Signatures)+1, internalsnapshot.MaxSigners, snapshot.ErrMalformed)
	}
	s.Signatures = slices.Insert(s.Signatures, i, sig)
	return nil
}

func compareSignatures(a, b SignerSignature) int { return bytes.Compare(a.Key[:], b.Key[:]) }

// Marshal returns the encoding of s for a file. It fails with snapshot.ErrMalformed if a part
// exceeds its limit.
func (s *SignedEmergency) Marshal() ([]byte, error) {
	if len(s.Statement) > internalsnapshot.MaxEmergency || len(s.Signatures) > internalsnapshot.MaxSigners {
		return nil, fmt.Errorf("snapshot: an emergency statement of %d bytes with %d signatures, limits %d and %d: %w",
			len(s.Statement), len(s.Signatures), internalsnapshot.MaxEmergency,
			internalsnapshot.MaxSigners, snapshot.ErrMalformed)
	}
	out := binary.BigEndian.AppendUint32([]byte(internalsnapshot.EmergencyMagic), uint32(len(s.Statement)))
	return appendSignatures(append(out, s.Statement...), s.Signatures), nil
}

// UnmarshalEmergency reads what Marshal wrote. It copies. Errors match snapshot.ErrMalformed.
func UnmarshalEmergency(data []byte) (*SignedEmergency, error) {
	r := canonical.NewParts(data)
	if r.Take(len(internalsnapshot.EmergencyMagic)) != internalsnapshot.EmergencyMagic {
		return nil, fmt.Errorf("snapshot: not an encoded emergency statement (want %q first): %w",
			internalsnapshot.EmergencyMagic, snapshot.ErrMalformed)
	}
	s := &SignedEmergency{Statement: r.Bytes(4, internalsnapshot.MaxEmergency)}
	s.Signatures = takeSignatures(r)
	r.Finish()
	if r.Fault() == "" && !canonical.Ascending(s.Signatures, compareSignatures) {
		r.Fail("signatures out of order or double")
	}
	if r.Fault() != "" {
		return nil, fmt.Errorf("snapshot: an encoded emergency statement with %s: %w", r.Fault(), snapshot.ErrMalformed)
	}
	return s, nil
}

// Verify returns the statement if the threshold of the signers that b names signed
// it, for b's cluster and a root of b's. The signatures are checked before anything is
// parsed. A signature of a stranger, or one that does not verify, counts for nothing.
// A refusal is a *snapshot.RejectedError and matches snapshot.ErrRejected.
func (s *SignedEmergency) Verify(b snapshot.TrustBundle) (*Emergency, error) {
	if s == nil || len(s.Statement) == 0 || len(s.Statement) > internalsnapshot.MaxEmergency ||
		len(s.Signatures) > internalsnapshot.MaxSigners {
		return nil, refuse(checkLimits, "the emergency statement or its list of signatures is missing or above its limit")
	}
	message := internalsnapshot.PAE(internalsnapshot.TypeEmergency, b.ClusterID, s.Statement)
	signed := 0
	for _, k := range b.Signers.Keys {
		if slices.ContainsFunc(s.Signatures, func(sig SignerSignature) bool {
			return bytes.Equal(sig.Key[:], k.Key) && ed25519.Verify(k.Key, message, sig.Signature[:])
		}) {
			signed++
		}
	}
	if b.Signers.Threshold < 1 || signed < b.Signers.Threshold {
		return nil, refuse(checkSignature, fmt.Sprintf("%d of the signers of the manifest have signed the emergency statement, %d must",
			signed, b.Signers.Threshold))
	}
	e := new(Emergency)
	if err := decode(s.Statement, e.walk); err != nil {
		return nil, refuse(checkSchema, "emergency statement: "+err.Error())
	}
	if msg := e.fault(); msg != "" {
		return nil, refuse(checkSchema, "emergency statement: "+msg)
	}
	if e.ClusterID != b.ClusterID {
		return nil, refuse(checkCluster, fmt.Sprintf("the emergency statement is of cluster %.80q", e.ClusterID))
	}
	if !isRoot(b, e.Root) {
		return nil, refuse(checkEpoch, fmt.Sprintf("the emergency statement is for root %s, which is not in force: a reseed took its place",
			e.Root))
	}
	return e, nil
}

// AddEmergency returns the statements in force with e, which was verified as s. It
// reports false if e is in force already. A number that another statement has is
// refused: who numbers them has to know which there are.
func AddEmergency(in []*Emergency, e *Emergency) (out []*Emergency, news bool, err error) {
	for _, old := range in {
		if old.Root != e.Root || old.Number != e.Number {
			continue
		}
		was, err1 := encode(old.walk)
		is, err2 := encode(e.walk)
		if err1 == nil && err2 == nil && bytes.Equal(was, is) {
			return in, false, nil
		}
		err := refuse(checkVersion, fmt.Sprintf("number %d is taken by another emergency statement, of %s",
			e.Number, old.IssuedAt.Format(canonical.TimeLayout)))
		err.Reason = snapshot.ReasonEquivocation
		return in, false, err
	}
	if len(in) >= internalsnapshot.MaxEmergencies {
		return in, false, refuse(checkLimits, fmt.Sprintf("%d emergency statements, limit %d", len(in)+1, internalsnapshot.MaxEmergencies))
	}
	out = append(slices.Clone(in), e)
	slices.SortFunc(out, func(a, b *Emergency) int {
		if a.Number < b.Number {
			return -1
		}
		return 1
	})
	return out, true, nil
}

// isRoot reports whether a root of b, all of which can be read, is of the key root.
func isRoot(b snapshot.TrustBundle, root identity.KeyID) bool {
	found := false
	for _, der := range b.Roots {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			return false
		}
		found = found || identity.KeyOf(cert) == root
	}
	return found
}

// Revocations returns what e revokes.
func (e *Emergency) Revocations() snapshot.Revocations {
	return snapshot.NewRevocations(e.Revoked, e.ConfigKeys, e.Nodes, e.Keys)
}

// RevocationsOf returns all that bundle, which may be nil, and statements revoke.
func RevocationsOf(bundle *snapshot.Verified, statements ...*Emergency) snapshot.Revocations {
	more := make([]snapshot.Revocations, len(statements))
	for i, e := range statements {
		more[i] = e.Revocations()
	}
	return snapshot.RevocationsOf(bundle, more...)
}
