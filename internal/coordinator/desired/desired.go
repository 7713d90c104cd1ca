// Package desired stores the configuration that operators put: records that are checked as a whole
// before any of them is written, and read as a whole or not at all.
package desired

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/config"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/finding"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/coordinator/storeguard"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/platform/watch"
	"github.com/fealty-io/fealty/internal/store"
)

// Config is what a Desired is made of.
type Config struct {
	Head       *authority.Head
	StoreGuard *storeguard.Guard
	Store      store.Store
	Log        *slog.Logger
	Now        func() time.Time
}

// Desired stores what operators want configured.
type Desired struct {
	cfg Config

	config        atomic.Pointer[View] // nil: not read since the start
	configChanged watch.Signal         // the config in force is another one
}

// New returns one that read no config yet.
func New(cfg Config) *Desired { return &Desired{cfg: cfg} }

// Changed returns a channel that is closed when the config in force is another one.
func (d *Desired) Changed() <-chan struct{} { return d.configChanged.Wait() }

// The desired config: records that people put, all under the record MAC.
//
//	config/state                what records there are, and the version of them all
//	config/record/<kind>/<name> one record in its canonical form
//
// Every change of a record writes config/state, on the condition that it is still at
// the version that the change was made from. So the version of config/state is the
// version of the whole, of two writers one is refused, and whoever can write the
// store but holds no seed cannot take a record away or bring an old one back: the
// state's digest is over all of them.
const (
	Prefix       = "config/"
	StateKey     = "config/state"
	RecordPrefix = "config/record/"
)

// Limits and times of the config.
const (
	MaxPage            = 1000 // records of one page of a list
	maxConfigPageBytes = 1 << 20
	// configPollPause bounds how long another replica's write goes unseen, and
	// configCheckPause how long a record that was altered does.
	configPollPause  = 5 * time.Second
	configCheckPause = time.Minute
)

// KeyOf is where the record of k stands.
func KeyOf(k config.Key) string { return RecordPrefix + k.String() }

// State is config/state.
type State struct {
	// Change numbers the writes, so that each makes a new value.
	Change uint64 `json:"change"`
	Count  int    `json:"count"`
	Digest string `json:"digest"` // of the set of all records
}

// of returns the state that follows st once the records are those of set.
func (st State) of(set *config.Set) State {
	return State{Change: st.Change + 1, Count: set.Len(), Digest: set.Digest().String()}
}

// fits reports whether the records are those that the state says there are.
func (st State) fits(set *config.Set) bool {
	return st.Count == set.Len() && st.Digest == set.Digest().String()
}

// View is one version of the config. It is immutable.
type View struct {
	State record.Versioned[State]
	Set   *config.Set
	// restored is the index of the restore that it was read after; 0 if there was none.
	restored uint64
}

// Begin adds an empty config to the change that first says in the trust state
// that there is one: from then on its absence is somebody else's doing.
func (d *Desired) Begin(ctx context.Context, ch *record.Change, in bundle.State) error {
	if in.Config {
		return nil
	}
	_, err := d.cfg.Store.Get(ctx, StateKey)
	if errors.Is(err, store.ErrNotFound) {
		ch.Put(StateKey, 0, State{}.of(new(config.Set)))
		return nil
	}
	return err
}

// Configured returns the newest config that was read whole, and the version of
// config/state that it is of, for whoever compiles it: what is compiled of it is
// only right while config/state is at that version. ok is false as long as it could
// not be read since the start; what was published before then stays.
func (d *Desired) Configured() (set *config.Set, version store.Revision, ok bool) {
	v := d.config.Load()
	if v == nil {
		return nil, 0, false
	}
	return v.Set, v.State.Version, true
}

// Findings says which records in force hold what looks like a secret by a rule that is younger than they are.
func (d *Desired) Findings() []*fealtyv1.Finding {
	set, _, ok := d.Configured()
	if !ok {
		return nil
	}
	exposed := set.Exposed()
	if len(exposed) == 0 {
		return nil
	}
	first := exposed[0]
	return []*fealtyv1.Finding{finding.New(errcode.ConfigExposed, "count", fmt.Sprint(len(exposed)), "record", first.Record.String(),
		"field", first.Field, "problem", first.What)}
}

// readConfig reads the config. If the records are not those that config/state says
// there are, or there is no state, the error matches [store.ErrForged]: nothing is
// compiled of what somebody else left.
func (d *Desired) readConfig(ctx context.Context, s *authority.State) (*View, error) {
	l, err := d.cfg.Store.List(ctx, Prefix)
	if err != nil {
		return nil, err
	}
	v := &View{}
	if r := s.LastRestore(); r != nil {
		v.restored = r.Index
	}
	var before *config.Set
	if have := d.config.Load(); have != nil {
		before = have.Set
	}
	reading := before.Reading()
	for _, e := range l.Entries {
		if e.Key == StateKey {
			if v.State, err = record.Open[State](s.Records, e); err != nil {
				return nil, err
			}
			continue
		}
		plain, err := s.Records.Open(e.Key, e.Value)
		if err != nil {
			return nil, err
		}
		if err := reading.Add(plain); err != nil {
			return nil, fmt.Errorf("record %s passes its MAC but is not config of this release: %w", e.Key, err)
		}
	}
	if !v.State.Exists() {
		return nil, fmt.Errorf("there is no config state: %w", store.ErrForged)
	}
	if v.Set, err = reading.Set(); err != nil {
		return nil, fmt.Errorf("the config in the store: %w: %w", store.ErrForged, err)
	}
	if !v.State.Value.fits(v.Set) {
		return nil, fmt.Errorf("the config state says %d records, and %d others are there: %w", v.State.Value.Count,
			v.Set.Len(), store.ErrForged)
	}
	return v, nil
}

// Read returns the config as the store has it now. It reads the records
// only if config/state is not that of the view in memory, or whole is set.
func (d *Desired) Read(ctx context.Context, s *authority.State, whole bool) (*View, error) {
	have := d.config.Load()
	if have != nil && !whole {
		e, err := d.cfg.Store.Get(ctx, StateKey)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return nil, err
		}
		if err == nil && e.Version == have.State.Version {
			return have, nil
		}
	}
	v, err := d.readConfig(ctx, s)
	if err != nil {
		return nil, err
	}
	if have != nil && !v.follows(have) {
		return nil, fmt.Errorf("the config state is of version %d after %d changes, and was of %d after %d: %w",
			v.State.Version, v.State.Value.Change, have.State.Version, have.State.Value.Change, store.ErrForged)
	}
	return d.believeConfig(ctx, v), nil
}

// follows reports whether v can be what became of have. Config that is put back as it was
// is not, also in a write of its own, which has a version above; but a restore that the
// signers wanted leads to fewer changes. A reseed writes the very same config anew.
func (v *View) follows(have *View) bool {
	is, was := v.State.Value, have.State.Value
	switch {
	case v.State.Version < have.State.Version:
		return false
	case v.restored > have.restored:
		return true
	}
	return is.Change > was.Change || is == was
}

// believeConfig puts v into force here, unless a newer one is already, and returns
// the one in force.
func (d *Desired) believeConfig(ctx context.Context, v *View) *View {
	for {
		have := d.config.Load()
		if have != nil && have.State.Version >= v.State.Version {
			return have
		}
		if have != nil {
			v.restored = max(v.restored, have.restored)
		}
		if d.config.CompareAndSwap(have, v) {
			d.configChanged.Notify()
			d.cfg.Log.LogAttrs(ctx, slog.LevelInfo, "config in force", slog.Uint64("version", uint64(v.State.Version)),
				slog.Int("records", v.Set.Len()))
			return v
		}
	}
}

// Run keeps the config in memory up with the store until ctx ends: at once
// on a change, and every few seconds in case a notice was lost. Config that was
// altered under the same head is reported, and the config in force stays.
func (d *Desired) Run(ctx context.Context, s *authority.State) error {
	checked := d.cfg.Now()
	return watch.Follow(ctx, d.cfg.Store, StateKey, configPollPause, func(ctx context.Context) error {
		if err := d.cfg.StoreGuard.UntilWhole(ctx); err != nil {
			return err
		}
		whole := d.cfg.Now().Sub(checked) >= configCheckPause || d.cfg.Now().Before(checked)
		if whole {
			checked = d.cfg.Now()
		}
		switch _, err := d.Read(ctx, s, whole); {
		case errors.Is(err, store.ErrForged):
			// Under another head there may be another seed, or less config.
			return record.IgnoreConflict(d.cfg.Head.ForgedUnder(ctx, s,
				authority.Suspect{What: "the config", Err: err}))
		case err != nil:
			return err
		}
		return nil
	})
}

// Follow reads the config in force under next. Config that was altered keeps nobody from
// being ready: what was published stays. While the store is known to have lost something the
// config is what it was.
func (d *Desired) Follow(ctx context.Context, next *authority.State) (authority.Adoption, error) {
	if d.cfg.StoreGuard.LostError() != nil {
		return authority.Adoption{}, nil
	}
	switch _, err := d.Read(ctx, next, true); {
	case errors.Is(err, store.ErrForged):
		return authority.Adoption{}, d.cfg.Head.ForgedUnder(ctx, next, authority.Suspect{What: "the config", Err: err})
	case err != nil:
		return authority.Adoption{}, fmt.Errorf("read the config: %w", err)
	}
	return authority.Adoption{}, nil
}
