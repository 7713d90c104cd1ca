package fence_test

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/fealty-io/fealty/fence"
	internalsigned "github.com/fealty-io/fealty/internal/signed"
)

// course is a receiver, the processes that send to it, and what they have on their way.
type course struct {
	t         *rapid.T
	authority authority
	ledger    *fence.Ledger
	granted   map[string]uint32 // by holder
	processes []*sending
	flying    []flight // in any order, and any number of times

	owners  map[string]fence.Assigned // what was promised of each domain
	applied []flight                  // in their order
	once    map[string]bool           // tokens applied
	gone    map[string]bool           // resources
}

// sending is a process, with the state that a copy of it has too.
type sending struct {
	process
	last uint64
}

type flight struct {
	claim fence.Claim
	by    *sending
}

// domains of the resources of these courses; "" is none.
var domains = map[string]string{"d-1": "d", "d-2": "d", "e-1": "e", "alone": ""}

// Anything may come in any order, however processes are started, copied and granted anew,
// domains move, resources go, and the receiver starts again: nothing is applied that I6
// forbids, and what is promised holds for all that comes after it (I7). And what the
// newest process of the owner sends first is admitted, so that nobody honest is fenced.
func TestNothingStaleIsApplied(t *testing.T) {
	signs := newAuthority(t)
	rapid.Check(t, func(t *rapid.T) {
		x := &course{t: t, authority: signs, ledger: fence.NewLedger(strict), granted: make(map[string]uint32),
			owners: make(map[string]fence.Assigned), once: make(map[string]bool), gone: make(map[string]bool)}
		for _, name := range []string{"s1", "s2"} {
			x.grant(name)
			x.move("d", "s1")
			x.move("e", name)
		}
		drawn := func() *sending { return rapid.SampledFrom(x.processes).Draw(t, "process") }
		holders := rapid.SampledFrom([]string{"s1", "s2", "s1", "s2", ""})
		t.Repeat(map[string]func(*rapid.T){
			"send":    func(*rapid.T) { x.send(drawn()) },
			"arrive":  func(t *rapid.T) { x.arrive(t) },
			"again":   func(t *rapid.T) { x.arrive(t) },
			"restart": func(*rapid.T) { x.restart(drawn()) },
			"image":   func(*rapid.T) { x.image(drawn()) },
			"grant":   func(t *rapid.T) { x.grant(rapid.SampledFrom([]string{"s1", "s2"}).Draw(t, "holder")) },
			"move": func(t *rapid.T) {
				x.move(rapid.SampledFrom([]string{"d", "e"}).Draw(t, "domain"), holders.Draw(t, "holder"))
			},
			"remove": func(t *rapid.T) {
				name := rapid.SampledFrom([]string{"d-1", "d-2", "e-1", "alone"}).Draw(t, "resource")
				x.ledger.Forget(name)
				x.gone[name] = true
			},
			"receiver restarts": func(*rapid.T) {
				again := fence.NewLedger(strict)
				for c := range x.ledger.All() {
					again.Set(c)
				}
				x.ledger = again
			},
			"the owner acts": func(t *rapid.T) { x.ownerActs() },
		})
	})
}

// grant starts a process of a holder under a new grant.
func (x *course) grant(name string) {
	x.granted[name]++
	x.processes = append(x.processes, &sending{process: process{holder: name, epoch: fence.NewEpoch(x.granted[name], 1), me: x.incarnation()}})
}

func (x *course) incarnation() (i fence.Incarnation) {
	copy(i[:], fmt.Sprint("process ", len(x.processes)))
	return i
}

// restart starts a process after p, from its state. p may go on: it is paused, or its
// directory was copied before.
func (x *course) restart(p *sending) {
	lineage := append(p.lineage[:len(p.lineage):len(p.lineage)], p.me)
	x.processes = append(x.processes, &sending{process: process{holder: p.holder, epoch: must(p.epoch.Next()), me: x.incarnation(),
		lineage: lineage[max(0, len(lineage)-internalsigned.MaxLineage):]}})
}

// image is a process that goes on twice, as from an image of its memory.
func (x *course) image(p *sending) {
	twin := *p
	x.processes = append(x.processes, &twin)
}

func (x *course) send(p *sending) {
	resource := rapid.SampledFrom([]string{"d-1", "d-2", "e-1", "alone"}).Draw(x.t, "resource")
	owner := x.owners[domains[resource]]
	ownership := owner.Ownership
	switch rapid.IntRange(0, 3).Draw(x.t, "says") {
	case 0:
		ownership = rapid.Uint64Range(0, owner.Ownership+1).Draw(x.t, "ownership")
	case 1:
		ownership = 0
	}
	domain := rapid.SampledFrom([]string{domains[resource], domains[resource], "", "d", "e"}).Draw(x.t, "domain")
	x.flying = append(x.flying, flight{x.claim(p, resource, domain, ownership), p})
}

func (x *course) claim(p *sending, resource, domain string, ownership uint64) fence.Claim {
	p.last++
	c := p.claim(resource, p.last)
	c.Token.Digest = fence.DigestOf(rapid.SliceOfN(rapid.Byte(), 2, 2).Draw(x.t, "request"))
	c.Domain, c.Token.Ownership = domain, ownership
	c.Grant = x.authority.grant(p.holder, p.epoch.Grant())
	return c
}

func (x *course) move(domain, to string) {
	next := fence.Assigned{Ownership: x.owners[domain].Ownership + 1, Holder: to}
	if err := x.ledger.Promise(x.authority.assign(domain, to, next.Ownership)); err != nil {
		x.t.Fatal(err)
	}
	x.owners[domain] = next
}

func (x *course) arrive(t *rapid.T) {
	if len(x.flying) == 0 {
		t.Skip()
	}
	f := rapid.SampledFrom(x.flying).Draw(t, "flight")
	if x.ledger.Admit(f.claim) == nil {
		x.apply(f)
	}
}

// ownerActs has a new process of the owner of d act: it is admitted.
func (x *course) ownerActs() {
	owner := x.owners["d"]
	if owner.Holder == "" || x.ledger.DomainOf("d-1") != "d" && x.ledger.DomainOf("d-1") != "" {
		return
	}
	x.grant(owner.Holder)
	p := x.processes[len(x.processes)-1]
	c := x.claim(p, "fresh", "d", owner.Ownership)
	c.Resource = fmt.Sprint("fresh-", len(x.processes))
	if err := x.ledger.Admit(c); err != nil {
		x.t.Fatalf("the newest process of the owner: %v", err)
	}
	x.apply(flight{c, p})
}

// apply looks at what was admitted.
func (x *course) apply(f flight) {
	token, resource := f.claim.Token, f.claim.Resource
	name := fmt.Sprint(f.claim.Holder, resource, token)
	if x.once[name] {
		x.t.Fatalf("%s was applied twice", name)
	}
	x.once[name] = true
	if in := x.ledger.DomainOf(resource); in != "" {
		if owner := x.owners[in]; token.Ownership != owner.Ownership || f.claim.Holder != owner.Holder {
			x.t.Fatalf("%s acted in %s under ownership %d, and %v is promised", f.claim.Holder, in, token.Ownership, owner)
		}
	}
	for _, before := range x.applied {
		if before.claim.Holder != f.claim.Holder {
			continue
		}
		if token.Epoch < before.claim.Token.Epoch {
			x.t.Fatalf("%v was applied after %v", token, before.claim.Token)
		}
		if resource == before.claim.Resource && !x.gone[resource] && token.Compare(before.claim.Token) <= 0 {
			x.t.Fatalf("%v was applied after %v", token, before.claim.Token)
		}
		// Two processes act under one grant only one after the other: the later one knows of
		// the earlier. An image of a memory is the stated limit: it has the incarnation too.
		if b := before.by; b.epoch.Grant() == f.by.epoch.Grant() && b.me != f.by.me && !slices.Contains(f.by.lineage, b.me) {
			x.t.Fatalf("%v and %v acted under one grant, and do not know of each other", b.me, f.by.me)
		}
	}
	x.applied = append(x.applied, f)
}
