package provider

import (
	"fmt"
	"maps"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/fealty-io/fealty/internal/provider"
)

// maxGone bounds the machines that are gone and still told of. A reader that missed more
// lists anew.
const maxGone = 10_000

// view is what was last seen of all machines, with the order in which they changed. It
// decides what a page shows, and does no I/O.
//
// Each change has a number of its own. A revision is a position in them, and where its
// reader began: what was gone before that, it never saw.
type view struct {
	life     string // tells the numbers of two processes apart
	last     uint64
	machines map[string]seen
	gone     map[string]uint64
	log      []change // ascending; those that a later one of the same id replaced are skipped

	forgotten uint64 // the highest change of a machine that is gone and no longer told of
}

type seen struct {
	machine Machine
	changed uint64
}

type change struct {
	number uint64
	id     string
}

func newView(life string) *view {
	return &view{life: life, machines: make(map[string]seen), gone: make(map[string]uint64)}
}

// update takes a whole list, which was checked, and returns the machines that are gone since
// the last one.
func (v *view) update(machines []Machine) (gone []string) {
	there := make(map[string]struct{}, len(machines))
	for _, m := range machines {
		there[m.ID] = struct{}{}
		if before, known := v.machines[m.ID]; !known || before.machine != m {
			delete(v.gone, m.ID)
			v.machines[m.ID] = seen{m, v.next(m.ID)}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(v.machines)) {
		if _, ok := there[id]; !ok {
			delete(v.machines, id)
			v.gone[id] = v.next(id)
			gone = append(gone, id)
		}
	}
	v.compact()
	return gone
}

func (v *view) next(id string) uint64 {
	v.last++
	v.log = append(v.log, change{v.last, id})
	return v.last
}

// stands reports whether no later change of the same machine replaced c.
func (v *view) stands(c change) bool {
	return v.machines[c.id].changed == c.number || v.gone[c.id] == c.number
}

// compact forgets what was replaced, once that is half of the log, and the machines that
// were gone first, once they are too many.
func (v *view) compact() {
	for _, c := range v.log {
		if len(v.gone) <= maxGone {
			break
		}
		if v.gone[c.id] == c.number {
			delete(v.gone, c.id)
			v.forgotten = c.number
		}
	}
	if len(v.log) > 2*(len(v.machines)+len(v.gone)) {
		v.log = slices.DeleteFunc(v.log, func(c change) bool { return !v.stands(c) })
	}
}

// page is what one answer shows.
type page struct {
	machines []Machine
	gone     []string
	revision string
	more     bool
}

// after returns the page after a revision, or an error that matches [ErrListAnew].
func (v *view) after(revision string, limit int) (page, error) {
	begun, at, err := v.parse(revision)
	if err != nil {
		return page{}, err
	}
	if max(begun, at) < v.forgotten {
		return page{}, fmt.Errorf("provider: too many machines are gone since this revision to tell which: %w",
			ErrListAnew)
	}
	if limit <= 0 || limit > provider.MaxPage {
		limit = provider.MaxPage
	}
	var p page
	first := sort.Search(len(v.log), func(i int) bool { return v.log[i].number > at })
	for _, c := range v.log[first:] {
		isGone := v.gone[c.id] == c.number
		if !v.stands(c) || isGone && c.number <= begun {
			continue
		}
		if len(p.machines)+len(p.gone) == limit {
			p.more = true
			break
		}
		at = c.number
		if isGone {
			p.gone = append(p.gone, c.id)
		} else {
			p.machines = append(p.machines, v.machines[c.id].machine)
		}
	}
	if !p.more {
		begun, at = v.last, v.last
	}
	p.revision = v.life + "." + strconv.FormatUint(begun, 10) + "." + strconv.FormatUint(at, 10)
	return p, nil
}

func (v *view) parse(revision string) (begun, at uint64, err error) {
	if revision == "" {
		return v.last, 0, nil
	}
	anew := func() (uint64, uint64, error) {
		return 0, 0, fmt.Errorf("provider: %.80q is no revision of this life of the provider: %w", revision,
			ErrListAnew)
	}
	parts := strings.Split(revision, ".")
	if len(parts) != 3 || parts[0] != v.life {
		return anew()
	}
	begun, err1 := strconv.ParseUint(parts[1], 10, 64)
	at, err2 := strconv.ParseUint(parts[2], 10, 64)
	if err1 != nil || err2 != nil || begun > v.last || at > v.last {
		return anew()
	}
	return begun, at, nil
}
