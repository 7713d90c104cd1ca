package postgres

import (
	"context"
	"errors"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/engine"
)

// SQLSTATE codes and classes of servers that do not answer, from PostgreSQL's appendix A.
const (
	connectionException   = "08" // class
	insufficientResources = "53" // class; diskFull is a refusal
	operatorIntervention  = "57" // class: it starts, stops, or somebody ended the connection or statement
	undefinedTable        = "42P01"
	undefinedSchema       = "3F000"
)

// outage returns err as a [store.OutageError], with the server's own words, if it is known why the
// server did not do what was asked; err itself if not.
func (db *database) outage(err error) error {
	if err == nil || errors.Is(err, store.ErrUnknownOutcome) || errors.Is(err, context.Canceled) {
		return err
	}
	secrets := db.login.secrets()
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		if o := outageOf(pg); o != 0 {
			return store.NewOutage(o, pg.Message+" (SQLSTATE "+pg.Code+")", err, secrets...)
		}
		return err
	}
	said := plain(err).Error()
	if problem := db.login.problem(); problem != nil {
		said += "; " + problem.Error()
	}
	switch server, answers := errors.AsType[*engine.ServerError](err); {
	case answers && (server.Problem == isReplica || server.Problem == isReadOnly):
		return store.NewOutage(store.Standby, said, err, secrets...)
	case answers:
		return store.NewOutage(store.Unsuitable, said, err, secrets...)
	case refusesLogin(err):
		return store.NewOutage(store.LoginRefused, said, err, secrets...)
	}
	for _, lost := range []func() bool{
		func() bool { _, ok := errors.AsType[*silentError](err); return ok },
		func() bool { _, ok := errors.AsType[*lostError](err); return ok },
		func() bool { _, ok := errors.AsType[*connectError](err); return ok },
		func() bool { _, ok := errors.AsType[*pgconn.ConnectError](err); return ok },
		func() bool {
			_, ok := errors.AsType[net.Error](err)
			return ok && !errors.Is(err, context.DeadlineExceeded) // the caller's: ours are told as a silentError
		},
		func() bool { return store.HungUp(err) || errors.Is(err, net.ErrClosed) },
	} {
		if lost() {
			return store.NewOutage(store.Unreachable, said, err, secrets...)
		}
	}
	return err
}

// outageOf returns why a server did not do what was asked; 0 if it says nothing of that.
func outageOf(e *pgconn.PgError) store.Outage {
	switch {
	case e.Code == lockNotAvailable:
		return store.Locked
	case strings.HasPrefix(e.Code, invalidAuthorization), e.Code == insufficientPrivilege:
		return store.LoginRefused
	case e.Code == invalidDatabase, e.Code == undefinedTable, e.Code == undefinedSchema:
		return store.Unsuitable
	case e.Code == diskFull, e.Code == ioError:
		return store.Unreadable // of a write it is a refusal, which was looked for before
	case strings.HasPrefix(e.Code, insufficientResources):
		return store.Overloaded
	case strings.HasPrefix(e.Code, connectionException), strings.HasPrefix(e.Code, operatorIntervention):
		return store.Unreachable
	}
	return 0
}

// silentError says that the server did not answer in time. It takes the place of a deadline of our
// own, which a caller would take for theirs.
type silentError struct{ text string }

func (e *silentError) Error() string { return e.text }
