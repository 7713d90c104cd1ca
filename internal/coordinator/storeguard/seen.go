package storeguard

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/finding"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/platform/watch"
	"github.com/fealty-io/fealty/internal/store/health"
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
	var parts [2]health.Record
	for i, name := range []string{StoreSeenFile, TrustSeenFile} {
		raw, err := g.cfg.FS.ReadFile(g.path(name), health.MaxRecordBytes)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			parts[i], err = health.Decode(raw)
		}
		if err != nil {
			return fmt.Errorf("read %s, which says what this coordinator has seen of the store: %w: "+
				"restore it, or remove it to believe the store", g.path(name), err)
		}
	}
	g.kept.Resume(health.Join(parts[0], parts[1]))
	if loss := g.kept.Lost(); loss != nil {
		g.cfg.Log.LogAttrs(context.Background(), slog.LevelError,
			"the store went back, and was not restored since", slog.String("lost", loss.String()))
	}
	return nil
}

// Fault says why it cannot be told what was seen of the store before; nil if it can. With a
// fault nobody may become ready: a store that went back would be believed.
func (g *Guard) Fault() error { return g.fault }

// unkept says that what was seen of the store is not written down: its file system takes nothing. After a
// restart a store that went back would be believed. It is tried again every second.
type unkept struct {
	since time.Time
	err   error
}

// UnkeptFindings says that what was seen of the store is not written down; nil if it is.
func (g *Guard) UnkeptFindings() []*fealtyv1.Finding {
	u := g.unkept.Load()
	if u == nil {
		return nil
	}
	return []*fealtyv1.Finding{finding.New(errcode.StoreUnrecorded, "dir", g.cfg.Dir,
		"cause", "since "+u.since.UTC().Format(time.RFC3339)+": "+u.err.Error())}
}

// KeepHead has raw, which says what head was seen, written to the file name of Config.Dir, now or as soon as
// that takes it.
func (g *Guard) KeepHead(ctx context.Context, name string, raw []byte) {
	g.keeping.Lock()
	g.headName, g.head = name, raw
	g.keeping.Unlock()
	g.Keep(ctx)
}

// Keep writes down what was seen of the store, as far as that is news. It is a second line
// of defence, so that a full disk here stops nothing; [Guard.UnkeptFindings] says that there is none.
func (g *Guard) Keep(ctx context.Context) {
	g.keeping.Lock()
	defer g.keeping.Unlock()
	err := g.keepHeadLocked()
	if err == nil && g.fault == nil { // else it would be overwritten
		err = g.keepSeenLocked()
	}
	before := g.unkept.Load()
	switch {
	case err != nil:
		since := g.cfg.Now()
		if before != nil {
			since = before.since
		}
		g.unkept.Store(&unkept{since: since, err: err})
		g.cfg.Failures.Log(ctx, g.cfg.Log, slog.LevelError,
			"what was seen of the store is not written down: "+
				"one that goes back would not be noticed after a restart",
			slog.Any("err", err))
	case before != nil:
		g.unkept.Store(nil)
		g.cfg.Log.LogAttrs(ctx, slog.LevelInfo, "what was seen of the store is written down again")
	}
}

func (g *Guard) keepHeadLocked() error {
	if g.head == nil {
		return nil
	}
	err := g.cfg.FS.WriteFile(g.path(g.headName), g.head)
	if err == nil {
		g.head = nil
	}
	return err
}

func (g *Guard) keepSeenLocked() error {
	small, trust := g.kept.Record().Split()
	for i, part := range []health.Record{trust, small} {
		raw, err := part.Encode()
		sum := sha256.Sum256(raw)
		if err == nil && g.written[i] != sum {
			name := []string{TrustSeenFile, StoreSeenFile}[i]
			if err = g.cfg.FS.WriteFile(g.path(name), raw); err == nil {
				g.written[i] = sum
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
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
