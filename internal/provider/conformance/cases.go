package conformance

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/internal/platform/errorinfo"
	internalprovider "github.com/fealty-io/fealty/internal/provider"
	"github.com/fealty-io/fealty/internal/signed"
	"github.com/fealty-io/fealty/provider"
)

// The cases. One defect should break one case: what a case is not about it does in a way
// that a provider with another defect does right.
var cases = []Case{
	{Name: "first-contact", Rule: "the first attempt of a sender for a machine is accepted, whatever its sequence",
		run: func(k *check) {
			k.idleAt(k.p.at(7), k.speculative(1)[0])
		}},

	{Name: "stale-sequence",
		Rule: "an attempt that is older than another one of its process for the machine is refused",
		run: func(k *check) {
			id := k.speculative(1)[0]
			m := k.idleAt(k.p.at(10), id)
			k.refused(k.p.at(9), configure(id, "tenant"), fenced, "after sequence 10")
			k.unchanged(m)
		}},

	{Name: "equal-token", Rule: "an attempt with the token of another one is refused",
		run: func(k *check) {
			id := k.speculative(1)[0]
			m := k.idleAt(k.p.at(10), id)
			k.refused(k.p.at(10), configure(id, "tenant"), fenced, "after another request with sequence 10")
			k.unchanged(m)
		}},

	{Name: "stale-epoch", Rule: "an attempt of a process that another one came after is refused, whatever its sequence",
		run: func(k *check) {
			id := k.speculative(1)[0]
			k.idleAt(k.p.at(1), id)
			zombie := k.p
			k.p = k.live()
			k.accepted(k.p.at(1000), configure(id, "tenant"))
			m := k.until(id, provider.Configuring, provider.Configured)
			k.refused(zombie.at(2000), drain(id), fenced, "after the next epoch")
			k.unchanged(m)
		}},

	{Name: "stale-epoch-elsewhere",
		Rule: "nothing of a process is obeyed after something of its successor, on other machines too",
		run: func(k *check) {
			ids := k.speculative(2)
			zombie := k.p
			k.idleAt(zombie.at(1), ids[0])
			k.p = k.live()
			k.accepted(k.p.at(2), configure(ids[0], "tenant"))
			k.refused(zombie.at(2000), create(ids[1]), fenced, "after the next epoch acted on another machine")
			m, a := k.get(ids[1])
			if k.stateOf(m, a) != provider.Speculative {
				k.fail("machine %s is %v after a refusal: it was applied", ids[1], m)
			}
			k.until(ids[0], provider.Configuring, provider.Configured)
		}},

	{Name: "new-epoch", Rule: "a new epoch begins its sequences anew",
		run: func(k *check) {
			id := k.speculative(1)[0]
			k.idleAt(k.p.at(1000), id)
			k.p = k.live()
			k.accepted(k.p.at(1), configure(id, "tenant"))
			k.until(id, provider.Configuring, provider.Configured)
		}},

	{Name: "clone", Rule: "two processes with one epoch are told apart, and the second is refused",
		run: func(k *check) {
			id := k.speculative(1)[0]
			m := k.idleAt(k.p.at(10), id)
			k.refused(k.p.clone().at(11), configure(id, "tenant"), fenced, "of another incarnation with the same epoch")
			k.unchanged(m)
		}},

	{Name: "one-live-sender",
		Rule: "a live sender is never fenced by its own attempts for other machines, in whatever order they come",
		run:  oneLiveSender},

	{Name: "used-up-by-failure", Rule: "the mark moves before the effect, and stays moved when the attempt fails",
		run: func(k *check) {
			id := k.speculative(1)[0]
			k.refused(k.p.at(10), configure(id, "tenant"), rejected, "of a machine that is speculative")
			k.refused(k.p.at(9), create(id), fenced, "after sequence 10, which failed")
		}},

	{Name: "refusal-moves-nothing", Rule: "an attempt that is refused moves no mark",
		needs: []string{"clone"},
		run: func(k *check) {
			id := k.speculative(1)[0]
			k.idleAt(k.p.at(10), id)
			k.refused(k.p.clone().at(1000), configure(id, "tenant"), fenced,
				"of another incarnation with the same epoch")
			k.accepted(k.p.at(11), configure(id, "tenant"))
			k.until(id, provider.Configuring, provider.Configured)
		}},

	{Name: "fence-before-existence", Rule: "a zombie is told nothing of a machine, not even that there is none",
		needs: []string{"stale-epoch-elsewhere"},
		run: func(k *check) {
			id := k.speculative(1)[0]
			zombie := k.p
			k.p = k.live()
			k.idle(id)
			k.refused(zombie.at(1), drain(nobody), fenced, "of a machine that is not there, after the next epoch")
		}},

	{Name: "fence-before-idempotency",
		Rule: "a stale repetition is refused, and not answered with the operation of before",
		run: func(k *check) {
			id := k.speculative(1)[0]
			k.idleAt(k.p.at(10), id)
			if a := k.refused(k.p.at(9), create(id), fenced, "which repeats what sequence 10 did"); a.operation != "" {
				k.fail("a refusal tells operation %s", a.operation)
			}
		}},

	{Name: "duplicate",
		Rule:  "an attempt that comes twice is refused the second time, and never answered with an outcome",
		needs: []string{"equal-token", "fence-before-idempotency"},
		run: func(k *check) {
			id := k.speculative(1)[0]
			m := k.idleAt(k.p.at(10), id)
			if a := k.refused(k.p.at(10), create(id), fenced, "for the second time"); a.reason != "" &&
				a.reason != fence.ReasonDuplicate {
				k.fail("CreateMachine for the second time: %v; want the reason %s, so that a live sender does not "+
					"take itself for a zombie", a, fence.ReasonDuplicate)
			}
			k.unchanged(m)
		}},

	{Name: "malformed-token",
		Rule: "an attempt without a token, or with one that cannot be read, is refused and does nothing",
		run: func(k *check) {
			id := k.speculative(1)[0]
			good := fence.Token{Ownership: k.ownership, Epoch: k.p.life.Epoch, Sequence: 1,
				Incarnation: k.p.life.Incarnation}.String()
			for what, md := range map[string]metadata.MD{
				"without a token":                 {},
				"with an empty token":             metadata.Pairs(signed.TokenKey, ""),
				"with two tokens":                 metadata.Pairs(signed.TokenKey, good, signed.TokenKey, good),
				"with a token of another version": metadata.Pairs(signed.TokenKey, "v2"+good[2:]),
				"with sequence 0": metadata.Pairs(signed.TokenKey,
					strings.Replace(good, ":1:", ":0:", 1)),
				"with more behind the token": metadata.Pairs(signed.TokenKey, good+":"),
			} {
				a := k.sendWith(md, &fealtyv1.CreateMachineRequest{Machine: id, Domain: k.domain})
				if a.code != rejected {
					k.fail("CreateMachine %s: %v; want INVALID_ARGUMENT", what, a)
				}
			}
			if m, a := k.get(id); k.stateOf(m, a) != provider.Speculative {
				k.fail("machine %s is %s: an attempt without a token was applied", id, k.stateOf(m, a))
			}
		}},

	{Name: "repeated",
		Rule: "what is repeated with a new token, on its way or there, is the same operation, and nothing else is",
		run: func(k *check) {
			id := k.speculative(1)[0]
			same := func(r request, operation string) {
				if again := k.accepted(k.p.next(), r); again != operation {
					k.fail("%v again is operation %s; want %s", r, again, operation)
				}
			}
			created := k.accepted(k.p.next(), create(id))
			same(create(id), created)
			k.until(id, provider.Creating, provider.Idle)
			same(create(id), created)
			configured := k.accepted(k.p.next(), configure(id, "tenant"))
			if configured == created {
				k.fail("ConfigureMachine is operation %s, and so was CreateMachine", configured)
			}
			same(configure(id, "tenant"), configured)
			m := k.until(id, provider.Configuring, provider.Configured)
			same(configure(id, "tenant"), configured)
			k.unchanged(m)
			k.refused(k.p.next(), configure(id, "other"), rejected, "for another tenant than the one that has it")
			k.unchanged(m)
			drained := k.accepted(k.p.next(), drain(id))
			same(drain(id), drained)
			k.until(id, provider.Draining, provider.Idle)
			k.accepted(k.p.next(), configure(id, "other"))
			k.until(id, provider.Configuring, provider.Configured)
		}},

	{Name: "states",
		Rule: "states follow one another as the contract says, and a machine names its tenant and its last operation",
		run:  goesRound},

	{Name: "unknown-machine",
		Rule: "a machine that is not there is told to a live sender, and a name that is none is refused",
		run: func(k *check) {
			k.refused(k.p.next(), create(nobody), notFound, "of a machine that is not there")
			if _, a := k.get(nobody); a.code != notFound {
				k.fail("GetMachine of a machine that is not there: %v; want NOT_FOUND", a)
			}
			for _, name := range []string{"", "a b", "ü", strings.Repeat("a", 400)} {
				k.refused(k.p.next(), create(name), rejected, "of a name that is none")
			}
		}},

	{Name: "list", Rule: "a list has each machine once, pages keep to their limit, and what is declared makes sense",
		run: lists},

	{Name: "increments", Rule: "with a revision a list has what changed since, or says that it has to be read anew",
		run: increments},

	{Name: "marks-outlive-restart",
		Rule: "a provider that was started again refuses what it refused before", want: need{restart: true},
		run: func(k *check) {
			id := k.speculative(1)[0]
			m := k.idleAt(k.p.at(10), id)
			k.restart()
			k.refused(k.p.at(9), configure(id, "tenant"), fenced, "after sequence 10 and a restart of the provider")
			k.unchanged(m)
			zombie := k.p
			k.p = k.live()
			k.accepted(k.p.at(1), configure(id, "tenant"))
			m = k.until(id, provider.Configuring, provider.Configured)
			k.restart()
			k.refused(zombie.at(2000), drain(id), fenced, "after the next epoch and a restart of the provider")
			k.unchanged(m)
		}},

	{Name: "promise", Rule: "once an assignment is promised, nothing under an older one is obeyed, nor promised",
		want: need{key: true, domain: true},
		run: func(k *check) {
			id := k.speculative(1)[0]
			m := k.idleAt(k.p.at(1), id)
			old := k.ownership
			k.ownership++
			if a := k.promise("spiffe://"+k.target.Cluster+"/shard/somebody-else", k.ownership); a.code != codes.OK {
				k.fail("PromiseDomain for another holder: %v; want it promised", a)
			}
			k.refused(stamp{p: k.p, sequence: 2, ownership: old}, configure(id, "tenant"), fenced,
				"under an ownership that was overtaken")
			k.refused(stamp{p: k.p, sequence: 3, ownership: k.ownership}, configure(id, "tenant"), fenced,
				"under the ownership of another holder")
			k.unchanged(m)
			if a := k.promise(k.target.Holder, old); a.code != fenced {
				k.fail("PromiseDomain of an assignment that was overtaken: %v; want FAILED_PRECONDITION", a)
			}
			k.p = k.live() // the one of before has ended
			k.claim()
			k.accepted(k.p.at(1), configure(id, "tenant"))
			k.until(id, provider.Configuring, provider.Configured)
		}},

	{Name: "unpromised", Rule: "nothing is obeyed under an ownership that was not promised",
		want: need{key: true, domain: true},
		run: func(k *check) {
			id := k.speculative(1)[0]
			a := k.send(stamp{p: k.p, sequence: 1, ownership: k.ownership + 1000}, create(id))
			if a.code == codes.OK || a.code == fenced {
				k.fail("CreateMachine under an ownership that was not promised: %v; want it refused, and not as fenced",
					a)
			}
			k.p.at(1)
			k.idle(id)
		}},

	{Name: "unsigned-promise", Rule: "an assignment counts only with the authority's signature",
		want: need{key: true, domain: true},
		run: func(k *check) {
			_, strange, err := ed25519.GenerateKey(nil)
			if err != nil {
				k.fail("make a key: %v", err)
			}
			huge := fence.Assignment{Cluster: k.target.Cluster, Domain: k.domain, Holder: k.target.Holder,
				Ownership: 1 << 63, AuthorityEpoch: 1}
			text, err := huge.Sign(strange)
			if err != nil {
				k.fail("sign an assignment: %v", err)
			}
			for what, text := range map[string]string{"with a stranger's signature": text,
				"without a form": "assignment",
				"that is empty":  ""} {
				if a := k.promiseText(text); a.code != rejected {
					k.fail("PromiseDomain of an assignment %s: %v; want INVALID_ARGUMENT", what, a)
				}
			}
			k.idle(k.speculative(1)[0])
		}},
}

// nobody is a machine that no provider has.
const nobody = "fealty-conformance.no-such-machine"

// oneLiveSender sends later sequences first, to one machine after another, and then many at
// once: each machine's are in order, and those of different machines in none.
func oneLiveSender(k *check) {
	ids := k.some(mostMachines)
	k.touched = append(k.touched, ids...)
	k.idleAt(k.p.at(200), ids[0])
	k.accepted(k.p.at(100), create(ids[1]))
	k.until(ids[1], provider.Creating, provider.Idle)
	k.p = k.live()
	var wg sync.WaitGroup
	answers := make([]answer, len(ids))
	for i, id := range ids {
		wg.Go(func() {
			round := []request{create(id), configure(id, "tenant"), drain(id)}
			for _, r := range slices.Concat(round, round) {
				// Stamped, and sent a moment later, as others are.
				st := k.p.next()
				if a := k.send(st, r); a.code == fenced {
					answers[i] = a
					answers[i].text = fmt.Sprintf("%v with sequence %d: %s", r, st.sequence, a.text)
					return
				}
				time.Sleep(time.Millisecond)
			}
		})
	}
	wg.Wait()
	for _, a := range answers {
		if a.code == fenced {
			k.fail("of %d machines that one live sender acts on at once, one attempt was refused: %v", len(ids), a)
		}
	}
}

// goesRound brings a machine through all states, and tries what must not be done in each.
func goesRound(k *check) {
	id := k.speculative(1)[0]
	shows := func(m *fealtyv1.ProviderMachine, operation, tenant string) {
		if m.GetOperation() != operation || m.GetTenant() != tenant {
			k.fail("machine %s is %v with operation %q and tenant %q; want %q and %q", id, m.GetState(),
				m.GetOperation(), m.GetTenant(), operation, tenant)
		}
	}
	never := func(requests ...request) {
		for _, r := range requests {
			m, _ := k.get(id)
			k.refused(k.p.next(), r, rejected, fmt.Sprintf("of a machine that is %v", m.GetState()))
			k.unchanged(m)
		}
	}
	never(configure(id, "tenant"), drain(id))
	operation := k.accepted(k.p.next(), create(id))
	shows(k.until(id, provider.Creating, provider.Idle), operation, "")
	never(drain(id), configure(id, ""))
	operation = k.accepted(k.p.next(), configure(id, "tenant"))
	shows(k.until(id, provider.Configuring, provider.Configured), operation, "tenant")
	never(create(id), remove(id))
	operation = k.accepted(k.p.next(), drain(id))
	shows(k.until(id, provider.Draining, provider.Idle), operation, "")
	never(create(id))
	k.accepted(k.p.next(), remove(id))
	for end := time.Now().Add(k.target.Settle); ; k.pause() {
		m, a := k.get(id)
		if a.code == notFound || k.stateOf(m, a) == provider.Speculative {
			return
		}
		if state := k.stateOf(m, a); state != provider.Deleting {
			k.fail("machine %s is %s after it was deleted; want it deleting, speculative or gone", id, state)
		}
		if time.Now().After(end) {
			k.fail("machine %s is still deleting after %v", id, k.target.Settle)
		}
	}
}

func lists(k *check) {
	resp, err := k.calls.ListMachines(k.ctx, &fealtyv1.ListMachinesRequest{})
	if err != nil {
		k.fail("ListMachines: %v", err)
	}
	if n := len(resp.GetMachines()); n > internalprovider.MaxPage {
		k.fail("a page has %d machines, limit %d", n, internalprovider.MaxPage)
	}
	if len(resp.GetGone()) > 0 {
		k.fail("a list from the beginning tells of machines that are gone: %v", resp.GetGone())
	}
	seen := make(map[string]bool)
	for _, w := range resp.GetMachines() {
		if seen[w.GetId()] {
			k.fail("a page has machine %s twice", w.GetId())
		}
		seen[w.GetId()] = true
		m := provider.Machine{ID: w.GetId(), Profile: w.GetProfile(), Domain: w.GetDomain(),
			State: k.stateOf(w, answer{}), Tenant: w.GetTenant(), Operation: w.GetOperation(),
			LastError:    w.GetLastError(),
			PricePerHour: w.GetPricePerHour(), InterruptionProbability: w.GetInterruptionProbability()}
		if err := m.Validate(); err != nil {
			k.fail("%v", err)
		}
	}
	whole, err := k.list(k.ctx, 0)
	if err != nil {
		k.fail("ListMachines: %v", err)
	}
	// Large providers are not read one by one.
	limit := uint32(max(1, len(whole)/20))
	parts, err := k.list(k.ctx, limit)
	if err != nil {
		k.fail("ListMachines in pages: %v", err)
	}
	same := func(a, b *fealtyv1.ProviderMachine) bool { return a.GetId() == b.GetId() }
	if !slices.EqualFunc(whole, parts, same) {
		k.fail("in pages of %d a list has %d machines, and %d otherwise", limit, len(parts), len(whole))
	}
}

func increments(k *check) {
	ids := k.speculative(2)
	revision := func(from string) (*fealtyv1.ListMachinesResponse, error) {
		all := &fealtyv1.ListMachinesResponse{Revision: from}
		for {
			resp, err := k.calls.ListMachines(k.ctx, &fealtyv1.ListMachinesRequest{Revision: all.GetRevision()})
			if err != nil {
				return nil, err
			}
			all.Machines, all.Revision = append(all.Machines, resp.GetMachines()...), resp.GetRevision()
			if !resp.GetMore() {
				return all, nil
			}
		}
	}
	has := func(resp *fealtyv1.ListMachinesResponse, id string) bool {
		return slices.ContainsFunc(resp.GetMachines(), func(m *fealtyv1.ProviderMachine) bool {
			return m.GetId() == id
		})
	}
	before, err := revision("")
	if err != nil {
		k.fail("ListMachines: %v", err)
	}
	m := k.idle(ids[0])
	after, err := revision(before.GetRevision())
	switch {
	case err != nil:
		k.fail("ListMachines with the revision of a moment ago: %v", err)
	case !has(after, ids[0]):
		k.fail("machine %s changed since revision %q, and is not in the list of what changed", ids[0],
			before.GetRevision())
	case has(after, ids[1]):
		k.fail("machine %s did not change since revision %q, and is in the list of what changed", ids[1],
			before.GetRevision())
	case !slices.ContainsFunc(after.GetMachines(), func(w *fealtyv1.ProviderMachine) bool {
		return w.GetId() == ids[0] && w.GetState() == m.GetState()
	}):
		k.fail("machine %s is idle, and its last change in the list of what changed is another one", ids[0])
	}
	last, err := revision(after.GetRevision())
	if err != nil || has(last, ids[0]) {
		k.fail("ListMachines after all changes: %d machines, %v; want none that did not change",
			len(last.GetMachines()), err)
	}
	_, err = revision("no-such-revision")
	if status.Code(err) != codes.OutOfRange || errorinfo.Reason(err, "provider.fealty.io") != "list-anew" {
		k.fail("ListMachines with a revision that is none: %s; want OUT_OF_RANGE with the reason list-anew",
			codeName(status.Code(err)))
	}
}

// restart has the provider started again, and waits until it answers.
func (k *check) restart() {
	if err := k.target.Restart(k.ctx); err != nil {
		k.fail("the command that restarts the provider failed: %v", err)
	}
	for end := time.Now().Add(k.target.Settle); ; k.pause() {
		ctx, cancel := context.WithTimeout(k.ctx, k.target.Settle)
		_, err := k.calls.ListMachines(ctx, &fealtyv1.ListMachinesRequest{Limit: 1})
		cancel()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			k.fail("the provider does not answer after its restart: %v", err)
		}
	}
}
