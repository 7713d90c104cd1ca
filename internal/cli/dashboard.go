package cli

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"

	"github.com/spf13/cobra"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/internal/cli/dashboard"
	"github.com/fealty-io/fealty/internal/cli/program"
	"github.com/fealty-io/fealty/internal/cli/server"
	"github.com/fealty-io/fealty/internal/cli/settings"
	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/coordinator/web"
	"github.com/fealty-io/fealty/internal/errcode"
)

// dashboardAddress is what fealty dashboard prints.
type dashboardAddress struct {
	URL string `json:"url"`
}

func dashboardCommand(c *program.CLI) *cobra.Command {
	var listen, cert, key string
	cmd := c.Command(program.Command{
		Use: "dashboard", Short: "serve pages for a browser that show the fleet",
		Long: `Serve pages for a browser that show the fleet, until Ctrl-C: how it is and since when, what needs attention with
what to do, coordinators, members, what runs out next, and who did what. The pages change as the fleet does. They show
what the identity that asks may see, from any coordinator that answers, also while none leads, and change nothing.

The first line of output is the address to open. It holds a secret that is new at each start: whoever has the address
reads what you may read, and nobody without it does, neither other users of this machine nor pages of the web. Pages are
served on loopback, to this machine alone; with --cert and --key any address will do, over TLS.`,
		Sample: `  fealty dashboard
  fealty dashboard --listen 127.0.0.1:8088
  fealty dashboard --listen :8443 --cert dashboard.pem --key dashboard.key`,
		Groups: []settings.Group{settings.Client}, GoesOn: program.Always,
		Run: func(ctx context.Context, cfg *settings.Values, _ []string) error {
			if err := checkDashboardListen(listen, cert, key); err != nil {
				return err
			}
			line, err := c.Dial(cfg)
			if err != nil {
				return err
			}
			defer line.Close()
			d := dashboard.Config{Secret: dashboard.NewSecret(), Line: line, Called: c.Called, Now: c.Env.Now}
			var following sync.WaitGroup
			defer following.Wait()
			ctx, end := context.WithCancel(ctx)
			defer end()
			if cert != "" {
				pair, err := web.OpenPair(web.PairConfig{Cert: cfg.Within(cert), Key: cfg.Within(key), Now: c.Env.Now,
					Log: slog.New(server.LogHandler(c, c.Env.Stderr, "text", slog.LevelInfo)), OnFailure: func(credential.Reason) {}})
				if err != nil {
					return err
				}
				following.Go(func() { _ = pair.Run(ctx) }) // it ends with its context alone
				d.Certificate = pair.Certificate
			}
			if d.Listener, err = server.ListenOn(ctx, listen, "--listen"); err != nil {
				return err
			}
			defer d.Listener.Close()
			shown := dashboardAddress{d.URL()}
			if err := c.Print(program.ResultOf(shown, func(p *term.Page) error {
				_, err := fmt.Fprintln(p.W, shown.URL)
				return err
			})); err != nil {
				return err
			}
			c.Say("open this address in a browser; whoever has it reads what you may read, until Ctrl-C")
			if err := dashboard.Serve(ctx, d); ctx.Err() == nil {
				return err
			}
			return nil
		},
	})
	f := cmd.Flags()
	f.StringVar(&listen, "listen", "127.0.0.1:0", "serve on this address; port 0 is any that is free")
	f.StringVar(&cert, "cert", "", "the PEM file of a certificate for the web, with its issuers, for an address that is not on loopback")
	f.StringVar(&key, "key", "", "the PEM file of its key; both files are followed as they change")
	return cmd
}

// checkDashboardListen refuses an address at which others could read the pages on their way.
func checkDashboardListen(listen, cert, key string) error {
	if (cert == "") != (key == "") {
		return errcode.New(errcode.BadValue, "name", "--cert", "value", cert, "problem",
			"--cert and --key go together", "want", "both of them, or none on loopback")
	}
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return errcode.Wrap(err, errcode.BadValue, "name", "--listen", "value", listen, "problem", "it is no HOST:PORT", "want",
			"HOST:PORT, such as 127.0.0.1:8088")
	}
	if ip, err := netip.ParseAddr(host); cert == "" && (err != nil || !ip.IsLoopback() || ip.Zone() != "") {
		return errcode.New(errcode.BadValue, "name", "--listen", "value", listen, "problem",
			"it is no address of loopback, and without TLS who is on the way reads the pages", "want",
			"127.0.0.1:PORT or [::1]:PORT, or --cert and --key with it")
	}
	return nil
}
