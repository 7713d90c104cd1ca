package actuation

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/fence"
	epochs "github.com/fealty-io/fealty/fence/durable"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/node/client"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/provider"
	"github.com/fealty-io/fealty/internal/quota"
	"github.com/fealty-io/fealty/internal/shard/process"
	"github.com/fealty-io/fealty/internal/shard/scheduler"
	"github.com/fealty-io/fealty/internal/signed"
)

// shards are the flags of fealty shard.
type shards struct {
	identity  identityFlags
	signs     authorityFlags
	data      string
	listen    string
	providers []string
	grant     string
	mend      bool
	enrol     bool
	quotas    []string
	paused    bool
	grace     time.Duration
	cycle     time.Duration
	at        int
	idle      int
}

// keepAll is a --keep-idle by which no idle machine is deleted.
const keepAll = -1

// Shard is the command fealty shard.
func Shard() Command {
	f := new(shards)
	return Command{
		Use: "shard", Short: "run what turns the demand of tenants into machines", Serves: true,
		Long: `Run a shard until it gets SIGINT or SIGTERM: it takes the demand of tenants from their operators, decides
which machines are made, given, taken back and ended, and has its providers do so, once a cycle.

A wrong report cannot destroy much: at most 5% of a tenant's machines, or one, are taken back in a cycle because
they are not wanted, a report that drops almost everything is held until it comes three times, and a tenant that
said nothing since the start loses nothing. A tenant with a higher priority takes machines from those with a
lower one without such a bound: --quota is the bound there. With --actuation-paused everything is decided and
nothing done.

Its epoch is counted in its folder with every start; the first one of a name takes --enrol. With --agent it has
the identity of that member, gets a grant from a coordinator when it starts, and acts in the domains that it owns:
see fealty domain. A coordinator tells it of quotas and providers too, before it does anything: see fealty quota and
fealty provider. While no coordinator answers it goes on with what it has, until the leases of its domains are
over. Without --agent it acts under the grant in --grant, which a provider may want, and in all domains; the keys
of who signed it are read when it starts, and again on SIGHUP. A shard that a provider refused because another process
with its identity is in charge acts no more, and stays so that people can look at it (FE-P102).`,
		Sample: `  fealty shard --agent /var/lib/fealty/agent --provider local=127.0.0.1:7460 --enrol
  fealty shard --tls-cert tls.crt --tls-key tls.key --tls-ca ca.crt --provider local=127.0.0.1:7460 \
    --grant shard.grant --authority-key authority.pub --enrol
  fealty shard --tls-cert tls.crt --tls-key tls.key --tls-ca ca.crt --provider local=127.0.0.1:7460 \
    --actuation-paused`,
		Flags: func(flags *pflag.FlagSet) {
			flags.StringVar(&f.data, "data", "/var/lib/fealty/shard", "the shard's folder: its epoch, and its journal")
			flags.StringVar(&f.listen, "listen", "127.0.0.1:7470", "serve operators on this address")
			flags.StringArrayVar(&f.providers, "provider", nil,
				"a provider, as NAME=HOST:PORT with the name in its certificate; once for each. With --agent those of "+
					"fealty provider list are added")
			flags.StringArrayVar(&f.quotas, "quota", nil,
				"how many machines of a profile a tenant may have, as TENANT/PROFILE=N; once for each. With --agent "+
					"those of fealty quota list count too, and of two the lower one")
			flags.BoolVar(&f.enrol, "enrol", false, "the first start of this shard: it never had an epoch")
			f.identity.addAgent(flags)
			f.identity.addFiles(flags)
			flags.BoolVar(&f.identity.insecure, "insecure", false,
				"do without TLS, on loopback addresses alone: operators are who they say, and so are providers")
			flags.StringVar(&f.grant, "grant", "", "the signed grant to act under, in this file")
			f.signs.add(flags)
			flags.BoolVar(&f.mend, "mend-epoch", false,
				"the epoch was lost, and the grant is new: begin anew under it")
			flags.BoolVar(&f.paused, "actuation-paused", false, "decide, say what would be done, and do nothing")
			flags.DurationVar(&f.grace, "reclaim-grace", 0,
				"how long a tenant has before it loses a machine that it was told of")
			flags.DurationVar(&f.cycle, "cycle", time.Second, "the time from one decision to the next")
			flags.IntVar(&f.at, "execute-concurrency", 32, "how many machines are changed at once")
			flags.IntVar(&f.idle, "keep-idle", keepAll,
				"how many idle machines of each profile to keep while nobody waits for them; the others are deleted, at "+
					"most 5% of all idle ones, or one, in a cycle. -1 keeps all")
		},
		Run: f.run,
	}
}

func (f *shards) run(ctx context.Context, w World) error {
	providers, err := f.targets()
	if err != nil {
		return err
	}
	quotas, err := f.readQuotas()
	if err != nil {
		return err
	}
	if f.cycle <= 0 || f.grace < 0 {
		return badValue("--cycle", f.cycle.String(), "it and --reclaim-grace are times", "a duration such as 1s")
	}
	if f.idle < keepAll {
		return badValue("--keep-idle", strconv.Itoa(f.idle), "it is a number of machines", "0 or more; -1: all stay")
	}
	who, err := f.identity.open(ctx, w, identity.Shard, func(credential.Reason) {})
	if err != nil {
		return err
	}
	if who == nil {
		if f.grant != "" || f.mend {
			return badValue("--insecure", "given here", "a grant names who acts under it",
				"--agent or a certificate beside --grant")
		}
		// The name that a provider knows it by stands for nobody in a cluster.
		id, err := identity.New(provider.InsecureHolder+".invalid", identity.Shard, provider.InsecureHolder)
		if err != nil {
			return err
		}
		who = &self{id: id, follow: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }}
	}
	authority, err := f.signs.authority(w, who)
	if err != nil {
		return err
	}
	grant, err := f.readGrant(w, authority)
	if err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", f.listen)
	if err != nil {
		return errcode.Wrap(err, errcode.AddressUnusable, "address", f.listen, "flag", "--listen", "problem",
			errcode.Network(err))
	}
	defer listener.Close()
	metrics, err := w.Metrics()
	if err != nil {
		return err
	}
	if metrics != nil {
		defer metrics.Close()
	}
	watching, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() { defer close(ended); _ = who.follow(watching) }() // ends with watching
	defer func() { stop(); <-ended }()
	cfg := process.Config{Dir: w.Within(f.data), Listener: listener, Source: who.source, ID: who.id,
		Providers: providers, Grant: grant, Authority: authority,
		Mend: f.mend, Enrol: f.enrol, Quotas: quotas, Paused: f.paused, Grace: f.grace, Every: f.cycle,
		Concurrency: f.at, Policy: scheduler.Policy{Release: f.idle != keepAll, Spare: max(0, f.idle)},
		Metrics: metrics, Locks: w.Locks, Service: w.Service, Log: w.Log, Output: w.Output}
	if who.agent != nil {
		link := client.New(client.LinkConfig{Source: who.source, Addresses: who.agent.Coordinators, Log: w.Log})
		defer link.Close()
		cfg.Coordinators = link
	}
	err = process.Run(ctx, cfg)
	if fenced, ok := errors.AsType[*process.FencedError](err); ok {
		return errcode.Wrap(fenced, errcode.ShardFenced, "member", who.id.String())
	}
	if errors.Is(err, epochs.ErrMissing) {
		err = fmt.Errorf("%w; the first start of a shard that never had an epoch takes --enrol", err)
	}
	if errors.Is(err, provider.ErrNotLoopback) {
		return badValue("--insecure", "given here", err.Error(),
			"loopback addresses in --listen and --provider, or a certificate")
	}
	for _, bad := range []error{durable.ErrLocked, epochs.ErrMissing, epochs.ErrCorrupt, fence.ErrExhausted,
		epochs.ErrEnrolled, process.ErrLost, quota.ErrDamaged} {
		if errors.Is(err, bad) {
			return errcode.Wrap(err, errcode.BadSetting, "from", "--data", "key", "the folder", "problem", err.Error(),
				"page", "shard --help")
		}
	}
	if f.grant == "" && errors.Is(err, fence.ErrUntrusted) {
		return badValue("--agent", f.identity.agent, err.Error(),
			"an agent that heard of the cluster's newest keys: start again in a moment")
	}
	for _, bad := range []error{epochs.ErrSuperseded, fence.ErrUntrusted, fence.ErrMalformed} {
		if errors.Is(err, bad) {
			return errcode.Wrap(err, errcode.BadValue, "name", "--grant", "value", f.grant, "problem", err.Error(),
				"want", "the newest grant of this shard")
		}
	}
	return err
}

// targets reads where the providers are.
func (f *shards) targets() (map[string]string, error) {
	out := make(map[string]string, len(f.providers))
	for _, text := range f.providers {
		name, target, ok := strings.Cut(text, "=")
		if _, _, err := net.SplitHostPort(target); !ok || name == "" || err != nil {
			return nil, badValue("--provider", text, "it does not say which one it is, and where", "NAME=HOST:PORT")
		}
		if _, twice := out[name]; twice {
			return nil, badValue("--provider", text, "there are two of that name", "each once")
		}
		out[name] = target
	}
	if len(out) == 0 && f.identity.agent == "" {
		return nil, badValue("--provider", "missing", "a shard without one has no machines, and without --agent no "+
			"coordinator tells it of any", "NAME=HOST:PORT")
	}
	return out, nil
}

// readQuotas reads how much tenants may have.
func (f *shards) readQuotas() (map[scheduler.Quota]int, error) {
	out := make(map[scheduler.Quota]int, len(f.quotas))
	for _, text := range f.quotas {
		of, number, _ := strings.Cut(text, "=")
		tenant, profile, ok := strings.Cut(of, "/")
		n, err := strconv.Atoi(number)
		if !ok || err != nil || n < 0 || !scheduler.ValidName(tenant) || !scheduler.ValidName(profile) {
			return nil, badValue("--quota", text, "it does not say of whom and how many", "TENANT/PROFILE=N")
		}
		out[scheduler.Quota{Tenant: tenant, Profile: profile}] = n
	}
	return out, nil
}

// readGrant reads the grant, which is text on one line.
func (f *shards) readGrant(w World, authority fence.Authority) (string, error) {
	switch {
	case f.grant != "" && f.identity.agent != "":
		return "", badValue("--grant", f.grant, "the coordinators give this member its grants",
			"one of --grant and --agent")
	case f.grant == "" && f.mend && f.identity.agent == "":
		return "", badValue("--mend-epoch", "given alone", "an epoch that was lost begins anew under a new grant alone",
			"--grant FILE too")
	case f.grant == "":
		return "", nil
	case authority.Key == nil:
		return "", badValue("--authority-key", "missing", "nobody says whose grants count",
			"the public key of who signed the grant")
	}
	text, err := durable.OS().ReadFile(w.Within(f.grant), signed.MaxStatement+1)
	if err != nil {
		return "", badValue("--grant", f.grant, fmt.Sprint(err), "a file with a signed grant")
	}
	return strings.TrimSuffix(string(text), "\n"), nil
}
