// Package manifests changes the manifest and the seed when people ask for it, and shows those in force and before.
//
// A change is decided under the turn and the head in force; package succession moves the head.
package manifests

import (
	"context"
	"log/slog"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/authority/reseal"
	"github.com/fealty-io/fealty/internal/coordinator/authority/succession"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/coordinator/recovery/keepers"
	"github.com/fealty-io/fealty/internal/coordinator/recovery/shares"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/internal/store"
)

// Config is what Manifests are made of.
type Config struct {
	Self       *authority.Enrolment
	Head       *authority.Head
	Replicas   *peer.Directory
	Keepers    *keepers.Keepers
	Succession *succession.Succession
	Turn       *authority.Turn
	Reseal     *reseal.Reseal
	Shares     *shares.Shares
	Store      store.Store
	Limiter    *ratelimit.Sources
	Readers    *ratelimit.Readers
	Refusals   *ratelimit.LogSampler
	Log        *slog.Logger
	Now        func() time.Time

	// Parse reads a manifest that is to be set: manifest.Parse, but where a test plays
	// the release that set what a later one refuses.
	Parse func([]byte) (*manifest.Manifest, error)
	// Preview names which members and tokens the manifest next would cut off under s.
	Preview func(ctx context.Context, s *authority.State, next *manifest.Manifest,
		out *fealtyv1.PreviewManifestResponse) error
}

// Manifests serve ManifestService and ReseedService. Make them with [New].
type Manifests struct {
	cfg       Config
	prepared  *prepared // a seed that waits for its signatures; owned by who has the turn
	firstSets *ratelimit.Limiter
}

// New returns Manifests.
func New(cfg Config) *Manifests { return &Manifests{cfg: cfg, firstSets: newFirstSets()} }

// Wipe forgets a seed that waits for its signatures, when nobody sets any more.
func (c *Manifests) Wipe() { c.dropPrepared() }
