package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Report is what [Inspect] saw of a server that can hold a store.
type Report struct {
	Name string // as [Store.Name]

	// Schema is the newest migration of the database, empty if there is no store
	// yet; Known is the newest that this program knows.
	Schema, Known string

	// Problems are settings by which the server may lose what it confirmed.
	Problems []Problem
}

// Problem is something in a server's settings that does not stop a store.
type Problem struct {
	Loses    bool // what was acknowledged, in a crash of one machine
	What, Do string
}

// Inspect looks at the server that url names, and changes nothing there.
//
// Errors: those of [Open]. A server that answers and is no primary is a
// *[ServerError].
func Inspect(ctx context.Context, url string, opts Options) (Report, error) {
	opts, err := opts.filled()
	if err != nil {
		return Report{}, err
	}
	login, err := newLogin(url, opts.Log)
	if err != nil {
		return Report{}, err
	}
	db := &database{opts: opts, login: login, name: login.name}
	r, err := db.inspect(ctx)
	if err != nil {
		return Report{}, db.openError(err)
	}
	return r, nil
}

func (db *database) inspect(ctx context.Context) (Report, error) {
	r := Report{Name: db.name}
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
	known, err := knownMigrations()
	if err != nil {
		return r, err
	}
	r.Known = known[len(known)-1].name
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
		for i, name := range names {
			if i >= len(known) || known[i].name != name {
				return r, &SchemaError{Database: db.name, Found: name, Known: r.Known}
			}
			r.Schema = name
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
		r.Problems = append(r.Problems, Problem{false, "synchronous_commit is " + begins +
			" for this user and database: " +
			"Fealty raises it in its own sessions, and what else writes there loses commits",
			"set synchronous_commit = on on the PostgreSQL server, or for this user"})
	}
	return r, nil
}
