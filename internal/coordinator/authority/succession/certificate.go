package succession

import (
	"context"
	"log/slog"

	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/platform/watch"
)

// FollowCertificate takes what is new in the files of the certificate, until ctx ends. A
// state that comes is looked at too: a manifest may admit what the one before did not.
func (c *Succession) FollowCertificate(ctx context.Context) error {
	for {
		changed, state := c.cfg.Self.Certificate().Changed(), c.cfg.Head.Changed()
		c.takeCertificate(ctx)
		if err := watch.Event(ctx, changed, state); err != nil {
			return err
		}
	}
}

// takeCertificate looks at the files once.
func (c *Succession) takeCertificate(ctx context.Context) {
	var in *manifest.Manifest
	if s := c.cfg.Head.State(); s.Phase == authority.Ready {
		in = s.Manifest
	}
	taken, refused := c.cfg.Self.TakeCertificate(ctx, in)
	switch {
	case refused != nil:
		c.cfg.Log.LogAttrs(ctx, slog.LevelWarn,
			"the new certificate is not used", slog.String("code", errcode.CodeOf(refused)), slog.Any("err", refused))
	case taken:
		c.Push() // what kept it from being admitted may be over
	}
}
