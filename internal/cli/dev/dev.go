// Package dev has the commands that run a whole cluster on one machine and break parts of it on
// purpose.
package dev

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/fealty-io/fealty/internal/cli/program"
	"github.com/fealty-io/fealty/internal/cli/server"
	"github.com/fealty-io/fealty/internal/cli/settings"
	"github.com/fealty-io/fealty/internal/cli/term"
	devcluster "github.com/fealty-io/fealty/internal/dev/cluster"
	devstory "github.com/fealty-io/fealty/internal/dev/story"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/platform/humanize"
)

// logFileWriter says when the log is not written, as on a full disk, and when it is again. The handler of a log writes
// one line at a time.
type logFileWriter struct {
	to      io.Writer
	say     func(format string, args ...any) // continues "the log FILE"
	failing bool
}

func (w *logFileWriter) Write(p []byte) (int, error) {
	n, err := w.to.Write(p)
	if failing := err != nil; failing != w.failing {
		w.failing = failing
		if failing {
			w.say("is not written, and its lines are lost: %v", err)
		} else {
			w.say("is written again")
		}
	}
	return n, err
}

func Command(c *program.CLI) *cobra.Command {
	var story, exit bool
	cmd := c.Command(program.Command{
		Use: "dev", Short: "run a whole cluster on this machine, for trying things out",
		Long: `Run a whole cluster on this machine, in one process: three coordinators on one embedded store, and ` +
			`three members
that join with tokens. Everything in it is real; it listens on loopback only, and its cluster id begins with
"dev.", so that nothing it signs verifies elsewhere. Ctrl-C ends all of it.

On Linux a shard runs before it too, with a provider whose machines are processes: each is a program of its own, and
ends with this one.

With --data the cluster is kept, and starting again finds the same one; whoever wants to start afresh removes the
folder. Without, it is gone afterwards. A member that was banned, removed or drained is not waited for.

--story shows, step by step on a cluster of its own, what Fealty promises: who is let in, who is not, and what
happens to the cluster when something goes wrong. Each step says by what it shows that: but for shards, providers,
one agent and its processes, which are programs, all parts are in one process, so that a coordinator that is killed
is cut off there, and hours pass by moving a clock. With --exit it ends after the last step, and fails if one was not
as expected.

fealty dev break does harm to a cluster that runs, and fealty dev heal undoes it.`,
		Sample: `  fealty dev --data .fealty-dev
  fealty dev --story --exit -o json`,
		Groups: []settings.Group{settings.Dev}, GoesOn: func() bool { return !exit },
		Run: func(ctx context.Context, cfg *settings.Values, _ []string) error {
			if exit && !story {
				return errcode.New(errcode.BadValue, "name", "--exit", "value", "without --story", "problem",
					"there is nothing that could end", "want", "--story --exit")
			}
			if story {
				return devStory(ctx, c, exit)
			}
			return dev(ctx, c, cfg)
		},
	})
	cmd.AddCommand(breakCommand(c), healCommand(c))
	cmd.Flags().BoolVar(&story, "story", false, "tell the product's story live, on a cluster of its own")
	cmd.Flags().BoolVar(&exit, "exit", false, "with --story: end after the last step, and fail if one failed")
	return cmd
}

// dev runs the cluster until ctx ends.
func dev(ctx context.Context, c *program.CLI, cfg *settings.Values) (err error) {
	started := time.Now()
	binary, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the program, which is started for shards: %w", err)
	}
	opts := devcluster.Options{
		DataDir: cfg.Path("data"), Release: c.Env.Release, Log: slog.New(slog.DiscardHandler), Program: binary,
		Locks:    new(durable.Locks),
		Progress: func(text string) { c.Say("%s", text) },
	}
	logFile := ""
	if opts.DataDir != "" {
		if err := durable.OS().MkdirAll(opts.DataDir); err != nil {
			return fmt.Errorf("make the folder of the dev cluster: %w", err)
		}
		logFile = filepath.Join(opts.DataDir, "dev.log")
		f, err := os.OpenFile(logFile, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			return fmt.Errorf("open the log of the dev cluster: %w", err)
		}
		defer f.Close()
		opts.Log = slog.New(slog.NewTextHandler(&logFileWriter{to: f, say: func(format string, args ...any) {
			c.Say("the log "+logFile+" "+format, args...)
		}}, nil))
	}
	server.Harden(opts.Log)
	telling, told := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { opts.Locks.TellNewcomers(telling, opts.Log) })
	defer running.Wait()
	defer told()
	cluster, err := devcluster.Start(ctx, opts)
	if err != nil {
		return interruptedOr(ctx, err)
	}
	defer func() { err = errors.Join(err, cluster.Close()) }()
	if err := introduce(ctx, c, cluster); err != nil {
		return interruptedOr(ctx, err)
	}
	if err := cluster.TakeHarm(); err != nil {
		return err
	}
	suggest(c, cluster, started, logFile)
	select {
	case <-ctx.Done():
		c.Say("stopping")
		return nil
	case <-cluster.Done():
		return errors.New("a part of the dev cluster failed") // Close says which, and why
	}
}

// interruptedOr returns nil if a person ended what failed.
func interruptedOr(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// introduce prints what runs. It asks each part, so no harm may be done before it ends.
func introduce(ctx context.Context, c *program.CLI, cluster *devcluster.Cluster) error {
	st, err := cluster.Status(ctx)
	if err != nil {
		return err
	}
	out := c.Env.Stdout
	fmt.Fprintf(out, "cluster      %s at authority epoch %d, root pin %x\n", st.GetClusterId(), st.GetAuthorityEpoch(),
		st.GetRootPin())
	for _, name := range cluster.CoordinatorNames() {
		own, err := cluster.StatusOf(ctx, name)
		if err != nil {
			return err
		}
		addr, err := cluster.AddressOf(name)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "coordinator  %s at %s, %s\n", name, addr, own.GetPhase())
	}
	for _, m := range st.GetMembers() {
		if m.GetLive().GetConnected() {
			fmt.Fprintf(out, "member       %s joined by %s, %s, owns %s\n", m.GetSpiffeId(), m.GetJoinedBy(),
				m.GetState(),
				humanize.Plural(len(m.GetDomains()), "domain", "domains"))
		}
	}
	for _, line := range cluster.Shards() {
		fmt.Fprintf(out, "%-12s %s\n", line[0], line[1])
	}
	b := st.GetBaseline()
	word := "not met"
	if b.GetMet() {
		word = "met"
	}
	fmt.Fprintf(out, "baseline     %s: %d data members, %d needed\n", word, b.GetConnected(), b.GetNeeded())
	switch err := cluster.Stranger(ctx); {
	case err == nil:
		return errors.New("a stranger was admitted to the dev cluster")
	case errcode.Of(err).Code != errcode.JoinUnauthorized:
		return err
	default:
		e := errcode.Of(err)
		fmt.Fprintf(out, "stranger     refused with %s: %s: %s\n", e.Code, e.What, e.Why)
	}
	return nil
}

// suggest prints what to try next.
func suggest(c *program.CLI, cluster *devcluster.Cluster, started time.Time, logFile string) {
	out := c.Env.Stdout
	fmt.Fprintf(out, "ready        after %.1f s", time.Since(started).Seconds())
	if logFile != "" {
		fmt.Fprintf(out, "; the log is %s", logFile)
	}
	fmt.Fprint(out, "\n\nIn a second terminal:\n\n")
	flag := " --socket " + term.ShellWord(cluster.AdminSocket())
	if found, err := filepath.Abs(filepath.Join(c.Env.Dir, program.DevFolder)); err == nil && found == cluster.Dir() {
		flag = "" // found by itself from this folder
	}
	for _, line := range []string{
		"fealty status",
		"fealty token create --entry pool --name node-x",
		"fealty member ban data/node-c --reason 'trying it out' --yes",
		"fealty manifest history",
		"fealty dev break leader",
		"fealty dev break shard",
	} {
		at := flag
		if strings.HasPrefix(line, "fealty dev ") && flag != "" {
			at = " --data " + term.ShellWord(cluster.Dir())
		}
		fmt.Fprintln(out, "  "+c.Called(line+at))
	}
	fmt.Fprintln(out, "  "+c.Called("fealty dev --story --exit"))
	if logFile == "" {
		fmt.Fprintf(out, "\nCtrl-C ends all of it, and nothing is kept.\n")
		return
	}
	fmt.Fprintf(out, "\nCtrl-C ends all of it. It is kept in %[1]s; to start afresh: rm -r %[1]s\n",
		term.ShellWord(shownDir(c.Env.Dir, cluster.Dir())))
}

// devStory tells the story on a cluster of its own.
func devStory(ctx context.Context, c *program.CLI, exit bool) (err error) {
	binary, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the program, which is started for shards: %w", err)
	}
	cluster, err := devcluster.Prepare(ctx, devcluster.Options{Release: c.Env.Release, Program: binary,
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return interruptedOr(ctx, err)
	}
	defer func() { err = errors.Join(err, cluster.Close()) }()
	failed, told := 0, 0
	devstory.Tell(ctx, cluster, func(r devstory.Result) {
		told++
		if !r.OK {
			failed++
		}
		if err := writeStep(c.Env.Stdout, r, c.Format == term.JSON); err != nil {
			failed++
		}
	})
	if ctx.Err() != nil {
		return errcode.New(errcode.Interrupted, "what", "the story")
	}
	if failed > 0 {
		return errcode.New(errcode.StoryFailed, "failed", failed, "steps", told)
	}
	if exit {
		return nil
	}
	if err := cluster.TakeHarm(); err != nil {
		return err
	}
	c.Say("the cluster of the story goes on until Ctrl-C: fealty status --socket %s", cluster.AdminSocket())
	select {
	case <-ctx.Done():
		return nil
	case <-cluster.Done():
		return errors.New("a part of the cluster failed") // Close says which, and why
	}
}

// writeStep prints one step: a line of JSON, or lines for a person.
func writeStep(w io.Writer, r devstory.Result, asLine bool) error {
	if asLine {
		return json.NewEncoder(w).Encode(r)
	}
	word := "ok"
	if !r.OK {
		word = "FAILED"
	}
	_, err := fmt.Fprintf(w, "%-6s %-21s %s\n       %-21s %s (%.2f s)\n       %-21s shown by: %s\n",
		word, r.Step, r.Expected, "", term.Sanitize(r.Seen), r.Seconds, "", r.How)
	return err
}

// shownDir is a folder as somebody in from would type it: below from without what
// leads there.
func shownDir(from, dir string) string {
	if from == "" {
		from = "."
	}
	if abs, err := filepath.Abs(from); err == nil {
		if rel, err := filepath.Rel(abs, dir); err == nil && filepath.IsLocal(rel) {
			return rel
		}
	}
	return dir
}
