package coordinator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/config"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/watch"
)

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
	configPrefix       = "config/"
	configStateKey     = "config/state"
	configRecordPrefix = "config/record/"
)

// Limits and times of the config.
const (
	maxConfigPage      = 1000
	maxConfigPageBytes = 1 << 20
	// configPollPause bounds how long another replica's write goes unseen, and
	// configCheckPause how long a record that was altered does.
	configPollPause  = 5 * time.Second
	configCheckPause = time.Minute
)

func configKeyOf(k config.Key) string { return configRecordPrefix + k.String() }

// configState is config/state.
type configState struct {
	// Change numbers the writes, so that each makes a new value.
	Change uint64 `json:"change"`
	Count  int    `json:"count"`
	Digest string `json:"digest"` // of the set of all records
}

// of returns the state that follows st once the records are those of set.
func (st configState) of(set *config.Set) configState {
	return configState{Change: st.Change + 1, Count: set.Len(), Digest: set.Digest().String()}
}

// fits reports whether the records are those that the state says there are.
func (st configState) fits(set *config.Set) bool {
	return st.Count == set.Len() && st.Digest == set.Digest().String()
}

// configView is one version of the config. It is immutable.
type configView struct {
	state record.Versioned[configState]
	set   *config.Set
	// restored is the index of the restore that it was read after; 0 if there was none.
	restored uint64
}

// beginConfig adds an empty config to the change that first says in the trust state
// that there is one: from then on its absence is somebody else's doing.
func (c *Desired) beginConfig(ctx context.Context, ch *record.Change, in bundle.State) error {
	if in.Config {
		return nil
	}
	_, err := c.cfg.Store.Get(ctx, configStateKey)
	if errors.Is(err, store.ErrNotFound) {
		ch.Put(configStateKey, 0, configState{}.of(new(config.Set)))
		return nil
	}
	return err
}

// configured returns the newest config that was read whole, and the version of
// config/state that it is of, for whoever compiles it: what is compiled of it is
// only right while config/state is at that version. ok is false as long as it could
// not be read since the start; what was published before then stays.
func (c *Desired) configured() (set *config.Set, version store.Revision, ok bool) {
	v := c.config.Load()
	if v == nil {
		return nil, 0, false
	}
	return v.set, v.state.Version, true
}

// readConfig reads the config. If the records are not those that config/state says
// there are, or there is no state, the error matches [store.ErrForged]: nothing is
// compiled of what somebody else left.
func (c *Desired) readConfig(ctx context.Context, s *authority.State) (*configView, error) {
	l, err := c.cfg.Store.List(ctx, configPrefix)
	if err != nil {
		return nil, err
	}
	v := &configView{}
	if r := s.LastRestore(); r != nil {
		v.restored = r.Index
	}
	var recs []config.Record
	for _, e := range l.Entries {
		if e.Key == configStateKey {
			if v.state, err = record.Open[configState](s.Records, e); err != nil {
				return nil, err
			}
			continue
		}
		plain, err := s.Records.Open(e.Key, e.Value)
		if err != nil {
			return nil, err
		}
		r, err := config.DecodeCanonical(plain)
		if err != nil {
			return nil, fmt.Errorf("record %s passes its MAC but is not config of this release: %w", e.Key, err)
		}
		recs = append(recs, r)
	}
	if !v.state.Exists() {
		return nil, fmt.Errorf("there is no config state: %w", store.ErrForged)
	}
	if v.set, err = config.NewSet(recs...); err != nil {
		return nil, fmt.Errorf("the config in the store: %w: %w", store.ErrForged, err)
	}
	if !v.state.Value.fits(v.set) {
		return nil, fmt.Errorf("the config state says %d records, and %d others are there: %w", v.state.Value.Count,
			v.set.Len(), store.ErrForged)
	}
	return v, nil
}

// currentConfig returns the config as the store has it now. It reads the records
// only if config/state is not that of the view in memory, or whole is set.
func (c *Desired) currentConfig(ctx context.Context, s *authority.State, whole bool) (*configView, error) {
	have := c.config.Load()
	if have != nil && !whole {
		e, err := c.cfg.Store.Get(ctx, configStateKey)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return nil, err
		}
		if err == nil && e.Version == have.state.Version {
			return have, nil
		}
	}
	v, err := c.readConfig(ctx, s)
	if err != nil {
		return nil, err
	}
	if have != nil && !v.follows(have) {
		return nil, fmt.Errorf("the config state is of version %d after %d changes, and was of %d after %d: %w",
			v.state.Version, v.state.Value.Change, have.state.Version, have.state.Value.Change, store.ErrForged)
	}
	return c.believeConfig(ctx, v), nil
}

// follows reports whether v can be what became of have. What is put back as it was is
// not, also in a write of its own, which has a version above; but a restore that the
// signers wanted leads to fewer changes. A reseed writes the very same config anew.
func (v *configView) follows(have *configView) bool {
	is, was := v.state.Value, have.state.Value
	switch {
	case v.state.Version < have.state.Version:
		return false
	case v.restored > have.restored:
		return true
	}
	return is.Change > was.Change || is == was
}

// believeConfig puts v into force here, unless a newer one is already, and returns
// the one in force.
func (c *Desired) believeConfig(ctx context.Context, v *configView) *configView {
	for {
		have := c.config.Load()
		if have != nil && have.state.Version >= v.state.Version {
			return have
		}
		if have != nil {
			v.restored = max(v.restored, have.restored)
		}
		if c.config.CompareAndSwap(have, v) {
			c.configChanged.Notify()
			c.cfg.Log.LogAttrs(ctx, slog.LevelInfo, "config in force", slog.Uint64("version", uint64(v.state.Version)),
				slog.Int("records", v.set.Len()))
			return v
		}
	}
}

// followConfig keeps the config in memory up with the store until ctx ends: at once
// on a change, and every few seconds in case a notice was lost. What was altered
// from outside is reported, and the config in force stays.
func (c *Desired) followConfig(ctx context.Context, s *authority.State) error {
	checked := c.cfg.Now()
	return watch.Follow(ctx, c.cfg.Store, configStateKey, configPollPause, func(ctx context.Context) error {
		if err := c.cfg.StoreGuard.UntilWhole(ctx); err != nil {
			return err
		}
		whole := c.cfg.Now().Sub(checked) >= configCheckPause || c.cfg.Now().Before(checked)
		if whole {
			checked = c.cfg.Now()
		}
		switch _, err := c.currentConfig(ctx, s, whole); {
		case errors.Is(err, store.ErrForged) && !c.cfg.Head.HeadHolds(ctx):
			c.cfg.Head.LookAgain() // under another head there may be another seed, or less config
		case errors.Is(err, store.ErrForged):
			c.cfg.Head.Forged(ctx, "the config", err)
		case err != nil:
			return err
		}
		return nil
	})
}

// configServer serves ConfigService.
type configServer struct {
	fealtyv1.UnimplementedConfigServiceServer
	c *Desired
}

// registerServices registers the service by which operators say what they want.
func (c *Desired) registerServices(to grpc.ServiceRegistrar) {
	fealtyv1.RegisterConfigServiceServer(to, configServer{c: c})
}

func (r configServer) PutConfig(ctx context.Context, req *fealtyv1.PutConfigRequest) (*fealtyv1.PutConfigResponse,
	error) {
	if _, err := r.c.cfg.Head.Ready(); err != nil {
		return nil, err
	}
	if err := batchSize(len(req.GetRecords())); err != nil {
		return nil, err
	}
	var recs []config.Record
	var keys []config.Key
	for _, raw := range req.GetRecords() {
		docs, err := config.Decode(raw)
		if err != nil {
			return nil, configProblems(err)
		}
		if len(docs) != 1 {
			return nil, explain.New(explain.RequestField,
				"field", "records", "problem", fmt.Sprintf("one of them holds %d records; send each for itself",
					len(docs)))
		}
		recs = append(recs, docs[0].Record)
		keys = append(keys, config.KeyOf(docs[0].Record))
	}
	w := configWrite{what: "put the config", action: "config.put", keys: keys, expected: req.GetExpectedVersion(),
		dryRun: req.GetDryRun(),
		edit:   func(set *config.Set) (*config.Set, error) { return set.With(recs, nil) }}
	changes, version, err := r.c.writeConfig(ctx, w)
	if err != nil {
		return nil, err
	}
	return &fealtyv1.PutConfigResponse{Changes: changes, Version: uint64(version)}, nil
}

func (r configServer) DeleteConfig(ctx context.Context,
	req *fealtyv1.DeleteConfigRequest) (*fealtyv1.DeleteConfigResponse, error) {
	if _, err := r.c.cfg.Head.Ready(); err != nil {
		return nil, err
	}
	if err := batchSize(len(req.GetRecords())); err != nil {
		return nil, err
	}
	var keys []config.Key
	for _, m := range req.GetRecords() {
		k := config.Key{Kind: config.Kind(m.GetKind()), Name: m.GetName()}
		if err := checkConfigKey(k); err != nil {
			return nil, err
		}
		keys = append(keys, k)
	}
	w := configWrite{what: "delete from the config", action: "config.delete", keys: keys,
		expected: req.GetExpectedVersion(), dryRun: req.GetDryRun(),
		edit: func(set *config.Set) (*config.Set, error) {
			for _, k := range keys {
				if _, ok := set.Get(k); !ok {
					return nil, noConfigRecord(k)
				}
			}
			return set.With(nil, keys)
		}}
	changes, version, err := r.c.writeConfig(ctx, w)
	if err != nil {
		return nil, err
	}
	return &fealtyv1.DeleteConfigResponse{Changes: changes, Version: uint64(version)}, nil
}

// configWrite is a change of the config that somebody asked for.
type configWrite struct {
	what, action string // for errors, and for the audit log
	keys         []config.Key
	expected     uint64
	dryRun       bool
	edit         func(*config.Set) (*config.Set, error)
}

// writeConfig makes a change in one transaction, or nothing of it, and returns what
// it did and the version that is in force then. What changes nothing is not written.
func (c *Desired) writeConfig(ctx context.Context, w configWrite) ([]*fealtyv1.ConfigChange, store.Revision, error) {
	for range record.CommitTries {
		s, err := c.cfg.Head.InForce(ctx)
		if err != nil {
			return nil, 0, err
		}
		changes, version, err := c.tryWriteConfig(ctx, s, w)
		if err == nil || !c.cfg.Head.Conflicts(ctx, err) {
			if err != nil {
				return nil, 0, c.cfg.Head.StoreError(w.what, err)
			}
			return changes, version, nil
		}
	}
	return nil, 0, record.Busy(w.what)
}

func (c *Desired) tryWriteConfig(ctx context.Context, s *authority.State, w configWrite) ([]*fealtyv1.ConfigChange,
	store.Revision, error) {
	have, err := c.currentConfig(ctx, s, false)
	if err != nil {
		return nil, 0, err
	}
	version := have.state.Version
	if w.expected != 0 && w.expected != uint64(version) {
		return nil, 0, explain.New(explain.ConfigStale, "expected", fmt.Sprint(w.expected),
			"version", fmt.Sprint(version))
	}
	next, err := w.edit(have.set)
	if err != nil {
		return nil, 0, configProblems(err)
	}
	ch := s.Records.NewChange(s.HeadVersion)
	changes := make([]*fealtyv1.ConfigChange, len(w.keys))
	changed := false
	for i, k := range w.keys {
		before, old, existed := have.set.Canonical(k)
		after, fresh, exists := next.Canonical(k)
		changes[i] = &fealtyv1.ConfigChange{Kind: string(k.Kind), Name: k.Name, Before: before, After: after}
		if bytes.Equal(before, after) {
			continue
		}
		changed = true
		fields := make(map[string]string)
		if existed {
			fields["before"] = old.String()
		}
		if exists {
			fields["after"] = fresh.String()
			ch.WriteRaw(configKeyOf(k), after)
		} else {
			ch.Drop(configKeyOf(k))
		}
		ch.Audit(c.cfg.Now(), record.AuditEntry{Actor: record.Actor(ctx), Action: w.action, Target: k.String(),
			Fields: fields})
	}
	if !changed || w.dryRun {
		return changes, version, nil
	}
	state := have.state.Value.of(next)
	ch.Put(configStateKey, version, state)
	if version, err = ch.Commit(ctx); err != nil {
		return nil, 0, err
	}
	c.believeConfig(ctx, &configView{record.Versioned[configState]{Value: state, Version: version}, next,
		have.restored})
	return changes, version, nil
}

func (r configServer) GetConfig(ctx context.Context, req *fealtyv1.GetConfigRequest) (*fealtyv1.GetConfigResponse,
	error) {
	v, err := r.read(ctx)
	if err != nil {
		return nil, err
	}
	k := config.Key{Kind: config.Kind(req.GetKind()), Name: req.GetName()}
	if err := checkConfigKey(k); err != nil {
		return nil, err
	}
	record, ok := configMessage(v.set, k)
	if !ok {
		return nil, noConfigRecord(k)
	}
	return &fealtyv1.GetConfigResponse{Record: record, Version: uint64(v.state.Version)}, nil
}

func (r configServer) ListConfig(ctx context.Context, req *fealtyv1.ListConfigRequest) (*fealtyv1.ListConfigResponse,
	error) {
	v, err := r.read(ctx)
	if err != nil {
		return nil, err
	}
	kind := config.Kind(req.GetKind())
	if kind != "" && !slices.Contains(config.Kinds(), kind) {
		return nil, explain.New(explain.NotFound, "what", "kind of config record", "name", string(kind))
	}
	size := int(req.GetPageSize())
	if size > maxConfigPage {
		return nil, explain.New(explain.RequestField,
			"field", "page_size", "problem", fmt.Sprintf("it is %d, and a page has at most %d", size, maxConfigPage))
	}
	if size == 0 {
		size = maxConfigPage
	}
	keys := v.set.Keys()
	if token := req.GetPageToken(); token != "" {
		after, ok := parseConfigKey(token)
		if !ok {
			return nil, explain.New(explain.RequestField,
				"field", "page_token", "problem", "it is not one that this call gave out")
		}
		i, found := slices.BinarySearchFunc(keys, after, config.Key.Compare)
		if found {
			i++
		}
		keys = keys[i:]
	}
	out := &fealtyv1.ListConfigResponse{Version: uint64(v.state.Version)}
	bytes := 0
	for _, k := range keys {
		if kind != "" && k.Kind != kind {
			continue
		}
		record, _ := configMessage(v.set, k)
		bytes += len(record.GetRecord())
		if n := len(out.Records); n == size || n > 0 && bytes > maxConfigPageBytes {
			last := out.Records[n-1]
			out.NextPageToken = last.GetKind() + "/" + last.GetName()
			break
		}
		out.Records = append(out.Records, record)
	}
	return out, nil
}

// read returns the config as the store has it now, for who asks, and while the store
// is out of reach as it was last read.
func (r configServer) read(ctx context.Context) (*configView, error) {
	s, err := r.c.cfg.Head.Ready()
	if err != nil {
		return nil, err
	}
	asking, cancel := r.c.cfg.Head.Patience(ctx)
	defer cancel()
	v, err := r.c.currentConfig(asking, s, false)
	if err == nil {
		return v, nil
	}
	if err = r.c.cfg.Head.StoreError("read the config", err); !authority.OutOfReach(ctx, asking, err) {
		return nil, err
	}
	if _, err := r.c.cfg.Head.Alone("read the config", authority.InOutage("read the config", err)); err != nil {
		return nil, err
	}
	if v = r.c.config.Load(); v == nil {
		return nil, err
	}
	return v, nil
}

func configMessage(set *config.Set, k config.Key) (*fealtyv1.ConfigRecord, bool) {
	raw, _, ok := set.Canonical(k)
	return &fealtyv1.ConfigRecord{Kind: string(k.Kind), Name: k.Name, Record: raw}, ok
}

// parseConfigKey reads what [config.Key.String] prints, and nothing else.
func parseConfigKey(s string) (config.Key, bool) {
	kind, name, ok := strings.Cut(s, "/")
	k := config.Key{Kind: config.Kind(kind), Name: name}
	return k, ok && config.CheckKey(k) == ""
}

func checkConfigKey(k config.Key) error {
	if !slices.Contains(config.Kinds(), k.Kind) {
		return explain.New(explain.NotFound, "what", "kind of config record", "name", fmt.Sprintf("%.40q", k.Kind))
	}
	if what := config.CheckKey(k); what != "" {
		return explain.New(explain.RequestField, "field", "name", "problem", fmt.Sprintf("%.80q %s", k.Name, what))
	}
	return nil
}

func noConfigRecord(k config.Key) error {
	return explain.New(explain.NotFound, "what", "config record", "name", k.String())
}

func batchSize(n int) error {
	if n == 0 || n > config.MaxBatch {
		return explain.New(explain.RequestField,
			"field", "records", "problem", fmt.Sprintf("there are %d, want 1 to %d", n, config.MaxBatch))
	}
	return nil
}

// configProblems words what is wrong with config. The problems name records and
// fields, and hold no value that looks like a secret.
func configProblems(err error) error {
	invalid, ok := errors.AsType[*config.InvalidError](err)
	if !ok {
		return err
	}
	first := *invalid.Problems[0]
	first.Line, first.Column = 0, 0 // of what came over the wire
	code := explain.ConfigInvalid
	if first.Rule == config.RuleInUse {
		code = explain.ConfigInUse
	}
	details := []any{"count", fmt.Sprint(len(invalid.Problems)), "problem", first.Error(), "field", first.Field}
	if first.Record != (config.Key{}) {
		details = append(details, "record", first.Record.String())
	}
	return explain.Wrap(err, code, details...)
}

// follow reads the config in force under next. Config that was altered keeps nobody from
// being ready: what was published stays. While the store is known to have lost something the
// config is what it was.
func (c *Desired) follow(ctx context.Context, next *authority.State) (authority.Adoption, error) {
	if c.cfg.StoreGuard.LostError() != nil {
		return authority.Adoption{}, nil
	}
	switch _, err := c.currentConfig(ctx, next, true); {
	case errors.Is(err, store.ErrForged):
		return authority.Adoption{}, c.cfg.Head.ForgedUnder(ctx, next, authority.Suspect{What: "the config", Err: err})
	case err != nil:
		return authority.Adoption{}, fmt.Errorf("read the config: %w", err)
	}
	return authority.Adoption{}, nil
}
