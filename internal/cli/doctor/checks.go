// Package doctor checks whether a machine and its cluster are set up as they should be, and says
// what to do where they are not.
//
// The table of [All] is what fealty check looks at: the command, explain and the reference are made of it.
package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/cli/command"
	"github.com/fealty-io/fealty/internal/cli/settings"
	"github.com/fealty-io/fealty/internal/cli/summary"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/platform/humanize"
	"github.com/fealty-io/fealty/internal/store/embedded"
	"github.com/fealty-io/fealty/internal/store/engine"
	"github.com/fealty-io/fealty/internal/store/sqlite"
)

// Groups are the groups of checks, in the order that they are run in.
func Groups() []string { return []string{"pre", "node", "coordinator", "store"} }

// Check is one thing that can be looked at.
type Check struct {
	ID    string // "<group>.<name>": stable, and never given a new meaning
	Title string // what is so when it is ok
	About string // for its page
	Needs []string
	look  func(*Environment) Result
}

// Group is the group of a check: the first word of its id.
func (k Check) Group() string { return k.ID[:strings.IndexByte(k.ID, '.')] }

// Environment is what checks look at.
type Environment struct {
	Now                 time.Time
	Data, Listen, Store string                             // blank: not given
	StoreProgram        string                             // the path of that of an embedded store
	Free                func(path string) (uint64, error)  // as [FreeSpace]
	Limit               func(which string) (uint64, error) // as [ResourceLimit]
	Dial                func(address string) error         // over TCP, and closes what it opened
	// Server looks at the servers of the store; ErrNotAsked: none are given.
	Server     func() (engine.Report, error)
	FileSystem func(dir string) error // nil: locks hold there
	// Keepers returns the owners of a manifest that are keepers; ErrNotAsked: none
	// is given.
	Keepers func() ([]manifest.Owner, error)
	// Status and node ask; both may be asked often and answer the same. An error
	// that matches ErrNotAsked: nobody said whom.
	Status func() (*fealtyv1.GetStatusResponse, error)
	Node   func() (*fealtyv1.GetNodeResponse, error)
}

// ErrNotAsked is matched by what was not looked at, because no setting says where it is.
var ErrNotAsked = errors.New("nothing says where to look")

// Outcome is the result of a check in one word.
type Outcome string

// The outcomes.
const (
	OK         Outcome = "ok"
	Warning    Outcome = "warning"
	Failed     Outcome = "failed"
	Unknown    Outcome = "unknown"
	NotAsked   Outcome = "not asked"
	NotChecked Outcome = "not checked"
)

// Result is what a check found, and what to do about it.
type Result struct {
	Outcome Outcome
	Text    string
	Do      string
}

func fine(format string, args ...any) Result { return Result{OK, fmt.Sprintf(format, args...), ""} }

// Bounds that checks compare with.
const (
	freeLow      = 1 << 30   // a warning below
	freeNone     = 128 << 20 // a failure below
	filesLow     = 4096      // file descriptors; a warning below
	memlockLow   = 64 << 10  // bytes that can be locked; a warning below
	clockLow     = 5 * time.Second
	clockNone    = 30 * time.Second // certificates are backdated by as much
	aloneLow     = time.Hour
	headLow      = 30 * time.Second // the readiness probe says "degraded" from here on
	headNone     = time.Hour        // and fails from here on
	rootLow      = 90 * 24 * time.Hour
	meshLow      = time.Hour
	latencyLow   = 100 * time.Millisecond
	latencyNone  = 2 * time.Second
	bansLowShare = 2 // a warning from one half on
)

// All returns the table. Those that a check needs come before it.
func All() []Check {
	return []Check{
		{"pre.data", "the data folder can be used", "The folder of --data is there or can be made, this user can " +
			"write in it, and nobody else can read it: it holds keys.", nil, lookData},
		{"pre.space", "the disk has room", "The disk of the data folder has free space. A coordinator or agent whose " +
			"disk is full keeps what it has, and takes nothing new.", []string{"pre.data"}, lookSpace},
		{"pre.address", "the address is free", "The address of --listen can be listened on.", nil, lookAddress},
		{"pre.files", "enough files can be open", "A coordinator holds a connection for each member. Each takes a " +
			"file descriptor.", nil, lookFiles},
		{"pre.memlock", "secrets can be locked in memory", "Pages with secrets are locked, so that they never reach " +
			"a swap file. The limit on that must have room for them.", nil, lookMemlock},
		{"pre.store", "the store can be reached", "For --store postgres://… and etcd://… a server accepts " +
			"connections. For a file, its folder can be used. For an embedded one, its program fealty-store is there.", nil,
			lookStoreURL},
		{"pre.keepers", "the keepers of the manifest can be used",
			"Each keeper of --manifest is looked at, and neither run nor made: its path is absolute; the program of " +
				"exec: is one that only root and this user can change, with all folders and links to it; the key " +
				"file of " +
				"file: is this user's alone, or can be made, and nobody else can write its folder. Make this check " +
				"as " +
				"the user of the coordinator, on its machine.", nil, lookKeeperFiles},
		{"pre.clock", "the clock agrees with a coordinator",
			"Certificates and tokens are compared with the clock. A machine whose clock is wrong is refused, or " +
				"believes what has ended.", nil, lookClock},

		{"node.agent", "the agent answers", "The agent of --data answers on its socket, and the paths of its other sockets lead to it.", nil, lookAgent},
		{"node.identity", "the identity is in date", "The certificate of the node is valid. One that ended is " +
			"renewed by itself, where a coordinator is in reach within " +
			"rejoin_grace.", []string{"node.agent"}, lookIdentity},
		{"node.snapshots", "verified snapshots are in use",
			"The node holds a trust bundle and a node bootstrap that it verified, and has refused nothing " +
				"since.", []string{"node.agent"}, lookSnapshots},
		{"node.contact", "a coordinator is in reach", "The agent holds a stream to a coordinator. Without one it " +
			"works on what it verified, and gets no changes.", []string{"node.identity"}, lookContact},
		{"node.autonomy", "the node can work alone for a while",
			"How long the node works without a coordinator: until its certificate or a snapshot that its services " +
				"live by ends, or degraded.max is over since the newest word that the cluster " +
				"signed.", []string{"node.identity", "node.snapshots"}, lookAutonomy},
		{"node.log", "the agent's log is kept", "The agent's standard error takes what it logs. It works on where it is " +
			"closed or full, or nobody reads it, and what it logs is lost then.", []string{"node.agent"}, lookLog},
		{"node.clock", "the clock agrees with a coordinator", "As pre.clock, on a node that runs. Without an " +
			"answer of a coordinator nothing is known of the clock, and node.contact says that it is missing.", nil,
			lookNodeClock},

		{"coordinator.reach", "a coordinator answers", "A coordinator that the settings name answers.", nil, lookReach},
		{"coordinator.phase", "the coordinator is ready", "The coordinator has a manifest in force and its secrets " +
			"in memory. In recovery it waits for the seed: from a keeper, or from its " +
			"owners.", []string{"coordinator.reach"}, lookPhase},
		{"coordinator.head", "the store confirms the head",
			"How long ago the store last showed that the head of the history, and so the manifest in force, is the " +
				"newest. It is asked every few seconds. A coordinator that cannot ask works under what it knows, and " +
				"decides nothing new.", []string{"coordinator.phase"}, lookHead},
		{"coordinator.leader", "a coordinator leads", "One coordinator compiles what members are told. A change of " +
			"the leader takes less than ten seconds.", []string{"coordinator.phase"}, lookLeader},
		{"coordinator.peers", "the other coordinators answer",
			"Every coordinator asks the others every few seconds. One that does not answer for ten seconds is " +
				"missed, unless it was stopped in order or an admin said that it is gone for " +
				"good.", []string{"coordinator.phase"}, lookPeers},
		{"coordinator.keepers", "the keepers open the seed",
			"Each keeper of the manifest opens the seed on the machine of a coordinator, each coordinator has one " +
				"that does, and none failed to seal. A coordinator without one is not back by itself after all of " +
				"them " +
				"stopped.", []string{"coordinator.phase"}, lookKeepers},
		{"coordinator.root", "the root certificate lasts", "The root certificate does not end soon. It lives for " +
			"decades unless the seed is changed.", []string{"coordinator.phase"}, lookRoot},
		{"coordinator.mesh-ca", "the mesh CA certificate lasts",
			"The certificate that signs identities is renewed by the coordinator long before it " +
				"ends.", []string{"coordinator.phase"}, lookMesh},
		{"coordinator.baseline", "the resilience baseline is met",
			"As many data members are connected, and do not drain, as the manifest asks for: baseline.data, 3 where " +
				"it says nothing.", []string{"coordinator.phase"}, lookBaseline},
		{"coordinator.members", "all members report and have certificates",
			"No member has an expired certificate or has been silent for two minutes. A coordinator that just " +
				"started waits that long.", []string{"coordinator.phase"}, lookMembers},
		{"coordinator.findings", "nothing else needs attention",
			"This one looks for all that fealty status names under *needs attention* and no other check looks for. " +
				"Every coordinator tells what any of them can find.", []string{"coordinator.phase"}, lookFindings},
		{"coordinator.bans", "the list of bans has room", "The trust bundle lists banned keys while a certificate " +
			"over them can be valid. When it is nearly full removals are put off, so that bans still " +
			"fit.", []string{"coordinator.phase"}, lookBans},

		{"store.server", "the server of the store is fit for it",
			"The server of --store, or of FEALTY_STORE, lets this user in and takes writes. PostgreSQL is no " +
				"replica; of several hosts one is a primary. The members of etcd agree on a leader, and take " +
				"transactions as large as etcd's defaults; the prefix holds a store, or nothing.", nil, lookServer},
		{"store.settings", "the server keeps what it confirms",
			"PostgreSQL: with fsync off or full_page_writes off a crash of the server's machine loses acknowledged " +
				"commits or damages the database. Fealty raises synchronous_commit in its own sessions where it is " +
				"off " +
				"or local. Replication that is asynchronous loses commits in a failover, and a connection without " +
				"verified TLS can be altered. etcd: a member that does not answer, alarms, a database that is nearly " +
				"full or that nobody compacts, and connections without TLS or without a " +
				"login.", []string{"store.server"}, lookServerSettings},
		{"store.schema", "the schema fits this release", "The newest migration of the PostgreSQL database, or the " +
			"schema of the store in etcd, is the newest that this release knows. A coordinator migrates when it " +
			"starts; one that is older than the schema refuses.", []string{"store.server"}, lookSchema},
		{"store.lock", "the SQLite file is held by its coordinator",
			"One process has the file of an embedded store open, and holds a lock beside it. A coordinator that runs " +
				"and does not hold it does not keep another one out.", nil, lookLock},
		{"store.file-system", "the SQLite file is on a local disk",
			"On a network file system locks and shared memory do not hold, and SQLite loses " +
				"data.", nil, lookFileSystem},
		{"store.latency", "the store answers fast", "How long the coordinator's store takes to list the members. " +
			"Every join and renewal waits for the store several times.", []string{"coordinator.phase"}, lookLatency},
		{"store.writes", "the store takes writes", "The store of the coordinators takes what they write, and holds " +
			"what was acknowledged: it is not full, read-only or without its file, and did not go " +
			"back.", []string{"coordinator.phase"}, lookWrites},
		{"store.space", "the store's disk has room", "Free space where the embedded store is, if it is on this " +
			"machine.", nil, lookStoreSpace},
	}
}

func lookData(s *Environment) Result {
	if s.Data == "" {
		return Result{NotAsked, "no --data is given", ""}
	}
	info, err := os.Stat(s.Data)
	if errors.Is(err, fs.ErrNotExist) {
		parent := filepath.Dir(s.Data)
		for {
			if info, err = os.Stat(parent); !errors.Is(err, fs.ErrNotExist) || parent == filepath.Dir(parent) {
				break
			}
			parent = filepath.Dir(parent)
		}
		switch {
		case err != nil:
			return Result{Failed, err.Error(), "name another folder with --data"}
		case !info.IsDir():
			return Result{Failed, parent + " is no folder", "name another folder with --data"}
		}
		if err := writable(parent); err != nil {
			return Result{Failed, "it is not there, and cannot be made: " + err.Error(), "install -d -m 0700 -o USER " +
				s.Data}
		}
		return fine("%s is not there yet, and can be made", s.Data)
	}
	switch {
	case err != nil:
		return Result{Failed, err.Error(), "name another folder with --data"}
	case !info.IsDir():
		return Result{Failed, s.Data + " is no folder", "name another folder with --data"}
	}
	if err := writable(s.Data); err != nil {
		return Result{Failed, err.Error(), "chown USER " + s.Data}
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return Result{Warning, fmt.Sprintf("%s has mode %04o: others can look into it", s.Data, mode), "chmod 0700 " +
			s.Data}
	}
	return fine("%s can be written, by its owner alone", s.Data)
}

// writable makes a file in dir and takes it away.
func writable(dir string) error {
	f, err := os.CreateTemp(dir, ".fealty-check-*")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

func lookSpace(s *Environment) Result { return space(s.Free, s.Data) }

func space(freeAt func(path string) (uint64, error), path string) Result {
	for {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) || path == filepath.Dir(path) {
			break
		}
		path = filepath.Dir(path)
	}
	free, err := freeAt(path)
	text := humanize.Size(free) + " are free at " + path
	switch {
	case err != nil:
		return Result{Unknown, "free space at " + path + " cannot be read: " + err.Error(), "df " + path}
	case free < freeNone:
		return Result{Failed, text, "make room: df " + path}
	case free < freeLow:
		return Result{Warning, text, "make room: df " + path}
	}
	return fine("%s", text)
}

func lookAddress(s *Environment) Result {
	if s.Listen == "" {
		return Result{NotAsked, "no --listen is given", ""}
	}
	l, err := net.Listen("tcp", s.Listen)
	if err != nil {
		return Result{Failed, err.Error(), "see who has it: ss -ltnp; or name another one with --listen"}
	}
	if err := l.Close(); err != nil {
		return Result{Failed, err.Error(), "name another address with --listen"}
	}
	return fine("%s is free", s.Listen)
}

func lookFiles(s *Environment) Result {
	n, err := s.Limit("files")
	switch {
	case err != nil:
		return Result{Unknown, "the limit cannot be read: " + err.Error(), "ulimit -n"}
	case n < filesLow:
		return Result{Warning, fmt.Sprintf("%d files can be open, %d would be enough", n, filesLow),
			"set LimitNOFILE=65536 in the unit, or ulimit -n 65536"}
	}
	return fine("%d files can be open", n)
}

func lookMemlock(s *Environment) Result {
	n, err := s.Limit("memlock")
	switch {
	case err != nil:
		return Result{Unknown, "the limit cannot be read: " + err.Error(), "ulimit -l"}
	case n < memlockLow:
		return Result{Warning, fmt.Sprintf("%d bytes can be locked, %d would be enough: secrets may reach a swap file",
			n, memlockLow), "set LimitMEMLOCK=8M in the unit, or ulimit -l 8192"}
	}
	return fine("at least %d KiB can be locked", memlockLow>>10)
}

func lookStoreURL(s *Environment) Result {
	scheme, rest, ok := strings.Cut(s.Store, "://")
	folder, brought := settings.EmbeddedFolder(s.Store)
	if brought {
		if err := embedded.CheckProgram(s.StoreProgram); err != nil {
			return Result{Failed, err.Error(), "put fealty-store of the same release beside fealty, or set FEALTY_STORE_PROGRAM"}
		}
	}
	switch {
	case s.Store == "":
		return Result{NotAsked, "no --store is given", ""}
	case brought && folder == "": // in the data folder, which has a check of its own
		return fine("%s is there", s.StoreProgram)
	case !ok || brought:
		rest = strings.TrimPrefix(s.Store, "sqlite:")
		if brought {
			rest = folder
		}
		dir := filepath.Dir(rest)
		switch err := writable(dir); {
		case errors.Is(err, fs.ErrNotExist):
			return Result{Warning, dir + " is not there yet", "install -d -m 0700 -o USER " + dir}
		case err != nil:
			return Result{Failed, err.Error(), "chown USER " + dir}
		}
		return fine("%s can be written", dir)
	case scheme != "postgres" && scheme != "postgresql" && scheme != "etcd":
		return Result{Failed, "there is no store of kind " + command.ShownArg(scheme), "fealty explain config.store"}
	}
	if _, after, found := strings.Cut(rest, "@"); found {
		rest = after
	}
	hosts, _, _ := strings.Cut(rest, "/")
	if scheme == "etcd" {
		return lookEtcdMembers(s.Dial, strings.Split(hosts, ","))
	}
	host, _, _ := strings.Cut(hosts, ",") // the first of several
	if host == "" || strings.Contains(host, "?") {
		return Result{NotAsked, "the server is not named by a host", ""}
	}
	if _, _, err := net.SplitHostPort(host); err != nil {
		host = net.JoinHostPort(strings.Trim(host, "[]"), "5432")
	}
	if err := s.Dial(host); err != nil {
		return Result{Failed, host + ": " + errcode.Network(err),
			"see whether the server runs: pg_isready -h HOST, or etcdctl endpoint health"}
	}
	return fine("%s accepts connections", host)
}

// lookEtcdMembers dials the members of an etcd cluster, each HOST:PORT.
func lookEtcdMembers(dial func(address string) error, members []string) Result {
	var silent []string
	for _, m := range members {
		if err := dial(m); err != nil {
			silent = append(silent, m+": "+errcode.Network(err))
		}
	}
	const do = "see whether the servers run: etcdctl endpoint health"
	switch {
	case len(silent) == 0:
		return fine("%s accept connections", strings.Join(members, ", "))
	case len(silent) < len(members):
		return Result{Warning, strings.Join(silent, "; "), do}
	}
	return Result{Failed, strings.Join(silent, "; "), do}
}

func lookKeeperFiles(s *Environment) Result {
	owners, err := s.Keepers()
	switch {
	case errors.Is(err, ErrNotAsked):
		return Result{NotAsked, "no --manifest is given", ""}
	case err != nil:
		r := askFailed(err)
		if r.Do == "" {
			r.Do = "fealty manifest verify FILE"
		}
		return r
	case len(owners) == 0:
		return fine("it names none: people bring the seed back")
	}
	var names []string
	var worst *Result
	for _, o := range owners {
		names = append(names, o.Name)
		if r := keeperFile(o); r != nil && (worst == nil || worst.Outcome == Warning && r.Outcome == Failed) {
			worst = r
		}
	}
	if worst != nil {
		return *worst
	}
	return fine("%s", strings.Join(names, ", "))
}

// keeperFile says what is wrong with the keeper of o; nil if nothing is.
func keeperFile(o manifest.Owner) *Result {
	_, name, _ := strings.Cut(o.Keeper, ":")
	dir := filepath.Dir(name)
	err := keyring.Examine(keyring.Owner{Name: o.Name, Recipient: o.Recipient, Keeper: o.Keeper})
	if err == nil && strings.HasPrefix(o.Keeper, "file:") {
		if _, statErr := os.Stat(name); errors.Is(statErr, fs.ErrNotExist) {
			if err := writable(dir); err != nil {
				return &Result{Failed, o.Name + ": its key file cannot be made: " + err.Error(), "chown USER " + dir}
			}
		}
		return nil
	}
	if err == nil {
		return nil
	}
	text := o.Name + ": " + strings.TrimPrefix(err.Error(), "keyring: ")
	switch {
	case errors.Is(err, keyring.ErrExposedFolder):
		return &Result{Warning, text, "chmod 0700 " + dir + ", and chown it to the coordinator's user"}
	case errors.Is(err, keyring.ErrKeyFile) && errors.Is(err, fs.ErrNotExist):
		return &Result{Warning, text, "install -d -m 0700 -o USER " + dir}
	}
	return &Result{Failed, text, "fealty explain " + string(errcode.KeeperUnusable)}
}

// lookClock compares the clock of a machine that is to become a member.
func lookClock(s *Environment) Result {
	st, err := s.Status()
	if err != nil {
		r := clockNotCompared(err)
		if r.Outcome == NotChecked {
			r.Outcome = Unknown // nobody else says that no coordinator answers
		}
		return r
	}
	return compareClock(s, st)
}

func lookNodeClock(s *Environment) Result {
	st, err := s.Status()
	if err != nil {
		return clockNotCompared(err)
	}
	return compareClock(s, st)
}

// clockNotCompared is what is said of a clock that was not compared because of err: it may be
// right, and is no failure of the machine's.
func clockNotCompared(err error) Result {
	if errors.Is(err, ErrNotAsked) {
		return Result{NotAsked, "no coordinator is named to compare with", ""}
	}
	r := askFailed(err)
	if r.Outcome == Failed {
		r = Result{NotChecked, "no coordinator answers to compare with: " + r.Text, r.Do}
	}
	return r
}

func compareClock(s *Environment, st *fealtyv1.GetStatusResponse) Result {
	off := s.Now.Sub(st.GetNow().AsTime()).Abs().Round(time.Millisecond)
	text := fmt.Sprintf("they differ by %v", off)
	switch {
	case off >= clockNone:
		return Result{Failed, text, "set the clock of this machine: timedatectl set-ntp true"}
	case off >= clockLow:
		return Result{Warning, text, "set the clock of this machine: timedatectl set-ntp true"}
	}
	return fine("%s", text)
}

// askFailed is what a check says that could not ask. Not allowed to see is not
// unhealthy.
func askFailed(err error) Result {
	e := errcode.Of(err)
	if e == nil {
		return Result{Failed, err.Error(), ""}
	}
	text := string(e.Code) + ": " + e.What + " (" + e.Why + ")"
	if entry, ok := errcode.Lookup(e.Code); ok && entry.Exit == errcode.ExitDenied {
		return Result{Unknown, "this caller may not see it: " + text, e.Do}
	}
	return Result{Failed, text, e.Do}
}

func lookAgent(s *Environment) Result {
	n, err := s.Node()
	switch {
	case errors.Is(err, ErrNotAsked):
		return Result{NotAsked, "no --data is given", ""}
	case err != nil:
		return askFailed(err)
	}
	if lost := n.GetLostSockets(); len(lost) > 0 {
		return Result{Failed, strings.Join(lost, "; "), "end what serves there, or give it another path: the agent takes the path back " +
			"within seconds"}
	}
	return fine("%s", n.GetSpiffeId())
}

// nodeOf is for checks that need node.agent.
func nodeOf(s *Environment) *fealtyv1.GetNodeResponse {
	n, _ := s.Node()
	return n
}

func lookIdentity(s *Environment) Result {
	n := nodeOf(s)
	end := n.GetSvidNotAfter().AsTime()
	if !s.Now.Before(end) {
		return Result{Failed, "it ended " + humanize.Relative(end, s.Now) + trouble(n), "see why: fealty status --data " +
			s.Data}
	}
	return fine("it ends %s", humanize.Relative(end, s.Now))
}

func trouble(n *fealtyv1.GetNodeResponse) string {
	if n.GetLastError() == "" {
		return ""
	}
	return "; " + n.GetLastError()
}

func lookSnapshots(s *Environment) Result {
	n := nodeOf(s)
	var held []string
	for _, h := range n.GetHeld() {
		held = append(held, h.GetScope())
	}
	for _, scope := range []string{"trust_bundle", "node_bootstrap"} {
		if !slices.Contains(held, scope) {
			return Result{Failed, "there is no " + scope + " in use",
				"let it reach a coordinator: fealty status --data " + s.Data}
		}
	}
	if r := n.GetRefusals(); len(r) > 0 {
		return Result{Warning, fmt.Sprintf("%s was refused: %s: %s", r[0].GetScope(), r[0].GetReason(),
			r[0].GetDetail()), "fealty explain " + string(errcode.SnapshotRefused)}
	}
	return fine("%s", strings.Join(held, ", "))
}

func lookLog(s *Environment) Result {
	n := nodeOf(s)
	if n.GetLogProblem() == "" {
		return fine("standard error takes it")
	}
	e := errcode.New(errcode.LogFailing, "who", "the agent", "problem", n.GetLogProblem(), "since",
		n.GetLogProblemSince().AsTime().UTC().Format(time.RFC3339), "lines", n.GetLogDropped())
	return Result{Warning, string(e.Code) + ": " + e.What + ": " + e.Why, e.Do}
}

func lookContact(s *Environment) Result {
	n := nodeOf(s)
	if !n.GetConnected() {
		return Result{Warning, "the node works alone" + trouble(n),
			"see whether coordinators run, and the way to them: fealty status --data " + s.Data}
	}
	return fine("%s", n.GetCoordinator())
}

func lookAutonomy(s *Environment) Result {
	n := nodeOf(s)
	if n.GetAutonomousUntil() == nil {
		return Result{Unknown, "the agent does not say", "upgrade the agent"}
	}
	until := n.GetAutonomousUntil().AsTime()
	text := summary.AloneWords(until, n.GetAutonomyLimit(), s.Now)
	switch {
	case !s.Now.Before(until) && !n.GetConnected():
		return Result{Failed, text, "let it reach a coordinator: fealty status --data " + s.Data}
	case until.Sub(s.Now) < aloneLow:
		return Result{Warning, text, "fealty explain manifest.degraded"}
	}
	return fine("%s", text)
}

func lookReach(s *Environment) Result {
	st, err := s.Status()
	switch {
	case errors.Is(err, ErrNotAsked):
		return Result{NotAsked, "no coordinator is named", ""}
	case err != nil:
		return askFailed(err)
	}
	return fine("release %s", st.GetRelease())
}

// statusOf is for checks that need coordinator.reach.
func statusOf(s *Environment) *fealtyv1.GetStatusResponse {
	st, _ := s.Status()
	return st
}

func lookPhase(s *Environment) Result {
	switch st := statusOf(s); st.GetPhase() {
	case "ready":
		return fine("cluster %s, authority epoch %d", st.GetClusterId(), st.GetAuthorityEpoch())
	case "uninitialized":
		return Result{Failed, "it has no cluster yet", "fealty manifest init --cluster NAME, then fealty manifest set"}
	default:
		return Result{Failed, command.JoinWords(st.GetPhase(), ": ", st.GetPhaseReason()),
			"fealty explain " + string(errcode.RecoveryMode)}
	}
}

func lookHead(s *Environment) Result {
	st := statusOf(s)
	if st.GetHeadConfirmedAt() == nil {
		return Result{Unknown, "the coordinator does not say", "upgrade the coordinator"}
	}
	// By one clock, the coordinator's.
	age := max(0, st.GetNow().AsTime().Sub(st.GetHeadConfirmedAt().AsTime())).Round(time.Second)
	text := fmt.Sprintf("it was confirmed %v ago", age)
	switch {
	case age > headNone:
		return Result{Failed, text, "see why the store does not answer: the coordinator's log, and fealty check store"}
	case age > headLow:
		return Result{Warning, text, "see why the store does not answer: the coordinator's log, and fealty check store"}
	}
	return fine("%s", text)
}

// These are the codes that the checks of findings look for. One that is in none of them
// is for coordinator.findings.
var (
	leaderCodes   = []errcode.Code{errcode.NobodyLeads}
	peerCodes     = []errcode.Code{errcode.CoordinatorUnheard, errcode.CoordinatorRecovering}
	keeperCodes   = []errcode.Code{errcode.KeeperUnopened, errcode.KeeperUnusable, errcode.KeeperElsewhere}
	baselineCodes = []errcode.Code{errcode.MemberBaseline}
	memberCodes   = []errcode.Code{errcode.MemberExpired, errcode.MemberSilent, errcode.MemberStale,
		errcode.MemberClock}
	writeCodes = []errcode.Code{errcode.StoreFull, errcode.StoreRefuses, errcode.StoreWentBack,
		errcode.StoreUnreachable, errcode.StoreHeld, errcode.StoreLoginRefused, errcode.StoreOverloaded,
		errcode.StoreUnsuitable}
)

func lookKeepers(s *Environment) Result {
	return foundAs(s, "nothing is known against any", keeperCodes...)
}

func lookLeader(s *Environment) Result {
	l := statusOf(s).GetLeader()
	if l.GetTerm() == 0 {
		return foundAs(s, "nobody for "+humanize.Span(l.GetNobodyFor().AsDuration())+", which a change of the leader "+
			"takes", leaderCodes...)
	}
	return foundAs(s, fmt.Sprintf("%s, term %d", l.GetName(), l.GetTerm()), leaderCodes...)
}

func lookPeers(s *Environment) Result {
	answer, stopped := 0, 0
	for _, r := range statusOf(s).GetReplicas() {
		switch {
		case r.GetStopped():
			stopped++
		case !r.GetSelf():
			answer++
		}
	}
	text := "there is no other one"
	if answer > 0 {
		text = humanize.Plural(answer, "other one", "other ones")
	}
	if stopped > 0 {
		text += fmt.Sprintf("; %d stopped in order", stopped)
	}
	return foundAs(s, text, peerCodes...)
}

func lookWrites(s *Environment) Result {
	return foundAs(s, "nothing is known against it", writeCodes...)
}

func lookFindings(s *Environment) Result {
	elsewhere := slices.Concat(leaderCodes, peerCodes, keeperCodes, baselineCodes, memberCodes, writeCodes)
	var rest []*fealtyv1.Finding
	for _, f := range statusOf(s).GetFindings() {
		if !slices.Contains(elsewhere, errcode.Code(f.GetCode())) {
			rest = append(rest, f)
		}
	}
	if len(rest) == 0 {
		return fine("nothing")
	}
	more := ""
	if n := len(rest) - 1; n > 0 {
		more = fmt.Sprintf(" (and %d more: fealty status)", n)
	}
	return Result{outcomeOf(rest[0]), rest[0].GetCode() + ": " + summary.FoundBy(rest[0]) + rest[0].GetSummary() + more,
		rest[0].GetRemedy()}
}

func lookRoot(s *Environment) Result {
	return lasting(s.Now, statusOf(s).GetRootNotAfter().AsTime(), rootLow,
		"plan a new seed: fealty explain manifest.seed")
}

func lookMesh(s *Environment) Result {
	return lasting(s.Now, statusOf(s).GetMeshCaNotAfter().AsTime(), meshLow,
		"the coordinator should have renewed it: see its log")
}

func lasting(now, end time.Time, low time.Duration, do string) Result {
	text := "it ends " + humanize.Relative(end, now)
	switch left := end.Sub(now); {
	case left <= 0:
		return Result{Failed, text, do}
	case left < low:
		return Result{Warning, text, do}
	}
	return fine("%s", text)
}

func lookBaseline(s *Environment) Result {
	if storeUnread(s) {
		return Result{Unknown, unreadText, unreadDo}
	}
	if b := statusOf(s).GetBaseline(); b.GetState() == "unknown" {
		return Result{Unknown, summary.BaselineWords(b), "ask again a minute after the coordinator became ready, and see " +
			"which coordinators answer: fealty status"}
	}
	return foundAs(s, "", baselineCodes...)
}

// storeUnread reports that the coordinator could not read its store just now: of
// members and bans it says nothing then.
func storeUnread(s *Environment) bool { return statusOf(s).GetStoreLatency() == nil }

const (
	unreadText = "the coordinator could not read its store"
	unreadDo   = "see why: the coordinator's log"
)

func lookMembers(s *Environment) Result {
	if storeUnread(s) {
		return Result{Unknown, unreadText, unreadDo}
	}
	return foundAs(s, "nobody is missing", memberCodes...)
}

// outcomeOf is what a finding comes to.
func outcomeOf(f *fealtyv1.Finding) Outcome {
	if f.GetSeverity() == "critical" {
		return Failed
	}
	return Warning
}

// foundAs is what the coordinator found under these codes.
func foundAs(s *Environment, good string, codes ...errcode.Code) Result {
	st := statusOf(s)
	for _, f := range st.GetFindings() {
		if slices.Contains(codes, errcode.Code(f.GetCode())) {
			return Result{outcomeOf(f), f.GetCode() + ": " + summary.FoundBy(f) + f.GetSummary(), f.GetRemedy()}
		}
	}
	if good == "" {
		good = summary.BaselineWords(st.GetBaseline())
	}
	return fine("%s", good)
}

func lookBans(s *Environment) Result {
	st := statusOf(s)
	if storeUnread(s) {
		return Result{Unknown, unreadText, unreadDo}
	}
	text := fmt.Sprintf("%d of %d", st.GetBans(), st.GetBansLimit())
	switch {
	case st.GetBans() >= st.GetBansLimit():
		return Result{Failed, text, "wait until certificates of banned keys have ended; do not remove or replace " +
			"members until then"}
	case st.GetBans()*bansLowShare >= st.GetBansLimit():
		return Result{Warning, text, "put off removals and replacements for svid_ttl"}
	}
	return fine("%s", text)
}

func lookLatency(s *Environment) Result {
	if storeUnread(s) {
		return Result{Failed, unreadText, unreadDo}
	}
	d := statusOf(s).GetStoreLatency().AsDuration().Round(time.Microsecond)
	text := fmt.Sprintf("members were listed in %v", d)
	switch {
	case d >= latencyNone:
		return Result{Failed, text, "look at the load of the store's machine and its disk"}
	case d >= latencyLow:
		return Result{Warning, text, "look at the load of the store's machine and its disk"}
	}
	return fine("%s", text)
}

func lookServer(s *Environment) Result {
	r, err := s.Server()
	switch {
	case errors.Is(err, ErrNotAsked):
		if _, ok := settings.EmbeddedFolder(s.Store); ok {
			return Result{NotAsked, "the server of an embedded store is asked by its coordinator alone", ""}
		}
		return Result{NotAsked, "no server of a store is given by --store or FEALTY_STORE", ""}
	case errors.Is(err, engine.ErrSchema):
		return fine("it is; its schema is another matter")
	case err != nil:
		e := errcode.Of(StoreError(settings.Value{Setting: &settings.Setting{Key: "store"}, From: "--store",
			Rank: settings.FromFlag}, err))
		if e == nil {
			return Result{Failed, err.Error(), "see whether the server runs: pg_isready -h HOST, or etcdctl endpoint " +
				"health"}
		}
		return Result{Failed, string(e.Code) + ": " + e.What + " (" + e.Why + ")", e.Do}
	}
	return fine("%s", r.Name)
}

func lookServerSettings(s *Environment) Result {
	r, err := s.Server()
	if err != nil {
		return Result{Unknown, "they were not looked at, because the schema does not fit",
			"run the release that wrote it"}
	}
	if len(r.Problems) == 0 {
		return fine("nothing is set that loses commits")
	}
	out := Result{Outcome: Warning}
	var texts, dos []string
	for _, p := range r.Problems {
		if p.Loses {
			out.Outcome = Failed
		}
		texts, dos = append(texts, p.What), append(dos, p.Do)
	}
	out.Text, out.Do = strings.Join(texts, "; "), strings.Join(dos, "; ")
	return out
}

func lookSchema(s *Environment) Result {
	r, err := s.Server()
	switch {
	case err != nil:
		return Result{Failed, err.Error(), "run the release that wrote it, or a later one"}
	case r.Schema == "":
		return fine("there is no store yet: the first coordinator makes it")
	case r.Schema != r.Known:
		return Result{Warning, fmt.Sprintf("it is %s, and this release makes it %s", r.Schema, r.Known),
			"make a backup, and start coordinators of this release"}
	}
	return fine("%s", r.Schema)
}

// sqliteFile returns the file of the store that --store names, or that the
// coordinator has on this machine; blank if there is none. runs: the coordinator's.
func sqliteFile(s *Environment) (path string, runs bool) {
	if st, err := s.Status(); err == nil {
		if path, ok := strings.CutPrefix(st.GetStore(), settings.SqliteScheme); ok {
			if _, err := os.Stat(path); err == nil {
				return path, true
			}
		}
	}
	path, _ = strings.CutPrefix(s.Store, settings.SqliteScheme)
	if path == s.Store {
		path = ""
	}
	return path, false
}

func notHere() Result { return Result{NotAsked, "no file of a store is found on this machine", ""} }

func lookLock(s *Environment) Result {
	path, runs := sqliteFile(s)
	if path == "" {
		return notHere()
	}
	held, err := sqlite.Holder(path)
	switch {
	case err != nil:
		return Result{Unknown, err.Error(), "look as the user of the coordinator"}
	case held == nil && runs:
		return Result{Failed, "a coordinator runs on " + path +
			", and nobody holds its lock: the lock file was removed or replaced", "start the coordinator anew, and " +
			"let nobody remove " + path + ".lock"}
	case held == nil:
		return fine("nobody has %s open", path)
	case !runs:
		return Result{Warning, fmt.Sprintf("process %d has %s open, and no coordinator that is named says so", held.PID,
			path), fmt.Sprintf("see what it is before a coordinator is started: ps -p %d", held.PID)}
	}
	return fine("process %d has %s open", held.PID, path)
}

func lookFileSystem(s *Environment) Result {
	path, _ := sqliteFile(s)
	if path == "" {
		return notHere()
	}
	dir := filepath.Dir(path)
	err := s.FileSystem(dir)
	if _, ok := errors.AsType[*sqlite.FilesystemError](err); ok {
		return Result{Failed, err.Error(), "move the store to a local disk, or use PostgreSQL"}
	}
	if err != nil {
		return Result{Unknown, err.Error(), "df -T " + dir}
	}
	return fine("%s is on no network file system that is known", dir)
}

func lookStoreSpace(s *Environment) Result {
	path, _ := sqliteFile(s)
	if path == "" {
		return notHere()
	}
	return space(s.Free, path)
}

// Page is the page of a check, as Markdown.
func (k Check) Page() string {
	needs := ""
	if len(k.Needs) > 0 {
		needs = "\nIt is not made unless these are ok: " + strings.Join(k.Needs, ", ") + ".\n"
	}
	return fmt.Sprintf("# %s: %s\n\n%s\n%s", k.ID, k.Title, k.About, needs)
}
