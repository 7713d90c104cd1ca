package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/fealty-io/fealty/internal/cli/settings"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/errcode/render"
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
		return errcode.Wrap(err, errcode.BadSetting, "from", from, "key", v.Key, "problem", problem,
			"page", "explain config."+v.Key)
	}
	if e, ok := errors.AsType[*postgres.ServerError](err); ok {
		return errcode.Wrap(err, errcode.StoreUnsuitable, "what", "opening "+name, "cause", "the server "+e.Problem, "do", e.Do)
	}
	if e, ok := errors.AsType[*etcd.ServerError](err); ok {
		return errcode.Wrap(err, errcode.StoreUnsuitable, "what", "opening "+name, "cause", "the server "+e.Problem, "do", e.Do)
	}
	if e, ok := errors.AsType[*postgres.LoginError](err); ok {
		return errcode.Wrap(err, errcode.StoreLoginRefused, "what", "opening "+name, "cause", e.Problem)
	}
	if e, ok := errors.AsType[*etcd.LoginError](err); ok {
		return errcode.Wrap(err, errcode.StoreLoginRefused, "what", "opening "+name, "cause", e.Problem)
	}
	return errcode.Wrap(err, errcode.StoreUnreachable, "what", "opening "+name, "cause", errcode.Network(why),
		"do", errcode.StartWhenStoreAnswers)
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
	return errcode.Wrap(err, errcode.FolderUnusable, "dir", dir, "cause", p.Path+": "+p.Err.Error(), "flag", flag)
}

// ServerReport is what [InspectServer] saw of the servers of a store.
type ServerReport struct {
	Name          string
	Schema, Known string // Schema is empty if there is no store yet
	Problems      []ServerProblem
}

// ServerProblem is something about the servers that does not stop a store.
type ServerProblem struct {
	Loses    bool // what was acknowledged
	What, Do string
}

// ErrSchema: the store was written by a newer release.
var ErrSchema = errors.New("schema of a newer release")

// InspectServer looks at the servers of a store and changes nothing; [ErrNotAsked] if
// it has none. A timeout of 0 is the engine's own.
func InspectServer(ctx context.Context, text, etcdPassword string, timeout time.Duration) (ServerReport, error) {
	var out ServerReport
	var err error
	switch scheme, _, _ := strings.Cut(text, ":"); scheme {
	case "postgres", "postgresql":
		var r postgres.Report
		r, err = postgres.Inspect(ctx, text, postgres.Options{Timeout: timeout})
		out = ServerReport{Name: r.Name, Schema: r.Schema, Known: r.Known}
		for _, p := range r.Problems {
			out.Problems = append(out.Problems, ServerProblem(p))
		}
	case "etcd":
		var r etcd.Report
		r, err = etcd.Inspect(ctx, text, etcd.Options{Timeout: timeout, Password: etcdPassword})
		out = ServerReport{Name: r.Name, Known: strconv.Itoa(r.Known)}
		if r.Schema > 0 {
			out.Schema = strconv.Itoa(r.Schema)
		}
		for _, p := range r.Problems {
			out.Problems = append(out.Problems, ServerProblem(p))
		}
	default:
		return out, ErrNotAsked
	}
	if errors.Is(err, postgres.ErrSchema) || errors.Is(err, etcd.ErrSchema) {
		err = fmt.Errorf("%w: %w", ErrSchema, err)
	}
	return out, err
}
