package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/fealty-io/fealty/internal/store/engine"
)

// Inspect looks at the server that url names, and changes nothing there.
//
// Errors: those of [Open]. A server that answers and is no primary is a
// *[engine.ServerError].
func Inspect(ctx context.Context, url string, opts Options) (engine.Report, error) {
	opts, err := opts.filled()
	if err != nil {
		return engine.Report{}, err
	}
	login, err := newLogin(url, opts.Log)
	if err != nil {
		return engine.Report{}, err
	}
	db := &database{opts: opts, login: login, name: login.name}
	r, err := db.inspect(ctx)
	if err != nil {
		return engine.Report{}, db.openError(err)
	}
	return r, nil
}

func (db *database) inspect(ctx context.Context) (engine.Report, error) {
	r := engine.Report{Name: db.name}
	ctx, cancel := context.WithTimeout(ctx, 3*db.opts.Timeout)
	defer cancel()
	conn, err := db.connect(ctx, bare, nil)
	if err != nil {
		return r, err
	}
	defer drop(conn)
	if db.schema, err = findSchema(ctx, conn); err != nil {
		return r, err
	}
	known, err := engine.ReadMigrations(migrationFiles)
	if err != nil {
		return r, err
	}
	r.Known = known.Newest()
	var exists bool
	table := pgx.Identifier{db.schema, "fealty_migration"}.Sanitize()
	if err := conn.QueryRow(ctx, "select to_regclass($1) is not null", table).Scan(&exists); err != nil {
		return r, err
	}
	if exists {
		rows, err := conn.Query(ctx, "select name from "+table+" order by n")
		if err != nil {
			return r, err
		}
		names, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return r, err
		}
		if _, err := known.Missing(names, db.name, anew); err != nil {
			return r, err
		}
		if len(names) > 0 {
			r.Schema = names[len(names)-1]
		}
	}
	r.Problems = inspect(ctx, conn)
	// The value with which a session begins, before settle raised it.
	var begins string
	const ask = "select reset_val from pg_settings where name = 'synchronous_commit'"
	if err := conn.QueryRow(ctx, ask).Scan(&begins); err != nil {
		return r, err
	}
	if begins == "off" || begins == "local" {
		r.Problems = append(r.Problems, engine.Problem{What: "synchronous_commit is " + begins +
			" for this user and database: " +
			"Fealty raises it in its own sessions, and what else writes there loses commits",
			Do: "set synchronous_commit = on on the PostgreSQL server, or for this user"})
	}
	return r, nil
}
