package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/snapshot"
)

// Limits of the program that runs on a change.
const (
	hookTimeout   = 30 * time.Second
	hookOutput    = 4 << 10 // bytes of what it prints that are logged
	hookWaitDelay = 2 * time.Second
)

// hookFailed stands for content that the program failed with.
const hookFailed = "failed"

// hooks runs a program after what a scope says in use has changed: one at a time, and
// of several changes while one runs only the last. It is not run again for content that
// it succeeded with, also over a restart.
type hooks struct {
	argv    []string      // empty: there is none
	timeout time.Duration // of one run
	notify  chan struct{}

	mu   sync.Mutex
	due  map[snapshot.Scope]bool   // guarded by mu
	done map[snapshot.Scope]string // content hash that it succeeded with; guarded by mu
}

func newHooks(argv []string) *hooks {
	return &hooks{
		argv: argv, timeout: hookTimeout, notify: make(chan struct{}, 1), due: make(map[snapshot.Scope]bool),
		done: make(map[snapshot.Scope]string),
	}
}

// changed asks for a run for each of the scopes.
func (h *hooks) changed(of ...snapshot.Scope) {
	if len(h.argv) == 0 {
		return
	}
	h.mu.Lock()
	for _, scope := range of {
		h.due[scope] = true
	}
	h.mu.Unlock()
	state.Notify(h.notify)
}

func (h *hooks) applied(scope snapshot.Scope, content string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.done[scope] = content
}

func (h *hooks) appliedTo(scope snapshot.Scope) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.done[scope]
}

// take returns a scope that is due, in the order of verification, and false if none is.
func (h *hooks) take() (snapshot.Scope, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, scope := range state.Scopes {
		if h.due[scope] {
			delete(h.due, scope)
			return scope, true
		}
	}
	return "", false
}

// runHooks runs the program until ctx ends.
func (a *Agent) runHooks(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-a.hooks.notify:
		}
		for ctx.Err() == nil {
			scope, ok := a.hooks.take()
			if !ok {
				break
			}
			a.runHook(ctx, scope)
		}
	}
}

// runHook runs the program for what is in use of scope now. Its exit status is the
// verdict of a trial.
func (a *Agent) runHook(ctx context.Context, scope snapshot.Scope) {
	v, refused := a.node.Autonomy.Use(scope)
	content, version := "", uint64(0)
	env := []string{"FEALTY_SCOPE=" + string(scope), "FEALTY_CLUSTER=" + a.node.Me().Cluster, "FEALTY_MEMBER=" +
		a.node.Me().ID.String()}
	if refused != nil {
		env = append(env, "FEALTY_EVENT=dropped", "FEALTY_FILE=")
	} else {
		header := v.Header()
		content, version = snapshot.DigestOf([]byte(v.ContentJSON())).String(), header.ConfigVersion
		env = append(env, "FEALTY_EVENT=changed", "FEALTY_FILE="+a.node.Store().Path(dir.CurrentName(scope)),
			"FEALTY_CONTENT_HASH="+content,
			"FEALTY_CONFIG_VERSION="+strconv.FormatUint(version, 10),
			"FEALTY_AUTHORITY_EPOCH="+strconv.FormatUint(header.AuthorityEpoch, 10))
	}
	if content == a.hooks.appliedTo(scope) {
		return
	}
	begin := time.Now()
	output, err := a.hooks.run(ctx, env)
	if ctx.Err() != nil {
		return // the agent ends: the next start runs it again
	}
	outcome, level := "ok", slog.LevelInfo
	if err != nil {
		outcome, level = "error", slog.LevelError
	}
	a.metrics.hookRuns.WithLabelValues(string(scope), outcome).Inc()
	a.log.LogAttrs(ctx, level, "the program for changes ran", slog.String("scope", string(scope)),
		slog.Uint64("config_version", version), slog.String("outcome", outcome),
		slog.Duration("took", time.Since(begin)), slog.Any("err", err), slog.String("output", output))
	if err != nil {
		content = hookFailed // whatever it did with it: what comes next, also what was before, is news
	}
	a.hooks.applied(scope, content)
	if refused != nil {
		return
	}
	detail := ""
	if err != nil {
		detail = err.Error()
	}
	if judged := a.node.Trials.Judged(ctx, scope, version, err == nil, state.FailedHook, detail); judged != nil &&
		!errors.Is(judged, state.ErrNoTrial) {
		return // the agent ends
	}
	state.Notify(a.node.Trials.Changed) // to write down what succeeded
}

// run runs the program once, and returns the end of what it printed.
func (h *hooks) run(ctx context.Context, env []string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, h.timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, h.argv[0], h.argv[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.WaitDelay = hookWaitDelay
	var out tail
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = fmt.Errorf("it did not end within %v", h.timeout)
	}
	return state.Clip(string(bytes.ToValidUTF8(out.data, []byte("?"))), hookOutput), err
}

// tail keeps the end of what is written to it.
type tail struct{ data []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.data = append(t.data, p...)
	if n := len(t.data) - hookOutput; n > 0 {
		t.data = slices.Delete(t.data, 0, n)
	}
	return len(p), nil
}

// changed tells who follows it that what is in use of the scopes changed. The caller
// holds a.activation.
func (a *Agent) changed(of ...snapshot.Scope) { a.hooks.changed(of...) }
