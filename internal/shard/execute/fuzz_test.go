package execute_test

import (
	"errors"
	"testing"

	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
	"github.com/fealty-io/fealty/internal/shard/execute"
)

// A segment of any content is read whole or refused by name, and the next process
// opens the journal beside it.
func FuzzSegment(f *testing.F) {
	disk := durabletest.NewDisk()
	j, err := execute.OpenJournal(options(disk.FS(), &clock{start}))
	if err != nil {
		f.Fatal(err)
	}
	if _, err := j.Append(entries(0, 3)); err != nil {
		f.Fatal(err)
	}
	whole, err := disk.FS().ReadFile(dir+"/0000000001.jsonl", 1<<20)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Add(whole[:len(whole)-1])
	f.Add(whole[:len(whole)/2])
	f.Add([]byte{})
	f.Add([]byte("{}\n"))
	f.Fuzz(func(t *testing.T, segment []byte) {
		disk := durabletest.NewDisk()
		disk.Put(dir+"/0000000001.jsonl", segment)
		if _, err := replay(disk.FS()); err != nil && !errors.Is(err, execute.ErrBroken) {
			t.Fatal(err)
		}
		j, err := execute.OpenJournal(options(disk.FS(), &clock{start}))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := j.Append(entries(0, 1)); err != nil {
			t.Fatal(err)
		}
	})
}
