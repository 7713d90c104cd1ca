package fence

import (
	"crypto"
	"encoding/hex"
	"strconv"
)

// typeDocument is the type of a signed [Document].
const typeDocument = "fealty/document/v1"

// Document says what a document of one kind is, after all of that kind with a lower version. The
// document itself travels beside it, as it may be large: whoever takes it compares the digest.
type Document struct {
	Cluster        string
	Kind           string // what it is for, as "shard-plan"
	Version        uint64
	Digest         [32]byte // its SHA-256
	AuthorityEpoch uint64
}

// Sign is [TermStatement.Sign].
func (s Document) Sign(key crypto.Signer) (string, error) {
	return sign(key, typeDocument, s.Cluster, s.form)
}

// OpenDocument is [Authority.OpenTerm] of a document of one kind: that of another is malformed.
func (a Authority) OpenDocument(kind, text string) (Verified[Document], error) {
	return open(a, text, typeDocument, func(f *fields) (s Document) {
		s.Cluster, s.AuthorityEpoch = f.head()
		if s.Kind = f.name("kind"); s.Kind != kind && f.fault == "" {
			f.fault = "another kind than " + kind
		}
		s.Version = f.number("version", 64)
		digest, err := hex.DecodeString(f.name("sha256"))
		if (err != nil || len(digest) != len(s.Digest)) && f.fault == "" {
			f.fault = "no SHA-256 in its line sha256"
		}
		copy(s.Digest[:], digest)
		return s
	}, Document.form)
}

func (s Document) form() (string, string) {
	return head(s.Cluster, s.AuthorityEpoch) + "kind " + s.Kind + "\nversion " +
			strconv.FormatUint(s.Version, 10) + "\nsha256 " + hex.EncodeToString(s.Digest[:]) + "\n",
		firstFault(nameFault("cluster", s.Cluster, false), zeroFault("authority epoch", s.AuthorityEpoch),
			nameFault("kind", s.Kind, false), zeroFault("version", s.Version))
}
