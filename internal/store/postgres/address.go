package postgres

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fealty-io/fealty/internal/store/engine"
)

// AddressError says what is wrong with the URL of a database, or with a file or
// a variable that it leads to. It shows nothing that could be a password.
type AddressError struct {
	Problem string // continues "the URL"
}

func (e *AddressError) Error() string {
	return "the URL of the PostgreSQL database " + e.Problem + ": want " + Form
}

const (
	// Form is what a URL looks like.
	Form = "postgres://USER@HOST:PORT/DATABASE"

	percent = " (in user and password the characters @ : / ? # % stand in percent form, as in %40)"
)

// CheckURL returns an *[AddressError] if raw is not the URL of a database. It
// looks at the text alone: whether files and hosts are there shows in [Open].
func CheckURL(raw string) error {
	scheme, _, ok := strings.Cut(raw, "://")
	if !ok || scheme != "postgres" && scheme != "postgresql" {
		return &AddressError{"does not begin with postgres://"}
	}
	u, err := url.Parse(raw)
	if err != nil {
		// Why would quote it, and nobody can tell what is a password in it.
		return &AddressError{"cannot be read" + percent}
	}
	// A password with one of these in the clear is cut in two, and a part of it is
	// taken for something else, which is no secret.
	if strings.Contains(raw, "#") {
		return &AddressError{"holds a #" + percent}
	}
	if n := strings.Count(raw, "@"); n > 1 || n == 1 && u.User == nil {
		return &AddressError{"has an @ that does not end user and password" + percent}
	}
	if strings.Contains(u.User.Username(), ":") {
		return &AddressError{"has a user with a colon, in percent form, so that all of it is the user: " +
			"write the : before the password as it is"}
	}
	if _, err := url.ParseQuery(u.RawQuery); err != nil {
		return &AddressError{"has a query that cannot be read" + percent}
	}
	return nil
}

// HidePassword returns a URL that [CheckURL] accepts without its passwords, for
// people who look at their settings.
func HidePassword(raw string) string {
	u, err := url.Parse(raw)
	if err != nil || CheckURL(raw) != nil {
		return "…"
	}
	if _, ok := u.User.Password(); ok {
		before, rest, _ := strings.Cut(raw, "@")
		user := before[strings.Index(before, "://")+len("://"):]
		user, _, _ = strings.Cut(user, ":")
		raw = u.Scheme + "://" + user + ":…@" + rest
	}
	path, query, ok := strings.Cut(raw, "?")
	if !ok {
		return raw
	}
	pairs := strings.Split(query, "&")
	for i, pair := range pairs {
		if name, _, _ := strings.Cut(pair, "="); secretParameter(name) {
			pairs[i] = name + "=…"
		}
	}
	return path + "?" + strings.Join(pairs, "&")
}

// HasPassword reports whether a URL that [CheckURL] accepts holds a password.
func HasPassword(raw string) bool { return HidePassword(raw) != raw }

// secretParameter reports whether a parameter of a URL holds a password. It errs
// on the safe side.
func secretParameter(name string) bool {
	if plain, err := url.QueryUnescape(name); err == nil {
		name = plain
	}
	name = strings.ToLower(name)
	return strings.Contains(name, "pass") && name != "passfile"
}

// openError returns err with the type that says what to do about it.
func (db *database) openError(err error) error {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if _, told := errors.AsType[*engine.ServerError](err); told || !ok {
		return &engine.OpenError{Name: db.name, Err: err}
	}
	switch {
	case pg.Code == invalidDatabase:
		err = &engine.ServerError{Problem: "has no database " + strconv.Quote(db.login.database()),
			Do: "create it and name this user its owner, or correct the name in the URL"}
	case pg.Code == insufficientPrivilege && db.schema == "":
		err = &engine.ServerError{Problem: "does not let this user use the database (" + pg.Message + ")", Do: "grant connect on it"}
	case pg.Code == insufficientPrivilege:
		err = &engine.ServerError{Problem: fmt.Sprintf(
			"does not let this user do what a store needs in schema %q (%s)", db.schema, pg.Message),
			Do: "grant create and usage on the schema, or let its owner open the store once"}
	case strings.HasPrefix(pg.Code, invalidAuthorization):
		err = &engine.LoginError{Problem: pg.Message, Check: "user, password and the server's pg_hba.conf"}
	case strings.HasPrefix(pg.Code, syntaxOrAccess):
		err = &engine.ServerError{Problem: fmt.Sprintf("has tables in schema %q that are not a store's (%s)", db.schema, pg.Message),
			Do: "name an empty database or schema"}
	}
	return &engine.OpenError{Name: db.name, Err: err}
}
