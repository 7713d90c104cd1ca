package sqlite

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"

	"github.com/fealty-io/fealty/internal/store/engine"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// applicationID marks a database file as ours: the bytes "Flty" in the place
// that SQLite's header has for it (https://sqlite.org/fileformat2.html, 1.3).
const (
	applicationID       = 0x466c7479
	applicationIDOffset = 68
)

// selectMeta reads the newest commit's revision, and the highest revision whose
// changes may be gone.
const selectMeta = "select r.value, c.value from meta r, meta c where r.name = 'revision' and c.name = 'compacted'"

// ForeignError says that a file is not a store of Fealty but somebody else's database, which opening it
// could destroy. Nothing was changed.
type ForeignError struct{ Path string }

func (e *ForeignError) Error() string {
	return e.Path + " is a database of another program: name another file"
}

// migrate brings the database behind conn to the newest of known, in one
// transaction, or returns a *ForeignError or *engine.SchemaError and leaves it as it was.
func migrate(ctx context.Context, conn *sql.Conn, path string, known engine.Migrations) (err error) {
	if _, err := conn.ExecContext(ctx, "begin immediate"); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			// The error to report is the one that brought us here.
			_, _ = conn.ExecContext(context.WithoutCancel(ctx), "rollback")
		}
	}()
	var app, tables int
	if err := conn.QueryRowContext(ctx, "pragma application_id").Scan(&app); err != nil {
		return err
	}
	if err := conn.QueryRowContext(ctx, "select count(*) from sqlite_schema").Scan(&tables); err != nil {
		return err
	}
	if app != applicationID {
		if app != 0 || tables != 0 {
			return &ForeignError{path}
		}
		if _, err := conn.ExecContext(ctx, fmt.Sprintf("pragma application_id = %d", applicationID)); err != nil {
			return err
		}
		const table = "create table migrations (n integer primary key, name text not null) strict"
		if _, err := conn.ExecContext(ctx, table); err != nil {
			return err
		}
	}
	rows, err := conn.QueryContext(ctx, "select name from migrations order by n")
	if err != nil {
		return err
	}
	defer rows.Close()
	var made []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return err
		}
		made = append(made, name)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return err
	}
	missing, err := known.Missing(made, path, anew)
	if err != nil {
		return err
	}
	for i, m := range missing {
		if _, err := conn.ExecContext(ctx, m.Script); err != nil {
			return fmt.Errorf("migration %s: %w", m.Name, err)
		}
		if _, err := conn.ExecContext(ctx, "insert into migrations values (?, ?)", len(made)+i+1, m.Name); err != nil {
			return err
		}
	}
	_, err = conn.ExecContext(ctx, "commit")
	return err
}
