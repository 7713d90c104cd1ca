package process

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/auditlog"
	"github.com/fealty-io/fealty/internal/platform/watch"
	"github.com/fealty-io/fealty/internal/shard/execute"
)

// Of one call, within the limits of a coordinator.
const (
	entries = 64
	size    = 128 << 10

	pause   = 5 * time.Second // when all was given
	backoff = time.Minute     // between calls that fail, at most
	timeout = 15 * time.Second
)

// Source has the records in their order: [execute.Reader].
type Source interface {
	Next(records, size int) ([]execute.Record, error)
	Rewind()
}

// HandoverConfig is what a [Handover] is made of. Every field is required.
type HandoverConfig struct {
	Conn   grpc.ClientConnInterface
	Source Source
	Log    *slog.Logger
}

// A Handover gives the journal of one process to coordinators. Make it with [NewHandover].
type Handover struct {
	cfg     HandoverConfig
	service fealtyv1.JournalServiceClient

	given, left prometheus.Counter

	// The state of Give, which owns it.
	waiting []execute.Record // that the source gave, and no coordinator has for all that is known
	chain   chain
	rewound bool // the source was begun anew, and not all was given since
}

// chain is the one that is given now.
type chain struct {
	name   string
	number uint64 // of the last entry that a coordinator has
	left   bool   // the rest of it is not given
	over   bool   // it is older than what the log keeps
}

// NewHandover returns a handover that gave nothing yet.
func NewHandover(cfg HandoverConfig) *Handover {
	return &Handover{cfg: cfg, service: fealtyv1.NewJournalServiceClient(cfg.Conn),
		given: prometheus.NewCounter(prometheus.CounterOpts{Name: "fealty_shard_journal_given_total",
			Help: "Entries of the journal that this process gave to the audit log of the cluster."}),
		left: prometheus.NewCounter(prometheus.CounterOpts{Name: "fealty_shard_journal_left_total",
			Help: "Entries of the journal that the audit log of the cluster does not get: it refused their chain, " +
				"or some before them were dropped here first."})}
}

// RegisterMetrics registers what it counts.
func (h *Handover) RegisterMetrics(reg prometheus.Registerer) { reg.MustRegister(h.given, h.left) }

// Run gives what there is, and what comes, until ctx ends.
func (h *Handover) Run(ctx context.Context) {
	for failed := time.Duration(0); ; {
		more, err := h.Give(ctx)
		wait := pause
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			if failed == 0 {
				h.cfg.Log.Warn("the audit log of the cluster does not get the journal now: it stays here, "+
					"and is given later", "err", err)
			}
			failed = min(max(2*failed, pause), backoff)
			wait = failed
		case more:
			failed = 0
			continue
		default:
			failed = 0
		}
		if watch.Sleep(ctx, wait) != nil {
			return
		}
	}
}

// Give gives one batch. It reports whether there may be more. One call at a time.
func (h *Handover) Give(ctx context.Context) (more bool, err error) {
	if len(h.waiting) == 0 {
		h.waiting, err = h.cfg.Source.Next(entries, size)
		if errors.Is(err, execute.ErrBroken) {
			h.cfg.Log.Error("a part of the journal cannot be read, and is not given to the audit log", "err", err)
			return true, nil
		}
		if err != nil {
			return false, err
		}
		if len(h.waiting) == 0 {
			h.rewound = false
			return false, nil
		}
	}
	name, _, _ := auditlog.ParseKey(h.waiting[0].Key) // a record has one
	if name != h.chain.name {
		if lost, err := h.lost(ctx); lost || err != nil {
			return true, err
		}
		h.chain = chain{name: name}
		return true, h.look(ctx)
	}
	batch := h.next()
	if len(batch) == 0 {
		return true, nil
	}
	return true, h.give(ctx, batch)
}

// lost looks whether coordinators still have of a chain what they had when it went on to another one, and
// begins anew if not: a store that was restored meanwhile lost it.
func (h *Handover) lost(ctx context.Context) (bool, error) {
	if h.rewound || h.chain.over || h.chain.left || h.chain.number == 0 {
		return false, nil
	}
	resp, err := h.call(ctx, &fealtyv1.KeepJournalRequest{Chain: h.chain.name})
	if err != nil || resp.GetOver() || resp.GetNumber() >= h.chain.number {
		return false, err
	}
	h.rewind()
	return true, nil
}

// rewind gives all again from the oldest record on: once, until all was given.
func (h *Handover) rewind() {
	h.waiting, h.chain, h.rewound = nil, chain{}, true
	h.cfg.Source.Rewind()
}

// next drops what a coordinator has of the chain, and returns those that come next of it: one
// follows the other.
func (h *Handover) next() (batch []execute.Record) {
	for i, r := range h.waiting {
		name, number, _ := auditlog.ParseKey(r.Key)
		switch {
		case name != h.chain.name:
			h.waiting = h.waiting[i:]
			return h.waiting[:0]
		case h.chain.over:
		case h.chain.left:
			h.left.Inc()
		case number > h.chain.number:
			h.waiting = h.waiting[i:]
			for n, r := range h.waiting {
				if name, _, _ := auditlog.ParseKey(r.Key); name != h.chain.name {
					return h.waiting[:n]
				}
			}
			return h.waiting
		}
	}
	h.waiting = nil
	return nil
}

// look asks how far the chain is there.
func (h *Handover) look(ctx context.Context) error {
	resp, err := h.call(ctx, &fealtyv1.KeepJournalRequest{Chain: h.chain.name})
	switch {
	case status.Code(err) == codes.InvalidArgument:
		h.leave("it was refused", "err", err)
	case err != nil:
		h.chain = chain{} // it is asked for again
		return err
	default:
		h.chain.number, h.chain.over = resp.GetNumber(), resp.GetOver()
	}
	return nil
}

func (h *Handover) call(ctx context.Context, req *fealtyv1.KeepJournalRequest) (*fealtyv1.KeepJournalResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return h.service.KeepJournal(ctx, req)
}

// give gives a batch of the chain, whose records follow one another.
func (h *Handover) give(ctx context.Context, batch []execute.Record) error {
	req := &fealtyv1.KeepJournalRequest{Chain: h.chain.name}
	_, req.First, _ = auditlog.ParseKey(batch[0].Key)
	for _, r := range batch {
		req.Entries = append(req.Entries, []byte(r.Value))
	}
	resp, err := h.call(ctx, req)
	if status.Code(err) == codes.InvalidArgument {
		// Asking again would change nothing, and what comes after it has to be given all the same.
		h.leave("it was refused", "err", err)
		return nil
	}
	if err != nil {
		return err
	}
	if resp.GetOver() {
		h.chain.over = true
		return nil
	}
	last := req.GetFirst() + uint64(len(batch)) - 1
	switch number := resp.GetNumber(); {
	case number+1 < req.GetFirst() && h.rewound:
		h.leave("some before it were dropped here", "there up to", number, "next here", req.GetFirst())
		return nil
	case number+1 < req.GetFirst():
		// A store that went back lost some, and here they may still be.
		h.rewind()
		return nil
	case number >= req.GetFirst() && number <= last:
		// The coordinator has what is here, or another process wrote as this one.
		r := batch[number-req.GetFirst()]
		if hash := auditlog.HashOf(r.Key, []byte(r.Value)); !bytes.Equal(hash[:], resp.GetHash()) {
			h.leave("the audit log has another entry in its place", "incident", true, "number", number)
			return nil
		}
		h.given.Add(float64(number - h.chain.number))
	}
	h.chain.number = resp.GetNumber()
	return nil
}

// leave gives no more of the chain.
func (h *Handover) leave(why string, args ...any) {
	h.chain.left = true
	h.cfg.Log.Error("the rest of a chain of the journal is not given to the audit log, and stays here: "+why,
		append([]any{"chain", h.chain.name}, args...)...)
}
