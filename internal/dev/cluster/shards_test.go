package cluster

import (
	"io"
	"log/slog"
	"strings"
	"testing"
)

// A cluster whose shards cannot be started runs without, and says so.
func TestNoShards(t *testing.T) {
	t.Parallel()
	var said []string
	c, err := Start(t.Context(), Options{Program: "/nonexistent/fealty", Members: []string{"node-a"},
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Progress: func(text string) { said = append(said, text) }})
	if err != nil {
		t.Fatal(err)
	}
	if text := strings.Join(said, "\n"); !strings.Contains(text, "no shard runs: ") || c.Shards() != nil {
		t.Errorf("it says %q, and runs %v", text, c.Shards())
	}
	if _, err := c.Do(t.Context(), Harm{Kind: BreakShard}); err == nil {
		t.Error("a shard that does not run was broken")
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
