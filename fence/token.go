package fence

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/fealty-io/fealty/internal/signed"
)

// Token orders one attempt of a mutation among all others of its resource. It names no
// holder: who sent it is known from the connection.
type Token struct {
	Ownership   uint64
	Epoch       Epoch
	Sequence    uint64
	Incarnation Incarnation // of the process that sent it
	Digest      Digest      // of the request that it was made for
}

// Digest is the first half of the SHA-256 of a request. It tells a request that was sent
// twice from another one under the same token, and admits neither.
type Digest [16]byte

// DigestOf returns the digest of a request as its bytes go over the wire.
func DigestOf(request []byte) Digest {
	sum := sha256.Sum256(request)
	return Digest(sum[:16])
}

// String returns 32 lower case hex digits.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// Compare orders two tokens of one holder and resource: by Epoch, then by Sequence. It
// returns -1, 0 or 1.
func (t Token) Compare(other Token) int {
	return cmp.Or(cmp.Compare(t.Epoch, other.Epoch), cmp.Compare(t.Sequence, other.Sequence))
}

// ErrMalformed is matched by every error about a text that is no token, lineage,
// incarnation or statement.
var ErrMalformed = signed.ErrMalformed

// tokenVersion begins every token, so that a later form is refused and not misread.
const tokenVersion = "v1"

// maxTokenText bounds the text of a token, in bytes.
const maxTokenText = 2 + 3*20 + 2*32 + 5

// String returns the token as it travels, its parts with a colon between them and the
// numbers in decimal:
//
//	v1:ownership:epoch:sequence:incarnation:digest
func (t Token) String() string {
	b := make([]byte, 0, maxTokenText)
	b = append(b, tokenVersion...)
	for _, n := range []uint64{t.Ownership, uint64(t.Epoch), t.Sequence} {
		b = strconv.AppendUint(append(b, ':'), n, 10)
	}
	b = hex.AppendEncode(append(b, ':'), t.Incarnation[:])
	b = hex.AppendEncode(append(b, ':'), t.Digest[:])
	return string(b)
}

// parseToken reads what [Token.String] wrote, and no other spelling of it. A token with an
// epoch, sequence or incarnation of zero is none. Errors match [ErrMalformed].
func parseToken(s string) (Token, error) {
	bad := func(why string) (Token, error) {
		return Token{},
			fmt.Errorf("fence: %.160q is no token, %s: want v1:ownership:epoch:sequence:incarnation:digest: %w", s,
				why, ErrMalformed)
	}
	if len(s) > maxTokenText {
		return Token{}, fmt.Errorf("fence: a token of %d bytes, limit %d: %w", len(s), maxTokenText, ErrMalformed)
	}
	parts := strings.Split(s, ":")
	if len(parts) != 6 || parts[0] != tokenVersion {
		return bad("by its form")
	}
	var t Token
	var epoch uint64
	for i, n := range []*uint64{&t.Ownership, &epoch, &t.Sequence} {
		var ok bool
		if *n, ok = signed.ParseNumber(parts[1+i], 64); !ok {
			return bad("by its numbers")
		}
	}
	t.Epoch = Epoch(epoch)
	if !parseHex(t.Incarnation[:], parts[4]) || !parseHex(t.Digest[:], parts[5]) {
		return bad("by its digests")
	}
	if why := t.fault(); why != "" {
		return bad(why)
	}
	return t, nil
}

// fault says why t is no token, or "". It is a pointer, as a copy of what was just written is slow.
func (t *Token) fault() string {
	switch {
	case t.Epoch.Life() == 0:
		return "life 0"
	case t.Sequence == 0:
		return "sequence 0"
	case t.Incarnation == Incarnation{}:
		return "no incarnation"
	}
	return ""
}
