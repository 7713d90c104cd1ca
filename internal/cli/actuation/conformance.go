package actuation

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os/exec"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/pki/enterprise"
	"github.com/fealty-io/fealty/internal/pki/pemfile"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/provider"
	"github.com/fealty-io/fealty/internal/provider/conformance"
	"github.com/fealty-io/fealty/mesh"
)

// reachTimeout bounds the first connection to a provider.
const reachTimeout = 10 * time.Second

// check are the flags of fealty conformance provider.
type check struct {
	identity identityFlags

	address, key, cluster, restart string
	settle                         time.Duration
}

// Conformance is the command fealty conformance provider.
func Conformance() Command {
	f := new(check)
	return Command{
		Use: "provider", Short: "hold a live provider to the contract, in whatever language it is written",
		Long: `Run the cases that every provider has to pass, against a live one: what its fence refuses and what it
must not refuse, repetitions, states, lists, and what it says of its machines. A case that fails names its rule.

The cases act on machines that are speculative, and leave them speculative: give it a provider that nobody
uses, with two of them or more, in one domain or in none. They act as a shard that is started again and again:
give them an identity of kind shard that no shard has.

Cases that need something that was not given are not run, and said so. The exit status is 10 if a rule was
broken.`,
		Sample: `  fealty conformance provider --address 127.0.0.1:7460 --insecure
  fealty conformance provider --address p1.example:7460 --tls-cert tls.crt --tls-key tls.key --tls-ca ca.crt \
    --authority-key authority.key --restart 'systemctl restart provider'`,
		Flags: func(flags *pflag.FlagSet) {
			flags.StringVar(&f.address, "address", "", "where the provider is served, host:port")
			f.identity.add(flags)
			flags.StringVar(&f.key, "authority-key", "",
				"the private key of the authority that it believes, for grants and domains")
			flags.StringVar(&f.cluster, "authority-cluster", "", "the authority's cluster, without TLS")
			flags.StringVar(&f.restart, "restart", "",
				"the command that restarts it, for what has to outlive it; no shell reads it")
			flags.DurationVar(&f.settle, "settle", 30*time.Second, "how long one operation may take")
		},
		Run: f.run,
	}
}

func (f *check) run(ctx context.Context, w World) error {
	host, _, err := net.SplitHostPort(f.address)
	if err != nil {
		return badValue("--address", f.address, "it says not where the provider is",
			"host:port, such as 127.0.0.1:7460")
	}
	if ip := net.ParseIP(host); f.identity.insecure && (ip == nil || !ip.IsLoopback()) {
		return badValue("--address", f.address, "it is no loopback address", "127.0.0.1:PORT beside --insecure")
	}
	t := conformance.Target{Cluster: f.cluster, Settle: f.settle}
	if f.key != "" {
		if t.Key, err = readKey(w.Within(f.key)); err != nil {
			return errcode.Wrap(err, errcode.KeyFileUnusable, "file", f.key, "problem", err.Error())
		}
	}
	if words := strings.Fields(f.restart); len(words) > 0 {
		t.Restart = func(ctx context.Context) error {
			cmd := exec.CommandContext(ctx, words[0], words[1:]...)
			cmd.Dir = w.Within("")
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("%w: %.500s", err, strings.TrimSpace(string(out)))
			}
			return nil
		}
	}
	files, err := f.identity.files(ctx, w, identity.Shard, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		return err
	}
	// Before the cases, and in plain words: gRPC words what it met on its way.
	probe, err := (&net.Dialer{Timeout: reachTimeout}).DialContext(ctx, "tcp", f.address)
	if err != nil {
		return errcode.Wrap(err, errcode.Unreachable, "endpoint", f.address, "problem", errcode.Network(err))
	}
	probe.Close()
	conn, err := f.dial(ctx, files, &t)
	if err != nil {
		return err
	}
	defer conn.Close()
	return f.check(ctx, w, t)
}

// readKey reads an Ed25519 private key that only its owner can read.
func readKey(path string) (ed25519.PrivateKey, error) {
	text, err := durable.OS().ReadSecret(path, maxKeys)
	if err != nil {
		return nil, err
	}
	defer clear(text)
	signer, err := pemfile.PrivateKey(text, pemfile.Limits{Bytes: maxKeys, Blocks: maxKeyBlocks})
	if err != nil {
		return nil, err
	}
	key, ok := signer.(ed25519.PrivateKey)
	if !ok {
		return nil, errors.New("its key is not Ed25519")
	}
	return key, nil
}

// dial connects, and says in t who the provider takes the caller for.
func (f *check) dial(ctx context.Context, files *credential.Files, t *conformance.Target) (io.Closer, error) {
	// A token that is sent twice below the cases would be a finding that is none.
	once := grpc.WithDisableRetry()
	if files == nil {
		if t.Key != nil && t.Cluster == "" {
			return nil, badValue("--authority-cluster", "missing",
				"without TLS nothing says whose statements the key signs",
				"the cluster, beside --authority-key")
		}
		conn, err := grpc.NewClient("passthrough:///"+f.address,
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithNoProxy(), once)
		if err != nil {
			return nil, err
		}
		t.Conn, t.Holder = conn, provider.InsecureHolder
		return conn, nil
	}
	m, err := files.Current(ctx)
	if err != nil {
		return nil, enterprise.Word(files.Paths(), err)
	}
	t.Holder, t.Cluster = m.ID().String(), m.ID().Cluster()
	conn, err := mesh.Dial(f.address, files, credential.AnyOfKind(identity.Provider),
		mesh.Options{GRPC: []grpc.DialOption{once}})
	if err != nil {
		return nil, err
	}
	t.Conn = conn
	return conn, nil
}

// finding is a result as programs read it.
type finding struct {
	Case   string              `json:"case"`
	Rule   string              `json:"rule"`
	Result conformance.Outcome `json:"result"`
	TookMS int64               `json:"took_ms"`
	Why    string              `json:"why,omitempty"`
}

// report is what came of all cases.
type report struct {
	Schema   string    `json:"schema"`
	Provider string    `json:"provider"`
	Kept     int       `json:"kept"`
	Broken   int       `json:"broken"`
	NotRun   int       `json:"not_run"`
	Cases    []finding `json:"cases"`
}

// check runs the cases and prints what came of them.
func (f *check) check(ctx context.Context, w World, t conformance.Target) error {
	r := report{Schema: "fealty.cli/v1", Provider: f.address}
	words := map[conformance.Outcome]string{conformance.Kept: "ok", conformance.Broken: "FAILED",
		conformance.NotRun: "not run"}
	var broken []string
	err := conformance.Check(ctx, t, func(c conformance.Result) {
		switch c.Outcome {
		case conformance.Kept:
			r.Kept++
		case conformance.Broken:
			r.Broken++
			broken = append(broken, c.Case)
		case conformance.NotRun:
			r.NotRun++
		}
		r.Cases = append(r.Cases, finding{c.Case, c.Rule, c.Outcome, c.Took.Milliseconds(), c.Why})
		w.Say("%-7s %s", words[c.Outcome], c.Case)
	})
	switch {
	case errors.Is(err, conformance.ErrTooFew) || errors.Is(err, conformance.ErrDomains):
		return errcode.Wrap(err, errcode.BadValue, "name", "--address", "value", f.address, "problem",
			strings.TrimPrefix(err.Error(), "conformance: "), "want",
			"a provider that nobody uses, with speculative machines, and --authority-key if they are in domains")
	case status.Code(err) == codes.Unavailable:
		return errcode.Wrap(err, errcode.Unreachable, "endpoint", f.address, "problem", f.unavailable(err))
	case err != nil:
		return err
	}
	if err := r.print(w, words); err != nil {
		return err
	}
	if r.Broken > 0 {
		return errcode.New(errcode.ContractBroken, "provider", f.address, "cases", strings.Join(broken, ", "))
	}
	return nil
}

// unavailable says in plain words why nothing came back of the provider.
func (f *check) unavailable(err error) string {
	var told interface{ GRPCStatus() *status.Status }
	if !errors.As(err, &told) {
		return err.Error()
	}
	text := told.GRPCStatus().Message()
	switch {
	case strings.Contains(text, "error reading server preface") && f.identity.insecure:
		return "what listens there does not speak gRPC without TLS"
	case strings.Contains(text, "connection refused"):
		return "nothing listens there any more"
	}
	return text
}

func (r report) print(w World, words map[conformance.Outcome]string) error {
	if w.JSON {
		e := json.NewEncoder(w.Out)
		e.SetIndent("", "  ")
		return e.Encode(r)
	}
	t := tabwriter.NewWriter(w.Out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "RESULT\tCASE\tTOOK\tRULE")
	for _, c := range r.Cases {
		fmt.Fprintf(t, "%s\t%s\t%dms\t%s\n", words[c.Result], c.Case, c.TookMS, c.Rule)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, c := range r.Cases {
		// The answer of a provider may hold what a terminal obeys: it is quoted.
		if c.Why != "" {
			fmt.Fprintf(w.Out, "\n%s: %s\n", c.Case, strings.Trim(fmt.Sprintf("%+q", c.Why), `"`))
		}
	}
	return nil
}
