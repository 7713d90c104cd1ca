// Package story has the steps of `fealty dev` that show which certificates and tokens programs
// accept: endpoints whose certificate files rotate or are wrong, processes of a member, and a
// member that is banned. It makes a small PKI for an operator ([PKISet]).
//
// All that serves is a process of its own, and so is the agent that gives processes their
// identities. They end with the steps, or with the process that started them.
package story

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/dev/process"
	"github.com/fealty-io/fealty/internal/platform/durable"
)

// Config is what the steps need of the cluster. All of it is required.
type Config struct {
	Dir     string // their folder, which is made
	Program string // the path of fealty
	Cluster string // its id

	// Join makes a member of a kind, has its agent run, and returns the agent's folder.
	Join func(ctx context.Context, kind identity.Kind, name string) (dir string, err error)
	// Leave ends the agent of a member.
	Leave func(name string) error
	// Admin calls f with a connection to a coordinator, as an admin.
	Admin func(f func(*grpc.ClientConn) error) error
	// Await asks ok until it says yes, for a bounded time.
	Await func(ctx context.Context, what string, ok func(context.Context) (bool, error)) error
	// Note is told by what something is shown.
	Note func(what string)
}

// Step is one thing that is shown.
type Step struct {
	ID       string
	Expected string
	run      func(*Edges, context.Context) (seen string, err error) // as expected without an error
}

// Steps are all of them, in order.
func Steps() []Step {
	return []Step{
		{"credential-rotation", "the certificate files of two endpoints and of their client are replaced again and " +
			"again while calls go on: each new one is used without a restart, and no call fails",
			(*Edges).credentialRotation},
		{"bad-endpoint-skipped", "of four endpoints one has a foreign CA and one another identity: calls go to the " +
			"others, each bad one is named once with its reason, and one is used as soon as its files are mended",
			(*Edges).badEndpointSkipped},
		{"workload-svid", "a process that is assigned to a machine gets its certificate from the agent's socket; " +
			"another one of the same user gets none, and the agent says why", (*Edges).workloadSVID},
		{"revoked-connection", "a banned member's open connection to another member's process ends, and it does " +
			"not get another one; that of a member beside it stays", (*Edges).revokedConnection},
	}
}

// Edges are the programs. They belong to one goroutine.
type Edges struct {
	cfg       Config
	programs  []*process.Program
	endpoints *endpoints // nil: not started
	members   []string   // whose agents run
}

// NewEdges starts nothing.
func NewEdges(cfg Config) *Edges { return &Edges{cfg: cfg} }

// Tell has a step shown. It ends everything after the last one, and after one that failed.
func (e *Edges) Tell(ctx context.Context, s Step) (seen string, err error) {
	if !process.Supported {
		return "not shown: " + process.Unsupported, nil
	}
	if e.cfg.Program == "" {
		return "", errors.New("edges: Config.Program is missing, and what is shown are programs")
	}
	if err = durable.OS().MkdirAll(e.cfg.Dir); err == nil {
		seen, err = s.run(e, ctx)
	}
	if all := Steps(); err != nil || s.ID == all[len(all)-1].ID {
		err = errors.Join(err, e.close())
	}
	return seen, err
}

func (e *Edges) close() (err error) {
	for _, p := range e.programs {
		p.Kill()
	}
	for _, name := range e.members {
		err = errors.Join(err, e.cfg.Leave(name))
	}
	e.programs, e.members, e.endpoints = nil, nil, nil
	return err
}

// join has a member join, and notes that its agent runs.
func (e *Edges) join(ctx context.Context, kind identity.Kind, name string) (dir string, err error) {
	if dir, err = e.cfg.Join(ctx, kind, name); err != nil {
		return "", fmt.Errorf("%s/%s joins: %w", kind, name, err)
	}
	e.members = append(e.members, name)
	return dir, nil
}

// started notes a program that was started, and what is to be ended.
func (e *Edges) started(p *process.Program, err error) (*process.Program, error) {
	if err == nil {
		e.programs = append(e.programs, p)
	}
	return p, err
}
