package conformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/internal/platform/errorinfo"
	internalprovider "github.com/fealty-io/fealty/internal/provider"
	"github.com/fealty-io/fealty/internal/signed"
	"github.com/fealty-io/fealty/provider"
)

// The codes of the contract.
const (
	fenced   = codes.FailedPrecondition
	notFound = codes.NotFound
	rejected = codes.InvalidArgument
)

// suite is what the cases share.
type suite struct {
	target Target
	calls  fealtyv1.ProviderServiceClient
	domain string // that of the machines that the cases act on; "": none

	grant     string // the signed statement; "" without a key
	number    uint32 // of the grant
	lives     uint32
	before    fence.Lineage
	ownership uint64
}

// begin looks for machines, and begins a grant.
func (s *suite) begin(ctx context.Context) error {
	all, err := s.list(ctx, 0)
	if err != nil {
		return fmt.Errorf("conformance: list the machines: %w", err)
	}
	in := make(map[string]int)
	for _, m := range all {
		if m.GetState() == fealtyv1.MachineState_MACHINE_STATE_SPECULATIVE {
			in[m.GetDomain()]++
		}
	}
	best := ""
	found := false
	for _, domain := range slices.SortedFunc(keys(in), func(a, b string) int {
		return cmp.Or(cmp.Compare(in[b], in[a]),
			cmp.Compare(a, b))
	}) {
		// One in a domain is acted on only by who can promise it.
		if in[domain] >= LeastMachines && (domain == "" || s.target.Key != nil) && (!found || best == "") {
			best, found = domain, true
		}
	}
	if !found {
		for domain, n := range in {
			if domain != "" && n >= LeastMachines {
				return fmt.Errorf("conformance: %d machines of domain %s: %w", n, domain, ErrDomains)
			}
		}
		return fmt.Errorf("conformance: it has no %d speculative machines in one domain, or in none: %w", LeastMachines,
			ErrTooFew)
	}
	s.domain = best
	// Numbers that grow with time: those of an earlier run are below them. They count for this
	// identity, and for domains that the cases act in.
	s.number, s.ownership = uint32(time.Now().Unix()), uint64(time.Now().UnixNano())
	if s.target.Key == nil {
		return nil
	}
	s.grant, err = fence.Grant{Cluster: s.target.Cluster, Holder: s.target.Holder, Number: s.number,
		AuthorityEpoch: 1}.Sign(s.target.Key)
	return err
}

func keys(m map[string]int) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// process is one life of the shard that the cases act as.
type process struct {
	life fence.Life

	mu   sync.Mutex
	last uint64 // the highest sequence that was used; guarded by mu
}

// live begins the next life.
func (s *suite) live() *process {
	s.lives++
	p := &process{life: fence.Life{Epoch: fence.NewEpoch(s.number, s.lives), Incarnation: fence.NewIncarnation(),
		Lineage: slices.Clone(s.before), Grant: s.grant}}
	s.before = append(s.before, p.life.Incarnation)
	s.before = s.before[max(0, len(s.before)-signed.MaxLineage):]
	return p
}

// stamp is what an attempt is sent with.
type stamp struct {
	p         *process
	sequence  uint64
	ownership uint64 // 0: that of the suite, if there are domains
}

// at returns the stamp of a sequence.
func (p *process) at(sequence uint64) stamp {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = max(p.last, sequence)
	return stamp{p: p, sequence: sequence}
}

// next returns the stamp after all that there were.
func (p *process) next() stamp {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last++
	return stamp{p: p, sequence: p.last}
}

// clone returns a process with the same epoch that is another one.
func (p *process) clone() *process {
	life := p.life
	life.Incarnation = fence.NewIncarnation()
	return &process{life: life}
}

// request is one mutation.
type request struct {
	method  string
	machine string
	tenant  string
}

func create(machine string) request { return request{method: "CreateMachine", machine: machine} }
func drain(machine string) request  { return request{method: "DrainMachine", machine: machine} }
func remove(machine string) request { return request{method: "DeleteMachine", machine: machine} }
func configure(machine, tenant string) request {
	return request{method: "ConfigureMachine", machine: machine, tenant: tenant}
}

func (r request) String() string { return r.method + " of " + r.machine }

// answer is what came back.
type answer struct {
	operation string
	code      codes.Code
	reason    fence.Reason
	text      string
}

func (a answer) String() string {
	switch {
	case a.code == codes.OK:
		return "accepted as operation " + a.operation
	case a.reason != "":
		return fmt.Sprintf("%s with reason %s (%s)", codeName(a.code), a.reason, a.text)
	}
	return fmt.Sprintf("%s (%s)", codeName(a.code), a.text)
}

func codeName(c codes.Code) string {
	names := map[codes.Code]string{codes.OK: "OK", fenced: "FAILED_PRECONDITION", notFound: "NOT_FOUND",
		rejected: "INVALID_ARGUMENT", codes.OutOfRange: "OUT_OF_RANGE"}
	return cmp.Or(names[c], c.String())
}

func answerOf(err error) answer {
	st := status.Convert(err)
	return answer{code: st.Code(), text: st.Message(), reason: fence.Reason(errorinfo.Reason(err, signed.ErrorDomain))}
}

// send makes one attempt. One that is not reached is made again: it was not answered.
func (k *check) send(st stamp, r request) answer {
	var message proto.Message
	switch r.method {
	case "CreateMachine":
		message = &fealtyv1.CreateMachineRequest{Machine: r.machine, Domain: k.domain}
	case "ConfigureMachine":
		message = &fealtyv1.ConfigureMachineRequest{Machine: r.machine, Domain: k.domain, Tenant: r.tenant}
	case "DrainMachine":
		message = &fealtyv1.DrainMachineRequest{Machine: r.machine, Domain: k.domain}
	case "DeleteMachine":
		message = &fealtyv1.DeleteMachineRequest{Machine: r.machine, Domain: k.domain}
	}
	bytes, err := proto.MarshalOptions{Deterministic: true}.Marshal(message)
	if err != nil {
		k.fail("%v: %v", r, err)
	}
	ownership := st.ownership
	if ownership == 0 && k.domain != "" {
		ownership = k.ownership
	}
	token := fence.Token{Ownership: ownership, Epoch: st.p.life.Epoch, Sequence: st.sequence,
		Incarnation: st.p.life.Incarnation, Digest: fence.DigestOf(append([]byte(r.method+"\n"), bytes...))}
	pairs := []string{signed.TokenKey, token.String()}
	if len(st.p.life.Lineage) > 0 {
		pairs = append(pairs, signed.LineageKey, st.p.life.Lineage.String())
	}
	if st.p.life.Grant != "" {
		pairs = append(pairs, signed.GrantKey, st.p.life.Grant)
	}
	return k.sendWith(metadata.Pairs(pairs...), message)
}

func (k *check) sendWith(md metadata.MD, message proto.Message) answer {
	ctx, cancel := context.WithTimeout(metadata.NewOutgoingContext(k.ctx, md), k.target.Settle)
	defer cancel()
	var resp interface{ GetOperation() string }
	var err error
	switch m := message.(type) {
	case *fealtyv1.CreateMachineRequest:
		resp, err = k.calls.CreateMachine(ctx, m)
	case *fealtyv1.ConfigureMachineRequest:
		resp, err = k.calls.ConfigureMachine(ctx, m)
	case *fealtyv1.DrainMachineRequest:
		resp, err = k.calls.DrainMachine(ctx, m)
	case *fealtyv1.DeleteMachineRequest:
		resp, err = k.calls.DeleteMachine(ctx, m)
	}
	if err != nil {
		return answerOf(err)
	}
	return answer{operation: resp.GetOperation()}
}

// accepted makes an attempt that has to be accepted, and returns its operation.
func (k *check) accepted(st stamp, r request) string {
	a := k.send(st, r)
	switch {
	case a.code != codes.OK:
		k.fail("%v with sequence %d of epoch %v: %v; want it accepted", r, st.sequence, st.p.life.Epoch, a)
	case a.operation == "" || len(a.operation) > internalprovider.MaxOperation:
		k.fail("%v: accepted as operation %.200q; want a name of 1 to %d bytes", r, a.operation,
			internalprovider.MaxOperation)
	}
	return a.operation
}

// refused makes an attempt that has to be refused with a code.
func (k *check) refused(st stamp, r request, want codes.Code, why string) answer {
	a := k.send(st, r)
	if a.code != want {
		k.fail("%v with sequence %d of epoch %v, %s: %v; want %s", r, st.sequence, st.p.life.Epoch, why, a,
			codeName(want))
	}
	return a
}

// get returns a machine.
func (k *check) get(id string) (*fealtyv1.ProviderMachine, answer) {
	ctx, cancel := context.WithTimeout(k.ctx, k.target.Settle)
	defer cancel()
	resp, err := k.calls.GetMachine(ctx, &fealtyv1.GetMachineRequest{Machine: id})
	if err != nil {
		return nil, answerOf(err)
	}
	return resp.GetMachine(), answer{}
}

func (k *check) stateOf(m *fealtyv1.ProviderMachine, a answer) provider.State {
	if a.code != codes.OK {
		k.fail("GetMachine: %v; want the machine", a)
	}
	for state, wire := range states {
		if wire == m.GetState() {
			return state
		}
	}
	k.fail("GetMachine: machine %s is in state %v, which does not exist", m.GetId(), m.GetState())
	return ""
}

var states = map[provider.State]fealtyv1.MachineState{
	provider.Speculative: fealtyv1.MachineState_MACHINE_STATE_SPECULATIVE,
	provider.Creating:    fealtyv1.MachineState_MACHINE_STATE_CREATING,
	provider.Idle:        fealtyv1.MachineState_MACHINE_STATE_IDLE,
	provider.Configuring: fealtyv1.MachineState_MACHINE_STATE_CONFIGURING,
	provider.Configured:  fealtyv1.MachineState_MACHINE_STATE_CONFIGURED,
	provider.Draining:    fealtyv1.MachineState_MACHINE_STATE_DRAINING,
	provider.Deleting:    fealtyv1.MachineState_MACHINE_STATE_DELETING,
	provider.Failed:      fealtyv1.MachineState_MACHINE_STATE_FAILED,
}

// pause is between two looks at a machine.
func (k *check) pause() {
	select {
	case <-time.After(5 * time.Millisecond):
	case <-k.ctx.Done():
		k.fail("the case took too long: %v", k.ctx.Err())
	}
}

// until waits until a machine came through states to the last of them, and into no other one,
// and returns it.
func (k *check) until(id string, through ...provider.State) *fealtyv1.ProviderMachine {
	want := through[len(through)-1]
	at := 0
	for end := time.Now().Add(k.target.Settle); ; k.pause() {
		m, a := k.get(id)
		state := k.stateOf(m, a)
		now := slices.Index(through[at:], state)
		switch {
		case state == provider.Failed && want != state:
			k.fail("machine %s failed: %s; want it %s", id, m.GetLastError(), want)
		case now < 0:
			k.fail("machine %s is %s on its way through %v, after %s", id, state, through, through[at])
		case state == want:
			return m
		case time.Now().After(end):
			k.fail("machine %s is still %s after %v; want it %s", id, state, k.target.Settle, want)
		}
		at += now
	}
}

// unchanged ends the case if a machine is not as it was: what was refused was applied.
func (k *check) unchanged(before *fealtyv1.ProviderMachine) {
	m, a := k.get(before.GetId())
	if k.stateOf(m, a); !proto.Equal(m, before) {
		k.fail("machine %s is %v after a refusal, and was %v: it was applied", before.GetId(), m, before)
	}
}

// idle makes a machine, with the next sequence.
func (k *check) idle(id string) *fealtyv1.ProviderMachine { return k.idleAt(k.p.next(), id) }

func (k *check) idleAt(st stamp, id string) *fealtyv1.ProviderMachine {
	k.accepted(st, create(id))
	return k.until(id, provider.Creating, provider.Idle)
}

// promise shows an assignment of the domain to a holder.
func (k *check) promise(holder string, ownership uint64) answer {
	text, err := fence.Assignment{Cluster: k.target.Cluster, Domain: k.domain, Holder: holder, Ownership: ownership,
		AuthorityEpoch: 1}.Sign(k.target.Key)
	if err != nil {
		k.fail("sign an assignment: %v", err)
	}
	return k.promiseText(text)
}

func (k *check) promiseText(text string) answer {
	ctx, cancel := context.WithTimeout(k.ctx, k.target.Settle)
	defer cancel()
	if _, err := k.calls.PromiseDomain(ctx, &fealtyv1.PromiseDomainRequest{Assignment: text}); err != nil {
		return answerOf(err)
	}
	return answer{}
}

// claim takes the domain of the machines, anew.
func (k *check) claim() {
	if k.domain == "" {
		return
	}
	k.ownership++
	if a := k.promise(k.target.Holder, k.ownership); a.code != codes.OK {
		k.fail("PromiseDomain of a newer assignment: %v; want it promised", a)
	}
}

// list reads all machines, in pages of limit.
func (s *suite) list(ctx context.Context, limit uint32) ([]*fealtyv1.ProviderMachine, error) {
	ctx, cancel := context.WithTimeout(ctx, s.target.Settle)
	defer cancel()
	all := make(map[string]*fealtyv1.ProviderMachine)
	revision := ""
	for range 10 * internalprovider.MaxMachines {
		resp, err := s.calls.ListMachines(ctx, &fealtyv1.ListMachinesRequest{Revision: revision, Limit: limit})
		if err != nil {
			return nil, err
		}
		if n := len(resp.GetMachines()) + len(resp.GetGone()); limit > 0 && n > int(limit) {
			return nil, fmt.Errorf("a page of limit %d has %d entries", limit, n)
		}
		for _, id := range resp.GetGone() {
			delete(all, id)
		}
		for _, m := range resp.GetMachines() {
			all[m.GetId()] = m
		}
		revision = resp.GetRevision()
		if !resp.GetMore() {
			var out []*fealtyv1.ProviderMachine
			for _, m := range all {
				out = append(out, m)
			}
			slices.SortFunc(out, func(a, b *fealtyv1.ProviderMachine) int { return cmp.Compare(a.GetId(), b.GetId()) })
			return out, nil
		}
	}
	return nil, errors.New("its pages have no end")
}
