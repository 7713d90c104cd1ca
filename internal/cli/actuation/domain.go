package actuation

import (
	"context"
	"fmt"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/cli/command"
	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/errcode"
)

// DomainCommands are those below fealty domain.
func DomainCommands() []command.Command {
	return []command.Command{list(), show(), assign(), unassign()}
}

func list() command.Command {
	var member string
	return command.Command{
		Use: "list", Short: "list the domains with their owners",
		Long: `List the domains. OWNERSHIP is the authority epoch and how many owners there were in it: it grows with
every change of the owner, and receivers of fenced requests obey nothing below the one that they promised.`,
		Sample: `  fealty domain list
  fealty domain list --member shard/eu-1 -o name`,
		Names: true,
		Flags: func(f *pflag.FlagSet) {
			f.StringVar(&member, "member", "", "only what this member owns, or is to own, KIND/NAME")
		},
		Run: func(ctx context.Context, sh command.Shell, _ []string) error {
			if member != "" {
				if _, _, err := sh.Member(member); err != nil {
					return err
				}
			}
			all, err := read(ctx, sh, member)
			if err != nil {
				return err
			}
			command.SayAltered(sh.Say, all.GetAltered())
			return sh.PrintList(names(all), command.Result{Data: all, Show: func(p *term.Page) error {
				return p.Table(table(sh, all.GetDomains()))
			}})
		},
	}
}

// read reads all pages.
func read(ctx context.Context, sh command.Shell, member string) (*fealtyv1.ListDomainsResponse, error) {
	all := &fealtyv1.ListDomainsResponse{}
	err := sh.Ask(func(conn grpc.ClientConnInterface) error {
		domains := fealtyv1.NewDomainServiceClient(conn)
		for after := ""; ; {
			resp, err := domains.ListDomains(ctx, &fealtyv1.ListDomainsRequest{PageSize: command.PageSize, After: after,
				Member: member})
			if err != nil {
				return err
			}
			all.Domains = append(all.Domains, resp.GetDomains()...)
			all.Altered = append(all.Altered, resp.GetAltered()...)
			if !resp.GetMore() || len(resp.GetDomains()) == 0 {
				return nil
			}
			after = resp.GetDomains()[len(resp.GetDomains())-1].GetName()
		}
	})
	return all, err
}

func names(all *fealtyv1.ListDomainsResponse) (out []string) {
	for _, d := range all.GetDomains() {
		out = append(out, d.GetName())
	}
	return out
}

// complete names the domains there are.
func complete(ctx context.Context, sh command.Shell) []string {
	all, err := read(ctx, sh, "")
	if err != nil {
		return nil // a person who presses TAB is told nothing
	}
	return names(all)
}

func table(sh command.Shell, domains []*fealtyv1.Domain) *term.Table {
	t := &term.Table{Columns: []term.Column{{Title: "DOMAIN"}, {Title: "OWNER"}, {Title: "OWNERSHIP", Right: true},
		{Title: "NEXT"}, {Title: "OWNER IS"}, {Title: "CHANGED"}, {Title: "BY", Wide: true}, {Title: "REASON", Wide: true}}}
	for _, d := range domains {
		t.Add(term.Txt(d.GetName()), term.Txt(command.Dash(d.GetOwner())), term.Txt(ownership(d)), next(d), problem(d),
			term.Txt(sh.Ago(d.GetChangedAt().AsTime())), term.Txt(d.GetChangedBy()),
			term.Txt(command.Dash(d.GetReason())))
	}
	return t
}

// ownership is the ownership of a domain as people read it.
func ownership(d *fealtyv1.Domain) string {
	return fmt.Sprintf("%d.%d", d.GetOwnership()>>32, d.GetOwnership()&(1<<32-1))
}

// problem says what is wrong with the owner of a domain.
func problem(d *fealtyv1.Domain) term.Cell {
	if d.GetOwnerProblem() == "" {
		return term.Txt("-")
	}
	return term.Painted(term.Amber, "▲ "+d.GetOwnerProblem())
}

// next says to whom a domain goes.
func next(d *fealtyv1.Domain) term.Cell {
	if !d.GetMoving() {
		return term.Txt("-")
	}
	return term.Painted(term.Amber, "◐ "+nobody(d.GetNext()))
}

func nobody(member string) string {
	if member == "" {
		return "nobody"
	}
	return member
}

func result(sh command.Shell, data proto.Message, d *fealtyv1.Domain) command.Result {
	return command.Result{Data: data, Show: func(p *term.Page) error {
		var f term.Facts
		f.Add("domain", d.GetName())
		f.Add("owner", nobody(d.GetOwner()))
		f.Add("ownership", ownership(d))
		if problem := d.GetOwnerProblem(); problem != "" {
			f.Paint("owner is", term.Amber, "not to be counted on: "+problem)
		}
		if d.GetMoving() {
			f.Paint("moving", term.Amber, "to "+nobody(d.GetNext())+", when its owner let go"+command.AtTheLatest(d))
		}
		f.Add("changed", fmt.Sprintf("%s, %s, by %s", command.When(d.GetChangedAt()), sh.Ago(d.GetChangedAt().AsTime()),
			d.GetChangedBy()))
		f.Add("reason", d.GetReason())
		return p.Facts(f)
	}}
}

func show() command.Command {
	return command.Command{
		Use: "show DOMAIN", Short: "show a domain", Sample: "  fealty domain show eu",
		Args: command.Exactly("DOMAIN"), Complete: complete,
		Run: func(ctx context.Context, sh command.Shell, args []string) error {
			return sh.Ask(func(conn grpc.ClientConnInterface) error {
				resp, err := fealtyv1.NewDomainServiceClient(conn).GetDomain(ctx,
					&fealtyv1.GetDomainRequest{Name: args[0]})
				if err != nil {
					return err
				}
				return sh.Print(result(sh, resp, resp.GetDomain()))
			})
		},
	}
}

// answer is that of a call that changes who owns a domain.
type answer interface {
	proto.Message
	GetDomain() *fealtyv1.Domain
	GetChanged() bool
	GetPassedOver() string
}

// changeDomain is a command that changes who owns a domain.
type changeDomain struct {
	reason     string
	force, dry bool
	yes        bool
}

func (c *changeDomain) flags(f *pflag.FlagSet) {
	f.StringVar(&c.reason, "reason", "", "why, for the audit log")
	f.BoolVar(&c.force, "force", false, "do not wait for the owner to let go; takes --reason")
	f.BoolVar(&c.yes, "yes", false, "do not ask")
	command.DryRun(f, &c.dry)
}

func (c *changeDomain) run(ctx context.Context, sh command.Shell, verb, name string,
	call func(fealtyv1.DomainServiceClient) (answer, error)) error {
	if c.force && c.reason == "" {
		return command.Missing("--reason", "it is kept in the audit log, and shown to whoever asks why",
			"--reason TEXT")
	}
	if c.force && !c.dry {
		risk := "the owner of " + name + " is not waited for: it acts on until the receivers of the domain have " +
			"promised the next ownership"
		if err := sh.Confirm(ctx, "fealty domain "+verb, risk, c.yes); err != nil {
			return err
		}
	}
	return sh.Ask(func(conn grpc.ClientConnInterface) error {
		got, err := call(fealtyv1.NewDomainServiceClient(conn))
		if err != nil {
			return err
		}
		if c.dry {
			sh.Planned(said(got))
		}
		if err := sh.Print(result(sh, got, got.GetDomain())); err != nil || c.dry {
			return err
		}
		sh.Say("%s", said(got))
		return nil
	})
}

// said says what became of a domain.
func said(got answer) string {
	d := got.GetDomain()
	text := fmt.Sprintf("%s belongs to %s under ownership %s", d.GetName(), nobody(d.GetOwner()), ownership(d))
	if d.GetMoving() {
		text = fmt.Sprintf("%s belongs to %s until it lets go, and then to %s%s", d.GetName(), d.GetOwner(),
			nobody(d.GetNext()), command.AtTheLatest(d))
	}
	if over := got.GetPassedOver(); over != "" {
		text += "; nobody waits for " + over
	}
	if !got.GetChanged() {
		text += ", as before"
	}
	return text
}

func assign() command.Command {
	var c changeDomain
	var to string
	return command.Command{
		Use: "assign DOMAIN", Short: "make a member the owner of a domain",
		Long: `Make a member of kind data or shard the owner of a domain. A name that is new makes the domain. If it
has another owner, that one is asked to let go and owns it until it did, so that at most one member owns it.

An owner that is silent does not let go, and passes the domain on when its lease is over. One that is banned, or whose
certificate ended, is not waited for. With --force nobody waits for it: it may act on until the receivers of the
domain have promised the next ownership, and acts in vain from then on. Assigning twice changes nothing.`,
		Sample: `  fealty domain assign eu --to shard/eu-1
  fealty domain assign eu --to shard/eu-2 --force --reason "host 3 burned"`,
		Args: command.Exactly("DOMAIN"), Complete: complete,
		Flags: func(f *pflag.FlagSet) {
			f.StringVar(&to, "to", "", "the member that is to own it, KIND/NAME")
			c.flags(f)
		},
		Run: func(ctx context.Context, sh command.Shell, args []string) error {
			if to == "" {
				return command.Missing("--to", "somebody has to own it", "--to KIND/NAME")
			}
			kind, _, err := sh.Member(to)
			if err != nil {
				return err
			}
			if k := identity.Kind(kind); k != identity.Data && k != identity.Shard {
				return errcode.New(errcode.BadValue, "name", "--to", "value", to, "problem",
					"members of kind "+kind+" own nothing: only data members and shards own domains", "want",
					"--to data/NAME or shard/NAME, of those that fealty member list shows")
			}
			return c.run(ctx, sh, "assign", args[0], func(s fealtyv1.DomainServiceClient) (answer, error) {
				return s.AssignDomain(ctx, &fealtyv1.AssignDomainRequest{Name: args[0], To: to, Reason: c.reason,
					Force: c.force, DryRun: c.dry})
			})
		},
	}
}

func unassign() command.Command {
	var c changeDomain
	return command.Command{
		Use: "unassign DOMAIN", Short: "take a domain from its owner",
		Long: `Take a domain from its owner, who is asked to let go and owns it until it did. The domain stays known,
with its ownership: an act under an earlier one is not obeyed once the next owner came.`,
		Sample: "  fealty domain unassign eu",
		Args:   command.Exactly("DOMAIN"), Complete: complete,
		Flags: c.flags,
		Run: func(ctx context.Context, sh command.Shell, args []string) error {
			return c.run(ctx, sh, "unassign", args[0], func(s fealtyv1.DomainServiceClient) (answer, error) {
				return s.UnassignDomain(ctx, &fealtyv1.UnassignDomainRequest{Name: args[0], Reason: c.reason,
					Force: c.force, DryRun: c.dry})
			})
		},
	}
}
