// Package server has the commands that run a coordinator and an agent.
package server

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/time/rate"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/agent"
	"github.com/fealty-io/fealty/internal/cli/client"
	"github.com/fealty-io/fealty/internal/cli/command"
	"github.com/fealty-io/fealty/internal/cli/program"
	"github.com/fealty-io/fealty/internal/cli/settings"
	"github.com/fealty-io/fealty/internal/cli/snapshot"
	"github.com/fealty-io/fealty/internal/cli/status"
	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/cli/term/message"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/platform/localsocket"
	"github.com/fealty-io/fealty/internal/workload/host"
	"github.com/fealty-io/fealty/mesh"
)

func Coordinator(c *program.CLI) *cobra.Command {
	cmd := c.Command(program.Command{
		Use: "coordinator", Short: "run a coordinator",
		Long: `Run a coordinator, until it gets SIGINT or SIGTERM. SIGHUP has it read its certificates, keys and the settings
of its log again.

A coordinator that starts for the first time has no manifest, and says how to give it one. It keeps the
cluster's secrets in memory; its folder holds the key by which it enrols and its admin socket.

With --store embedded it brings its store along, as a process that it starts and ends. In this release such a store is
for one coordinator: it replicates nothing.`,
		Sample: `  fealty coordinator --data /var/lib/fealty/coordinator --listen :7443 --advertise c1.example:7443
  fealty coordinator --config /etc/fealty/coordinator.yaml --print-config
  fealty coordinator --store 'postgres://fealty@db.example/fealty?sslmode=verify-full'
  fealty coordinator --store embedded
  fealty coordinator --tls-cert tls.crt --tls-key tls.key --tls-ca ca.crt`,
		Groups: []settings.Group{settings.Coordinator, settings.Process},
		GoesOn: program.Always,
		Run: func(ctx context.Context, cfg *settings.Values, _ []string) error {
			return Serve(ctx, c, cfg, func(ctx context.Context, r Running) error {
				return runCoordinator(ctx, c, cfg, r)
			})
		},
	})
	cmd.AddCommand(coordinatorForget(c))
	return cmd
}

func coordinatorForget(c *program.CLI) *cobra.Command {
	var reason string
	var dry, yes bool
	cmd := c.Command(program.Command{
		Use: "forget NAME", Short: "say that a coordinator is gone for good",
		Long: `End the finding on a coordinator that died and does not come back: what it said of itself is ` +
			`removed, and nobody
misses it. One that was stopped by SIGINT or SIGTERM is not missed, and needs no such word.

It takes nothing from that coordinator. The manifest says which coordinators may serve: where the machine was lost or
stolen, set a manifest that does not admit its key. One that runs after all says so again within a minute; one that
answers is not forgotten.`,
		Sample: `  fealty coordinator forget coordinator-3 --reason "its machine was scrapped"
  fealty coordinator forget coordinator-3 --dry-run`,
		Groups: []settings.Group{settings.Client}, Args: command.Exactly("NAME"),
		Run: func(ctx context.Context, cfg *settings.Values, args []string) error {
			return c.Ask(cfg, func(s *client.Services) error {
				if !dry {
					risk := "coordinator " + args[0] + " is not missed any more: nobody is told that it is down"
					if err := c.Confirm(ctx, "fealty coordinator forget", risk, yes); err != nil {
						return err
					}
				}
				resp, err := s.Peers.ForgetCoordinator(ctx,
					&fealtyv1.ForgetCoordinatorRequest{Name: args[0], Reason: reason, DryRun: dry})
				if err != nil {
					return err
				}
				if dry {
					c.Planned("coordinator " + args[0] + " would be forgotten")
				}
				now := c.Env.Now()
				if err := c.Print(program.ResultOf(message.Of(resp),
					func(p *term.Page) error {
						return p.Table(status.ReplicaTable(resp.GetForgotten(),
							now))
					})); err != nil || dry {
					return err
				}
				c.Say("forgotten; the manifest admits it still, until one is set that does not")
				return nil
			})
		},
	})
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the audit log")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	command.DryRun(cmd.Flags(), &dry)
	return cmd
}

func runCoordinator(ctx context.Context, c *program.CLI, cfg *settings.Values, r Running) (err error) {
	log := r.Log
	data := cfg.Path("data")
	socket := cfg.Find("admin_socket")
	if socket.Text == "" {
		socket = cfg.Find("data")
	}
	if err := localsocket.CheckPath(adminSocket(cfg)); err != nil {
		return errcode.Wrap(err, errcode.BadSetting, "from", socket.From, "key", socket.Key, "problem",
			strings.TrimPrefix(err.Error(), "mesh: "), "page", "explain config."+socket.Key)
	}
	var pin identity.KeyID
	if text := cfg.Text("root_pin"); text != "" {
		if pin, err = identity.ParseKeyID(text); err != nil {
			panic("server: root_pin was not checked: " + err.Error())
		}
	}
	st, name, err := OpenStore(ctx, c, cfg, r)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	listener, err := ListenOn(ctx, cfg.Text("listen"), "--listen")
	if err != nil {
		return err
	}
	defer listener.Close()
	metrics, err := ListenMetrics(ctx, cfg)
	if err != nil {
		return err
	}
	if metrics != nil {
		defer metrics.Close()
	}
	web, err := listenWeb(ctx, cfg)
	if err != nil {
		return err
	}
	if web != nil {
		defer web.Close()
	}
	lease, beat, err := leaseOf(cfg, name)
	if err != nil {
		return err
	}
	proxies, problem := settings.ParseNetworks(cfg.List("proxy"))
	if problem != "" {
		panic("server: proxy was not checked: " + problem)
	}
	Harden(log)
	co, err := coordinator.New(ctx, coordinator.Config{
		DataDir: data, Store: st, StoreName: name, StoreProcess: processOf(st), Listener: listener,
		Monitoring: coordinator.Monitoring{Listener: metrics, Output: r.Output,
			LivenessStore: cfg.Text("liveness_store") == "true"},
		Advertise: advertised(cfg.List("advertise"), listener.Addr()), AdminSocket: adminSocket(cfg),
		Publishing: coordinator.Publishing{Dir: cfg.Path("publish_dir"), Web: web, WebCert: cfg.Path("https_web_cert"),
			WebKey: cfg.Path("https_web_key")},
		Peers: cfg.List("peer"), Pin: pin,
		Timing: coordinator.Timing{MaxHeadAge: cfg.Duration("max_head_age"), Lease: lease, Beat: beat,
			SelfHealAfter: cfg.Duration("self_heal_after")},
		Rates: coordinator.Rates{PerSource: rate.Limit(cfg.Number("join_rate")), SourceBurst: cfg.Number("join_burst")},
		Gate: mesh.GateConfig{Proxies: proxies, HandshakeRate: cfg.Number("handshake_rate"),
			HandshakeBurst: cfg.Number("handshake_burst")},
		TLS: TLSPaths(cfg), Log: log, Reload: r.Reload, Machine: coordinator.Machine{Now: c.Env.Now, Locks: r.Locks},
		Release: c.Env.Release,
	})
	if err != nil {
		return err
	}
	if phase, reason := co.Phase(); phase == "uninitialized" {
		c.Say("this cluster has no manifest yet. Set the first one on this machine:")
		c.Say("  fealty manifest init --cluster ID --coordinator-key %s --keeper file:PATH --signer-key-out "+
			"signer.key --out manifest.yaml", co.EnrolmentKey())
		c.Say("  fealty manifest set manifest.yaml --socket %s", co.AdminSocket())
		c.Say("or from elsewhere with the token in %s: fealty manifest set manifest.yaml --setup-token-file FILE",
			filepath.Join(data, "setup-token"))
	} else if reason != "" {
		c.Say("the coordinator is not ready: %s", reason)
	}
	r.Service.Watch(co.ServiceHealth)
	return stopped(ctx, co.Run(ctx))
}

// aloneLease is the lease on a store that one process has for itself: it leads again
// at once after a restart, and an idle cluster need not write its disk all the time.
const aloneLease = 30 * time.Second

// leaseOf returns lease and beat of a coordinator on this store.
func leaseOf(cfg *settings.Values, name string) (lease, beat time.Duration, err error) {
	lease, beat = cfg.Duration("lease"), cfg.Duration("beat")
	if cfg.Find("lease").Rank == settings.FromDefault && (strings.HasPrefix(name, settings.SqliteScheme) ||
		strings.HasPrefix(name, settings.EmbeddedScheme)) {
		lease = aloneLease
	}
	if cfg.Find("beat").Rank == settings.FromDefault {
		beat = lease / 4
	}
	if beat > lease/3 {
		return 0, 0, command.ConflictingFlags("--beat", beat.String(),
			"at most a third of the lease, which is "+lease.String())
	}
	return lease, beat, nil
}

// Harden keeps the secrets of this process to itself, before there are any, and
// says where the system does not let it.
func Harden(log *slog.Logger) {
	if err := keyring.Harden(); err != nil {
		log.Warn("the secrets in memory may show in a core dump or to a tracer", "err", err)
	}
	if m := keyring.LockedMemory(); m.Problem != nil {
		log.Warn("the secrets in memory may be swapped out or show in a core dump", "locked_bytes", m.Locked,
			"unlocked_bytes", m.Unlocked, "err", m.Problem)
	} else {
		log.Info("memory for secrets is locked", "locked_bytes", m.Locked)
	}
}

// adminSocket is where the coordinator serves its local API.
func adminSocket(cfg *settings.Values) string {
	if path := cfg.Path("admin_socket"); path != "" {
		return path
	}
	return filepath.Join(cfg.Path("data"), "admin.sock")
}

// stopped returns nil for a process that was told to end and did.
func stopped(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// ListenOn listens on an address that a flag gives.
func ListenOn(ctx context.Context, address, flag string) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, errcode.Wrap(err, errcode.AddressUnusable, "address", address, "flag", flag, "problem",
			errcode.Network(err))
	}
	return l, nil
}

// ListenMetrics listens where metrics and probes are asked for; nil: they are not.
func ListenMetrics(ctx context.Context, cfg *settings.Values) (net.Listener, error) {
	if cfg.Text("metrics") == "" {
		return nil, nil
	}
	return ListenOn(ctx, cfg.Text("metrics"), "--metrics")
}

// listenWeb listens for verifiers of tokens; nil: it is not asked for.
func listenWeb(ctx context.Context, cfg *settings.Values) (net.Listener, error) {
	keys := []string{"https_web", "https_web_cert", "https_web_key"}
	var given, missing []string
	for _, key := range keys {
		if cfg.Text(key) == "" {
			missing = append(missing, key)
		} else {
			given = append(given, key)
		}
	}
	switch {
	case len(given) == 0:
		return nil, nil
	case len(missing) > 0:
		return nil, errcode.New(errcode.BadSetting, "from", cfg.Find(given[0]).From, "key", given[0], "problem",
			"the three of "+strings.Join(keys, ", ")+" are given together, and "+strings.Join(missing, " and ")+
				" is missing", "page", "explain config."+given[0])
	}
	return ListenOn(ctx, cfg.Text("https_web"), "--https-web")
}

// advertised returns the addresses to tell others. A listener on every address of
// the machine has none that can be dialed, and stands under the machine's name.
func advertised(named []string, l net.Addr) []string {
	tcp, ok := l.(*net.TCPAddr)
	if len(named) > 0 || !ok || !tcp.IP.IsUnspecified() {
		return named
	}
	host, err := os.Hostname()
	if err != nil {
		return nil
	}
	return []string{net.JoinHostPort(host, command.Itoa(int64(tcp.Port)))}
}

func Agent(c *program.CLI) *cobra.Command {
	return c.Command(program.Command{
		Use: "agent", Short: "run the agent of a member",
		Long: `Run the agent of a machine that has joined, until it gets SIGINT or SIGTERM. SIGHUP has it read its certificates
and the settings of its log again.

It keeps the machine certified and its verified snapshots up to date, and goes on by itself while no
coordinator can be reached. With a certificate of your own PKI it comes back without a person, however long
it was away.`,
		Sample: `  fealty agent --data /var/lib/fealty/agent
  fealty agent --data /var/lib/fealty/agent --tls-cert tls.crt --tls-key tls.key --tls-ca ca.crt`,
		Groups: []settings.Group{settings.Agent, settings.Certified, settings.Running, settings.Process},
		GoesOn: program.Always,
		Run: func(ctx context.Context, cfg *settings.Values, _ []string) error {
			return RunAgent(ctx, c, cfg.Path("data"), cfg)
		},
	})
}

// consumersOf reads who may use the socket for local services.
func consumersOf(cfg *settings.Values) ([]agent.Consumer, error) {
	var out []agent.Consumer
	for _, text := range cfg.List("consumers") {
		c, err := agent.ParseConsumer(text)
		if err != nil {
			return nil, errcode.Wrap(err, errcode.BadValue, "name", "consumers", "value", text, "problem", err.Error())
		}
		out = append(out, c)
	}
	return out, nil
}

// RunAgent runs the agent in dir, for fealty agent and for join --run.
func RunAgent(ctx context.Context, c *program.CLI, dir string, cfg *settings.Values) error {
	return Serve(ctx, c, cfg, func(ctx context.Context, r Running) error {
		return runAgent(ctx, c, dir, cfg, r)
	})
}

func runAgent(ctx context.Context, c *program.CLI, dir string, cfg *settings.Values, r Running) error {
	roots, err := snapshot.ReadMirrorRoots(c, cfg, r.Log)
	if err != nil {
		return err
	}
	r.Reload.Add(roots.Part())
	mirrors, open, err := snapshot.NamedMirrors(cfg, roots)
	if err != nil {
		return err
	}
	metrics, err := ListenMetrics(ctx, cfg)
	if err != nil {
		return err
	}
	if metrics != nil {
		defer metrics.Close()
	}
	var peers net.Listener
	if at := cfg.Text("peer_listen"); at != "" {
		if peers, err = ListenOn(ctx, at, "--peer-listen"); err != nil {
			return err
		}
		defer peers.Close()
	}
	consumers, err := consumersOf(cfg)
	if err != nil {
		return err
	}
	a, err := agent.Open(ctx, agent.Config{
		DataDir: dir, Sockets: agent.Sockets{Config: cfg.Path("config_socket"), Peers: peers,
			Workloads: cmp.Or(cfg.Path("workload_socket"), filepath.Join(dir, host.SocketName))},
		Consumers: consumers, Mirrors: mirrors, OpenMirror: open,
		MirrorEvery: cfg.Duration("snapshot_source_every"), Metrics: metrics, TLS: TLSPaths(cfg),
		OnChange: strings.Fields(cfg.Text("on_change")), Release: c.Env.Release, Now: c.Env.Now, Log: r.Log,
		Output: r.Output, Reload: r.Reload, Locks: r.Locks,
	})
	if err != nil {
		return err
	}
	r.Service.Watch(a.ServiceHealth)
	return stopped(ctx, a.Run(ctx))
}

// LeaveWithoutAgent ends the membership of the folder's identity, once somebody agreed, and returns whose it was. It
// fails where an agent runs on the folder.
func LeaveWithoutAgent(ctx context.Context, c *program.CLI, dir string, agree func(id string) error) (_ string,
	err error) {
	a, err := agent.Open(ctx, agent.Config{DataDir: dir, Release: c.Env.Release, Now: c.Env.Now,
		Log: slog.New(LogHandler(c, c.Env.Stderr, "text", slog.LevelError))})
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, a.Close()) }()
	m, err := a.Source().Current(ctx)
	if err != nil {
		return "", err
	}
	id := m.ID().String()
	c.Say("no agent runs on %s: leaving with the identity that is there", dir)
	if err := agree(id); err != nil {
		return "", err
	}
	return id, a.Leave(ctx)
}

func TLSPaths(cfg *settings.Values) credential.FilePaths {
	return credential.FilePaths{Cert: cfg.Path("tls_cert"), Key: cfg.Path("tls_key"), CA: cfg.Path("tls_ca")}
}
