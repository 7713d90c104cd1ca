package coordinator

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/finding"
	"github.com/fealty-io/fealty/internal/durable"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/mirror"
	"github.com/fealty-io/fealty/internal/watch"
	"github.com/fealty-io/fealty/snapshot"
)

// Pauses of what writes to the publish directory.
const (
	// outletPause is the least time between two generations that are written: the newest
	// one counts, and those between are passed over.
	outletPause = 3 * time.Second
	// outletShare is the least ratio of pause to work: a slow disk must not be written
	// to all the time.
	outletShare = 4
	// outletRetry is the pause after a failure.
	outletRetry = 30 * time.Second
)

// outlet is the publish directory. What fails there is told, and disturbs nothing
// else: members get their news over their streams.
type outlet struct {
	writer *mirror.Writer
	dir    string
	wrote  atomic.Uint64          // generation; 0: none
	failed atomic.Pointer[string] // why the last write failed; nil: it did not
}

func newOutlet(files durable.FS, dir string, now func() time.Time) *outlet {
	return &outlet{writer: mirror.NewWriter(files, dir, now), dir: dir}
}

func (o *outlet) generation() uint64 {
	if o == nil {
		return 0
	}
	return o.wrote.Load()
}

func (o *outlet) findings() []*fealtyv1.Finding {
	if o == nil {
		return nil
	}
	if why := o.failed.Load(); why != nil {
		return []*fealtyv1.Finding{finding.New(explain.PublishDirFailed, "dir", o.dir, "cause", *why)}
	}
	return nil
}

// followOutlet writes what is published to the publish directory, until ctx ends.
func (c *Publication) followOutlet(ctx context.Context, s *authority.State) error {
	for {
		published, trust := c.publicationChanged.Wait(), c.cfg.Bundle.Changed()
		started := time.Now()
		err := c.writeOutlet(ctx, s)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		failed, ended := err != nil, time.Now()
		if failed {
			why := err.Error()
			if o := c.outlet.failed.Swap(&why); o == nil || *o != why {
				c.cfg.Log.LogAttrs(ctx, slog.LevelError,
					"what is published was not written to the publish directory", slog.String("dir",
						c.outlet.dir), slog.Any("err", err),
					slog.String("code", string(explain.PublishDirFailed)))
			}
			c.metrics.outlet.WithLabelValues("failed").Inc()
		}
		if err := watch.Sleep(ctx, max(outletPause, outletShare*time.Since(started))); err != nil {
			return err
		}
		if failed {
			_, err = watch.Wait(ctx, outletRetry-time.Since(ended), published, trust)
		} else {
			err = watch.Event(ctx, published, trust)
		}
		if err != nil {
			return err
		}
	}
}

// writeOutlet writes the newest generation that there is.
func (c *Publication) writeOutlet(ctx context.Context, s *authority.State) error {
	p, t := c.publication.Load(), c.cfg.Bundle.View()
	if !p.serves() || t == nil {
		return nil
	}
	if err := c.cfg.Faults.Hit("outlet.before-write"); err != nil {
		return err
	}
	v := p.state.Value
	root, err := snapshot.ParseDigest(v.Root)
	if err != nil {
		return errors.New("the publication in force has no root")
	}
	out := mirror.Publication{
		Cluster: s.Manifest.Cluster, AuthorityEpoch: v.AuthorityEpoch, Generation: v.Generation, Root: root,
		Signed:      snapshot.Publication{Record: v.Record, Signatures: v.Signatures},
		TrustBundle: t.Signed, RootChanges: t.RootChanges, Links: t.Links,
		Headers: make([]mirror.Header, len(p.headers)),
		Content: func(hash snapshot.Digest) []byte { return p.contents[hash.String()] },
	}
	for i, h := range p.headers {
		content, err := snapshot.ParseDigest(h.header.Content)
		if err != nil {
			return errors.New("the header " + h.String() + " names no content")
		}
		out.Headers[i] = mirror.Header{Path: h.String(), Scope: h.scope, Subject: h.header.Subject,
			Bytes: h.header.Header, Leaf: h.leaf, Content: content}
	}
	wrote, err := c.outlet.writer.Write(ctx, out)
	if err != nil {
		return err
	}
	if old := c.outlet.failed.Swap(nil); old != nil {
		c.cfg.Log.LogAttrs(ctx, slog.LevelInfo,
			"the publish directory is written again", slog.String("dir", c.outlet.dir))
	}
	if !wrote {
		c.metrics.outlet.WithLabelValues("not_needed").Inc()
		return nil
	}
	c.metrics.outlet.WithLabelValues("written").Inc()
	c.outlet.wrote.Store(v.Generation)
	c.cfg.Log.LogAttrs(ctx, slog.LevelDebug, "wrote to the publish directory", slog.Uint64("generation", v.Generation),
		slog.Int("headers", len(out.Headers)))
	return nil
}
