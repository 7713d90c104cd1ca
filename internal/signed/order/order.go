// Package order has two statements that a leader signs for members of its cluster: an instruction, to be done once, and
// a document, of which the newest version counts.
package order

import (
	"crypto"
	"encoding/hex"
	"strconv"
	"time"

	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/internal/signed"
)

// typeInstruction is the type of a signed [Instruction].
const typeInstruction = "fealty/instruction/v1"

// Instruction says that a leader has a member do something, once: the id is the same however
// often it is delivered, and whichever leader says so. The term is that of the leader who says
// so now; a member obeys none that is lower than the highest it heard of.
type Instruction struct {
	Cluster string
	Member  string // identity of who is to do it
	ID      string
	Kind    string // what is to be done
	Term    int64
	// NotAfter is when it is over, in whole seconds: nobody begins it then.
	NotAfter       time.Time
	AuthorityEpoch uint64
}

// Sign returns the statement as it travels, signed by an Ed25519 key (RFC 8032). It
// refuses what no receiver would take; other errors are the signer's.
func (s Instruction) Sign(key crypto.Signer) (string, error) {
	return signed.Sign(key, typeInstruction, s.Cluster, s.form)
}

// OpenInstruction returns the instruction in a text if a signed this. Errors match
// fence.ErrMalformed or fence.ErrUntrusted.
func OpenInstruction(a fence.Authority, text string) (Instruction, error) {
	return signed.Open(signed.Authority(a), text, typeInstruction, func(f *signed.Fields) (s Instruction) {
		s.Cluster, s.AuthorityEpoch = f.Head()
		s.Member, s.ID, s.Kind = f.Name("member"), f.Name("id"), f.Name("kind")
		s.Term = int64(f.Number("term", 63))
		s.NotAfter = time.Unix(int64(f.Number("not-after", 36)), 0).UTC()
		return s
	}, Instruction.form)
}

func (s Instruction) form() (string, string) {
	end, parts := s.NotAfter.Unix(), ""
	if s.NotAfter.Nanosecond() != 0 {
		parts = "an end that is no whole second"
	}
	return signed.Head(s.Cluster, s.AuthorityEpoch) + "member " + s.Member + "\nid " + s.ID + "\nkind " + s.Kind +
			"\nterm " + strconv.FormatInt(s.Term, 10) + "\nnot-after " + strconv.FormatInt(end, 10) + "\n",
		signed.FirstFault(signed.NameFault("cluster", s.Cluster, false),
			signed.ZeroFault("authority epoch", s.AuthorityEpoch),
			signed.NameFault("member", s.Member, false), signed.NameFault("id", s.ID, false),
			signed.NameFault("kind", s.Kind, false), signed.ZeroFault("term", uint64(max(s.Term, 0))),
			signed.ZeroFault("end", uint64(max(end, 0))), parts)
}

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

// Sign is [Instruction.Sign].
func (s Document) Sign(key crypto.Signer) (string, error) {
	return signed.Sign(key, typeDocument, s.Cluster, s.form)
}

// OpenDocument is [OpenInstruction] of a document of one kind: that of another is malformed.
func OpenDocument(a fence.Authority, kind, text string) (Document, error) {
	return signed.Open(signed.Authority(a), text, typeDocument, func(f *signed.Fields) (s Document) {
		s.Cluster, s.AuthorityEpoch = f.Head()
		if s.Kind = f.Name("kind"); s.Kind != kind {
			f.Fail("another kind than " + kind)
		}
		s.Version = f.Number("version", 64)
		digest, err := hex.DecodeString(f.Name("sha256"))
		if err != nil || len(digest) != len(s.Digest) {
			f.Fail("no SHA-256 in its line sha256")
		}
		copy(s.Digest[:], digest)
		return s
	}, Document.form)
}

func (s Document) form() (string, string) {
	return signed.Head(s.Cluster, s.AuthorityEpoch) + "kind " + s.Kind + "\nversion " +
			strconv.FormatUint(s.Version, 10) + "\nsha256 " + hex.EncodeToString(s.Digest[:]) + "\n",
		signed.FirstFault(signed.NameFault("cluster", s.Cluster, false),
			signed.ZeroFault("authority epoch", s.AuthorityEpoch),
			signed.NameFault("kind", s.Kind, false), signed.ZeroFault("version", s.Version))
}
