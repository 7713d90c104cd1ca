package storeguard

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"time"

	"github.com/fealty-io/fealty/internal/regress"
	"github.com/fealty-io/fealty/internal/watch"
)

// These files in Config.Dir say what was seen of a store. The second file moves with the trust state alone.
const (
	StoreSeenFile = "store-seen.json"
	TrustSeenFile = "trust-seen.json"
)

// keepPause is how often they are written at most.
const keepPause = time.Second

func (g *Guard) path(name string) string { return g.cfg.Dir + "/" + name }

// Load reads what was seen of the store before. If it cannot be told, [Guard.Fault] says
// why from then on, and the files are left as they are.
func (g *Guard) Load() {
	g.fault = g.load()
}

func (g *Guard) load() error {
	var parts [2]regress.Record
	for i, name := range []string{StoreSeenFile, TrustSeenFile} {
		raw, err := g.cfg.FS.ReadFile(g.path(name), regress.MaxRecordBytes)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			parts[i], err = regress.Decode(raw)
		}
		if err != nil {
			return fmt.Errorf("read %s, which says what this coordinator has seen of the store: %w: "+
				"restore it, or remove it to believe the store", g.path(name), err)
		}
	}
	g.kept.Resume(regress.Join(parts[0], parts[1]))
	if loss := g.kept.Lost(); loss != nil {
		g.cfg.Log.LogAttrs(context.Background(), slog.LevelError,
			"the store went back, and was not restored since", slog.String("lost", loss.String()))
	}
	return nil
}

// Fault says why it cannot be told what was seen of the store before; nil if it can. With a
// fault nobody may become ready: a store that went back would be believed.
func (g *Guard) Fault() error { return g.fault }

// Keep writes down what was seen of the store, as far as that is news. It is a second line
// of defence, so that a full disk here stops nothing.
func (g *Guard) Keep(ctx context.Context) {
	g.keeping.Lock()
	defer g.keeping.Unlock()
	if g.fault != nil {
		return // it would be overwritten
	}
	small, trust := g.kept.Record().Split()
	for i, part := range []regress.Record{trust, small} {
		raw, err := part.Encode()
		sum := sha256.Sum256(raw)
		if err == nil && g.written[i] != sum {
			name := []string{TrustSeenFile, StoreSeenFile}[i]
			if err = g.cfg.FS.WriteFile(g.path(name), raw); err == nil {
				g.written[i] = sum
			}
		}
		if err != nil {
			g.cfg.Failures.Log(ctx, g.cfg.Log, slog.LevelError,
				"what was seen of the store is not written down: "+
					"one that goes back would not be noticed after a restart",
				slog.Any("err", err))
			return
		}
	}
}

// Run writes down what was seen of the store until ctx ends, and then once more. It says in
// the log what the store lost.
func (g *Guard) Run(ctx context.Context) error {
	defer g.Keep(context.WithoutCancel(ctx))
	known := g.kept.Lost()
	for {
		changed := g.kept.Changed()
		if loss := g.kept.Lost(); loss != known {
			if known = loss; loss != nil {
				g.cfg.Log.LogAttrs(ctx, slog.LevelError,
					"the store went back: nothing is changed before the signers restore it; see fealty explain FE-S112",
					slog.String("lost", loss.String()))
				g.cfg.Lost()
			}
		}
		g.Keep(ctx)
		if _, err := watch.Wait(ctx, keepPause, changed); err != nil {
			return err
		}
	}
}
