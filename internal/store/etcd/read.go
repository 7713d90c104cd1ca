package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/engine"
)

// A read asks for no more than this at a time.
const (
	getsPerRead    = 100
	entriesPerRead = 200
	partsPerRead   = 64 // more than one commit has
	bytesPerFetch  = 8 << 20
)

// snapshot is the head as one read found it, and what to read at the same moment.
type snapshot struct {
	head head
	raw  []byte // the head's record
	mod  int64  // etcd's revision of that record
	at   int64  // etcd's revision of the read
}

// errGone: there is no head.
var errGone = errors.New("no store under this prefix")

// look reads the head, and along with it what gets ask for, all at one moment.
func (db *database) look(
	ctx context.Context, x *session, gets ...*pb.RangeRequest,
) (*snapshot, []*pb.RangeResponse, error) {
	first := min(len(gets), getsPerRead)
	request := &pb.TxnRequest{Success: []*pb.RequestOp{rangeOp(&pb.RangeRequest{Key: db.key(headKey)})}}
	for _, g := range gets[:first] {
		request.Success = append(request.Success, rangeOp(g))
	}
	answer, err := x.txn(ctx, request)
	if err != nil {
		return nil, nil, err
	}
	found, err := ranges(request, answer)
	if err != nil {
		return nil, nil, err
	}
	at := answer.Header.GetRevision()
	if at < 1 {
		return nil, nil, lies("a read at no revision")
	}
	if len(found[0].Kvs) == 0 {
		return nil, nil, errGone
	}
	kv := found[0].Kvs[0]
	if kv.ModRevision < 1 || kv.ModRevision > at {
		return nil, nil, lies(fmt.Sprintf("a record of revision %d, read at %d", kv.ModRevision, at))
	}
	snap := &snapshot{raw: kv.Value, mod: kv.ModRevision, at: at}
	if snap.head, err = decodeHead(db.name(), kv.Value); err != nil {
		return nil, nil, err
	}
	if db.id != "" && snap.head.Store != db.id {
		return nil, nil, &engine.ServerError{Problem: "holds another store under this prefix than when it was opened",
			Do: "start this process again, if that is meant to be"}
	}
	found = found[1:]
	for at := first; at < len(gets); at += getsPerRead {
		page := gets[at:min(len(gets), at+getsPerRead)]
		more, err := db.reads(ctx, x, snap.at, page)
		if err != nil {
			return nil, nil, err
		}
		found = append(found, more...)
	}
	return snap, found, nil
}

// reads makes at most getsPerRead reads at one revision of etcd.
func (db *database) reads(
	ctx context.Context, x *session, at int64, gets []*pb.RangeRequest,
) ([]*pb.RangeResponse, error) {
	request := &pb.TxnRequest{}
	for _, g := range gets {
		g.Revision = at
		request.Success = append(request.Success, rangeOp(g))
	}
	answer, err := x.txn(ctx, request)
	if err != nil {
		return nil, err
	}
	return ranges(request, answer)
}

func rangeOp(r *pb.RangeRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: r}}
}

// ranges returns the answers to the reads of request.
func ranges(request *pb.TxnRequest, answer *pb.TxnResponse) ([]*pb.RangeResponse, error) {
	if n := len(request.Success); len(answer.Responses) != n {
		return nil, lies(fmt.Sprintf("%d of %d reads", len(answer.Responses), n))
	}
	all := make([]*pb.RangeResponse, len(answer.Responses))
	for i, r := range answer.Responses {
		if all[i] = r.GetResponseRange(); all[i] == nil {
			return nil, lies("a read with something else")
		}
		if err := answers(request.Success[i].GetRequestRange(), all[i]); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// answers checks that found can be an answer to asked: callers take the last key as
// where to go on, and the first for the one that they named.
func answers(asked *pb.RangeRequest, found *pb.RangeResponse) error {
	if asked.Limit > 0 && int64(len(found.Kvs)) > asked.Limit {
		return lies(fmt.Sprintf("%d records where %d were asked for", len(found.Kvs), asked.Limit))
	}
	if found.More && len(found.Kvs) == 0 {
		return lies("that there is more than nothing")
	}
	var last []byte
	for i, kv := range found.Kvs {
		switch {
		case len(asked.RangeEnd) == 0 && !bytes.Equal(kv.Key, asked.Key),
			len(asked.RangeEnd) > 0 &&
				(bytes.Compare(kv.Key, asked.Key) < 0 || bytes.Compare(kv.Key, asked.RangeEnd) >= 0):
			return lies("a record that was not asked for")
		case i > 0 && bytes.Compare(kv.Key, last) <= 0:
			return lies("records out of order")
		}
		last = kv.Key
	}
	return nil
}

// lies is the error of an answer that no etcd server gives.
func lies(what string) error {
	return &engine.ServerError{Problem: "answers what etcd does not: " + what, Do: "find out what stands between here and the servers"}
}

// under returns a read of all keys that begin with prefix.
func (db *database) under(prefix string) *pb.RangeRequest {
	return &pb.RangeRequest{Key: db.key(prefix), RangeEnd: db.key(store.PrefixEnd(prefix))}
}

// pending returns the large commit that snap's head has pending, or nil.
func (db *database) pending(ctx context.Context, x *session, snap *snapshot) (*change, error) {
	p := snap.head.Pending
	if p == nil {
		db.forget()
		return nil, nil
	}
	db.mu.Lock()
	known := db.staged
	db.mu.Unlock()
	if known != nil && known.by == snap.head.By {
		return known.change, nil
	}
	var data []byte
	for i := range p.Chunks {
		found, err := db.reads(ctx, x, snap.at, []*pb.RangeRequest{{Key: db.key(stageKey(p.Stage, i))}})
		if err != nil {
			return nil, err
		}
		if len(found[0].Kvs) != 1 {
			return nil, damaged(stagePrefix+p.Stage, errors.New("a chunk is missing"))
		}
		chunk := found[0].Kvs[0].Value
		if len(chunk) > chunkBytes {
			return nil, damaged(stagePrefix+p.Stage, errors.New("a chunk is too long"))
		}
		data = append(data, chunk...)
	}
	c, err := decodeStage(snap.head, data)
	if err != nil {
		return nil, err
	}
	db.mu.Lock()
	db.staged = &staged{snap.head.By, c}
	db.mu.Unlock()
	return c, nil
}

func stageKey(name string, chunk int) string {
	return fmt.Sprintf("%s%s/%04x", stagePrefix, name, chunk)
}

// forget drops a stage that was read.
func (db *database) forget() {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.staged = nil
}

// long is a value that stands apart.
type long struct {
	version store.Revision
	put     int
	bytes   int
	into    *[]byte
}

// fetch reads values that stand apart, at one revision of etcd.
func (db *database) fetch(ctx context.Context, x *session, at int64, wanted []long) error {
	for len(wanted) > 0 {
		n, bytes := 0, 0
		var gets []*pb.RangeRequest
		for n < len(wanted) && n < getsPerRead && (n == 0 || bytes+wanted[n].bytes <= bytesPerFetch) {
			gets = append(gets, db.under(blobRange(wanted[n].version, wanted[n].put)))
			bytes += wanted[n].bytes
			n++
		}
		found, err := db.reads(ctx, x, at, gets)
		if err != nil {
			return err
		}
		for i, w := range wanted[:n] {
			value := make([]byte, 0, w.bytes)
			for _, kv := range found[i].Kvs {
				value = append(value, kv.Value...)
			}
			if len(value) != w.bytes {
				return damaged(blobRange(w.version, w.put), fmt.Errorf("%d bytes of %d are there", len(value), w.bytes))
			}
			*w.into = value
		}
		wanted = wanted[n:]
	}
	return nil
}

// read calls f with a session, maybe more than once.
func (db *database) read(ctx context.Context, f func(context.Context, *session) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return db.gone(db.dialer.ask(ctx, f))
}

// gone returns err, or who is to blame if there is no head.
func (db *database) gone(err error) error {
	if errors.Is(err, errGone) {
		return &engine.ServerError{Problem: "holds no store under this prefix any more",
			Do: "restore the prefix, or start this process again to begin a new store"}
	}
	return err
}

// Entry implements [engine.Reader].
func (db *database) Entry(ctx context.Context, key string) (e store.Entry, err error) {
	err = db.read(ctx, func(ctx context.Context, x *session) error {
		e = store.Entry{Key: key}
		snap, found, err := db.look(ctx, x, &pb.RangeRequest{Key: db.key(entryPrefix + key)})
		if err != nil {
			return err
		}
		c, err := db.pending(ctx, x, snap)
		if err != nil {
			return err
		}
		if c != nil {
			for _, w := range c.puts {
				if w.Key == key {
					e.Value, e.Version = append([]byte{}, w.Value...), c.revision
					return nil
				}
			}
			for _, k := range c.deletes {
				if k == key {
					return nil
				}
			}
		}
		if len(found[0].Kvs) == 0 {
			return nil
		}
		m, value, err := decodeEntry(key, found[0].Kvs[0].Value)
		if err != nil {
			return err
		}
		if m.Version > snap.head.Revision {
			return damaged(entryPrefix+key, errors.New("it is newer than the head"))
		}
		e.Version, e.Value = m.Version, value
		if m.Chunks == 0 {
			return nil
		}
		return db.fetch(ctx, x, snap.at, []long{{m.Version, m.Put, m.Bytes, &e.Value}})
	})
	return e, err
}

// Entries implements [engine.Reader].
func (db *database) Entries(ctx context.Context, prefix string) (l store.Listing, err error) {
	err = db.read(ctx, func(ctx context.Context, x *session) error {
		return db.list(ctx, x, prefix, &l)
	})
	return l, err
}

func (db *database) list(ctx context.Context, x *session, prefix string, l *store.Listing) error {
	page := db.under(entryPrefix + prefix)
	page.Limit = entriesPerRead
	snap, found, err := db.look(ctx, x, page)
	if err != nil {
		return err
	}
	c, err := db.pending(ctx, x, snap)
	if err != nil {
		return err
	}
	var all []item
	for {
		for _, kv := range found[0].Kvs {
			key := strings.TrimPrefix(string(kv.Key), db.addr.prefix+entryPrefix)
			m, value, err := decodeEntry(key, kv.Value)
			if err == nil {
				err = store.CheckKey(key)
			}
			if err != nil {
				return err
			}
			if m.Version > snap.head.Revision {
				return damaged(entryPrefix+key, errors.New("it is newer than the head"))
			}
			all = append(all, item{store.Entry{Key: key, Value: value, Version: m.Version}, m})
		}
		if !found[0].More {
			break
		}
		next := db.under(entryPrefix + prefix)
		next.Limit = entriesPerRead
		next.Key = append(found[0].Kvs[len(found[0].Kvs)-1].Key, 0)
		if found, err = db.reads(ctx, x, snap.at, []*pb.RangeRequest{next}); err != nil {
			return err
		}
	}
	if told := c.under(prefix); told != nil {
		all = overlay(all, told)
	}
	*l = store.Listing{Revision: snap.head.Revision, Entries: make([]store.Entry, len(all))}
	var wanted []long
	for i, e := range all {
		l.Entries[i] = e.entry
		if e.meta.Chunks > 0 {
			wanted = append(wanted, long{e.meta.Version, e.meta.Put, e.meta.Bytes, &l.Entries[i].Value})
		}
	}
	return db.fetch(ctx, x, snap.at, wanted)
}

// Page implements [engine.Reader].
func (db *database) Page(ctx context.Context, prefix string, after store.Revision) (engine.Page, error) {
	var changes []store.Change
	var seen store.Revision
	var more bool
	var snap *snapshot
	err := db.read(ctx, func(ctx context.Context, x *session) error {
		changes, seen, more = nil, after, false
		page := db.under(logPrefix)
		page.Key = db.key(logKey(min(after, store.MaxRevision)+1, 0))
		page.Limit = partsPerRead
		var found []*pb.RangeResponse
		var err error
		if snap, found, err = db.look(ctx, x, page); err != nil {
			return err
		}
		c, err := db.pending(ctx, x, snap)
		if err != nil {
			return err
		}
		var wanted []long
		var now store.Change
		var whole []long // of now
		for _, kv := range found[0].Kvs {
			p, values, err := decodePart(strings.TrimPrefix(string(kv.Key), db.addr.prefix), kv.Value)
			if err != nil {
				return err
			}
			if p.Revision > snap.head.Revision {
				return damaged(logKey(p.Revision, 0), errors.New("it is newer than the head"))
			}
			if c != nil && p.Revision >= c.revision {
				break // told from the stage
			}
			if p.Revision != now.Revision {
				now, whole = store.Change{Revision: p.Revision}, nil
			}
			for i, w := range p.Put {
				if !strings.HasPrefix(w.Key, prefix) {
					continue
				}
				now.Put = append(now.Put, store.Entry{Key: w.Key, Value: values[i], Version: p.Revision})
				if w.chunks() > 0 {
					whole = append(whole, long{version: p.Revision, put: w.Put, bytes: w.Bytes})
				}
			}
			for _, k := range p.Delete {
				if strings.HasPrefix(k, prefix) {
					now.Delete = append(now.Delete, k)
				}
			}
			if !p.Last {
				continue
			}
			seen = p.Revision
			if len(now.Put)+len(now.Delete) == 0 {
				continue
			}
			// Only now, when the slice grows no more, do values have their places.
			next := 0
			for i := range now.Put {
				if now.Put[i].Value == nil {
					whole[next].into = &now.Put[i].Value
					next++
				}
			}
			wanted = append(wanted, whole...)
			changes = append(changes, now)
		}
		if found[0].More {
			if seen == after {
				return damaged(logKey(now.Revision, 0), errors.New("its commit has no end"))
			}
			more = true
		} else {
			seen = max(seen, snap.head.Revision)
			if told := c.under(prefix); c != nil && after < c.revision && told != nil {
				changes = append(changes, *told)
			}
		}
		return db.fetch(ctx, x, snap.at, wanted)
	})
	if err != nil {
		return engine.Page{}, err
	}
	if h := snap.head; after < h.Compacted || after > h.Revision {
		return engine.Page{}, &store.CompactedError{After: after, Oldest: h.Compacted, Current: h.Revision}
	}
	return engine.Page{Changes: changes, Seen: seen, More: more}, nil
}

// item is an entry as it is listed. A value that stands apart is yet to be read.
type item struct {
	entry store.Entry
	meta  meta
}

// overlay returns all as it is after told, of which any part may be in it
// already.
func overlay(all []item, told *store.Change) []item {
	touched := make(map[string]bool, len(told.Put)+len(told.Delete))
	for _, e := range told.Put {
		touched[e.Key] = true
	}
	for _, k := range told.Delete {
		touched[k] = true
	}
	all = slices.DeleteFunc(all, func(e item) bool { return touched[e.entry.Key] })
	for _, e := range told.Put {
		all = append(all, item{entry: e})
	}
	slices.SortStableFunc(all, func(a, b item) int { return strings.Compare(a.entry.Key, b.entry.Key) })
	return all
}
