package etcd

import (
	"context"
	"errors"
	"math"
	"strconv"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/engine"
)

// ready makes sure that there is a store under the prefix, and that the servers
// take what it will ask of them.
func (db *database) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, db.patience())
	defer cancel()
	for {
		var snap *snapshot
		err := db.dialer.ask(ctx, func(ctx context.Context, x *session) (err error) {
			if err := db.takes(ctx, x, 0); err != nil {
				return err
			}
			snap, _, err = db.look(ctx, x)
			return err
		})
		switch {
		case err == nil:
			db.id = snap.head.Store
			return nil
		case !errors.Is(err, errGone):
			return err
		}
		if err := db.create(ctx); err != nil {
			return err
		}
	}
}

// create makes a store where there is none. Somebody else may do it at the same
// time, and then that is the one.
func (db *database) create(ctx context.Context) error {
	h := head{Schema: schema, Store: randomName(), By: randomName()}
	return db.dialer.ask(ctx, func(ctx context.Context, x *session) error {
		if err := db.takes(ctx, x, maxRequest+requestSlack/2); err != nil {
			return err
		}
		if err := db.vacant(ctx, x); err != nil {
			return err
		}
		_, err := x.txn(ctx, &pb.TxnRequest{
			Compare: []*pb.Compare{{
				Target: pb.Compare_CREATE, Result: pb.Compare_EQUAL, Key: db.key(headKey),
				TargetUnion: &pb.Compare_CreateRevision{},
			}},
			Success: []*pb.RequestOp{putOp(db.key(headKey), encodeHead(h))},
		})
		if isAnswer(err, errNoSpace) {
			return errors.Join(store.ErrFull, errors.New(plain(err)))
		}
		return err
	})
}

// vacant refuses a prefix that holds something, or stands in another store's.
func (db *database) vacant(ctx context.Context, x *session) error {
	some := db.under("")
	some.Limit, some.KeysOnly = 1, true
	found, err := call(ctx, x, func(ctx context.Context) (*pb.RangeResponse, error) { return x.kv.Range(ctx, some) })
	if err != nil {
		return err
	}
	if len(found.Kvs) > 0 && string(found.Kvs[0].Key) != db.addr.prefix+headKey {
		return &engine.ServerError{Problem: "holds keys under " + strings.TrimSuffix(db.addr.prefix, "/") + " that are not a store's",
			Do: "name a prefix that nobody uses"}
	}
	parts := strings.Split(strings.Trim(db.addr.prefix, "/"), "/")
	for i := 1; i < len(parts); i++ {
		above := "/" + strings.Join(parts[:i], "/") + "/"
		found, err := call(ctx, x, func(ctx context.Context) (*pb.RangeResponse, error) {
			return x.kv.Range(ctx, &pb.RangeRequest{Key: []byte(above + headKey)})
		})
		switch {
		case isAnswer(err, errPermissionDenied):
			continue // what this user may not see is not this store's neighbour
		case err != nil:
			return err
		case len(found.Kvs) == 0:
			continue
		}
		if _, err := decodeHead(above, found.Kvs[0].Value); err == nil {
			return &engine.ServerError{Problem: "holds another store under " + strings.TrimSuffix(above, "/") +
				", and this prefix stands in it",
				Do: "name a prefix beside it"}
		}
	}
	return nil
}

// takes asks the server to look at a transaction that writes nothing, as large as
// the store's own become: of all operations, or of so many bytes.
func (db *database) takes(ctx context.Context, x *session, bytes int) error {
	request := &pb.TxnRequest{
		// A condition that never holds.
		Compare: []*pb.Compare{{
			Target: pb.Compare_CREATE, Result: pb.Compare_GREATER, Key: db.key(headKey),
			TargetUnion: &pb.Compare_CreateRevision{CreateRevision: math.MaxInt64},
		}},
	}
	if bytes > 0 {
		request.Success = []*pb.RequestOp{putOp(db.key(headKey), make([]byte, bytes))}
	} else {
		for range maxOps {
			request.Success = append(request.Success, rangeOp(&pb.RangeRequest{Key: db.key(headKey), CountOnly: true}))
		}
	}
	_, err := x.txn(ctx, request)
	return err
}

// Inspect looks at the servers that url names, and changes nothing there.
//
// Errors: those of [Open].
func Inspect(ctx context.Context, url string, opts Options) (engine.Report, error) {
	opts, err := opts.filled()
	if err != nil {
		return engine.Report{}, err
	}
	db, err := prepare(url, opts)
	if err != nil {
		return engine.Report{}, err
	}
	defer db.dialer.close()
	r, err := db.inspect(ctx)
	if err != nil {
		return engine.Report{}, db.openError(err)
	}
	return r, nil
}

func (db *database) inspect(ctx context.Context) (engine.Report, error) {
	r := engine.Report{Name: db.name(), Known: strconv.Itoa(schema)}
	ctx, cancel := context.WithTimeout(ctx, db.patience())
	defer cancel()
	var revision int64
	err := db.dialer.ask(ctx, func(ctx context.Context, x *session) error {
		if err := db.takes(ctx, x, 0); err != nil {
			return err
		}
		if err := db.takes(ctx, x, maxRequest+requestSlack/2); err != nil && !isAnswer(err, errNoSpace) {
			return err
		}
		snap, _, err := db.look(ctx, x)
		switch {
		case err == nil:
			r.Schema, revision = strconv.Itoa(snap.head.Schema), snap.at
			return nil
		case errors.Is(err, errGone):
			return db.vacant(ctx, x)
		}
		return err
	})
	if err != nil {
		return r, err
	}
	for _, endpoint := range db.addr.endpoints {
		r.Problems = append(r.Problems, db.member(ctx, endpoint)...)
	}
	if db.addr.plain && !db.addr.onlyThisDevice {
		r.Problems = append(r.Problems, engine.Problem{What: "the connection to etcd is not protected by TLS: " +
			"whoever gets in between reads and alters it",
			Do: "leave tls=off out of the URL, and name the root with ca=FILE"})
	}
	if db.addr.user == "" && db.addr.cert == "" && !db.addr.onlyThisDevice {
		r.Problems = append(r.Problems, engine.Problem{What: "nobody has to say who they are to write to etcd: " +
			"whoever reaches it can destroy the store",
			Do: "switch authentication on there, or require client certificates"})
	}
	if !db.addr.compact && revision > compactionExpected {
		kept := false
		err := db.dialer.ask(ctx, func(ctx context.Context, x *session) error {
			first := &pb.RangeRequest{Key: db.key(headKey), CountOnly: true, Revision: 1}
			_, err := call(ctx, x, func(ctx context.Context) (*pb.RangeResponse, error) {
				return x.kv.Range(ctx, first)
			})
			kept = err == nil
			if isAnswer(err, errCompacted) {
				return nil
			}
			return err
		})
		if err != nil {
			return r, err
		}
		if kept {
			r.Problems = append(r.Problems, engine.Problem{What: "nobody compacts this etcd: " +
				"it keeps every value that ever was, " +
				"until it is full and takes no more writes",
				Do: "set --auto-compaction-retention=1h on its servers, or compaction=everything in the URL " +
					"if this store is all that is in it"})
		}
	}
	return r, nil
}

// compactionExpected is after how many revisions some have usually been compacted.
const compactionExpected = 100_000

// member asks one endpoint how it is, and returns what is wrong.
func (db *database) member(ctx context.Context, endpoint string) (wrong []engine.Problem) {
	ctx, cancel := context.WithTimeout(ctx, db.opts.Timeout+time.Second)
	defer cancel()
	d := newDialer(db.dialer.login, []string{endpoint}, db.opts.Timeout)
	defer d.close()
	var answer *pb.StatusResponse
	err := d.ask(ctx, func(ctx context.Context, x *session) (err error) {
		answer, err = call(ctx, x, func(ctx context.Context) (*pb.StatusResponse, error) {
			return x.maintenance.Status(ctx, &pb.StatusRequest{})
		})
		return err
	})
	if err != nil {
		if none, ok := errors.AsType[*unreachableError](err); ok {
			err = none.err
		}
		return []engine.Problem{{What: endpoint + " does not answer: " + plain(err),
			Do: "start that member, or take it out of the URL"}}
	}
	for _, e := range answer.Errors {
		wrong = append(wrong, engine.Problem{What: endpoint + " reports: " + e, Do: "see etcdctl alarm list"})
	}
	if quota := answer.DbSizeQuota; quota > 0 && answer.DbSize > quota/5*4 {
		wrong = append(wrong, engine.Problem{What: endpoint + " has used four fifths " +
			"of the space that it takes writes for",
			Do: "compact and defragment it, or raise --quota-backend-bytes"})
	}
	if answer.IsLearner {
		wrong = append(wrong, engine.Problem{What: endpoint + " is a learner, which serves no writes",
			Do: "promote it, or take it out of the URL"})
	}
	return wrong
}
