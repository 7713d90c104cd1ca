// Package signed makes and verifies short statements that an authority signs. It also has the bounds and header names
// that the packages of the fence share.
//
// Package fence has the statements that any fenced receiver needs, and package order those of a
// leader to the members of its cluster.
package signed

import (
	"crypto"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// The errors, which package fence has under the same names.
var (
	ErrMalformed = errors.New("malformed")
	ErrUntrusted = errors.New("statement is not trusted")
)

// Authority is fence.Authority.
type Authority struct {
	Cluster   string
	Key       func(id string) (ed25519.PublicKey, bool)
	NotBefore uint64
}

// KeyID returns the id of a public key: the first 8 bytes of its SHA-256 in hex.
func KeyID(key ed25519.PublicKey) string {
	sum := sha256.Sum256(key)
	return hex.EncodeToString(sum[:8])
}

// A payload is lines of a name, a blank and a value, in one order. Each statement has one
// spelling: what was read is written again, and has to be the same.

// Head returns the lines that every statement begins with.
func Head(cluster string, authorityEpoch uint64) string {
	return "cluster " + cluster + "\nauthority-epoch " + strconv.FormatUint(authorityEpoch, 10) + "\n"
}

// FirstFault returns the first of faults that is one, or "".
func FirstFault(faults ...string) string {
	for _, f := range faults {
		if f != "" {
			return f
		}
	}
	return ""
}

// NameFault says why s names nothing, or "".
func NameFault(what, s string, mayBeEmpty bool) string {
	switch {
	case s == "" && !mayBeEmpty:
		return "no " + what
	case len(s) > MaxName:
		return fmt.Sprintf("a %s of %d bytes, limit %d", what, len(s), MaxName)
	case strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }):
		return fmt.Sprintf("a %s with a character that is not printable ASCII, or a blank", what)
	}
	return ""
}

// ZeroFault says that n is 0, which what is none of, or "".
func ZeroFault(what string, n uint64) string {
	if n == 0 {
		return what + " 0"
	}
	return ""
}

// preAuthentication returns what is signed. It is the encoding of package snapshot, after
// DSSE v1.0.2, protocol.md, "Signature Definition", with the cluster as a third part.
func preAuthentication(typ, cluster, payload string) []byte {
	b := []byte("FealtyPAEv1")
	for _, part := range []string{typ, cluster, payload} {
		b = strconv.AppendInt(append(b, ' '), int64(len(part)), 10)
		b = append(append(b, ' '), part...)
	}
	return b
}

// Sign returns a statement of a type as it travels, signed by an Ed25519 key (RFC 8032). form returns its payload, and
// why no receiver would take it, which matches [ErrMalformed] then; other errors are the signer's.
func Sign(key crypto.Signer, typ, cluster string, form func() (payload, fault string)) (string, error) {
	payload, fault := form()
	if fault != "" {
		return "", fmt.Errorf("fence: a statement of type %s has %s: %w", typ, fault, ErrMalformed)
	}
	public, ok := key.Public().(ed25519.PublicKey)
	if !ok {
		return "", fmt.Errorf("fence: a key of type %T signs no statement: want Ed25519", key.Public())
	}
	signature, err := key.Sign(nil, preAuthentication(typ, cluster, payload), crypto.Hash(0))
	if err != nil {
		return "", fmt.Errorf("fence: sign a statement of type %s: %w", typ, err)
	}
	parts := []string{encoding.EncodeToString([]byte(payload)), KeyID(public), encoding.EncodeToString(signature)}
	return strings.Join(parts, "."), nil
}

// encoding is strict about the bits after the last byte.
var encoding = base64.RawURLEncoding.Strict()

// Open returns the statement in a text, if a signed it as one of this type. read reads its payload, and form writes it
// again: each statement has one spelling. Errors match [ErrMalformed] or [ErrUntrusted].
func Open[T any](a Authority, text, typ string, read func(*Fields) T, form func(T) (payload, fault string)) (T, error) {
	var none T
	malformed := func(why string) (T, error) {
		return none, fmt.Errorf("fence: a statement of type %s has %s: %w", typ, why, ErrMalformed)
	}
	if len(text) > MaxStatement {
		return malformed(fmt.Sprintf("%d bytes, limit %d", len(text), MaxStatement))
	}
	parts := strings.Split(text, ".")
	if len(parts) != 3 {
		return malformed(fmt.Sprintf("%d parts, want payload, key id and signature with a dot between them",
			len(parts)))
	}
	payload, err := encoding.DecodeString(parts[0])
	// The decoder skips line ends.
	if err != nil || encoding.EncodeToString(payload) != parts[0] {
		return malformed("a payload that is not base64url without padding (RFC 4648, section 5)")
	}
	signature, err := encoding.DecodeString(parts[2])
	if err != nil || len(signature) != ed25519.SignatureSize || encoding.EncodeToString(signature) != parts[2] {
		return malformed("no Ed25519 signature in base64url without padding")
	}
	key, ok := a.Key(parts[1])
	if !ok || len(key) != ed25519.PublicKeySize || KeyID(key) != parts[1] {
		return none, fmt.Errorf("fence: a statement of type %s is signed with key %.32q, "+
			"which does not sign for cluster %s: %w",
			typ, parts[1], a.Cluster, ErrUntrusted)
	}
	// The cluster of the signature is that of the reader: a statement of another cluster
	// with the same key does not verify, whatever it says.
	if !ed25519.Verify(key, preAuthentication(typ, a.Cluster, string(payload)), signature) {
		return none, fmt.Errorf("fence: key %s did not sign this statement as a %s of cluster %s: %w",
			parts[1], typ, a.Cluster, ErrUntrusted)
	}
	f := Fields{rest: string(payload)}
	said := read(&f)
	again, fault := form(said)
	switch {
	case f.fault != "":
		return malformed(f.fault)
	case fault != "":
		return malformed(fault)
	case again != string(payload):
		return malformed("another spelling than its own, or more than it says")
	case f.cluster != a.Cluster:
		return none, fmt.Errorf("fence: a statement of type %s is of cluster %q, want %q: %w", typ,
			f.cluster, a.Cluster, ErrUntrusted)
	case f.authorityEpoch < a.NotBefore:
		return none, fmt.Errorf("fence: a statement of type %s is of authority epoch %d, and those below %d "+
			"no longer count: ask the coordinator for a new one: %w",
			typ, f.authorityEpoch, a.NotBefore, ErrUntrusted)
	}
	return said, nil
}

// Fields reads the lines of a payload, and notes the first fault.
type Fields struct {
	rest, fault    string
	cluster        string
	authorityEpoch uint64
}

// Head reads the lines that every statement begins with.
func (f *Fields) Head() (string, uint64) {
	f.cluster, f.authorityEpoch = f.Name("cluster"), f.Number("authority-epoch", 64)
	return f.cluster, f.authorityEpoch
}

// Name reads the line of a name.
func (f *Fields) Name(name string) string {
	line, rest, ended := strings.Cut(f.rest, "\n")
	value, ok := strings.CutPrefix(line, name+" ")
	if f.fault == "" && (!ok || !ended) {
		f.fault = "no line " + name
	}
	f.rest = rest
	return value
}

// Number reads the line of a number of so many bits.
func (f *Fields) Number(name string, bits int) uint64 {
	n, ok := ParseNumber(f.Name(name), bits)
	if f.fault == "" && !ok {
		f.fault = "no number in its line " + name
	}
	return n
}

// Fail notes a fault, unless there was one before.
func (f *Fields) Fail(why string) {
	if f.fault == "" {
		f.fault = why
	}
}

// ParseNumber reads a decimal number without sign or leading zeros. It is never a JSON
// number: those lose what is above 2^53.
func ParseNumber(s string, bits int) (uint64, bool) {
	n, err := strconv.ParseUint(s, 10, bits)
	return n, err == nil && strconv.FormatUint(n, 10) == s
}
