package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
)

// silence is how long a person waits without being told for what.
const silence = 2 * time.Second

// leftOut says why a member, whose folder is dir, is not waited for: somebody keeps it out of the cluster,
// which starts without it. It returns "" for one that is to connect.
func leftOut(st *fealtyv1.GetStatusResponse, name, dir string) (string, error) {
	i := slices.IndexFunc(st.GetMembers(), func(m *fealtyv1.Member) bool {
		return m.GetKind() == string(identity.Data) && m.GetName() == name
	})
	if i < 0 {
		joined, err := hasIdentity(dir)
		if !joined || err != nil {
			return "", err
		}
		return "was removed", nil
	}
	switch m := st.GetMembers()[i]; {
	case m.GetBanned():
		return "is banned", nil
	case m.GetState() != "active":
		return "is " + m.GetState(), nil
	}
	return "", nil
}

// hasIdentity reports whether the member of a folder joined some time.
func hasIdentity(dir string) (bool, error) {
	switch _, err := os.Stat(filepath.Join(dir, "identity", "anchor.json")); {
	case err == nil:
		return true, nil
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	default:
		return false, err
	}
}

// unconnected returns those of names that no coordinator has a stream of.
func (c *Cluster) unconnected(ctx context.Context, names []string) ([]string, error) {
	st, err := c.Status(ctx)
	if err != nil {
		return nil, err
	}
	connected := make(map[string]bool)
	for _, m := range st.GetMembers() {
		connected[m.GetName()] = m.GetLive().GetConnected()
	}
	var out []string
	for _, name := range names {
		// A coordinator may not have noticed yet that another one is gone.
		if node, err := c.Node(ctx, name); !connected[name] || err != nil || !node.GetConnected() {
			out = append(out, name)
		}
	}
	return out, nil
}

// notConnected is the error for members that are not connected; nil for none.
func notConnected(names []string) error {
	if len(names) == 0 {
		return nil
	}
	return fmt.Errorf("not connected: %s", strings.Join(names, ", "))
}

// awaitConnected waits until the members are connected. A cluster that runs without one of
// them is worth more than none: whoever is late goes on trying.
func (c *Cluster) awaitConnected(ctx context.Context, names []string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.ctx, func() { cancel(fmt.Errorf("a part of the cluster ended: %w", context.Cause(c.ctx))) })()
	return awaitConnected(ctx, c.opts.Progress,
		func(ctx context.Context) ([]string, error) { return c.unconnected(ctx, names) })
}

// awaitConnected asks who is missing until nobody is, or for as long as a dev cluster waits
// for anything: then it says who is, and that is no error. It is one if nobody could
// tell, or ctx ended.
func awaitConnected(ctx context.Context, say func(string), missing func(context.Context) ([]string, error)) error {
	within, cancel := context.WithTimeout(ctx, AwaitLimit)
	defer cancel()
	late := time.NewTimer(silence)
	defer late.Stop()
	var last []string
	var unknown error
	for {
		asked := time.Now()
		switch out, err := missing(within); {
		case err == nil && len(out) == 0:
			return nil
		case within.Err() == nil:
			last, unknown = out, err
		}
		select {
		case <-late.C:
			who := strings.Join(last, ", ")
			if unknown != nil {
				who = "an answer about its members"
			}
			say("waiting for " + who + " …")
			late.Reset(5 * silence)
		case <-time.After(UntilNext(asked)):
		case <-within.Done():
			switch {
			case ctx.Err() != nil:
				return fmt.Errorf("waiting for members to connect: %w", context.Cause(ctx))
			case unknown != nil:
				return fmt.Errorf("waiting for members to connect: %w", unknown)
			}
			say(fmt.Sprintf("warning: not connected after %s: %s; the cluster runs without, and they go on trying. See why: fealty member show data/%s",
				AwaitLimit, strings.Join(last, ", "), last[0]))
			return nil
		}
	}
}
