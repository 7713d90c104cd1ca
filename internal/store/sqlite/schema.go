package sqlite

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
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

// ErrSchema is matched by every *SchemaError.
var ErrSchema = errors.New("database schema does not fit this version")

// SchemaError says that a database holds something that this program does not
// know, so that opening it could destroy it. Nothing was changed. It matches
// [ErrSchema].
type SchemaError struct {
	Path  string
	Found string // newest migration in the database; empty if it is not a Fealty store at all
	Known string // newest migration that this program knows
}

func (e *SchemaError) Error() string {
	if e.Found == "" {
		return fmt.Sprintf("store: %s is not a Fealty store: name another file", e.Path)
	}
	return fmt.Sprintf("store: %s has schema %q, the newest known here is %q: a newer version of fealty wrote it; "+
		"run that version or a later one, or restore a backup into a new file",
		e.Path, e.Found, e.Known)
}

func (e *SchemaError) Is(target error) bool { return target == ErrSchema }

type migration struct{ name, script string }

// knownMigrations returns what is embedded, oldest first. A migration is known
// by its name and never changes once it was released; there is no way back.
func knownMigrations() ([]migration, error) {
	files, err := fs.Glob(migrationFiles, "migrations/*.sql") // sorted
	if err != nil {
		return nil, err
	}
	var all []migration
	for _, f := range files {
		script, err := fs.ReadFile(migrationFiles, f)
		if err != nil {
			return nil, err
		}
		all = append(all, migration{f[len("migrations/") : len(f)-len(".sql")], string(script)})
	}
	return all, nil
}

// migrate brings the database behind conn to the newest of known, in one
// transaction, or returns a *SchemaError and leaves it as it was.
func migrate(ctx context.Context, conn *sql.Conn, path string, known []migration) (err error) {
	if _, err := conn.ExecContext(ctx, "begin immediate"); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			// The error to report is the one that brought us here.
			_, _ = conn.ExecContext(context.WithoutCancel(ctx), "rollback")
		}
	}()
	newest := known[len(known)-1].name
	var app, tables int
	if err := conn.QueryRowContext(ctx, "pragma application_id").Scan(&app); err != nil {
		return err
	}
	if err := conn.QueryRowContext(ctx, "select count(*) from sqlite_schema").Scan(&tables); err != nil {
		return err
	}
	if app != applicationID {
		if app != 0 || tables != 0 {
			return &SchemaError{Path: path, Known: newest}
		}
		if _, err := conn.ExecContext(ctx, fmt.Sprintf("pragma application_id = %d", applicationID)); err != nil {
			return err
		}
		const table = "create table migrations (n integer primary key, name text not null) strict"
		if _, err := conn.ExecContext(ctx, table); err != nil {
			return err
		}
	}
	done := 0
	rows, err := conn.QueryContext(ctx, "select name from migrations order by n")
	if err != nil {
		return err
	}
	defer rows.Close()
	for ; rows.Next(); done++ {
		var name string
		if err := rows.Scan(&name); err != nil {
			return err
		}
		if done >= len(known) || known[done].name != name {
			return &SchemaError{Path: path, Found: name, Known: newest}
		}
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return err
	}
	for i, m := range known[done:] {
		if _, err := conn.ExecContext(ctx, m.script); err != nil {
			return fmt.Errorf("migration %s: %w", m.name, err)
		}
		if _, err := conn.ExecContext(ctx, "insert into migrations values (?, ?)", done+i+1, m.name); err != nil {
			return err
		}
	}
	_, err = conn.ExecContext(ctx, "commit")
	return err
}
