package server

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/fealty-io/fealty/internal/cli/doctor"
	"github.com/fealty-io/fealty/internal/cli/program"
	"github.com/fealty-io/fealty/internal/cli/settings"
	"github.com/fealty-io/fealty/internal/coordinator/storeguard"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/embedded"
	"github.com/fealty-io/fealty/internal/store/etcd"
	"github.com/fealty-io/fealty/internal/store/postgres"
	"github.com/fealty-io/fealty/internal/store/sqlite"
)

// OpenStore opens the store that is configured, and returns its name for people. The lock of a database that lies on this
// machine is among r's, and the files by which one logs in to a server are among those that r reads again. Of r only
// the log has to be there.
func OpenStore(ctx context.Context, c *program.CLI, cfg *settings.Values, r Running) (store.Store, string, error) {
	v := cfg.Find("store")
	if v.Text == "" {
		v.Text = settings.SqliteScheme + filepath.Join(cfg.Path("data"), "store", "fealty.db")
	}
	return OpenStoreAt(ctx, c, cfg, v, r, 0)
}

// OpenStoreThere is openStore if there is a store, and makes none: where there is
// none it returns nil, and the name that it will have.
func OpenStoreThere(ctx context.Context, c *program.CLI, cfg *settings.Values, log *slog.Logger) (store.Store, string,
	error) {
	v := cfg.Find("store")
	if text, ok := strings.CutPrefix(v.Text, settings.SqliteScheme); ok {
		file := cfg.Within(text)
		switch info, err := os.Stat(file); {
		case errors.Is(err, fs.ErrNotExist), err == nil && info.Mode().IsRegular() && info.Size() == 0:
			return nil, settings.SqliteScheme + file, nil
		}
		return OpenStore(ctx, c, cfg, Running{Log: log}) // which says what is wrong with it
	}
	if _, ok := settings.EmbeddedFolder(v.Text); ok {
		folder, err := embeddedFolder(cfg, v)
		if err != nil {
			return nil, "", err
		}
		_, err = os.Stat(filepath.Join(folder, embedded.DataName))
		if errors.Is(err, fs.ErrNotExist) {
			return nil, settings.EmbeddedScheme + folder, nil
		}
		return OpenStore(ctx, c, cfg, Running{Log: log}) // which says what is wrong with it
	}
	r, err := doctor.InspectServer(ctx, v.Text, c.Getenv(etcd.PasswordVariable), 0)
	if err != nil {
		return nil, "", doctor.StoreError(v, err)
	}
	if r.Schema == "" {
		return nil, r.Name, nil
	}
	return OpenStore(ctx, c, cfg, Running{Log: log})
}

// OpenStoreAt opens the store at v, as OpenStore does. It keeps the changes of about retain commits; 0
// means the engine's default.
func OpenStoreAt(ctx context.Context, c *program.CLI, cfg *settings.Values, v settings.Value, r Running,
	retain int) (store.Store, string, error) {
	if text, ok := strings.CutPrefix(v.Text, settings.SqliteScheme); ok {
		file := cfg.Within(text)
		st, err := sqlite.Open(ctx, file, sqlite.Options{Locks: r.Locks, Log: r.Log, RetainCommits: retain})
		if err != nil {
			v.Text = settings.SqliteScheme + file
			return nil, "", doctor.StoreError(v, err)
		}
		return st, settings.SqliteScheme + file, nil
	}
	if _, ok := settings.EmbeddedFolder(v.Text); ok {
		folder, err := embeddedFolder(cfg, v)
		if err != nil {
			return nil, "", err
		}
		st, err := openEmbedded(ctx, c, cfg, folder, r, retain)
		if err != nil {
			return nil, "", doctor.StoreError(v, err)
		}
		return st, st.Name(), nil
	}
	if strings.HasPrefix(v.Text, settings.EtcdScheme) {
		st, err := etcd.Open(ctx, v.Text, etcd.Options{Log: r.Log, Reload: r.Reload, RetainCommits: retain,
			Password: c.Getenv(etcd.PasswordVariable)})
		if err != nil {
			return nil, "", doctor.StoreError(v, err)
		}
		return st, st.Name(), nil
	}
	if v.Rank == settings.FromFlag && postgres.HasPassword(v.Text) {
		c.Say("the password of the database stands in the command line, where every user of this machine can read " +
			"it: use FEALTY_STORE, or PGPASSFILE, instead")
	}
	st, err := postgres.Open(ctx, v.Text, postgres.Options{Log: r.Log, Reload: r.Reload, RetainCommits: retain})
	if err != nil {
		return nil, "", doctor.StoreError(v, err)
	}
	return st, st.Name(), nil
}

// embeddedFolder returns the whole path of the folder that the address of an embedded store names.
func embeddedFolder(cfg *settings.Values, v settings.Value) (string, error) {
	folder, _ := settings.EmbeddedFolder(v.Text)
	if folder == "" {
		if !cfg.Has("data") {
			return "", errcode.New(errcode.BadSetting, "from", v.From, "key", v.Key, "problem", "this command knows no data folder of a "+
				"coordinator: name the store's own, as in embedded:/var/lib/fealty/coordinator/store/embedded", "page",
				"explain config."+v.Key)
		}
		folder = filepath.Join(cfg.Path("data"), "store", "embedded")
	}
	return filepath.Abs(cfg.Within(folder))
}

// embeddedStore is a store with the process that keeps it.
type embeddedStore struct {
	*etcd.Store
	process *embedded.Process
}

// Close closes the store, and then ends its process.
func (s *embeddedStore) Close() error { return errors.Join(s.Store.Close(), s.process.Close()) }

// openEmbedded starts the server of the embedded store in folder, and opens the store.
func openEmbedded(ctx context.Context, c *program.CLI, cfg *settings.Values, folder string, r Running,
	retain int) (*embeddedStore, error) {
	path := cfg.Within(c.Getenv("FEALTY_STORE_PROGRAM"))
	if cfg.Has("store_program") {
		path = cfg.Path("store_program")
	}
	path, err := embedded.FindProgram(path)
	if err != nil {
		return nil, err
	}
	p, err := embedded.Start(ctx, embedded.Config{Program: path, Dir: folder, Locks: r.Locks, Log: r.Log})
	if err != nil {
		return nil, err
	}
	st, err := etcd.OpenSocket(ctx, p.Socket(), settings.EmbeddedScheme+folder,
		etcd.Options{Log: r.Log, RetainCommits: retain, Known: p.Down})
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return &embeddedStore{st, p}, nil
}

// processOf returns the process of an embedded store; nil if st is another one.
func processOf(st store.Store) storeguard.Process {
	if s, ok := st.(*embeddedStore); ok {
		return s.process
	}
	return nil
}
