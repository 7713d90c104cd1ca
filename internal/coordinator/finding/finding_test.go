package finding_test

import (
	"fmt"
	"strings"
	"testing"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/finding"
	"github.com/fealty-io/fealty/internal/errcode"
)

// A few members have a finding each, and many share one that names the first of them.
func TestFold(t *testing.T) {
	var all []finding.Case
	for n := range 3 * finding.FoldAbove {
		got := finding.Fold(errcode.MemberSilent, "since", all)
		switch {
		case n <= finding.FoldAbove:
			if len(got) != n {
				t.Errorf("%d members are %d findings", n, len(got))
			}
		case len(got) != 1:
			t.Errorf("%d members are %d findings", n, len(got))
		default:
			for _, part := range []string{
				fmt.Sprintf("data/a0, data/a1, data/a2, and %d more", n-finding.FoldAbove),
				"at 0, of the first of them",
			} {
				if !strings.Contains(got[0].GetSummary(), part) {
					t.Errorf("%d members: %v, without %q", n, got[0], part)
				}
			}
		}
		for _, f := range got {
			known := f.GetCode() == string(errcode.MemberSilent) && finding.Rank(f) >= 0
			if !known || strings.Contains(f.GetSummary(), "{") {
				t.Errorf("%d members: %v", n, f)
			}
		}
		all = append(all, finding.Case{Member: fmt.Sprintf("data/a%d", n), Value: fmt.Sprintf("at %d", n)})
	}
}

// Urgent findings come first, and a severity that nobody knows has no rank.
func TestRank(t *testing.T) {
	last := -1
	for _, severity := range []string{"critical", "warning", "info"} {
		rank := finding.Rank(&fealtyv1.Finding{Severity: severity})
		if rank <= last {
			t.Errorf("%s has rank %d, after %d", severity, rank, last)
		}
		last = rank
	}
	if rank := finding.Rank(&fealtyv1.Finding{Severity: "worse"}); rank >= 0 {
		t.Errorf("a severity that there is not has rank %d", rank)
	}
}
