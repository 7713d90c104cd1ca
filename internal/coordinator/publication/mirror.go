package publication

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/finding"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/mirror"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/platform/watch"
	"github.com/fealty-io/fealty/snapshot"
)

// Pauses of what writes to the publish directory.
const (
	// mirrorPause is the least time between two generations that are written: the newest
	// one counts, and those between are passed over.
	mirrorPause = 3 * time.Second
	// mirrorShare is the least ratio of pause to work: a slow disk must not be written
	// to all the time.
	mirrorShare = 4
	// mirrorRetry is the pause after a failure.
	mirrorRetry = 30 * time.Second
)

// mirrorPublisher is the publish directory. A failure there is told, and disturbs nothing
// else: members get their news over their streams.
type mirrorPublisher struct {
	writer *mirror.Writer
	dir    string
	wrote  atomic.Uint64          // generation; 0: none
	failed atomic.Pointer[string] // why the last write failed; nil: it did not
}

func newMirrorPublisher(files durable.FS, dir string, now func() time.Time) *mirrorPublisher {
	return &mirrorPublisher{writer: mirror.NewWriter(files, dir, now), dir: dir}
}

func (o *mirrorPublisher) generation() uint64 {
	if o == nil {
		return 0
	}
	return o.wrote.Load()
}

func (o *mirrorPublisher) findings() []*fealtyv1.Finding {
	if o == nil {
		return nil
	}
	if why := o.failed.Load(); why != nil {
		return []*fealtyv1.Finding{finding.New(errcode.PublishDirFailed, "dir", o.dir, "cause", *why)}
	}
	return nil
}

// FollowMirror writes what is published to the publish directory, until ctx ends.
func (c *Publication) FollowMirror(ctx context.Context, s *authority.State) error {
	for {
		published, trust := c.publicationChanged.Wait(), c.cfg.Bundle.Changed()
		started := time.Now()
		err := c.writeMirror(ctx, s)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		failed, ended := err != nil, time.Now()
		if failed {
			why := err.Error()
			if o := c.mirrors.failed.Swap(&why); o == nil || *o != why {
				c.cfg.Log.LogAttrs(ctx, slog.LevelError,
					"what is published was not written to the publish directory", slog.String("dir",
						c.mirrors.dir), slog.Any("err", err),
					slog.String("code", string(errcode.PublishDirFailed)))
			}
			c.metrics.mirrors.WithLabelValues("failed").Inc()
		}
		if err := watch.Sleep(ctx, max(mirrorPause, mirrorShare*time.Since(started))); err != nil {
			return err
		}
		if failed {
			_, err = watch.Wait(ctx, mirrorRetry-time.Since(ended), published, trust)
		} else {
			err = watch.Event(ctx, published, trust)
		}
		if err != nil {
			return err
		}
	}
}

// writeMirror writes the newest generation that there is.
func (c *Publication) writeMirror(ctx context.Context, s *authority.State) error {
	p, t := c.publication.Load(), c.cfg.Bundle.View()
	if !p.Serves() || t == nil {
		return nil
	}
	if err := c.cfg.Faults.Hit("mirror.before-write"); err != nil {
		return err
	}
	v := p.State.Value
	root, err := snapshot.ParseDigest(v.Root)
	if err != nil {
		return errors.New("the publication in force has no root")
	}
	out := mirror.Publication{
		Cluster: s.Manifest.Cluster, AuthorityEpoch: v.AuthorityEpoch, Generation: v.Generation, Root: root,
		Signed:      snapshot.Publication{Record: v.Record, Signatures: v.Signatures},
		TrustBundle: t.Signed, RootChanges: t.RootChanges, Links: t.Links,
		Headers: make([]mirror.Header, p.Len()),
		Content: func(hash snapshot.Digest) []byte { return p.Content(hash.String()) },
	}
	if len(p.bins.lists) > 0 {
		out.Leaves, out.Hole = p.Tree.Size(), snapshot.Digest(hole)
	}
	for i, h := range p.Headers() {
		content, err := snapshot.ParseDigest(h.Header.Content)
		if err != nil {
			return errors.New("the header " + h.String() + " names no content")
		}
		out.Headers[i] = mirror.Header{Path: h.String(), Scope: h.Scope, Subject: h.Header.Subject,
			Bytes: h.Header.Header, Leaf: h.Leaf, Index: p.LeafOf(i), Content: content}
	}
	wrote, err := c.mirrors.writer.Write(ctx, out)
	if err != nil {
		return err
	}
	if old := c.mirrors.failed.Swap(nil); old != nil {
		c.cfg.Log.LogAttrs(ctx, slog.LevelInfo,
			"the publish directory is written again", slog.String("dir", c.mirrors.dir))
	}
	if !wrote {
		c.metrics.mirrors.WithLabelValues("not_needed").Inc()
		return nil
	}
	c.metrics.mirrors.WithLabelValues("written").Inc()
	c.mirrors.wrote.Store(v.Generation)
	c.cfg.Log.LogAttrs(ctx, slog.LevelDebug, "wrote to the publish directory", slog.Uint64("generation", v.Generation),
		slog.Int("headers", len(out.Headers)))
	return nil
}
