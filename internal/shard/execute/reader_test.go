package execute_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
	"github.com/fealty-io/fealty/internal/shard/execute"
)

// exported are the records of a journal.
func exported(t *testing.T, disk *durabletest.Disk) (out []execute.Record) {
	t.Helper()
	for r, err := range execute.Export(disk.FS(), "j") {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
	return out
}

// A reader reads all that is in the journal, once and in its order, and never what a write that
// failed left: that may be replaced by something else under its number.
func TestReaderFollows(t *testing.T) {
	t.Parallel()
	for seed := range uint64(6) {
		random := rand.New(rand.NewPCG(seed, 1))
		disk := durabletest.NewDisk()
		open := func() *execute.Journal {
			j, err := execute.OpenJournal(execute.JournalOptions{Files: disk.FS(), Dir: "j", Actor: "shard/s1",
				Writer: "0123456789abcdef"})
			if err != nil {
				t.Fatal(err)
			}
			return j
		}
		j := open()
		reader, read := j.Reader(), []execute.Record(nil)
		next := func() bool {
			got, err := reader.Next(1+random.IntN(200), random.IntN(100_000))
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			read = append(read, got...)
			return len(got) > 0
		}
		for i := range 60 {
			switch random.IntN(6) {
			case 0: // the disk takes nothing for a while, or takes it and does not say so
				disk.Refuse(errors.New("no room"))
				_, _ = j.Append([]execute.Entry{{Kind: "create", Machine: fmt.Sprint("lost-", i), Outcome: "x"}})
				disk.Refuse(nil)
			case 1:
				next()
			case 2:
				if err := j.Close(); err != nil {
					t.Fatal(err)
				}
				j = open()
				// A new process reads again what it read before.
				reader, read = j.Reader(), nil
			default:
				entries := []execute.Entry{{Kind: "create", Machine: fmt.Sprint("m", i), Outcome: "executed",
					Error: strings.Repeat("x", random.IntN(1000))}}
				if _, err := j.Append(slices.Repeat(entries, 1+random.IntN(40))); err != nil {
					t.Fatal(err)
				}
			}
		}
		for next() {
		}
		if want := exported(t, disk); !slices.Equal(read, want) {
			t.Fatalf("seed %d: %d records were read, and there are %d", seed, len(read), len(want))
		}
		reader.Rewind()
		again, err := reader.Next(1, 0)
		if err != nil || len(again) != 1 || again[0] != read[0] {
			t.Fatalf("seed %d: from the beginning: %v, %v", seed, again, err)
		}
	}
}

// The part of an unconfirmed write on the disk is not read.
func TestReaderWaitsForTheDisk(t *testing.T) {
	t.Parallel()
	disk := durabletest.NewDisk()
	j, err := execute.OpenJournal(execute.JournalOptions{Files: disk.FS(), Dir: "j", Actor: "shard/s1", Writer: "0123456789abcdef"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := j.Append([]execute.Entry{{Kind: "create", Machine: "a", Outcome: "executed"}}); err != nil {
		t.Fatal(err)
	}
	before := exported(t, disk)
	unconfirmed := 0
	for at := 1; ; at++ {
		disk.FailAt(at, errors.New("no answer"))
		_, err := j.Append([]execute.Entry{{Kind: "create", Machine: "lost", Outcome: "executed"}})
		disk.FailAt(0, nil)
		if err == nil {
			break
		}
		reader := j.Reader()
		got, err := reader.Next(100, 1<<20)
		if err != nil || !slices.Equal(got, before) {
			t.Fatalf("after call %d failed: %d records were read, %v, want the %d of before", at, len(got), err, len(before))
		}
		if len(exported(t, disk)) > len(before) {
			unconfirmed++
		}
	}
	if unconfirmed == 0 {
		t.Error("no write left anything that was not confirmed: this shows nothing")
	}
}

// A line that is no record is told of once, and what comes after its segment is read.
func TestReaderGoesOnAfterDamage(t *testing.T) {
	t.Parallel()
	disk := durabletest.NewDisk()
	disk.Put("j/0000000001.jsonl", []byte("garbage\n"))
	j, err := execute.OpenJournal(execute.JournalOptions{Files: disk.FS(), Dir: "j", Actor: "shard/s1", Writer: "0123456789abcdef"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := j.Append([]execute.Entry{{Kind: "create", Machine: "a", Outcome: "executed"}}); err != nil {
		t.Fatal(err)
	}
	reader := j.Reader()
	if _, err := reader.Next(10, 1000); !errors.Is(err, execute.ErrBroken) {
		t.Fatalf("%v, want one that says it is broken", err)
	}
	got, err := reader.Next(10, 1000)
	if err != nil || len(got) != 2 {
		t.Fatalf("%v, %v, want both records", got, err)
	}
	// Records before the damage are read.
	data, err := disk.FS().ReadFile("j/0000000002.jsonl", 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	disk.Put("j/0000000001.jsonl", append(data, "garbage\n"...))
	reader.Rewind()
	for _, want := range []int{2, 0, 2} {
		got, err := reader.Next(10, 1000)
		if len(got) != want || (want == 0) != errors.Is(err, execute.ErrBroken) {
			t.Fatalf("%v, %v, want %d records", got, err, want)
		}
	}
}
