package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fealty-io/fealty/internal/store"
)

// hub wakes those who wait for commits. Whoever is woken reads the database, so
// a wake too many costs a read, and none is missed because waiters subscribe
// before they read.
type hub struct {
	mu     sync.Mutex
	any    chan struct{}                         // closed at the next commit; guarded by mu
	keys   map[string]map[chan struct{}]struct{} // waiters for a key, channels of capacity 1; guarded by mu
	seen   store.Revision                        // all commits up to here have woken; guarded by mu
	logged int64                                 // as of the last that was heard of; guarded by mu
}

func newHub() hub {
	return hub{any: make(chan struct{}), keys: make(map[string]map[chan struct{}]struct{})}
}

// next returns a channel that is closed at the next commit.
func (h *hub) next() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.any
}

// subscribe returns a channel that holds a token after each commit that wrote
// key, and a function to stop that.
func (h *hub) subscribe(key string) (<-chan struct{}, func()) {
	c := make(chan struct{}, 1)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.keys[key] == nil {
		h.keys[key] = make(map[chan struct{}]struct{})
	}
	h.keys[key][c] = struct{}{}
	return c, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.keys[key], c)
		if len(h.keys[key]) == 0 {
			delete(h.keys, key)
		}
	}
}

// state returns the newest revision that is known here, and the bytes logged by
// then.
func (h *hub) state() (store.Revision, int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.seen, h.logged
}

// committed is told by the writer what it committed: the revisions above before,
// up to last.
func (h *hub) committed(before, last store.Revision, logged int64, keys []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.seen == before {
		h.seen = last // otherwise the listener has yet to read what came before
	}
	h.logged = max(h.logged, logged)
	h.wake(keys)
}

// told is told by the listener that the log was read up to a revision. all wakes
// everyone, whatever they wait for.
func (h *hub) told(revision store.Revision, logged int64, keys []string, all bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seen, h.logged = revision, logged
	if all {
		keys = keys[:0:0]
		for k := range h.keys {
			keys = append(keys, k)
		}
	}
	h.wake(keys)
}

// wake wakes the waiters for keys and for any commit; mu is held.
func (h *hub) wake(keys []string) {
	close(h.any)
	h.any = make(chan struct{})
	if len(h.keys) == 0 {
		return
	}
	for _, k := range keys {
		for c := range h.keys[k] {
			select {
			case c <- struct{}{}:
			default: // a token is waiting already
			}
		}
	}
}

// listener follows what is committed, by this process or others. All its fields
// belong to the goroutine in run.
type listener struct {
	s    *Store
	conn *pgx.Conn // nil while there is none
}

func (l *listener) drop() {
	drop(l.conn)
	l.conn = nil
}

// maxKeysToWake bounds the keys that the listener reads to wake those who watch
// them; of more, all are woken.
const maxKeysToWake = 4096

// start listens, and makes sure that notices arrive, by sending one over another
// connection. Behind a pooler that hands out its connections by transaction they
// do not.
func (l *listener) start(ctx context.Context, other *pgx.Conn) error {
	if err := l.listen(ctx); err != nil {
		return err
	}
	probe := "probe " + store.NewTxID()
	ctx, cancel := context.WithTimeout(ctx, l.s.opts.Timeout)
	defer cancel()
	if _, err := other.Exec(ctx, "select pg_notify($1, $2)", l.s.channel, probe); err != nil {
		return err
	}
	for {
		n, err := l.conn.WaitForNotification(ctx)
		switch {
		case err == nil && n.Payload == probe:
			return nil
		case err == nil:
			continue // someone commits
		case errors.Is(err, context.DeadlineExceeded):
			return &ServerError{"accepts LISTEN, but no notice arrives, as with a pooler in transaction mode",
				"connect to the server itself, or through a pooler in session mode"}
		}
		return err
	}
}

// listen connects, listens, and reads what was committed before that.
func (l *listener) listen(ctx context.Context) error {
	conn, err := l.s.connect(ctx, listening, nil)
	if err != nil {
		return err
	}
	l.conn = conn
	ctx, cancel := context.WithTimeout(ctx, l.s.opts.Timeout)
	defer cancel()
	if _, err := conn.Exec(ctx, "listen "+pgx.Identifier{l.s.channel}.Sanitize()); err != nil {
		return err
	}
	return l.follow(ctx)
}

// follow reads what was committed since the last time and wakes those whom it
// concerns. It fails if the server does not listen for us any more.
func (l *listener) follow(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, l.s.opts.Timeout)
	defer cancel()
	var revision, compacted, logged int64
	var listens bool
	err := l.conn.QueryRow(ctx, "select revision, compacted, logged, exists (select from pg_listening_channels() c where c = $1) from fealty_revision where only_row", l.s.channel).
		Scan(&revision, &compacted, &logged, &listens)
	if err != nil {
		return err
	}
	if !listens {
		return errors.New("the server forgot that we listen: is a pooler in between?")
	}
	newest := store.Revision(revision)
	seen, _ := l.s.hub.state()
	switch {
	case newest == seen:
		return nil
	case newest < seen || seen < store.Revision(compacted):
		// The database was replaced, or the log does not reach back.
		l.s.hub.told(newest, logged, nil, true)
		return nil
	}
	rows, err := l.conn.Query(ctx, "select key from fealty_log where seq >= $1 and seq < $2 order by seq limit $3",
		(int64(seen)+1)*store.MaxTxOps, (revision+1)*store.MaxTxOps, maxKeysToWake)
	if err != nil {
		return err
	}
	keys, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	l.s.hub.told(newest, logged, keys, len(keys) == maxKeysToWake)
	return nil
}

// run follows until ctx ends. Whatever happens to the connection, it makes
// another one and reads what it missed.
func (l *listener) run(ctx context.Context) {
	defer l.drop()
	failing := false
	pause := time.Duration(0)
	for ctx.Err() == nil {
		var err error
		if l.conn == nil {
			err = l.listen(ctx)
		} else {
			err = l.turn(ctx)
		}
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			if failing {
				l.s.opts.Log.Info("listening again", "store", l.s.name)
				failing = false
			}
			pause = 0
			continue
		}
		l.drop()
		l.s.readers.Reset() // what broke this connection has probably broken the others
		if !failing {
			l.s.opts.Log.Warn("lost the connection that listens for changes, making another", "store", l.s.name, "err", err)
			failing = true
		}
		// At once, then ever slower up to the heartbeat.
		select {
		case <-ctx.Done():
		case <-time.After(pause/2 + rand.N(pause/2+1)):
		}
		pause = min(2*pause+50*time.Millisecond, l.s.opts.Heartbeat)
	}
}

// turn waits for a notice or the next heartbeat, and reads the log.
func (l *listener) turn(ctx context.Context) error {
	wait, cancel := context.WithTimeout(ctx, l.s.opts.Heartbeat)
	defer cancel()
	n, err := l.conn.WaitForNotification(wait)
	switch {
	case err == nil:
		if revision, err := strconv.ParseUint(n.Payload, 10, 64); err == nil {
			if seen, _ := l.s.hub.state(); store.Revision(revision) <= seen {
				return nil // our own, or read already
			}
		}
	case ctx.Err() != nil:
		return ctx.Err()
	case wait.Err() == nil || l.conn.IsClosed():
		return err
	}
	if err := l.follow(ctx); err != nil {
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			return fmt.Errorf("the server did not answer within %v", l.s.opts.Timeout)
		}
		return err
	}
	return nil
}
