package program

import (
	"path/filepath"
	"time"

	"github.com/fealty-io/fealty/internal/cli/client"
	"github.com/fealty-io/fealty/internal/cli/settings"
	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/errcode"
)

// devFolder is where a local cluster is kept, below the folder in which it was
// started, and devSockets where its coordinators have their admin sockets.
const (
	DevFolder  = ".fealty-dev"
	devSockets = DevFolder + "/coordinator-*/admin.sock"
)

// Ask runs f with a connection to the coordinator that the settings name.
func (c *CLI) Ask(cfg *settings.Values, f func(*client.Services) error) error {
	l, err := c.Dial(cfg)
	if err != nil {
		return err
	}
	defer l.Close()
	return f(client.ServicesOf(l))
}

// Dial opens the way to the coordinators that the settings name, or else to those of
// the current context. It connects on the first call.
func (c *CLI) Dial(cfg *settings.Values) (*client.Line, error) {
	socket, coordinators, who := cfg.Find("socket"), cfg.Find("coordinator"),
		max2(cfg.Find("identity"), cfg.Find("context"))
	remote := max(coordinators.Rank, who.Rank)
	timeout := cfg.Duration("timeout")
	switch {
	case socket.Text != "" && socket.Rank == remote:
		return nil, errcode.New(errcode.BadValue, "name", "--socket", "value",
			"given together with "+max2(coordinators, who).From,
			"problem", "they name two ways to a coordinator", "want", "one of them")
	case socket.Text != "" && socket.Rank > remote:
		return client.Dial(cfg.Path("socket"), timeout)
	}
	p, err := c.Person(cfg)
	if err != nil {
		return nil, err
	}
	// The pattern is a good one; what it finds is sorted.
	found, _ := filepath.Glob(cfg.Within(devSockets))
	switch {
	case p.Dir != "" || remote > settings.FromDefault:
		if p.Rank == settings.FromDefault && remote == settings.FromDefault && len(found) > 0 {
			c.Say("asking with the login of context %s; for the local cluster in %s name its socket, --socket %s",
				p.Context, DevFolder, term.ShellWord(found[0]))
		}
		return c.dialRemote(cfg, p, timeout)
	case len(found) > 0:
		c.Say("no coordinator is named: asking the local cluster in %s", DevFolder)
		return client.DialAll(found, timeout)
	}
	return nil, errcode.New(errcode.NoCoordinatorConfigured,
		"looked", "flags, environment, configuration file, logins of this user and ./.fealty-dev",
		"ways", "on a coordinator's machine --socket PATH; elsewhere fealty login --token-file FILE once, or "+
			"--identity DIR of such a login, with --coordinator HOST:PORT for another address; "+
			"or FEALTY_SOCKET, FEALTY_CONTEXT, FEALTY_IDENTITY, FEALTY_COORDINATOR, or a file with --config")
}

func max2(a, b settings.Value) settings.Value {
	if a.Rank >= b.Rank {
		return a
	}
	return b
}

// dialRemote opens the way to coordinators elsewhere, as the person that logged in.
func (c *CLI) dialRemote(cfg *settings.Values, p person, timeout time.Duration) (*client.Line, error) {
	if p.Dir == "" {
		return nil, errcode.New(errcode.BadValue, "name", "--coordinator", "value", "given alone",
			"problem", "a coordinator elsewhere has to know who asks", "want",
			"a login too: fealty login --token-file FILE, or --identity DIR of one")
	}
	login, err := p.Load(c)
	if err != nil {
		return nil, err
	}
	addresses := login.Addresses
	if named := cfg.List("coordinator"); len(named) > 0 {
		addresses = named
	}
	if len(addresses) == 0 {
		return nil, errcode.New(errcode.NoCoordinatorConfigured, "looked", "the identity in "+p.Dir)
	}
	return client.DialAs(login, addresses, c.Env.Now, timeout)
}
