package doctor

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"github.com/fealty-io/fealty/internal/cli/settings"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/errcode/render"
	"github.com/fealty-io/fealty/internal/store/engine"
	"github.com/fealty-io/fealty/internal/store/etcd"
	"github.com/fealty-io/fealty/internal/store/postgres"
)

// StoreError words why the store at v was not opened.
func StoreError(v settings.Value, err error) error {
	if e := render.Translate(err); e != nil {
		return e
	}
	if errors.Is(err, context.Canceled) {
		return err
	}
	open, ok := errors.AsType[*engine.OpenError](err)
	if !ok {
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
		return errcode.Wrap(err, errcode.BadSetting, "from", from, "key", v.Key, "problem", problem,
			"page", "explain config."+v.Key)
	}
	if e, ok := errors.AsType[*engine.ServerError](err); ok {
		return errcode.Wrap(err, errcode.StoreUnsuitable, "what", "opening "+open.Name, "cause", "the server "+e.Problem, "do", e.Do)
	}
	if e, ok := errors.AsType[*engine.LoginError](err); ok {
		return errcode.Wrap(err, errcode.StoreLoginRefused, "what", "opening "+open.Name, "cause", e.Problem)
	}
	return errcode.Wrap(err, errcode.StoreUnreachable, "what", "opening "+open.Name, "cause", errcode.Network(open.Err),
		"do", errcode.StartWhenStoreAnswers)
}

// folderOfStore words that the folder of an SQLite file cannot be written; nil if that
// is not what err says.
func folderOfStore(v settings.Value, err error) error {
	p, ok := errors.AsType[*fs.PathError](err)
	if !ok || errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrExist) {
		return nil
	}
	if folder, ok := settings.EmbeddedFolder(v.Text); ok {
		flag := "--store"
		if folder == "" {
			flag = "--data"
		}
		return errcode.Wrap(err, errcode.FolderUnusable, "dir", filepath.Dir(p.Path), "cause", p.Path+": "+p.Err.Error(), "flag", flag)
	}
	dir, flag := filepath.Dir(strings.TrimPrefix(v.Text, settings.SqliteScheme)), "--store"
	if v.Rank == settings.FromDefault {
		dir, flag = filepath.Dir(dir), "--data"
	}
	return errcode.Wrap(err, errcode.FolderUnusable, "dir", dir, "cause", p.Path+": "+p.Err.Error(), "flag", flag)
}

// InspectServer looks at the servers of a store and changes nothing; [ErrNotAsked] if
// it has none. A timeout of 0 is the engine's own.
func InspectServer(ctx context.Context, text, etcdPassword string, timeout time.Duration) (engine.Report, error) {
	switch scheme, _, _ := strings.Cut(text, ":"); scheme {
	case "postgres", "postgresql":
		return postgres.Inspect(ctx, text, postgres.Options{Timeout: timeout})
	case "etcd":
		return etcd.Inspect(ctx, text, etcd.Options{Timeout: timeout, Password: etcdPassword})
	}
	return engine.Report{}, ErrNotAsked
}
