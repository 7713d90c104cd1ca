package fence

import (
	"crypto"
	"crypto/ed25519"
	"strconv"

	"github.com/fealty-io/fealty/internal/signed"
)

// The types of what is signed. A signature over one never verifies as another.
const (
	typeTerm       = "fealty/term/v1"
	typeGrant      = "fealty/grant/v1"
	typeAssignment = "fealty/assignment/v1"
)

// ErrUntrusted is matched by every refusal of a statement that is well formed, and that
// the authority did not sign, or not for this cluster.
var ErrUntrusted = signed.ErrUntrusted

// TermStatement says that a leader's term has begun: see [Term.Check].
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
func KeyID(key ed25519.PublicKey) string { return signed.KeyID(key) }

// Sign returns the statement as it travels, signed by an Ed25519 key (RFC 8032). It
// refuses what no receiver would take; other errors are the signer's.
func (s TermStatement) Sign(key crypto.Signer) (string, error) {
	return signed.Sign(key, typeTerm, s.Cluster, s.form)
}

// Sign is [TermStatement.Sign].
func (s Grant) Sign(key crypto.Signer) (string, error) {
	return signed.Sign(key, typeGrant, s.Cluster, s.form)
}

// Sign is [TermStatement.Sign].
func (s Assignment) Sign(key crypto.Signer) (string, error) {
	return signed.Sign(key, typeAssignment, s.Cluster, s.form)
}

// OpenTerm returns the statement in a text if a signed this. Errors match [ErrMalformed]
// or [ErrUntrusted].
func (a Authority) OpenTerm(text string) (Verified[TermStatement], error) {
	return opened(signed.Open(signed.Authority(a), text, typeTerm, func(f *signed.Fields) (s TermStatement) {
		s.Cluster, s.AuthorityEpoch = f.Head()
		s.Term = int64(f.Number("term", 63))
		return s
	}, TermStatement.form))
}

// OpenGrant is [Authority.OpenTerm] of a grant.
func (a Authority) OpenGrant(text string) (Verified[Grant], error) {
	return opened(signed.Open(signed.Authority(a), text, typeGrant, func(f *signed.Fields) (s Grant) {
		s.Cluster, s.AuthorityEpoch = f.Head()
		s.Holder = f.Name("holder")
		s.Number = uint32(f.Number("grant", 32))
		return s
	}, Grant.form))
}

// OpenAssignment is [Authority.OpenTerm] of an assignment.
func (a Authority) OpenAssignment(text string) (Verified[Assignment], error) {
	return opened(signed.Open(signed.Authority(a), text, typeAssignment, func(f *signed.Fields) (s Assignment) {
		s.Cluster, s.AuthorityEpoch = f.Head()
		s.Domain, s.Holder = f.Name("domain"), f.Name("holder")
		s.Ownership = f.Number("ownership", 64)
		return s
	}, Assignment.form))
}

// opened is what signed.Open returned, as the type that only a verified statement has.
func opened[T any](said T, err error) (Verified[T], error) {
	return Verified[T]{said, err == nil}, err
}

func (s TermStatement) form() (string, string) {
	return signed.Head(s.Cluster, s.AuthorityEpoch) + "term " + strconv.FormatInt(s.Term, 10) + "\n",
		signed.FirstFault(nameFault("cluster", s.Cluster, false),
			signed.ZeroFault("authority epoch", s.AuthorityEpoch),
			signed.ZeroFault("term", uint64(max(s.Term, 0))))
}

func (s Grant) form() (string, string) {
	return signed.Head(s.Cluster, s.AuthorityEpoch) + "holder " + s.Holder + "\ngrant " +
			strconv.FormatUint(uint64(s.Number), 10) + "\n",
		signed.FirstFault(nameFault("cluster", s.Cluster, false),
			signed.ZeroFault("authority epoch", s.AuthorityEpoch),
			nameFault("holder", s.Holder, false), signed.ZeroFault("grant", uint64(s.Number)))
}

func (s Assignment) form() (string, string) {
	return signed.Head(s.Cluster, s.AuthorityEpoch) + "domain " + s.Domain + "\nholder " + s.Holder + "\nownership " +
			strconv.FormatUint(s.Ownership, 10) + "\n",
		signed.FirstFault(nameFault("cluster", s.Cluster, false),
			signed.ZeroFault("authority epoch", s.AuthorityEpoch),
			nameFault("domain", s.Domain, false), nameFault("holder", s.Holder, true),
			signed.ZeroFault("ownership", s.Ownership))
}

// nameFault says why s names nothing, or "".
func nameFault(what, s string, mayBeEmpty bool) string {
	return signed.NameFault(what, s, mayBeEmpty)
}
