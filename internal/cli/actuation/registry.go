package actuation

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/cli/command"
	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/platform/humanize"
)

// Quotas are the commands below fealty quota.
func Quotas() []command.Command { return []command.Command{listQuotas(), putQuota(), deleteQuota()} }

// Providers are those below fealty provider that ask a coordinator.
func Providers() []command.Command {
	return []command.Command{listProviders(), putProvider(), deleteProvider()}
}

// ask calls the registry.
func ask(sh command.Shell, do func(fealtyv1.RegistryServiceClient) error) error {
	return sh.Ask(func(conn grpc.ClientConnInterface) error { return do(fealtyv1.NewRegistryServiceClient(conn)) })
}

// change is a command that changes something.
type change struct {
	reason string
	dry    bool
}

func (c *change) flags(f *pflag.FlagSet) {
	f.StringVar(&c.reason, "reason", "", "why, for the audit log")
	command.DryRun(f, &c.dry)
}

// done prints what was done, or would be.
func (c *change) done(sh command.Shell, data proto.Message, facts term.Facts, said string) error {
	if c.dry {
		sh.Planned(said)
	}
	show := func(p *term.Page) error { return p.Facts(facts) }
	if err := sh.Print(command.Result{Data: data, Show: show}); err != nil || c.dry {
		return err
	}
	sh.Say("%s", said)
	return nil
}

// before adds that it was so already.
func before(said string, changed bool) string {
	if changed {
		return said
	}
	return said + ", as before"
}

func quotaName(q *fealtyv1.Quota) string { return q.GetTenant() + "/" + q.GetProfile() }

// quotaArg takes TENANT/PROFILE apart.
func quotaArg(arg string) (tenant, profile string, err error) {
	tenant, profile, ok := strings.Cut(arg, "/")
	if !ok || tenant == "" || profile == "" {
		return "", "", errcode.New(errcode.BadValue, "name", "TENANT/PROFILE", "value", command.ShownArg(arg),
			"problem", "it does not say whose machines of which profile", "want", "a tenant, a slash and a profile")
	}
	return tenant, profile, nil
}

func readQuotas(ctx context.Context, sh command.Shell) (all *fealtyv1.ListQuotasResponse, names []string, err error) {
	err = ask(sh, func(s fealtyv1.RegistryServiceClient) (err error) {
		all, err = s.ListQuotas(ctx, &fealtyv1.ListQuotasRequest{})
		return err
	})
	for _, q := range all.GetQuotas() {
		names = append(names, quotaName(q))
	}
	return all, names, err
}

// completeQuotas names the quotas there are.
func completeQuotas(ctx context.Context, sh command.Shell) []string {
	_, names, err := readQuotas(ctx, sh)
	if err != nil {
		return nil // a person who presses TAB is told nothing
	}
	return names
}

func listQuotas() command.Command {
	return command.Command{
		Use: "list", Short: "list how many machines tenants may have",
		Long: `List the quotas. Each bounds how many machines of a profile a tenant has; a tenant without one for a
profile is not bounded there. Every shard keeps to all of them.`,
		Sample: "  fealty quota list", Names: true,
		Run: func(ctx context.Context, sh command.Shell, _ []string) error {
			all, names, err := readQuotas(ctx, sh)
			if err != nil {
				return err
			}
			return sh.PrintList(names, command.Result{Data: all, Show: func(p *term.Page) error {
				t := &term.Table{Columns: []term.Column{{Title: "QUOTA"}, {Title: "MACHINES", Right: true},
					{Title: "CHANGED"}, {Title: "BY", Wide: true}, {Title: "REASON", Wide: true}}}
				for _, q := range all.GetQuotas() {
					t.Add(term.Txt(quotaName(q)), term.Txt(strconv.Itoa(int(q.GetMachines()))),
						term.Txt(sh.Ago(q.GetChangedAt().AsTime())), term.Txt(q.GetChangedBy()),
						term.Txt(command.Dash(q.GetReason())))
				}
				return p.Table(t)
			}})
		},
	}
}

func quotaFacts(sh command.Shell, q *fealtyv1.Quota) (f term.Facts) {
	f.Add("quota", quotaName(q))
	f.Add("machines", strconv.Itoa(int(q.GetMachines())))
	f.Add("changed", fmt.Sprintf("%s, %s, by %s", command.When(q.GetChangedAt()), sh.Ago(q.GetChangedAt().AsTime()),
		q.GetChangedBy()))
	f.Add("reason", q.GetReason())
	return f
}

func putQuota() command.Command {
	var c change
	var yes bool
	var machines int
	var flags *pflag.FlagSet
	return command.Command{
		Use: "put TENANT/PROFILE", Short: "bound how many machines of a profile a tenant has",
		Long: `Bound how many machines of a profile a tenant has, in place of the quota of before. Shards hear of it
within seconds. From a tenant that has more, machines are taken back: at most 5% of them, or one, in a cycle. A quota that is
lowered asks before.

Each shard counts what all its providers list. Two shards that give a tenant machines in the same second may pass a
quota by what each of them gave.`,
		Sample: `  fealty quota put acme/web --machines 100
  fealty quota put acme/web --machines 0 --reason "the contract ended"`,
		Args: command.Exactly("TENANT/PROFILE"), Complete: completeQuotas,
		Flags: func(f *pflag.FlagSet) {
			flags = f
			f.IntVar(&machines, "machines", 0, "how many it may have; 0 for none")
			f.BoolVar(&yes, "yes", false, "do not ask")
			c.flags(f)
		},
		Run: func(ctx context.Context, sh command.Shell, args []string) error {
			tenant, profile, err := quotaArg(args[0])
			if err != nil {
				return err
			}
			switch {
			case !flags.Changed("machines"):
				return command.Missing("--machines", "a quota is a number of machines", "--machines N, 0 or more")
			case machines < 0 || machines > math.MaxInt32:
				return errcode.New(errcode.BadValue, "name", "--machines", "value", strconv.Itoa(machines),
					"problem", "a quota is a number of machines", "want",
					fmt.Sprintf("--machines N, from 0 to %d", math.MaxInt32))
			}
			all, _, err := readQuotas(ctx, sh)
			if err != nil {
				return err
			}
			if others, known := otherProfiles(all.GetQuotas(), profile); !known {
				there := "there is none at all"
				if len(others) > 0 {
					there = "those there are, are of " + strings.Join(others, ", ")
				}
				sh.Say("no quota is of profile %s yet: %s. Which profiles have machines, their providers say: "+
					"the log of a shard warns of a quota that none has", profile, there)
			}
			takes := lowers(all.GetQuotas(), args[0], machines)
			if takes && !c.dry {
				risk := fmt.Sprintf("machines of %s above %d are taken back, 5%% of them in a cycle", args[0], machines)
				if err := sh.Confirm(ctx, "fealty quota put", risk, yes); err != nil {
					return err
				}
			}
			return ask(sh, func(s fealtyv1.RegistryServiceClient) error {
				got, err := s.PutQuota(ctx, &fealtyv1.PutQuotaRequest{Tenant: tenant, Profile: profile,
					Machines: int32(machines), Reason: c.reason, DryRun: c.dry})
				if err != nil {
					return err
				}
				return c.done(sh, got, quotaFacts(sh, got.GetQuota()), before(fmt.Sprintf(
					"%s may have %s of profile %s", tenant, humanize.Plural(int(machines), "machine", "machines"), profile), got.GetChanged()))
			})
		},
	}
}

// otherProfiles are the profiles of quotas where none of them is profile, as with a slip in its name. known: one is.
func otherProfiles(quotas []*fealtyv1.Quota, profile string) (out []string, known bool) {
	for _, q := range quotas {
		if q.GetProfile() == profile {
			return nil, true
		}
		out = append(out, q.GetProfile())
	}
	slices.Sort(out)
	return slices.Compact(out), false
}

// lowers reports whether a quota is put below the one of before, or to nothing.
func lowers(quotas []*fealtyv1.Quota, name string, machines int) bool {
	for _, q := range quotas {
		if quotaName(q) == name {
			return machines < int(q.GetMachines())
		}
	}
	return machines == 0
}

func deleteQuota() command.Command {
	var c change
	return command.Command{
		Use: "delete TENANT/PROFILE", Short: "take a tenant's bound away",
		Long:   `Take a quota away: the tenant may have any number of machines of the profile then.`,
		Sample: "  fealty quota delete acme/web", Args: command.Exactly("TENANT/PROFILE"),
		Complete: completeQuotas, Flags: c.flags,
		Run: func(ctx context.Context, sh command.Shell, args []string) error {
			tenant, profile, err := quotaArg(args[0])
			if err != nil {
				return err
			}
			return ask(sh, func(s fealtyv1.RegistryServiceClient) error {
				got, err := s.DeleteQuota(ctx, &fealtyv1.DeleteQuotaRequest{Tenant: tenant, Profile: profile,
					Reason: c.reason, DryRun: c.dry})
				if err != nil {
					return err
				}
				return c.done(sh, got, quotaFacts(sh, got.GetQuota()),
					fmt.Sprintf("nothing bounds how many machines of profile %s %s has", profile, tenant))
			})
		},
	}
}

func readProviders(ctx context.Context, sh command.Shell) (all *fealtyv1.ListProvidersResponse, names []string,
	err error) {
	err = ask(sh, func(s fealtyv1.RegistryServiceClient) (err error) {
		all, err = s.ListProviders(ctx, &fealtyv1.ListProvidersRequest{})
		return err
	})
	for _, p := range all.GetProviders() {
		names = append(names, p.GetName())
	}
	return all, names, err
}

// completeProviders names the providers there are.
func completeProviders(ctx context.Context, sh command.Shell) []string {
	_, names, err := readProviders(ctx, sh)
	if err != nil {
		return nil // as completeQuotas
	}
	return names
}

// price is where the price of a provider's machines comes from.
func price(p *fealtyv1.RegisteredProvider) string {
	if p.PricePerHour == nil {
		return "as it says"
	}
	return strconv.FormatFloat(p.GetPricePerHour(), 'f', -1, 64) + " an hour"
}

func listProviders() command.Command {
	return command.Command{
		Use: "list", Short: "list the registered providers",
		Long: `List the providers that every shard acts at, beside those that it was started with. A shard takes a
provider for what its certificate says: the name here is the name there, as provider/NAME.`,
		Sample: "  fealty provider list", Names: true,
		Run: func(ctx context.Context, sh command.Shell, _ []string) error {
			all, names, err := readProviders(ctx, sh)
			if err != nil {
				return err
			}
			return sh.PrintList(names, command.Result{Data: all, Show: func(p *term.Page) error {
				t := &term.Table{Columns: []term.Column{{Title: "PROVIDER"}, {Title: "ADDRESS"}, {Title: "PRICE"},
					{Title: "CHANGED"}, {Title: "BY", Wide: true}, {Title: "REASON", Wide: true}}}
				for _, v := range all.GetProviders() {
					t.Add(term.Txt(v.GetName()), term.Txt(v.GetAddress()), term.Txt(price(v)),
						term.Txt(sh.Ago(v.GetChangedAt().AsTime())), term.Txt(v.GetChangedBy()),
						term.Txt(command.Dash(v.GetReason())))
				}
				return p.Table(t)
			}})
		},
	}
}

func providerFacts(sh command.Shell, v *fealtyv1.RegisteredProvider) (f term.Facts) {
	f.Add("provider", v.GetName())
	f.Add("identity", "provider/"+v.GetName())
	f.Add("address", v.GetAddress())
	f.Add("price", price(v))
	f.Add("changed", fmt.Sprintf("%s, %s, by %s", command.When(v.GetChangedAt()), sh.Ago(v.GetChangedAt().AsTime()),
		v.GetChangedBy()))
	f.Add("reason", v.GetReason())
	return f
}

func putProvider() command.Command {
	var c change
	var address string
	var cost float64
	var flags *pflag.FlagSet
	return command.Command{
		Use: "put NAME", Short: "register a provider, or change what is registered of it",
		Long: `Register a provider, or put something else in the place of what is registered of it. Every shard that is
a member hears of it within seconds, and acts at it from then on, in the domains that it owns. NAME is that in the
provider's certificate, as spiffe://CLUSTER/provider/NAME: a shard obeys no other one at that address. A shard that was
started with a provider of this name keeps to what it was started with.

A shard that starts and cannot reach a registered provider gives no machines before it did once, as it does not know
who has which.`,
		Sample: `  fealty provider put rack-1 --address 10.0.4.1:7460
  fealty provider put cloud --address cloud.example.com:7460 --price 0.25`,
		Args: command.Exactly("NAME"), Complete: completeProviders,
		Flags: func(f *pflag.FlagSet) {
			f.StringVar(&address, "address", "", "where it is, HOST:PORT")
			flags = f
			f.Float64Var(&cost, "price", 0,
				"what each of its machines costs in an hour; without it, what it says")
			c.flags(f)
		},
		Run: func(ctx context.Context, sh command.Shell, args []string) error {
			if address == "" {
				return command.Missing("--address", "a shard has to find it", "--address HOST:PORT")
			}
			req := &fealtyv1.PutProviderRequest{Name: args[0], Address: address, Reason: c.reason, DryRun: c.dry}
			if flags.Changed("price") {
				req.PricePerHour = &cost
			}
			return ask(sh, func(s fealtyv1.RegistryServiceClient) error {
				got, err := s.PutProvider(ctx, req)
				if err != nil {
					return err
				}
				return c.done(sh, got, providerFacts(sh, got.GetProvider()), before(fmt.Sprintf(
					"shards act at provider %s, at %s", args[0], address), got.GetChanged()))
			})
		},
	}
}

func deleteProvider() command.Command {
	var c change
	var yes bool
	return command.Command{
		Use: "delete NAME", Short: "take a provider out of the registry",
		Long: `Take a provider out of the registry. Its machines go on as they are; shards do not count them any more,
and give their tenants others: with a high priority at once, from those with a lower one. Take the demand back
before, or lower it with quotas.`,
		Sample: "  fealty provider delete rack-1 --yes", Args: command.Exactly("NAME"), Complete: completeProviders,
		Flags: func(f *pflag.FlagSet) {
			f.BoolVar(&yes, "yes", false, "do not ask")
			c.flags(f)
		},
		Run: func(ctx context.Context, sh command.Shell, args []string) error {
			if !c.dry {
				risk := "machines of " + args[0] + " are not counted any more: their tenants are given others, and " +
					"those of a high priority at once those of others"
				if err := sh.Confirm(ctx, "fealty provider delete", risk, yes); err != nil {
					return err
				}
			}
			return ask(sh, func(s fealtyv1.RegistryServiceClient) error {
				got, err := s.DeleteProvider(ctx, &fealtyv1.DeleteProviderRequest{Name: args[0], Reason: c.reason,
					DryRun: c.dry})
				if err != nil {
					return err
				}
				return c.done(sh, got, providerFacts(sh, got.GetProvider()),
					"shards act at provider "+args[0]+" no more")
			})
		},
	}
}
