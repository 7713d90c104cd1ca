package server

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"

	"github.com/fealty-io/fealty/internal/cli/program"
	"github.com/fealty-io/fealty/internal/cli/settings"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/platform/logging"
	"github.com/fealty-io/fealty/internal/platform/reload"
	"github.com/fealty-io/fealty/internal/platform/sdnotify"
)

// Running is what a command that goes on has of the process that it is run in.
type Running struct {
	Log *slog.Logger

	// Output is the stream that the log goes to; nil where the command is not run by a process of its own.
	Output *logging.Writer

	// Reload takes what has to be read again when the process gets SIGHUP.
	Reload *reload.Parts

	// Service tells systemd how the process is, once [sdnotify.Notifier.Watch] says how to look. Nil: nobody asked.
	Service *sdnotify.Notifier

	// Locks are what the process has locked: who else wants one of them is told of in the log.
	Locks *durable.Locks
}

// Serve runs a command that goes on. While it runs, what it adds to [Running.Reload] is read again when the
// process is told to, and so are the settings of the log. It says when another process wanted what this one has locked.
func Serve(ctx context.Context, c *program.CLI, cfg *settings.Values,
	do func(ctx context.Context, r Running) error) error {
	handler := LogHandler(c, c.Env.Stderr, cfg.Text("log_format"), logLevel(cfg))
	r := Running{Log: slog.New(handler), Reload: new(reload.Parts), Locks: new(durable.Locks)}
	r.Output, _ = c.Env.Stderr.(*logging.Writer)
	r.Reload.Add(settingsPart(cfg, handler))
	service, err := sdnotify.Open(c.Getenv, os.Getpid())
	if err != nil {
		r.Log.Warn("systemd is not told how this service is", "err", err)
	}
	r.Service = service
	ctx, cancel := context.WithCancel(ctx)
	var reading sync.WaitGroup
	reading.Go(func() { r.Reload.Run(ctx, c.Env.Hangups, r.Log, r.Service.Reloading) })
	reading.Go(func() { r.Service.Run(ctx) })
	reading.Go(func() { r.Locks.TellNewcomers(ctx, r.Log) })
	defer reading.Wait()
	defer cancel()
	return do(ctx, r)
}

// settingsPart has the settings read again. Those of the log are adopted, and of all others it says which changed:
// they count from the next start on.
func settingsPart(started *settings.Values, log *logging.Handler) reload.Part {
	now := started
	return reload.Part{Name: "settings", Read: func(context.Context) (string, error) {
		next, err := started.Again()
		if err != nil {
			return "", err
		}
		var changed, later []string
		for _, v := range next.InForce {
			switch {
			case v.Key == "log_level" || v.Key == "log_format":
				if was := now.Text(v.Key); was != v.Text {
					changed = append(changed, v.Key+" is "+v.Text+" ("+v.From+") and was "+was)
				}
			case v.Text != started.Text(v.Key):
				later = append(later, v.Key)
			}
		}
		log.Set(next.Text("log_format"), logLevel(next))
		now = next
		if len(later) > 0 {
			changed = append(changed, strings.Join(later, ", ")+" changed since the start, and counts from the next one on")
		}
		return strings.Join(changed, ", "), nil
	}}
}

// logLevel is the level that the settings name.
func logLevel(cfg *settings.Values) (level slog.Level) {
	if err := level.UnmarshalText([]byte(cfg.Text("log_level"))); err != nil {
		panic("server: log_level was not checked: " + err.Error())
	}
	return level
}

// LogHandler writes the log of a command to w.
func LogHandler(c *program.CLI, w io.Writer, format string, level slog.Level) *logging.Handler {
	return logging.NewHandler(w, logging.Config{Format: cmp.Or(format, "text"), Level: level,
		Terminal: c.Env.IsTerminal(w), Colour: c.Coloured(w)})
}
