package cli

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fealty-io/fealty/internal/cli/command"
	"github.com/fealty-io/fealty/internal/cli/doctor"
	"github.com/fealty-io/fealty/internal/cli/program"
	"github.com/fealty-io/fealty/internal/cli/server"
	"github.com/fealty-io/fealty/internal/cli/settings"
	"github.com/fealty-io/fealty/internal/cli/status"
	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/conformance"
	"github.com/fealty-io/fealty/internal/store/postgres"
)

func conformanceCommand(c *program.CLI) *cobra.Command {
	return program.Group("conformance", "test a store against what a cluster requires of it", conformanceStore(c))
}

func conformanceStore(c *program.CLI) *cobra.Command {
	return c.Command(program.Command{
		Use: "store URL", Short: "hold a live, empty store to the promises that a cluster relies on",
		Long: `Run the tests that every kind of store has to pass, against the very servers that are to keep a ` +
			`cluster: atomic
transactions, one order of revisions, versions that never come back, changes that are neither lost nor told twice, and
what is said about a write when its answer is lost. It takes a minute or two, and some tens of megabytes.

The store has to be empty; one that holds a cluster, or anything else, is refused and not touched. The tests
delete what they wrote. The servers' behaviour when they are killed cannot be tested from here.

The URL is as for --store. One without a password is best: the command line shows to every user of the machine. The
exit status is 10 if a promise was not kept.`,
		Sample: `  fealty conformance store sqlite:/var/lib/fealty/new.db
  fealty conformance store etcd://c1:2379,c2:2379/fealty -o json`,
		Args: command.Exactly("URL"),
		Run: func(ctx context.Context, cfg *settings.Values, args []string) error {
			if problem := settings.CheckStore(args[0]); problem != "" {
				return errcode.New(errcode.BadValue, "name", "the URL", "value", settings.ShownStore(args[0]), "problem",
					problem, "want",
					(&settings.Setting{Form: settings.StoreForm}).Want())
			}
			return checkConformance(ctx, c, cfg, args[0])
		},
	})
}

func checkConformance(ctx context.Context, c *program.CLI, cfg *settings.Values, text string) error {
	name := settings.ShownStore(text)
	v := settings.Value{Setting: &settings.Setting{Key: "store"}, From: "the URL", Rank: settings.FromEnvironment,
		Text: text}
	_, brought := settings.EmbeddedFolder(text)
	if !strings.HasPrefix(text, settings.SqliteScheme) && !strings.HasPrefix(text, settings.EtcdScheme) && !brought &&
		postgres.HasPassword(text) {
		c.Say("the password of the database stands in the command line, where every user of this machine can read " +
			"it: use PGPASSFILE instead")
	}
	target := conformance.Target{
		Shared: !strings.HasPrefix(text, settings.SqliteScheme) && !brought,
		Open: func(ctx context.Context, retain int) (store.Store, error) {
			st, _, err := server.OpenStoreAt(ctx, c, cfg, v, server.Running{Log: slog.New(slog.DiscardHandler)}, retain)
			return st, err
		},
	}
	var results []conformance.Result
	exit := errcode.ExitOK
	err := conformance.Check(ctx, target, func(r conformance.Result) {
		results = append(results, r)
		if !r.Kept {
			exit = errcode.ExitUnhealthy
		}
		c.Say("%s %s", map[bool]string{true: "ok    ", false: "FAILED"}[r.Kept], r.Name)
	})
	if errors.Is(err, conformance.ErrOccupied) {
		return errcode.Wrap(err, errcode.StoreOccupied, "store", name)
	}
	if len(results) > 0 {
		if err := c.Print(conformanceResult(name, results)); err != nil {
			return err
		}
	}
	if err != nil {
		return err
	}
	if exit != errcode.ExitOK {
		return program.ExitWith(exit)
	}
	return nil
}

// conformanceCase is how one case of the suite went.
type conformanceCase struct {
	Case    string     `json:"case"`
	Promise string     `json:"promise"`
	Result  string     `json:"result"`
	TookMs  int64      `json:"took_ms"`
	Log     term.Texts `json:"log"`
}

// conformanceReport is what fealty conformance prints.
type conformanceReport struct {
	Store  string            `json:"store"`
	Kept   int               `json:"kept"`
	Failed int               `json:"failed"`
	Cases  []conformanceCase `json:"cases"`
}

func conformanceResult(name string, results []conformance.Result) program.Result {
	items := []conformanceCase{}
	t := &term.Table{Columns: []term.Column{{Title: "RESULT"}, {Title: "CASE"}, {Title: "TOOK"}, {Title: "PROMISE",
		Least: 30}}}
	kept := 0
	for _, r := range results {
		outcome := doctor.OK
		if r.Kept {
			kept++
		} else {
			outcome = doctor.Failed
		}
		took := r.Took.Round(time.Millisecond)
		items = append(items, conformanceCase{Case: r.Name, Promise: r.Promise, Result: string(outcome),
			TookMs: took.Milliseconds(), Log: r.Log})
		t.Add(status.ShapeOf(outcome).Cell(), term.Txt(r.Name), term.Txt(took.String()), term.Txt(r.Promise))
	}
	return program.ResultOf(conformanceReport{Store: name, Kept: kept, Failed: len(results) - kept, Cases: items},
		func(p *term.Page) error {
			if err := p.Table(t); err != nil {
				return err
			}
			for _, r := range results {
				if r.Kept {
					continue
				}
				p.Heading(r.Name)
				for _, line := range r.Log {
					p.Line("%s", line)
				}
			}
			return nil
		})
}
