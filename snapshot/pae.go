package snapshot

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
)

// The types of signed bytes. A signature over one never verifies as another.
const (
	TypeSnapshot    = "fealty/snapshot/v1"    // a header
	TypePublication = "fealty/publication/v1" // a publication record
	TypeRoot        = "fealty/root/v1"        // a root statement
	TypeRootChange  = "fealty/root-change/v1" // a change of root
	TypeEmergency   = "fealty/emergency/v1"   // an emergency statement

	TypeAuditCheckpoint = "fealty/audit-checkpoint/v1" // what vouches for the audit log
)

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

// Digest is a SHA-256. It prints, and is written in JSON, as 64 lower case hex
// digits.
type Digest [sha256.Size]byte

// DigestOf returns the SHA-256 of b.
func DigestOf(b []byte) Digest { return sha256.Sum256(b) }

func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// IsZero reports whether d was never set.
func (d Digest) IsZero() bool { return d == Digest{} }

// ParseDigest reads 64 lower case hex digits.
func ParseDigest(s string) (Digest, error) {
	var d Digest
	if !parseHex(d[:], s) {
		return Digest{}, fmt.Errorf("snapshot: %.80q is no SHA-256: want 64 lower case hex digits", s)
	}
	return d, nil
}

// parseHex fills dst from exactly 2*len(dst) lower case hex digits. Package
// encoding/hex would take upper case too, and one hash would have two spellings.
func parseHex(dst []byte, s string) bool {
	if len(s) != 2*len(dst) {
		return false
	}
	for i := range len(s) {
		var n byte
		switch b := s[i]; {
		case '0' <= b && b <= '9':
			n = b - '0'
		case 'a' <= b && b <= 'f':
			n = b - 'a' + 10
		default:
			return false
		}
		if i%2 == 0 {
			dst[i/2] = n << 4
		} else {
			dst[i/2] |= n
		}
	}
	return true
}
