package desired

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/config"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/store"
)

// configServer serves ConfigService.
type configServer struct {
	fealtyv1.UnimplementedConfigServiceServer
	c *Desired
}

// RegisterServices registers the service by which operators say what they want.
func (d *Desired) RegisterServices(to grpc.ServiceRegistrar) {
	fealtyv1.RegisterConfigServiceServer(to, configServer{c: d})
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
			return nil, errcode.New(errcode.RequestField,
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
		if err := checkRecordKey(k); err != nil {
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
// it did and the version that is in force then. A change of nothing is not written.
func (d *Desired) writeConfig(ctx context.Context, w configWrite) ([]*fealtyv1.ConfigChange, store.Revision, error) {
	var changes []*fealtyv1.ConfigChange
	var version store.Revision
	err := d.cfg.Head.Transact(ctx, "the change of the config", func(s *authority.State) (err error) {
		if changes, version, err = d.tryWriteConfig(ctx, s, w); err != nil {
			return d.cfg.Head.CommitError(w.what, err)
		}
		return nil
	})
	return changes, version, err
}

func (d *Desired) tryWriteConfig(ctx context.Context, s *authority.State, w configWrite) ([]*fealtyv1.ConfigChange,
	store.Revision, error) {
	have, err := d.Read(ctx, s, false)
	if err != nil {
		return nil, 0, err
	}
	version := have.State.Version
	if w.expected != 0 && w.expected != uint64(version) {
		return nil, 0, errcode.New(errcode.ConfigStale, "expected", fmt.Sprint(w.expected),
			"version", fmt.Sprint(version))
	}
	next, err := w.edit(have.Set)
	if err != nil {
		return nil, 0, configProblems(err)
	}
	ch := s.Records.NewChange(s.HeadVersion)
	changes := make([]*fealtyv1.ConfigChange, len(w.keys))
	changed := false
	for i, k := range w.keys {
		before, old, existed := have.Set.Canonical(k)
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
			ch.WriteRaw(KeyOf(k), after)
		} else {
			ch.Drop(KeyOf(k))
		}
		ch.Audit(d.cfg.Now(), record.AuditEntry{Actor: record.Actor(ctx), Action: w.action, Target: k.String(),
			Fields: fields})
	}
	if !changed || w.dryRun {
		return changes, version, nil
	}
	state := have.State.Value.of(next)
	ch.Put(StateKey, version, state)
	if version, err = ch.Commit(ctx); err != nil {
		return nil, 0, err
	}
	d.believeConfig(ctx, &View{record.Versioned[State]{Value: state, Version: version}, next,
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
	if err := checkRecordKey(k); err != nil {
		return nil, err
	}
	record, ok := configMessage(v.Set, k)
	if !ok {
		return nil, noConfigRecord(k)
	}
	return &fealtyv1.GetConfigResponse{Record: record, Version: uint64(v.State.Version)}, nil
}

func (r configServer) ListConfig(ctx context.Context, req *fealtyv1.ListConfigRequest) (*fealtyv1.ListConfigResponse,
	error) {
	v, err := r.read(ctx)
	if err != nil {
		return nil, err
	}
	kind := config.Kind(req.GetKind())
	if kind != "" && !slices.Contains(config.Kinds(), kind) {
		return nil, errcode.New(errcode.NotFound, "what", "kind of config record", "name", string(kind))
	}
	size := int(req.GetPageSize())
	if size > MaxPage {
		return nil, errcode.New(errcode.RequestField,
			"field", "page_size", "problem", fmt.Sprintf("it is %d, and a page has at most %d", size, MaxPage))
	}
	if size == 0 {
		size = MaxPage
	}
	keys := v.Set.Keys()
	if token := req.GetPageToken(); token != "" {
		after, ok := parseRecordKey(token)
		if !ok {
			return nil, errcode.New(errcode.RequestField,
				"field", "page_token", "problem", "it is not one that this call gave out")
		}
		i, found := slices.BinarySearchFunc(keys, after, config.Key.Compare)
		if found {
			i++
		}
		keys = keys[i:]
	}
	out := &fealtyv1.ListConfigResponse{Version: uint64(v.State.Version)}
	bytes := 0
	for _, k := range keys {
		if kind != "" && k.Kind != kind {
			continue
		}
		record, _ := configMessage(v.Set, k)
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
func (r configServer) read(ctx context.Context) (*View, error) {
	s, err := r.c.cfg.Head.Ready()
	if err != nil {
		return nil, err
	}
	asking, cancel := r.c.cfg.Head.Patience(ctx)
	defer cancel()
	v, err := r.c.Read(asking, s, false)
	if err == nil {
		return v, nil
	}
	if err = r.c.cfg.Head.StoreError("read the config", err); !authority.OutOfReach(ctx, asking, err) {
		return nil, err
	}
	if _, err := r.c.cfg.Head.DegradedState("read the config", r.c.cfg.Head.Degraded("read the config", err)); err != nil {
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

// parseRecordKey reads what [config.Key.String] prints, and nothing else.
func parseRecordKey(s string) (config.Key, bool) {
	kind, name, ok := strings.Cut(s, "/")
	k := config.Key{Kind: config.Kind(kind), Name: name}
	return k, ok && config.CheckKey(k) == ""
}

func checkRecordKey(k config.Key) error {
	if !slices.Contains(config.Kinds(), k.Kind) {
		return errcode.New(errcode.NotFound, "what", "kind of config record", "name", fmt.Sprintf("%.40q", k.Kind))
	}
	if what := config.CheckKey(k); what != "" {
		return errcode.New(errcode.RequestField, "field", "name", "problem", fmt.Sprintf("%.80q %s", k.Name, what))
	}
	return nil
}

func noConfigRecord(k config.Key) error {
	return errcode.New(errcode.NotFound, "what", "config record", "name", k.String())
}

func batchSize(n int) error {
	if n == 0 || n > config.MaxBatch {
		return errcode.New(errcode.RequestField,
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
	code := errcode.ConfigInvalid
	if first.Rule == config.RuleInUse {
		code = errcode.ConfigInUse
	}
	details := []any{"count", fmt.Sprint(len(invalid.Problems)), "problem", first.Error(), "field", first.Field}
	if first.Record != (config.Key{}) {
		details = append(details, "record", first.Record.String())
	}
	return errcode.Wrap(err, code, details...)
}
