package devcluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/snapshot"
)

// leaderKey is where the store says who leads: every write of a leader is conditional
// on it, and its version is the term.
const leaderKey = "leader/term"

// Leader returns the coordinator that leads, and its term.
func (c *Cluster) Leader(ctx context.Context) (name string, term uint64, err error) {
	err = c.await(ctx, "a coordinator to lead", func(context.Context) (bool, error) {
		name, term = "", 0
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, r := range c.coordinators {
			if r.run == nil {
				continue
			}
			// Of two that believe so the later one does.
			if at, ok := r.run.coordinator.Leading(); ok && at > term {
				name, term = r.name, at
			}
		}
		return name != "", errors.New("none does")
	})
	return name, term, err
}

// wireOf is what lies between a coordinator that runs and all else.
func (c *Cluster) wireOf(name string) (*wire, error) {
	r, err := c.replica(name)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.run == nil {
		return nil, fmt.Errorf("%s does not run", name)
	}
	return r.run.wire, nil
}

func storyLeaderKilled(ctx context.Context, c *Cluster) (string, error) {
	old, term, err := c.Leader(ctx)
	if err != nil {
		return "", err
	}
	if err := c.KillCoordinator(old); err != nil {
		return "", err
	}
	began := time.Now()
	next, nextTerm, err := c.Leader(ctx)
	if err != nil {
		return "", err
	}
	took := time.Since(began)
	if next == old || nextTerm <= term {
		return "", fmt.Errorf("%s leads under term %d, after %s under term %d", next, nextTerm, old, term)
	}
	// It leads: what only a leader writes is written.
	if err := c.PutConfig(ctx, storyRoute(103)); err != nil {
		return "", err
	}
	if err := c.awaitContent(ctx, snapshot.ScopeRoutePolicy, `"priority":103`, "node-a", "node-b"); err != nil {
		return "", err
	}
	wrote := time.Since(began)
	if err := c.StartCoordinator(ctx, old); err != nil {
		return "", err
	}
	if err := c.AwaitReady(ctx); err != nil {
		return "", err
	}
	if again, now, err := c.Leader(ctx); err != nil || again != next || now != nextTerm {
		return "", fmt.Errorf("after %s came back %s leads under term %d (%w)", old, again, now, err)
	}
	return fmt.Sprintf("%s was killed in term %d; %s leads in term %d after %d ms, and the nodes use what it published after %d ms; %s came back and follows",
		old, term, next, nextTerm, took.Milliseconds(), wrote.Milliseconds(), old), nil
}

func storyLateWrite(ctx context.Context, c *Cluster) (string, error) {
	old, term, err := c.Leader(ctx)
	if err != nil {
		return "", err
	}
	w, err := c.wireOf(old)
	if err != nil {
		return "", err
	}
	// What the leader publishes next is held back on its way to the store.
	held := w.hold(func(tx store.Tx) bool {
		return writes("publication/")(tx) && slices.ContainsFunc(tx.If, func(i store.Condition) bool { return i.Key == leaderKey })
	})
	if err := c.PutConfig(ctx, storyRoute(104)); err != nil {
		return "", err
	}
	var late store.Tx
	waiting, cancel := context.WithTimeout(ctx, awaitLimit)
	defer cancel()
	select {
	case late = <-held:
	case <-waiting.Done():
		return "", fmt.Errorf("%s publishes nothing: %w", old, waiting.Err())
	}
	if err := c.KillCoordinator(old); err != nil {
		return "", err
	}
	next, nextTerm, err := c.Leader(ctx)
	if err != nil {
		return "", err
	}
	// The change is published: by the successor.
	if err := c.awaitContent(ctx, snapshot.ScopeRoutePolicy, `"priority":104`, "node-a", "node-b"); err != nil {
		return "", err
	}
	before, err := c.store.List(ctx, "publication/")
	if err != nil {
		return "", err
	}
	// Now what was held back arrives: as it was sent, and as one that depends on nothing
	// but that its sender leads.
	alone := cloneTx(late)
	alone.ID, alone.If = "", slices.DeleteFunc(slices.Clone(late.If), func(i store.Condition) bool { return i.Key != leaderKey })
	for _, tx := range []store.Tx{late, alone} {
		_, err := c.store.Commit(ctx, tx)
		conflict, ok := errors.AsType[*store.ConflictError](err)
		if !ok {
			return "", fmt.Errorf("the write of %s, which led in term %d, arrived in term %d: %v", old, term, nextTerm, err)
		}
		if len(tx.If) == 1 && (conflict.Key != leaderKey || uint64(conflict.Want) != term) {
			return "", fmt.Errorf("it failed for %s at %d", conflict.Key, conflict.Want)
		}
	}
	after, err := c.store.List(ctx, "publication/")
	if err != nil {
		return "", err
	}
	if !slices.EqualFunc(before.Entries, after.Entries, func(a, b store.Entry) bool { return a.Version == b.Version && bytes.Equal(a.Value, b.Value) }) {
		return "", errors.New("what is published is another one than before")
	}
	if err := c.StartCoordinator(ctx, old); err != nil {
		return "", err
	}
	if err := c.AwaitReady(ctx); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s was killed with a write under way; %s leads in term %d, and published it; the late one fails in the store: %s is not at %d any more", old, next, nextTerm, leaderKey, term), nil
}
