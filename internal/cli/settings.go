package cli

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/agent"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/leadership"
	"github.com/fealty-io/fealty/internal/output"
	"github.com/fealty-io/fealty/internal/slip"
)

// group is a set of commands that a setting is for.
type group string

const (
	everywhere    group = "every command"
	client        group = "commands that ask a coordinator"
	ofCoordinator group = "coordinator"
	ofAgent       group = "agent, join, leave"
	process       group = "coordinator, agent"
	running       group = "agent, join" // of a member
	candidate     group = "join, login"
	certified     group = "join, login, agent"
	ofJoin        group = "join"
	ofLogin       group = "login"
	ofDev         group = "dev"
	ofSnapshot    group = "snapshot"
	ofGet         group = "snapshot get"
	ofRestore     group = "backup restore"

	// Parts of client that other commands need too.
	addresses  group = "coordinators"
	identities group = "identity"
	timeouts   group = "timeout"
)

// form is what a setting's value looks like.
type form string

const (
	textForm      form = "text"
	pathForm      form = "path"
	addressForm   form = "host:port"
	addressesForm form = "list of host:port"
	consumersForm form = "list of USER[:SCOPE+SCOPE]"
	durationForm  form = "duration"
	choiceForm    form = "choice"
	storeForm     form = "store"
	hexForm       form = "64 hex digits"
	secretForm    form = "secret"
	mirrorsForm   form = "list of folders and https URLs"
	peersForm     form = "list of host:port and dns:name:port"
	networksForm  form = "list of addresses and networks"
	numberForm    form = "number"
	switchForm    form = "true or false"
)

// A setting is one thing that can be configured. This table is the only place
// that knows it: flag, variable, file, help and reference come from it.
type setting struct {
	// key is its name in a file; the flag and the variable derive from it.
	key    string
	short  string // one letter
	groups []group
	form   form
	choice []string      // for choiceForm
	least  time.Duration // for durationForm; zero: none
	most   time.Duration // for durationForm; zero: none
	init   string        // the default, as it would be written
	help   string        // one line, lower case
	zero   string        // what it means not to set it
	more   string        // for its page

	envOnly  bool // neither flag nor file: a secret would stay in both
	flagless bool // no flag
	fileless bool // not in a file
}

func (s *setting) flag() string { return strings.ReplaceAll(s.key, "_", "-") }
func (s *setting) env() string  { return "FEALTY_" + strings.ToUpper(s.key) }

func (s *setting) hasFlag() bool { return !s.envOnly && !s.flagless }
func (s *setting) inFile() bool  { return !s.envOnly && !s.fileless }
func (s *setting) list() bool {
	return s.form == addressesForm || s.form == mirrorsForm || s.form == consumersForm || s.form == peersForm || s.form == networksForm
}

func (s *setting) of(groups []group) bool {
	return slices.ContainsFunc(s.groups, func(g group) bool { return slices.Contains(groups, g) })
}

// settings returns the table, in the order in which people read it.
func settings() []*setting {
	nodeKinds := []string{string(identity.Data), string(identity.Witness), string(identity.Shard), string(identity.Operator), string(identity.Provider)}
	return []*setting{
		{key: "output", short: "o", groups: []group{everywhere}, form: choiceForm, choice: output.Formats(), init: string(output.Table),
			help: "how data and errors are printed",
			zero: "table",
			more: "wide is table with more columns, and name the bare names of what a command lists. Objects of json and yaml carry schema fealty.cli/v1, and their names do not change within it."},
		{key: "config", groups: []group{everywhere}, form: pathForm, fileless: true,
			help: "read settings from this YAML file",
			zero: "no file is read",
			more: "Keys are those of this page. An unknown key is an error with its line. One file may serve several commands: each takes what it knows of."},

		{key: "socket", groups: []group{client}, form: pathForm,
			help: "ask the coordinator on this machine, by its admin socket",
			zero: "none",
			more: "The socket is DATA/admin.sock of the coordinator. It works for the coordinator's own user and for root, also when nobody has an identity yet."},
		{key: "coordinator", groups: []group{client, addresses}, form: addressesForm,
			help: "ask these coordinators, the first one that answers",
			zero: "those that the identity or the token names",
			more: "Several are separated by commas. There is no default coordinator: a command never guesses which cluster it is for. With a join token they are asked instead of those in the token, and remembered; whoever does not hold the root key that the token pins is refused."},
		{key: "identity", groups: []group{client, identities}, form: pathForm,
			help: "the folder of the identity that fealty login wrote",
			zero: "that of the context",
			more: "It holds a short-lived key and certificate, the root to believe, and where the coordinators are."},
		{key: "context", groups: []group{client, identities}, form: textForm,
			help: "the name of the login to ask with, among those of this user",
			zero: "the one of the last fealty login, or of fealty context use",
			more: "A login without --identity is kept under this name in fealty/logins of the user's configuration folder; without a name, under that of the cluster. What is named (a socket, a coordinator's identity, a context) counts before the current context, and that before the local cluster in ./.fealty-dev."},
		{key: "timeout", groups: []group{client, timeouts}, form: durationForm, init: "30s",
			help: "how long one request may take",
			zero: "30s",
			more: "If the time runs out after a change was sent, the outcome is unknown, and the exit status says so (11)."},

		{key: "data", groups: []group{ofCoordinator}, form: pathForm, init: "/var/lib/fealty/coordinator",
			help: "the coordinator's folder: enrolment key, setup token, admin socket",
			zero: "/var/lib/fealty/coordinator",
			more: "It is made with mode 0700 and belongs to one process. It holds no secret of the cluster, only the key by which this coordinator enrols."},
		{key: "store", groups: []group{ofCoordinator, ofRestore}, form: storeForm,
			help: "the cluster's durable store, sqlite:PATH, postgres://HOST/DATABASE or etcd://HOST:PORT/PREFIX",
			zero: "sqlite:DATA/store/fealty.db",
			more: "sqlite keeps a file on a local disk. postgres is a database of PostgreSQL 13 or later; its URL takes the parameters of libpq, such as sslmode=verify-full and sslrootcert. A password belongs into PGPASSFILE or into this variable: a flag shows it to every user of the machine. It is printed nowhere. etcd is version 3.4 or later; its URL takes ca, cert and key, files for TLS, server-name, tls=off, password-file for the user in it (or the password stands in FEALTY_ETCD_PASSWORD), and compaction=everything."},
		{key: "listen", groups: []group{ofCoordinator}, form: addressForm, init: ":7443",
			help: "serve members, people and joins on this address",
			zero: ":7443, on every address of this machine"},
		{key: "advertise", groups: []group{ofCoordinator}, form: addressesForm,
			help: "the addresses that members and tokens are told",
			zero: "the address of listen; if that is every address, this machine's host name with its port"},
		{key: "peer", groups: []group{ofCoordinator}, form: peersForm,
			help: "ask these coordinators too for the cluster's secrets; dns:NAME:PORT is every address of NAME",
			zero: "those that said in the store where they are",
			more: "Several are separated by commas; at most 64. Coordinators find each other through the store: this is for those that cannot be reached at the address that they advertise. Where a peer is says nothing about who it is: it has to prove a key that the manifest names."},
		{key: "proxy", groups: []group{ofCoordinator}, form: networksForm,
			help: "who says by the PROXY protocol, version 2, for whom it opens a connection",
			zero: "nobody does: an address is that of who connects",
			more: "Addresses and networks such as 10.0.0.0/24, separated by commas: those of a load balancer that passes TCP through. From these addresses the header is required, from all others it is an error. Without it all who come through one balancer are one source, and share its limits. Name nobody else: who is named here can claim every address."},
		{key: "join_rate", groups: []group{ofCoordinator}, form: numberForm, init: "10",
			help: "the joins that one source address begins in a second",
			zero: "10",
			more: "A source is an IPv4 address or a /64 of IPv6. Many machines behind one NAT are one source: raise it, with join_burst, before they all join at once. From 1 to 1000000; above 1000 it is also what everybody together may begin."},
		{key: "join_burst", groups: []group{ofCoordinator}, form: numberForm, init: "50",
			help: "the joins that one source address may begin at once",
			zero: "50",
			more: "From 1 to 1000000; above 2000 it is also what everybody together may begin at once."},
		{key: "handshake_rate", groups: []group{ofCoordinator}, form: numberForm, init: "500",
			help: "the TLS handshakes that one network begins in a second",
			zero: "500",
			more: "A network is an IPv4 /24 or a /48 of IPv6, members and strangers together. Who comes beyond it waits for its turn, for up to 3 s. It has to be above join_rate: a join is a connection. From 1 to 1000000."},
		{key: "handshake_burst", groups: []group{ofCoordinator}, form: numberForm, init: "1000",
			help: "the TLS handshakes that one network may begin at once",
			zero: "1000",
			more: "From 1 to 1000000."},
		{key: "root_pin", groups: []group{ofCoordinator}, form: hexForm,
			help: "refuse every cluster but the one with this SHA-256 of the root key",
			zero: "the store says which cluster this is",
			more: "fealty status shows it as root pin. Whoever controls the store could otherwise make a coordinator that starts without the seed one of another cluster. After a reseed the pin is that of the new root."},
		{key: "admin_socket", groups: []group{ofCoordinator}, form: pathForm,
			help: "the path of the local admin socket",
			zero: "admin.sock in the coordinator's folder",
			more: "A path of at most 107 bytes: the system allows no longer ones."},

		{key: "max_head_age", groups: []group{ofCoordinator}, form: durationForm, init: "1h", least: coordinator.MinMaxHeadAge, most: coordinator.MaxMaxHeadAge,
			help: "go on for so long without the store",
			zero: "1h",
			more: "It counts from when the store last confirmed the head of the history. Until then the coordinator is ready, serves reads, and certifies the recorded keys of members again; it admits nobody and changes nothing. From 1m to 4h."},
		{key: "lease", groups: []group{ofCoordinator}, form: durationForm, init: "1200ms", least: leadership.MinLease, most: leadership.MaxLease,
			help: "lead for so long without a word to the store",
			zero: "1200ms; with sqlite 30s, as nobody else is there to lead",
			more: "A leader that was killed or cut off is followed by another one after its lease; one that stops hands over at once. What a leader writes is refused by the store when another one has taken over, however long or short this is."},
		{key: "beat", groups: []group{ofCoordinator}, form: durationForm, init: "300ms", least: 10 * time.Millisecond, most: leadership.MaxLease / 3,
			help: "tell the store in this pause that this coordinator leads",
			zero: "a quarter of the lease",
			more: "At most a third of the lease. Each is one small write of the store. Who does not lead looks in the same pause."},
		{key: "self_heal_after", groups: []group{ofCoordinator}, form: durationForm, init: "10s", least: coordinator.MinSelfHealAfter, most: coordinator.MaxSelfHealAfter,
			help: "make a new mesh CA key after looking for so long for a peer that has that of the head",
			zero: "10s",
			more: "It is for a coordinator that holds the seed, or whose keeper opens it, and not the mesh CA key. Making a new one begins a new authority epoch, and every member renews; so give peers that are slow to start, or behind a slow network, the time to answer. From 1s to 1h."},
		{key: "liveness_store", groups: []group{ofCoordinator}, form: switchForm, init: "false",
			help: "fail the liveness probe while the store cannot be read",
			zero: "an outage of the store does not count for liveness",
			more: "Whoever restarts the coordinator for that takes its copy of the seed, so set it only where a keeper in the manifest brings the seed back. A coordinator in recovery mode stays alive."},

		{key: "publish_dir", groups: []group{ofCoordinator}, form: pathForm,
			help: "write what is published to this folder too, for a file or HTTPS server",
			zero: "nothing is written",
			more: "The folder holds the config of every organization: who can read it learns all of that, and no secret. Its group may read it; a folder with its set-group-ID bit set hands its group down. A folder belongs to one cluster; replicas that share one take turns."},

		{key: "data", groups: []group{ofAgent, ofSnapshot}, form: pathForm, init: "/var/lib/fealty/agent",
			help: "the node's folder: identity, verified snapshots, local socket",
			zero: "/var/lib/fealty/agent",
			more: "It is made with mode 0700 and belongs to one process."},

		{key: "on_change", groups: []group{running}, form: textForm,
			help: "run this program, with its arguments, after the content in use of a scope changed",
			zero: "nothing is run",
			more: "Program and arguments are separated by spaces; there is no shell and no quoting. It is told what changed in FEALTY_SCOPE, FEALTY_EVENT, FEALTY_FILE, FEALTY_CONFIG_VERSION and others, see [the node's store](node-store.md). It has 30 seconds; its exit status is the verdict on a snapshot that is on trial."},
		{key: "snapshot_source", groups: []group{running}, form: mirrorsForm,
			help: "read what coordinators publish from these mirrors too, while none of them is heard",
			zero: "nothing but coordinators is asked",
			more: "A mirror is a folder that --publish-dir of a coordinator wrote, or a copy of it, or an https URL under which such a folder is served. Several are separated by commas. Whatever they serve is verified as what a coordinator sends: a mirror can keep news back, and do nothing else. No proxy of the environment is used, and no credentials are sent."},
		{key: "snapshot_source_every", groups: []group{running}, form: durationForm, init: "30s", least: agent.MinMirrorEvery, most: agent.MaxMirrorEvery,
			help: "how often mirrors are looked at while no coordinator is heard",
			zero: "30s",
			more: "A look reads some 200 bytes of a mirror without news. It is a fifth longer or shorter at random, so that a fleet does not ask as one. From 5s to 15m."},
		{key: "snapshot_ca", groups: []group{running, ofGet}, form: pathForm,
			help: "the CA certificates that the HTTPS servers of mirrors lead to, in PEM",
			zero: "those of the system",
			more: "It is read once, when the agent starts."},
		{key: "config_socket", groups: []group{running}, form: pathForm,
			help: "serve config to the services of this machine on this socket",
			zero: "config.sock in the data directory, which only the agent's own user and root can enter"},
		{key: "consumers", groups: []group{running}, form: consumersForm,
			help: "local users and groups that may read config there, such as app or @web:route_policy+peer_directory",
			zero: "only the agent's own user and root may",
			more: "The kernel says whose process it is: its user, or its primary group. With scopes it sees these alone. The socket has to be in a folder that consumers can enter."},

		{key: "data", groups: []group{ofDev}, form: pathForm, fileless: true,
			help: "keep the cluster in this folder, and find it again there",
			zero: "a temporary folder that goes with the cluster"},

		{key: "metrics", groups: []group{process}, form: addressForm,
			help: "serve metrics and probes on this address, over plain HTTP",
			zero: "none",
			more: "It carries no control authority and tells no secrets. /metrics is in Prometheus' format; probes are under /probe/."},
		{key: "log_format", groups: []group{process}, form: choiceForm, choice: []string{"text", "json"}, init: "text",
			help: "how the log is written, on standard error",
			zero: "text; on a terminal with colour"},
		{key: "log_level", groups: []group{process}, form: choiceForm, choice: []string{"debug", "info", "warn", "error"}, init: "info",
			help: "the least level that is logged",
			zero: "info"},

		{key: "join_token", groups: []group{candidate}, form: secretForm, envOnly: true,
			help: "the join token",
			zero: "the token is an argument, or in a file",
			more: "It is a secret: a flag would show it to every user of the machine, and a configuration file would keep it."},
		{key: "token_file", groups: []group{candidate}, form: pathForm,
			help: "read the join token from this file; - is standard input",
			zero: "the token is an argument, or in FEALTY_JOIN_TOKEN"},
		{key: "key", groups: []group{candidate}, form: pathForm,
			help: "prove a key that the manifest names, from this PEM file, instead of a token",
			zero: "a token is proven",
			more: "The file is PKCS #8 with an Ed25519 key, and readable by its owner alone. The cluster, the pin and a coordinator have to be named too: a token would hold them."},
		{key: "tls_cert", groups: []group{certified, ofCoordinator}, form: pathForm,
			help: "prove a certificate of your own PKI, from this PEM file",
			zero: "another proof is used: a token, or a coordinator's enrolment key alone",
			more: "The file holds the certificate, for client authentication, and its issuers below the root. The manifest names roots and subjects. It is given together with tls_key and tls_ca, or none of the three is. A joining command needs cluster, pin and a coordinator too; an agent comes back by it when its own certificate ended while it was away; a coordinator proves it to other coordinators, owners and who verifies it, beside its enrolment key."},
		{key: "tls_key", groups: []group{certified, ofCoordinator}, form: pathForm,
			help: "the private key of the certificate in --tls-cert",
			zero: "another proof is used",
			more: "PKCS #8, SEC 1 or PKCS #1 in PEM, not encrypted: ECDSA P-256 or P-384, Ed25519, or RSA of 2048 bits and more."},
		{key: "tls_ca", groups: []group{certified, ofCoordinator}, form: pathForm,
			help: "the CA certificates that the one in --tls-cert leads to",
			zero: "another proof is used",
			more: "It is verified before it is proven, so that a wrong file shows here."},
		{key: "cluster", groups: []group{candidate}, form: textForm,
			help: "the cluster to join, with --key or --tls-cert",
			zero: "that of the token"},
		{key: "pin", groups: []group{candidate}, form: hexForm,
			help: "the SHA-256 of the cluster's root key, with --key or --tls-cert",
			zero: "that of the token",
			more: "fealty status shows it as root pin."},
		{key: "kind", groups: []group{ofJoin}, form: choiceForm, choice: nodeKinds, init: string(identity.Data),
			help: "what the machine joins as",
			zero: "data"},
		{key: "kind", groups: []group{ofLogin}, form: choiceForm, choice: []string{string(identity.Admin), string(identity.Readonly)}, init: string(identity.Admin),
			help: "what the person logs in as",
			zero: "admin"},
	}
}

// settingsOf returns the settings of groups.
func settingsOf(groups ...group) []*setting {
	var out []*setting
	for _, s := range settings() {
		if s.of(groups) {
			out = append(out, s)
		}
	}
	return out
}

// addSettings makes flags of the settings of groups.
func addSettings(flags *pflag.FlagSet, groups ...group) {
	for _, s := range settingsOf(groups...) {
		if !s.hasFlag() {
			continue
		}
		help := s.help
		if s.form == choiceForm {
			help += ": " + strings.Join(s.choice, ", ")
		}
		f := flags.VarPF(&flagValue{setting: s, text: s.init}, s.flag(), s.short, help)
		if s.form == switchForm {
			f.NoOptDefVal = "true"
		}
	}
}

// flagValue holds a setting that came as a flag. It is checked as it is parsed.
type flagValue struct {
	setting *setting
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
	return map[form]string{
		textForm: "text", pathForm: "path", addressForm: "host:port", addressesForm: "addresses", consumersForm: "consumers", durationForm: "duration",
		choiceForm: "word", storeForm: "address", hexForm: "hex", secretForm: "text", mirrorsForm: "place", peersForm: "addresses", switchForm: "bool", networksForm: "networks", numberForm: "number",
	}[v.setting.form]
}

func (v *flagValue) Set(text string) error {
	if problem := v.setting.check(text); problem != "" {
		return badFlag{v.setting, problem}
	}
	if v.set && v.setting.list() {
		text = v.text + "," + text
	}
	v.text, v.set = text, true
	return nil
}

// badFlag says what is wrong with the value of a flag.
type badFlag struct {
	setting *setting
	problem string
}

func (e badFlag) Error() string { return e.problem }

// want says what a setting takes.
func (s *setting) want() string {
	switch s.form {
	case choiceForm:
		return "one of " + strings.Join(s.choice, ", ")
	case durationForm:
		return "a duration such as 30s, 10m, 2h or 7d"
	case addressForm:
		return "host:port, such as 10.0.0.1:7443"
	case addressesForm:
		return "host:port, several of them separated by commas"
	case consumersForm:
		return "USER or @GROUP, with :SCOPE+SCOPE to name what it may see; several of them separated by commas"
	case storeForm:
		return "sqlite:PATH, postgres://USER@HOST:PORT/DATABASE or etcd://USER@HOST:PORT/PREFIX"
	case hexForm:
		return "64 hex digits"
	case peersForm:
		return "host:port or dns:name:port, several of them separated by commas"
	case mirrorsForm:
		return "https://HOST/PATH or a folder, several of them separated by commas"
	case networksForm:
		return "an address or a network, such as 10.0.0.1 or 10.0.0.0/24; several of them separated by commas"
	case numberForm:
		return "a number"
	case pathForm:
		return "a path"
	case switchForm:
		return "true or false"
	}
	return "a text"
}

// shown is a value as people and their logs may see it.
func (s *setting) shown(text string) string {
	switch {
	case text == "":
		return ""
	case s.form == secretForm:
		return explain.Redact(text)
	case s.form == storeForm:
		return shownStore(text)
	}
	return text
}

// check says what is wrong with a value, or "".
func (s *setting) check(text string) string {
	switch s.form {
	case choiceForm:
		if !slices.Contains(s.choice, text) {
			if g := slip.Guess(text, s.choice); g != "" {
				return g
			}
			return "it is none of the words that it can be"
		}
	case durationForm:
		d, err := parseDuration(text)
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
	case numberForm:
		if n, err := strconv.ParseUint(text, 10, 32); err != nil || n < 1 || n > maxNumber {
			return fmt.Sprintf("it is not a number from 1 to %d", maxNumber)
		}
	case networksForm:
		_, problem := parseNetworks(strings.Split(text, ","))
		return problem
	case switchForm:
		if text != "true" && text != "false" {
			return "it is neither true nor false"
		}
	case addressForm:
		return checkAddress(text, true)
	case addressesForm:
		for _, a := range strings.Split(text, ",") {
			if problem := checkAddress(strings.TrimSpace(a), false); problem != "" {
				return problem
			}
		}
	case peersForm:
		for _, p := range strings.Split(text, ",") {
			if problem := coordinator.CheckPeer(strings.TrimSpace(p)); problem != "" {
				return problem
			}
		}
	case mirrorsForm:
		for _, place := range strings.Split(text, ",") {
			if problem := checkMirror(strings.TrimSpace(place)); problem != "" {
				return problem
			}
		}
	case consumersForm:
		for _, item := range strings.Split(text, ",") {
			if _, err := agent.ParseConsumer(strings.TrimSpace(item)); err != nil {
				return err.Error()
			}
		}
	case storeForm:
		return checkStore(text)
	case hexForm:
		if _, err := identity.ParseKeyID(text); err != nil {
			return "it is not 64 lower-case hex digits"
		}
	case textForm, pathForm:
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

// parseNetworks reads addresses and networks, and says what is wrong with one, or "".
func parseNetworks(texts []string) (networks []netip.Prefix, problem string) {
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
			return nil, fmt.Sprintf("%.64q is an address with the length of a network: write %s", text, network.Masked())
		}
		networks = append(networks, network)
	}
	return networks, ""
}

// parseDuration reads what time.ParseDuration reads, and days: 7d, 1d12h.
func parseDuration(text string) (time.Duration, error) {
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
