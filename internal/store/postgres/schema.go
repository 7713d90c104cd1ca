package postgres

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/binary"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/fealty-io/fealty/internal/store/engine"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// findSchema returns the schema that holds a store, or that one will be made in.
// It is asked once: what the search_path finds later must not matter.
func findSchema(ctx context.Context, conn *pgx.Conn) (string, error) {
	var schema *string
	err := conn.QueryRow(ctx, `select coalesce(
		(select n.nspname::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
			where c.oid = to_regclass('fealty_migration')),
		current_schema()::text)`).Scan(&schema)
	if err != nil {
		return "", err
	}
	if schema == nil {
		return "", &engine.ServerError{Problem: "has no schema of the search_path in this database",
			Do: "create one for the store, or set search_path in the URL"}
	}
	return *schema, nil
}

// migrate brings the schema to the newest of known, in one transaction and under
// a lock that keeps others who open it waiting, or returns a *engine.SchemaError and
// leaves it as it was.
func migrate(ctx context.Context, conn *pgx.Conn, database, schema string, known engine.Migrations) (err error) {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			// The error to report is the one that brought us here.
			_ = tx.Rollback(context.WithoutCancel(ctx))
		}
	}()
	sum := sha256.Sum256([]byte("fealty store migrations\x00" + schema))
	for _, q := range []struct {
		text string
		args []any
	}{
		{"select set_config('search_path', $1, true)", []any{pgx.Identifier{schema}.Sanitize()}},
		{"select set_config('lock_timeout', '60s', true)", nil},
		{"select pg_advisory_xact_lock($1)", []any{int64(binary.BigEndian.Uint64(sum[:]))}},
	} {
		if _, err := tx.Exec(ctx, q.text, q.args...); err != nil {
			return err
		}
	}
	// Not by to_regclass: it may answer from a cache of before the lock.
	var exists bool
	err = tx.QueryRow(ctx, "select exists (select from pg_class c "+
		"join pg_namespace n on n.oid = c.relnamespace "+
		"where n.nspname = $1 and c.relname = 'fealty_migration')", schema).Scan(&exists)
	if err != nil {
		return err
	}
	if !exists {
		if _, err := tx.Exec(ctx, "create table fealty_migration (n int primary key, name text not null)"); err != nil {
			return err
		}
	}
	rows, err := tx.Query(ctx, "select name from fealty_migration order by n")
	if err != nil {
		return err
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	missing, err := known.Missing(names, database, anew)
	if err != nil {
		return err
	}
	for i, m := range missing {
		// Several statements, which only the simple protocol takes.
		if _, err := conn.PgConn().Exec(ctx, m.Script).ReadAll(); err != nil {
			return fmt.Errorf("migration %s: %w", m.Name, err)
		}
		if _, err := tx.Exec(ctx, "insert into fealty_migration values ($1, $2)", len(names)+i+1, m.Name); err != nil {
			return err
		}
	}
	return tx.Commit(ctx)
}
