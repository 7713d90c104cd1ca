package actuation

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/cli/command"
	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/instruction"
)

// InstructionCommands are those below fealty instruction.
func InstructionCommands() []command.Command { return []command.Command{give(), listInstructions()} }

// word is an outcome as people read it.
func word(o fealtyv1.InstructionOutcome) string {
	if o == fealtyv1.InstructionOutcome_INSTRUCTION_OUTCOME_UNSPECIFIED {
		return "waits"
	}
	return strings.ToLower(strings.TrimPrefix(o.String(), "INSTRUCTION_OUTCOME_"))
}

// mark is an outcome with the colour of what it means.
func mark(o fealtyv1.InstructionOutcome) term.Cell {
	switch o {
	case fealtyv1.InstructionOutcome_INSTRUCTION_OUTCOME_UNSPECIFIED:
		return term.Painted(term.Amber, "◐ "+word(o))
	case fealtyv1.InstructionOutcome_INSTRUCTION_OUTCOME_DONE:
		return term.Txt(word(o))
	}
	return term.Painted(term.Amber, "▲ "+word(o))
}

func listInstructions() command.Command {
	var member string
	return command.Command{
		Use: "list", Short: "list what members were told to do, and what became of it",
		Long: `List instructions, the newest first: those that wait for their member, and those that ended in the last
30 days. OUTCOME unknown is of a member that stopped while it did so: look there what it did, for it does not begin
again.`,
		Sample: `  fealty instruction list
  fealty instruction list --member shard/eu-1 -o name`,
		Names: true,
		Flags: func(f *pflag.FlagSet) {
			f.StringVar(&member, "member", "", "only those of this member, KIND/NAME")
		},
		Run: func(ctx context.Context, sh command.Shell, _ []string) error {
			if member != "" {
				if _, _, err := sh.Member(member); err != nil {
					return err
				}
			}
			return sh.Ask(func(conn grpc.ClientConnInterface) error {
				all, err := fealtyv1.NewInstructionServiceClient(conn).ListInstructions(ctx,
					&fealtyv1.ListInstructionsRequest{Member: member, Limit: command.PageSize})
				if err != nil {
					return err
				}
				command.SayAltered(sh.Say, all.GetAltered())
				var names []string
				for _, i := range all.GetInstructions() {
					names = append(names, i.GetId())
				}
				return sh.PrintList(names, command.Result{Data: all, Show: func(p *term.Page) error {
					return p.Table(instructionTable(sh, all.GetInstructions()))
				}})
			})
		},
	}
}

func instructionTable(sh command.Shell, all []*fealtyv1.Instruction) *term.Table {
	t := &term.Table{Columns: []term.Column{{Title: "INSTRUCTION"}, {Title: "MEMBER"}, {Title: "KIND"},
		{Title: "OUTCOME"}, {Title: "GIVEN"}, {Title: "TERM", Right: true, Wide: true}, {Title: "BY", Wide: true},
		{Title: "REASON", Wide: true}, {Title: "DETAIL"}}}
	for _, i := range all {
		t.Add(term.Txt(i.GetId()), term.Txt(i.GetMember()), term.Txt(i.GetKind()), mark(i.GetOutcome()),
			term.Txt(sh.Ago(i.GetGivenAt().AsTime())), term.Txt(fmt.Sprint(i.GetTerm())), term.Txt(i.GetGivenBy()),
			term.Txt(i.GetReason()), term.Txt(command.Dash(i.GetDetail())))
	}
	return t
}

func give() command.Command {
	var reason string
	var dry bool
	return command.Command{
		Use: "give MEMBER KIND", Short: "have a member do something once",
		Long: `Have a member do something once: a shard can be told to pause, so that it decides and does nothing, and
to resume.

An instruction is delivered until the member says what became of it, for 7 days at most, over changes of the leader
and starts of the member. It is not carried out twice: fealty instruction list shows what became of it. A shard that
was started with --actuation-paused is resumed at its machine alone.`,
		Sample: `  fealty instruction give shard/eu-1 pause --reason "the power company calls"
  fealty instruction give shard/eu-1 resume --reason "they called again"`,
		Args: command.Exactly("MEMBER", "KIND"),
		Flags: func(f *pflag.FlagSet) {
			f.StringVar(&reason, "reason", "", "why, for the audit log")
			command.DryRun(f, &dry)
		},
		Run: func(ctx context.Context, sh command.Shell, args []string) error {
			if _, _, err := sh.Member(args[0]); err != nil {
				return err
			}
			if reason == "" {
				return command.Missing("--reason", "it is kept in the audit log, and shown to whoever asks why",
					"--reason TEXT")
			}
			// Made here: an answer that is lost is asked for again under the same one.
			id := args[1] + "-" + strings.ToLower(rand.Text()[:8])
			if instruction.CheckID(id) != "" {
				id = strings.ToLower(rand.Text()[:8])
			}
			return sh.Ask(func(conn grpc.ClientConnInterface) error {
				got, err := fealtyv1.NewInstructionServiceClient(conn).Instruct(ctx, &fealtyv1.InstructRequest{Id: id,
					Member: args[0], Kind: args[1], Reason: reason, DryRun: dry})
				if err != nil {
					return err
				}
				i := got.GetInstruction()
				text := fmt.Sprintf("%s is told to %s: instruction %s", i.GetMember(), i.GetKind(), i.GetId())
				if dry {
					sh.Planned(text)
				}
				if err := sh.Print(command.Result{Data: got, Show: func(p *term.Page) error {
					var f term.Facts
					f.Add("instruction", i.GetId())
					f.Add("member", i.GetMember())
					f.Add("kind", i.GetKind())
					f.Add("over", command.When(i.GetNotAfter()))
					f.Add("reason", i.GetReason())
					return p.Facts(f)
				}}); err != nil || dry {
					return err
				}
				sh.Say("%s", text)
				return nil
			})
		},
	}
}
