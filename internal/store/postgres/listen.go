package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/engine"
)

// listener follows what is committed, by this process or others. All its fields
// belong to the goroutine in run.
type listener struct {
	db   *database
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
	ctx, cancel := context.WithTimeout(ctx, l.db.opts.Timeout)
	defer cancel()
	if _, err := other.Exec(ctx, "select pg_notify($1, $2)", l.db.channel, probe); err != nil {
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
			return &engine.ServerError{Problem: "accepts LISTEN, but no notice arrives, as with a pooler in transaction mode",
				Do: "connect to the server itself, or through a pooler in session mode"}
		}
		return err
	}
}

// listen connects, listens, and reads what was committed before that.
func (l *listener) listen(ctx context.Context) error {
	conn, err := l.db.connect(ctx, listening, nil)
	if err != nil {
		return err
	}
	l.conn = conn
	ctx, cancel := context.WithTimeout(ctx, l.db.opts.Timeout)
	defer cancel()
	if _, err := conn.Exec(ctx, "listen "+pgx.Identifier{l.db.channel}.Sanitize()); err != nil {
		return err
	}
	return l.follow(ctx)
}

// follow reads what was committed since the last time and wakes those whom it
// concerns. It fails if the server does not listen for us any more.
func (l *listener) follow(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, l.db.opts.Timeout)
	defer cancel()
	var revision, compacted, logged int64
	var listens bool
	err := l.conn.QueryRow(ctx,
		"select revision, compacted, logged, "+
			"exists (select from pg_listening_channels() c where c = $1) from fealty_revision where only_row",
		l.db.channel).
		Scan(&revision, &compacted, &logged, &listens)
	if err != nil {
		return err
	}
	if !listens {
		return errors.New("the server forgot that we listen: is a pooler in between?")
	}
	newest := store.Revision(revision)
	seen, _ := l.db.hub.State()
	switch {
	case newest == seen:
		return nil
	case newest < seen || seen < store.Revision(compacted):
		// The database was replaced, or the log does not reach back.
		l.db.hub.Notify(newest, logged, nil, true)
		return nil
	}
	rows, err := l.conn.Query(ctx, "select key from fealty_log where seq >= $1 and seq < $2 order by seq limit $3",
		(int64(seen)+1)*engine.RowsPerRevision, (revision+1)*engine.RowsPerRevision, maxKeysToWake)
	if err != nil {
		return err
	}
	keys, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	l.db.hub.Notify(newest, logged, keys, len(keys) == maxKeysToWake)
	return nil
}

// run follows until ctx ends. It makes another connection after whatever
// happened to one, and reads what it missed.
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
				l.db.opts.Log.Info("listening again", "store", l.db.name)
				failing = false
			}
			pause = 0
			continue
		}
		l.drop()
		l.db.readers.Reset() // what broke this connection has probably broken the others
		if !failing {
			l.db.opts.Log.Warn("lost the connection that listens for changes, making another",
				"store", l.db.name, "err", err)
			failing = true
		}
		// At once, then ever slower up to the heartbeat.
		select {
		case <-ctx.Done():
		case <-time.After(pause/2 + rand.N(pause/2+1)):
		}
		pause = min(2*pause+50*time.Millisecond, l.db.opts.Heartbeat)
	}
}

// turn waits for a notice or the next heartbeat, and reads the log.
func (l *listener) turn(ctx context.Context) error {
	wait, cancel := context.WithTimeout(ctx, l.db.opts.Heartbeat)
	defer cancel()
	n, err := l.conn.WaitForNotification(wait)
	switch {
	case err == nil:
		if revision, err := strconv.ParseUint(n.Payload, 10, 64); err == nil {
			if seen, _ := l.db.hub.State(); store.Revision(revision) <= seen {
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
			return fmt.Errorf("the server did not answer within %v", l.db.opts.Timeout)
		}
		return err
	}
	return nil
}
