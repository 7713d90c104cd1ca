// Package snapshot has what public package snapshot is made of: bounds, field names, the bytes that are signed, and the
// search for raw secrets ([FindSecret], [SecretIn]).
package snapshot

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"time"

	"github.com/fealty-io/fealty/internal/identity"
)

// Limits. Sizes are in bytes; what exceeds one is refused before it is looked at.
const (
	MaxMembers      = 1 << 14
	MaxCoordinators = 64
	MaxRoots        = identity.MaxRoots
	MaxConfigKeys   = 64 // with the revoked ones, which stay until they expire
	MaxMeshKeys     = identity.MaxMeshKeys
	MaxBans         = 1 << 13 // ids and keys, each
	MaxSigners      = 64
	// MaxRootChanges bounds the changes of root that travel together.
	MaxRootChanges = 64
	// MaxSignedRootChange bounds the encoding of a SignedRootChange.
	MaxSignedRootChange = len(ChangeMagic) + 2 + MaxRecord + 1 +
		MaxSigners*(ed25519.PublicKeySize+ed25519.SignatureSize)
	// MaxTrial bounds how long a snapshot may be on trial.
	MaxTrial     = 24 * time.Hour
	MaxEmergency = 64 << 10 // bytes of a statement
	// MaxSignedEmergency bounds the encoding of a SignedEmergency.
	MaxSignedEmergency = len(EmergencyMagic) + 4 + MaxEmergency + 1 +
		MaxSigners*(ed25519.PublicKeySize+ed25519.SignatureSize)
	MaxEmergencies    = 64     // statements in force at a node or a coordinator
	MaxEmergencyParts = 1 << 7 // entries of each list of a statement
	MaxReason         = 256    // bytes of its reason
	MaxHeader         = 8 << 10
	MaxContent        = 8 << 20 // of any scope; all but the peer_directory have DefaultContent
	DefaultContent    = 1 << 20
	MaxRecord         = 2 << 10
	MaxSignatures     = 2
	MaxSignature      = 512
	MaxProof          = 40 // hashes: a tree of 2^40 headers
	MaxKeyID          = 64
	MaxAlgorithm      = 32

	// MaxSigned bounds the encoding of a snapshot.Signed.
	MaxSigned = MaxHeader + MaxContent + MaxRecord + MaxSignatures*(MaxSignature+MaxKeyID+MaxAlgorithm+6) +
		32*MaxProof + 64
	MaxVersion = 1 << 53 // config versions, epochs and generations: what JSON numbers can still tell apart
	// MaxMarks bounds the (scope, subject) pairs that a node keeps marks of. Above it the
	// group goes that the node has heard nothing of for the longest time.
	MaxMarks      = 512
	MaxRecords    = 1 << 13 // records of one section
	MaxPeers      = 1 << 16 // peers of one section
	MaxReferences = 64      // names, addresses, parameters or keys of one record
	MaxText       = 1024    // bytes of a parameter's value or of another free text
	// MaxRevoked bounds the things that a bundle revokes by name. They are never
	// removed from it: what was revoked comes back under another name.
	MaxRevoked = 1 << 10
	// MaxRevokedName bounds the name of one of them, in bytes.
	MaxRevokedName = 256
	// MaxSignedRoot bounds the encoding of a SignedRoot.
	MaxSignedRoot = len(RootMagic) + 4 + MaxRecord + MaxSignature
	// ClockTolerance is how far a snapshot may begin in the verifier's future. It
	// does not extend the end: nothing outlives its expiry.
	ClockTolerance = 2 * time.Minute
)

// The parts of contents that some roles may not hold.
const (
	SectionWhole     = "" // all of a scope
	SectionMembers   = "members"
	SectionDegraded  = "degraded"
	SectionActive    = "active"
	SectionBootstrap = "bootstrap"
	SectionWarm      = "warm"
	SectionEndpoints = "endpoints"
	SectionEntry     = "entry"
	SectionResources = "resources"
	SectionSecrets   = "secrets"
	SectionServices  = "services"
	SectionRoutes    = "routes"
	SectionClasses   = "classes"
	SectionSessions  = "sessions"
	SectionShards    = "shards"
)

// The roles that a node can have, and what stands for a node without one.
const (
	NoRole      = ""
	RoleCore    = "core"
	RoleIngress = "ingress"
	RoleEgress  = "egress"
	RoleStorage = "storage"
	RoleThin    = "thin" // learns nothing of the cluster's topology
)

// The types of signed bytes. A signature over one never verifies as another.
const (
	TypeSnapshot        = "fealty/snapshot/v1"         // a header
	TypePublication     = "fealty/publication/v1"      // a publication record
	TypeRoot            = "fealty/root/v1"             // a root statement
	TypeRootChange      = "fealty/root-change/v1"      // a change of root
	TypeEmergency       = "fealty/emergency/v1"        // an emergency statement
	TypeAuditCheckpoint = "fealty/audit-checkpoint/v1" // what vouches for the audit log
	TypeTokenKey        = "fealty/token-key/v1"        // a key that signs JWT-SVIDs
)

// The algorithms of signatures.
const (
	AlgorithmEd25519 = "ed25519"      // Ed25519 (RFC 8032) over PAE(TypeSnapshot, cluster, header)
	AlgorithmTree    = "ed25519-tree" // Ed25519 over PAE(TypePublication, cluster, record), and an inclusion proof
)

// The kinds of what is revoked by name, and what names one of each. A member is named as KIND/NAME.
const (
	RevokedRole        = "role"        // of a member: KIND/NAME/ROLE
	RevokedService     = "service"     // a service, or KIND/NAME/SERVICE for its assignment to one member
	RevokedPeer        = "peer"        // a record of the peer directory, or a member
	RevokedStorage     = "storage"     // a storage endpoint: its record, or its URL
	RevokedCoordinator = "coordinator" // an address (host:port) to refresh at
	RevokedPermission  = "permission"  // an action of degraded mode
)

// RevokedKinds returns these kinds, sorted.
func RevokedKinds() []string {
	return []string{RevokedCoordinator, RevokedPeer, RevokedPermission, RevokedRole, RevokedService, RevokedStorage}
}

// Reasons of refusals: one for each check, one of heads and one of patches. Package snapshot has more of the check of
// versions.
const (
	ReasonLimits    = "limits"
	ReasonSchema    = "schema"
	ReasonCluster   = "cluster"
	ReasonSubject   = "subject"
	ReasonSigner    = "signer"
	ReasonSignature = "signature"
	ReasonHash      = "content_hash"
	ReasonValidity  = "validity"
	ReasonEpoch     = "authority_epoch"
	ReasonGrants    = "grants"
	ReasonContent   = "content"
	ReasonSecret    = "raw_secret"
	ReasonVersion   = "config_version"
	// ReasonHistory: a trust bundle whose head does not lead on from the one of the
	// bundle before: of a history that was rolled back or forked.
	ReasonHistory = "history"
	// ReasonBase: a patch to another version than the active one, so that there is a gap, or to
	// one of another subject or epoch. The whole is to be asked for.
	ReasonBase = "base_mismatch"
)

// ReasonOf returns the reason of a refusal by a check, by its number in
// docs/explanation/snapshots.md#the-twelve-checks. The limits have 0.
func ReasonOf(check int) string {
	return [...]string{ReasonLimits, ReasonSchema, ReasonCluster, ReasonSubject, ReasonSigner, ReasonSignature, ReasonHash,
		ReasonValidity, ReasonEpoch, ReasonVersion, ReasonGrants, ReasonContent, ReasonSecret}[check]
}

// PAE returns the bytes that are signed for payload: its pre-authentication
// encoding, after DSSE v1.0.2, protocol.md, "Signature Definition", with the
// cluster as a third part:
//
//	"FealtyPAEv1" SP len(type) SP type SP len(cluster) SP cluster SP len(payload) SP payload
//
// Lengths count bytes and are written in decimal ASCII without leading zeros,
// so that no two different triples give the same bytes.
func PAE(typ, cluster string, payload []byte) []byte {
	out := make([]byte, 0, len("FealtyPAEv1")+len(typ)+len(cluster)+len(payload)+32)
	out = append(out, "FealtyPAEv1 "...)
	out = strconv.AppendInt(out, int64(len(typ)), 10)
	out = append(append(out, ' '), typ...)
	out = strconv.AppendInt(append(out, ' '), int64(len(cluster)), 10)
	out = append(append(out, ' '), cluster...)
	out = strconv.AppendInt(append(out, ' '), int64(len(payload)), 10)
	return append(append(out, ' '), payload...)
}

// KeyIDOf returns the id of a public key's bytes: the first 8 bytes of their
// SHA-256 in hex.
func KeyIDOf(key []byte) string {
	sum := sha256.Sum256(key)
	return hex.EncodeToString(sum[:8])
}

// The encoding of SignedRoot: magic "FLTYROT1"; statement and signature, each
// with a 2-byte length before it.
const RootMagic = "FLTYROT1"

// The encoding of SignedRootChange: magic "FLTYCHG1"; the change with a 2-byte
// length before it; the count of signatures in one byte, and each as key and
// signature.
const ChangeMagic = "FLTYCHG1"

// The encoding of SignedEmergency: magic "FLTYEMG1"; the statement with a 4-byte
// length before it; the count of signatures in one byte, and each as key and
// signature, in ascending order of the keys. There is nothing after it.
const EmergencyMagic = "FLTYEMG1"
