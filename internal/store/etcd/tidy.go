package etcd

import (
	"context"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/engine"
)

// sweepParts is how many records of the log are deleted at once.
const sweepParts = 16

// Upkeep implements [engine.Writer].
func (w *writer) Upkeep(when engine.Occasion) bool {
	switch when {
	case engine.Ticked:
		w.garbage = true // what others left, or what failed the last time
	case engine.Idle:
		w.tidy()
	}
	return w.pending || w.garbage
}

// tidy does one step of what can wait. If it fails, it is tried again after the
// next tick.
func (w *writer) tidy() {
	ctx, cancel := context.WithTimeout(context.Background(), w.db.patience())
	defer cancel()
	failed := func(what string, err error) {
		w.db.opts.Log.Error(what+", trying again later", "store", w.db.name(), "err", w.inTime(err))
	}
	switch {
	case w.pending:
		snap, _, err := w.read(ctx, engine.Ask{})
		if err == nil && snap.head.Pending != nil {
			err = w.finish(ctx, snap)
		}
		w.pending = false
		if err != nil {
			failed("a large commit could not be moved to its place, where readers need not look for it", err)
		}
	case w.garbage:
		more, err := w.sweep(ctx)
		w.garbage = more && err == nil
		if err != nil {
			failed("old changes could not be deleted", err)
			return
		}
		if !w.garbage && w.db.addr.compact {
			if err := w.compact(ctx); err != nil {
				failed("etcd could not be compacted", err)
			}
		}
	}
}

// sweep deletes some records of changes that are not told any more, with what they
// alone need. It reports whether there may be more.
//
// A value that stands apart goes with the record unless the entry is still the one
// that the record tells of: then it goes with the entry. That cannot be missed:
// who replaces the entry later sees that its record is not told any more.
func (w *writer) sweep(ctx context.Context) (more bool, err error) {
	db := w.db
	err = db.gone(db.dialer.ask(ctx, func(ctx context.Context, x *session) error {
		more = false
		snap, _, err := db.look(ctx, x)
		if err != nil {
			return err
		}
		if snap.head.Pending != nil {
			w.pending, more = true, true // entries are in motion
			return nil
		}
		page := db.under(logPrefix)
		page.RangeEnd = db.key(logKey(snap.head.Compacted+1, 0))
		page.Limit = sweepParts
		found, err := db.reads(ctx, x, snap.at, []*pb.RangeRequest{page})
		if err != nil {
			return err
		}
		more = found[0].More
		if len(found[0].Kvs) == 0 {
			return nil
		}
		type record struct {
			key  []byte
			mod  int64
			part part
			long []putLine
			gets []*pb.RangeRequest
		}
		var records []record
		for _, kv := range found[0].Kvs {
			p, _, err := decodePart(strings.TrimPrefix(string(kv.Key), db.addr.prefix), kv.Value)
			if err != nil {
				return err
			}
			r := record{key: kv.Key, mod: kv.ModRevision, part: p}
			for _, put := range p.Put {
				if put.chunks() > 0 {
					r.long = append(r.long, put)
					r.gets = append(r.gets, &pb.RangeRequest{Key: db.key(entryPrefix + put.Key)})
				}
			}
			records = append(records, r)
		}
		request := &pb.TxnRequest{}
		for _, r := range records {
			ops := []*pb.RequestOp{deleteOp(r.key, nil)}
			if r.part.ID != "" {
				ops = append(ops, deleteOp(db.key(idPrefix+r.part.ID), nil))
			}
			for at := 0; at < len(r.gets); at += getsPerRead {
				entries, err := db.reads(ctx, x, snap.at, r.gets[at:min(len(r.gets), at+getsPerRead)])
				if err != nil {
					return err
				}
				for i, e := range entries {
					put := r.long[at+i]
					if len(e.Kvs) > 0 {
						m, _, err := decodeEntry(put.Key, e.Kvs[0].Value)
						if err != nil {
							return err
						}
						if m.Version == r.part.Revision {
							continue
						}
					}
					ops = append(ops, db.deleteBlob(r.part.Revision, put.Put))
				}
			}
			if len(request.Success) > 0 && len(request.Success)+len(ops) > usableOps {
				more = true
				break
			}
			// Another sweeper was faster if the record is gone; then its ID may be in use
			// again.
			request.Compare = append(request.Compare, &pb.Compare{
				Target: pb.Compare_MOD, Result: pb.Compare_EQUAL, Key: r.key,
				TargetUnion: &pb.Compare_ModRevision{ModRevision: r.mod},
			})
			request.Success = append(request.Success, ops...)
		}
		_, err = x.txn(ctx, request)
		return err
	}))
	return more, err
}

// compact gives up what etcd keeps of its revisions, all but the last minutes.
func (w *writer) compact(ctx context.Context) error {
	snap, _, err := w.read(ctx, engine.Ask{})
	if err != nil {
		return err
	}
	now := time.Now()
	w.old = append(w.old, moment{now, snap.at})
	var upTo int64
	for len(w.old) > 0 && now.Sub(w.old[0].at) >= w.db.opts.history {
		upTo = w.old[0].revision
		w.old = w.old[1:]
	}
	if upTo == 0 {
		return nil
	}
	return w.db.dialer.ask(ctx, func(ctx context.Context, x *session) error {
		_, err := call(ctx, x, func(ctx context.Context) (*pb.CompactionResponse, error) {
			return x.kv.Compact(ctx, &pb.CompactionRequest{Revision: upTo})
		})
		if isAnswer(err, errCompacted) {
			return nil // someone else did
		}
		return err
	})
}

// start measures what is there.
func (w *writer) start(ctx context.Context) (engine.Found, error) {
	db := w.db
	var snap *snapshot
	var kept []engine.Part
	err := db.dialer.ask(ctx, func(ctx context.Context, x *session) (err error) {
		if snap, _, err = db.look(ctx, x); err != nil {
			return err
		}
		kept = nil
		h := snap.head
		// Some of the changes from earlier, as many as retention tells apart.
		var gets []*pb.RangeRequest
		width := (h.Revision-h.Compacted)/engine.MarksPerWindow + 1
		for r := h.Compacted + 1; r <= h.Revision; r += width {
			g := db.under(logPrefix)
			g.Key, g.Limit = db.key(logKey(r, 0)), 1
			gets = append(gets, g)
		}
		if len(gets) == 0 {
			return nil
		}
		found, err := db.reads(ctx, x, snap.at, gets)
		if err != nil {
			return err
		}
		logged := int64(-1)
		for _, f := range found {
			if len(f.Kvs) == 0 {
				continue
			}
			p, _, err := decodePart(strings.TrimPrefix(string(f.Kvs[0].Key), db.addr.prefix), f.Kvs[0].Value)
			if err != nil {
				return err
			}
			if logged < 0 {
				logged = p.Logged - partSize(p)
			}
			if len(kept) > 0 && kept[len(kept)-1].Revision == p.Revision {
				continue
			}
			kept = append(kept, engine.Part{Revision: p.Revision, Bytes: p.Logged - logged})
			logged = p.Logged
		}
		if logged >= 0 && h.Logged > logged {
			kept = append(kept, engine.Part{Revision: h.Revision, Bytes: h.Logged - logged})
		}
		return nil
	})
	if err != nil {
		return engine.Found{}, err
	}
	h := snap.head
	w.garbage = true // whatever was left the last time
	w.pending = h.Pending != nil
	db.hub.Notify(h.Revision, h.Logged, nil, true)
	return engine.Found{Compacted: h.Compacted, Revision: h.Revision, Logged: h.Logged, Parts: kept}, nil
}

// partSize returns the bytes of the keys and values of a part.
func partSize(p part) (n int64) {
	for _, w := range p.Put {
		n += int64(len(w.Key) + w.Bytes)
	}
	for _, k := range p.Delete {
		n += int64(len(k))
	}
	return n
}

// logMore is how many records of the log the follower reads to wake those who
// watch their keys; of more, all are woken.
const logMore = 256

// touched returns the keys of the commits after a revision, or says that there are
// too many.
func (db *database) touched(
	ctx context.Context, x *session, after, until store.Revision,
) (keys []string, all bool, err error) {
	page := db.under(logPrefix)
	page.Key, page.RangeEnd = db.key(logKey(after+1, 0)), db.key(logKey(until+1, 0))
	page.Limit = logMore
	answer, err := call(ctx, x, func(ctx context.Context) (*pb.RangeResponse, error) { return x.kv.Range(ctx, page) })
	if err == nil {
		err = answers(page, answer)
	}
	if err != nil {
		return nil, false, err
	}
	for _, kv := range answer.Kvs {
		p, _, err := decodePart(strings.TrimPrefix(string(kv.Key), db.addr.prefix), kv.Value)
		if err != nil {
			return nil, false, err
		}
		for _, w := range p.Put {
			keys = append(keys, w.Key)
		}
		keys = append(keys, p.Delete...)
	}
	return keys, answer.More, nil
}
