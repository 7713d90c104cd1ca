package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/failure"
	"github.com/fealty-io/fealty/internal/settings"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/etcd"
	"github.com/fealty-io/fealty/internal/store/postgres"
	"github.com/fealty-io/fealty/internal/store/sqlite"
)

// openStore opens the store that is configured, and returns its name for people.
func (c *CLI) openStore(ctx context.Context, cfg *settings.Values, log *slog.Logger) (store.Store, string, error) {
	v := cfg.Find("store")
	if v.Text == "" {
		v.Text = settings.SqliteScheme + filepath.Join(cfg.Path("data"), "store", "fealty.db")
	}
	return c.openStoreAt(ctx, cfg, v, log, 0)
}

// openStoreThere is openStore if there is a store, and makes none: where there is
// none it returns nil, and the name that it will have.
func (c *CLI) openStoreThere(ctx context.Context, cfg *settings.Values, log *slog.Logger) (store.Store, string, error) {
	v := cfg.Find("store")
	if text, ok := strings.CutPrefix(v.Text, settings.SqliteScheme); ok {
		file := cfg.Within(text)
		switch info, err := os.Stat(file); {
		case errors.Is(err, fs.ErrNotExist), err == nil && info.Mode().IsRegular() && info.Size() == 0:
			return nil, settings.SqliteScheme + file, nil
		}
		return c.openStore(ctx, cfg, log) // which says what is wrong with it
	}
	r, err := c.inspectServer(ctx, v.Text, 0)
	if err != nil {
		return nil, "", storeError(v, err)
	}
	if r.Schema == "" {
		return nil, r.Name, nil
	}
	return c.openStore(ctx, cfg, log)
}

// openStoreAt opens the store at v. It keeps the changes of about retain commits; 0
// means the engine's default.
func (c *CLI) openStoreAt(ctx context.Context, cfg *settings.Values, v settings.Value, log *slog.Logger, retain int) (store.Store, string, error) {
	if text, ok := strings.CutPrefix(v.Text, settings.SqliteScheme); ok {
		file := cfg.Within(text)
		st, err := sqlite.Open(ctx, file, sqlite.Options{Log: log, RetainCommits: retain})
		if err != nil {
			v.Text = settings.SqliteScheme + file
			return nil, "", storeError(v, err)
		}
		return st, settings.SqliteScheme + file, nil
	}
	if strings.HasPrefix(v.Text, settings.EtcdScheme) {
		st, err := etcd.Open(ctx, v.Text, etcd.Options{Log: log, RetainCommits: retain, Password: c.getenv(etcd.PasswordVariable)})
		if err != nil {
			return nil, "", storeError(v, err)
		}
		return st, st.Name(), nil
	}
	if v.Rank == settings.FromFlag && postgres.HasPassword(v.Text) {
		c.talk("the password of the database stands in the command line, where every user of this machine can read it: use FEALTY_STORE, or PGPASSFILE, instead")
	}
	st, err := postgres.Open(ctx, v.Text, postgres.Options{Log: log, RetainCommits: retain})
	if err != nil {
		return nil, "", storeError(v, err)
	}
	return st, st.Name(), nil
}

// storeError words why the store at v was not opened.
func storeError(v settings.Value, err error) error {
	if e := failure.Translate(err); e != nil {
		return e
	}
	if errors.Is(err, context.Canceled) {
		return err
	}
	name, why := "", error(nil)
	if open, ok := errors.AsType[*postgres.OpenError](err); ok {
		name, why = open.Name, open.Err
	} else if open, ok := errors.AsType[*etcd.OpenError](err); ok {
		name, why = open.Name, open.Err
	} else {
		problem := err.Error()
		if e, ok := errors.AsType[*postgres.AddressError](err); ok {
			problem = "the URL " + e.Problem
		}
		if e, ok := errors.AsType[*etcd.AddressError](err); ok {
			problem = "the URL " + e.Problem
		}
		if e := folderOfStore(v, err); e != nil {
			return e
		}
		from := v.From
		if v.Rank == settings.FromDefault {
			from = v.Text
		}
		return explain.Wrap(err, explain.BadSetting, "from", from, "key", v.Key, "problem", problem)
	}
	if e, ok := errors.AsType[*postgres.ServerError](err); ok {
		return explain.Wrap(err, explain.StoreUnsuitable, "store", name, "problem", "the server "+e.Problem, "do", e.Do)
	}
	if e, ok := errors.AsType[*etcd.ServerError](err); ok {
		return explain.Wrap(err, explain.StoreUnsuitable, "store", name, "problem", "the server "+e.Problem, "do", e.Do)
	}
	if e, ok := errors.AsType[*postgres.LoginError](err); ok {
		return explain.Wrap(err, explain.StoreLoginRefused, "store", name, "problem", e.Problem)
	}
	if e, ok := errors.AsType[*etcd.LoginError](err); ok {
		return explain.Wrap(err, explain.StoreLoginRefused, "store", name, "problem", e.Problem)
	}
	return explain.Wrap(err, explain.StoreUnreachable, "what", "opening "+name, "cause", failure.Network(why),
		"do", explain.StartWhenStoreAnswers)
}

// folderOfStore words that the folder of an SQLite file cannot be written; nil if that
// is not what err says.
func folderOfStore(v settings.Value, err error) error {
	p, ok := errors.AsType[*fs.PathError](err)
	if !ok || errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrExist) {
		return nil
	}
	dir, flag := filepath.Dir(strings.TrimPrefix(v.Text, settings.SqliteScheme)), "--store"
	if v.Rank == settings.FromDefault {
		dir, flag = filepath.Dir(dir), "--data"
	}
	return explain.Wrap(err, explain.FolderUnusable, "dir", dir, "cause", p.Path+": "+p.Err.Error(), "flag", flag)
}

// serverReport is what [inspectServer] saw of the servers of a store.
type serverReport struct {
	Name          string
	Schema, Known string // Schema is empty if there is no store yet
	Problems      []serverProblem
}

// serverProblem is something about the servers that does not stop a store.
type serverProblem struct {
	Loses    bool // what was acknowledged
	What, Do string
}

// errSchema: the store was written by a newer release.
var errSchema = errors.New("schema of a newer release")

// inspectServer looks at the servers of a store and changes nothing; errNotAsked if
// it has none.
func (c *CLI) inspectServer(ctx context.Context, text string, timeout time.Duration) (serverReport, error) {
	var out serverReport
	var err error
	switch scheme, _, _ := strings.Cut(text, ":"); scheme {
	case "postgres", "postgresql":
		var r postgres.Report
		r, err = postgres.Inspect(ctx, text, postgres.Options{Timeout: timeout})
		out = serverReport{Name: r.Name, Schema: r.Schema, Known: r.Known}
		for _, p := range r.Problems {
			out.Problems = append(out.Problems, serverProblem(p))
		}
	case "etcd":
		var r etcd.Report
		r, err = etcd.Inspect(ctx, text, etcd.Options{Timeout: timeout, Password: c.getenv(etcd.PasswordVariable)})
		out = serverReport{Name: r.Name, Known: strconv.Itoa(r.Known)}
		if r.Schema > 0 {
			out.Schema = strconv.Itoa(r.Schema)
		}
		for _, p := range r.Problems {
			out.Problems = append(out.Problems, serverProblem(p))
		}
	default:
		return out, errNotAsked
	}
	if errors.Is(err, postgres.ErrSchema) || errors.Is(err, etcd.ErrSchema) {
		err = fmt.Errorf("%w: %w", errSchema, err)
	}
	return out, err
}
