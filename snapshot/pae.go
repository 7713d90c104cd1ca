package snapshot

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/fealty-io/fealty/internal/canonical"
)

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
	if !canonical.ParseHex(d[:], s) {
		return Digest{}, fmt.Errorf("snapshot: %.80q is no SHA-256: want 64 lower case hex digits", s)
	}
	return d, nil
}
