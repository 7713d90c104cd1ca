package mesh_test

import (
	"bufio"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/internal/platform/freeport"
	"github.com/fealty-io/fealty/mesh"
	"github.com/fealty-io/fealty/test/testlane"
	"github.com/fealty-io/fealty/test/wait"
)

// A process of these tests is this very program with a role in its environment.
const processRole = "FEALTY_MESH_PROCESS"

// part is what a process is to do.
type part struct {
	Role   string   // serve or call
	Files  []string // the folders of the files: of each endpoint, or of the client
	At     []string // the addresses: where to listen, or whom to call
	Expect string   // of a client: whom
}

func TestMain(m *testing.M) {
	text := os.Getenv(processRole)
	if text == "" {
		os.Exit(m.Run())
	}
	var p part
	err := json.Unmarshal([]byte(text), &p)
	switch {
	case err != nil:
	case p.Role == "serve":
		err = p.serve()
	default:
		err = p.call()
	}
	if err != nil {
		fmt.Println("fault", err)
		os.Exit(1)
	}
}

// in are the files of a folder.
func in(dir string) credential.FilePaths {
	return credential.FilePaths{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"),
		CA: filepath.Join(dir, "ca.crt")}
}

// sourceIn follows the files of a folder.
func sourceIn(dir string) (*credential.Files, error) {
	return credential.NewFiles(credential.FilesConfig{Paths: in(dir), Log: slog.New(slog.DiscardHandler)})
}

// serve serves at each address with the files of its folder, until standard input ends.
func (p part) serve() error {
	var running sync.WaitGroup
	for i, dir := range p.Files {
		src, err := sourceIn(dir)
		if err != nil {
			return err
		}
		guard, err := mesh.NewGuard(mesh.GuardConfig{Source: src, MaxPerIdentity: 1000})
		if err != nil {
			return err
		}
		ln, err := net.Listen("tcp", p.At[i])
		if err != nil {
			return err
		}
		server := grpc.NewServer(guard.ServerOptions()...)
		server.RegisterService(&desc, newService())
		running.Go(func() { _ = server.Serve(ln) })
		defer server.Stop()
	}
	fmt.Println("serving")
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// call calls until standard input ends, and has a stream open until a line comes. It says which
// keys it saw where, what failed, what was logged, and at last how many calls there were.
func (p part) call() error {
	src, err := sourceIn(p.Files[0])
	if err != nil {
		return err
	}
	id, err := identity.Parse(p.Expect)
	if err != nil {
		return err
	}
	var saying sync.Mutex
	say := func(words ...any) {
		saying.Lock()
		defer saying.Unlock()
		fmt.Println(words...)
	}
	pool := &mesh.Pool{Options: mesh.Options{Log: slog.New(slog.NewTextHandler(writer(func(line []byte) {
		say("log", strings.TrimSpace(string(line)))
	}), nil))}}
	conn, err := pool.Dial("static:///"+strings.Join(p.At, ","), src, credential.ExactID(id))
	if err != nil {
		return err
	}
	defer pool.Close()

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var calls sync.WaitGroup
	var mu sync.Mutex
	n, seen := 0, make(map[string]bool)
	call := func() {
		// One that has begun goes on to its end, and counts.
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		var at peer.Peer
		err := conn.Invoke(within, whoMethod, wrapperspb.Bytes(nil), new(wrapperspb.BytesValue), grpc.Peer(&at))
		mu.Lock()
		defer mu.Unlock()
		if n++; err != nil {
			say("failed", err)
			return
		}
		info, _ := at.AuthInfo.(*mesh.Info)
		if what := fmt.Sprintf("%s %s %s", at.Addr, info.Peer.Key, at.LocalAddr); !seen[what] {
			seen[what] = true
			say("seen", what)
		}
	}
	call() // of those that are refused none is tried in vain by so many at once
	for range 6 {
		calls.Go(func() {
			every := time.NewTicker(2 * time.Millisecond)
			defer every.Stop()
			for ctx.Err() == nil {
				call()
				<-every.C
			}
		})
	}
	hangUp := make(chan struct{})
	calls.Go(func() {
		if err := hold(ctx, conn, hangUp); err != nil {
			say("failed", "the stream:", err)
		}
	})
	input := bufio.NewScanner(os.Stdin)
	if input.Scan() {
		close(hangUp)
	}
	for input.Scan() {
	}
	cancel()
	calls.Wait()
	say("calls", n)
	return nil
}

type writer func([]byte)

func (w writer) Write(p []byte) (int, error) { w(p); return len(p), nil }

// hold echoes on one stream until it is told to hang up.
func hold(ctx context.Context, conn grpc.ClientConnInterface, hangUp <-chan struct{}) error {
	st, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, talkMethod)
	if err == nil {
		err = st.RecvMsg(new(wrapperspb.BytesValue))
	}
	every := time.NewTicker(5 * time.Millisecond)
	defer every.Stop()
	for err == nil {
		err = echo(st, "still here")
		select {
		case <-hangUp:
			return errors.Join(err, st.CloseSend())
		case <-every.C:
		}
	}
	return err
}

// process is one that runs.
type process struct {
	input io.WriteCloser
	ended chan struct{}

	mu    sync.Mutex
	lines []string // guarded by mu
}

// run starts a process, which ends with the test.
func (p part) run(t *testing.T) *process {
	t.Helper()
	text, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env, cmd.Stderr = append(os.Environ(), processRole+"="+string(text)), t.Output()
	input, err1 := cmd.StdinPipe()
	output, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	r := &process{input: input, ended: make(chan struct{})}
	go func() {
		defer close(r.ended)
		for s := bufio.NewScanner(output); s.Scan(); {
			r.mu.Lock()
			r.lines = append(r.lines, s.Text())
			r.mu.Unlock()
		}
		if err := cmd.Wait(); err != nil {
			r.mu.Lock()
			r.lines = append(r.lines, "fault "+err.Error())
			r.mu.Unlock()
		}
	}()
	t.Cleanup(func() { r.end() })
	return r
}

// end ends it, and waits for it.
func (r *process) end() {
	r.input.Close()
	<-r.ended
}

// with returns the lines that have each of these texts.
func (r *process) with(texts ...string) (found []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, line := range r.lines {
		if !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(line, text) }) {
			found = append(found, line)
		}
	}
	return found
}

// says waits for a line with each of these texts.
func (r *process) says(t *testing.T, texts ...string) {
	t.Helper()
	wait.Until(t, fmt.Sprintf("%q of %q", texts, r.with("fault")), func() bool {
		return len(r.with(texts...)) > 0 || len(r.with("fault ")) > 0
	})
	if faults := r.with("fault "); len(faults) > 0 {
		t.Fatal(faults)
	}
}

// A folder has the files of one process of an operator's PKI.
type folder struct {
	t    *testing.T
	dir  string
	name string
	id   string
	put  func(f *folder, path string, data []byte)
	key  identity.KeyID // of what was put last
}

// set is what goes into one.
type set struct{ cert, key, ca []byte }

// issue makes the next set: a certificate of by, and the roots that are believed.
func (f *folder) issue(by *pkitest.PKI, edit func(*x509.Certificate), roots ...*pkitest.PKI) set {
	f.t.Helper()
	id, err := identity.Parse(f.id)
	if err != nil {
		f.t.Fatal(err)
	}
	key := pkitest.NewKey(f.t)
	chain := by.Issue(f.t, key, func(c *x509.Certificate) {
		sans(id)(c)
		if edit != nil {
			edit(c)
		}
	})
	var ca []byte
	for _, r := range roots {
		ca = append(ca, pkitest.PEM(r.Root.Cert)...)
	}
	f.key = identity.KeyOf(chain[0])
	return set{pkitest.PEM(chain...), pkitest.KeyPEM(f.t, key), ca}
}

// rotate puts the next set into the folder.
func (f *folder) rotate(by *pkitest.PKI, roots ...*pkitest.PKI) {
	f.t.Helper()
	if f.put == nil {
		f.link(f.issue(by, nil, roots...))
		return
	}
	// A rewrite in place mostly has the size of what was there, which is what hides it best.
	was, _ := os.Stat(in(f.dir).Cert)
	s := f.issue(by, nil, roots...)
	for n := 0; n < 20 && was != nil && len(s.cert) != int(was.Size()); n++ {
		s = f.issue(by, nil, roots...)
	}
	f.set(s)
}

// set puts a set into the folder, file by file. While the roots change, what is there verifies by
// both.
func (f *folder) set(s set) {
	f.t.Helper()
	f.put(f, in(f.dir).CA, s.ca)
	f.put(f, in(f.dir).Cert, s.cert)
	f.put(f, in(f.dir).Key, s.key)
}

func (f *folder) fail(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func renamed(f *folder, path string, data []byte) {
	f.fail(os.WriteFile(path+".new", data, 0o600))
	f.fail(os.Rename(path+".new", path))
}

func inPlace(f *folder, path string, data []byte) { f.fail(os.WriteFile(path, data, 0o600)) }

// link swaps the link that all files go through, as Kubernetes mounts secrets.
func (f *folder) link(s set) {
	f.t.Helper()
	fresh, err := os.MkdirTemp(f.dir, "..set-")
	f.fail(err)
	for path, data := range map[string][]byte{in(fresh).CA: s.ca, in(fresh).Cert: s.cert, in(fresh).Key: s.key} {
		inPlace(f, path, data)
	}
	data := filepath.Join(f.dir, "..data")
	f.fail(os.Symlink(filepath.Base(fresh), data+".new"))
	f.fail(os.Rename(data+".new", data))
	for _, path := range []string{in(f.dir).CA, in(f.dir).Cert, in(f.dir).Key} {
		if err := os.Symlink(filepath.Join("..data", filepath.Base(path)), path); !errors.Is(err, fs.ErrExist) {
			f.fail(err)
		}
	}
}

// Two processes on certificate files go on through all that becomes of the files, and through
// endpoints that are wrong, and no call fails. A third one has the wrong identity. It takes real time, since
// files are looked at by their times: it waits for the night. In the quick lane TestHalfWrittenRotation has new files under
// calls, TestCallsOutliveRotations has calls under rotations and beside endpoints that are wrong, and
// the tests of package credential have each way to replace a file.
func TestFilesChangeUnderProcesses(t *testing.T) {
	testlane.Nightly(t)
	t.Parallel()
	const server, client, another = "spiffe://prod.example/provider/aws", "spiffe://prod.example/shard/eu-1",
		"spiffe://prod.example/provider/gcp"
	// All CAs have one name.
	corp, next, foreign := pkitest.NewPKI(t, "corp", nil), pkitest.NewPKI(t, "corp", nil),
		pkitest.NewPKI(t, "corp", nil)
	at := make(map[*folder]string)
	place := func(name, id string, put func(*folder, string, []byte)) *folder {
		f := &folder{t: t, dir: t.TempDir(), name: name, id: id, put: put}
		var err error
		at[f], err = freeport.Addr()
		f.fail(err)
		return f
	}
	me := place("client", client, nil)
	byName, byBytes, byLink := place("renamed", server, renamed), place("in place", server, inPlace),
		place("linked", server, nil)
	wrongCA, expired, wrongID := place("wrong CA", server, renamed), place("expired", server, inPlace),
		place("wrong identity", another, renamed)
	good, bad := []*folder{byName, byBytes, byLink}, []*folder{wrongCA, expired, wrongID}
	reasons := map[*folder]mesh.Reason{wrongCA: mesh.PeerUntrusted, expired: mesh.Expired,
		wrongID: mesh.IdentityMismatch}

	// All are good to themselves when they start. One ends before the client begins.
	for _, f := range append([]*folder{me, wrongID}, good...) {
		f.rotate(corp, corp)
	}
	wrongCA.rotate(foreign, foreign)
	ends := time.Now().Add(8 * time.Second).Truncate(time.Second)
	expired.set(expired.issue(corp, func(c *x509.Certificate) { c.NotAfter = ends }, corp))
	running := part{Role: "serve"}
	all := part{Role: "call", Expect: server, Files: []string{me.dir}}
	for _, f := range append(slices.Clone(good), bad...) {
		all.At = append(all.At, at[f])
		if f != wrongID {
			running.Files, running.At = append(running.Files, f.dir), append(running.At, at[f])
		}
	}
	elsewhere := part{Role: "serve", Files: []string{wrongID.dir}, At: []string{at[wrongID]}}
	running.run(t).says(t, "serving")
	other := elsewhere.run(t)
	other.says(t, "serving")
	wait.Until(t, "a certificate ended", func() bool { return time.Now().After(ends.Add(time.Second)) })
	calls := all.run(t)

	// fresh has the client connect anew until calls are answered by each with what is in its folder. A
	// handshake may show the one before: it does not wait for files that are read at that moment.
	fresh := func(by *pkitest.PKI, roots []*pkitest.PKI, of ...*folder) {
		t.Helper()
		last := time.Time{}
		for _, f := range of {
			wait.Until(t, "calls to "+f.name, func() bool {
				if time.Since(last) > time.Second {
					last = time.Now()
					me.rotate(by, roots...)
				}
				return len(calls.with("seen", at[f]+" "+f.key.String()+" ")) > 0 || len(calls.with("failed")) > 0
			})
		}
	}
	old := []*pkitest.PKI{corp}
	fresh(corp, old, good...)
	for f, reason := range reasons {
		calls.says(t, "log", "endpoint rejected", "endpoint="+at[f]+" ", "reason="+string(reason), "expected="+server)
	}

	// Each way to replace files is noticed, and what runs goes on.
	for range 4 {
		for _, f := range good {
			f.rotate(corp, corp)
		}
		fresh(corp, old, good...)
	}

	// A file that is half written is not used, also for who connects meanwhile, and is once it is whole.
	before := byBytes.key
	whole := byBytes.issue(corp, nil, corp)
	byBytes.put(byBytes, in(byBytes.dir).Cert, whole.cert[:len(whole.cert)/2])
	connected := func() int { return len(calls.with("seen", at[byBytes]+" "+before.String()+" ")) }
	n := connected()
	me.rotate(corp, corp)
	wait.Until(t, "a connection while a file is half written", func() bool { return connected() > n })
	byBytes.set(whole)
	fresh(corp, old, byBytes)

	// Mended endpoints are used: two by the same process, and one by another process in its place.
	wrongCA.rotate(corp, corp)
	expired.set(expired.issue(corp, nil, corp))
	other.end()
	wrongID.id = server
	wrongID.rotate(corp, corp)
	elsewhere.run(t).says(t, "serving")
	everyone := append(slices.Clone(good), bad...)
	for _, f := range bad {
		wait.Until(t, "calls to "+f.name+" once it is mended", func() bool {
			return len(calls.with("seen", at[f]+" "+f.key.String()+" ")) > 0 || len(calls.with("failed")) > 0
		})
		calls.says(t, "log", "endpoint healed", "endpoint="+at[f]+" ", "was="+string(reasons[f]))
	}
	for f, reason := range reasons {
		if got := calls.with("log", "rejected", at[f]); len(got) != 1 {
			t.Errorf("of %s (%s) the log says %q, want one line", f.name, reason, got)
		}
	}

	// The CA changes: both are believed, then certificates are of the new one, then the old one goes.
	fmt.Fprintln(calls.input, "hang up") // the stream would end with the root of its client
	both := []*pkitest.PKI{corp, next}
	for _, by := range []struct {
		pki   *pkitest.PKI
		roots []*pkitest.PKI
	}{{corp, both}, {next, both}, {next, both[1:]}} {
		for _, f := range everyone {
			f.rotate(by.pki, by.roots...)
		}
		fresh(by.pki, by.roots, everyone...)
	}

	calls.end()
	counted := calls.with("calls ")
	if failed := calls.with("failed"); len(failed) > 0 || len(calls.with("fault ")) > 0 || len(counted) != 1 {
		t.Errorf("failed: %.10q, faults: %q", failed, calls.with("fault "))
	}
	t.Log(counted)
	// Nobody is believed any more by a certificate of the old CA.
	me.rotate(corp, corp)
	src, err := sourceIn(me.dir)
	if err != nil {
		t.Fatal(err)
	}
	refused := dial(t, at[byName], src, credential.AnyOfKind(identity.Provider), mesh.Options{})
	if _, err := who(t, refused); !rejected(err, mesh.PeerUntrusted) {
		t.Errorf("with the CA of before: %v", err)
	}
}
