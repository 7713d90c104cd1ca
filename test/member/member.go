// Package member runs real agents of members that join a fleet of real coordinators.
package member

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/agent"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/node/enroll"
)

// Member is a member of a fleet, by the folder of its agent.
type Member struct {
	Dir  string
	t    testing.TB
	f    *coordinatortest.Fleet
	stop func()
}

// Join has a new machine join under an entry of the manifest that admits by tokens. Its agent does not run yet.
func Join(t testing.TB, f *coordinatortest.Fleet, entry, name string) *Member {
	t.Helper()
	m := &Member{Dir: t.TempDir(), t: t, f: f, stop: func() {}}
	_, err := enroll.Join(t.Context(), enroll.JoinConfig{DataDir: m.Dir, Log: slog.New(slog.DiscardHandler), Now: f.Clock,
		Proof: enroll.ByToken(f.Token(&fealtyv1.CreateTokenRequest{Entry: entry, Name: name}))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.stop() })
	return m
}

// Start runs the agent until [Member.Stop], or the end of the test. alter changes its config.
func (m *Member) Start(alter ...func(*agent.Config)) {
	m.t.Helper()
	cfg := agent.Config{DataDir: m.Dir, Log: slog.New(slog.DiscardHandler), Now: m.f.Clock, Release: "test"}
	for _, a := range alter {
		a(&cfg)
	}
	a, err := agent.Open(m.t.Context(), cfg)
	if err != nil {
		m.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	m.stop = func() {
		m.stop = func() {}
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			m.t.Error(err)
		}
	}
}

// Stop ends the agent, if it runs.
func (m *Member) Stop() {
	m.t.Helper()
	m.stop()
}
