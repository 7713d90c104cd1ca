package coordinator_test

import (
	"strings"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/proof"
)

// A shard that says it is paused is a finding of status, and counted, until it says otherwise or is
// heard no more: by the word of the process in charge alone.
func TestShardPausedIsFound(t *testing.T) {
	t.Parallel()
	d := coordinatortest.ReadyDesk(t, "  - {name: shards, kind: shard, match: [\"token:shards\"]}\n")
	m := d.Machine()
	if err := m.Join(identity.Shard, proof.NewTokenProver(d.Token(&fealtyv1.CreateTokenRequest{Entry: "shards",
		Name: "eu-1"}))); err != nil {
		t.Fatal(err)
	}
	says := func(life fence.Life, paused *bool) error {
		_, err := coordinatortest.Served[fealtyv1.InstructionServiceServer](
			d.C.Parts().Fencing.Instructions.RegisterServices).PollInstructions(coordinatortest.Calls(m, life),
			&fealtyv1.PollInstructionsRequest{Name: "eu-1", Paused: paused})
		return err
	}
	must := func(life fence.Life, paused *bool) {
		t.Helper()
		if err := says(life, paused); err != nil {
			t.Fatal(err)
		}
	}
	finds := func() (found string) {
		t.Helper()
		st, err := d.C.Parts().Shown.Status.GetStatus(t.Context(), &fealtyv1.GetStatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range st.GetFindings() {
			if f.GetCode() == string(errcode.ShardPaused) {
				found = f.GetSummary() + "; " + f.GetRemedy()
			}
		}
		return found
	}
	want := func(what string, paused bool) {
		t.Helper()
		found := finds()
		if (found != "") != paused || paused && (!strings.Contains(found, "shard/eu-1 decides, and does nothing") ||
			!strings.Contains(found, "fealty instruction give shard/eu-1 resume")) {
			t.Errorf("%s: status finds %q", what, found)
		}
		if n := coordinatortest.CounterOf(d.C.Registry(), "fealty_shards_paused"); (n == 1) != paused || n > 1 {
			t.Errorf("%s: fealty_shards_paused is %v", what, n)
		}
		got, err := d.Members().GetMember(t.Context(), &fealtyv1.GetMemberRequest{Kind: "shard", Name: "eu-1"})
		if err != nil {
			t.Fatal(err)
		}
		if p := got.GetMember().GetLive().GetProcess(); p.GetPaused() != paused && p != nil && what != "heard no more" {
			t.Errorf("%s: the member is shown with %v", what, p)
		}
	}
	first := d.Process(m)
	want("nobody called", false)
	must(first, nil)
	want("one that does not say", false)
	must(first, new(true))
	want("one that is paused", true)
	must(first, nil)
	want("one that called once more", true)
	must(first, new(false))
	want("one that acts again", false)

	must(first, new(true))
	second := d.Process(m)
	must(second, new(false))
	want("its successor acts", false)
	if err := says(first, new(true)); err == nil {
		t.Error("a process that was overtaken is served")
	}
	want("a zombie says that it is paused", false)
	must(second, new(true))
	want("its successor is paused", true)
	if err := says(first, new(false)); err == nil {
		t.Error("a process that was overtaken is served")
	}
	want("a zombie says that it is not", true)

	d.Advance(peer.SilentAfter + time.Second)
	want("heard no more", false)
	must(second, new(true))
	want("heard again", true)
	if _, err := d.Members().BanMember(t.Context(), &fealtyv1.BanMemberRequest{Kind: "shard", Name: "eu-1",
		Reason: "a test"}); err != nil {
		t.Fatal(err)
	}
	if found := finds(); found != "" {
		t.Errorf("banned just now: status finds %q", found)
	}
	d.Advance(peer.SilentAfter + time.Second)
	want("heard no more", false)
}
