package fetch

import (
	"log/slog"
	"time"

	"github.com/fealty-io/fealty/internal/mirror"
	"github.com/fealty-io/fealty/internal/node/accept"
	"github.com/fealty-io/fealty/mesh"
)

// Fetcher gets what is signed for a member, from whoever has it.
type Fetcher struct {
	Config
	heard       heardChanges
	pool        *mesh.Pool // connections to who is asked
	Resyncs     Resyncs
	LeaveStream chan struct{} // there is news that the stream did not bring
}

// Config is what a fetcher needs. All of it is required but for Mirrors.
type Config struct {
	Node    *accept.Node
	Log     *slog.Logger
	Contact *Coordinators
	// Demand hears that a coordinator asks for a renewal, and why.
	Demand func(reason string)
	Count  Counts
	// Mirrors are those of the settings, and OpenMirror opens a storage endpoint.
	Mirrors    []mirror.Source
	OpenMirror func(url string) (mirror.Source, error)
	// MirrorEvery is how often mirrors are looked at while no stream is up.
	MirrorEvery time.Duration
}

// New returns a fetcher. It asks nobody before it is run.
func New(cfg Config) *Fetcher {
	// One of its own: a renewal does not share what a source lets hang.
	return &Fetcher{Config: cfg, Resyncs: Resyncs{Now: cfg.Node.Now}, LeaveStream: make(chan struct{}, 1),
		pool: cfg.Contact.NewPool()}
}

// Close ends connections. Nobody is asked any more.
func (f *Fetcher) Close() error { return f.pool.Close() }

// Counts are what a fetcher counts.
type Counts struct {
	Received func(scope, form string)
	Asked    func(source, outcome string)
	Mirrors  func(outcome string)
}
