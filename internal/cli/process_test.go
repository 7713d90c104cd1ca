package cli_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/cli/clitest"
	"github.com/fealty-io/fealty/internal/cli/command"
	"github.com/fealty-io/fealty/internal/errcode"
)

// People see of the process of a member when it called, in which life, and that it is paused.
func TestShowProcess(t *testing.T) {
	now := clitest.Now
	show := func(p *fealtyv1.Process) map[string]string {
		t.Helper()
		c := &clitest.Answering{Member: &fealtyv1.GetMemberResponse{Member: &fealtyv1.Member{Kind: "shard", Name: "eu-1",
			State: "active", SvidNotAfter: timestamppb.New(now.Add(time.Hour)), Live: &fealtyv1.Live{Process: p}}}}
		r := clitest.Run(t, "member", "show", "shard/eu-1", "--socket", c.Listen(t)).Want(t, 0)
		out := make(map[string]string)
		for line := range strings.Lines(r.Stdout) {
			if name, value, ok := strings.Cut(strings.TrimSpace(line), "  "); ok {
				out[name] = strings.TrimSpace(value)
			}
		}
		return out
	}
	called := timestamppb.New(now.Add(-5 * time.Second))
	id := strings.Repeat("0f", 16)
	for _, tt := range []struct {
		name            string
		process         *fealtyv1.Process
		has, hasNot     []string
		paused, unnamed bool
	}{
		{name: "none was heard", unnamed: true},
		{name: "one of an earlier release", process: &fealtyv1.Process{LastCall: called}, has: []string{"called 20", "5s ago"},
			hasNot: []string{"epoch"}},
		{name: "one with a life", process: &fealtyv1.Process{LastCall: called, Epoch: 3<<32 | 2, Incarnation: id},
			has: []string{"called 20", "; epoch 3.2, incarnation " + id}},
		{name: "one that is paused", process: &fealtyv1.Process{LastCall: called, Epoch: 1<<32 | 1, Incarnation: id, Paused: true},
			has: []string{"epoch 1.1"}, paused: true},
	} {
		got := show(tt.process)
		if _, named := got["process"]; named == tt.unnamed {
			t.Errorf("%s: %q", tt.name, got)
		}
		for _, text := range tt.has {
			if !strings.Contains(got["process"], text) {
				t.Errorf("%s: %q lacks %q", tt.name, got["process"], text)
			}
		}
		for _, text := range tt.hasNot {
			if strings.Contains(got["process"], text) {
				t.Errorf("%s: %q has %q", tt.name, got["process"], text)
			}
		}
		if paused := got["paused"] == "it decides, and does nothing, by its own word"; paused != tt.paused {
			t.Errorf("%s: paused is %q", tt.name, got["paused"])
		}
	}
}

// Who looks at one member sees the processes of it that were fenced, which of its domains move and until when, and what
// nobody could say of it.
func TestShowBesideMember(t *testing.T) {
	now := clitest.Now
	at := func(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(now.Add(d)) }
	c := &clitest.Answering{Member: &fealtyv1.GetMemberResponse{
		Member: &fealtyv1.Member{Kind: "shard", Name: "eu-1", State: "active", SvidNotAfter: at(time.Hour)},
		Fenced: []*fealtyv1.FencedProcess{{Incarnation: strings.Repeat("0f", 16), Epoch: 3<<32 | 2, From: "10.0.0.7:4711",
			ToldAt: at(-time.Hour), HeardAt: at(-2 * time.Minute)}},
		Domains: []*fealtyv1.Domain{
			{Name: "eu", Owner: "shard/eu-1", Moving: true, Next: "shard/eu-2", WaitsUntil: at(30 * time.Second)},
			{Name: "us", Owner: "shard/us-1", Moving: true, Next: "shard/eu-1"},
			{Name: "asia", Owner: "shard/eu-1", OwnerProblem: "no process of it was heard"},
			{Name: "well", Owner: "shard/eu-1"},
		},
		Unknown: []string{"whether something else is so"},
	}}
	out := clitest.Run(t, "member", "show", "shard/eu-1", "--socket", c.Listen(t)).Want(t, 0).Stdout
	got := strings.Join(strings.Fields(out), " ")
	for _, want := range []string{
		"fenced a process of it acts no more, as another one with its identity is in charge: epoch 3.2, incarnation " +
			strings.Repeat("0f", 16) + ", from 10.0.0.7:4711, told so 2m ago",
		"moving eu goes to shard/eu-2 when it let go; at the latest at " + command.When(at(30*time.Second)) + ", as its lease is over then",
		"waits for us comes from shard/us-1 when that let go",
		"owns asia, and is not to be counted on: no process of it was heard",
		"not known whether something else is so",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("shown is\n%s\nwithout %q", out, want)
		}
	}
	if strings.Contains(got, "well") {
		t.Errorf("of a domain of which nothing is wrong shown is\n%s", out)
	}
}

// What status finds of shards and of owners of domains is a warning of status and of check, with its
// code and what to do.
func TestFindingsOfFencing(t *testing.T) {
	for _, code := range []errcode.Code{errcode.ShardPaused, errcode.ShardFenced, errcode.ShardSilent, errcode.ShardShort,
		errcode.ShardHolds, errcode.DomainOwnerGone,
		errcode.DomainOwnerSilent, errcode.DomainMoving} {
		c := &clitest.Answering{Status: &fealtyv1.GetStatusResponse{Phase: "ready", ClusterId: "prod.example",
			Findings: []*fealtyv1.Finding{{Code: string(code), Severity: "warning", Summary: "something of shard/eu-1",
				Remedy: "do something about it"}}},
			Members: &fealtyv1.ListMembersResponse{}}
		socket := c.Listen(t)
		r := clitest.Run(t, "status", "--exit-code", "--socket", socket)
		if !strings.Contains(r.Stdout, string(code)+" warning: something of shard/eu-1") ||
			!strings.Contains(r.Stdout, "do something about it") || r.Exit == 0 {
			t.Errorf("status of %s ends with %d: %s%s", code, r.Exit, r.Stdout, r.Stderr)
		}
		r = clitest.Run(t, "check", "--socket", socket)
		if !strings.Contains(r.Stdout, string(code)) || !strings.Contains(r.Stdout, "do something about it") || r.Exit == 0 {
			t.Errorf("check of %s ends with %d: %s%s", code, r.Exit, r.Stdout, r.Stderr)
		}
	}
}
