package mirror

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
	"github.com/fealty-io/fealty/snapshot"
	"github.com/fealty-io/fealty/test/testlane"
)

// counting counts what is written.
type counting struct {
	durable.FS
	names []string
}

func (c *counting) WriteFile(name string, data []byte) error {
	c.names = append(c.names, name)
	return c.FS.WriteFile(name, data)
}

func mustWrite(t tb, w *Writer, p Publication) {
	t.Helper()
	if wrote, err := w.Write(context.Background(), p); err != nil || !wrote {
		t.Fatalf("generation %d: written %v, %v", p.Generation, wrote, err)
	}
}

// With any number of headers, each is found, with the proof that its tree gives.
func TestEveryHeaderIsFound(t *testing.T) {
	for _, n := range []int{1, 2, 3, 15, 17, 255, 256, 257, 511, 513, 2500, 65_536 + 257} {
		if n > testlane.Rounds(10_000, n) {
			continue
		}
		disk := durabletest.NewDisk()
		w := NewWriter(disk.FS(), "pub", nil)
		p := publicationOf(t, 4, versions(n, 1))
		mustWrite(t, w, p)
		check(t, &onDisk{files: disk.FS(), dir: "pub"}, p)
		// Anywhere in a tree with holes, whole files among them, and back again.
		p = spread(t, publicationOf(t, 5, versions(n, 1)), 2*n+700, func(i int) int { return 2*n + 699 - i - i/2 })
		mustWrite(t, w, p)
		check(t, &onDisk{files: disk.FS(), dir: "pub"}, p)
		p = publicationOf(t, 6, versions(n, 1))
		mustWrite(t, w, p)
		check(t, &onDisk{files: disk.FS(), dir: "pub"}, p)
	}
}

// In a tree with holes, what a header that comes, goes or moves within its file of the tree writes does not depend on how many
// others there are. One that moves to another file is found there.
func TestChangesAmongHoles(t *testing.T) {
	t.Parallel()
	disk := durabletest.NewDisk()
	files := &counting{FS: disk.FS()}
	w := NewWriter(files, "pub", nil)
	all := versions(3000, 1)
	moved := func(i int) int { return 3*i + 2 }
	place := moved
	mustWrite(t, w, spread(t, publicationOf(t, 1, all), 10_000, place))
	for _, step := range []struct {
		what string
		most int
		edit func()
	}{
		{"a changed header", 8, func() { all[1234] = 2 }},
		{"a header that comes", 9, func() { all = append(all, 1) }},
		{"a header that moves within its file", 6, func() {
			place = func(i int) int {
				if i == 100 {
					return moved(i) + 1
				}
				return moved(i)
			}
		}},
		{"a header that moves to another file", 9, func() {
			place = func(i int) int {
				if i == 100 {
					return 9999
				}
				return moved(i)
			}
		}},
	} {
		step.edit()
		files.names = nil
		p := spread(t, publicationOf(t, w.gen()+1, all), 10_000, place)
		p.TrustBundle = []byte("the bundle")
		mustWrite(t, w, p)
		if len(files.names) > step.most {
			t.Errorf("%s: %d files were written, want at most %d", step.what, len(files.names), step.most)
		}
		check(t, &onDisk{files: disk.FS(), dir: "pub"}, p)
		if signed, err := Open(t.Context(), &onDisk{files: disk.FS(), dir: "pub"}, testCluster); err != nil {
			t.Fatal(err)
		} else if _, err := signed.Header(t.Context(), snapshot.ScopeNodeRuntime, subjectOf(100)); err != nil {
			t.Errorf("%s: it is not found: %v", step.what, err)
		}
	}
}

// Only changes are written: two files for a newer record, some ten for a header,
// whatever the number of the others.
func TestWhatChangedIsWritten(t *testing.T) {
	disk := durabletest.NewDisk()
	files := &counting{FS: disk.FS()}
	w := NewWriter(files, "pub", nil)
	all := versions(3000, 1)
	mustWrite(t, w, publicationOf(t, 1, all))
	for _, step := range []struct {
		what string
		most int
		edit func()
	}{
		{"a newer record", 2, func() {}},
		{"a changed header", 8, func() { all[1234] = 2 }},
		{"a header that comes", 8 + 2*3000/tileWidth, func() { all = slices.Insert(all, 0, 1) }},
		{"a header that goes", 8 + 2*3000/tileWidth, func() { all[17] = -1 }},
	} {
		step.edit()
		files.names = nil
		p := publicationOf(t, w.gen()+1, all)
		p.TrustBundle = []byte("the bundle")
		if step.what == "a newer record" {
			p.TrustBundle = publicationOf(t, 1, all).TrustBundle
		}
		mustWrite(t, w, p)
		if len(files.names) > step.most {
			t.Errorf("%s: %d files were written, want at most %d", step.what, len(files.names), step.most)
		}
		if last := files.names[len(files.names)-1]; last != "pub/"+PointerName {
			t.Errorf("%s: the pointer is not the last file written, %s is", step.what, last)
		}
		check(t, &onDisk{files: disk.FS(), dir: "pub"}, p)
	}
}

// gen returns the generation that was written last.
func (w *Writer) gen() uint64 {
	p, err := parsePointer(w.pointer)
	if err != nil {
		return 0
	}
	return p.Generation
}

// A power cut, a full disk or a kill at any instant of a write leaves the generation
// before or the new one, whole; the next write goes on from there.
func TestWriteInterrupted(t *testing.T) {
	before, after := versions(40, 1), versions(41, 1)
	after[3], after[7] = 2, -1
	old, next, last := publicationOf(t, 5, before), publicationOf(t, 9, after), publicationOf(t, 12, after)
	for _, cause := range []error{durabletest.ErrPowerCut, syscall.ENOSPC, syscall.EIO} {
		for _, mode := range durabletest.Afters() {
			if testlane.Rounds(true, false) && (cause != durabletest.ErrPowerCut || mode != durabletest.Torn) {
				continue
			}
			if cause != durabletest.ErrPowerCut && mode != durabletest.Afters()[0] {
				continue
			}
			for n := 1; ; n++ {
				disk := durabletest.NewDisk()
				w := NewWriter(disk.FS(), "pub", nil)
				mustWrite(t, w, old)
				disk.FailAt(n, cause)
				_, err := w.Write(context.Background(), next)
				if !disk.Failed() {
					break
				}
				if cause == durabletest.ErrPowerCut {
					disk.Restart(mode)
					w = NewWriter(disk.FS(), "pub", nil)
				} else if err == nil && exists(disk.FS(), "pub/"+PointerName) {
					// The failure was of no consequence.
					check(t, &onDisk{files: disk.FS(), dir: "pub"}, next)
				}
				source := &onDisk{files: disk.FS(), dir: "pub"}
				tree, err := Open(context.Background(), source, testCluster)
				if err != nil {
					t.Fatalf("%v at call %d, %v: %v", cause, n, mode, err)
				}
				want := old
				if tree.Record().Generation == next.Generation {
					want = next
				}
				check(t, source, want)
				mustWrite(t, w, last)
				check(t, source, last)
			}
		}
	}
}

// A file that a bad disk damaged is written anew by the next process.
func TestDamagedFilesAreReplaced(t *testing.T) {
	disk := durabletest.NewDisk()
	p := publicationOf(t, 5, versions(60, 1))
	mustWrite(t, NewWriter(disk.FS(), "pub", nil), p)
	for i, name := range list(t, disk.FS(), "pub") {
		disk.Put("pub/"+name, []byte(fmt.Sprintf("damage %d", i)))
	}
	p = publicationOf(t, 6, versions(60, 1))
	mustWrite(t, NewWriter(disk.FS(), "pub", nil), p)
	check(t, &onDisk{files: disk.FS(), dir: "pub"}, p)
	disk.Put("pub/"+PointerName, []byte("{"))
	p = publicationOf(t, 7, versions(60, 1))
	mustWrite(t, NewWriter(disk.FS(), "pub", nil), p)
	check(t, &onDisk{files: disk.FS(), dir: "pub"}, p)
}

// A late writer does not put an older generation in the place of a newer one, and one
// that is not alone waits for its turn.
func TestWritersTakeTurns(t *testing.T) {
	disk := durabletest.NewDisk()
	ctx := context.Background()
	a, b := NewWriter(disk.FS(), "pub", nil), NewWriter(disk.FS(), "pub", nil)
	newer := publicationOf(t, 9, versions(20, 2))
	mustWrite(t, a, publicationOf(t, 5, versions(20, 1)))
	mustWrite(t, b, newer)
	for _, g := range []uint64{5, 8, 9} {
		if wrote, err := a.Write(ctx, publicationOf(t, g, versions(20, 1))); wrote || err != nil {
			t.Errorf("generation %d was written over 9: %v, %v", g, wrote, err)
		}
	}
	check(t, &onDisk{files: disk.FS(), dir: "pub"}, newer)
	lock, err := disk.FS().Lock("pub/" + writeLock)
	if err != nil {
		t.Fatal(err)
	}
	if wrote, err := a.Write(ctx, publicationOf(t, 10, versions(20, 1))); wrote || err != nil {
		t.Errorf("written beside another process: %v, %v", wrote, err)
	}
	lock.Close()
	last := publicationOf(t, 10, versions(20, 3))
	mustWrite(t, a, last)
	check(t, &onDisk{files: disk.FS(), dir: "pub"}, last)
	foreign := publicationOf(t, 20, versions(2, 1))
	foreign.Cluster = "other.example"
	if _, err := a.Write(ctx, foreign); !errors.Is(err, ErrOtherCluster) {
		t.Errorf("another cluster's: %v", err)
	}
	check(t, &onDisk{files: disk.FS(), dir: "pub"}, last)
}

// A file that cannot be written is refused before the pointer leads to it.
func TestWriteRefuses(t *testing.T) {
	for name, bend := range map[string]func(*Publication){
		"no header": func(p *Publication) { p.Headers = nil },
		"unsorted":  func(p *Publication) { p.Headers[0], p.Headers[1] = p.Headers[1], p.Headers[0] },
		"twice": func(p *Publication) {
			p.Headers[1] = p.Headers[0] // and the tree is that of these headers
			leaves := make([]snapshot.Digest, len(p.Headers))
			for i, h := range p.Headers {
				leaves[i] = h.Leaf
			}
			p.Root = snapshot.NewTree(leaves).Root()
		},
		"two on one leaf": func(p *Publication) {
			*p = spread(t, *p, 4, func(i int) int { return min(i, 1) })
		},
		"a leaf that is not there": func(p *Publication) { p.Leaves, p.Headers[1].Index = 3, 3 },
		"a leaf below all":         func(p *Publication) { p.Leaves, p.Headers[1].Index = 3, -1 },
		"too many leaves":          func(p *Publication) { p.Leaves = MaxHeaders + 1 },
		"a missing content":        func(p *Publication) { p.Content = func(snapshot.Digest) []byte { return nil } },
		"another tree":             func(p *Publication) { p.Root[0] ^= 1 },
		"no trust bundle":          func(p *Publication) { p.TrustBundle = nil },
		"a bundle too large":       func(p *Publication) { p.TrustBundle = make([]byte, MaxBundle+1) },
	} {
		disk := durabletest.NewDisk()
		w := NewWriter(disk.FS(), "pub", nil)
		good := publicationOf(t, 5, versions(3, 1))
		mustWrite(t, w, good)
		p := publicationOf(t, 6, versions(3, 2))
		bend(&p)
		if wrote, err := w.Write(context.Background(), p); err == nil || wrote {
			t.Errorf("%s: written %v, %v", name, wrote, err)
		}
		check(t, &onDisk{files: disk.FS(), dir: "pub"}, good)
	}
	// A writer that is told to stop, stops.
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := NewWriter(durabletest.NewDisk().FS(), "pub", nil).Write(ctx, publicationOf(t, 1, versions(3, 1))); !errors.Is(err, context.Canceled) {
		t.Errorf("stopped: %v", err)
	}
}

// For any changes, any writers and any number of their starts: what the pointer leads
// to is all there, what it led to stays for the time of grace, and what is of no use
// goes.
func TestNothingNeededIsRemoved(t *testing.T) {
	testlane.Checks(t, 10, 100)
	rapid.Check(t, func(t *rapid.T) {
		disk := durabletest.NewDisk()
		now := testStart
		clock := func() time.Time { return now }
		writers := []*Writer{NewWriter(disk.FS(), "pub", clock), NewWriter(disk.FS(), "pub", clock)}
		source := &onDisk{files: disk.FS(), dir: "pub"}
		all := versions(8, 0)
		generation, current := uint64(0), Publication{}
		type past struct {
			p   Publication
			end time.Time
		}
		var left []past
		t.Repeat(map[string]func(*rapid.T){
			"change": func(t *rapid.T) {
				all[rapid.IntRange(0, len(all)-1).Draw(t, "header")] = rapid.IntRange(-1, 3).Draw(t, "version")
				all[0] = max(all[0], 0)
			},
			"write": func(t *rapid.T) {
				generation++
				p := publicationOf(t, generation, all)
				w := writers[rapid.IntRange(0, 1).Draw(t, "writer")]
				mustWrite(t, w, p)
				if current.Headers != nil {
					left = append(left, past{current, now.Add(Grace)})
				}
				current = p
			},
			"wait": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(1, 600).Draw(t, "seconds")) * time.Second)
			},
			"restart": func(t *rapid.T) {
				writers[rapid.IntRange(0, 1).Draw(t, "writer")] = NewWriter(disk.FS(), "pub", clock)
			},
			"": func(t *rapid.T) {
				if current.Headers == nil {
					return
				}
				check(t, source, current)
				for _, x := range left {
					if now.After(x.end) {
						continue
					}
					for _, h := range x.p.Headers {
						if !exists(disk.FS(), "pub/"+objectName(h.Content)) {
							t.Fatalf("a content of generation %d went before its time", x.p.Generation)
						}
					}
				}
			},
		})
		if current.Headers == nil {
			return
		}
		// With nothing new for long, only what is needed is left.
		for range 3 {
			now = now.Add(Grace + time.Second)
			generation++
			current = publicationOf(t, generation, all)
			mustWrite(t, writers[0], current)
		}
		check(t, source, current)
		names := list(t, disk.FS(), "pub")
		needed := len(writers[0].refs) + 3 // the generation, the bundle, the changes of root
		if most := needed + 2*3; len(names) > most {
			t.Fatalf("%d files are left, %d are needed:\n%s", len(names), needed, strings.Join(names, "\n"))
		}
	})
}

// The number of buckets follows the number of headers, and not each of its changes.
func TestBits(t *testing.T) {
	for _, x := range []struct{ n, were, want int }{
		{1, 0, 0}, {16, 0, 0}, {17, 0, 1}, {40, 0, 2}, {100_000, 0, 13}, {MaxHeaders, 0, maxBits},
		{100_000, 13, 13}, {200_000, 13, 13}, {300_000, 13, 14}, {40_000, 13, 13}, {20_000, 13, 11}, {3, 13, 0},
	} {
		if got := bitsFor(x.n, x.were); got != x.want {
			t.Errorf("%d headers, %d bits before: %d, want %d", x.n, x.were, got, x.want)
		}
	}
}
