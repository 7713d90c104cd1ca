package dir

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
)

// ErrDamaged is matched by errors about bytes that are not what was written.
var ErrDamaged = errors.New("damaged")

// The form of what the agent writes for itself:
//
//	{"sha256":"<64 hex digits>","body":<JSON>}LF
//
// with the SHA-256 of the body's bytes. There is one spelling, so that a change of
// any byte shows. It guards against a bad disk, not against who can write to it.
const (
	SealHead = `{"sha256":"`
	SealBody = `","body":`
	SealTail = "}\n"
)

// Seal returns v for disk.
func Seal(v any) ([]byte, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", v, err)
	}
	sum := sha256.Sum256(body)
	out := make([]byte, 0, len(body)+len(SealHead)+len(SealBody)+len(SealTail)+2*len(sum))
	out = append(out, SealHead...)
	out = hex.AppendEncode(out, sum[:])
	out = append(out, SealBody...)
	out = append(out, body...)
	return append(out, SealTail...), nil
}

// Unseal reads what Seal returned. Errors match ErrDamaged and hold nothing of
// data.
func Unseal(data []byte, v any) error {
	rest, ok := bytes.CutPrefix(data, []byte(SealHead))
	if ok = ok && len(rest) > 2*sha256.Size; !ok {
		return fmt.Errorf("%w: %d bytes without a checksum", ErrDamaged, len(data))
	}
	want, rest := rest[:2*sha256.Size], rest[2*sha256.Size:]
	rest, ok = bytes.CutPrefix(rest, []byte(SealBody))
	if ok {
		rest, ok = bytes.CutSuffix(rest, []byte(SealTail))
	}
	if !ok {
		return fmt.Errorf("%w: cut off or not of this form", ErrDamaged)
	}
	if sum := sha256.Sum256(rest); hex.EncodeToString(sum[:]) != string(want) {
		return fmt.Errorf("%w: the checksum does not match", ErrDamaged)
	}
	if err := json.Unmarshal(rest, v); err != nil {
		// Whole, but of another release: the text of the error may quote the content.
		return fmt.Errorf("%w: not the content that this release writes", ErrDamaged)
	}
	return nil
}
