package cli_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/cli/clitest"
	"github.com/fealty-io/fealty/test/goldentest"
)

// The JSON and YAML that commands print does not change by a byte within a schema: scripts read it, and
// people compare it.
func TestForms(t *testing.T) {
	at := func(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(clitest.Now.Add(d)) }
	c := &clitest.Answering{
		Status: &fealtyv1.GetStatusResponse{Phase: "recovery", PhaseReason: "no <seed> & no keeper", ClusterId: "prod.example",
			Now: at(0), Head: []byte{0xab, 0xcd}, HeadConfirmedAt: at(-5 * time.Second), MeshCaNotAfter: at(50 * time.Hour),
			Baseline: &fealtyv1.Baseline{Connected: 2, Needed: 3, State: "short"}, BansLimit: 1000,
			StoreLatency: durationpb.New(1500 * time.Microsecond),
			Findings:     []*fealtyv1.Finding{{Code: "FE-M105", Severity: "warning", Summary: "2 of 3: \"a\"\n\tb", Remedy: "fealty member list"}}},
		Members: &fealtyv1.ListMembersResponse{Members: []*fealtyv1.Member{
			{SpiffeId: "spiffe://prod.example/data/a", Kind: "data", Name: "a", Roles: []string{"core", "yes", "1.5"},
				JoinedAt: at(-time.Hour), Labels: []string{"rack=r2", "who=\u00fc \U0001f600 \u202e\x1b[2J\u2028\x7f\b"},
				Live: &fealtyv1.Live{Held: []*fealtyv1.HeldVersion{{Scope: "trust_bundle", AuthorityEpoch: 1 << 60}}}},
			{Kind: "witness", Name: "no"},
		}},
	}
	socket := c.Listen(t)
	home := clitest.Fixture{Env: []string{"HOME=" + t.TempDir()}}
	for name, args := range map[string][]string{
		"code":     {"explain", "FE-J106"},
		"field":    {"explain", "member.state"},
		"checks":   {"explain", "check"},
		"topics":   {"explain", "token"},
		"authz":    {"authz", "--kind", "readonly"},
		"settings": {"version", "--print-config"},
		"logins":   {"context", "list"},
		"check":    {"check", "coordinator", "--socket", socket},
		"members":  {"member", "list", "--socket", socket},
		"status":   {"status", "--socket", socket},
		"usage":    {"member", "lsit"},
		"setting":  {"member", "list", "--timeout", "\xff<0>\u0085"},
	} {
		for _, form := range []string{"json", "yaml"} {
			r := home.Run(t.Context(), append(args, "-o", form)...)
			got := r.Stdout + r.Stderr
			goldentest.Compare(t, "testdata/forms/"+name+"."+form, strings.ReplaceAll(got, socket, "SOCKET"))
		}
	}
}
