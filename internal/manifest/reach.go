package manifest

import (
	"slices"
	"strings"

	"github.com/fealty-io/fealty/identity"
)

// A reach compares who can join under two manifests. Selectors are endless, so it
// compares patterns: one without a * is asked of both manifests; one with a * is
// new unless a single pattern of the other manifest covers all that it matches.
// So nobody can join unreported, and what is reported may be narrower in truth: a
// pattern that several others cover together counts as new.
type reach struct {
	old, new *Manifest

	arrivals   []arrival // new patterns that admit somebody that old did not
	departures []arrival // the reverse
	kinds      []crossing
	names      []renaming
	pairs      []pair // an entry of old, and one of new that takes what it took
	paired     map[pair]bool

	middles []string // what a * stands for in examples
	lookups int      // of examples, bounded by maxLookups
}

// maxLookups bounds the search for examples. Beyond it two patterns that look as
// if they shared a selector count as if they did.
const maxLookups = 20_000

// arrival is a pattern of one manifest that the other does not cover.
type arrival struct {
	pattern Pattern
	entry   *Entry
	partly  bool // some of it was covered
	// beyond is set if all but the longest names were covered: those with more
	// characters than this.
	beyond int
}

// crossing is a pattern that makes another kind of what it matches.
type crossing struct {
	pattern  Pattern
	old, new *Entry
	whole    bool // all that it matches was, and is, of one kind
}

// renaming is a selector that gives its candidate another name.
type renaming struct {
	pattern  Pattern
	old, new string
}

type pair struct{ old, new int } // indices in Admit

func compareReach(old, new *Manifest) *reach {
	r := &reach{old: old, new: new, middles: middles(), paired: make(map[pair]bool)}
	r.exacts()
	r.globs()
	r.arrivals = append(r.arrivals, r.uncovered(new, old)...)
	r.departures = append(r.departures, r.uncovered(old, new)...)
	return r
}

// takes returns the pattern of m that takes a selector, in canonical form: the
// rules of Parse leave one kind to each.
func (m *Manifest) takes(selector string) (patternRef, string, bool) {
	if ref, ok := m.exact[selector]; ok {
		if ref.pattern.IsToken() {
			return ref, "", true // the token decides
		}
		return ref, m.Admit[ref.entry].Name, true
	}
	for _, ref := range m.globs {
		if name, ok := ref.pattern.Capture(selector); ok && IsName(name) {
			return ref, name, true
		}
	}
	return patternRef{}, "", false
}

// exacts asks both manifests for each selector that one of them names.
func (r *reach) exacts() {
	for _, m := range [...]*Manifest{r.new, r.old} {
		for i := range m.Admit {
			for _, p := range m.Admit[i].Match {
				if _, both := r.new.exact[p.text]; p.IsGlob() || m == r.old && both {
					continue // compared already
				}
				before, oldName, was := r.old.takes(p.text)
				after, newName, is := r.new.takes(p.text)
				switch {
				case !was:
					r.arrivals = append(r.arrivals, arrival{pattern: p, entry: &r.new.Admit[after.entry]})
				case !is:
					r.departures = append(r.departures, arrival{pattern: p, entry: &r.old.Admit[before.entry]})
				case r.kindOf(r.old, before) != r.kindOf(r.new, after):
					r.kinds = append(r.kinds, crossing{p, &r.old.Admit[before.entry], &r.new.Admit[after.entry], true})
				default:
					r.pair(before, after)
					if oldName != newName {
						r.names = append(r.names, renaming{p, oldName, newName})
					}
				}
			}
		}
	}
}

func (r *reach) kindOf(m *Manifest, ref patternRef) identity.Kind { return m.Admit[ref.entry].Kind }

func (r *reach) pair(old, new patternRef) {
	if p := (pair{old.entry, new.entry}); !r.paired[p] {
		r.paired[p] = true
		r.pairs = append(r.pairs, p)
	}
}

// uncovered returns the patterns of m with a * that no single pattern of other
// covers in the same kind, but those that are told as a change of kind.
func (r *reach) uncovered(m, other *Manifest) []arrival {
	var out []arrival
	for _, ref := range m.globs {
		e := &m.Admit[ref.entry]
		a := arrival{pattern: ref.pattern, entry: e}
		covered := slices.ContainsFunc(r.kinds, func(c crossing) bool { return c.whole && c.pattern == ref.pattern })
		for _, o := range other.globs {
			if other.Admit[o.entry].Kind != e.Kind || !ref.pattern.overlaps(o.pattern) {
				continue
			}
			more, ok := o.pattern.coversNames(ref.pattern)
			switch {
			case !ok:
				a.partly = true
			case more == 0:
				covered = true
			default:
				a.beyond = max(a.beyond, MaxNameBytes-more)
			}
		}
		if !covered {
			out = append(out, a)
		}
	}
	return out
}

// coversNames reports whether p matches all that q does, two patterns with a *:
// also where the * of p then stands for more than that of q, which has to be part
// of a name too. more is by how much: the longest names of q are too long for p
// then.
func (p Pattern) coversNames(q Pattern) (more int, ok bool) {
	before, ok1 := strings.CutPrefix(q.prefix(), p.prefix())
	after, ok2 := strings.CutSuffix(q.suffix(), p.suffix())
	if more = len(before) + len(after); !ok1 || !ok2 || more >= MaxNameBytes {
		return 0, false
	}
	return more, more == 0 || IsName("x"+before+after)
}

// globs finds which entries of new take what entries of old took, by examples.
func (r *reach) globs() {
	same := slices.EqualFunc(r.old.globs, r.new.globs, func(a, b patternRef) bool {
		return a.pattern == b.pattern && r.kindOf(r.old, a) == r.kindOf(r.new, b)
	})
	for i, after := range r.new.globs {
		if same {
			r.pair(r.old.globs[i], after)
			continue
		}
		renamed := false // one example is enough
		for _, before := range r.old.globs {
			sameKind := r.kindOf(r.old, before) == r.kindOf(r.new, after)
			if !before.pattern.overlaps(after.pattern) {
				continue
			}
			if more, ok := before.pattern.coversNames(after.pattern); !sameKind && ok && more == 0 {
				// All that the new pattern takes was of the other kind, by the rule against
				// two kinds.
				r.kinds = append(r.kinds, crossing{after.pattern, &r.old.Admit[before.entry],
					&r.new.Admit[after.entry], true})
				continue
			}
			if r.paired[pair{before.entry, after.entry}] && (renamed || before.pattern == after.pattern) && sameKind {
				continue // it would say nothing new
			}
			switch {
			case !r.share(before, after):
			case !sameKind:
				r.kinds = append(r.kinds, crossing{after.pattern, &r.old.Admit[before.entry],
					&r.new.Admit[after.entry], false})
			default:
				r.pair(before, after)
				if !renamed && before.pattern != after.pattern {
					renamed = true
					r.names = append(r.names, renaming{after.pattern, "the * of " + before.pattern.text,
						"the * of " + after.pattern.text})
				}
			}
		}
	}
}

// share reports whether there is a selector that old takes by before and new by
// after. It may say yes where none was found in time.
func (r *reach) share(before, after patternRef) bool {
	prefix, suffix := longer(before.pattern.prefix(), after.pattern.prefix()), longer(before.pattern.suffix(),
		after.pattern.suffix())
	for _, middle := range r.middles {
		if r.lookups++; r.lookups > maxLookups {
			return true
		}
		a, _, ok1 := r.old.takes(prefix + middle + suffix)
		b, _, ok2 := r.new.takes(prefix + middle + suffix)
		if ok1 && ok2 && a == before && b == after {
			return true
		}
	}
	return false
}

// middles are what a * may stand for in an example: with each first and last
// character, so that a pattern that begins with one of them does not hide all.
func middles() []string {
	out := []string{""}
	for _, c := range "xabcdefghijklmnopqrstuvwyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_." {
		out = append(out, string(c)+"q7"+string(c), string(c))
	}
	return out
}

func longer(a, b string) string {
	if len(a) > len(b) {
		return a
	}
	return b
}
