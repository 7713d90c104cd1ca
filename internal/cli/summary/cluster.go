package summary

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/cli/command"
	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/platform/humanize"
)

// ClusterFacts says what there is; wide: with hashes and keys, which are for comparing.
func ClusterFacts(st *fealtyv1.GetStatusResponse, now time.Time, wide bool) term.Facts {
	var f term.Facts
	ready := st.GetPhase() == "ready"
	f.Add("cluster", st.GetClusterId())
	if !ready {
		f.Paint("phase", term.Amber, command.JoinWords(st.GetPhase(), ": ", PhaseReason(st)))
	}
	if ready && wide {
		f.Paint("phase", term.Green, st.GetPhase())
		f.Add("authority", fmt.Sprintf("epoch %d, history index %d", st.GetAuthorityEpoch(), st.GetHistoryIndex()))
		f.Add("head", hex.EncodeToString(st.GetHead()))
		if epoch := st.GetSeedEpoch(); epoch > 0 { // an older coordinator does not say
			f.Add("seed epoch", command.Itoa(int64(epoch)))
		}
		f.Add("root pin", hex.EncodeToString(st.GetRootPin()))
		f.Add("mesh CA", hex.EncodeToString(st.GetMeshCaKey()))
	}
	if wide {
		AddLeader(&f, st.GetLeader(), now)
	}
	f.Add("members", CountWords(Counted(st, now)))
	if b := st.GetBaseline(); b != nil {
		met := term.Painted(term.Green, "met")
		if !b.GetMet() {
			met = term.Painted(term.Amber, cmp.Or(b.GetState(), "not met"))
		}
		draining := ""
		if n := b.GetDrainingCount(); n > 0 {
			draining = fmt.Sprintf("; %d draining and not counted", n)
		}
		f.Paint("baseline", met.Paint, met.Text+": "+BaselineWords(b)+draining)
	}
	f.Add("works alone", LeastAutonomy(Counted(st, now), now))
	if u := st.GetUpkeep(); u != nil {
		addUpkeep(&f, u, now)
	}
	f.Add("coordinator", command.JoinWords(st.GetRelease(), ", up for ",
		humanize.Span(now.Sub(st.GetStartedAt().AsTime()))))
	if wide || !ready { // who brings a coordinator in needs them
		f.Add("addresses", strings.Join(st.GetAddresses(), ", "))
		f.Add("enrolment key", st.GetEnrolmentKey())
	}
	f.Add("store", st.GetStore())
	if c := st.GetOperatorCertificate(); c != nil {
		f.Add("own PKI", OwnPKI(c, now))
		f.Paint("PKI problem", term.Amber, OperatorProblem(c, now))
	}
	return f
}

const clock = "the clock of the coordinator that noted it was ahead"

// addUpkeep says when the last backup was made, and since when enough shares are known to be good.
func addUpkeep(f *term.Facts, u *fealtyv1.Upkeep, now time.Time) {
	switch at := u.GetBackupAt(); {
	case at != nil:
		f.Add("last backup", humanize.Relative(at.AsTime(), now)+", to "+u.GetBackupBy())
	case u.GetBackupBy() != "":
		f.Paint("last backup", term.Amber, "to "+u.GetBackupBy()+", and not known when: "+clock+"; the next one is noted anew")
	default:
		f.Paint("last backup", term.Amber, "never")
	}
	if drill := LastDrill(u, now); drill.Text != "" {
		f.Paint("last drill", drill.Paint, drill.Text)
	}
}

// LastDrill says since when as many shares of the seed as are needed are known to be good. It is blank where keepers alone
// own the seed: there is no share to look at.
func LastDrill(u *fealtyv1.Upkeep, now time.Time) term.Cell {
	if len(u.GetOwners()) == 0 {
		return term.Txt("")
	}
	var at []time.Time
	var never, ahead []string
	for _, o := range u.GetOwners() {
		switch {
		case o.GetAt() != nil:
			at = append(at, o.GetAt().AsTime())
		case o.GetBy() != "":
			ahead = append(ahead, o.GetOwner())
		default:
			never = append(never, o.GetOwner())
		}
	}
	slices.SortFunc(at, func(a, b time.Time) int { return b.Compare(a) })
	missing := ""
	if len(never) > 0 {
		missing = "never of " + strings.Join(never, ", ")
	}
	if len(ahead) > 0 {
		missing = command.JoinWords(missing, "; ", "not known when of "+strings.Join(ahead, ", ")+": "+clock)
	}
	switch need := int(u.GetThreshold()); {
	case len(at) == 0 && len(ahead) == 0:
		return term.Painted(term.Amber, "never")
	case len(at) == 0:
		return term.Painted(term.Amber, missing)
	case len(at) < need:
		return term.Painted(term.Amber, command.JoinWords(fmt.Sprintf("%s, %d of %d shares that are needed",
			humanize.Relative(at[0], now), len(at), need), "; ", missing))
	default:
		return term.Txt(command.JoinWords(fmt.Sprintf("%s, %d of %d shares that are needed since then",
			humanize.Relative(at[need-1], now), need, need), "; ", missing))
	}
}

// OperatorProblem says what is wrong with the certificate of an operator's PKI that an
// agent holds, or "".
func OperatorProblem(c *fealtyv1.OperatorCertificate, now time.Time) string {
	switch {
	case c == nil:
		return ""
	case c.GetProblem() != "":
		return c.GetProblem()
	case !now.Before(c.GetNotAfter().AsTime()):
		return "it ended " + humanize.Relative(c.GetNotAfter().AsTime(), now) + ", and no other one is in its place"
	}
	return ""
}

// OwnPKI says which certificate of an operator's PKI is in use.
func OwnPKI(c *fealtyv1.OperatorCertificate, now time.Time) string {
	return fmt.Sprintf("%s in %s, ends %s", cmp.Or(c.GetSubject(), "no subject"), c.GetFile(),
		humanize.Relative(c.GetNotAfter().AsTime(), now))
}

// AddLeader adds who leads to the details of a cluster.
func AddLeader(f *term.Facts, l *fealtyv1.Leader, now time.Time) {
	switch {
	case l == nil: // an older coordinator does not say
	case l.GetTerm() == 0:
		f.Paint("leader", term.Amber, "nobody, for "+humanize.Span(l.GetNobodyFor().AsDuration()))
	default:
		answers := ""
		if l.GetSelf() {
			answers = " (answers)"
		}
		f.Add("leader", fmt.Sprintf("%s%s, term %d, since %s, %s", l.GetName(), answers, l.GetTerm(),
			command.When(l.GetSince()), humanize.Relative(l.GetSince().AsTime(), now)))
	}
}
