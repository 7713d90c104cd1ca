package story

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/dev/cluster"
	"github.com/fealty-io/fealty/internal/dev/process"
	"github.com/fealty-io/fealty/internal/platform/durable"
)

// edges are the programs of the steps about connections between processes. They belong to one goroutine.
type edges struct {
	c         *cluster.Cluster
	dir       string // their folder
	program   string // the path of fealty
	programs  []*process.Program
	endpoints *endpoints // nil: not started
	members   []string   // whose agents run
}

func newEdges(_ context.Context, c *cluster.Cluster) (*edges, error) {
	e := &edges{c: c, dir: filepath.Join(c.Dir(), "edges"), program: c.Programs().Program}
	return e, durable.OS().MkdirAll(e.dir)
}

func edgeSteps() []step {
	return byPrograms(newEdges, []programStep[*edges]{
		{"credential-rotation", "the certificate files of two endpoints and of their client are replaced again and " +
			"again while calls go on: each new one is used without a restart, and no call fails",
			(*edges).credentialRotation},
		{"bad-endpoint-skipped", "of four endpoints one has a foreign CA and one another identity: calls go to the " +
			"others, each bad one is named once with its reason, and one is used as soon as its files are mended",
			(*edges).badEndpointSkipped},
		{"workload-svid", "a process that is assigned to a machine gets its certificate from the agent's socket; " +
			"another one of the same user gets none, and the agent says why", (*edges).workloadSVID},
		{"revoked-connection", "a banned member's open connection to another member's process ends, and it does " +
			"not get another one; that of a member beside it stays", (*edges).revokedConnection},
	})
}

func (e *edges) close() (err error) {
	for _, p := range e.programs {
		p.Kill()
	}
	for _, name := range e.members {
		err = errors.Join(err, e.c.StopMember(name))
	}
	e.programs, e.members, e.endpoints = nil, nil, nil
	return err
}

// join has a member join, and notes that its agent runs.
func (e *edges) join(ctx context.Context, kind identity.Kind, name string) (dir string, err error) {
	if dir, err = e.c.Enlist(ctx, kind, name); err != nil {
		return "", fmt.Errorf("%s/%s joins: %w", kind, name, err)
	}
	e.members = append(e.members, name)
	return dir, nil
}

// started notes a program that was started, and what is to be ended.
func (e *edges) started(p *process.Program, err error) (*process.Program, error) {
	if err == nil {
		e.programs = append(e.programs, p)
	}
	return p, err
}
