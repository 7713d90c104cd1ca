package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/command"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/settings"
	"github.com/fealty-io/fealty/internal/slip"
	"github.com/fealty-io/fealty/internal/store/postgres"
	"github.com/fealty-io/fealty/internal/store/sqlite"
	"github.com/fealty-io/fealty/internal/term"
	"github.com/fealty-io/fealty/manifest"
)

func (c *CLI) checkCommand() *cobra.Command {
	var data, listen, store, manifestFile string
	cmd := c.command(spec{
		use: "check [pre|node|coordinator|store]", short: "look whether things are as they should be, and what to do",
		long: `Look whether things are as they should be: pre before something is started on this machine, node at the agent of
--data, coordinator and store at the coordinator that the settings name. Without a group it is all but pre. Each check
has an id, which fealty explain check.ID explains, and says what to do. One that depends on another that is not ok is not
made: the other one is the cause.

The exit status is 10 if a check failed, 9 with a warning or something that this caller may not see, and 0 otherwise.`,
		sample: `  fealty check pre --data /var/lib/fealty/agent --listen :7443
  fealty check pre --manifest fealty.yaml
  fealty check node --data /var/lib/fealty/agent
  fealty check coordinator -o json`,
		groups: []settings.Group{settings.Client}, words: checkGroups(), args: command.AtMostOne("pre|node|coordinator|store"),
		run: func(ctx context.Context, cfg *settings.Values, args []string) error {
			groups := []string{"node", "coordinator", "store"}
			if len(args) > 0 {
				if !slices.Contains(checkGroups(), args[0]) {
					return explain.New(explain.BadValue, "name", "the group of checks", "value",
						command.ShownArg(args[0]),
						"problem", joinText("there is none of that name", slip.Guess(args[0], checkGroups())), "want", "one of "+strings.Join(checkGroups(), ", "))
				}
				groups = args[:1]
			}
			s := c.site(ctx, cfg)
			s.listen, s.store = listen, store
			if store != "" && !strings.HasPrefix(store, settings.SqliteScheme) && !strings.HasPrefix(store, settings.EtcdScheme) && postgres.HasPassword(store) {
				c.talk("the password of the database stands in the command line, where every user of this machine can read it: use FEALTY_STORE, or PGPASSFILE, instead")
			}
			if store == "" {
				for _, kv := range c.env.Environ {
					if text, ok := strings.CutPrefix(kv, "FEALTY_STORE="); ok {
						s.store = text
					}
				}
			}
			s.keepers = func() ([]manifest.Owner, error) {
				if manifestFile == "" {
					return nil, errNotAsked
				}
				_, m, err := c.readManifest(cfg, manifestFile, manifest.Parse)
				if e, ok := errors.AsType[*manifest.InvalidError](err); ok {
					err = invalidManifest(manifestFile, e)
				}
				if err != nil {
					return nil, err
				}
				return m.Seed.Keepers(), nil
			}
			if data != "" {
				s.data = cfg.Within(data)
			}
			results := runChecks(checks(), groups, s)
			if err := c.print(checkResult(results)); err != nil {
				return err
			}
			if exit := checkExit(results); exit != explain.ExitOK {
				return exitError{exit}
			}
			return nil
		},
	})
	cmd.Flags().StringVar(&data, "data", "", "the folder of the agent, or of what is to be started")
	cmd.Flags().StringVar(&listen, "listen", "", "with pre: the address that is to be listened on")
	cmd.Flags().StringVar(&store, "store", "", "with pre and store: the store; without it the value of FEALTY_STORE")
	cmd.Flags().StringVar(&manifestFile, "manifest", "", "with pre: the manifest whose keepers this machine is to have")
	return cmd
}

// site is this machine, and whom the settings name.
func (c *CLI) site(ctx context.Context, cfg *settings.Values) *site {
	s := &site{now: c.env.Now(), free: freeSpace, limit: resourceLimit, fileSystem: sqlite.CheckFilesystem}
	timeout := cfg.Duration("timeout")
	s.dial = func(address string) error {
		d := net.Dialer{Timeout: timeout}
		conn, err := d.DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		return conn.Close()
	}
	s.status = sync.OnceValues(func() (*fealtyv1.GetStatusResponse, error) {
		l, _, err := c.dial(cfg)
		if errors.Is(err, explain.NoCoordinatorConfigured) {
			return nil, errNotAsked
		}
		if err != nil {
			return nil, err
		}
		defer l.Close()
		st, err := getStatus(ctx, fealtyv1.NewStatusServiceClient(l), command.PageSize)
		s.now = c.env.Now()
		return st, err
	})
	s.server = sync.OnceValues(func() (serverReport, error) { return c.inspectServer(ctx, s.store, timeout) })
	s.node = sync.OnceValues(func() (*fealtyv1.GetNodeResponse, error) {
		if s.data == "" {
			return nil, errNotAsked
		}
		l, err := dialSocket(agentSocket(s.data), timeout)
		if err != nil {
			return nil, err
		}
		defer l.Close()
		return fealtyv1.NewNodeServiceClient(l).GetNode(ctx, &fealtyv1.GetNodeRequest{})
	})
	return s
}

// lookedAt is a check with what it found.
type lookedAt struct {
	check
	seen
	root string // of one that was not made: the check at the root of that
}

// runChecks makes the checks of groups, and those that they need.
func runChecks(all []check, groups []string, s *site) []lookedAt {
	wanted := make(map[string]bool)
	for _, k := range slices.Backward(all) { // what is needed comes before who needs it
		if wanted[k.id] = wanted[k.id] || slices.Contains(groups, k.group()); wanted[k.id] {
			for _, n := range k.needs {
				wanted[n] = true
			}
		}
	}
	var out []lookedAt
	done := make(map[string]lookedAt)
	for _, k := range all {
		if !wanted[k.id] {
			continue
		}
		r := lookedAt{check: k}
		for _, n := range k.needs {
			d := done[n]
			if d.outcome == checkOK || d.outcome == checkWarning {
				continue
			}
			if r.root = d.root; r.root == "" {
				r.root = n
			}
			r.seen = seen{checkNotChecked, "depends on " + r.root, ""}
			break
		}
		if r.root == "" {
			r.seen = k.look(s)
		}
		done[k.id] = r
		out = append(out, r)
	}
	return out
}

// checkExit says by the exit status how things are.
func checkExit(results []lookedAt) explain.Exit {
	exit := explain.ExitOK
	for _, r := range results {
		switch r.outcome {
		case checkFailed:
			return explain.ExitUnhealthy
		case checkWarning, checkUnknown:
			exit = explain.ExitDegraded
		}
	}
	return exit
}

// shapeOf repeats by shape and colour what the word of an outcome says.
func shapeOf(o outcome) condition {
	switch o {
	case checkOK:
		return condition{string(o), "●", term.Green}
	case checkWarning:
		return condition{string(o), "▲", term.Amber}
	case checkFailed:
		return condition{string(o), "✖", term.Red}
	case checkUnknown:
		return condition{string(o), "?", term.Amber}
	}
	return condition{string(o), "·", term.Dim}
}

func checkResult(results []lookedAt) result {
	items := list{}
	t := &term.Table{Columns: []term.Column{{Title: "RESULT"}, {Title: "CHECK"}, {Title: "SEEN", Least: 30}}}
	for _, r := range results {
		items = append(items, object{{"id", r.id}, {"title", r.title}, {"result", string(r.outcome)}, {"seen", r.text}, {"do", r.do}, {"depends_on", r.root}})
		t.Add(shapeOf(r.outcome).cell(), term.Txt(r.id), term.Txt(r.text))
	}
	return result{object{{"exit", int(checkExit(results))}, {"checks", items}}, func(p *term.Page) error {
		if err := p.Table(t); err != nil {
			return err
		}
		first := true
		for _, r := range results {
			if r.do == "" {
				continue
			}
			if first {
				p.Heading("what to do")
				first = false
			}
			p.Advise("%s: %s", r.id, r.do)
		}
		return nil
	}}
}

// explainCheck explains one check, or lists all of them.
func explainCheck(id string) (result, error) {
	var b strings.Builder
	items := list{}
	for _, k := range checks() {
		if id != "" && k.id != id {
			continue
		}
		if id == "" {
			fmt.Fprintf(&b, "check.%-22s %s\n", k.id, k.title)
		} else {
			b.WriteString(k.page())
		}
		items = append(items, object{{"id", k.id}, {"title", k.title}, {"about", k.about}, {"needs", texts(k.needs)}})
	}
	if len(items) == 0 {
		var ids []string
		for _, k := range checks() {
			ids = append(ids, "check."+k.id)
		}
		return result{}, noPage("check", "check."+id, ids)
	}
	return pageOf(object{{"checks", items}}, b.String()), nil
}
