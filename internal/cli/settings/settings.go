package settings

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/agent"
	"github.com/fealty-io/fealty/internal/agent/fetch"
	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/platform/humanize"
	"github.com/fealty-io/fealty/internal/store/leader"
)

// Group is a set of commands that a setting is for.
type Group string

// The groups, by the commands whose settings are in them.
const (
	Everywhere    Group = "every command"
	Client        Group = "commands that ask a coordinator"
	Coordinator   Group = "coordinator"
	Agent         Group = "agent, join, leave"
	Process       Group = "coordinator, agent"
	Running       Group = "agent, join" // of a member
	Candidate     Group = "join, login"
	Certified     Group = "join, login, agent"
	Join          Group = "join"
	Login         Group = "login"
	Dev           Group = "dev"
	Snapshot      Group = "snapshot"
	SnapshotGet   Group = "snapshot get"
	BackupRestore Group = "backup restore"

	// Parts of client that other commands need too.
	Addresses  Group = "coordinators"
	Identities Group = "identity"
	Timeouts   Group = "timeout"
)

// Form is what a setting's value looks like.
type Form string

// The forms.
const (
	TextForm      Form = "text"
	PathForm      Form = "path"
	AddressForm   Form = "host:port"
	AddressesForm Form = "list of host:port"
	ConsumersForm Form = "list of USER[:SCOPE+SCOPE]"
	DurationForm  Form = "duration"
	ChoiceForm    Form = "choice"
	StoreForm     Form = "store"
	HexForm       Form = "64 hex digits"
	SecretForm    Form = "secret"
	MirrorsForm   Form = "list of folders and https URLs"
	PeersForm     Form = "list of host:port and dns:name:port"
	NetworksForm  Form = "list of addresses and networks"
	NumberForm    Form = "number"
	SwitchForm    Form = "true or false"
)

// A Setting is one thing that can be configured. This table is the only place
// that knows it: flag, variable, file, help and reference come from it.
type Setting struct {
	// Key is its name in a file; the flag and the variable derive from it.
	Key    string
	Short  string // one letter
	Groups []Group
	Form   Form
	Choice []string      // for choiceForm
	least  time.Duration // for durationForm; zero: none
	most   time.Duration // for durationForm; zero: none
	Init   string        // the default, as it would be written
	Help   string        // one line, lower case
	Zero   string        // what it means not to set it
	More   string        // for its page

	was      string // its key of before, which still works and is shown nowhere; blank: none
	EnvOnly  bool   // neither flag nor file: a secret would stay in both
	flagless bool   // no flag
	fileless bool   // not in a file
}

// Flag and Env return the names of its flag, without dashes, and of its variable.
func (s *Setting) Flag() string { return flagOf(s.Key) }
func (s *Setting) Env() string  { return envOf(s.Key) }

// FlagNow returns the name of today of a flag that had another one before.
func FlagNow(name string) string {
	for _, s := range table() {
		if s.was != "" && name == flagOf(s.was) {
			return s.Flag()
		}
	}
	return name
}

func flagOf(key string) string { return strings.ReplaceAll(key, "_", "-") }
func envOf(key string) string  { return "FEALTY_" + strings.ToUpper(key) }

// HasFlag and InFile report whether it can be given so.
func (s *Setting) HasFlag() bool { return !s.EnvOnly && !s.flagless }
func (s *Setting) InFile() bool  { return !s.EnvOnly && !s.fileless }
func (s *Setting) list() bool {
	return s.Form == AddressesForm || s.Form == MirrorsForm || s.Form == ConsumersForm || s.Form == PeersForm ||
		s.Form == NetworksForm
}

func (s *Setting) of(groups []Group) bool {
	return slices.ContainsFunc(s.Groups, func(g Group) bool { return slices.Contains(groups, g) })
}

// All returns the table, in the order in which people read it. Its settings are everybody's: nobody changes them.
func All() []*Setting { return slices.Clone(table()) }

// table is made once: each command looks for its settings in it, and so does the completion of each.
var table = sync.OnceValue(func() []*Setting {
	nodeKinds := []string{string(identity.Data), string(identity.Witness), string(identity.Shard),
		string(identity.Operator), string(identity.Provider)}
	return []*Setting{
		{Key: "output", Short: "o", Groups: []Group{Everywhere}, Form: ChoiceForm, Choice: term.Formats(),
			Init: string(term.TableFormat),
			Help: "how data and errors are printed",
			Zero: "table",
			More: "wide is table with more columns, and name the bare names of what a command lists. Objects of json " +
				"and yaml carry schema fealty.cli/v1, and their names do not change within it."},
		{Key: "config", Groups: []Group{Everywhere}, Form: PathForm, fileless: true,
			Help: "read settings from this YAML file",
			Zero: "no file is read",
			More: "Keys are those of this page. An unknown key is an error with its line. One file may serve several " +
				"commands: each takes what it knows of."},

		{Key: "socket", Groups: []Group{Client}, Form: PathForm,
			Help: "ask the coordinator on this machine, by its admin socket",
			Zero: "none",
			More: "The socket is DATA/admin.sock of the coordinator. It works for the coordinator's own user and for " +
				"root, also when nobody has an identity yet."},
		{Key: "coordinator", Groups: []Group{Client, Addresses}, Form: AddressesForm,
			Help: "ask these coordinators, the first one that answers",
			Zero: "those that the identity or the token names",
			More: "Several are separated by commas. There is no default coordinator: a command never guesses which " +
				"cluster it is for. With a join token they are asked instead of those in the token, and remembered; " +
				"whoever does not hold the root key that the token pins is refused."},
		{Key: "identity", Groups: []Group{Client, Identities}, Form: PathForm,
			Help: "the folder of the identity that fealty login wrote",
			Zero: "that of the context",
			More: "It holds a short-lived key and certificate, the root to believe, and where the coordinators are."},
		{Key: "context", Groups: []Group{Client, Identities}, Form: TextForm,
			Help: "the name of the login to ask with, among those of this user",
			Zero: "the one of the last fealty login, or of fealty context use",
			More: "A login without --identity is kept under this name in fealty/logins of the user's configuration " +
				"folder; without a name, under that of the cluster. A named place (a socket, a coordinator's " +
				"identity, a context) counts before the current context, and that before the local cluster in " +
				"./.fealty-dev."},
		{Key: "timeout", Groups: []Group{Client, Timeouts}, Form: DurationForm, Init: "30s",
			Help: "how long one request may take",
			Zero: "30s",
			More: "If the time runs out after a change was sent, the outcome is unknown, and the exit status says so " +
				"(11)."},

		{Key: "data", Groups: []Group{Coordinator}, Form: PathForm, Init: "/var/lib/fealty/coordinator",
			Help: "the coordinator's folder: enrolment key, setup token, admin socket",
			Zero: "/var/lib/fealty/coordinator",
			More: "It is made with mode 0700 and belongs to one process. It holds no secret of the cluster, only the " +
				"key by which this coordinator enrols."},
		{Key: "store", Groups: []Group{Coordinator, BackupRestore}, Form: StoreForm,
			Help: "the cluster's durable store, sqlite:PATH, postgres://HOST/DATABASE, etcd://HOST:PORT/PREFIX or embedded",
			Zero: "sqlite:DATA/store/fealty.db",
			More: "sqlite keeps a file on a local disk. postgres is a database of PostgreSQL 13 or later; its URL " +
				"takes the parameters of libpq, such as sslmode=verify-full and sslrootcert. A password belongs into " +
				"PGPASSFILE or into this variable: a flag shows it to every user of the machine. It is printed " +
				"nowhere. etcd is version 3.4 or later; its URL takes ca, cert and key, files for TLS, server-name, " +
				"tls=off, password-file for the user in it (or the password stands in FEALTY_ETCD_PASSWORD), and " +
				"compaction=everything. embedded is an etcd server that this coordinator starts and ends, with its data in " +
				"DATA/store/embedded or, as embedded:PATH, in that folder. In this release it is for one coordinator, as " +
				"sqlite is: it replicates nothing."},
		{Key: "store_program", Groups: []Group{Coordinator, BackupRestore}, Form: PathForm,
			Help: "the program that keeps an embedded store",
			Zero: "fealty-store, beside this program",
			More: "It has to be of the same release."},
		{Key: "listen", Groups: []Group{Coordinator}, Form: AddressForm, Init: ":7443",
			Help: "serve members, people and joins on this address",
			Zero: ":7443, on every address of this machine"},
		{Key: "advertise", Groups: []Group{Coordinator}, Form: AddressesForm,
			Help: "the addresses that members and tokens are told",
			Zero: "the address of listen; if that is every address, this machine's host name with its port"},
		{Key: "peer", Groups: []Group{Coordinator}, Form: PeersForm,
			Help: "ask these coordinators too for the cluster's secrets; dns:NAME:PORT is every address of NAME",
			Zero: "those that said in the store where they are",
			More: "Several are separated by commas; at most 64. Coordinators find each other through the store: this " +
				"is for those that cannot be reached at the address that they advertise. Where a peer is says " +
				"nothing about who it is: it has to prove a key that the manifest names."},
		{Key: "proxy", Groups: []Group{Coordinator}, Form: NetworksForm,
			Help: "who says by the PROXY protocol, version 2, for whom it opens a connection",
			Zero: "nobody does: an address is that of who connects",
			More: "Addresses and networks such as 10.0.0.0/24, separated by commas: those of a load balancer that " +
				"passes TCP through. From these addresses the header is required, from all others it is an error. " +
				"Without it all who come through one balancer are one source, and share its limits. Name nobody " +
				"else: who is named here can claim every address."},
		{Key: "join_rate", Groups: []Group{Coordinator}, Form: NumberForm, Init: "10",
			Help: "the joins that one source address begins in a second",
			Zero: "10",
			More: "A source is an IPv4 address or a /64 of IPv6. Many machines behind one NAT are one source: raise " +
				"it, with join_burst, before they all join at once. From 1 to 1000000; above 1000 it is also what " +
				"everybody together may begin."},
		{Key: "join_burst", Groups: []Group{Coordinator}, Form: NumberForm, Init: "50",
			Help: "the joins that one source address may begin at once",
			Zero: "50",
			More: "From 1 to 1000000; above 2000 it is also what everybody together may begin at once."},
		{Key: "handshake_rate", Groups: []Group{Coordinator}, Form: NumberForm, Init: "500",
			Help: "the TLS handshakes that one network begins in a second",
			Zero: "500",
			More: "A network is an IPv4 /24 or a /48 of IPv6, members and strangers together. A client beyond it " +
				"waits for its turn, for up to 3 s. It has to be above join_rate: a join is a connection. From 1 to " +
				"1000000."},
		{Key: "handshake_burst", Groups: []Group{Coordinator}, Form: NumberForm, Init: "1000",
			Help: "the TLS handshakes that one network may begin at once",
			Zero: "1000",
			More: "From 1 to 1000000."},
		{Key: "root_pin", Groups: []Group{Coordinator}, Form: HexForm,
			Help: "refuse every cluster but the one with this SHA-256 of the root key",
			Zero: "the store says which cluster this is",
			More: "fealty status -o wide shows it as root pin. A thief of the store could otherwise make a coordinator " +
				"that starts without the seed one of another cluster. After a reseed the pin is that of the new root."},
		{Key: "admin_socket", Groups: []Group{Coordinator}, Form: PathForm,
			Help: "the path of the local admin socket",
			Zero: "admin.sock in the coordinator's folder",
			More: "A path of at most 107 bytes: the system allows no longer ones."},

		{Key: "max_head_age", Groups: []Group{Coordinator}, Form: DurationForm, Init: "1h",
			least: coordinator.MinMaxHeadAge, most: coordinator.MaxMaxHeadAge,
			Help: "go on for so long without the store",
			Zero: "1h",
			More: "It counts from when the store last confirmed the head of the history. Until then the coordinator " +
				"is ready, serves reads, and certifies the recorded keys of members again; it admits nobody and " +
				"changes nothing. From 1m to 4h."},
		{Key: "lease", Groups: []Group{Coordinator}, Form: DurationForm, Init: "1200ms", least: leader.MinLease,
			most: leader.MaxLease,
			Help: "lead for so long without a word to the store",
			Zero: "1200ms; with sqlite 30s, as nobody else is there to lead",
			More: "A leader that was killed or cut off is followed by another one after its lease; one that stops " +
				"hands over at once. The store refuses a leader's writes when another one has taken over, " +
				"however long or short this is."},
		{Key: "beat", Groups: []Group{Coordinator}, Form: DurationForm, Init: "300ms", least: 10 * time.Millisecond,
			most: leader.MaxLease / 3,
			Help: "tell the store in this pause that this coordinator leads",
			Zero: "a quarter of the lease",
			More: "At most a third of the lease. Each is one small write of the store. A coordinator that does not " +
				"lead looks in the same pause."},
		{Key: "self_heal_after", Groups: []Group{Coordinator}, Form: DurationForm, Init: "10s",
			least: coordinator.MinSelfHealAfter, most: coordinator.MaxSelfHealAfter,
			Help: "make a new mesh CA key after looking for so long for a peer that has that of the head",
			Zero: "10s",
			More: "It is for a coordinator that holds the seed, or whose keeper opens it, and not the mesh CA key. " +
				"Making a new one begins a new authority epoch, and every member renews; so give peers that are slow " +
				"to start, or behind a slow network, the time to answer. From 1s to 1h."},
		{Key: "liveness_store", Groups: []Group{Coordinator}, Form: SwitchForm, Init: "false",
			Help: "fail the liveness probe while the store cannot be read",
			Zero: "an outage of the store does not count for liveness",
			More: "A restart of the coordinator for that takes its copy of the seed, so set it only where a " +
				"keeper in the manifest brings the seed back. A coordinator in recovery mode stays alive."},

		{Key: "publish_dir", Groups: []Group{Coordinator}, Form: PathForm,
			Help: "write what is published to this folder too, for a file or HTTPS server",
			Zero: "nothing is written",
			More: "The folder holds the config of every organization: who can read it learns all of that, and no " +
				"secret. Its group may read it; a folder with its set-group-ID bit set hands its group down. A " +
				"folder belongs to one cluster; replicas that share one take turns."},

		{Key: "https_web", Groups: []Group{Coordinator}, Form: AddressForm,
			Help: "serve the documents by which others verify tokens of workloads on this address, over HTTPS",
			Zero: "none",
			More: "They are those of fealty trust export, below the issuer that the manifest names, and hold public " +
				"keys alone. Nothing else is there, and nobody has to prove anything. It is given together with " +
				"https_web_cert and https_web_key."},
		{Key: "https_web_cert", Groups: []Group{Coordinator}, Form: PathForm,
			Help: "the certificate of the web for --https-web, with its issuers, in this PEM file",
			Zero: "nothing is served to the web",
			More: "It is one that verifiers believe for the host of the issuer, of a public or a corporate CA. A " +
				"change of the files is adopted within seconds; one that cannot be used is told in the log, and " +
				"leaves the last good pair in use. One that has ended does not keep a coordinator from starting."},
		{Key: "https_web_key", Groups: []Group{Coordinator}, Form: PathForm,
			Help: "the private key of the certificate in --https-web-cert",
			Zero: "nothing is served to the web",
			More: "PKCS #8, SEC 1 or PKCS #1 in PEM, not encrypted."},

		{Key: "data", Groups: []Group{Agent, Snapshot}, Form: PathForm, Init: "/var/lib/fealty/agent",
			Help: "the node's folder: identity, verified snapshots, local socket",
			Zero: "/var/lib/fealty/agent",
			More: "It is made with mode 0700 and belongs to one process."},

		{Key: "on_change", Groups: []Group{Running}, Form: TextForm,
			Help: "run this program, with its arguments, after the content in use of a scope changed",
			Zero: "nothing is run",
			More: "Program and arguments are separated by spaces; there is no shell and no quoting. It is told what " +
				"changed in FEALTY_SCOPE, FEALTY_EVENT, FEALTY_FILE, FEALTY_CONFIG_VERSION and others, see [the " +
				"node's store](node-store.md). It has 30 seconds; its exit status is the verdict on a snapshot that " +
				"is on trial."},
		{Key: "snapshot_source", Groups: []Group{Running}, Form: MirrorsForm,
			Help: "read what coordinators publish from these mirrors too, while none of them is heard",
			Zero: "nothing but coordinators is asked",
			More: "A mirror is a folder that --publish-dir of a coordinator wrote, or a copy of it, or an https URL " +
				"under which such a folder is served. Several are separated by commas. Everything that they " +
				"serve is verified as what a coordinator sends: a mirror can keep news back, and do nothing else. " +
				"No proxy of the environment is used, and no credentials are sent."},
		{Key: "snapshot_source_every", Groups: []Group{Running}, Form: DurationForm, Init: "30s",
			least: fetch.MinMirrorEvery, most: fetch.MaxMirrorEvery,
			Help: "how often mirrors are looked at while no coordinator is heard",
			Zero: "30s",
			More: "A look reads some 200 bytes of a mirror without news. It is a fifth longer or shorter at random, " +
				"so that a fleet does not ask as one. From 5s to 15m."},
		{Key: "snapshot_ca", Groups: []Group{Running, SnapshotGet}, Form: PathForm,
			Help: "the CA certificates that the HTTPS servers of mirrors lead to, in PEM",
			Zero: "those of the system",
			More: "An agent reads it again for each connection."},
		{Key: "peer_listen", Groups: []Group{Running}, Form: AddressForm,
			Help: "give other members of the cluster, on this address, what is signed for them as well as for " +
				"this node",
			Zero: "they are given nothing",
			More: "It is for the members that have this one in the bootstrap list of their peer_directory, at the " +
				"addresses that its peer record says, and hear no coordinator. They get the trust bundle, and those " +
				"with the same roles and organizations what is signed for their group; nothing that is for one node " +
				"alone. Connections take a certificate of the cluster."},
		{Key: "config_socket", Groups: []Group{Running}, Form: PathForm,
			Help: "serve config to the services of this machine on this socket",
			Zero: "config.sock in the data directory, which only the agent's own user and root can enter"},
		{Key: "workload_socket", Groups: []Group{Running}, Form: PathForm,
			Help: "serve the SPIFFE Workload API to the processes of this machine on this socket",
			Zero: "spiffe.sock in the data directory, which only the agent's own user and root can enter",
			More: "Programs that use SPIFFE are told of it by SPIFFE_ENDPOINT_SOCKET=unix:PATH. The kernel says " +
				"which " +
				"process calls, and a service's record which processes are its workload. The socket has to be in a " +
				"folder that they can enter."},
		{Key: "consumers", Groups: []Group{Running}, Form: ConsumersForm,
			Help: "local users and groups that may read config there, such as app or @web:route_policy+peer_directory",
			Zero: "only the agent's own user and root may",
			More: "The kernel says whose process it is: its user, or its primary group. With scopes it sees these " +
				"alone. The socket has to be in a folder that consumers can enter."},

		{Key: "data", Groups: []Group{Dev}, Form: PathForm, fileless: true,
			Help: "keep the cluster in this folder, and find it again there",
			Zero: "a temporary folder that goes with the cluster"},

		{Key: "metrics", Groups: []Group{Process}, Form: AddressForm,
			Help: "serve metrics and probes on this address, over plain HTTP",
			Zero: "none",
			More: "It carries no control authority and tells no secrets. /metrics is in Prometheus' format; probes " +
				"are under /probe/."},
		{Key: "log_format", Groups: []Group{Process}, Form: ChoiceForm, Choice: []string{"text", "json"}, Init: "text",
			Help: "how the log is written, on standard error",
			Zero: "text; on a terminal with colour"},
		{Key: "log_level", Groups: []Group{Process}, Form: ChoiceForm, Choice: []string{"debug", "info", "warn",
			"error"}, Init: "info",
			Help: "the least level that is logged",
			Zero: "info"},

		{Key: "join_token", Groups: []Group{Candidate}, Form: SecretForm, EnvOnly: true,
			Help: "the join token",
			Zero: "the token is an argument, or in a file",
			More: "It is a secret: a flag would show it to every user of the machine, and a configuration file would " +
				"keep it."},
		{Key: "token_file", Groups: []Group{Candidate}, Form: PathForm,
			Help: "read the join token from this file; - is standard input",
			Zero: "the token is an argument, or in FEALTY_JOIN_TOKEN"},
		{Key: "key", Groups: []Group{Candidate}, Form: PathForm,
			Help: "prove a key that the manifest names, from this PEM file, instead of a token",
			Zero: "a token is proven",
			More: "The file is PKCS #8 with an Ed25519 key, and readable by its owner alone. The cluster, the pin " +
				"and a coordinator have to be named too: a token would hold them."},
		{Key: "tls_cert", Groups: []Group{Certified, Coordinator}, Form: PathForm,
			Help: "prove a certificate of your own PKI, from this PEM file",
			Zero: "another proof is used: a token, or a coordinator's enrolment key alone",
			More: "The file holds the certificate, for client authentication, and its issuers below the root. The " +
				"manifest names roots and subjects. It is given together with tls_key and tls_ca, or none of the " +
				"three is. A joining command needs cluster, pin and a coordinator too; an agent comes back by it " +
				"when its own certificate ended while it was away; a coordinator proves it to other coordinators, " +
				"owners and who verifies it, beside its enrolment key."},
		{Key: "tls_key", Groups: []Group{Certified, Coordinator}, Form: PathForm,
			Help: "the private key of the certificate in --tls-cert",
			Zero: "another proof is used",
			More: "PKCS #8, SEC 1 or PKCS #1 in PEM, not encrypted: ECDSA P-256 or P-384, Ed25519, or RSA of 2048 " +
				"bits and more."},
		{Key: "tls_ca", Groups: []Group{Certified, Coordinator}, Form: PathForm,
			Help: "the CA certificates that the one in --tls-cert leads to",
			Zero: "another proof is used",
			More: "It is verified before it is proven, so that a wrong file shows here."},
		{Key: "cluster", Groups: []Group{Candidate}, Form: TextForm,
			Help: "the cluster to join, with --key or --tls-cert",
			Zero: "that of the token"},
		{Key: "root_pin", was: "pin", Groups: []Group{Candidate}, Form: HexForm,
			Help: "the SHA-256 of the cluster's root key, with --key or --tls-cert",
			Zero: "that of the token",
			More: "fealty status -o wide shows it as root pin."},
		{Key: "kind", Groups: []Group{Join}, Form: ChoiceForm, Choice: nodeKinds, Init: string(identity.Data),
			Help: "what the machine joins as",
			Zero: "data"},
		{Key: "kind", Groups: []Group{Login}, Form: ChoiceForm, Choice: []string{string(identity.Admin),
			string(identity.Readonly)}, Init: string(identity.Admin),
			Help: "what the person logs in as",
			Zero: "admin"},
	}
})

// Of returns the settings of groups.
func Of(groups ...Group) []*Setting {
	var out []*Setting
	for _, s := range table() {
		if s.of(groups) {
			out = append(out, s)
		}
	}
	return out
}

// Add makes flags of the settings of groups.
func Add(flags *pflag.FlagSet, groups ...Group) {
	for _, s := range Of(groups...) {
		if !s.HasFlag() {
			continue
		}
		help := s.Help
		if s.Form == ChoiceForm {
			help += ": " + strings.Join(s.Choice, ", ")
		}
		f := flags.VarPF(&flagValue{setting: s, text: s.Init}, s.Flag(), s.Short, help)
		if s.Form == SwitchForm {
			f.NoOptDefVal = "true"
		}
	}
}

// flagValue holds a setting that came as a flag. It is checked as it is parsed.
type flagValue struct {
	setting *Setting
	text    string
	set     bool
}

func (v *flagValue) String() string {
	if v.setting == nil {
		return "" // cobra asks a zero value what it is
	}
	return v.text
}

func (v *flagValue) Type() string {
	return map[Form]string{
		TextForm: "text", PathForm: "path", AddressForm: "host:port", AddressesForm: "addresses",
		ConsumersForm: "consumers", DurationForm: "duration", ChoiceForm: "word", StoreForm: "address",
		HexForm: "hex", SecretForm: "text", MirrorsForm: "place", PeersForm: "addresses", SwitchForm: "bool",
		NetworksForm: "networks", NumberForm: "number",
	}[v.setting.Form]
}

func (v *flagValue) Set(text string) error {
	if problem := v.setting.Check(text); problem != "" {
		return BadFlag{v.setting, problem}
	}
	if v.set && v.setting.list() {
		text = v.text + "," + text
	}
	v.text, v.set = text, true
	return nil
}

// BadFlag says what is wrong with the value of a flag.
type BadFlag struct {
	Setting *Setting
	Problem string
}

func (e BadFlag) Error() string { return e.Problem }

// Want says what a setting takes.
func (s *Setting) Want() string {
	switch s.Form {
	case ChoiceForm:
		return "one of " + strings.Join(s.Choice, ", ")
	case DurationForm:
		return "a duration such as 30s, 10m, 2h or 7d"
	case AddressForm:
		return "host:port, such as 10.0.0.1:7443 or [fd00::1]:7443"
	case AddressesForm:
		return "host:port, such as c1.example:7443 or [fd00::1]:7443, several of them separated by commas"
	case ConsumersForm:
		return "USER or @GROUP, with :SCOPE+SCOPE to name what it may see; several of them separated by commas"
	case StoreForm:
		return "sqlite:PATH, postgres://USER@HOST:PORT/DATABASE, etcd://USER@HOST:PORT/PREFIX, embedded or embedded:PATH"
	case HexForm:
		return "64 hex digits, the root pin that fealty status -o wide shows at a coordinator of the cluster"
	case PeersForm:
		return "host:port or dns:name:port, several of them separated by commas"
	case MirrorsForm:
		return "https://HOST/PATH or a folder, several of them separated by commas"
	case NetworksForm:
		return "an address or a network, such as 10.0.0.1 or 10.0.0.0/24; several of them separated by commas"
	case NumberForm:
		return "a number"
	case PathForm:
		return "a path"
	case SwitchForm:
		return "true or false"
	}
	return "a text"
}

// Shown is a value as people and their logs may see it.
func (s *Setting) Shown(text string) string {
	switch {
	case text == "":
		return ""
	case s.Form == SecretForm:
		return errcode.Redact(text)
	case s.Form == StoreForm:
		return ShownStore(text)
	}
	return text
}

// Check says what is wrong with a value, or "".
func (s *Setting) Check(text string) string {
	switch s.Form {
	case ChoiceForm:
		if !slices.Contains(s.Choice, text) {
			if g := humanize.Suggest(text, s.Choice); g != "" {
				return g
			}
			return "it is none of the words that it can be"
		}
	case DurationForm:
		d, err := ParseDuration(text)
		switch {
		case err != nil:
			return err.Error()
		case d <= 0:
			return "it is not above 0"
		case d < s.least:
			return "it is below " + s.least.String()
		case s.most > 0 && d > s.most:
			return "it is above " + s.most.String()
		}
	case NumberForm:
		if n, err := strconv.ParseUint(text, 10, 32); err != nil || n < 1 || n > maxNumber {
			return fmt.Sprintf("it is not a number from 1 to %d", maxNumber)
		}
	case NetworksForm:
		_, problem := ParseNetworks(strings.Split(text, ","))
		return problem
	case SwitchForm:
		if text != "true" && text != "false" {
			return "it is neither true nor false"
		}
	case AddressForm:
		return checkAddress(text, true)
	case AddressesForm:
		for _, a := range strings.Split(text, ",") {
			if problem := checkAddress(strings.TrimSpace(a), false); problem != "" {
				return problem
			}
		}
	case PeersForm:
		for _, p := range strings.Split(text, ",") {
			if problem := coordinator.CheckPeer(strings.TrimSpace(p)); problem != "" {
				return problem
			}
		}
	case MirrorsForm:
		for _, place := range strings.Split(text, ",") {
			if problem := CheckMirror(strings.TrimSpace(place)); problem != "" {
				return problem
			}
		}
	case ConsumersForm:
		for _, item := range strings.Split(text, ",") {
			if _, err := agent.ParseConsumer(strings.TrimSpace(item)); err != nil {
				return err.Error()
			}
		}
	case StoreForm:
		return CheckStore(text)
	case HexForm:
		if _, err := identity.ParseKeyID(text); err != nil {
			return "it is not 64 lower-case hex digits"
		}
	case TextForm, PathForm:
		if strings.TrimSpace(text) == "" {
			return "it is blank"
		}
	}
	return ""
}

// checkAddress says what is wrong with host:port, or "". A listener's host may be
// blank, for every address.
func checkAddress(text string, listener bool) string {
	host, port, err := net.SplitHostPort(text)
	switch {
	case err != nil:
		return "it is not host:port"
	case host == "" && !listener:
		return "it names no host"
	case strings.ContainsAny(host, " /\\,"):
		return "its host is not one"
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 && !listener {
		return fmt.Sprintf("port %q is not a number from 1 to 65535", port)
	}
	return ""
}

// maxNumber is the highest number that a setting takes.
const maxNumber = 1_000_000

// ParseNetworks reads addresses and networks, and says what is wrong with one, or "".
func ParseNetworks(texts []string) (networks []netip.Prefix, problem string) {
	for _, text := range texts {
		text = strings.TrimSpace(text)
		if ip, err := netip.ParseAddr(text); err == nil && ip.Zone() == "" {
			ip = ip.Unmap()
			networks = append(networks, netip.PrefixFrom(ip, ip.BitLen()))
			continue
		}
		network, err := netip.ParsePrefix(text)
		switch {
		case err != nil || network.Addr().Is4In6():
			return nil, fmt.Sprintf("%.64q is neither an address nor a network", text)
		case network != network.Masked():
			return nil, fmt.Sprintf("%.64q is an address with the length of a network: write %s", text,
				network.Masked())
		}
		networks = append(networks, network)
	}
	return networks, ""
}

// ParseDuration reads what time.ParseDuration reads, and days: 7d, 1d12h.
func ParseDuration(text string) (time.Duration, error) {
	days, rest, ok := strings.Cut(text, "d")
	if !ok {
		d, err := time.ParseDuration(text)
		if err != nil {
			return 0, fmt.Errorf("it is not a duration")
		}
		return d, nil
	}
	n, err := strconv.ParseUint(days, 10, 32)
	if err != nil || n > 36500 {
		return 0, fmt.Errorf("it is not a duration")
	}
	total := time.Duration(n) * 24 * time.Hour
	if rest != "" {
		d, err := time.ParseDuration(rest)
		if err != nil || d < 0 {
			return 0, fmt.Errorf("it is not a duration")
		}
		total += d
	}
	return total, nil
}

// Page returns the page of a setting, as Markdown.
func (s *Setting) Page() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# config.%s (%s)\n\n%s.\n\n", s.Key, s.Groups[0], strings.ToUpper(s.Help[:1])+s.Help[1:])
	if s.HasFlag() {
		fmt.Fprintf(&b, "    flag         --%s\n", s.Flag())
	}
	fmt.Fprintf(&b, "    environment  %s\n", s.Env())
	if s.InFile() {
		fmt.Fprintf(&b, "    file         %s:\n", s.Key)
	}
	fmt.Fprintf(&b, "    takes        %s\n    not set      %s\n", s.Want(), s.Zero)
	if s.More != "" {
		fmt.Fprintf(&b, "\n%s\n", s.More)
	}
	return b.String()
}
