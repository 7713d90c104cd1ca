// Package workload has the commands over the processes of a machine and their identities.
package workload

import (
	"context"
	"errors"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/cli/client"
	"github.com/fealty-io/fealty/internal/cli/command"
	"github.com/fealty-io/fealty/internal/cli/program"
	"github.com/fealty-io/fealty/internal/cli/settings"
	statuscmd "github.com/fealty-io/fealty/internal/cli/status"
	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/cli/term/message"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/workload/files"
)

// Command returns the group.
func Command(c *program.CLI) *cobra.Command {
	return program.Group("workload", "show and use the identities of this machine's processes", list(c), test(c),
		write(c))
}

// ask calls f with the service of the agent that has the folder of the settings.
func ask(cfg *settings.Values, f func(fealtyv1.LocalWorkloadServiceClient) error) error {
	l, err := client.Dial(statuscmd.AgentSocket(cfg.Path("data")), cfg.Duration("timeout"))
	if err != nil {
		return err
	}
	defer l.Close()
	return f(fealtyv1.NewLocalWorkloadServiceClient(l))
}

func list(c *program.CLI) *cobra.Command {
	return c.Command(program.Command{
		Use: "list", Short: "list the workloads that this machine's services register",
		Long: `List the workloads that the services of this machine register, with the processes that are
meant and the end of their certificates. The agent has to run.`,
		Sample: `  fealty workload list --data /var/lib/fealty/agent`,
		Groups: []settings.Group{settings.Agent, settings.Timeouts}, Names: true,
		Run: func(ctx context.Context, cfg *settings.Values, _ []string) error {
			return ask(cfg, func(s fealtyv1.LocalWorkloadServiceClient) error {
				resp, err := s.ListWorkloads(ctx, &fealtyv1.ListWorkloadsRequest{})
				if err != nil {
					return err
				}
				var ids []string
				for _, w := range resp.GetWorkloads() {
					ids = append(ids, w.GetSpiffeId())
				}
				return c.PrintList(ids, program.ResultOf(message.Of(resp), func(p *term.Page) error {
					return page(p, resp)
				}))
			})
		},
	})
}

func page(p *term.Page, resp *fealtyv1.ListWorkloadsResponse) error {
	t := &term.Table{Columns: []term.Column{{Title: "WORKLOAD"}, {Title: "SERVICE"}, {Title: "PROCESSES", Least: 12},
		{Title: "CERTIFICATE"}}}
	for _, w := range resp.GetWorkloads() {
		until := "none yet"
		if w.GetNotAfter() != nil {
			until = "until " + command.When(w.GetNotAfter())
		}
		t.Add(term.Txt(w.GetSpiffeId()), term.Txt(w.GetService()), term.Txt(strings.Join(w.GetSelectors(), " ")),
			term.Txt(until))
	}
	if err := p.Table(t); err != nil {
		return err
	}
	for _, w := range resp.GetWorkloads() {
		if w.GetProblem() != "" {
			p.Line("%s: %s", w.GetSpiffeId(), w.GetProblem())
		}
	}
	for _, f := range resp.GetFaults() {
		p.Line("service %s registers nobody: %s", f.GetService(), f.GetProblem())
	}
	if resp.GetSocket() != "" {
		p.Line("programs find their identity by SPIFFE_ENDPOINT_SOCKET=unix:%s", resp.GetSocket())
	}
	return nil
}

func test(c *program.CLI) *cobra.Command {
	var pid int32
	cmd := c.Command(program.Command{
		Use: "test", Short: "say which identities a process would get, and why not",
		Long: `Say which identities a running process would get from this machine's agent, and of each
other workload that is registered here the first thing that the process is not.`,
		Sample: `  fealty workload test --pid 4711 --data /var/lib/fealty/agent`,
		Groups: []settings.Group{settings.Agent, settings.Timeouts},
		Run: func(ctx context.Context, cfg *settings.Values, _ []string) error {
			if pid == 0 {
				return command.Missing("--pid", "it is about one process", "--pid NUMBER; ps shows them")
			}
			return ask(cfg, func(s fealtyv1.LocalWorkloadServiceClient) error {
				resp, err := s.CheckWorkload(ctx, &fealtyv1.CheckWorkloadRequest{Pid: pid})
				if err != nil {
					return err
				}
				return c.Print(program.ResultOf(message.Of(resp), func(p *term.Page) error { return fits(p, resp) }))
			})
		},
	})
	cmd.Flags().Int32Var(&pid, "pid", 0, "the number of the process")
	return cmd
}

func fits(p *term.Page, resp *fealtyv1.CheckWorkloadResponse) error {
	var details term.Facts
	details.Add("user", strconv.FormatUint(uint64(resp.GetUid()), 10))
	details.Add("group", strconv.FormatUint(uint64(resp.GetGid()), 10))
	for _, f := range [][2]string{{"path", resp.GetPath()}, {"sha256", resp.GetSha256()}, {"unit", resp.GetUnit()},
		{"container", resp.GetContainer()}} {
		if f[1] != "" {
			details.Add(f[0], f[1])
		}
	}
	if err := p.Facts(details); err != nil {
		return err
	}
	for _, u := range resp.GetUnread() {
		p.Line("not known: %s", u)
	}
	any := false
	for _, f := range resp.GetFits() {
		if f.GetMismatch() == "" {
			any = true
			p.Line("it is %s, by service %s", f.GetSpiffeId(), f.GetService())
		}
	}
	for _, f := range resp.GetFits() {
		if f.GetMismatch() != "" {
			p.Line("it is not %s: %s", f.GetSpiffeId(), f.GetMismatch())
		}
	}
	if !any {
		p.Line("it gets no identity; a service of this machine registers it by its field workload, see fealty " +
			"explain service")
	}
	return nil
}

// written is what fealty workload write prints of each set of files.
type written struct {
	SPIFFEID string `json:"spiffe_id"`
	Folder   string `json:"folder"`
}

// socketVariable is where programs that use SPIFFE look for the socket (SPIFFE Workload
// Endpoint §4).
const socketVariable = "SPIFFE_ENDPOINT_SOCKET"

// hookTimeout bounds one run of the program of --on-change.
const (
	hookTimeout   = 30 * time.Second
	hookWaitDelay = 2 * time.Second
)

func write(c *program.CLI) *cobra.Command {
	var socket, folder, id, hook string
	var once bool
	cmd := c.Command(program.Command{
		Use: "write", Short: "write this process's identity into files, and again when it is renewed",
		Long: `Write the identity of this process into files, for a program that only reads files: svid.pem,
svid_key.pem and bundle.pem. They are written again when something of them changes, all three together,
and then --on-change is run, to tell the program. It gets the identity by the SPIFFE Workload API, so
that it runs as the user that is registered; it ends when it is told to.`,
		Sample: `  fealty workload write --dir /run/billing/tls --on-change "systemctl reload billing"
  fealty workload write --dir tls --once --socket unix:/run/fealty/workload.sock`,
		Groups: []settings.Group{settings.Timeouts}, GoesOn: func() bool { return !once },
		Run: func(ctx context.Context, cfg *settings.Values, _ []string) error {
			if folder == "" {
				return command.Missing("--dir", "the files go into a folder", "--dir FOLDER")
			}
			if socket == "" {
				socket = c.Getenv(socketVariable)
			}
			if socket == "" {
				return command.Missing("--socket", "an agent is asked on its socket",
					"--socket unix:PATH, or "+socketVariable)
			}
			if !strings.Contains(socket, ":") {
				socket = "unix:" + socket
			}
			return follow(ctx, c, cfg, socket, cfg.Within(folder), id, hook, once)
		},
	})
	f := cmd.Flags()
	f.StringVar(&folder, "dir", "", "the folder of the files")
	f.StringVar(&socket, "socket", "", "the socket of the agent, unix:PATH (default "+socketVariable+")")
	f.StringVar(&id, "id", "", "the identity, if the process has several (default the first)")
	f.StringVar(&hook, "on-change", "", "a program with its arguments that is run once the files are written")
	f.BoolVar(&once, "once", false, "write them once, and end")
	return cmd
}

var errDone = errors.New("the files are written")

func follow(ctx context.Context, c *program.CLI, cfg *settings.Values, socket, folder, id, hook string,
	once bool) error {
	told := ctx.Err // to end
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var last error // what went wrong on the way; read once Follow has returned
	if once {
		// As long as for any answer; an agent may still be asking a coordinator.
		t := time.AfterFunc(cfg.Duration("timeout"), cancel)
		defer t.Stop()
	}
	err := files.Follow(ctx, socket, id, func(set *files.Set) error {
		if err := files.Write(folder, set); err != nil {
			return errcode.Wrap(err, errcode.BadValue, "name", "--dir", "value", folder, "problem", err.Error(),
				"want", "a folder that this user can write to")
		}
		if err := c.Print(program.ResultOf(written{set.ID, folder}, func(p *term.Page) error {
			p.Line("%s is written to %s", set.ID, folder)
			return nil
		})); err != nil {
			return err
		}
		tell(ctx, c, hook)
		if once {
			return errDone
		}
		return nil
	}, func(err error) {
		if status.Code(err) != codes.Canceled {
			last = err
			c.Say("no identity yet: %s", status.Convert(err).Message())
		}
	})
	switch {
	case errors.Is(err, errDone), !once && told() != nil && errors.Is(err, context.Canceled):
		return nil
	case once && last != nil:
		return errcode.Wrap(last, errcode.BadValue, "name", "the identity of this process", "value", "none",
			"problem", status.Convert(last).Message(), "want",
			"a service that registers it: fealty workload test says what is missing")
	}
	return err
}

// tell runs the program of --on-change. One that fails is reported, and run again with the next
// change: the files are right.
func tell(ctx context.Context, c *program.CLI, hook string) {
	words := strings.Fields(hook)
	if len(words) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, hookTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Stdout, cmd.Stderr = c.Env.Stderr, c.Env.Stderr
	cmd.Env = c.Env.Environ
	// A process that it leaves behind keeps its output, and nobody here.
	cmd.WaitDelay = hookWaitDelay
	if err := cmd.Run(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		c.Say("%s failed: %v", hook, err)
	}
}
