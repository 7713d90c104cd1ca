// Package publication compiles and signs what each member is told (I11, I12).
//
// A publication is the current headers of all subjects, one for each (scope,
// subject), and the one record that signs them. All of it is derived, and can be
// made again from the members and the manifest. Keys, all under the record MAC:
//
//	publication/state                              the record in force, and what it stands on
//	publication/header/<scope>/node/<kind>/<name>  a header for one member, exact bytes
//	publication/header/<scope>/group/<hex>         one for all members with the same roles and organizations
//	publication/packed/<the same>                  such a header, packed
//	publication/content/<sha256>                   content that a header names, as its own or as its base
//	publication/index/<sha256>                     the parts of such a content that is a long one
//	publication/part/<sha256>                      a part of one
//
// Long contents are divided into parts by package chunk, and headers are packed, unless a coordinator of an earlier
// release is running, which cannot read that: then contents are kept whole, and headers are not packed. What is stored
// in the other form is turned, once: whole contents where they change, headers where generations have room for them.
//
// While no such coordinator is running, the leaves of many headers lie in bins, as publication/state says: bins.go.
//
// A content that no header names is an orphan, as is a header at any other key: the leader deletes it,
// and makes again what a subject lacks.
//
// Every change of any of them writes publication/state, on the condition that it
// is still at the version that the change was made from. So that version is the
// version of the whole, and it numbers what comes next: the record and the headers
// of a commit carry the revision of the commit before it, which is known while
// they are signed. At most one commit can follow that one. So two replicas, or one
// that is late, never sign two roots for one generation that anybody is served.
package publication

import (
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/bundle/current"
	"github.com/fealty-io/fealty/internal/coordinator/desired"
	"github.com/fealty-io/fealty/internal/coordinator/election"
	"github.com/fealty-io/fealty/internal/coordinator/member"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/coordinator/storeguard"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/platform/failpoint"
	platformmetrics "github.com/fealty-io/fealty/internal/platform/metrics"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/internal/platform/watch"
	"github.com/fealty-io/fealty/internal/store"
)

// The families of a publication; see package record.
const (
	Prefix        = "publication/"
	StateKey      = "publication/state"
	HeaderPrefix  = "publication/header/"
	PackedPrefix  = "publication/packed/"
	ContentPrefix = "publication/content/"
	IndexPrefix   = "publication/index/"
	PartPrefix    = "publication/part/"
)

// ReadsParts is what a coordinator tells the others that it reads, so that long contents are divided.
const ReadsParts = "publication.parts"

// ReadsPacked is the same, so that headers are packed.
const ReadsPacked = "publication.packed"

// ReadsBins is the same, so that the leaves of many headers lie in bins.
const ReadsBins = "publication.bins"

// Limits and times of publications.
const (
	// publishedBytes bounds the contents that are written for one generation: from there on no
	// other group or member is begun. A group brings at most two times as much.
	publishedBytes = 4 << 20
	// maxStoredContent bounds one content: what the store takes as one value. It is less
	// than a peer_directory may have.
	maxStoredContent = store.MaxValueBytes - store.SealBytes
	// PublishPause gathers what changes soon after a publication.
	PublishPause = 50 * time.Millisecond
	// publishShare is how much of its time the loop may spend on compiling, as the
	// least ratio of pause to work.
	publishShare = 4
	// PollPause bounds how long another replica's publication goes unseen.
	PollPause = 5 * time.Second
	// Fresh is how long a record is fresh, and Renew its age at
	// which a newer one is made over the same headers.
	Fresh = 15 * time.Minute
	Renew = 5 * time.Minute
	// HeaderLife is the hard end of a header. At half of it its subject gets a new one
	// over the same content.
	HeaderLife = 30 * 24 * time.Hour
)

// Config is what a Publication is made of.
type Config struct {
	Self       *authority.Enrolment
	Head       *authority.Head
	Replicas   *peer.Directory
	Bundle     *current.Current
	Election   *election.Election
	Membership *member.Membership
	Desired    *desired.Desired
	StoreGuard *storeguard.Guard
	Store      store.Store
	Faults     *failpoint.Points
	Failures   *ratelimit.LogSampler
	Log        *slog.Logger
	Now        func() time.Time

	Addresses []string // that members are told of this coordinator; shared
	// Outside is the file system of PublishDir, whose files others read.
	Outside    durable.FS
	PublishDir string // "": nothing is written for mirrors
	Operations int    // of the transaction of a generation, at most; 0: what the store takes
	BinsFrom   int    // from how many headers on their leaves lie in bins; 0: [binsFrom]
}

// Publication compiles and signs what each member is told (I11, I12).
type Publication struct {
	cfg     Config
	metrics *metrics

	publication        atomic.Pointer[View] // what members are told; nil before it was read
	publicationChanged watch.Signal
	compileReport      atomic.Pointer[compileReport] // nil before the first compile
	mirrors            *mirrorPublisher              // nil without a PublishDir
	begun              begun                         // by the last Publisher; touched by Publish alone
	verified           *View                         // what was served last that is as it is signed; touched by Publish alone
	readWhole          time.Time                     // when all was read last; touched by Publish alone
	silentLog          time.Time                     // when the store's log did not tell what it should; touched by Publish alone
}

// New returns a [Publication] that serves nothing yet.
func New(cfg Config) *Publication {
	p := &Publication{cfg: cfg}
	if cfg.PublishDir != "" {
		p.mirrors = newMirrorPublisher(cfg.Outside, cfg.PublishDir, cfg.Now)
	}
	return p
}

// View returns what is served; nil before it was read.
func (c *Publication) View() *View { return c.publication.Load() }

// serve serves p from now on.
func (c *Publication) serve(p *View) {
	if p.Serves() {
		c.verified = p
	}
	c.publication.Store(p)
	c.publicationChanged.Notify()
}

// Changed returns a channel that is closed when something else is served.
func (c *Publication) Changed() <-chan struct{} { return c.publicationChanged.Wait() }

// Findings says what was altered in the store of what is published, and what could not be published, for members or for
// mirrors.
func (c *Publication) Findings() []*fealtyv1.Finding {
	return slices.Concat(c.publication.Load().findings(), c.mirrors.findings(), c.compileFindings())
}

// Coordinators are the addresses of coordinators that members are told, by enrolment key.
func (c *Publication) Coordinators() map[string][]string {
	if p := c.publication.Load(); p != nil {
		return p.State.Value.Coordinators
	}
	return nil
}

// metrics are what Publication counts.
type metrics struct {
	uncompiled prometheus.Gauge
	removed    *prometheus.CounterVec
	mirrors    *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		uncompiled: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "fealty_snapshot_uncompiled",
			Help: "Members and groups for whom a snapshot could not be compiled: they keep their last one.",
		}),
		removed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fealty_compile_removed_total",
			Help: "Parts of config records that are not given, each counted once until it is mended, " +
				"by scope and reason.",
		}, []string{"scope", "reason"}),
		mirrors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fealty_publish_dir_writes_total",
			Help: "Generations for the publish directory by outcome: written, not_needed, or failed.",
		}, []string{"outcome"}),
	}
	reg.MustRegister(m.uncompiled, m.removed, m.mirrors)
	return m
}

// RegisterMetrics registers what it counts, and what is served.
func (c *Publication) RegisterMetrics(reg prometheus.Registerer) {
	c.metrics = newMetrics(reg)
	reg.MustRegister(
		platformmetrics.GaugeOf("fealty_publication_generation",
			"Generation of the publication record that is served; 0 without one.",
			func() float64 {
				if p := c.publication.Load(); p.Serves() {
					return float64(p.State.Value.Generation)
				}
				return 0
			}),
		platformmetrics.GaugeOf("fealty_publication_fresh_until_seconds",
			"Until when the publication record that is served is fresh, in seconds since 1970; 0 without one.",
			func() float64 {
				if p := c.publication.Load(); p.Serves() {
					return float64(p.State.Value.FreshUntil.Unix())
				}
				return 0
			}),
		platformmetrics.GaugeOf("fealty_publish_dir_generation",
			"Generation that this coordinator wrote to its publish directory last; 0 if it wrote none.",
			func() float64 { return float64(c.mirrors.generation()) }),
	)
}
