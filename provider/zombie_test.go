package provider_test

import (
	"context"
	"crypto/ed25519"
	"errors"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"testing"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/fence/durable"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/provider"
)

// stage is a provider over TLS with its marks on disk, an authority, and shards whose epochs are
// on disk. A zombie is a process of shard a that others overtook.
type stage struct {
	t         *testing.T
	ids       *pkitest.Authority
	key       ed25519.PrivateKey
	authority fence.Authority
	rack      *rack
	ledger    string // folder of the marks
	stop      func()
	addr      string
	since     uint64 // the authority epoch since which statements count
	ownership map[string]uint64

	mu      sync.Mutex
	refused []error // guarded by mu
}

func newStage(t *testing.T) *stage {
	t.Helper()
	public, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	s := &stage{t: t, ids: pkitest.NewAuthority(t, "prod.example"), key: key, rack: newRack(0), ledger: t.TempDir(),
		since: 1, ownership: make(map[string]uint64)}
	s.authority = fence.Authority{Cluster: "prod.example", Key: func(id string) (ed25519.PublicKey, bool) {
		return public, id == fence.KeyID(public)
	}}
	for _, v := range verbs {
		s.rack.machines[v.name] = provider.Machine{ID: v.name, Profile: "p", Domain: "eu", State: v.from, Tenant: v.tenant}
	}
	s.rack.machines["another"] = provider.Machine{ID: "another", Profile: "p", Domain: "eu", State: provider.Speculative}
	s.serve(durable.EnrolLedger)
	t.Cleanup(func() { s.stop() })
	return s
}

func (s *stage) source(kind identity.Kind, name string) credential.Source {
	s.t.Helper()
	chain, key := s.ids.Issue(s.t, s.ids.ID(s.t, kind, name))
	m, err := credential.NewMaterial(credential.MaterialConfig{Chain: chain, Key: key, Bundle: s.ids.Bundle()})
	if err != nil {
		s.t.Fatal(err)
	}
	return credential.Static(m)
}

// serve starts the provider's process.
func (s *stage) serve(open func(string, fence.LedgerOptions) (*durable.Ledger, error)) {
	s.t.Helper()
	marks, err := open(s.ledger, fence.LedgerOptions{Cluster: "prod.example", RequireDomain: true})
	if err != nil {
		s.t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	s.addr = l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- provider.Serve(ctx, l, provider.Config{Machines: s.rack, Marks: marks, Authority: s.authority,
			Source: s.source(identity.Provider, "p"), Log: quiet(), Refused: func(err error) {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.refused = append(s.refused, err)
			}})
	}()
	s.stop = func() {
		cancel()
		if err := errors.Join(<-done, marks.Close()); err != nil {
			s.t.Error(err)
		}
	}
}

// restart ends the provider's process and starts the next one.
func (s *stage) restart(open func(string, fence.LedgerOptions) (*durable.Ledger, error)) {
	s.t.Helper()
	s.stop()
	s.serve(open)
}

func (s *stage) must(text string, err error) string {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
	return text
}

func (s *stage) holder(name string) string { return s.ids.ID(s.t, identity.Shard, name).String() }

// begin begins a life of a shard in a folder, under a grant of a number; 0 for none that is new.
func (s *stage) begin(name, dir string, grant uint32, open func(string, durable.EpochOptions) (*durable.Epoch,
	error)) *durable.Epoch {
	s.t.Helper()
	o := durable.EpochOptions{Holder: s.holder(name), Authority: s.authority}
	if grant > 0 {
		o.Grant = s.must(fence.Grant{Cluster: "prod.example", Holder: s.holder(name), Number: grant,
			AuthorityEpoch: s.since}.Sign(s.key))
	}
	epoch, err := open(dir, o)
	if err != nil {
		s.t.Fatal(err)
	}
	return epoch
}

// client is a process of a shard. It acts in the domain under the ownership that the shard had
// last when the process was made: a zombie knows of no later one.
func (s *stage) client(name string, sender *fence.Sender) *provider.Client {
	s.t.Helper()
	own := s.ownership[name]
	id := s.ids.ID(s.t, identity.Provider, "p")
	c, err := provider.Dial(provider.ClientConfig{Target: s.addr, Sender: sender, Source: s.source(identity.Shard, name),
		Expect: credential.ExactID(id), Ownership: func(string) uint64 { return own }})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	return c
}

// assignment gives the domain to a shard, and returns the statement.
func (s *stage) assignment(name string, ownership uint64) string {
	s.t.Helper()
	s.ownership[name] = ownership
	return s.must(fence.Assignment{Cluster: "prod.example", Domain: "eu", Holder: s.holder(name), Ownership: ownership,
		AuthorityEpoch: s.since}.Sign(s.key))
}

// states are what the machines are.
func (s *stage) states() map[string]provider.State {
	s.rack.mu.Lock()
	defer s.rack.mu.Unlock()
	out := make(map[string]provider.State)
	for id, m := range s.rack.machines {
		out[id] = m.State
	}
	return out
}

// reasons are why the fence refused since the last call.
func (s *stage) reasons() (out []fence.Reason) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, err := range s.refused {
		if r, ok := errors.AsType[*fence.RefusedError](err); ok {
			out = append(out, r.Reason)
		} else if p, ok := errors.AsType[*fence.PromiseError](err); ok {
			out = append(out, p.Reason)
		}
	}
	s.refused = nil
	return out
}

// verbs are the fenced methods, each with a machine on which it would have an effect.
var verbs = []struct {
	name, method string
	from         provider.State
	tenant       string
	act          func(*provider.Client, context.Context, provider.Order) (string, error)
}{
	{"create", "CreateMachine", provider.Speculative, "", (*provider.Client).Create},
	{"configure", "ConfigureMachine", provider.Idle, "", (*provider.Client).Configure},
	{"drain", "DrainMachine", provider.Configured, "red", (*provider.Client).Drain},
	{"delete", "DeleteMachine", provider.Idle, "", (*provider.Client).Delete},
}

// causes are how a process becomes a zombie. Each returns the zombie's sender, and that of whoever
// is in charge of shard a.
var causes = []struct {
	name string
	// overtaken has the process of before be overtaken.
	overtaken func(s *stage, dir string, before *durable.Epoch) (zombie, live *fence.Sender)
	receiver  func(s *stage, live func()) // what becomes of the provider around the first act of live
	alarm     bool                        // somebody has to be told of a clone
}{
	{"a restart, and attempts of the life before it come late", restarted, nil, false},
	{"a copy of its folder is started elsewhere", copied, nil, true},
	{"an older copy of its folder is started after the next life acted", copiedBefore, nil, false},
	{"an image of it is restored, and the next grant was given since", granted, nil, false},
	{"it stands still, and its successor has the next grant", granted, nil, false},
	{"its successor acted, and the provider was started again", restarted, func(s *stage, live func()) {
		live()
		s.restart(durable.OpenLedger)
	}, false},
	{"the provider was put back from before its successor acted", granted, func(s *stage, live func()) {
		old := s.t.TempDir()
		s.stop()
		if err := os.CopyFS(old, os.DirFS(s.ledger)); err != nil {
			s.t.Fatal(err)
		}
		s.serve(durable.OpenLedger)
		live()
		s.stop()
		s.ledger, s.since = old, s.since+1
		s.serve(func(dir string, o fence.LedgerOptions) (*durable.Ledger, error) {
			return durable.MendLedger(dir, o, s.since)
		})
	}, false},
}

func restarted(s *stage, dir string, before *durable.Epoch) (zombie, live *fence.Sender) {
	if err := before.Close(); err != nil {
		s.t.Fatal(err)
	}
	return before.Sender(), s.begin("a", dir, 0, durable.OpenEpoch).Sender()
}

func granted(s *stage, dir string, before *durable.Epoch) (zombie, live *fence.Sender) {
	if err := before.Close(); err != nil {
		s.t.Fatal(err)
	}
	return before.Sender(), s.begin("a", dir, 2, durable.OpenEpoch).Sender()
}

// copied starts both folders once: two processes count to the same life.
func copied(s *stage, dir string, before *durable.Epoch) (zombie, live *fence.Sender) {
	elsewhere := s.t.TempDir()
	if err := errors.Join(before.Close(), os.CopyFS(elsewhere, os.DirFS(dir))); err != nil {
		s.t.Fatal(err)
	}
	live = s.begin("a", dir, 0, durable.OpenEpoch).Sender()
	return s.begin("a", elsewhere, 0, durable.OpenEpoch).Sender(), live
}

// copiedBefore has the live one be a life ahead of the copy.
func copiedBefore(s *stage, dir string, before *durable.Epoch) (zombie, live *fence.Sender) {
	elsewhere := s.t.TempDir()
	if err := errors.Join(before.Close(), os.CopyFS(elsewhere, os.DirFS(dir))); err != nil {
		s.t.Fatal(err)
	}
	next := s.begin("a", dir, 0, durable.OpenEpoch)
	if err := next.Close(); err != nil {
		s.t.Fatal(err)
	}
	live = s.begin("a", dir, 0, durable.OpenEpoch).Sender()
	return s.begin("a", elsewhere, 0, durable.OpenEpoch).Sender(), live
}

// For all that makes a zombie, and all that it tries, with and without a move of its domain to
// another shard: it changes nothing, it hears that it is not in charge, and the provider tells of
// it; of a clone there is an alarm. It never acted on the machine that it tries, so that no mark of
// that pair helps.
func TestZombies(t *testing.T) {
	t.Parallel()
	for _, cause := range causes {
		for _, verb := range verbs {
			for _, moves := range []bool{false, true} {
				name := cause.name + ", " + verb.name
				if moves {
					name += ", its domain moved"
				}
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					s := newStage(t)
					dir := t.TempDir()
					ctx := t.Context()
					epoch := s.begin("a", dir, 1, durable.EnrolEpoch)
					old := s.assignment("a", 1)
					first := s.client("a", epoch.Sender())
					if err := first.Promise(ctx, old); err != nil {
						t.Fatal(err)
					}
					if _, err := first.Create(ctx, provider.Order{Machine: "another", Domain: "eu"}); err != nil {
						t.Fatal(err)
					}
					dead, next := cause.overtaken(s, dir, epoch)
					owner, acts := "a", next
					if moves {
						owner = "b"
						acts = s.begin("b", t.TempDir(), 1, durable.EnrolEpoch).Sender()
					}
					live := func() {
						t.Helper()
						c := s.client(owner, acts)
						if moves {
							text := s.assignment("b", 2)
							c = s.client(owner, acts)
							if err := c.Promise(ctx, text); err != nil {
								t.Fatal(err)
							}
						}
						if _, err := c.Delete(ctx, provider.Order{Machine: "another", Domain: "eu"}); err != nil {
							t.Fatal(err)
						}
					}
					if cause.receiver == nil {
						live()
					} else {
						cause.receiver(s, live)
					}
					before := s.states()
					s.reasons()
					s.ownership["a"] = 1
					zombie := s.client("a", dead)
					_, err := verb.act(zombie, ctx, provider.Order{Machine: verb.name, Domain: "eu", Tenant: "blue"})
					reasons := s.reasons()
					if err == nil || len(reasons) == 0 {
						t.Fatalf("it was obeyed: %v; the provider tells of %v", err, reasons)
					}
					if after := s.states(); !maps.Equal(before, after) {
						t.Errorf("it changed machines from %v to %v", before, after)
					}
					// A receiver that was mended asks for a new grant, or a new promise; nobody else may
					// take a zombie for somebody who only lacks one.
					mended := s.since > 1
					if !errors.Is(err, provider.ErrFenced) && !mended {
						t.Errorf("it hears %v", err)
					}
					alarm := slices.ContainsFunc(reasons, fence.Reason.Alarm)
					if cause.alarm && !moves && !alarm {
						t.Errorf("nobody is told of a clone: %v", reasons)
					}
					// Its old assignment does not bring the domain back.
					if moves {
						if err := zombie.Promise(ctx, old); err == nil {
							t.Error("it promised itself the domain that moved")
						}
						if after := s.states(); !maps.Equal(before, after) {
							t.Errorf("its promise changed machines from %v to %v", before, after)
						}
					}
					if mended {
						return // those in charge need new statements too, which they get
					}
					// Nobody in charge was hurt by it.
					if _, err := s.client(owner, acts).Create(ctx, provider.Order{Machine: "another", Domain: "eu"}); err != nil {
						t.Errorf("whoever is in charge: %v", err)
					}
				})
			}
		}
	}
}

// An image of a process's memory is restored beside it: both are one life of one incarnation, and
// nothing on any disk tells them apart. While no coordinator is in reach that is the stated limit:
// the one that comes first is obeyed, and the other raises the alarm with its first request. With
// one in reach the next grant ends both, and once the domain moved neither changes anything.
func TestImages(t *testing.T) {
	t.Parallel()
	for _, verb := range verbs {
		for _, reach := range []string{"nobody", "a coordinator", "a coordinator, its domain moved"} {
			t.Run(verb.name+", "+reach, func(t *testing.T) {
				t.Parallel()
				s := newStage(t)
				ctx, dir := t.Context(), t.TempDir()
				epoch := s.begin("a", dir, 1, durable.EnrolEpoch)
				old := s.assignment("a", 1)
				image, err := fence.NewSender(epoch.Sender().Life()) // as it was when the image was taken
				if err != nil {
					t.Fatal(err)
				}
				live, restored := s.client("a", epoch.Sender()), s.client("a", image)
				if err := live.Promise(ctx, old); err != nil {
					t.Fatal(err)
				}
				order := provider.Order{Machine: verb.name, Domain: "eu", Tenant: "blue"}
				if reach == "nobody" {
					if _, err := verb.act(restored, ctx, order); err != nil {
						t.Fatalf("the stated limit: the image comes first, and is refused: %v", err)
					}
					before := s.states()
					s.reasons()
					other := order // another request under the same number
					other.Tenant, other.Priority = "green", 9
					_, err := live.Configure(ctx, other)
					if reasons := s.reasons(); err == nil || !slices.ContainsFunc(reasons, fence.Reason.Alarm) {
						t.Errorf("the process beside its image: %v; the provider tells of %v, and of no clone", err, reasons)
					}
					if after := s.states(); !maps.Equal(before, after) {
						t.Errorf("it changed machines from %v to %v", before, after)
					}
					return
				}
				// Whichever of the two asks gets the next grant, and is another life then.
				if err := epoch.Close(); err != nil {
					t.Fatal(err)
				}
				next := s.client("a", s.begin("a", dir, 2, durable.OpenEpoch).Sender())
				if reach != "a coordinator" {
					acts := s.begin("b", t.TempDir(), 1, durable.EnrolEpoch).Sender()
					text := s.assignment("b", 2)
					next = s.client("b", acts)
					if err := next.Promise(ctx, text); err != nil {
						t.Fatal(err)
					}
				}
				if _, err := next.Create(ctx, provider.Order{Machine: "another", Domain: "eu"}); err != nil {
					t.Fatal(err)
				}
				before := s.states()
				for name, c := range map[string]*provider.Client{"the image": restored, "the process of before": live} {
					s.reasons()
					if _, err := verb.act(c, ctx, order); !errors.Is(err, provider.ErrFenced) || len(s.reasons()) == 0 {
						t.Errorf("%s: %v", name, err)
					}
				}
				if after := s.states(); !maps.Equal(before, after) {
					t.Errorf("they changed machines from %v to %v", before, after)
				}
				if _, err := next.Delete(ctx, provider.Order{Machine: "another", Domain: "eu"}); err != nil {
					t.Errorf("whoever is in charge: %v", err)
				}
			})
		}
	}
}

// The fenced methods of the contract are those that the table of zombies has.
func TestZombiesTryEverything(t *testing.T) {
	t.Parallel()
	tried := map[string]bool{"PromiseDomain": true, "GetMachine": false, "ListMachines": false}
	for _, v := range verbs {
		tried[v.method] = true
	}
	for _, m := range fealtyv1.ProviderService_ServiceDesc.Methods {
		if _, known := tried[m.MethodName]; !known {
			t.Errorf("no zombie tries %s", m.MethodName)
		}
		delete(tried, m.MethodName)
	}
	if len(tried) > 0 {
		t.Errorf("the contract has no %v", slices.Sorted(maps.Keys(tried)))
	}
}
