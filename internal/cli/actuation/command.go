// Package actuation has the commands that act on machines: fealty shard, demand, domain, instruction, quota
// and provider, the provider of processes, and the check that a provider keeps its contract.
package actuation

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/node/client"
	"github.com/fealty-io/fealty/internal/pki/enterprise"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/platform/logging"
	"github.com/fealty-io/fealty/internal/platform/reload"
	"github.com/fealty-io/fealty/internal/platform/sdnotify"
)

// Short says what the commands under fealty provider do.
const Short = "run what turns a shard's decisions into machines, and register it"

// Command is one command.
type Command struct {
	Use, Short, Long, Sample string

	// Serves: the command is a process, with metrics and a log.
	Serves bool

	// Asks: it asks a shard, and has --timeout. GoesOn: it does so until it is told to end.
	Asks, GoesOn bool

	Args cobra.PositionalArgs // nil: none

	Flags func(*pflag.FlagSet)
	Run   func(context.Context, World) error
}

// World is what a command sees of the invocation.
type World struct {
	Within  func(path string) string // as seen from the folder of the process
	Out     io.Writer                // standard output
	Say     func(form string, args ...any)
	JSON    bool // data as JSON, which is YAML too
	Now     func() time.Time
	Metrics func() (net.Listener, error) // of a command that serves; nil without --metrics

	// Of a command that asks.
	Args    []string
	Timeout time.Duration                                                   // of one request
	Print   func(data any, show func(*term.Page) error) error               // in the format that was asked for
	Planned func(what string)                                               // says what a dry run would do
	Confirm func(ctx context.Context, command, risk string, yes bool) error // asks a person about a risk

	// Of a command that serves: its log, the stream that this goes to, if that is watched, what takes what is
	// to be read again when somebody says so, what the process has locked, and what tells systemd of it; nil: nobody asked.
	Log     *slog.Logger
	Output  *logging.Writer
	Reload  *reload.Parts
	Locks   *durable.Locks
	Service *sdnotify.Notifier
}

// identityFlags are who this end of a provider is.
type identityFlags struct {
	cert, key, ca string
	agent         string
	insecure      bool
}

// self is who this process is, and whom it believes.
type self struct {
	source credential.Source
	id     identity.ID

	// agent is the agent that it runs beside; nil with files of its own.
	agent *client.Agent

	// follow follows what source is made of, until ctx ends.
	follow func(ctx context.Context) error
}

func (f *identityFlags) add(flags *pflag.FlagSet) {
	f.addFiles(flags)
	flags.BoolVar(&f.insecure, "insecure", false,
		"do without TLS, on a loopback address alone; all callers are one shard")
}

// addFiles adds those of a process that has to show who it is.
func (f *identityFlags) addFiles(flags *pflag.FlagSet) {
	flags.StringVar(&f.cert, "tls-cert", "", "the certificate with this process's SPIFFE id, in this PEM file")
	flags.StringVar(&f.key, "tls-key", "", "the private key of the certificate in --tls-cert")
	flags.StringVar(&f.ca, "tls-ca", "", "the CA certificates that the other end's certificate leads to")
}

// addAgent adds the identity of a member.
func (f *identityFlags) addAgent(flags *pflag.FlagSet) {
	flags.StringVar(&f.agent, "agent", "",
		"the folder of this member's agent: its identity, and whom it believes")
}

// open returns who this process is, which has to be of a kind; nil without TLS.
func (f *identityFlags) open(ctx context.Context, w World, kind identity.Kind,
	failed func(credential.Reason)) (*self, error) {
	if f.agent == "" {
		files, err := f.files(ctx, w, kind, w.Log, failed)
		if err != nil || files == nil {
			return nil, err
		}
		m, err := files.Current(ctx)
		if err != nil {
			return nil, enterprise.Word(files.Paths(), err)
		}
		w.Reload.Add(enterprise.Part(files))
		return &self{source: files, id: m.ID(), follow: files.Run}, nil
	}
	if f.insecure || f.cert != "" || f.key != "" || f.ca != "" {
		return nil, badValue("--agent", f.agent,
			"--insecure or --tls-cert, --tls-key and --tls-ca say otherwise who this process is", "one of them")
	}
	agent, err := client.Open(client.Config{Dir: w.Within(f.agent), Now: w.Now, Log: w.Log, OnFailure: failed})
	if err != nil {
		if _, worded := errors.AsType[*errcode.Error](err); worded {
			return nil, err
		}
		return nil, errcode.Wrap(err, errcode.CredentialUnusable, "source", f.agent, "problem", err.Error())
	}
	m, err := agent.Source().Current(ctx)
	if err != nil {
		return nil, errcode.Wrap(err, errcode.CredentialUnusable, "source", f.agent, "problem", err.Error())
	}
	if m.ID().Kind() != kind {
		return nil, wrongKind(f.agent, m.ID(), kind, "name the folder of an agent that joined as "+article(kind)+
			": fealty join --kind "+string(kind)+" --data DIR, with a token of an entry that admits it")
	}
	w.Reload.Add(enterprise.PartOf("the identity in "+f.agent, agent.Source(), func() error { agent.Look(); return agent.Failure() }))
	return &self{source: agent.Source(), id: m.ID(), agent: agent,
		follow: agent.Run}, nil
}

// files returns the identity of this end, which has to be of a kind; nil without TLS.
func (f *identityFlags) files(ctx context.Context, w World, kind identity.Kind, log *slog.Logger,
	failed func(credential.Reason)) (*credential.Files, error) {
	paths := credential.FilePaths{Cert: w.Within(f.cert), Key: w.Within(f.key), CA: w.Within(f.ca)}
	switch missing := enterprise.MissingFlags(paths); {
	case f.insecure && !paths.IsZero():
		return nil, badValue("--insecure", "given here", "there are files of a certificate too", "one of them")
	case f.insecure:
		return nil, nil
	case paths.IsZero():
		return nil, badValue("--tls-cert", "missing", "both ends show who they are",
			"--agent, or --tls-cert, --tls-key and --tls-ca, or --insecure on a loopback address to try things out")
	case len(missing) > 0:
		return nil, errcode.New(errcode.TLSFilesIncomplete, "missing", strings.Join(missing, " and "))
	}
	files, err := credential.NewFiles(credential.FilesConfig{Paths: paths, Now: w.Now,
		Log:       log,
		OnFailure: failed})
	if err != nil {
		return nil, enterprise.Word(paths, err)
	}
	m, err := files.Current(ctx)
	if err != nil {
		return nil, enterprise.Word(paths, err)
	}
	if m.ID().Kind() != kind {
		return nil, wrongKind(paths.Cert, m.ID(), kind, "name the certificate of "+article(kind)+
			", or with --agent the folder of an agent that joined as one")
	}
	return files, nil
}

// wrongKind says that an identity is good, and not that of who can do this.
func wrongKind(source string, id identity.ID, kind identity.Kind, do string) error {
	e := errcode.New(errcode.CredentialUnusable, "source", source, "problem",
		fmt.Sprintf("it is that of %s/%s, and %s is needed", id.Kind(), id.Name(), article(kind)))
	e.Do = do
	return e
}

// article is a kind with its article.
func article(kind identity.Kind) string {
	if kind == identity.Operator {
		return "an " + string(kind)
	}
	return "a " + string(kind)
}

func badValue(name, value, problem, want string) error {
	return errcode.New(errcode.BadValue, "name", name, "value", value, "problem", problem, "want", want)
}
