package etcd

import (
	"context"
	"errors"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/fealty-io/fealty/internal/store"
)

// stage is a large commit that was written aside.
type stage struct {
	name, by   string
	conditions []*pb.Compare   // that all of it is there
	ops        []*pb.RequestOp // that take it off its lease
	tried      int64           // etcd's revision of the head that it was last tried on
}

// unfit reports whether the last try failed though the head is still the same:
// then the stage is gone.
func (st *stage) unfit(snap *snapshot) bool { return st.tried == snap.mod }

// stage writes tx aside. If nothing comes of it, etcd deletes it when the lease is over.
func (w *writer) stage(ctx context.Context, tx store.Tx, digest []byte) (*stage, error) {
	st := &stage{name: randomName(), by: randomName()}
	var lease int64
	err := w.db.dialer.ask(ctx, func(ctx context.Context, x *session) error {
		granted, err := call(ctx, x, func(ctx context.Context) (*pb.LeaseGrantResponse, error) {
			return x.lease.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: stageTTL})
		})
		if err == nil {
			lease = granted.ID
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	for i, chunk := range encodeStage(st.by, tx, digest) {
		key := w.db.key(stageKey(st.name, i))
		err := w.db.dialer.ask(ctx, func(ctx context.Context, x *session) error {
			_, err := call(ctx, x, func(ctx context.Context) (*pb.PutResponse, error) {
				return x.kv.Put(ctx, &pb.PutRequest{Key: key, Value: chunk, Lease: lease})
			})
			return err
		})
		if err != nil {
			return nil, err
		}
		st.conditions = append(st.conditions, &pb.Compare{
			Target: pb.Compare_CREATE, Result: pb.Compare_GREATER, Key: key,
			TargetUnion: &pb.Compare_CreateRevision{CreateRevision: 0},
		})
		st.ops = append(st.ops, &pb.RequestOp{Request: &pb.RequestOp_RequestPut{
			RequestPut: &pb.PutRequest{Key: key, IgnoreValue: true},
		}})
	}
	return st, nil
}

// errMoved: the head is not the one that something was to be done under.
var errMoved = errors.New("someone else replaced the head")

// steps collects operations, and makes them in transactions that etcd takes, each
// on the condition of one head.
type steps struct {
	w     *writer
	snap  *snapshot
	ops   []*pb.RequestOp
	bytes int
}

func (t *steps) add(ctx context.Context, op *pb.RequestOp) error {
	n := 64
	if p := op.GetRequestPut(); p != nil {
		n += len(p.Key) + len(p.Value)
	}
	if d := op.GetRequestDeleteRange(); d != nil {
		n += len(d.Key) + len(d.RangeEnd)
	}
	if len(t.ops) >= usableOps || len(t.ops) > 0 && t.bytes+n > maxRequest {
		if err := t.flush(ctx); err != nil {
			return err
		}
	}
	t.ops, t.bytes = append(t.ops, op), t.bytes+n
	return nil
}

// flush makes what was collected. Done twice it does the same.
func (t *steps) flush(ctx context.Context) error {
	if len(t.ops) == 0 {
		return nil
	}
	request := &pb.TxnRequest{Compare: t.w.db.still(t.snap), Success: t.ops}
	err := t.w.db.dialer.ask(ctx, func(ctx context.Context, x *session) error {
		answer, err := x.txn(ctx, request)
		if err == nil && !answer.Succeeded {
			return errMoved
		}
		return err
	})
	t.ops, t.bytes = nil, 0
	return err
}

// finish moves the large commit that snap's head has pending to its place. It may
// have been begun by someone else, and someone else may be at it too.
func (w *writer) finish(ctx context.Context, snap *snapshot) error {
	err := w.move(ctx, snap)
	if err == nil || errors.Is(err, errMoved) {
		w.db.forget()
		w.pending = false
		return nil
	}
	return err
}

func (w *writer) move(ctx context.Context, snap *snapshot) error {
	var c *change
	before := map[string]meta{}
	err := w.db.dialer.ask(ctx, func(ctx context.Context, x *session) (err error) {
		now, _, err := w.db.look(ctx, x)
		if err != nil {
			return err
		}
		if now.mod != snap.mod {
			return errMoved
		}
		if c, err = w.db.pending(ctx, x, now); err != nil {
			return err
		}
		var keys []string
		for _, p := range c.puts {
			keys = append(keys, p.Key)
		}
		keys = append(keys, c.deletes...)
		var gets []*pb.RangeRequest
		for _, k := range keys {
			gets = append(gets, &pb.RangeRequest{Key: w.db.key(entryPrefix + k)})
		}
		_, found, err := w.db.look(ctx, x, gets...)
		if err != nil {
			return err
		}
		for i, k := range keys {
			if len(found[i].Kvs) > 0 {
				if before[k], _, err = decodeEntry(k, found[i].Kvs[0].Value); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	t := &steps{w: w, snap: snap}
	// The value of the entry before goes first: while the entry tells of it, who goes on
	// with this move knows that it is to go. Nobody reads either of them now.
	replaced := func(key string) error {
		if old := before[key]; old.Chunks > 0 && old.Version != c.revision && old.Version <= snap.head.Compacted {
			return t.add(ctx, w.db.deleteBlob(old.Version, old.Put))
		}
		return nil
	}
	for i, p := range c.puts {
		for _, op := range w.db.putValue(c.revision, i, p.Value) {
			if err := t.add(ctx, op); err != nil {
				return err
			}
		}
		if err := replaced(p.Key); err != nil {
			return err
		}
		if err := t.add(ctx, putOp(w.db.key(entryPrefix+p.Key), encodeEntry(c.revision, i, p.Value))); err != nil {
			return err
		}
	}
	for _, k := range c.deletes {
		if err := replaced(k); err != nil {
			return err
		}
		if err := t.add(ctx, deleteOp(w.db.key(entryPrefix+k), nil)); err != nil {
			return err
		}
	}
	for i, record := range c.parts(true) {
		if err := t.add(ctx, putOp(w.db.key(logKey(c.revision, i)), record)); err != nil {
			return err
		}
	}
	if c.id != "" {
		if err := t.add(ctx, putOp(w.db.key(idPrefix+c.id), encodeOutcome(c.revision, c.digest))); err != nil {
			return err
		}
	}
	if err := t.flush(ctx); err != nil {
		return err
	}
	done := snap.head
	done.By, done.Pending = randomName(), nil
	of := stagePrefix + snap.head.Pending.Stage + "/"
	t.ops = []*pb.RequestOp{
		putOp(w.db.key(headKey), encodeHead(done)),
		deleteOp(w.db.key(of), w.db.key(store.PrefixEnd(of))),
	}
	return t.flush(ctx)
}
