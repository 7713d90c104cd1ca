package audit

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/auditlog"
	auditlogstore "github.com/fealty-io/fealty/internal/auditlog/store"
	"github.com/fealty-io/fealty/internal/coordinator/actuation/grants"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/member"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/internal/store"
)

// Limits of what one shard has the log keep. Entries are kept as long as those of coordinators,
// so that their rate, at each coordinator, bounds what there can be of them.
const (
	MaxEntries = 64        // of one call
	MaxBytes   = 256 << 10 // of the entries of one call

	BytesPerSecond = 1 << 10
	BytesAtOnce    = 8 << 20
	ChainsPerHour  = 60
	ChainsAtOnce   = 200

	readPerByte = 64 // bytes that are read of the log count as one that is kept

	maxShards = 1 << 12 // whose rates and ends are remembered
)

// MaxAhead is how much later than now, by the clock of a coordinator, a chain may have begun. It is less
// than what auditlog.Heads lets clocks differ: the names of chains say which of them a checkpoint can still
// tell of.
const MaxAhead = time.Hour

// JournalsConfig is what Journals are made of.
type JournalsConfig struct {
	Head   *authority.Head
	Asking member.Asking
	Grants *grants.Grants // which process of a member is served
	Now    func() time.Time

	// Retention is how long the log keeps an entry.
	Retention time.Duration
}

// Journals serve JournalService. Make them with [NewJournals].
type Journals struct {
	cfg    JournalsConfig
	bytes  *ratelimit.PerKey
	chains *ratelimit.PerKey
	turns  *ratelimit.Locks // of shards: what one call reads counts before the next one reads
	kept   prometheus.Counter

	mu   sync.Mutex
	ends map[string]auditlogstore.End // of each shard's chain that got something last; guarded by mu
}

// NewJournals returns Journals that kept nothing yet.
func NewJournals(cfg JournalsConfig) *Journals {
	return &Journals{cfg: cfg,
		bytes:  ratelimit.NewPerKey(BytesPerSecond, BytesAtOnce, maxShards),
		chains: ratelimit.NewPerKey(ChainsPerHour/3600., ChainsAtOnce, maxShards),
		kept: prometheus.NewCounter(prometheus.CounterOpts{Name: "fealty_journal_entries_total",
			Help: "Entries of the journals of shards that were put into the audit log."}),
		turns: ratelimit.NewLocks(), ends: make(map[string]auditlogstore.End)}
}

// RegisterMetrics registers what it counts.
func (j *Journals) RegisterMetrics(reg prometheus.Registerer) { reg.MustRegister(j.kept) }

// RegisterServices registers the service that takes journals.
func (j *Journals) RegisterServices(to grpc.ServiceRegistrar) {
	fealtyv1.RegisterJournalServiceServer(to, journalServer{j: j})
}

type journalServer struct {
	fealtyv1.UnimplementedJournalServiceServer
	j *Journals
}

// KeepJournal puts entries of the caller's journal into the audit log.
func (r journalServer) KeepJournal(ctx context.Context,
	req *fealtyv1.KeepJournalRequest) (*fealtyv1.KeepJournalResponse, error) {
	j, id := r.j, identity.FromContext(ctx).ID
	if _, err := j.cfg.Head.Ready(); err != nil {
		return nil, err
	}
	size, err := j.bounded(req, id)
	if err != nil {
		return nil, err
	}
	path, err := j.cfg.Asking.Allow(ctx)
	if err != nil {
		return nil, err
	}
	if began := auditlog.Began(req.GetChain()); j.cfg.Now().Sub(began) > j.cfg.Retention-2*MaxAhead {
		return &fealtyv1.KeepJournalResponse{Over: true}, nil
	}
	release, err := j.turns.Lock(ctx, path)
	if err != nil {
		return nil, err
	}
	defer release()
	// An ask is a byte: whoever has none left reads nothing either.
	if !j.bytes.AllowN(path, j.cfg.Now(), max(size, 1)) {
		return nil, errcode.New(errcode.RateLimited, "what", "the journal of "+path,
			"limit", fmt.Sprintf("%d bytes a second, %d at once", BytesPerSecond, BytesAtOnce))
	}
	var end auditlogstore.End
	var kept int
	var counted bool // that a chain is noted
	err = j.cfg.Head.Transact(ctx, "the journal of "+path, func(s *authority.State) (err error) {
		end, kept, err = j.keep(ctx, s, id, req, &counted)
		return err
	})
	if err != nil {
		return nil, err
	}
	j.kept.Add(float64(kept))
	j.ended(path, end)
	out := &fealtyv1.KeepJournalResponse{Number: end.Number}
	if end.Number > 0 {
		out.Hash = end.Hash[:]
	}
	return out, nil
}

func field(name, format string, args ...any) error {
	return errcode.New(errcode.RequestField, "field", name, "problem", fmt.Sprintf(format, args...))
}

// bounded refuses what is too much, or of a chain that cannot be the caller's, before anything is
// read for it. It returns how many bytes are to be kept.
func (j *Journals) bounded(req *fealtyv1.KeepJournalRequest, id identity.ID) (size int, err error) {
	switch chain := req.GetChain(); {
	case !auditlog.ValidChain(chain):
		return 0, field("chain", "it is no name of a chain of the audit log")
	case auditlog.ChainWriter(chain) != auditlog.WriterOf(id.String()):
		return 0, field("chain", "it is not named after %s", id)
	case auditlog.Began(chain).After(j.cfg.Now().Add(MaxAhead)):
		return 0, field("chain", "it began at %s, which is not yet: is the clock of %s right?",
			auditlog.Began(chain).UTC().Format(time.RFC3339), id.Name())
	case len(req.GetEntries()) > MaxEntries:
		return 0, field("entries", "there are %d, limit %d", len(req.GetEntries()), MaxEntries)
	case len(req.GetEntries()) > 0 && (req.GetFirst() == 0 || req.GetFirst() > auditlog.MaxChainEntries):
		return 0, field("first", "it is not from 1 to %d", auditlog.MaxChainEntries)
	}
	for _, e := range req.GetEntries() {
		size += len(e)
	}
	if size > MaxBytes {
		return 0, field("entries", "they have %d bytes, limit %d", size, MaxBytes)
	}
	return size, nil
}

// keep puts those entries into the log that follow what is there, all of them or none. It
// returns how far the chain goes then.
func (j *Journals) keep(ctx context.Context, s *authority.State, id identity.ID, req *fealtyv1.KeepJournalRequest,
	counted *bool) (auditlogstore.End, int, error) {
	served, err := j.cfg.Grants.Serve(ctx, s)
	if err != nil {
		return auditlogstore.End{}, 0, err
	}
	end, err := auditlogstore.EndOf(ctx, s.Records.Store, req.GetChain(), j.lastOf(record.PathOf(id)))
	// A chain of which no note is there any more is read whole: asking for one and another again and
	// again would have the store read all day.
	j.bytes.Charge(record.PathOf(id), j.cfg.Now(), end.Read/readPerByte)
	switch {
	case err != nil:
		return end, 0, j.cfg.Head.StoreError("read the journal of "+id.Name(), err)
	case end.Broken:
		return end, 0, field("chain", "what the audit log has of it was altered: fealty audit verify says where")
	case len(req.GetEntries()) == 0, req.GetFirst() != end.Number+1:
		return end, 0, nil
	}
	// Each chain that is noted is looked at with each checkpoint, be it new or one that was forgotten.
	if !end.Noted() && !*counted && !j.chains.Allow(record.PathOf(id), j.cfg.Now()) {
		return end, 0, errcode.New(errcode.RateLimited, "what", "one more chain of the journal of "+id.Name(),
			"limit", fmt.Sprintf("%d an hour, %d at once", ChainsPerHour, ChainsAtOnce))
	}
	*counted = *counted || !end.Noted()
	conditions, put, err := end.Follow(j.cfg.Now())
	if err != nil {
		return end, 0, err
	}
	for _, value := range req.GetEntries() {
		key := auditlog.Key(req.GetChain(), end.Number+1)
		if err := checkEntry(key, value, end.Hash, id); err != nil {
			return end, 0, err
		}
		put = append(put, store.Write{Key: key, Value: value})
		end.Number, end.Hash = end.Number+1, auditlog.HashOf(key, value)
	}
	member, err := record.Get[record.Member](ctx, s.Records, record.MemberKey(id.Kind(), id.Name()))
	if err != nil {
		return end, 0, j.cfg.Head.StoreError("read the member", err)
	}
	if !member.Exists() || !member.Value.Held() {
		return end, 0, errcode.New(errcode.RenewEntryGone, "identity", id.String())
	}
	ch := s.Records.NewChange(s.HeadVersion)
	ch.Require(record.BanIDKey(id.Kind(), id.Name()), 0)
	served.Require(ch)
	ch.Tx.If, ch.Tx.Put = append(ch.Tx.If, conditions...), append(ch.Tx.Put, put...)
	if _, err := ch.Commit(ctx); err != nil {
		return end, 0, j.cfg.Head.CommitError("keep the journal of "+id.Name(), err)
	}
	return end, len(req.GetEntries()), nil
}

// lastOf is the end of the chain of a shard that got something here last: whoever goes on from it reads
// no entry twice.
func (j *Journals) lastOf(path string) auditlogstore.End {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.ends[path]
}

func (j *Journals) ended(path string, end auditlogstore.End) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if _, known := j.ends[path]; !known && len(j.ends) >= maxShards {
		clear(j.ends)
	}
	j.ends[path] = end
}

// Alive returns once the lock that callers take was free.
func (j *Journals) Alive() { j.lastOf("") }

// checkEntry refuses an entry that does not follow the one before it, or is none that a shard
// writes: it says what its writer did, and nothing that a reader would take for an act of somebody
// else.
func checkEntry(key string, value []byte, previous auditlog.Hash, id identity.ID) error {
	_, number, _ := auditlog.ParseKey(key)
	e, err := auditlog.Decode(key, value)
	if err != nil {
		return field("entries", "entry %d: %v", number, err)
	}
	if e.Previous != previous {
		return field("entries", "entry %d does not follow the one before it", number)
	}
	action, _, _ := strings.Cut(e.Action, ".")
	if e.Actor != id.String() || (action != "machine" && action != "journal") {
		return field("entries", "entry %d says %.80q of %.80q: a shard says what it did with machines", number,
			e.Action, e.Actor)
	}
	// In one way alone: two readers that take a name that is there twice differently would read two logs.
	e.Chain, e.Number = "", 0
	if again, err := json.Marshal(e); err != nil || string(again) != string(value) {
		return field("entries", "entry %d is not written as the audit log writes it", number)
	}
	return nil
}
