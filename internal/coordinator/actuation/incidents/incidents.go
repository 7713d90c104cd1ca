// Package incidents keeps a list of shard processes that were fenced, for people to look at.
//
// A fenced process reports itself, with the certificate that it has: nobody else can report it for
// that shard, and a report changes nothing but what people are shown. See
// docs/explanation/fencing.md.
package incidents

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/finding"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
)

// Prefix is where the record of each member stands of which a process was fenced.
const Prefix = "incident/"

// KeyOf is where the record of a member stands.
func KeyOf(kind identity.Kind, name string) string { return Prefix + string(kind) + "/" + name }

const (
	// Shown is how long after a process told of itself last people are told of it.
	Shown = 24 * time.Hour
	// Kept is how long a process is remembered after that, so that it is an incident once.
	Kept = 30 * 24 * time.Hour
	// MaxProcesses bounds those that are remembered of a member: the one that was silent for
	// longest is forgotten first.
	MaxProcesses = 8
	// MaxProblem bounds what a process says of its refusal, in bytes.
	MaxProblem = 512
	// noteEvery is how often it is written down that a process told of itself again.
	noteEvery = 30 * time.Minute
	// maxDropped is how many records of members go with one report, whose processes are silent.
	maxDropped = 16
)

// Record is what is stored of a member.
type Record struct {
	Member    string    `json:"member"`
	Processes []Process `json:"processes"` // in the order of Heard
}

// Process is one that was fenced.
type Process struct {
	Incarnation string      `json:"incarnation"`
	Epoch       fence.Epoch `json:"epoch"`
	Problem     string      `json:"problem,omitempty"`
	From        string      `json:"from,omitempty"` // the address that it told from first
	At          time.Time   `json:"at"`             // when it told first
	Heard       time.Time   `json:"heard"`          // when it told last, within noteEvery
}

// Config is what Incidents are made of.
type Config struct {
	Head *authority.Head
	// Each limits how often each member tells. One with an older key than its newest may tell too:
	// a zombie is the likeliest to have one.
	Each *ratelimit.PerKey
	Log  *slog.Logger
	Now  func() time.Time
}

// Incidents serve IncidentService. Make them with [New].
type Incidents struct {
	cfg      Config
	recorded prometheus.Counter
}

// New returns Incidents of which none was heard.
func New(cfg Config) *Incidents {
	return &Incidents{cfg, prometheus.NewCounter(prometheus.CounterOpts{
		Name: "fealty_incidents_fenced_total",
		Help: "Processes of shards of which this coordinator recorded that they were fenced.",
	})}
}

// RegisterMetrics registers what is counted.
func (i *Incidents) RegisterMetrics(reg prometheus.Registerer) { reg.MustRegister(i.recorded) }

// RegisterServices registers the service that hears of them.
func (i *Incidents) RegisterServices(to grpc.ServiceRegistrar) {
	fealtyv1.RegisterIncidentServiceServer(to, server{i: i})
}

type server struct {
	fealtyv1.UnimplementedIncidentServiceServer
	i *Incidents
}

// ReportFenced records that a process of the caller was fenced.
func (r server) ReportFenced(ctx context.Context, req *fealtyv1.ReportFencedRequest) (*fealtyv1.ReportFencedResponse,
	error) {
	i, peer := r.i, identity.FromContext(ctx)
	if _, err := i.cfg.Head.Ready(); err != nil {
		return nil, err
	}
	incarnation, err := fence.ParseIncarnation(req.GetIncarnation())
	if err != nil {
		return nil, errcode.New(errcode.RequestField, "field", "incarnation",
			"problem", "it is not 32 hexadecimal digits of which one is not 0")
	}
	if len(req.GetProblem()) > MaxProblem {
		return nil, errcode.New(errcode.RequestField, "field", "problem",
			"problem", fmt.Sprintf("it has %d bytes, limit %d", len(req.GetProblem()), MaxProblem))
	}
	path, now := record.PathOf(peer.ID), i.cfg.Now().UTC()
	if !i.cfg.Each.Allow(path, now) {
		limit, burst := i.cfg.Each.Limit()
		return nil, errcode.New(errcode.RateLimited, "what", "incidents of "+path,
			"limit", fmt.Sprintf("%g a second, %d at once", float64(limit), burst))
	}
	told := Process{Incarnation: incarnation.String(), Epoch: fence.Epoch(req.GetEpoch()), Problem: req.GetProblem(),
		From: peer.Addr, At: now, Heard: now}
	out := &fealtyv1.ReportFencedResponse{}
	err = i.cfg.Head.Transact(ctx, "the incident", func(s *authority.State) (err error) {
		out.Recorded, err = i.note(ctx, s, peer.ID, told)
		return err
	})
	if err != nil {
		return nil, err
	}
	if out.GetRecorded() {
		i.recorded.Inc()
		i.cfg.Log.LogAttrs(ctx, slog.LevelError, "a process of a member was fenced: another one with its identity is "+
			"in charge", slog.String("member", path), slog.String("incarnation", told.Incarnation),
			slog.String("epoch", told.Epoch.String()), slog.String("from", told.From), slog.Bool("incident", true))
	}
	return out, nil
}

// note writes down what a process told, and reports whether it is a new one.
func (i *Incidents) note(ctx context.Context, s *authority.State, id identity.ID, told Process) (bool, error) {
	member, err := record.Get[record.Member](ctx, s.Records, record.MemberKey(id.Kind(), id.Name()))
	if err != nil {
		return false, i.cfg.Head.StoreError("read the member", err)
	}
	if !member.Exists() {
		return false, errcode.New(errcode.RenewEntryGone, "identity", id.String())
	}
	have, err := record.Get[Record](ctx, s.Records, KeyOf(id.Kind(), id.Name()))
	if err != nil {
		return false, i.cfg.Head.StoreError("read the incidents of the member", err)
	}
	after, isNew, changed := have.Value.with(told)
	if !changed {
		return false, nil
	}
	after.Member = record.PathOf(id)
	ch := s.Records.NewChange(s.HeadVersion)
	ch.Put(KeyOf(id.Kind(), id.Name()), have.Version, after)
	if isNew {
		ch.Audit(told.At, record.AuditEntry{Actor: id.String(), Action: "shard.fenced", Target: record.PathOf(id),
			Fields: map[string]string{"incarnation": told.Incarnation, "epoch": told.Epoch.String(),
				"problem": told.Problem, "from": told.From}})
		if err := i.drop(ctx, s, ch, told.At); err != nil {
			return false, err
		}
	}
	if _, err := ch.Commit(ctx); err != nil {
		return false, i.cfg.Head.CommitError("record the incident", err)
	}
	return isNew, nil
}

// with returns the record with what a process told, and whether that is a new one, or changes
// the record.
func (r Record) with(told Process) (after Record, isNew, changed bool) {
	after.Processes = slices.Clone(r.Processes)
	same := func(p Process) bool { return p.Incarnation == told.Incarnation }
	switch at := slices.IndexFunc(after.Processes, same); {
	case at < 0:
		isNew = true
	case told.Heard.Sub(after.Processes[at].Heard) < noteEvery:
		return r, false, false
	default:
		heard := told.Heard
		told = after.Processes[at] // what it said first stands
		told.Heard = heard
		after.Processes = slices.Delete(after.Processes, at, at+1)
	}
	after.Processes = append(after.Processes, told)
	silent := func(p Process) bool { return told.Heard.Sub(p.Heard) > Kept }
	after.Processes = slices.DeleteFunc(after.Processes, silent)
	after.Processes = after.Processes[max(0, len(after.Processes)-MaxProcesses):]
	return after, isNew, true
}

// drop has a change remove what of other members is remembered no longer.
func (i *Incidents) drop(ctx context.Context, s *authority.State, ch *record.Change, now time.Time) error {
	all, _, err := authority.ListGenuine[Record](ctx, i.cfg.Head, s, Prefix)
	if err != nil {
		return i.cfg.Head.StoreError("list the incidents", err)
	}
	dropped := 0
	for _, v := range all {
		if last := v.Value.last(); dropped < maxDropped && now.Sub(last.Heard) > Kept {
			ch.Delete(Prefix+v.Value.Member, v.Version)
			dropped++
		}
	}
	return nil
}

// last is the process that told of itself last.
func (r Record) last() Process {
	if len(r.Processes) == 0 {
		return Process{}
	}
	return r.Processes[len(r.Processes)-1]
}

// Unknown is what is not known of a member where [Incidents.AboutMember] fails.
func (i *Incidents) Unknown() string { return "whether a process of it was fenced" }

// AboutMember adds to out the processes of a member that were fenced, and told so within [Shown]. The error is
// that of [authority.Head.StoreError].
func (i *Incidents) AboutMember(ctx context.Context, s *authority.State, id identity.ID, out *fealtyv1.GetMemberResponse) error {
	rec, err := record.Get[Record](ctx, s.Records, KeyOf(id.Kind(), id.Name()))
	if err != nil {
		return i.cfg.Head.StoreError("read the incidents of the member", err)
	}
	out.Fenced = i.shown(rec.Value)
	return nil
}

// shown are the processes of a member that people are told of.
func (i *Incidents) shown(r Record) (out []*fealtyv1.FencedProcess) {
	for _, p := range r.Processes {
		if i.cfg.Now().Sub(p.Heard) <= Shown {
			out = append(out, &fealtyv1.FencedProcess{Incarnation: p.Incarnation, Epoch: uint64(p.Epoch),
				Problem: p.Problem, From: p.From, ToldAt: timestamppb.New(p.At), HeardAt: timestamppb.New(p.Heard)})
		}
	}
	return out
}

// Of returns the processes that were fenced, and told so within [Shown], by the path of their member. The error is
// that of [authority.Head.StoreError].
func (i *Incidents) Of(ctx context.Context, s *authority.State) (map[string][]*fealtyv1.FencedProcess, error) {
	all, _, err := authority.ListGenuine[Record](ctx, i.cfg.Head, s, Prefix)
	if err != nil {
		return nil, i.cfg.Head.StoreError("list the incidents", err)
	}
	out := make(map[string][]*fealtyv1.FencedProcess)
	for _, v := range all {
		if shown := i.shown(v.Value); len(shown) > 0 {
			out[v.Value.Member] = shown
		}
	}
	return out, nil
}

// Findings says of which members a process was fenced, and told so within [Shown], and which
// records were altered in the store. The error is that of [authority.Head.StoreError].
func (i *Incidents) Findings(ctx context.Context, s *authority.State) ([]*fealtyv1.Finding, error) {
	all, altered, err := authority.ListGenuine[Record](ctx, i.cfg.Head, s, Prefix)
	if err != nil {
		return nil, i.cfg.Head.StoreError("list the incidents", err)
	}
	var cases []finding.Case
	for _, v := range all {
		last := v.Value.last()
		if i.cfg.Now().Sub(last.Heard) > Shown {
			continue
		}
		cases = append(cases, finding.Case{Member: v.Value.Member, Value: fmt.Sprintf(
			": process %s of epoch %s, from %s, told so at %s, and last at %s", last.Incarnation, last.Epoch,
			cmp.Or(last.From, "an unknown address"), last.At.UTC().Format(time.RFC3339),
			last.Heard.UTC().Format(time.RFC3339))})
	}
	return append(finding.Altered("what processes of its member were fenced is not known, and none is recorded until it "+
		"is as it was", altered), finding.Fold(errcode.ShardFenced, "process", cases)...), nil
}
