package process_test

import (
	"errors"
	"log/slog"
	"slices"
	"testing"

	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/auditlog"
	"github.com/fealty-io/fealty/internal/instruction"
	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
	"github.com/fealty-io/fealty/internal/shard"
	"github.com/fealty-io/fealty/internal/shard/execute"
	"github.com/fealty-io/fealty/internal/shard/process"
)

// A shard that is told to pause, or to resume, does so and remembers it over a start. One that was fenced while it was
// told is not who was meant: it does nothing, leaves on disk what the next process goes by, and says why.
func TestFencedIsNotWhoWasTold(t *testing.T) {
	t.Parallel()
	const name = "instructions/paused"
	for _, kind := range []string{instruction.Pause, instruction.Resume} {
		for _, fenced := range []bool{false, true} {
			for _, before := range []bool{false, true} { // it was paused
				disk := durabletest.NewDisk()
				if err := disk.FS().MkdirAll("instructions"); err != nil {
					t.Fatal(err)
				}
				if before {
					disk.Put(name, []byte("told to pause\n"))
				}
				sender, err := fence.NewSender(fence.Life{Epoch: 1<<32 | 1, Incarnation: fence.NewIncarnation()})
				if err != nil {
					t.Fatal(err)
				}
				if fenced {
					_ = sender.Heard(fence.ErrEnded)
				}
				does := process.CarriesOut(someShard(t), sender, process.Config{}, disk.FS(), name)
				if len(does) != len(instruction.Kinds(identity.Shard)) {
					t.Errorf("a shard can be told %v, and carries out %d", instruction.Kinds(identity.Shard), len(does))
				}
				err = does[kind](t.Context())
				want := before
				if !fenced {
					want = kind == instruction.Pause
				}
				names, listErr := disk.List("instructions")
				if listErr != nil {
					t.Fatal(listErr)
				}
				if errors.Is(err, fence.ErrEnded) != fenced || (err != nil) != fenced || slices.Contains(names, "paused") != want {
					t.Errorf("%s, fenced %v, paused before %v: %v, in its folder is %q", kind, fenced, before, err, names)
				}
			}
		}
	}
}

// someShard is one that has no machines.
func someShard(t *testing.T) *shard.Shard {
	t.Helper()
	id, err := identity.New("prod.example", identity.Shard, "eu-1")
	if err != nil {
		t.Fatal(err)
	}
	j, err := execute.OpenJournal(execute.JournalOptions{Files: durabletest.NewDisk().FS(), Dir: "journal", Actor: id.String(),
		Writer: auditlog.WriterOf(id.String())})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	s, err := shard.New(shard.Config{Providers: func() map[string]shard.Provider { return nil }, Journal: j,
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return s
}
