package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/fealty-io/fealty/internal/store/engine"
)

// errSilent: a watch did not tell what a read found.
var errSilent = errors.New("the watch is silent about what was committed")

// follow tells the hub what is committed, by this process or others, until ctx
// ends. It begins another watch after whatever happened to one, and reads what it
// missed.
func (db *database) follow(ctx context.Context) {
	failing := false
	pause := time.Duration(0)
	for ctx.Err() == nil {
		followed := time.Now()
		err := db.watchHead(ctx)
		if ctx.Err() != nil {
			return
		}
		if !failing {
			db.opts.Log.Warn("lost the watch on etcd, making another", "store", db.name(), "err", err)
			failing = true
		}
		if time.Since(followed) > 2*db.opts.Heartbeat {
			failing, pause = false, 0
		}
		// At once, then ever slower up to the heartbeat.
		if sleep(ctx, pause/2+rand.N(pause/2+1)) != nil {
			return
		}
		pause = min(2*pause+50*time.Millisecond, db.opts.Heartbeat)
	}
}

// watchHead follows the head through one member. It returns an error when that
// member is not to be relied on any more, and has given it up then.
func (db *database) watchHead(ctx context.Context) (err error) {
	x, err := db.dialer.session(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil && ctx.Err() == nil && !ours(err) {
			db.dialer.giveUp(x)
		}
	}()
	// First what was missed, and from where to watch.
	snap, _, err := db.look(ctx, x)
	if err != nil {
		return db.gone(err)
	}
	if err := db.tell(ctx, x, snap.head, true); err != nil {
		return err
	}
	var running sync.WaitGroup
	defer running.Wait()
	watching, stop := context.WithCancel(withLeader(ctx))
	defer stop()
	stream, err := x.watch.Watch(watching)
	if err != nil {
		return err
	}
	err = stream.Send(&pb.WatchRequest{
		RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{
			Key: db.key(headKey), StartRevision: snap.at + 1,
		}}})
	if err != nil {
		return err
	}
	events := make(chan *pb.WatchResponse)
	ended := make(chan error, 1)
	running.Go(func() {
		for {
			r, err := stream.Recv()
			if err != nil {
				ended <- err
				return
			}
			select {
			case events <- r:
			case <-watching.Done():
				return
			}
		}
	})
	beat := time.NewTicker(db.opts.Heartbeat)
	defer beat.Stop()
	watched := snap.mod // etcd's revision of the head that the watch has told
	owed := int64(0)    // of the head that the last beat read, if the watch had not told it
	for {
		select {
		case r := <-events:
			if r.Canceled {
				return fmt.Errorf("the server ended the watch: %s", r.CancelReason)
			}
			for _, e := range r.Events {
				if e.Kv == nil || !bytes.Equal(e.Kv.Key, db.key(headKey)) {
					return lies("an event that was not asked for")
				}
				watched = max(watched, e.Kv.ModRevision)
			}
			if n := len(r.Events); n > 0 {
				h, err := decodeHead(db.name(), r.Events[n-1].Kv.Value)
				if err != nil {
					return err // it was deleted, say; reads will tell
				}
				if err := db.tell(ctx, x, h, false); err != nil {
					return err
				}
			}
		case err := <-ended:
			return err
		case <-beat.C:
			// Through the majority, which the watch does not ask.
			now, _, err := db.look(ctx, x)
			if err != nil {
				return db.gone(err)
			}
			if err := db.tell(ctx, x, now.head, true); err != nil {
				return err
			}
			if owed > watched {
				return errSilent
			}
			owed = now.mod
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// ours reports whether err is about the store under the prefix, and not about the
// member that was asked.
func ours(err error) bool {
	_, server := errors.AsType[*engine.ServerError](err)
	return server || errors.Is(err, engine.ErrSchema)
}

// tell wakes those whom h concerns. newest means that h was read just now, and did
// not come with an event, which may be late.
func (db *database) tell(ctx context.Context, x *session, h head, newest bool) error {
	seen, _ := db.hub.State()
	switch {
	case h.Revision == seen, h.Revision < seen && !newest:
		return nil
	case h.Revision < seen, h.Pending != nil, seen < h.Compacted:
		// The store was set back, or the log does not tell.
		db.hub.Notify(h.Revision, h.Logged, nil, true)
		return nil
	}
	keys, all, err := db.touched(ctx, x, seen, h.Revision)
	if err != nil {
		return err
	}
	db.hub.Notify(h.Revision, h.Logged, keys, all)
	return nil
}
