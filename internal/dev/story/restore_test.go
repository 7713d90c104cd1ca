package story

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/dev/cluster"
)

// A restore of an old backup under a running fleet: see restore. Then the fleet
// goes on: another start, another set of tokens.
func TestRestore(t *testing.T) { testRestore(t, cluster.Options{}) }

func testRestore(t *testing.T, opts cluster.Options) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	opts.Release, opts.Log = "test", slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	c, err := cluster.Start(ctx, opts)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := c.AwaitConnected(ctx, "node-a", "node-b", "node-c"); err != nil {
		t.Fatal(err)
	}
	seen, err := restore(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(seen)
	if _, err := c.Join(ctx, "node-n"); err != nil {
		t.Fatal(err)
	}
	if err := c.StopCoordinators(); err != nil {
		t.Fatal(err)
	}
	if err := c.StartCoordinators(ctx); err != nil {
		t.Fatal(err)
	}
	if err := c.AwaitConnected(ctx, "node-a", "node-b", "node-c"); err != nil {
		t.Fatal(err)
	}
}
