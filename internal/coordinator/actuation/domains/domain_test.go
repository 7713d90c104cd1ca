package domains_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/fealty-io/fealty/internal/coordinator/actuation/domains"
)

func TestCheckName(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"a", "eu-1", "db/shard.7", "0", strings.Repeat("a", domains.MaxName)} {
		if problem := domains.CheckName(good); problem != "" {
			t.Errorf("%s: %s", good, problem)
		}
	}
	for _, bad := range []string{"", "A", "a b", "a\n", "-a", "a-", "/a", "a/", "a//b", "ä", "a\x00b",
		strings.Repeat("a", domains.MaxName+1)} {
		if domains.CheckName(bad) == "" {
			t.Errorf("%q is a name", bad)
		}
	}
}

func TestCourse(t *testing.T) {
	t.Parallel()
	const first = uint64(3)<<32 + 1
	d := domains.Domain{Name: "eu"}
	step := func(what string, next domains.Domain, err error, want domains.Domain) {
		t.Helper()
		if want.Name = "eu"; err != nil || next != want {
			t.Fatalf("%s: %+v, %v, want %+v", what, next, err, want)
		}
		d = next
	}
	next, err := d.Assign("shard/a", 3, false)
	step("the first owner", next, err, domains.Domain{Owner: "shard/a", Ownership: first})
	next, err = d.Assign("shard/a", 3, false)
	step("again", next, err, d)
	next, err = d.Assign("shard/b", 3, false)
	step("to another", next, err, domains.Domain{Owner: "shard/a", Ownership: first, Moving: true, Next: "shard/b"})
	next, err = d.Assign("shard/b", 3, false)
	step("to another, again", next, err, d)
	next, err = d.Assign("shard/a", 3, false)
	step("back to an owner that may have let go", next, err,
		domains.Domain{Owner: "shard/a", Ownership: first, Moving: true, Next: "shard/a"})
	next, err = d.Release("shard/a", first, 3)
	step("it let go", next, err, domains.Domain{Owner: "shard/a", Ownership: first + 1})
	for what, wrong := range map[string]struct {
		by        string
		ownership uint64
	}{
		"late": {"shard/a", first}, "early": {"shard/a", first + 2}, "another's": {"shard/b", first + 1},
		"nobody's": {"", first + 1},
	} {
		if next, err = d.Release(wrong.by, wrong.ownership, 3); !errors.Is(err, domains.ErrNotOwner) || next != d {
			t.Errorf("a word that is %s: %+v, %v", what, next, err)
		}
	}
	next, err = d.Assign("shard/b", 3, true)
	step("by force", next, err, domains.Domain{Owner: "shard/b", Ownership: first + 2})
	next, err = d.Assign("shard/b", 3, true)
	step("by force, again", next, err, d)
	next, err = d.Assign("", 3, false)
	step("to nobody", next, err, domains.Domain{Owner: "shard/b", Ownership: first + 2, Moving: true})
	next, err = d.Assign("", 9, true)
	step("to nobody by force, in a later epoch", next, err, domains.Domain{Ownership: 9<<32 + 1})
	next, err = d.Assign("", 9, false)
	step("to nobody, again", next, err, d)
	next, err = d.Assign("shard/a", 3, false)
	step("in an epoch of before", next, err, domains.Domain{Owner: "shard/a", Ownership: 9<<32 + 2})
	next, err = d.Release("shard/a", 9<<32+2, 9)
	step("it let go unasked", next, err, domains.Domain{Ownership: 9<<32 + 3})

	last := domains.Domain{Name: "eu", Ownership: math.MaxUint64}
	if next, err := last.Assign("shard/a", 1, false); !errors.Is(err, domains.ErrExhausted) || next != last {
		t.Errorf("after the last ownership: %+v, %v", next, err)
	}
	if _, err := d.Assign("shard/b", math.MaxUint32+1, true); !errors.Is(err, domains.ErrExhausted) {
		t.Errorf("in an epoch of more than 32 bits: %v", err)
	}
}

// In any order of what is asked and said: each ownership has one owner, the number only
// grows, and an owner who was not forced loses the domain by its own word alone.
func TestOneOwner(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		d := domains.Domain{Name: "d"}
		owners := map[uint64]string{}
		names := rapid.SampledFrom([]string{"", "shard/a", "shard/b", "shard/c"})
		epoch := uint64(1)
		rt.Repeat(map[string]func(*rapid.T){
			"assign": func(rt *rapid.T) {
				to, force := names.Draw(rt, "to"), rapid.Bool().Draw(rt, "force")
				next, err := d.Assign(to, epoch, force)
				if err != nil {
					rt.Fatal(err)
				}
				if !force && next.Owner != d.Owner && d.Owner != "" {
					rt.Fatalf("%+v became %+v, and nobody let go", d, next)
				}
				if again, err := next.Assign(to, epoch, force); err != nil || again != next {
					rt.Fatalf("asked again %+v became %+v: %v", next, again, err)
				}
				if final := next.Owner == to && !next.Moving || next.Moving && next.Next == to; !final {
					rt.Fatalf("assigned to %q it is %+v", to, next)
				}
				d = next
			},
			"release": func(rt *rapid.T) {
				by, ownership := names.Draw(rt, "by"), d.Ownership-uint64(rapid.IntRange(0, 1).Draw(rt, "late"))
				next, err := d.Release(by, ownership, epoch)
				if may := by != "" && by == d.Owner && ownership == d.Ownership; may != (err == nil) {
					rt.Fatalf("%q let go of %d of %+v: %v", by, ownership, d, err)
				}
				if err == nil && next.Ownership <= d.Ownership {
					rt.Fatalf("%+v became %+v", d, next)
				}
				d = next
			},
			"restore": func(*rapid.T) { epoch++ },
			"": func(rt *rapid.T) {
				if was, ok := owners[d.Ownership]; ok && was != d.Owner {
					rt.Fatalf("ownership %d is of %q and of %q", d.Ownership, was, d.Owner)
				}
				owners[d.Ownership] = d.Owner
			},
		})
	})
}
