package status

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/cli/client"
	"github.com/fealty-io/fealty/internal/cli/command"
	"github.com/fealty-io/fealty/internal/cli/doctor"
	manifestpkg "github.com/fealty-io/fealty/internal/cli/manifest"
	"github.com/fealty-io/fealty/internal/cli/program"
	"github.com/fealty-io/fealty/internal/cli/settings"
	"github.com/fealty-io/fealty/internal/cli/summary"
	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/platform/humanize"
	"github.com/fealty-io/fealty/internal/store/embedded"
	"github.com/fealty-io/fealty/internal/store/engine"
	"github.com/fealty-io/fealty/internal/store/etcd"
	"github.com/fealty-io/fealty/internal/store/postgres"
	"github.com/fealty-io/fealty/internal/store/sqlite"
)

func Check(c *program.CLI) *cobra.Command {
	var data, listen, store, manifestFile string
	cmd := c.Command(program.Command{
		Use: "check [pre|node|coordinator|store]", Short: "look whether things are as they should be, and what to do",
		Long: `Look whether things are as they should be: pre before something is started on this machine, node at ` +
			`the agent of
--data, coordinator and store at the coordinator that the settings name. Without a group it is all but pre. Each check
has an id, which fealty explain check.ID explains, and says what to do. One that depends on another that is not ok ` +
			`is not
made: the other one is the cause.

The exit status is 10 if a check failed, 9 with a warning or something that this caller may not see, and 0 otherwise.`,
		Sample: `  fealty check pre --data /var/lib/fealty/agent --listen :7443
  fealty check pre --manifest fealty.yaml
  fealty check node --data /var/lib/fealty/agent
  fealty check coordinator -o json`,
		Groups: []settings.Group{settings.Client}, Words: doctor.Groups(),
		Args: command.AtMostOne("pre|node|coordinator|store"),
		Run: func(ctx context.Context, cfg *settings.Values, args []string) error {
			groups := []string{"node", "coordinator", "store"}
			if len(args) > 0 {
				if !slices.Contains(doctor.Groups(), args[0]) {
					return errcode.New(errcode.BadValue, "name", "the group of checks", "value",
						command.ShownArg(args[0]),
						"problem", command.JoinText("there is none of that name", humanize.Suggest(args[0], doctor.Groups())),
						"want", "one of "+strings.Join(doctor.Groups(), ", "))
				}
				groups = args[:1]
			}
			s := environment(ctx, c, cfg)
			s.Listen, s.Store = listen, store
			if _, brought := settings.EmbeddedFolder(store); store != "" && !brought &&
				!strings.HasPrefix(store, settings.SqliteScheme) && !strings.HasPrefix(store, settings.EtcdScheme) && postgres.HasPassword(store) {
				c.Say("the password of the database stands in the command line, where every user of this machine can " +
					"read it: use FEALTY_STORE, or PGPASSFILE, instead")
			}
			if store == "" {
				for _, kv := range c.Env.Environ {
					if text, ok := strings.CutPrefix(kv, "FEALTY_STORE="); ok {
						s.Store = text
					}
				}
			}
			storeProgram, err := embedded.FindProgram(cfg.Within(c.Getenv("FEALTY_STORE_PROGRAM")))
			if err != nil {
				return err
			}
			s.StoreProgram = storeProgram
			s.Keepers = func() ([]manifest.Owner, error) {
				if manifestFile == "" {
					return nil, doctor.ErrNotAsked
				}
				_, m, err := manifestpkg.ReadManifest(c, cfg, manifestFile, manifest.Parse)
				if e, ok := errors.AsType[*manifest.InvalidError](err); ok {
					err = manifestpkg.InvalidManifest(manifestFile, e)
				}
				if err != nil {
					return nil, err
				}
				return m.Seed.Keepers(), nil
			}
			if data != "" {
				s.Data = cfg.Within(data)
			}
			results := doctor.Run(doctor.All(), groups, s)
			if err := c.Print(checkResult(results)); err != nil {
				return err
			}
			if exit := doctor.Exit(results); exit != errcode.ExitOK {
				return program.ExitWith(exit)
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

// environment is this machine, and whom the settings name.
func environment(ctx context.Context, c *program.CLI, cfg *settings.Values) *doctor.Environment {
	s := &doctor.Environment{Now: c.Env.Now(), Free: doctor.FreeSpace, Limit: doctor.ResourceLimit,
		FileSystem: sqlite.CheckFilesystem}
	timeout := cfg.Duration("timeout")
	s.Dial = func(address string) error {
		d := net.Dialer{Timeout: timeout}
		conn, err := d.DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		return conn.Close()
	}
	s.Status = sync.OnceValues(func() (*fealtyv1.GetStatusResponse, error) {
		l, err := c.Dial(cfg)
		if errors.Is(err, errcode.NoCoordinatorConfigured) {
			return nil, doctor.ErrNotAsked
		}
		if err != nil {
			return nil, err
		}
		defer l.Close()
		// No check looks at a member: what is wrong with one is a finding.
		st, err := fealtyv1.NewStatusServiceClient(l).GetStatus(ctx, &fealtyv1.GetStatusRequest{PageSize: 1, NeedSomebody: true})
		s.Now = c.Env.Now()
		return st, err
	})
	s.Server = sync.OnceValues(func() (engine.Report, error) {
		return doctor.InspectServer(ctx, s.Store, c.Getenv(etcd.PasswordVariable), timeout)
	})
	s.Node = sync.OnceValues(func() (*fealtyv1.GetNodeResponse, error) {
		if s.Data == "" {
			return nil, doctor.ErrNotAsked
		}
		l, err := client.Dial(AgentSocket(s.Data), timeout)
		if err != nil {
			return nil, err
		}
		defer l.Close()
		return fealtyv1.NewNodeServiceClient(l).GetNode(ctx, &fealtyv1.GetNodeRequest{})
	})
	return s
}

// ShapeOf repeats by shape and colour what the word of an outcome says.
func ShapeOf(o doctor.Outcome) summary.Condition {
	switch o {
	case doctor.OK:
		return summary.Condition{Word: string(o), Shape: "●", Paint: term.Green}
	case doctor.Warning:
		return summary.Condition{Word: string(o), Shape: "▲", Paint: term.Amber}
	case doctor.Failed:
		return summary.Condition{Word: string(o), Shape: "✖", Paint: term.Red}
	case doctor.Unknown:
		return summary.Condition{Word: string(o), Shape: "?", Paint: term.Amber}
	}
	return summary.Condition{Word: string(o), Shape: "·", Paint: term.Dim}
}

// checkReport is what fealty check prints.
type checkReport struct {
	Exit   errcode.Exit      `json:"exit"`
	Checks []checkReportItem `json:"checks"`
}

type checkReportItem struct {
	ID        string         `json:"id"`
	Title     string         `json:"title"`
	Result    doctor.Outcome `json:"result"`
	Seen      string         `json:"seen"`
	Do        string         `json:"do"`
	DependsOn string         `json:"depends_on"` // of one that was not made: the check at the root of that
}

func checkResult(results []doctor.Checked) program.Result {
	shown := checkReport{Exit: doctor.Exit(results), Checks: []checkReportItem{}}
	t := &term.Table{Columns: []term.Column{{Title: "RESULT"}, {Title: "CHECK"}, {Title: "SEEN", Least: 30}}}
	for _, r := range results {
		shown.Checks = append(shown.Checks, checkReportItem{r.ID, r.Title, r.Outcome, r.Text, r.Do, r.Root})
		t.Add(ShapeOf(r.Outcome).Cell(), term.Txt(r.ID), term.Txt(r.Text))
	}
	return program.ResultOf(shown, func(p *term.Page) error {
		if err := p.Table(t); err != nil {
			return err
		}
		first := true
		for _, r := range results {
			if r.Do == "" {
				continue
			}
			if first {
				p.Heading("what to do")
				first = false
			}
			p.Advise("%s: %s", r.ID, r.Do)
		}
		return nil
	})
}
