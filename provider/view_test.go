// Inside: what a page shows is decided by the view, which nothing outside shows that says
// when it looks.
package provider

import (
	"errors"
	"fmt"
	"maps"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"github.com/fealty-io/fealty/internal/provider"
)

// A reader that asks now and then, in pages of any size, knows what there is once it has
// caught up, and is sent nothing that it has seen.
func TestReadersCatchUp(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		v := newView("life")
		there := make(map[string]Machine)
		type reader struct {
			revision string
			knows    map[string]Machine
		}
		readers := []*reader{{knows: make(map[string]Machine)}, {knows: make(map[string]Machine)}}
		update := func() {
			var all []Machine
			for _, m := range there {
				all = append(all, m)
			}
			v.update(all)
		}
		read := func(r *reader, limit int) (more bool) {
			fromTheStart := r.revision == ""
			if fromTheStart {
				clear(r.knows)
			}
			p, err := v.after(r.revision, limit)
			if err != nil {
				t.Fatalf("revision %q: %v", r.revision, err)
			}
			if len(p.machines)+len(p.gone) > limit {
				t.Fatalf("a page of limit %d has %d machines, and %d that are gone", limit, len(p.machines),
					len(p.gone))
			}
			if fromTheStart && len(p.gone) > 0 {
				t.Fatalf("a list from the beginning tells of %v, which are gone", p.gone)
			}
			for _, id := range p.gone {
				delete(r.knows, id)
			}
			for _, m := range p.machines {
				if r.knows[m.ID] == m {
					t.Fatalf("machine %s comes again, and did not change", m.ID)
				}
				r.knows[m.ID] = m
			}
			r.revision = p.revision
			return p.more
		}
		t.Repeat(map[string]func(*rapid.T){
			"change": func(t *rapid.T) {
				for _, n := range rapid.SliceOfN(rapid.IntRange(0, 12), 1, 5).Draw(t, "machines") {
					id := strconv.Itoa(n)
					there[id] = Machine{ID: id, Profile: "p", State: Idle, Operation: strconv.Itoa(int(v.last))}
				}
				update()
			},
			"remove": func(t *rapid.T) {
				delete(there, strconv.Itoa(rapid.IntRange(0, 12).Draw(t, "machine")))
				update()
			},
			"look again": func(*rapid.T) { update() },
			"read": func(t *rapid.T) {
				read(rapid.SampledFrom(readers).Draw(t, "reader"), rapid.IntRange(1, 6).Draw(t, "limit"))
			},
			"begin anew": func(t *rapid.T) { rapid.SampledFrom(readers).Draw(t, "reader").revision = "" },
			"": func(t *rapid.T) {
				r := rapid.SampledFrom(readers).Draw(t, "reader")
				for n := 0; read(r, 3); n++ {
					if n > 100 {
						t.Fatal("the pages have no end")
					}
				}
				if !maps.Equal(r.knows, there) {
					t.Fatalf("the reader knows %v, and there is %v", r.knows, there)
				}
				if len(v.log) > 2*(len(there)+len(v.gone))+26 {
					t.Fatalf("%d changes are kept of %d machines and %d that are gone", len(v.log), len(there),
						len(v.gone))
				}
			},
		})
	})
}

// Of machines that are gone a bounded number is told of; a reader that missed more lists
// anew, and one that is in the middle of its first list does not.
func TestGoneIsForgotten(t *testing.T) {
	t.Parallel()
	v := newView("life")
	keep := []Machine{{ID: "a"}, {ID: "b"}, {ID: "c"}}
	v.update(keep)
	p, err := v.after("", provider.MaxPage)
	if err != nil {
		t.Fatal(err)
	}
	old := p.revision
	many := append([]Machine{}, keep...)
	for n := range maxGone + 10 {
		many = append(many, Machine{ID: fmt.Sprint("m-", n)})
	}
	v.update(many)
	v.update(keep)
	if len(v.gone) != maxGone {
		t.Errorf("%d machines that are gone are told of, want %d", len(v.gone), maxGone)
	}
	if _, err := v.after(old, provider.MaxPage); !errors.Is(err, ErrListAnew) {
		t.Errorf("a reader of before: %v, want ErrListAnew", err)
	}
	first, err := v.after("", 1)
	if err != nil || !first.more {
		t.Fatalf("%+v, %v", first, err)
	}
	if second, err := v.after(first.revision, 1); err != nil || len(second.machines) != 1 {
		t.Errorf("the second page of a list: %+v, %v", second, err)
	}
}

// Revisions come from callers.
func FuzzRevision(f *testing.F) {
	v := newView("0011223344556677")
	v.update([]Machine{{ID: "a"}, {ID: "b"}})
	p, err := v.after("", 1)
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{"", p.revision, "0011223344556677.18446744073709551615.0", "0011223344556677.-1.0",
		"..", "x.1.1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, revision string) {
		p, err := v.after(revision, 1)
		if err != nil {
			if !errors.Is(err, ErrListAnew) {
				t.Errorf("%q: %v", revision, err)
			}
			return
		}
		if _, err := v.after(p.revision, 1); err != nil {
			t.Errorf("%q led to revision %q: %v", revision, p.revision, err)
		}
	})
}
