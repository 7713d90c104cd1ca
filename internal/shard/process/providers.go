package process

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	providerclient "github.com/fealty-io/fealty/internal/provider/client"
	"github.com/fealty-io/fealty/internal/quota"
	"github.com/fealty-io/fealty/internal/shard"
	"github.com/fealty-io/fealty/internal/shard/scheduler"
	"github.com/fealty-io/fealty/provider"
)

// told is what the coordinators tell of quotas and providers: package internal/quota. Without
// coordinators nobody tells, and what the flags say is all.
type told func() quota.FollowerState

// flagsAlone is of a shard without coordinators.
func flagsAlone() quota.FollowerState { return quota.FollowerState{Known: true} }

// providers are those of the flags, which do not change, and those of the plan. Nothing is decided
// before the plan is known: its quotas are bounds. Where both name one, the flag counts.
type providers struct {
	log     *slog.Logger
	told    told
	flags   map[string]quota.Provider
	dial    func(quota.Provider) (*provider.Client, error)
	changed func(name string) // one is not what it was, or is gone; called without mu

	asking  sync.Mutex          // held by now
	version uint64              // of the plan that all is made of; guarded by asking
	made    bool                // all is made of a plan; guarded by asking
	dialed  map[string]*reached // guarded by asking
	clashes map[string]string   // registered addresses that do not count, by name; guarded by asking

	mu        sync.Mutex
	all       map[string]shard.Provider // replaced, and never changed; guarded by mu
	receivers map[string]DomainReceiver // as all; guarded by mu
	followed  quota.Plan                // what all is made of; guarded by mu
}

// maxFlags leaves room for all that can be registered.
const maxFlags = scheduler.MaxProviders - quota.MaxProviders

// reached is a provider that was dialed.
type reached struct {
	as     quota.Provider
	client *provider.Client
	remote *providerclient.Provider
}

// open reaches the providers of the flags.
func (p *providers) open() error {
	p.asking.Lock()
	defer p.asking.Unlock()
	if len(p.flags) > maxFlags {
		return fmt.Errorf("the shard is started with %d providers, limit %d: register the others", len(p.flags),
			maxFlags)
	}
	p.dialed = make(map[string]*reached, len(p.flags))
	for name, as := range p.flags {
		client, err := p.dial(as)
		if err != nil {
			return fmt.Errorf("provider %s: %w", name, err)
		}
		p.dialed[name] = &reached{as, client, providerclient.New(client, as.Price)}
	}
	return nil
}

// receiving are the providers as those who promise.
func (p *providers) receiving() map[string]DomainReceiver {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.receivers
}

// plan returns the plan that the providers are made of: a cycle goes by one plan.
func (p *providers) plan() quota.Plan {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.followed
}

// now returns the providers of the plan in force. The shard asks when a cycle begins: it uses none
// of before any more, and those that are gone are closed.
func (p *providers) now() map[string]shard.Provider {
	p.asking.Lock()
	defer p.asking.Unlock()
	if s := p.told(); s.Known && (!p.made || s.Version != p.version) {
		p.follow(s.Plan)
		p.made, p.version = true, s.Version
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.all
}

func (p *providers) follow(plan quota.Plan) {
	want := maps.Clone(p.flags)
	if want == nil {
		want = make(map[string]quota.Provider)
	}
	clashes := make(map[string]string)
	for _, one := range plan.Providers {
		if flag, ok := want[one.Name]; ok {
			if clashes[one.Name] = one.Address; p.clashes[one.Name] != one.Address {
				p.log.Info("a provider is registered, and the flag of this shard counts", "provider", one.Name,
					"registered", one.Address, "flag", flag.Address)
			}
			continue
		}
		want[one.Name] = one
	}
	p.clashes = clashes
	before := p.dialed
	p.dialed = make(map[string]*reached, len(want))
	for name, as := range want {
		if was := before[name]; was != nil && was.as.Same(as) {
			p.dialed[name] = was
			delete(before, name)
			continue
		}
		client, err := p.dial(as)
		if err != nil {
			p.log.Error("a provider cannot be used, and the shard goes on without it, or as it was", "provider", name,
				"address", as.Address, "err", err)
			if was := before[name]; was != nil {
				p.dialed[name] = was
				delete(before, name)
			}
			continue
		}
		p.dialed[name] = &reached{as, client, providerclient.New(client, as.Price)}
		p.log.Info("the shard acts at a provider", "provider", name, "address", as.Address)
	}
	all, receivers := make(map[string]shard.Provider), make(map[string]DomainReceiver)
	for name, r := range p.dialed {
		all[name], receivers[name] = r.remote, r.client
	}
	p.mu.Lock()
	p.all, p.receivers, p.followed = all, receivers, plan
	p.mu.Unlock()
	for name, was := range before {
		if p.dialed[name] == nil {
			p.log.Info("a provider is not registered any more: its machines are left as they are, and not counted",
				"provider", name)
		}
		if err := was.client.Close(); err != nil {
			p.log.Warn("the connection to a provider that is gone was not closed", "provider", name, "err", err)
		}
		p.changed(name)
	}
}

// close ends all connections.
func (p *providers) close() (err error) {
	p.asking.Lock()
	defer p.asking.Unlock()
	for _, r := range p.dialed {
		err = errors.Join(err, r.client.Close())
	}
	p.dialed = nil
	return err
}

// quotas returns the bounds in force: of one that a flag and the plan name, the lower one.
func quotas(flags map[scheduler.Quota]int, plan quota.Plan) map[scheduler.Quota]int {
	out := maps.Clone(flags)
	if out == nil {
		out = make(map[scheduler.Quota]int)
	}
	for _, q := range plan.Quotas {
		of := scheduler.Quota{Tenant: q.Tenant, Profile: q.Profile}
		if n, ok := out[of]; !ok || q.Machines < n {
			out[of] = q.Machines
		}
	}
	return out
}

// age is how long ago a coordinator said last that the plan is the newest, in seconds; -1 if none
// did since the start.
func (t told) age(now time.Time) float64 {
	heard := t().Heard
	if heard.IsZero() {
		return -1
	}
	return max(0, now.Sub(heard).Seconds())
}
