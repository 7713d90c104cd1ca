package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
)

// OpenError says that the store Name was not opened. It wraps why: what is wrong with its address, a
// *[ServerError], *[LoginError] or *[SchemaError]; with anything else, no server was reached. It shows
// neither user nor password.
type OpenError struct {
	Name string // of the database, without user and password
	Err  error
}

func (e *OpenError) Error() string { return "store: open " + e.Name + ": " + e.Err.Error() }
func (e *OpenError) Unwrap() error { return e.Err }

// ServerError says that the servers answer but cannot hold a store, or hold one
// that is not as its engine left it.
type ServerError struct {
	Problem string // continues "the server"
	Do      string
}

func (e *ServerError) Error() string { return "the server " + e.Problem + ": " + e.Do }

// LoginError says that the servers do not let the user in.
type LoginError struct {
	Problem string // the server's words
	Check   string // continues "check": what may be wrong on this side
}

func (e *LoginError) Error() string {
	return "the server does not let this user in: " + e.Problem + ": check " + e.Check
}

// ErrSchema is matched by every *SchemaError.
var ErrSchema = errors.New("the store's schema does not fit this version")

// SchemaError says that a store was written by a version of this program that
// knows more. Nothing was changed. It matches [ErrSchema].
type SchemaError struct {
	Store string
	Found string // first schema in the store that is not known here
	Known string // newest one that this program knows
	Anew  string // continues "restore a backup"
}

func (e *SchemaError) Error() string {
	return fmt.Sprintf("%s has schema %q, the newest known here is %q: a newer version of fealty wrote it; "+
		"run that version or a later one, or restore a backup %s", e.Store, e.Found, e.Known, e.Anew)
}

func (e *SchemaError) Is(target error) bool { return target == ErrSchema }

// Migration is a step of a schema. It is known by its name and never changes once it
// was released; there is no way back.
type Migration struct{ Name, Script string }

// Migrations are the steps that a program knows, oldest first.
type Migrations []Migration

// ReadMigrations returns those that are in files as migrations/NAME.sql, of which there is at least one.
func ReadMigrations(files fs.FS) (Migrations, error) {
	names, err := fs.Glob(files, "migrations/*.sql") // sorted
	if err != nil {
		return nil, err
	}
	var all Migrations
	for _, name := range names {
		script, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, err
		}
		all = append(all, Migration{strings.TrimSuffix(path.Base(name), ".sql"), string(script)})
	}
	return all, nil
}

// Newest returns the name of the last step.
func (m Migrations) Newest() string { return m[len(m)-1].Name }

// Missing returns the steps that the store lacks, in which those of the names were made, oldest first; a
// *[SchemaError] if one of them is not known here. anew is [SchemaError.Anew].
func (m Migrations) Missing(made []string, store, anew string) (Migrations, error) {
	for i, name := range made {
		if i >= len(m) || m[i].Name != name {
			return nil, &SchemaError{Store: store, Found: name, Known: m.Newest(), Anew: anew}
		}
	}
	return m[len(made):], nil
}

// Report is what was seen of servers that can hold a store.
type Report struct {
	Name string // of the database, without user and password

	// Schema is that of the store, empty if there is none yet; Known is the newest
	// that this program knows.
	Schema, Known string

	// Problems are what puts the store at risk.
	Problems []Problem
}

// Problem is something about the servers that does not stop a store.
type Problem struct {
	Loses    bool // what was acknowledged, in a crash of one machine
	What, Do string
}
