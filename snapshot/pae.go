package snapshot

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// Digest is a SHA-256. It prints, and is written in JSON, as 64 lower case hex
// digits.
type Digest [sha256.Size]byte

// DigestOf returns the SHA-256 of b.
func DigestOf(b []byte) Digest { return sha256.Sum256(b) }

func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// IsZero reports whether d was never set.
func (d Digest) IsZero() bool { return d == Digest{} }

// parseDigest reads 64 lower case hex digits.
func parseDigest(s string) (Digest, error) {
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
