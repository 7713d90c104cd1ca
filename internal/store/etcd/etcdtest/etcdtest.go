//go:build linux

// Package etcdtest runs private etcd servers for tests: clusters of one or more
// members on loopback, each a process of its own that can be killed as by a power
// cut of the process, and started again on what it left.
//
// The server is built from the release that tools/etcd.mod names, by
// tools/etcd.sh, into bin/tools/etcd; FEALTY_ETCD_BIN names another one. Without
// it [Start] fails, and so do the tests: nothing is skipped.
package etcdtest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/fealty-io/fealty/internal/platform/freeport"
)

// patience is how long a server may take to start or to end, on a machine that is busy.
const patience = 3 * time.Minute

// Options say what servers to run.
type Options struct {
	Members int      // 0: one
	TLS     bool     // clients speak TLS and show a certificate
	Args    []string // more flags of the server
}

// Cluster is etcd servers that are members of one cluster. Its methods are called
// by one goroutine at a time, except for Addrs, URL and Prefix.
type Cluster struct {
	Members []*Member

	// The files of a client, with Options.TLS: what verifies the servers, and its
	// own certificate and key.
	RootFile, CertFile, KeyFile string

	bin      string
	dir      string // all files
	args     []string
	tls      *tls.Config
	issued   []Certificates
	watcher  *exec.Cmd
	watching io.Closer // the watcher's input: when it ends, the servers must
	prefixes atomic.Int64
}

// Member is one server.
type Member struct {
	c      *Cluster
	name   string
	client string // HOST:PORT
	peer   string // HOST:PORT

	server *exec.Cmd     // nil while it is down
	ended  chan struct{} // closed when server ended
}

// New starts a cluster that ends with the test.
func New(tb testing.TB, o Options) *Cluster {
	tb.Helper()
	c, err := Start(o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := c.Close(); err != nil {
			tb.Error(err)
		}
	})
	return c
}

// Start starts a new cluster. The caller closes it.
func Start(o Options) (_ *Cluster, err error) {
	bin, err := binary()
	if err != nil {
		return nil, err
	}
	// Another process that takes a port between here and there makes the start fail.
	for range 5 {
		var c *Cluster
		if c, err = start(bin, o); err == nil {
			return c, nil
		}
	}
	return nil, err
}

func start(bin string, o Options) (_ *Cluster, err error) {
	dir, err := os.MkdirTemp("", "fealty-etcd-")
	if err != nil {
		return nil, fmt.Errorf("etcdtest: %w", err)
	}
	c := &Cluster{bin: bin, dir: dir, args: o.Args}
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	if err := c.watch(); err != nil {
		return nil, err
	}
	if o.TLS {
		if err := c.certificates(); err != nil {
			return nil, err
		}
	}
	for i := range max(o.Members, 1) {
		m := &Member{c: c, name: fmt.Sprintf("member%d", i)}
		if m.client, err = freeport.Addr(); err != nil {
			return nil, err
		}
		if m.peer, err = freeport.Addr(); err != nil {
			return nil, err
		}
		c.Members = append(c.Members, m)
	}
	// All of them first: none is ready before most are there.
	for _, m := range c.Members {
		if err := m.launch(); err != nil {
			return nil, err
		}
	}
	for _, m := range c.Members {
		if err := m.ready(); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// binary returns the server.
func binary() (string, error) {
	if name := os.Getenv("FEALTY_ETCD_BIN"); name != "" {
		return name, nil
	}
	at, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; at = filepath.Dir(at) {
		if _, err := os.Stat(filepath.Join(at, "go.mod")); err == nil {
			break
		}
		if at == filepath.Dir(at) {
			return "", errors.New("etcdtest: not within the source tree, so set FEALTY_ETCD_BIN to an etcd server")
		}
	}
	name := filepath.Join(at, "bin", "tools", "etcd")
	if _, err := os.Stat(name); err != nil {
		return "", errors.New("etcdtest: no etcd server here, and these tests need a real one: run tools/etcd.sh, which builds it, or set FEALTY_ETCD_BIN")
	}
	return name, nil
}

// watch starts a process that ends the servers if this one does not live to do it.
func (c *Cluster) watch() error {
	c.watcher = exec.Command("sh", "-c", `cat >/dev/null; for p in "$0"/*/pid; do kill -KILL "$(cat "$p")" 2>/dev/null && sleep 1; done; rm -rf "$0"`, c.dir)
	c.watcher.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := c.watcher.StdinPipe()
	if err != nil {
		c.watcher = nil
		return err
	}
	c.watching = in
	if err := c.watcher.Start(); err != nil {
		c.watcher = nil
		return fmt.Errorf("etcdtest: %w", err)
	}
	return nil
}

// Addr is where the member serves clients, as HOST:PORT. It stays the same.
func (m *Member) Addr() string { return m.client }

// Data is the folder of the member's data: its files are only ever touched while it is
// down.
func (m *Member) Data() string { return filepath.Join(m.dir(), "data") }

func (m *Member) dir() string { return filepath.Join(m.c.dir, m.name) }

// launch starts the server and does not wait for it.
func (m *Member) launch() error {
	if err := os.MkdirAll(m.dir(), 0o700); err != nil {
		return fmt.Errorf("etcdtest: %w", err)
	}
	log, err := os.OpenFile(filepath.Join(m.dir(), "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("etcdtest: %w", err)
	}
	defer log.Close()
	scheme := "http://"
	if m.c.tls != nil {
		scheme = "https://"
	}
	var cluster []string
	for _, other := range m.c.Members {
		cluster = append(cluster, other.name+"=http://"+other.peer)
	}
	args := []string{
		"--name=" + m.name, "--data-dir=" + m.Data(),
		"--listen-client-urls=" + scheme + m.client, "--advertise-client-urls=" + scheme + m.client,
		"--listen-peer-urls=http://" + m.peer, "--initial-advertise-peer-urls=http://" + m.peer,
		"--initial-cluster=" + strings.Join(cluster, ","), "--initial-cluster-state=new",
		"--log-level=warn",
		// The writes of a killed process are left to the kernel, which lives on.
		"--unsafe-no-fsync",
	}
	if m.c.tls != nil {
		args = append(args, "--client-cert-auth", "--trusted-ca-file="+filepath.Join(m.c.dir, "clients.pem"),
			"--cert-file="+filepath.Join(m.c.dir, "server.pem"), "--key-file="+filepath.Join(m.c.dir, "server.key"))
	}
	cmd := exec.Command(m.c.bin, append(args, m.c.args...)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = m.dir(), log, log
	cmd.Env = []string{"HOME=" + m.dir(), "PATH=" + os.Getenv("PATH"), "GOMAXPROCS=2"}
	// In a group of its own, so that an interrupt at the terminal ends the tests
	// first, and those end the server.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("etcdtest: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		cmd.Wait() // how it ended stands in its log
	}()
	m.server, m.ended = cmd, ended
	return os.WriteFile(filepath.Join(m.dir(), "pid"), []byte(strconv.Itoa(cmd.Process.Pid)), 0o600)
}

// ready returns when the server answers for the whole cluster.
func (m *Member) ready() error {
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		err := m.ask()
		if err == nil {
			return nil
		}
		select {
		case <-m.ended:
			m.server = nil
			return fmt.Errorf("etcdtest: %s did not start:\n%s", m.name, m.log())
		default:
		}
		if time.Now().After(deadline) {
			return errors.Join(fmt.Errorf("etcdtest: %s does not answer: %w\n%s", m.name, err, m.log()), m.Kill())
		}
	}
}

// ask asks the member for its status: it knows a leader.
func (m *Member) ask() error {
	conn, err := m.Dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	status, err := pb.NewMaintenanceClient(conn).Status(ctx, &pb.StatusRequest{})
	if grpcstatus.Convert(err).Message() == grpcstatus.Convert(rpctypes.ErrGRPCUserEmpty).Message() {
		return nil // it wants to know who asks, and is there
	}
	if err != nil {
		return err
	}
	if status.Leader == 0 {
		return errors.New("it knows no leader")
	}
	return nil
}

// Dial returns a connection to the member, past the engine. The caller closes it.
func (m *Member) Dial() (*grpc.ClientConn, error) {
	creds := insecure.NewCredentials()
	if m.c.tls != nil {
		creds = credentials.NewTLS(m.c.tls)
	}
	return grpc.NewClient("passthrough:///"+m.client, grpc.WithTransportCredentials(creds),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32)))
}

// Conn is Dial for a test, which closes it.
func (c *Cluster) Conn(tb testing.TB) *grpc.ClientConn {
	tb.Helper()
	conn, err := c.Members[0].Dial()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { conn.Close() })
	return conn
}

// Start starts a server that is down, and returns when it answers.
func (m *Member) Start() error {
	if err := m.launch(); err != nil {
		return err
	}
	return m.ready()
}

// log returns the end of the server's log.
func (m *Member) log() string {
	text, err := os.ReadFile(filepath.Join(m.dir(), "log"))
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-4096):])
}

// Kill ends the server at once, with SIGKILL.
func (m *Member) Kill() error { return m.end(syscall.SIGKILL) }

// Stop ends the server as its service manager does.
func (m *Member) Stop() error { return m.end(syscall.SIGTERM) }

// Pause stops the server where it is, so that it answers nobody but keeps its
// connections; Resume lets it go on.
func (m *Member) Pause() error { return m.server.Process.Signal(syscall.SIGSTOP) }

// Resume ends a Pause.
func (m *Member) Resume() error { return m.server.Process.Signal(syscall.SIGCONT) }

func (m *Member) end(how os.Signal) error {
	if m.server == nil {
		return nil
	}
	if err := m.server.Process.Signal(how); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("etcdtest: end %s: %w", m.name, err)
	}
	select {
	case <-m.ended:
		m.server = nil
		return os.Remove(filepath.Join(m.dir(), "pid"))
	case <-time.After(patience):
		return fmt.Errorf("etcdtest: %s does not end:\n%s", m.name, m.log())
	}
}

// Kill kills all servers.
func (c *Cluster) Kill() error { return c.each((*Member).Kill) }

// Stop stops all servers.
func (c *Cluster) Stop() error { return c.each((*Member).Stop) }

// Start starts all servers that are down, and returns when they answer.
func (c *Cluster) Start() error {
	for _, m := range c.Members {
		if m.server == nil {
			if err := m.launch(); err != nil {
				return err
			}
		}
	}
	return c.each((*Member).ready)
}

func (c *Cluster) each(f func(*Member) error) error {
	var errs []error
	for _, m := range c.Members {
		errs = append(errs, f(m))
	}
	return errors.Join(errs...)
}

// Close ends the servers and deletes their files.
func (c *Cluster) Close() error {
	err := c.Kill()
	if c.watcher != nil {
		c.watching.Close()
		err = errors.Join(err, c.watcher.Wait())
		c.watcher = nil
	}
	return errors.Join(err, os.RemoveAll(c.dir))
}

// Addrs are where the members serve clients, separated by commas.
func (c *Cluster) Addrs() string {
	var all []string
	for _, m := range c.Members {
		all = append(all, m.client)
	}
	return strings.Join(all, ",")
}

// URL names a store under prefix, which begins with a slash.
func (c *Cluster) URL(prefix string) string { return c.URLVia(c.Addrs(), prefix) }

// URLVia is URL with other addresses, such as a proxy's.
func (c *Cluster) URLVia(addrs, prefix string) string {
	url := "etcd://" + addrs + prefix
	if c.tls == nil {
		return url + "?tls=off"
	}
	return url + "?ca=" + c.RootFile + "&cert=" + c.CertFile + "&key=" + c.KeyFile
}

// Prefix returns a prefix that nobody has used.
func (c *Cluster) Prefix() string { return fmt.Sprintf("/test/%d", c.prefixes.Add(1)) }

// Certificates are a root, and what it signed for the servers and for a client, as files hold them.
type Certificates struct {
	Root, Server, ServerKey, Client, ClientKey []byte

	root *x509.Certificate
	pair tls.Certificate // the client's
}

// certificates makes the first ones, and writes them where the servers and clients read them.
func (c *Cluster) certificates() error {
	c.tls = &tls.Config{
		RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12,
		GetClientCertificate: func(asked *tls.CertificateRequestInfo) (*tls.Certificate, error) {
			for i := range c.issued {
				if asked.SupportsCertificate(&c.issued[i].pair) == nil {
					return &c.issued[i].pair, nil
				}
			}
			return &tls.Certificate{}, nil
		},
	}
	made, err := c.Issue()
	if err != nil {
		return err
	}
	at := func(name string) string { return filepath.Join(c.dir, name) }
	c.RootFile, c.CertFile, c.KeyFile = at("root.pem"), at("client.pem"), at("client.key")
	return errors.Join(c.Trust(made), c.Serve(made), os.WriteFile(c.RootFile, made.Root, 0o600),
		os.WriteFile(c.CertFile, made.Client, 0o600), os.WriteFile(c.KeyFile, made.ClientKey, 0o600))
}

// Trust has the servers that are started from now on believe clients of made's root alone.
func (c *Cluster) Trust(made Certificates) error {
	return os.WriteFile(filepath.Join(c.dir, "clients.pem"), made.Root, 0o600)
}

// Serve has the servers show made's certificate in each connection that is made from now on.
func (c *Cluster) Serve(made Certificates) error {
	return errors.Join(os.WriteFile(filepath.Join(c.dir, "server.key"), made.ServerKey, 0o600),
		os.WriteFile(filepath.Join(c.dir, "server.pem"), made.Server, 0o600))
}

// Issue makes a root, and certificates of the servers and of a client. They are in use nowhere yet, and [Member.Dial] knows
// them.
func (c *Cluster) Issue() (made Certificates, err error) {
	rootKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return made, err
	}
	root := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: fmt.Sprintf("root %d", len(c.issued)+1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign,
	}
	encode := func(kind string, der []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}) }
	issue := func(serial int64, name string, usage x509.ExtKeyUsage) (cert, key []byte, err error) {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return nil, nil, err
		}
		template := &x509.Certificate{
			SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
			NotBefore: root.NotBefore, NotAfter: root.NotAfter, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{usage, x509.ExtKeyUsageClientAuth},
		}
		der, err := x509.CreateCertificate(rand.Reader, template, root, k.Public(), rootKey)
		if err != nil {
			return nil, nil, err
		}
		private, err := x509.MarshalPKCS8PrivateKey(k)
		if err != nil {
			return nil, nil, err
		}
		return encode("CERTIFICATE", der), encode("PRIVATE KEY", private), nil
	}
	der, err := x509.CreateCertificate(rand.Reader, root, root, rootKey.Public(), rootKey)
	if err != nil {
		return made, err
	}
	made.Root = encode("CERTIFICATE", der)
	// The server is its own client, too: its gateway connects to it.
	if made.Server, made.ServerKey, err = issue(2, "server", x509.ExtKeyUsageServerAuth); err != nil {
		return made, err
	}
	if made.Client, made.ClientKey, err = issue(3, "client", x509.ExtKeyUsageClientAuth); err != nil {
		return made, err
	}
	if made.pair, err = tls.X509KeyPair(made.Client, made.ClientKey); err != nil {
		return made, err
	}
	if made.root, err = x509.ParseCertificate(der); err != nil {
		return made, err
	}
	c.tls.RootCAs.AddCert(made.root)
	c.issued = append(c.issued, made)
	return made, nil
}

// Raise adds a flag for the servers that are started from now on; it takes the place
// of one of the same name.
func (c *Cluster) Raise(flag string) { c.args = append(c.args, flag) }

// Keep notes the keys below prefix, which ends in a slash, and returns what puts them
// back as they are now and removes those that came later.
func (c *Cluster) Keep(tb testing.TB, prefix string) (back func()) {
	tb.Helper()
	kv := pb.NewKVClient(c.Conn(tb))
	key, end := []byte(prefix), []byte(strings.TrimSuffix(prefix, "/")+"0") // which follows the slash
	was, err := kv.Range(tb.Context(), &pb.RangeRequest{Key: key, RangeEnd: end})
	if err != nil || len(was.Kvs) == 0 {
		tb.Fatalf("%d keys below %s: %v", len(was.GetKvs()), prefix, err)
	}
	return func() {
		tb.Helper()
		if _, err := kv.DeleteRange(tb.Context(), &pb.DeleteRangeRequest{Key: key, RangeEnd: end}); err != nil {
			tb.Fatal(err)
		}
		for part := range slices.Chunk(was.Kvs, 100) { // a transaction takes 128
			var puts []*pb.RequestOp
			for _, e := range part {
				puts = append(puts, &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: e.Key, Value: e.Value}}})
			}
			if _, err := kv.Txn(tb.Context(), &pb.TxnRequest{Success: puts}); err != nil {
				tb.Fatal(err)
			}
		}
	}
}
