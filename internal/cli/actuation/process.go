package actuation

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"

	"github.com/fealty-io/fealty/fence"
	fences "github.com/fealty-io/fealty/fence/durable"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/platform/durable"
	internalprovider "github.com/fealty-io/fealty/internal/provider"
	"github.com/fealty-io/fealty/internal/provider/process"
	"github.com/fealty-io/fealty/provider"
)

// processes are the flags of fealty provider process.
type processes struct {
	identity identityFlags

	data, listen, profiles string
	grace                  time.Duration
	signs                  authorityFlags
	believe                bool
}

// Process is the command fealty provider process.
func Process() Command {
	f := new(processes)
	return Command{
		Use: "process", Short: "run a provider whose machines are processes of this machine", Serves: true,
		Long: `Run a provider whose machines are processes of this machine, until it gets SIGINT or SIGTERM.

A machine is a slot of a profile. Creating it reserves the slot; configuring it starts the profile's command,
with FEALTY_MACHINE, FEALTY_PROFILE and FEALTY_TENANT in its environment, in a folder of its own in the data
folder, where the file output has what it prints; draining it sends SIGTERM, and SIGKILL after the grace;
deleting it releases the slot.

The file of profiles is YAML: a list under profiles, each with name, slots and command, and with domain,
price_per_hour and interruption_probability where they are not empty or 0. The machines of profile web with
two slots are web-1 and web-2. A slot that is no longer in it stays until its machine is deleted.

Of what a command prints the provider keeps the last 1 MiB of more than 8 MiB, in output.1, while it runs. A
profile with max_file_bytes has the system bound each file of its command, what it prints included, with no
provider too: a command that goes on writing is ended.

Processes go on when the provider ends, and are found again by their pid and the time of their start; no
other process is ever signalled. A command ends what it started itself. Linux alone.`,
		Sample: `  fealty provider process --profiles profiles.yaml --tls-cert tls.crt --tls-key tls.key \
    --tls-ca ca.crt --authority-key authority.pub
  fealty provider process --profiles profiles.yaml --data ./provider --insecure --believe-epochs`,
		Flags: func(flags *pflag.FlagSet) {
			flags.StringVar(&f.profiles, "profiles", "",
				"the YAML file that says which machines there are, and what they run")
			flags.StringVar(&f.data, "data", "/var/lib/fealty/provider",
				"the provider's folder: its machines, and the marks of its fence")
			flags.StringVar(&f.listen, "listen", "127.0.0.1:7460", "serve shards on this address")
			f.identity.add(flags)
			f.identity.addAgent(flags)
			f.signs.add(flags)
			flags.BoolVar(&f.believe, "believe-epochs", false,
				"obey a shard's processes under epochs that no authority granted")
			flags.DurationVar(&f.grace, "grace", process.DefaultGrace,
				"how long a process has after SIGTERM before it gets SIGKILL")
		},
		Run: f.run,
	}
}

func (f *processes) run(ctx context.Context, w World) (err error) {
	counts := process.NewCounts(w.Output)
	who, err := f.identity.open(ctx, w, identity.Provider, counts.ReloadFailed)
	if err != nil {
		return err
	}
	if f.signs.key == "" && f.identity.agent == "" && !f.believe {
		return badValue("--authority-key", "missing", "nobody says which grants count",
			"--agent, or the public key of the authority, or --believe-epochs where there is none")
	}
	authority, err := f.signs.authority(w, who)
	if err != nil {
		return err
	}
	profiles, err := f.readProfiles(w)
	if err != nil {
		return err
	}
	if f.grace <= 0 {
		return badValue("--grace", f.grace.String(), "it is no time to wait", "a duration such as 10s")
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", f.listen)
	if err != nil {
		return errcode.Wrap(err, errcode.AddressUnusable, "address", f.listen, "flag", "--listen", "problem",
			errcode.Network(err))
	}
	defer listener.Close()
	lock, err := process.Lock(w.Within(f.data), w.Locks)
	if err != nil {
		return f.worded(err)
	}
	defer lock.Close() // of a provider that is not opened
	marks, err := f.marks(w, authority, profiles)
	if err != nil {
		return f.worded(err)
	}
	defer func() { err = errors.Join(err, marks.Close()) }()
	p, err := process.Open(process.Config{Dir: w.Within(f.data), Profiles: profiles, Grace: f.grace, Lock: lock, Log: w.Log})
	if err != nil {
		return f.worded(err)
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	metrics, err := w.Metrics()
	if err != nil {
		return err
	}
	if metrics != nil {
		defer metrics.Close()
	}
	run := process.RunConfig{Listener: listener, Metrics: metrics, Marks: marks, Authority: authority, Counts: counts,
		Output: w.Output, Service: w.Service}
	if who != nil {
		run.Source, run.Follow = who.source, who.follow
	}
	err = p.Run(ctx, run)
	if errors.Is(err, internalprovider.ErrNotLoopback) {
		return badValue("--listen", f.listen, "without TLS it is served on a loopback address alone",
			"127.0.0.1:PORT, or a certificate")
	}
	return err
}

// worded words what is wrong with the provider's folder, or its profiles.
func (f *processes) worded(err error) error {
	if errors.Is(err, durable.ErrLocked) || errors.Is(err, fences.ErrMissing) || errors.Is(err, fences.ErrCorrupt) ||
		errors.Is(err, fences.ErrOtherCluster) {
		return errcode.Wrap(err, errcode.BadSetting, "from", "--data", "key", "the folder", "problem", err.Error(),
			"page", "provider process --help")
	}
	if invalid, ok := errors.AsType[*provider.InvalidError](err); ok {
		return f.badProfiles(invalid, fmt.Sprintf("%s: the %s: %s", invalid.Machine, invalid.Field, invalid.Problem))
	}
	return err
}

func (f *processes) readProfiles(w World) ([]process.Profile, error) {
	if f.profiles == "" {
		return nil, badValue("--profiles", "missing", "nothing says which machines there are",
			"a YAML file of profiles")
	}
	text, err := durable.OS().ReadFile(w.Within(f.profiles), process.MaxProfilesFile)
	if err != nil {
		return nil, badValue("--profiles", f.profiles, err.Error(), "a YAML file of profiles")
	}
	profiles, err := process.ReadProfiles(text)
	if err != nil {
		return nil, f.badProfiles(err, err.Error())
	}
	return profiles, nil
}

// badProfiles says what is wrong with the file of profiles.
func (f *processes) badProfiles(err error, problem string) error {
	return errcode.Wrap(err, errcode.BadSetting, "from", f.profiles, "key", "a profile", "problem", problem,
		"page", "provider process --help")
}

// marks opens the marks of the fence. They begin empty in a folder that never had machines,
// and there alone.
func (f *processes) marks(w World, authority fence.Authority, profiles []process.Profile) (*fences.Ledger, error) {
	data := w.Within(f.data)
	dir := filepath.Join(data, "fence")
	_, err := os.Lstat(filepath.Join(data, "machines"))
	first := errors.Is(err, os.ErrNotExist)
	if err := durable.OS().MkdirAll(dir); err != nil {
		return nil, err
	}
	o := fence.LedgerOptions{Cluster: authority.Cluster, BelieveEpochs: f.believe, RequireDomain: authority.Key != nil}
	for _, p := range profiles {
		o.RequireDomain = o.RequireDomain && p.Domain != ""
	}
	if first {
		// One that was interrupted is there already, and is opened.
		if marks, err := fences.EnrolLedger(dir, o); !errors.Is(err, fences.ErrEnrolled) {
			return marks, err
		}
	}
	return fences.OpenLedger(dir, o)
}
