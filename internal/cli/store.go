package cli

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"

	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/postgres"
	"github.com/fealty-io/fealty/internal/store/sqlite"
)

const sqliteScheme = "sqlite:"

// checkStore says what is wrong with the address of a store, or "".
func checkStore(text string) string {
	if path, ok := strings.CutPrefix(text, sqliteScheme); ok {
		if path == "" {
			return "it names no file"
		}
		return ""
	}
	scheme, _, _ := strings.Cut(text, ":")
	if scheme != "postgres" && scheme != "postgresql" {
		if strings.Contains(text, "dbname=") || strings.Contains(text, "host=") {
			return "a database is named by a URL here, not by keywords"
		}
		return "this release knows the stores sqlite and postgres"
	}
	if e, ok := errors.AsType[*postgres.AddressError](postgres.CheckURL(text)); ok {
		return "the URL " + e.Problem
	}
	return ""
}

// shownStore is the address of a store without passwords.
func shownStore(text string) string {
	if strings.HasPrefix(text, sqliteScheme) || !strings.ContainsAny(text, ":=@") {
		return text
	}
	return postgres.HidePassword(text)
}

// openStore opens the store that is configured, and returns its name for people.
func (c *CLI) openStore(ctx context.Context, cfg *config, log *slog.Logger) (store.Store, string, error) {
	v := cfg.find("store")
	if v.text != "" && !strings.HasPrefix(v.text, sqliteScheme) {
		if v.rank == fromFlag && postgres.HasPassword(v.text) {
			c.talk("the password of the database stands in the command line, where every user of this machine can read it: use FEALTY_STORE, or PGPASSFILE, instead")
		}
		st, err := postgres.Open(ctx, v.text, postgres.Options{Log: log})
		if err != nil {
			return nil, "", storeError(v, err)
		}
		return st, st.Name(), nil
	}
	file := filepath.Join(cfg.path("data"), "store", "fealty.db")
	if v.text != "" {
		file = cfg.within(v.text[len(sqliteScheme):])
	}
	st, err := sqlite.Open(ctx, file, sqlite.Options{Log: log})
	if err != nil {
		v.text = sqliteScheme + file
		return nil, "", storeError(v, err)
	}
	return st, sqliteScheme + file, nil
}

// storeError words why the store at v was not opened.
func storeError(v value, err error) error {
	if e := translate(err); e != nil {
		return e
	}
	if errors.Is(err, context.Canceled) {
		return err
	}
	open, ok := errors.AsType[*postgres.OpenError](err)
	if !ok {
		problem := err.Error()
		if e, ok := errors.AsType[*postgres.AddressError](err); ok {
			problem = "the URL " + e.Problem
		}
		from := v.from
		if v.rank == fromDefault {
			from = v.text
		}
		return explain.Wrap(err, explain.BadSetting, "from", from, "key", v.key, "problem", problem)
	}
	if e, ok := errors.AsType[*postgres.ServerError](err); ok {
		return explain.Wrap(err, explain.StoreUnsuitable, "store", open.Name, "problem", "the server "+e.Problem, "do", e.Do)
	}
	if e, ok := errors.AsType[*postgres.LoginError](err); ok {
		return explain.Wrap(err, explain.StoreLoginRefused, "store", open.Name, "problem", e.Problem)
	}
	return explain.Wrap(err, explain.StoreUnreachable, "what", "opening "+open.Name, "cause", network(open.Err))
}
