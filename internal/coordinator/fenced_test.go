package coordinator_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/durationpb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/auditlog"
	"github.com/fealty-io/fealty/internal/authz"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/node/client"
	"github.com/fealty-io/fealty/internal/proof"
)

// Of all that a shard may call, what its process calls is refused to one that was overtaken, and
// ends it. What is not refused has its reason here: a method that is new has to be in one of both.
func TestZombieIsServedNothing(t *testing.T) {
	t.Parallel()
	f := coordinatortest.NewFleet(t, nil)
	if err := f.Set(f.Manifest("  - {name: shards, kind: shard, match: [\"token:shards\"]}\n")); err != nil {
		t.Fatal(err)
	}
	n := f.Node()
	if err := n.Join(identity.Shard, proof.NewTokenProver(f.Token(&fealtyv1.CreateTokenRequest{Entry: "shards",
		Name: "eu-1"}))); err != nil {
		t.Fatal(err)
	}
	conn := n.Conn()
	begin := func() *client.Fenced {
		t.Helper()
		life := fence.Life{Incarnation: fence.NewIncarnation()}
		got, err := fealtyv1.NewGrantServiceClient(conn).Grant(t.Context(), &fealtyv1.GrantRequest{Name: "eu-1",
			Incarnation: life.Incarnation.String()})
		if err != nil {
			t.Fatal(err)
		}
		life.Epoch, life.Grant = fence.NewEpoch(got.GetNumber(), 1), got.GetGrant()
		return callsOf(t, conn, life)
	}
	poll := func(conn *client.Fenced) error {
		_, err := fealtyv1.NewDomainServiceClient(conn).PollAssignments(t.Context(),
			&fealtyv1.PollAssignmentsRequest{Name: "eu-1"})
		return err
	}
	old := begin()
	if err := poll(old); err != nil {
		t.Fatal(err)
	}
	if err := poll(begin()); err != nil {
		t.Fatal(err)
	}

	calls := map[string]proto.Message{
		"DomainService.PollAssignments":       &fealtyv1.PollAssignmentsRequest{Name: "eu-1"},
		"DomainService.ReleaseDomain":         &fealtyv1.ReleaseDomainRequest{Name: "eu-1", Domain: "eu", Ownership: 1},
		"InstructionService.PollInstructions": &fealtyv1.PollInstructionsRequest{Name: "eu-1"},
		"InstructionService.AcknowledgeInstruction": &fealtyv1.AcknowledgeInstructionRequest{Name: "eu-1", Id: "x",
			Outcome: fealtyv1.InstructionOutcome_INSTRUCTION_OUTCOME_DONE},
		"RegistryService.PollPlan": &fealtyv1.PollPlanRequest{Name: "eu-1"},
		"ShardReportService.ReportShard": &fealtyv1.ReportShardRequest{Name: "eu-1",
			Report: &fealtyv1.ShardReport{Number: 1, Every: durationpb.New(time.Second)}},
		"JournalService.KeepJournal": &fealtyv1.KeepJournalRequest{Chain: fmt.Sprintf("%s/%020d-00000001",
			auditlog.WriterOf(n.ID.String()), f.Clock().UnixNano())},
	}
	const ofAgents = "its agent calls it, and not the process of the shard"
	others := map[string]string{
		"GrantService.Grant":               "it makes the caller the newest",
		"IncidentService.ReportFenced":     "it is the one thing that a zombie does",
		"AdmissionService.Renew":           ofAgents,
		"AdmissionService.Leave":           ofAgents,
		"AgentService.Connect":             ofAgents,
		"SnapshotService.GetContent":       ofAgents,
		"SnapshotService.Poll":             ofAgents,
		"WorkloadService.CertifyWorkloads": ofAgents,
		"WorkloadService.SignTokens":       ofAgents,
		"WorkloadService.TokenKeys":        ofAgents,
	}
	services, err := authz.Services(coordinator.Services()...)
	if err != nil {
		t.Fatal(err)
	}
	for _, svc := range services {
		for i := range svc.Methods().Len() {
			m := svc.Methods().Get(i)
			rule := proto.GetExtension(m.Options(), fealtyv1.E_Authorization).(*fealtyv1.Authorization)
			name := fmt.Sprintf("%s.%s", svc.Name(), m.Name())
			if !slices.Contains(rule.GetKinds(), string(identity.Shard)) || others[name] != "" {
				continue
			}
			request := calls[name]
			if request == nil {
				t.Errorf("a shard may call %s: is it refused to a zombie, or why not?", name)
				continue
			}
			zombie := callsOf(t, conn, old.Life())
			method := fmt.Sprintf("/%s/%s", svc.FullName(), m.Name())
			err := zombie.Invoke(t.Context(), method, request, dynamicpb.NewMessage(m.Output()))
			if !errors.Is(err, fence.ErrEnded) {
				t.Errorf("%s of a process that was overtaken: %v, want it fenced", name, err)
			}
			if err := poll(zombie); !errors.Is(err, fence.ErrFenced) || !strings.Contains(err.Error(), "acts no more") {
				t.Errorf("after %s it called once more: %v", name, err)
			}
			delete(calls, name)
		}
	}
	for name := range calls {
		t.Errorf("a shard may not call %s", name)
	}
}

// callsOf makes the calls of a life.
func callsOf(t *testing.T, conn coordinatortest.Conn, life fence.Life) *client.Fenced {
	t.Helper()
	sender, err := fence.NewSender(life)
	if err != nil {
		t.Fatal(err)
	}
	out := client.NewFenced(conn)
	out.Begin(sender)
	return out
}
