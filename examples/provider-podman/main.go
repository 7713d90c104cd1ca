// Command provider-podman is a provider whose machines are containers of podman: creating one
// reserves it, configuring it starts the image for a tenant, draining it ends that, and deleting
// it removes what is left. A restart finds them again by their labels.
//
// make conformance-machines runs it against the contract.
package main

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"strings"
	"syscall"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/fence/durable"
	"github.com/fealty-io/fealty/provider"
)

// settings are the flags.
type settings struct {
	dir, listen, name, podman, create, image, domain string
	slots                                            int

	tls          credential.FilePaths
	key, cluster string // whose grants and assignments count
}

var names = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,31})$`)

func (s settings) fleet() (*fleet, error) {
	f := &fleet{podman: strings.Fields(s.podman), create: strings.Fields(s.create), image: s.image, name: s.name,
		domain: s.domain}
	switch {
	case !names.MatchString(s.name):
		return nil, fmt.Errorf("-name is %q: want lower case letters, digits and dashes, at most 32", s.name)
	case s.image == "" || strings.HasPrefix(s.image, "-"):
		return nil, errors.New("-image is missing: say which image a machine runs, which podman has already")
	case s.slots < 1 || s.slots > maxSlots:
		return nil, fmt.Errorf("-slots is %d: want 1 to %d machines", s.slots, maxSlots)
	case len(f.podman) == 0:
		return nil, errors.New("-podman is empty: say what podman is called")
	}
	if _, err := exec.LookPath(f.podman[0]); err != nil {
		return nil, fmt.Errorf("%w: install the package podman", err)
	}
	for n := range s.slots {
		f.slots = append(f.slots, fmt.Sprintf("container-%d", n+1))
	}
	return f, nil
}

// authority returns whose grants and assignments count; the zero one without a key.
func (s settings) authority() (fence.Authority, error) {
	if s.key == "" {
		return fence.Authority{}, nil
	}
	text, err := os.ReadFile(s.key)
	if err != nil {
		return fence.Authority{}, err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return fence.Authority{}, fmt.Errorf("%s has no PEM block", s.key)
	}
	parsed, err := x509.ParsePKIXPublicKey(block.Bytes)
	key, ok := parsed.(ed25519.PublicKey)
	if err != nil || !ok || s.cluster == "" {
		return fence.Authority{}, fmt.Errorf("%s: want an Ed25519 public key, and -authority-cluster beside it", s.key)
	}
	return fence.Authority{Cluster: s.cluster,
		Key: func(id string) (ed25519.PublicKey, bool) { return key, id == fence.KeyID(key) }}, nil
}

// marks opens what is remembered of those who were obeyed. It begins empty where this provider
// has no container, and there alone.
func (s settings) marks(ctx context.Context, f *fleet, a fence.Authority) (*durable.Ledger, error) {
	o := durable.LedgerOptions{Cluster: a.Cluster, BelieveEpochs: a.Key == nil,
		RequireDomain: a.Key != nil && s.domain != ""}
	have, err := f.containers(ctx, "")
	if err != nil {
		return nil, err
	}
	if len(have) == 0 {
		if marks, err := durable.EnrolLedger(s.dir, o); !errors.Is(err, durable.ErrEnrolled) {
			return marks, err
		}
	}
	return durable.OpenLedger(s.dir, o)
}

func run(ctx context.Context, s settings) error {
	f, err := s.fleet()
	if err != nil {
		return err
	}
	authority, err := s.authority()
	if err != nil {
		return err
	}
	cfg := provider.Config{Machines: f, Authority: authority, Insecure: s.tls.IsZero(),
		Refused: func(err error) { log.Printf("refused by the fence: %v", err) }}
	if !s.tls.IsZero() {
		files, err := credential.NewFiles(credential.FilesConfig{Paths: s.tls})
		if err != nil {
			return err
		}
		cfg.Source = files // asked in each handshake, and so followed
	}
	marks, err := s.marks(ctx, f, authority)
	if err != nil {
		return err
	}
	defer marks.Close()
	cfg.Marks = marks
	if err := f.begin(ctx); err != nil {
		return err
	}
	defer f.work.Wait()
	l, err := net.Listen("tcp", s.listen)
	if err != nil {
		return err
	}
	log.Printf("serving on %s", l.Addr())
	return provider.Serve(ctx, l, cfg)
}

func main() {
	var s settings
	flag.StringVar(&s.dir, "dir", ".", "an existing folder, for the marks of the fence")
	flag.StringVar(&s.listen, "listen", "127.0.0.1:7460", "host:port")
	flag.StringVar(&s.name, "name", "podman", "which provider this is, where several share one podman")
	flag.StringVar(&s.podman, "podman", "podman", "the program, and flags of its own")
	flag.StringVar(&s.create, "create", "--network=none", "flags for each container")
	flag.StringVar(&s.image, "image", "", "the image that a machine runs; podman has it already")
	flag.IntVar(&s.slots, "slots", 4, "how many machines there are")
	flag.StringVar(&s.domain, "domain", "", "the domain of all machines")
	flag.StringVar(&s.tls.Cert, "tls-cert", "", "the certificate; without one it serves on loopback, insecurely")
	flag.StringVar(&s.tls.Key, "tls-key", "", "its key")
	flag.StringVar(&s.tls.CA, "tls-ca", "", "whom it believes")
	flag.StringVar(&s.key, "authority-key", "", "the public key whose grants and assignments count, in PEM")
	flag.StringVar(&s.cluster, "authority-cluster", "", "the cluster that they are for")
	flag.Parse()
	ctx, _ := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	if err := run(ctx, s); err != nil {
		log.Fatal(err)
	}
}
