package status_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/cli/clitest"
	"github.com/fealty-io/fealty/internal/cli/doctor"
	"github.com/fealty-io/fealty/internal/errcode"
)

// Each check is explained.
func TestExplainChecks(t *testing.T) {
	for _, k := range doctor.All() {
		clitest.Run(t, "explain", "check."+k.ID).Want(t, 0)
	}
	clitest.Run(t, "explain", "check").Want(t, 0)
	clitest.Run(t, "explain", "check.node.contcat").Want(t, int(errcode.ExitNotFound), "FE-U108")
}

func TestCheckCommand(t *testing.T) {
	at := func(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(clitest.Now.Add(d)) }
	st := &fealtyv1.GetStatusResponse{Phase: "ready", ClusterId: "prod.example", Now: at(0), Store: "sqlite:/x",
		HeadConfirmedAt: at(-5 * time.Second), MeshCaNotAfter: at(50 * time.Hour), RootNotAfter: at(36500 * time.Hour),
		Baseline:  &fealtyv1.Baseline{DataMembers: 3, Needed: 3, Met: true},
		BansLimit: 1000, StoreLatency: durationpb.New(time.Millisecond)}
	c := &clitest.Answering{Status: st}
	socket := c.Listen(t)
	r := clitest.Run(t, "check", "coordinator", "--socket", socket).Want(t, 0)
	if !strings.Contains(r.Stdout, "● ok    coordinator.phase     cluster prod.example") || strings.Contains(r.Stdout, "what to do") {
		t.Errorf("\n%s", r.Stdout)
	}
	st.Phase, st.PhaseReason = "recovery", "no seed"
	r = clitest.Run(t, "check", "coordinator", "--socket", socket, "-o", "json").Want(t, int(errcode.ExitUnhealthy))
	for _, want := range []string{`"schema": "fealty.cli/v1"`, `"id": "coordinator.phase"`, `"result": "failed"`, `"depends_on": "coordinator.phase"`, `"exit": 10`} {
		if !strings.Contains(r.Stdout, want) {
			t.Errorf("no %s in\n%s", want, r.Stdout)
		}
	}
	clitest.Run(t, "check", "cordinator", "--socket", socket).Want(t, int(errcode.ExitUsage), "FE-U103")
}
