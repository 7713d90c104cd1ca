package docs

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/platform/freeport"
	"github.com/fealty-io/fealty/internal/store/embedded/embeddedtest"
	"github.com/fealty-io/fealty/internal/store/etcd/etcdtest"
	"github.com/fealty-io/fealty/internal/store/postgres/pgtest"
	"github.com/fealty-io/fealty/test/testlane"
)

// The README and the pages of the tutorial and of the how-tos are run as their readers would run
// them, against the real program. A page says what it needs beside its own blocks in a paragraph that
// the reader sees, and that begins with "This page starts from":
//
//	a cluster as [run a coordinator](docs/how-to/run-a-coordinator.md) makes it
//	                   the blocks of that page are run first, in another folder, up to its first
//	                   <!-- enough for other pages -->; members that the paragraph names join then,
//	                   and their agents run
//	a PostgreSQL server on `db.example:5432`, an etcd server on `etcd.example:2379`
//	                   one is started, with its root (and a client's certificate) in /etc/fealty
//	a clone of the repository in `~/fealty`
//	                   this one
//
// Comments that Markdown does not show say of a block how it is run. None of them does anything that
// the page does not say; [TestNothingIsHidden] holds them to that:
//
//	<!-- also on PostgreSQL -->          the page is run twice: with SQLite, and with
//	                                     FEALTY_STORE as the address of a database; the second
//	                                     time in the nightly lane (test/testlane)
//	<!-- run at night -->                the page is run in the nightly lane alone
//	<!-- run -->                         the block below is run, and succeeds
//	<!-- run, exit 5 -->                 it ends with that status
//	<!-- run in the background as NAME until "TEXT" -->
//	                                     it is one command, which goes on
//	<!-- start NAME until "TEXT": COMMAND -->
//	                                     the same, for a command that stands in for what is shown;
//	                                     [hidden] lists the pages that still have one
//	<!-- stop NAME -->                   that one gets an interrupt, as by Ctrl-C, and succeeds
//	<!-- output -->                      the block below is what the last one printed
//	<!-- file PATH -->                   the block below is put into that file
//	<!-- not run: WHY -->                the block below is only shown
//
// A block of a shell in those pages without one of them is an error. All blocks of a page run in one
// folder, with the environment that the one before left, and nothing in it beside that: a variable
// that no block has set is an error. Folders below /var/lib and /etc, addresses and ports are others
// than those on the page: [standsFor] lists them, and docs/README.md tells it to readers.
//
// In what a page shows, … stands for any text, and alone in a line for any lines.
// Times, durations, hashes, keys and ids may differ from what is shown.

var (
	runLine    = regexp.MustCompile(`^run(?:, exit ([0-9]+))?$`)
	behindLine = regexp.MustCompile(`^run in the background as ([a-z0-9-]+) until "(.*)"$`)
	startLine  = regexp.MustCompile(`^start ([a-z0-9-]+) until "(.*)": (.+)$`)
	stopLine   = regexp.MustCompile(`^stop ([a-z0-9-]+)$`)
	fileLine   = regexp.MustCompile(`^file (\S+)$`)
	notRunLine = regexp.MustCompile(`^not run: .+$`)
)

const (
	startsFrom = "This page starts from "
	bothLine   = "also on PostgreSQL"
	nightLine  = "run at night"
	enoughLine = "enough for other pages"
)

const (
	blockTimeout = 6 * time.Minute // one block, which may build a program, and one wait for what runs in the background
	nightTimeout = time.Hour       // the same, of a page that is run at night: it may make a release
	stopTimeout  = 2 * time.Minute
)

// TestMain also serves as the programs that pages use and a machine may lack.
func TestMain(m *testing.M) {
	switch filepath.Base(os.Args[0]) {
	case "curl":
		os.Exit(standIn(curl))
	case "openssl":
		os.Exit(standIn(openssl))
	case "etcdctl":
		os.Exit(standIn(etcdtest.Control))
	}
	os.Exit(m.Run())
}

func standIn(f func(args []string) error) int {
	if err := f(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// curl is as much of curl as the pages need.
func curl(args []string) error {
	resp, err := http.Get(args[len(args)-1])
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(os.Stdout, resp.Body)
	return err
}

// openssl is as much of openssl as the pages need: genpkey and pkey for Ed25519, and
// req -x509 for a CA and for a client's certificate.
func openssl(args []string) error {
	flag := func(name string) string {
		for i, a := range args {
			if a == name && i+1 < len(args) {
				return args[i+1]
			}
		}
		return ""
	}
	switch args[0] {
	case "req":
		return certify(flag("-subj"), flag("-out"), flag("-keyout"), flag("-CA"), flag("-CAkey"))
	case "genpkey":
		_, key, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			return err
		}
		der, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			return err
		}
		return os.WriteFile(flag("-out"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600)
	case "pkey":
		raw, err := os.ReadFile(flag("-in"))
		if err != nil {
			return err
		}
		block, _ := pem.Decode(raw)
		if block == nil {
			return errors.New("no PEM")
		}
		parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
		if err != nil {
			return err
		}
		der, err := x509.MarshalPKIXPublicKey(parsed.(ed25519.PrivateKey).Public())
		if err != nil {
			return err
		}
		_, err = os.Stdout.Write(der)
		return err
	}
	return fmt.Errorf("openssl %s is not stood in for", args[0])
}

// certify writes a new key, and a certificate over it: a CA's of its own, or one by the
// CA that is named.
func certify(subject, out, keyOut, caFile, caKeyFile string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: strings.TrimPrefix(subject, "/CN=")},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(90 * 24 * time.Hour), BasicConstraintsValid: true,
	}
	parent, signer := template, any(key)
	if caFile == "" {
		template.IsCA, template.KeyUsage = true, x509.KeyUsageCertSign
	} else {
		template.KeyUsage, template.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
		pair, err := tls.LoadX509KeyPair(caFile, caKeyFile)
		if err != nil {
			return err
		}
		parent, signer = pair.Leaf, pair.PrivateKey
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(keyOut, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600),
		os.WriteFile(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
}

var (
	binOnce sync.Once
	binDir  string
	binErr  error
)

// product is the build that tools/lint.sh makes too, with CGO_ENABLED=0: what one of
// them compiled, the others find in Go's build cache.
var product = []string{"build", "-buildvcs=false", "-trimpath", "-tags=grpcnotrace,nethttpomithttp2"}

// programs makes the folder to put first in PATH, once: with fealty as it is built for use,
// without the race detector, with which these tests may be. FEALTY_TEST_PROGRAM names one
// that was built already.
func programs(t *testing.T) string {
	t.Helper()
	binOnce.Do(func() {
		// It outlives the test that is first, and goes with the last one's process.
		if binDir, binErr = os.MkdirTemp("", "fealty-docs-bin-"); binErr != nil {
			return
		}
		fealty := filepath.Join(binDir, "fealty")
		if made := os.Getenv("FEALTY_TEST_PROGRAM"); made != "" {
			binErr = copyProgram(made, fealty) // a link leads to what else lies there
		} else {
			build := exec.Command("go", append(slices.Clone(product), "-o", fealty, "./cmd/fealty")...)
			build.Dir = root
			build.Env = append(os.Environ(), "CGO_ENABLED=0")
			if out, err := build.CombinedOutput(); err != nil {
				binErr = fmt.Errorf("build fealty: %w\n%s", err, out)
			}
		}
		if binErr != nil {
			return
		}
		self, err := os.Executable()
		if err != nil {
			binErr = err
			return
		}
		if store, err := embeddedtest.Find(); err == nil { // who has none is told by the page that needs it
			binErr = os.Symlink(store, filepath.Join(binDir, "fealty-store"))
		}
		for _, tool := range []string{"curl", "openssl", "etcdctl"} {
			if _, err := exec.LookPath(tool); err != nil {
				binErr = errors.Join(binErr, os.Symlink(self, filepath.Join(binDir, tool)))
			}
		}
	})
	if binErr != nil {
		t.Fatal(binErr)
	}
	return binDir
}

func copyProgram(from, to string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, text, 0o700)
}

// session runs one page.
type session struct {
	t      *testing.T
	page   page
	base   string            // of everything that the page makes
	dir    string            // where its commands run
	part   bool              // only as far as other pages need
	ports  map[string]string // port on the page to port here
	last   string            // what the last block printed
	behind map[string]*behind
	line   int
}

// behind is a process in the background.
type behind struct {
	cmd    *exec.Cmd
	out    *tail
	exited chan struct{}
	err    error // set before exited is closed
}

// tail keeps what a process prints, and tells who waits for a text in it.
type tail struct {
	mu   sync.Mutex
	buf  bytes.Buffer  // guarded by mu
	news chan struct{} // closed and replaced with each write; guarded by mu
}

func (b *tail) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.news)
	b.news = make(chan struct{})
	return b.buf.Write(p)
}

func (b *tail) look() (string, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String(), b.news
}

// TestPages runs the README, the tutorial and the how-tos.
func TestPages(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Fatal("the pages are for a shell")
	}
	t.Cleanup(func() { os.RemoveAll(binDir) })
	ran, both := 0, 0
	for _, p := range pages(t) {
		if !isRun(p) {
			continue
		}
		ran++
		t.Run(strings.TrimSuffix(strings.TrimPrefix(p.path, "docs/"), ".md"), func(t *testing.T) {
			t.Parallel() // they mostly wait for processes
			if slices.Contains(p.lines, "<!-- "+nightLine+" -->") {
				testlane.Nightly(t)
			}
			runPage(t, p, "")
		})
		if slices.Contains(p.lines, "<!-- "+bothLine+" -->") {
			both++
			t.Run(strings.TrimSuffix(strings.TrimPrefix(p.path, "docs/"), ".md")+" on PostgreSQL", func(t *testing.T) {
				t.Parallel()
				testlane.Nightly(t)
				server := pgtest.New(t)
				runPage(t, p, server.URL(server.Database(t)))
			})
		}
	}
	if ran < 5 || both < 1 {
		t.Errorf("%d pages were run, %d of them on both engines: this test looks at nothing", ran, both)
	}
}

// runPage runs a page, with its coordinators on the given store if there is one.
func runPage(t *testing.T, p page, store string) {
	bin := programs(t)
	// Short, because a unix socket's path is.
	dir, err := os.MkdirTemp("", "fd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := &session{
		t: t, page: p, base: dir, dir: filepath.Join(dir, "w"),
		ports: make(map[string]string), behind: make(map[string]*behind),
	}
	for _, d := range []string{s.dir, filepath.Join(dir, "lib"), filepath.Join(dir, "etc")} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	path := bin + string(os.PathListSeparator) + os.Getenv("PATH")
	set := []string{"PATH=" + path, "HOME=" + s.dir, "NO_COLOR=1", "LC_ALL=C"}
	if store != "" {
		set = append(set, "FEALTY_STORE="+store)
	}
	var env strings.Builder
	for _, kv := range set {
		name, value, _ := strings.Cut(kv, "=")
		fmt.Fprintf(&env, "export %s='%s'\n", name, value)
	}
	if err := os.WriteFile(s.envFile(), []byte(env.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	defer s.stopAll()
	s.follow()
}

// follow runs the steps of the page.
func (s *session) follow() {
	for _, step := range s.steps() {
		s.line = step.line
		step.do()
		if s.t.Failed() {
			return
		}
	}
}

type step struct {
	line int
	do   func()
}

// steps reads the page.
func (s *session) steps() []step {
	var out []step
	add := func(line int, do func()) { out = append(out, step{line, do}) }
	blocks := make(map[int]fence) // by the line above the fence's first
	for _, f := range s.page.fences(s.t) {
		blocks[f.line-2] = f
	}
	inside := false
	for i, line := range s.page.lines {
		if f, ok := blocks[i]; ok {
			s.block(f, add)
		}
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			inside = !inside
		}
		if inside {
			continue
		}
		if strings.HasPrefix(line, startsFrom) {
			text := s.page.paragraph(i)
			add(i+1, func() { s.begin(text) })
		}
		m := comment.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			continue
		}
		if v := startLine.FindStringSubmatch(m[1]); v != nil {
			add(i+1, func() { s.start(v[1], v[3], v[2]) })
		}
		if v := stopLine.FindStringSubmatch(m[1]); v != nil {
			add(i+1, func() { s.stop(v[1]) })
		}
		if m[1] == enoughLine && s.part {
			break
		}
	}
	return out
}

// paragraph returns the paragraph that begins in a line, as one line.
func (p page) paragraph(from int) string {
	end := from
	for end < len(p.lines) && strings.TrimSpace(p.lines[end]) != "" {
		end++
	}
	return strings.Join(p.lines[from:end], " ")
}

// block adds the step of one fenced block.
func (s *session) block(f fence, add func(int, func())) {
	how := ""
	if n := len(f.above); n > 0 {
		how = f.above[n-1]
	}
	if v := runLine.FindStringSubmatch(how); v != nil {
		exit, _ := strconv.Atoi(v[1])
		add(f.line, func() { s.run(f.text, exit) })
		return
	}
	if v := behindLine.FindStringSubmatch(how); v != nil {
		add(f.line, func() { s.start(v[1], f.text, v[2]) })
		return
	}
	if v := fileLine.FindStringSubmatch(how); v != nil {
		add(f.line, func() {
			err := os.MkdirAll(filepath.Dir(s.place(v[1])), 0o755)
			if err = errors.Join(err, os.WriteFile(s.place(v[1]), []byte(s.here(f.text)), 0o644)); err != nil {
				s.fatal("%v", err)
			}
		})
		return
	}
	switch {
	case how == "output":
		add(f.line, func() { s.compare(f.text) })
	case notRunLine.MatchString(how):
	case f.lang == "sh":
		s.t.Errorf("%s:%d: it is not said whether this block is run", s.page.path, f.line)
	}
}

func (s *session) fatal(format string, args ...any) {
	s.t.Helper()
	s.t.Fatalf("%s:%d: %s", s.page.path, s.line, fmt.Sprintf(format, args...))
}

func (s *session) envFile() string { return filepath.Join(s.base, "env") }

// standsFor is all that is another here than on a page: pages run side by side, as any user, on
// machines whose ports are taken. docs/README.md says it to readers in these words. Nothing is added.
var standsFor = []struct {
	shown string // as docs/README.md names it
	what  *regexp.Regexp
	here  func(s *session, m []string) string
}{
	{"`/var/lib/fealty`", regexp.MustCompile(`/var/lib/fealty`),
		func(s *session, _ []string) string { return s.base + "/lib" }},
	{"`/etc/fealty`", regexp.MustCompile(`/etc/fealty`),
		func(s *session, _ []string) string { return s.base + "/etc" }},
	{"`:PORT`", regexp.MustCompile(`((?:--listen|--metrics|listen:)[ =]"?):([0-9]{4,5})\b`),
		func(_ *session, m []string) string { return m[1] + "127.0.0.1:" + m[2] }},
	{"`NAME.example:PORT`", regexp.MustCompile(`(?:127\.0\.0\.1|[a-z0-9-]+\.example):([0-9]{4,5})\b`),
		func(s *session, m []string) string { return "127.0.0.1:" + s.port(m[1]) }},
}

// here turns what stands on the page into what is true here: folders, addresses.
func (s *session) here(text string) string {
	for _, r := range standsFor {
		text = r.what.ReplaceAllStringFunc(text, func(m string) string { return r.here(s, r.what.FindStringSubmatch(m)) })
	}
	return text
}

// port returns a free port for one of the page, always the same one.
func (s *session) port(shown string) string {
	if p, ok := s.ports[shown]; ok {
		return p
	}
	addr, err := freeport.Addr()
	if err != nil {
		s.fatal("%v", err)
	}
	_, p, err := net.SplitHostPort(addr)
	if err != nil {
		s.fatal("%v", err)
	}
	s.ports[shown] = p
	return p
}

func (s *session) place(path string) string {
	if path = s.here(path); filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(s.dir, path)
}

func (s *session) shell(ctx context.Context, script string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "sh", "-c", script)
	cmd.Dir = s.dir
	cmd.Env = []string{} // what a page needs is in the file of its environment
	return cmd
}

// longest is how long a block may take.
func (s *session) longest() time.Duration {
	if slices.Contains(s.page.lines, "<!-- "+nightLine+" -->") {
		return nightTimeout
	}
	return blockTimeout
}

// run runs a block to its end. Its variables are there for the next one.
func (s *session) run(text string, exit int) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), s.longest())
	defer cancel()
	cmd := s.shell(ctx, fmt.Sprintf(". '%s'\ntrap 'export -p > \"%[1]s\"' EXIT\nset -eua\n%s", s.envFile(), s.here(text)))
	out, err := cmd.CombinedOutput()
	s.last = string(out)
	var failed *exec.ExitError
	if err != nil && (!errors.As(err, &failed) || ctx.Err() != nil) {
		s.fatal("%v\n%s\n%s", err, s.last, s.logs())
	}
	if got := cmd.ProcessState.ExitCode(); got != exit {
		s.fatal("exit status %d, want %d, of\n%s\n%s\n%s", got, exit, text, s.last, s.logs())
	}
}

// start runs a block in the background, and waits until it printed a text.
func (s *session) start(name, text, until string) {
	s.t.Helper()
	if strings.HasPrefix(text, "#") || strings.Count(strings.ReplaceAll(strings.TrimSpace(text), "\\\n", " "), "\n") > 0 {
		s.fatal("what runs in the background is one command")
	}
	b := &behind{out: &tail{news: make(chan struct{})}, exited: make(chan struct{})}
	script := fmt.Sprintf(". '%s'\nset -u\nexec %s", s.envFile(), s.here(text))
	b.cmd = s.shell(context.WithoutCancel(s.t.Context()), script)
	b.cmd.Stdout, b.cmd.Stderr = b.out, b.out
	if err := b.cmd.Start(); err != nil {
		s.fatal("%v", err)
	}
	go func() { b.err = b.cmd.Wait(); close(b.exited) }() // waited for in stop
	s.behind[name] = b
	timeout := time.NewTimer(s.longest())
	defer timeout.Stop()
	for {
		seen, news := b.out.look()
		if strings.Contains(seen, s.here(until)) {
			s.last = seen
			return
		}
		select {
		case <-news:
		case <-b.exited:
			seen, _ := b.out.look()
			s.fatal("%s ended before it printed %q: %v\n%s", name, until, b.err, seen)
		case <-timeout.C:
			s.fatal("%s has not printed %q:\n%s", name, until, seen)
		}
	}
}

// stop interrupts a process in the background, which has to end well.
func (s *session) stop(name string) {
	s.t.Helper()
	b := s.behind[name]
	if b == nil {
		s.fatal("nothing called %s runs", name)
	}
	delete(s.behind, name)
	if err := b.end(); err != nil {
		seen, _ := b.out.look()
		s.fatal("%s did not end well: %v\n%s", name, err, seen)
	}
	s.last, _ = b.out.look()
}

func (b *behind) end() error {
	if err := b.cmd.Process.Signal(syscall.SIGINT); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	timeout := time.NewTimer(stopTimeout)
	defer timeout.Stop()
	select {
	case <-b.exited:
		return b.err
	case <-timeout.C:
		err := b.cmd.Process.Kill()
		<-b.exited
		return errors.Join(errors.New("it did not end after an interrupt"), err)
	}
}

// stopAll ends what is left, members before their coordinator.
func (s *session) stopAll() {
	order := make([]string, 0, len(s.behind))
	for name := range s.behind {
		if name != "coordinator" {
			order = append(order, name)
		}
	}
	for _, name := range append(order, "coordinator") {
		b := s.behind[name]
		if b == nil {
			continue
		}
		if err := b.end(); err != nil {
			seen, _ := b.out.look()
			s.t.Errorf("%s: %s did not end well: %v\n%s", s.page.path, name, err, seen)
		}
	}
}

// logs returns the end of what the processes in the background printed.
func (s *session) logs() string {
	var out strings.Builder
	for name, b := range s.behind {
		seen, _ := b.out.look()
		fmt.Fprintf(&out, "--- %s\n%s\n", name, seen[max(0, len(seen)-2000):])
	}
	return out.String()
}

var (
	pageLink   = regexp.MustCompile(`\]\(([a-z-]+\.md)\)`)
	memberName = regexp.MustCompile("`data/([a-z0-9-]+)`")
)

// begin makes what a page starts from.
func (s *session) begin(text string) {
	s.t.Helper()
	known := false
	for what, do := range map[string]func(){
		"a PostgreSQL server on `db.example:5432`": s.database,
		"an etcd server on `etcd.example:2379`":    s.etcd,
		"a clone of the repository in `~/fealty`":  s.clone,
	} {
		if strings.Contains(text, what) {
			known = true
			do()
		}
	}
	if m := pageLink.FindStringSubmatch(text); strings.HasPrefix(text, startsFrom+"a cluster as [") && m != nil {
		known = true
		path := filepath.ToSlash(filepath.Join(filepath.Dir(s.page.path), m[1]))
		s.cluster(path, memberName.FindAllStringSubmatch(text, -1))
	}
	if !known {
		s.fatal("it is not known how to start from this: %s", text)
	}
}

// cluster runs the blocks of another page as far as they are there for others, and lets members join.
// It is done in another folder and another shell: what it leaves is the cluster.
func (s *session) cluster(path string, members [][]string) {
	s.t.Helper()
	env, err := os.ReadFile(s.envFile())
	if err != nil {
		s.fatal("%v", err)
	}
	other := *s
	other.part = true
	if other.dir, err = os.MkdirTemp(s.base, "from"); err != nil {
		s.fatal("%v", err)
	}
	i := slices.IndexFunc(pages(s.t), func(p page) bool { return p.path == path })
	if i < 0 {
		s.fatal("there is no page %s", path)
	}
	other.page = pages(s.t)[i]
	if !slices.Contains(other.page.lines, "<!-- "+enoughLine+" -->") {
		s.fatal("%s does not say how much of it is for other pages", path)
	}
	other.follow()
	for _, m := range members {
		other.run(fmt.Sprintf("fealty token create --entry nodes --name %[1]s > %[1]s.token\n"+
			"fealty join --data /var/lib/fealty/%[1]s --token-file %[1]s.token", m[1]), 0)
		other.start(m[1], "fealty agent --data /var/lib/fealty/"+m[1], "stream to a coordinator")
	}
	if err := os.WriteFile(s.envFile(), env, 0o600); err != nil {
		s.fatal("%v", err)
	}
}

// clone puts this module where a reader has a clone of it, and gives the page what Go needs to build
// without a home of its own.
func (s *session) clone() {
	s.t.Helper()
	module, err := filepath.Abs(root)
	if err == nil {
		err = os.Symlink(module, filepath.Join(s.dir, "fealty"))
	}
	if err != nil {
		s.fatal("%v", err)
	}
	// With the flags of the product, which are in Go's build cache already.
	env := fmt.Sprintf("export CGO_ENABLED=0 GOFLAGS='%s'\n", strings.Join(product[1:], " "))
	for _, name := range []string{"GOCACHE", "GOMODCACHE", "GOPROXY", "GOTOOLCHAIN"} {
		value, err := exec.Command("go", "env", name).Output()
		if err != nil {
			s.fatal("%v", err)
		}
		env += fmt.Sprintf("export %s='%s'\n", name, strings.TrimSpace(string(value)))
	}
	s.run(env, 0)
}

// database starts a PostgreSQL server and makes this machine's user its admin.
func (s *session) database() {
	s.t.Helper()
	server := pgtest.New(s.t)
	_, port, err := net.SplitHostPort(server.Addr())
	if err != nil {
		s.fatal("%v", err)
	}
	s.ports["5432"] = port
	passfile := fmt.Sprintf("127.0.0.1:%s:*:%s:%s\n", port, pgtest.User, server.Password())
	err = errors.Join(
		os.WriteFile(s.place("/etc/fealty/db-ca.pem"), server.ServeTLS(s.t), 0o644),
		os.WriteFile(filepath.Join(s.base, "w", ".pgpass"), []byte(passfile), 0o600))
	if err != nil {
		s.fatal("%v", err)
	}
	s.run(fmt.Sprintf("PATH=\"$PATH:%s\"\n", server.Bin()), 0)
}

// etcd starts an etcd server that asks for a client's certificate.
func (s *session) etcd() {
	s.t.Helper()
	server := etcdtest.New(s.t, etcdtest.Options{TLS: true})
	_, port, err := net.SplitHostPort(server.Addrs())
	if err != nil {
		s.fatal("%v", err)
	}
	s.ports["2379"] = port
	for from, to := range map[string]string{server.RootFile: "etcd-ca.pem", server.CertFile: "etcd-client.pem", server.KeyFile: "etcd-client.key"} {
		data, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(s.place("/etc/fealty/"+to), data, 0o600)
		}
		if err != nil {
			s.fatal("%v", err)
		}
	}
}

// compare holds what the last block printed against what the page shows.
func (s *session) compare(shown string) {
	s.t.Helper()
	want := strings.Split(strings.TrimRight(plain(s.here(shown)), "\n"), "\n")
	got := strings.Split(strings.TrimRight(plain(s.last), "\n"), "\n")
	if !matches(want, got) {
		s.fatal("the page shows\n%s\n\nand it printed\n%s", shown, s.last)
	}
}

// matches reports whether lines are as shown.
func matches(want, got []string) bool {
	switch {
	case len(want) == 0:
		return len(got) == 0
	case strings.TrimSpace(want[0]) == "…":
		for i := 0; i <= len(got); i++ {
			if matches(want[1:], got[i:]) {
				return true
			}
		}
		return false
	case len(got) == 0:
		return false
	}
	pattern := "^" + strings.ReplaceAll(regexp.QuoteMeta(want[0]), "…", ".*") + "$"
	return regexp.MustCompile(pattern).MatchString(got[0]) && matches(want[1:], got[1:])
}

// differs lists what is another in each run, and what stands for it.
var differs = []struct {
	what *regexp.Regexp
	as   string
}{
	{regexp.MustCompile(`ed25519:[A-Za-z0-9+/=]{8,}…?`), "KEY"},
	// A hash, a key's id, and the id of a token, which may look like one of a key.
	{regexp.MustCompile(`\b(?:[0-9a-f]{16,}|[a-z2-7]{16})\b`), "ID"},
	{regexp.MustCompile(`\b[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z`), "TIME"},
	// A member that has just joined may not have reported yet what is published for it.
	{regexp.MustCompile(`\b(node_runtime|[a-z]+_(policy|mode_policy|directory|assignment)) [0-9]+\.[0-9]+, `), ""},
	{regexp.MustCompile(`\b(trust_bundle|node_bootstrap) ([0-9]+)\.[0-9]+`), "$1 $2.N"},
	{regexp.MustCompile(`\bdev\.[0-9a-f]{8}\b`), "dev.ID"},
	{regexp.MustCompile(`\b127\.0\.0\.1:[0-9]+\b`), "ADDRESS"},
	{regexp.MustCompile(`\b[0-9]+\.[0-9] s\b`), "SPAN"},
	{regexp.MustCompile(`\b[0-9]+(?:d|h|m|s|ms|µs|us)(?: ?[0-9]+(?:h|m|s))*\b`), "SPAN"},
	{regexp.MustCompile(`\b(now|SPAN ago|in SPAN)\b`), "THEN"},
	{regexp.MustCompile(`[ \t]+`), " "},
	{regexp.MustCompile(` ?\n`), "\n"},
}

func plain(text string) string {
	for _, d := range differs {
		text = d.what.ReplaceAllString(text, d.as)
	}
	return text
}
