package story

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/dev/process"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/mesh"
)

const (
	rotations = 5 // of all files
	callers   = 4
	callEvery = 4 * time.Millisecond // of each caller
	callTime  = 20 * time.Second     // of a call, on a machine with other work

	// profiles is what a provider needs to serve.
	profiles = "profiles:\n  - {name: none, slots: 1, command: [\"true\"]}\n"
)

// endpoint is a provider that serves with certificate files, as a program.
type endpoint struct {
	*process.Program
	dir string // of its files
}

// endpoints are those of one service, some of them good, and what their client has.
type endpoints struct {
	pki          *PKI
	good, others []endpoint
	mine         string // the folder of the client's files
}

// The identities of an operator's own PKI.
func (e *edges) provider() string { return "spiffe://" + e.c.ID() + "/provider/edge" }
func (e *edges) other() string    { return "spiffe://" + e.c.ID() + "/provider/another" }
func (e *edges) client() string   { return "spiffe://" + e.c.ID() + "/shard/edge" }

// serve starts two endpoints that are good, one of a foreign CA, and one with another identity.
func (e *edges) serve(ctx context.Context) (*endpoints, error) {
	if e.endpoints != nil {
		return e.endpoints, nil
	}
	own, err := NewPKI("operator root")
	if err != nil {
		return nil, err
	}
	foreign, err := NewPKI("operator root") // by the very same name
	if err != nil {
		return nil, err
	}
	all := &endpoints{pki: own, mine: filepath.Join(e.dir, "client")}
	if err := durable.OS().WriteFile(e.profiles(), []byte(profiles)); err != nil {
		return nil, err
	}
	for _, at := range []struct {
		name, id string
		by       *PKI
		to       *[]endpoint
	}{{"good-1", e.provider(), own, &all.good}, {"good-2", e.provider(), own, &all.good},
		{"foreign", e.provider(), foreign, &all.others}, {"another", e.other(), own, &all.others}} {
		p := endpoint{dir: filepath.Join(e.dir, at.name+"-tls")}
		if err := issue(at.by, at.id, p.dir, renamed); err != nil {
			return nil, err
		}
		paths := PKIFiles(p.dir)
		p.Program, err = e.started(process.Serve(process.Config{Dir: e.dir, Name: at.name,
			Program: e.program, Args: []string{"provider", "process", "--profiles", e.profiles(),
				"--believe-epochs", "--tls-cert", paths.Cert, "--tls-key", paths.Key, "--tls-ca", paths.CA}}))
		if err != nil {
			return nil, err
		}
		*at.to = append(*at.to, p)
	}
	if err := issue(own, e.client(), all.mine, linked); err != nil {
		return nil, err
	}
	for _, p := range append(all.good, all.others...) {
		if err := e.c.Await(ctx, p.Name+" to serve", p.Serves); err != nil {
			return nil, err
		}
	}
	e.endpoints = all
	return all, nil
}

func (e *edges) profiles() string { return filepath.Join(e.dir, "profiles.yaml") }

// issue has a PKI certify id, and puts the files into dir.
func issue(by *PKI, id, dir string, put func(dir string, s PKISet) error) error {
	s, err := by.Identity(id)
	if err == nil {
		err = put(dir, s)
	}
	if err != nil {
		return fmt.Errorf("put files of %s into %s: %w", id, dir, err)
	}
	return nil
}

// each calls f with each file of a set.
func each(dir string, s PKISet, f func(path string, data []byte) error) error {
	paths := PKIFiles(dir)
	return errors.Join(f(paths.Cert, s.Cert), f(paths.Key, s.Key), f(paths.CA, s.CA))
}

// renamed replaces each file by another one.
func renamed(dir string, s PKISet) error {
	if err := durable.OS().MkdirAll(dir); err != nil {
		return err
	}
	return each(dir, s, func(path string, data []byte) error { return durable.OS().WriteFile(path, data) })
}

// inPlace writes into the files that are there, which are cut short meanwhile.
func inPlace(dir string, s PKISet) error {
	return each(dir, s, func(path string, data []byte) error { return os.WriteFile(path, data, 0o600) })
}

// linked replaces the link that all files go through, as Kubernetes mounts secrets.
func linked(dir string, s PKISet) error {
	if err := durable.OS().MkdirAll(dir); err != nil {
		return err
	}
	fresh, err := os.MkdirTemp(dir, "..set-")
	if err != nil {
		return err
	}
	link := func(to, from string) error {
		err := os.Symlink(to, from+".new")
		if err == nil {
			err = os.Rename(from+".new", from)
		}
		return err
	}
	if err := inPlace(fresh, s); err != nil {
		return err
	}
	const data = "..data"
	if err := link(filepath.Base(fresh), filepath.Join(dir, data)); err != nil {
		return err
	}
	return each(dir, s, func(path string, _ []byte) error {
		if _, err := os.Readlink(path); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return link(filepath.Join(data, filepath.Base(path)), path)
	})
}

// target are endpoints as a target of a pool.
func target(all []endpoint) string {
	var at []string
	for _, p := range all {
		at = append(at, p.At)
	}
	return "static:///" + strings.Join(at, ",")
}

// load are calls that go on until it is stopped.
type load struct {
	stop func() // waits for the last call

	mu     sync.Mutex
	calls  int                       // guarded by mu
	failed error                     // the first failure; guarded by mu
	seen   map[identity.KeyID]string // which endpoint showed a key; guarded by mu
}

// call begins calls to the provider at several endpoints, with the client's files.
func (e *edges) call(ctx context.Context, all []endpoint, log *lines) (*load, error) {
	src, err := credential.NewFiles(credential.FilesConfig{Paths: PKIFiles(e.endpoints.mine),
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	id, err := identity.Parse(e.provider())
	if err != nil {
		return nil, err
	}
	pool := &mesh.Pool{Options: mesh.Options{Log: slog.New(slog.NewTextHandler(log, nil))}}
	conn, err := pool.Dial(target(all), src, credential.ExactID(id))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	l := &load{seen: make(map[identity.KeyID]string)}
	var running sync.WaitGroup
	for range callers {
		running.Go(func() {
			every := time.NewTicker(callEvery)
			defer every.Stop()
			for ctx.Err() == nil {
				// A call that began goes on to its end, and counts.
				l.call(context.WithoutCancel(ctx), conn)
				select {
				case <-every.C:
				case <-ctx.Done():
				}
			}
		})
	}
	l.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		_ = pool.Close() // nothing runs on it
	})
	return l, nil
}

func (l *load) call(ctx context.Context, conn grpc.ClientConnInterface) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	var at peer.Peer
	_, err := fealtyv1.NewProviderServiceClient(conn).ListMachines(ctx, &fealtyv1.ListMachinesRequest{Limit: 1},
		grpc.Peer(&at))
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls++
	if err != nil {
		if l.failed == nil {
			l.failed = fmt.Errorf("call %d: %w", l.calls, err)
		}
		return
	}
	if info, ok := at.AuthInfo.(*mesh.Info); ok {
		l.seen[info.Peer.Key] = at.Addr.String()
	}
}

// uses waits until calls were answered by endpoints with the certificates in their folders. While
// they are not, again is called each second, if it is not nil.
func (l *load) uses(ctx context.Context, e *edges, again func() error, all ...endpoint) error {
	for _, p := range all {
		key, err := keyIn(p.dir)
		if err != nil {
			return err
		}
		last := time.Now()
		err = e.c.Await(ctx, "calls to go to "+p.Name+" with its newest certificate",
			func(context.Context) (bool, error) {
				if again != nil && time.Since(last) > time.Second {
					last = time.Now()
					if err := again(); err != nil {
						return false, err
					}
				}
				l.mu.Lock()
				defer l.mu.Unlock()
				return l.failed != nil || l.seen[key] == p.At, fmt.Errorf("%d calls went elsewhere", l.calls)
			})
		if err != nil {
			return err
		}
	}
	return nil
}

// keyIn is the key of the certificate in a folder.
func keyIn(dir string) (identity.KeyID, error) {
	cert, err := certificateIn(PKIFiles(dir).Cert)
	if err != nil {
		return identity.KeyID{}, err
	}
	return identity.KeyOf(cert), nil
}

// ended stops the calls, and returns how many there were. It fails if one did.
func (l *load) ended() (int, error) {
	l.stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls, l.failed
}

// lines keeps what is logged.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// with counts the lines that have each of these texts.
func (l *lines) with(texts ...string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		has := true
		for _, text := range texts {
			has = has && strings.Contains(line, text)
		}
		if has {
			n++
		}
	}
	return n
}

const byFiles = "providers as programs, with certificates of an operator's own PKI in files"

func (e *edges) credentialRotation(ctx context.Context) (string, error) {
	e.c.Means().Note("", byFiles)
	all, err := e.serve(ctx)
	if err != nil {
		return "", err
	}
	l, err := e.call(ctx, all.good, new(lines))
	if err != nil {
		return "", err
	}
	defer l.stop()
	// A server shows its newest certificate to who connects, and the client connects anew with its own. One
	// handshake may still show the one before: nobody waits for files that are being read at that moment.
	anew := func() error { return issue(all.pki, e.client(), all.mine, linked) }
	for range rotations {
		if err := l.uses(ctx, e, anew, all.good...); err != nil {
			return "", err
		}
		err := errors.Join(issue(all.pki, e.provider(), all.good[0].dir, renamed),
			issue(all.pki, e.provider(), all.good[1].dir, inPlace), anew())
		if err != nil {
			return "", err
		}
	}
	if err := l.uses(ctx, e, anew, all.good...); err != nil {
		return "", err
	}
	calls, err := l.ended()
	if err != nil {
		return "", err
	}
	for _, p := range all.good {
		if err := p.Runs(); err != nil {
			return "", fmt.Errorf("%s: %w", p.Name, err)
		}
	}
	return fmt.Sprintf("%d certificates were replaced, by renaming, in place and by a link; each was seen in use, by "+
		"the same processes; of %d calls none failed", 3*rotations, calls), nil
}

func (e *edges) badEndpointSkipped(ctx context.Context) (string, error) {
	e.c.Means().Note("", byFiles)
	all, err := e.serve(ctx)
	if err != nil {
		return "", err
	}
	foreign, another := all.others[0], all.others[1]
	var log lines
	l, err := e.call(ctx, append(all.others, all.good...), &log)
	if err != nil {
		return "", err
	}
	defer l.stop()
	if err := l.uses(ctx, e, nil, all.good...); err != nil {
		return "", err
	}
	bad := map[string]mesh.Reason{foreign.At: mesh.PeerUntrusted, another.At: mesh.IdentityMismatch}
	err = e.c.Await(ctx, "each bad endpoint to be named", func(context.Context) (bool, error) {
		for at, reason := range bad {
			if log.with("endpoint rejected", "endpoint="+at+" ", "reason="+string(reason), e.provider()) == 0 {
				return false, fmt.Errorf("nothing says %s of %s", reason, at)
			}
		}
		return true, nil
	})
	if err != nil {
		return "", err
	}
	if err := issue(all.pki, e.provider(), foreign.dir, renamed); err != nil {
		return "", err
	}
	if err := l.uses(ctx, e, nil, foreign); err != nil {
		return "", err
	}
	calls, err := l.ended()
	if err != nil {
		return "", err
	}
	for at, reason := range bad {
		if n := log.with("endpoint rejected", "endpoint="+at+" "); n != 1 {
			return "", fmt.Errorf("%d lines say that %s is rejected (%s), want one", n, at, reason)
		}
	}
	switch wrong, err := keyIn(another.dir); {
	case err != nil:
		return "", err
	case l.seen[wrong] != "":
		return "", fmt.Errorf("%s was called, as %s", another.Name, e.other())
	case log.with("endpoint healed", "endpoint="+foreign.At+" ") != 1:
		return "", errors.New("no line says that an endpoint is healed")
	}
	return fmt.Sprintf("of %d calls none failed and none went to a bad endpoint; one line names each: %s and %s; with "+
		"files of the right CA the first is called, by the same process", calls, mesh.PeerUntrusted,
		mesh.IdentityMismatch), nil
}
