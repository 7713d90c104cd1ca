package fence

import (
	"crypto"
	"strconv"
	"time"
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

// Sign is [TermStatement.Sign].
func (s Instruction) Sign(key crypto.Signer) (string, error) {
	return sign(key, typeInstruction, s.Cluster, s.form)
}

// OpenInstruction is [Authority.OpenTerm] of an instruction.
func (a Authority) OpenInstruction(text string) (Verified[Instruction], error) {
	return open(a, text, typeInstruction, func(f *fields) (s Instruction) {
		s.Cluster, s.AuthorityEpoch = f.head()
		s.Member, s.ID, s.Kind = f.name("member"), f.name("id"), f.name("kind")
		s.Term = int64(f.number("term", 63))
		s.NotAfter = time.Unix(int64(f.number("not-after", 36)), 0).UTC()
		return s
	}, Instruction.form)
}

func (s Instruction) form() (string, string) {
	end, parts := s.NotAfter.Unix(), ""
	if s.NotAfter.Nanosecond() != 0 {
		parts = "an end that is no whole second"
	}
	return head(s.Cluster, s.AuthorityEpoch) + "member " + s.Member + "\nid " + s.ID + "\nkind " + s.Kind +
			"\nterm " + strconv.FormatInt(s.Term, 10) + "\nnot-after " + strconv.FormatInt(end, 10) + "\n",
		firstFault(nameFault("cluster", s.Cluster, false), zeroFault("authority epoch", s.AuthorityEpoch),
			nameFault("member", s.Member, false), nameFault("id", s.ID, false), nameFault("kind", s.Kind, false),
			zeroFault("term", uint64(max(s.Term, 0))), zeroFault("end", uint64(max(end, 0))),
			parts)
}
