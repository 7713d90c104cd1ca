package fence

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

	"github.com/fealty-io/fealty/internal/fenceform"
)

// The types of what is signed. A signature over one never verifies as another.
const (
	typeTerm       = "fealty/term/v1"
	typeGrant      = "fealty/grant/v1"
	typeAssignment = "fealty/assignment/v1"
)

// ErrUntrusted is matched by every refusal of a statement that is well formed, and that
// the authority did not sign, or not for this cluster.
var ErrUntrusted = errors.New("statement is not trusted")

// TermStatement says that a leader's term has begun.
type TermStatement struct {
	Cluster        string
	Term           int64
	AuthorityEpoch uint64
}

// Grant says that the authority gave a holder this grant, after all with a lower number.
type Grant struct {
	Cluster        string
	Holder         string
	Number         uint32
	AuthorityEpoch uint64
}

// Assignment says that a domain belongs to a holder, after all assignments of it with a
// lower ownership. Nobody is the holder of a domain that was taken from everybody: "".
type Assignment struct {
	Cluster        string
	Domain         string
	Holder         string
	Ownership      uint64
	AuthorityEpoch uint64
}

// Authority is whose statements count: those of one cluster, signed with one of its keys.
type Authority struct {
	Cluster string

	// Key returns the public key of an id, as [KeyID] makes it, if it signs for the
	// authority now. Required.
	Key func(id string) (ed25519.PublicKey, bool)

	// NotBefore is the lowest authority epoch whose statements count. Zero means all.
	NotBefore uint64
}

// Verified is a statement whose signature was checked: [Authority.Open…] alone makes one.
// The zero Verified is none.
type Verified[T any] struct {
	statement T
	ok        bool
}

// Get returns the statement, and whether there is one.
func (v Verified[T]) Get() (T, bool) { return v.statement, v.ok }

// KeyID returns the id of a public key: the first 8 bytes of its SHA-256 in hex.
func KeyID(key ed25519.PublicKey) string {
	sum := sha256.Sum256(key)
	return hex.EncodeToString(sum[:8])
}

// Sign returns the statement as it travels, signed by an Ed25519 key (RFC 8032). It
// refuses what no receiver would take; other errors are the signer's.
func (s TermStatement) Sign(key crypto.Signer) (string, error) {
	return sign(key, typeTerm, s.Cluster, s.form)
}

// Sign is [TermStatement.Sign].
func (s Grant) Sign(key crypto.Signer) (string, error) {
	return sign(key, typeGrant, s.Cluster, s.form)
}

// Sign is [TermStatement.Sign].
func (s Assignment) Sign(key crypto.Signer) (string, error) {
	return sign(key, typeAssignment, s.Cluster, s.form)
}

// OpenTerm returns the statement in a text if a signed this. Errors match [ErrMalformed]
// or [ErrUntrusted].
func (a Authority) OpenTerm(text string) (Verified[TermStatement], error) {
	return open(a, text, typeTerm, func(f *fields) (s TermStatement) {
		s.Cluster, s.AuthorityEpoch = f.head()
		s.Term = int64(f.number("term", 63))
		return s
	}, TermStatement.form)
}

// OpenGrant is [Authority.OpenTerm] of a grant.
func (a Authority) OpenGrant(text string) (Verified[Grant], error) {
	return open(a, text, typeGrant, func(f *fields) (s Grant) {
		s.Cluster, s.AuthorityEpoch = f.head()
		s.Holder = f.name("holder")
		s.Number = uint32(f.number("grant", 32))
		return s
	}, Grant.form)
}

// OpenAssignment is [Authority.OpenTerm] of an assignment.
func (a Authority) OpenAssignment(text string) (Verified[Assignment], error) {
	return open(a, text, typeAssignment, func(f *fields) (s Assignment) {
		s.Cluster, s.AuthorityEpoch = f.head()
		s.Domain, s.Holder = f.name("domain"), f.name("holder")
		s.Ownership = f.number("ownership", 64)
		return s
	}, Assignment.form)
}

// A payload is lines of a name, a blank and a value, in one order. Each statement has one
// spelling: what was read is written again, and has to be the same.

func (s TermStatement) form() (string, string) {
	return head(s.Cluster, s.AuthorityEpoch) + "term " + strconv.FormatInt(s.Term, 10) + "\n",
		firstFault(nameFault("cluster", s.Cluster, false), zeroFault("authority epoch", s.AuthorityEpoch),
			zeroFault("term", uint64(max(s.Term, 0))))
}

func (s Grant) form() (string, string) {
	return head(s.Cluster,
			s.AuthorityEpoch) + "holder " + s.Holder + "\ngrant " + strconv.FormatUint(uint64(s.Number), 10) + "\n",
		firstFault(nameFault("cluster", s.Cluster, false), zeroFault("authority epoch", s.AuthorityEpoch),
			nameFault("holder", s.Holder, false), zeroFault("grant", uint64(s.Number)))
}

func (s Assignment) form() (string, string) {
	return head(s.Cluster, s.AuthorityEpoch) + "domain " + s.Domain + "\nholder " + s.Holder + "\nownership " +
			strconv.FormatUint(s.Ownership, 10) + "\n",
		firstFault(nameFault("cluster", s.Cluster, false), zeroFault("authority epoch", s.AuthorityEpoch),
			nameFault("domain", s.Domain, false), nameFault("holder", s.Holder, true), zeroFault("ownership",
				s.Ownership))
}

func head(cluster string, authorityEpoch uint64) string {
	return "cluster " + cluster + "\nauthority-epoch " + strconv.FormatUint(authorityEpoch, 10) + "\n"
}

func firstFault(faults ...string) string {
	for _, f := range faults {
		if f != "" {
			return f
		}
	}
	return ""
}

// nameFault says why s names nothing, or "".
func nameFault(what, s string, mayBeEmpty bool) string {
	switch {
	case s == "" && !mayBeEmpty:
		return "no " + what
	case len(s) > fenceform.MaxName:
		return fmt.Sprintf("a %s of %d bytes, limit %d", what, len(s), fenceform.MaxName)
	case strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }):
		return fmt.Sprintf("a %s with a character that is not printable ASCII, or a blank", what)
	}
	return ""
}

func zeroFault(what string, n uint64) string {
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

func sign(key crypto.Signer, typ, cluster string, form func() (payload, fault string)) (string, error) {
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

func open[T any](a Authority, text, typ string, read func(*fields) T, form func(T) (string, string)) (Verified[T],
	error) {
	malformed := func(why string) (Verified[T], error) {
		return Verified[T]{}, fmt.Errorf("fence: a statement of type %s has %s: %w", typ, why, ErrMalformed)
	}
	if len(text) > fenceform.MaxStatement {
		return malformed(fmt.Sprintf("%d bytes, limit %d", len(text), fenceform.MaxStatement))
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
		return Verified[T]{},
			fmt.Errorf("fence: a statement of type %s is signed with key %.32q, which does not sign for cluster %s: %w",
				typ, parts[1], a.Cluster, ErrUntrusted)
	}
	// The cluster of the signature is that of the reader: a statement of another cluster
	// with the same key does not verify, whatever it says.
	if !ed25519.Verify(key, preAuthentication(typ, a.Cluster, string(payload)), signature) {
		return Verified[T]{}, fmt.Errorf("fence: key %s did not sign this statement as a %s of cluster %s: %w",
			parts[1], typ, a.Cluster, ErrUntrusted)
	}
	f := fields{rest: string(payload)}
	statement := read(&f)
	again, fault := form(statement)
	switch {
	case f.fault != "":
		return malformed(f.fault)
	case fault != "":
		return malformed(fault)
	case again != string(payload):
		return malformed("another spelling than its own, or more than it says")
	case f.cluster != a.Cluster:
		return Verified[T]{}, fmt.Errorf("fence: a statement of type %s is of cluster %q, want %q: %w", typ,
			f.cluster, a.Cluster, ErrUntrusted)
	case f.authorityEpoch < a.NotBefore:
		return Verified[T]{},
			fmt.Errorf("fence: a statement of type %s is of authority epoch %d, and those below %d "+
				"no longer count: ask the coordinator for a new one: %w",
				typ, f.authorityEpoch, a.NotBefore, ErrUntrusted)
	}
	return Verified[T]{statement, true}, nil
}

// fields reads the lines of a payload, and notes the first fault.
type fields struct {
	rest, fault    string
	cluster        string
	authorityEpoch uint64
}

func (f *fields) head() (string, uint64) {
	f.cluster, f.authorityEpoch = f.name("cluster"), f.number("authority-epoch", 64)
	return f.cluster, f.authorityEpoch
}

func (f *fields) name(name string) string {
	line, rest, ended := strings.Cut(f.rest, "\n")
	value, ok := strings.CutPrefix(line, name+" ")
	if f.fault == "" && (!ok || !ended) {
		f.fault = "no line " + name
	}
	f.rest = rest
	return value
}

func (f *fields) number(name string, bits int) uint64 {
	n, ok := parseNumber(f.name(name), bits)
	if f.fault == "" && !ok {
		f.fault = "no number in its line " + name
	}
	return n
}
