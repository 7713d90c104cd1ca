package layers

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/fealty-io/fealty"

// levels says how high a package stands; its subpackages stand there too unless
// they have a row of their own. A package imports only what stands lower, and
// what sameLevel names. Rows may name packages that are yet to come.
var levels = []struct {
	path  string // below the module
	level int
	why   string
}{
	{"identity", 0, "who somebody is needs nothing else"},
	{"fence", 0, "a decision, not a service"},
	{"internal/durable", 0, "files"},
	{"internal/boottime", 0, "a clock"},
	{"internal/document", 0, "plain YAML and JSON, with places"},
	{"internal/fault", 0, "a seam"},
	{"internal/freeport", 0, "ports of this machine"},
	{"internal/goldentest", 0, "texts beside tests"},
	{"test/testlane", 0, "which tests run, and how long"},
	{"internal/pace", 0, "time, bytes and lines"},
	{"internal/chaos", 0, "a judgement of what was written down"},
	{"internal/copies", 0, "which processes ran as a member, and when"},
	{"internal/ended", 0, "whose connections ended, and when"},
	{"internal/batch", 0, "who goes together"},
	{"internal/probe", 0, "an answer over HTTP"},
	{"internal/reload", 0, "files that are read again"},
	{"internal/wording", 0, "words from templates and errors"},
	{"internal/pki/pemfile", 0, "text, and bytes in it"},
	{"internal/term", 0, "what a terminal shows"},
	{"internal/amount", 0, "how long, how many"},
	{"internal/output", 0, "the forms of data that commands print"},
	{"internal/output/message", 2, "the form of messages of the protocol"},
	{"internal/slip", 0, "words that somebody mistyped"},
	{"internal/checksummed", 0, "the form of a file"},
	{"internal/credentialdoor", 0, "functions that a package sets and another calls"},
	{"internal/meshdoor", 0, "functions that a package sets and another calls"},
	{"internal/localsocket", 0, "a socket and its path"},
	{"internal/meshgate", 2, "a listener before a guard"},
	{"internal/pinned", 3, "connections to a server that a key names"},
	{"internal/identitydoor", 0, "functions that a package sets and another calls"},
	{"internal/identityauthor", 0, "what who mints and names asks of package identity"},
	{"internal/identityform", 0, "bounds of identities and certificates"},
	{"internal/identitytest", 1, "throwaway authorities, for tests"},
	{"identity/identitytest", 1, "throwaway certificates, for tests of other people"},
	{"internal/fenceform", 0, "bounds and words of the fence"},
	{"internal/statement", 0, "what an authority signs, and how it is read"},
	{"internal/orders", 1, "statements of a leader: what they are, and not who obeys"},
	{"internal/providerform", 0, "bounds of a provider"},
	{"internal/meshform", 0, "bounds of connections"},
	{"internal/canonical", 1, "one spelling of each value, and nothing of what values mean"},
	{"internal/snapshotform", 1, "bounds and words of snapshots, and what is signed"},
	{"internal/snapshotdoor", 0, "functions that a package sets and another calls"},
	{"internal/snapshotauthor", 1, "what makes the content that snapshot verifies"},
	{"internal/subjects", 1, "for whom a snapshot is"},
	{"internal/cosigned", 1, "what signers say: what it is, and whether they said it"},
	{"internal/snapshotmember", 1, "what a member does with what snapshot verified"},
	{"internal/manifestform", 0, "bounds, defaults and words of a manifest"},
	{"internal/labels", 0, "texts KEY=VALUE"},
	{"internal/plainname", 0, "names of what a shard decides about"},
	{"internal/instant", 0, "when something last happened"},
	{"internal/recall", 0, "who waits, and how long"},
	{"internal/presence", 0, "who was heard, and when: a decision"},
	{"internal/domain", 0, "who owns what next: a decision"},
	{"internal/quarantine", 0, "what is believed at once: a decision"},
	{"internal/connlimit", 0, "a decision about addresses"},
	{"internal/turns", 0, "whose turn it is: a decision"},
	{"internal/begins", 0, "when one may begin: a decision"},
	{"internal/frames", 0, "bytes of HTTP/2, counted"},
	{"internal/hostinfo", 0, "what a machine says of itself"},
	{"internal/explain", 0, "texts and their gRPC form"},
	{"api", 0, "generated messages, which decide nothing"},

	{"internal/endpoints", 1, "which endpoints a client uses, as a balancer and resolvers of gRPC"},
	{"internal/lately", 1, "material as calls need it"},
	{"internal/instruction", 1, "what becomes of an instruction: a decision"},
	{"fence/durable", 1, "fence on disk"},
	{"fence/fencegrpc", 1, "fence at both ends of gRPC"},
	{"fence/fencehttp", 1, "fence at both ends of HTTP"},
	{"credential", 1, "material of an identity"},
	{"credential/workloadapi", 2, "material of an agent that anybody wrote, over gRPC"},
	{"internal/sourcetest", 2, "what every source of material keeps, for tests"},
	{"snapshot", 1, "signed content for an identity"},
	{"internal/manifest", 1, "who may become an identity"},
	{"internal/config", 1, "what snapshots are made of"},
	{"internal/logins", 1, "files of a person, by names"},
	{"internal/store", 1, "the interface"},
	{"internal/history", 1, "a chain of manifests over the interface"},
	{"internal/replica", 1, "what a coordinator does about a head of the history"},
	{"internal/leadership", 1, "a decision, not a service"},
	{"internal/regress", 1, "what a store lost: a decision"},
	{"internal/shardplan", 1, "what shards are told of tenants and providers"},
	{"internal/authz", 1, "a table from the API, and interceptors"},

	{"internal/manifesttemplate", 2, "a first manifest"},
	{"mesh", 2, "connections made with credentials"},
	{"provider", 2, "actuation over connections"},
	{"internal/auditlog", 2, "whether an audit log is whole: a decision"},
	{"internal/auditstore", 2, "the audit log in a store"},
	{"internal/backup", 2, "the file that a cluster is restored from"},
	{"internal/workload", 1, "which processes are meant, from snapshots"},
	{"internal/tokenclaims", 1, "names in a token"},
	{"internal/tokenkey", 2, "a key by what the trust bundle lists"},
	{"internal/discovery", 3, "documents about keys of tokens"},
	{"internal/workload/process", 2, "what the kernel says of a process"},
	{"internal/workload/issuance", 3, "certificates of workloads, in a member's folder"},
	{"internal/workload/tokens", 3, "tokens of workloads, by keys of tokens"},
	{"internal/workload/caller", 3, "a process, and what it is"},
	{"internal/workload/callertest", 4, "a node as tests say"},
	{"internal/workload/spiffe", 4, "identities and tokens for a caller"},
	{"internal/workload/sds", 4, "certificates for a caller that is Envoy"},
	{"internal/workload/host", 5, "all of that, for one node"},
	{"internal/ca", 2, "certificates for identities"},
	{"internal/compiler", 2, "contents of snapshots, from config"},
	{"internal/keyring", 2, "keys of a history"},
	{"internal/proof", 2, "what a candidate shows"},
	{"internal/enrolment", 2, "which certificate a coordinator shows, and what admits it"},
	{"internal/tlsfiles", 2, "files of an operator's PKI, and their wording"},
	{"internal/command", 2, "what commands are made of"},
	{"internal/failure", 5, "words and codes for errors of proofs, stores and connections"},
	{"internal/domaincmd", 3, "commands over domains"},
	{"internal/registrycmd", 3, "commands over quotas and providers"},
	{"internal/instructcmd", 3, "commands over instructions"},
	{"internal/mirror", 2, "a publication as files"},
	{"internal/sealed", 2, "where the store keeps what a keyring sealed"},
	{"internal/recovery", 2, "what owners and a coordinator say of shares"},
	{"internal/store/sqlite", 2, "engine"},
	{"internal/store/postgres", 2, "engine"},
	{"internal/store/etcd", 2, "engine"},
	{"internal/store/configmap", 2, "engine"},

	{"internal/node/dir", 2, "files of a member's folder: identities and scopes"},
	{"internal/node/guard", 2, "what a member may do by what was signed for it: a decision"},
	{"internal/node/state", 3, "what a member accepted, in such a folder"},
	{"internal/node/accept", 4, "the same while an agent runs, and what changes it"},
	{"internal/verdict", 4, "what errors of calls to coordinators mean for a member"},
	{"internal/enroll", 5, "an identity from a coordinator, for a member's folder"},

	{"internal/alivetest", 1, "stacks of goroutines, for tests"},
	{"internal/gauge", 1, "what is asked for when metrics are collected"},
	{"internal/logging", 2, "what a process says, written so that nobody waits"},
	{"internal/instructed", 2, "what a member was told, and did"},
	{"internal/planned", 2, "what a shard was told of quotas and providers"},
	{"internal/ownership", 2, "what a member owns, as its coordinators and receivers say"},
	{"internal/uplink", 3, "calls at whichever coordinator answers"},
	{"internal/watch", 2, "a value that tells when it changed, and a key of the store that is followed"},
	{"internal/flowcontrol", 2, "how much one caller may ask of a server"},

	{"internal/provider/remote", 7, "a provider as a shard sees it"},
	{"internal/provider/process", 3, "a provider, of processes of this machine"},
	{"internal/provider/conformance", 3, "what every provider has to keep"},

	// The rooms of the coordinator. Its own row is last: it wires them, and none of them
	// imports it.
	{"internal/coordinator/finding", 3, "texts of what needs attention"},
	{"internal/coordinator/record", 3, "records in a store, sealed"},
	{"internal/coordinator/challenge", 3, "what a candidate signs, over its connection"},
	{"internal/coordinator/lifetimes", 4, "how long what records say counts"},
	{"internal/coordinator/roster", 4, "records of members, in memory"},
	{"internal/coordinator/live", 5, "what members report, of bundles too"},
	{"internal/coordinator/replicas", 4, "words of coordinators, signed"},
	{"internal/coordinator/auditing", 4, "entries that wait, as records have them"},
	{"internal/coordinator/storeguard", 4, "what was seen of a store, and its findings"},
	{"internal/coordinator/bundle", 4, "the trust bundle, from records and a value"},
	{"internal/coordinator/authority", 6, "which head is in force, and with which keys"},
	{"internal/coordinator/authority/internal", 6, "what authority alone may hold: the compiler keeps the others out"},
	{"internal/coordinator/keepers", 7, "seals and opens the seed of an authority"},
	{"internal/coordinator/trustbundle", 7, "the trust bundle in force under an authority"},
	{"internal/coordinator/election", 7, "who leads under an authority"},
	{"internal/coordinator/peerrecovery", 10, "secrets of the head, to and from a keychain"},
	{"internal/coordinator/ownerrecovery", 12, "shares of the seed, for the head that they bring back"},
	{"internal/coordinator/web", 8, "documents for outsiders, of the trust bundle in force"},
	{"internal/coordinator/verification", 7, "the history, and which head is in force"},
	{"internal/coordinator/backups", 7, "all that a store holds at the head in force"},
	{"internal/coordinator/journals", 11, "what shards wrote down, for members that are there"},
	{"internal/coordinator/instructions", 11, "what members are to do, signed by keys of the trust bundle in force"},
	{"internal/coordinator/incidents", 7, "what members tell of themselves, under an authority"},
	{"internal/coordinator/domains", 11, "who owns what, signed by keys of the trust bundle in force"},
	{"internal/coordinator/registry", 11, "quotas and providers, signed by keys of the trust bundle in force"},
	{"internal/coordinator/grants", 10, "numbers of holders, signed by keys of the trust bundle in force"},
	{"internal/coordinator/turn", 7, "whose turn it is, while the authority's store is silent too"},
	{"internal/coordinator/restoration", 7, "what a restore left, for the head that it leads to"},
	{"internal/coordinator/transition", 8, "the next link of the history, as keepers seal it"},
	{"internal/coordinator/announcement", 8, "what this coordinator says of itself, and who drops what others said"},
	{"internal/coordinator/peers", 8, "the other coordinators, and the bundle by which they are believed"},
	{"internal/coordinator/reseal", 9, "records under the seed that a move makes, one at a time"},
	{"internal/coordinator/seedshares", 10, "shares that a move made, and what it and a reseal left"},
	{"internal/coordinator/keychain", 9, "secrets of moves"},
	{"internal/coordinator/membership", 9, "who is a member, as the other coordinators hear it too"},
	{"internal/coordinator/trust", 10, "changes of what the fleet trusts: it asks who is a member"},
	{"internal/coordinator/audit", 8, "the audit log, under the keys of whoever leads"},
	{"internal/coordinator/desired", 8, "what operators want, for members"},
	{"internal/coordinator/admission", 10, "how one becomes a member"},
	{"internal/coordinator/publication", 10, "what each member is told"},
	{"internal/coordinator/workloads", 11, "what is published says whom a member vouches for"},
	{"internal/coordinator/delivery", 11, "what is published, streamed"},
	{"internal/coordinator/succession", 11, "heads and their keys, from memory, keepers, peers, and a restore"},
	{"internal/coordinator/manifests", 12, "changes of the head that people ask for"},

	// The rooms of the shard, in the same way.
	{"internal/shard/inventory", 3, "machines, as providers list them"},
	{"internal/shard/demand", 4, "what tenants want, of profiles as machines have them"},
	{"internal/shard/decision", 5, "what is done, from machines and demand"},
	{"internal/shard/rails", 6, "what of a decision is executed"},
	{"internal/shard/notice", 6, "who is told what it is about to lose, and until when"},
	{"internal/shard/execution", 6, "what was decided, at the providers"},
	{"internal/shard/journal", 3, "what was decided, on disk, in the form of the audit log"},
	{"internal/shard/session", 7, "what operators say and are told, over the API"},

	{"internal/coordinator", 13, "root"},
	{"internal/agent", 13, "root"},
	{"internal/shard", 13, "root"},
	{"internal/dashboard", 13, "a client"},

	{"internal/coordinator/coordinatortest", 14, "a whole coordinator, for tests of its rooms"},
	{"internal/pause", 0, "plain"},
	{"internal/agent/contact", 6, "calls at coordinators, by what a member accepted"},
	{"internal/agent/fetch", 7, "what is signed, from coordinators, mirrors and other members"},
	{"internal/agent/sharing", 7, "what was accepted, for other members over the API"},
	{"internal/authortest", 6, "what a cluster signs, for tests of members"},
	{"internal/fleettest", 7, "a cluster as members meet it, for their tests"},
	{"internal/coordinator/desktest", 15, "what tests do at one"},
	{"internal/handover", 13, "what a shard's journal says, over the API"},
	{"internal/shardrun", 14, "a shard as a process"},
	{"internal/beside", 14, "what an agent keeps, for a program beside it"},
	{"node", 15, "the same, for programs of other people"},
	{"internal/settings", 14, "how coordinators and agents are told what to do"},
	{"internal/doctor", 15, "what can be looked at, and where settings say it is"},
	{"internal/reference", 16, "pages over settings and checks"},
	{"internal/cli", 17, "commands"},
	{"internal/devcluster/means", 0, "texts"},
	{"internal/devcluster/pki", 2, "certificates, in files"},
	{"internal/devprogram", 1, "programs as processes"},
	{"internal/devcluster/edges", 14, "programs that meet, beside a cluster"},
	{"internal/devshard", 14, "shards as programs, each beside an agent"},
	{"internal/devcluster", 14, "a whole cluster in one process"},
	{"internal/sim", 14, "whole fleets"},
	{"internal/layers", 14, "this test"},
	{"cmd", 18, "commands are leaves"},
	{"bench", 14, "load"},
	{"examples", 16, "programs of other people"},
	{"docs", 18, "checks of the docs"},
	{"deploy", 14, "checks of what is deployed"},
}

// sameLevel lists the imports within a level. They must not form a cycle, which
// the compiler sees to.
var sameLevel = []struct{ from, to, why string }{
	{"snapshot", "internal/snapshotform", "the bounds of what it reads"},
	{"snapshot", "internal/canonical", "the form of what it reads"},
	{"internal/canonical", "internal/snapshotform", "what looks like a secret"},
	{"internal/snapshotauthor", "snapshot", "it makes what that verifies"},
	{"internal/snapshotmember", "snapshot", "it uses what that verifies"},
	{"internal/subjects", "snapshot", "it knows the types"},
	{"internal/cosigned", "snapshot", "the bundle that names the signers, and what is revoked"},
	{"internal/cosigned", "internal/canonical", "the form of what is signed"},
	{"internal/cosigned", "internal/snapshotform", "the bounds of what it reads"},
	{"internal/cosigned", "internal/snapshotmember", "what a bundle and statements revoke"},
	{"internal/history", "internal/cosigned", "a reseed carries the change of root that nodes verify"},
	{"internal/config", "internal/snapshotform", "what looks like a secret, and bounds of contents"},
	{"internal/config", "internal/workload", "the form of what registers a workload"},
	{"internal/lately", "credential", "a source of material"},
	{"internal/workload", "snapshot", "the parameters of a service"},
	{"internal/history", "internal/snapshotform", "what a signature is over"},
	{"identity", "internal/identityform", "the bounds of what it reads"},
	{"fence", "internal/fenceform", "the bounds of what it reads"},
	{"fence", "internal/statement", "how the statements are signed and read that it acts on"},
	{"internal/statement", "internal/fenceform", "the bounds of what it reads"},
	{"identity", "internal/identitydoor", "it sets what another calls"},
	{"internal/identityauthor", "internal/identitydoor", "it calls what identity sets"},
	{"internal/identityauthor", "identity", "it knows the types"},
	{"internal/history", "internal/store", "a chain is kept in a store"},
	{"internal/history", "internal/manifest", "a transition names a manifest"},
	{"internal/replica", "internal/history", "a head of the history, by its names"},
	{"internal/config", "snapshot", "what looks like a secret, and what scopes there are"},
	{"internal/config", "internal/manifest", "the names of roles, permissions and members"},
	{"internal/auditstore", "internal/auditlog", "it keeps what that one decides"},
	{"provider", "mesh", "a shard and a provider meet over connections"},
	{"provider", "internal/meshgate", "a client's cost is bounded before it proved who it is"},
	{"internal/meshgate", "mesh", "it knows the types"},
	{"internal/localsocket", "identity", "what the kernel says of a process"},
	{"internal/localsocket", "internal/durable", "the lock beside a socket"},
	{"internal/flowcontrol", "mesh", "a stranger that proves itself keeps its connection"},
	{"internal/proof", "mesh", "a proof is bound to the connection of its call"},
	{"internal/recovery", "mesh", "a share goes over a connection whose server proves itself"},
	{"internal/recovery", "internal/keyring", "shares are the keyring's"},
	{"internal/recovery", "internal/proof", "the server's proof"},
	{"internal/recovery", "internal/backup", "owners are shown what a restore waits for"},
	{"internal/enrolment", "internal/proof", "a certificate is shown by a proof"},
	{"internal/sealed", "internal/keyring", "which key sealed a copy, the keyring reads"},
	{"internal/backup", "internal/keyring", "a backup is encrypted to the owners of the seed"},
	{"internal/history", "snapshot", "a reseed carries the change of root that nodes verify"},
	{"internal/coordinator/authority", "internal/coordinator/authority/internal", "it holds its secrets there"},
	{"internal/explain", "internal/wording", "what is known goes into its texts"},
	{"internal/document", "internal/slip", "a word of a document can be mistyped"},
	{"internal/devcluster", "internal/devshard", "fealty dev shows shards too"},
	{"internal/devcluster", "internal/devcluster/edges", "its story shows whom programs believe"},
	{"internal/devcluster/edges", "internal/beside", "a member's certificate is taken from its folder"},
	{"internal/devshard", "internal/beside", "an operator has the identity of a member"},
}

// thirdParty says which modules a level 0 package may import beyond the standard
// library and golang.org/x. The levels above choose freely; the budget of
// dependencies is kept elsewhere.
var thirdParty = []struct{ from, to, why string }{
	{"identity", "github.com/spiffe/go-spiffe/v2/spiffeid", "the standard's own syntax of ids"},
	{"internal/document", "github.com/goccy/go-yaml", "the tokens and the tree of YAML"},
	{"internal/output", "github.com/goccy/go-yaml", "the tokens and the tree of YAML"},
	{"internal/output", "github.com/go-json-experiment/json", "the tokens of JSON, each written so that it prints"},
	{"internal/explain", "google.golang.org/grpc", "the gRPC form of an error"},
	{"internal/explain", "google.golang.org/genproto/googleapis/rpc/errdetails", "the gRPC form of an error"},
	{"api", "google.golang.org/grpc", "generated"},
	{"api", "google.golang.org/protobuf", "generated"},
}

// public packages are what others import: nothing internal shows in them.
var public = []string{"identity", "credential", "mesh", "fence", "snapshot", "provider", "node"}

// publicMay are the internal packages that public ones are made of. Nothing of
// them shows in a public name.
var publicMay = []string{
	"internal/begins", "internal/canonical", "internal/credentialdoor", "internal/durable", "internal/connlimit", "internal/endpoints", "internal/fenceform", "internal/frames",
	"internal/identityauthor", "internal/identitydoor", "internal/identityform", "internal/lately", "internal/localsocket", "internal/pki/pemfile", "internal/meshdoor", "internal/meshform", "internal/meshgate", "internal/pace", "internal/providerform", "internal/snapshotdoor",
	"internal/snapshotform", "internal/statement", "internal/turns",
}

// nodeMay are those that the package for programs on a member is made of beside: it opens what
// an agent keeps, and says what the agent refused.
var nodeMay = []string{"internal/agent", "internal/beside", "internal/explain", "internal/node/dir", "internal/node/state"}

// roots meet over the API alone, so that an agent goes on without coordinators
// and no hot path can come to call one.
var roots = []string{"internal/coordinator", "internal/agent", "internal/shard"}

// houses are packages that are made of rooms, which stand in folders below them. A
// room has a level of its own, so each needs a row of its own in levels: under that
// of its house it could import every other room.
var houses = []string{"internal/coordinator", "internal/agent", "internal/shard"}

// drivers lists who alone may import a driver: its engine.
var drivers = []struct{ module, engine string }{
	{"modernc.org/sqlite", "internal/store/sqlite"},
	{"github.com/jackc/pgx", "internal/store/postgres"},
	{"go.etcd.io/etcd", "internal/store/etcd"},
	{"k8s.io/client-go", "internal/store/configmap"},
}

// wiring is who may import an engine: whoever opens stores by their address.
var wiring = []string{"cmd/fealty", "internal/cli", "internal/failure", "internal/settings", "internal/doctor",
	"internal/devcluster", "internal/sim", "bench"}

// pure packages decide and leave acting to others.
var pure = []struct{ path, not string }{
	{"fence", "net"},
	{"fence", "os"},
	{"snapshot", "net/http"}, // net itself splits addresses
	{"snapshot", "os"},
	{"internal/manifest", "net/http"},
	{"internal/manifest", "os"},
	{"internal/document", "net"},
	{"internal/document", "os"},
	{"internal/regress", "net"},
	{"internal/regress", "os"},
	{"internal/auditlog", "net"},
	{"internal/auditlog", "os"},
	{"internal/config", "net/http"},
	{"internal/config", "os"},
	{"internal/chaos", "net"},
	{"internal/chaos", "os"},
	{"internal/node/guard", "net"},
	{"internal/node/guard", "os"},
	{"internal/plainname", "net"},
	{"internal/plainname", "os"},
	{"internal/shardplan", "net/http"}, // net itself splits addresses
	{"internal/shardplan", "os"},
	{"internal/quarantine", "net"},
	{"internal/quarantine", "os"},
	{"internal/shard/inventory", "net"},
	{"internal/shard/inventory", "os"},
	{"internal/shard/demand", "net"},
	{"internal/shard/demand", "os"},
	{"internal/shard/decision", "net"},
	{"internal/shard/decision", "os"},
	{"internal/shard/rails", "net"},
	{"internal/shard/rails", "os"},
	{"internal/shard/notice", "net"},
	{"internal/shard/notice", "os"},
}

// testOnly is what no program contains: it stands in _test.go files and in
// packages whose name ends in "test", or that are below the folder test.
var testOnly = []string{
	"testing", "net/http/httptest",
	"github.com/google/go-cmp", "pgregory.net/rapid", "go.uber.org/goleak",
	"github.com/anishathalye/porcupine", "github.com/rogpeppe/go-internal", "github.com/chromedp",
	"github.com/coreos/go-oidc",
}

// dashboardMay is all of the module that the dashboard may import: it is a client
// of the public API, and has no door to the store.
var dashboardMay = []string{"api", "mesh", "credential", "identity", "internal/explain", "internal/dashboard"}

// hotPath is where a shard decides and acts: it goes on with every coordinator gone, and
// the surest way for it not to ask one is to have nothing to ask with. It may import of the
// module what is listed, and nothing that dials; sessions is its one room that speaks the
// API, to operators.
var hotPath = struct {
	path, sessions string
	may, dials     []string
}{
	path: "internal/shard", sessions: "internal/shard/session",
	may:   []string{"internal/shard", "fence", "internal/auditlog", "internal/durable", "internal/quarantine", "internal/plainname"},
	dials: []string{"net", "google.golang.org/grpc"},
}

// nodeState is what a member has accepted. It asks nobody and serves nobody, and what it counts is for others
// to show. It imports no package of a network itself; the errors that it returns have a form for gRPC, in a
// package of their own.
var nodeState = struct {
	path string
	not  []string
}{
	path: "internal/node",
	not:  []string{"google.golang.org/grpc", "github.com/prometheus", "mesh", "net", "net/http"},
}

// badNames say nothing about what is in a package.
var badNames = []string{"util", "utils", "common", "helper", "helpers", "types", "models", "pkg", "base", "misc", "shared", "lib"}

// file is a Go file of the module, as far as these rules look at it.
type file struct {
	dir     string // of its package, below the module; "" for the root
	name    string
	imports []string
}

func (f file) test() bool { return strings.HasSuffix(f.name, "_test.go") }

// within reports whether p is prefix or stands below it.
func within(p, prefix string) bool { return p == prefix || strings.HasPrefix(p, prefix+"/") }

func withinAny(p string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(prefix string) bool { return within(p, prefix) })
}

// testPackage reports whether the package is there for tests alone.
func testPackage(dir string) bool {
	return strings.HasSuffix(path.Base(dir), "test") || within(dir, "test")
}

func standard(p string) bool {
	first, _, _ := strings.Cut(p, "/")
	return !strings.Contains(first, ".")
}

// rowOf returns the path and the level of the row that fits best.
func rowOf(dir string) (string, int, bool) {
	best, level, ok := "", 0, false
	for _, row := range levels {
		if within(dir, row.path) && len(row.path) > len(best) {
			best, level, ok = row.path, row.level, true
		}
	}
	return best, level, ok
}

// levelOf returns the level of the row that fits best.
func levelOf(dir string) (int, bool) {
	_, level, ok := rowOf(dir)
	return level, ok
}

// rootOf returns which of roots dir is or stands below, or "".
func rootOf(dir string) string {
	for _, root := range roots {
		if within(dir, root) {
			return root
		}
	}
	return ""
}

// rule looks at one import of a file and says what is wrong with it, or "".
// imported is the path below the module if own is set, a whole one otherwise.
type rule struct {
	name  string
	check func(f file, imported string, own bool) string
}

var rules = []rule{
	{"levels", func(f file, imported string, own bool) string {
		if !own || f.test() || testPackage(f.dir) {
			return ""
		}
		from, _ := levelOf(f.dir)
		to, ok := levelOf(imported)
		if !ok || to < from {
			return "" // a package without a level is reported for itself
		}
		for _, row := range sameLevel {
			if to == from && within(f.dir, row.from) && within(imported, row.to) {
				return ""
			}
		}
		// A part of one of those packages may be in a folder below it.
		if to == from && sameRow(f.dir, imported) {
			return ""
		}
		return fmt.Sprintf("level %d imports level %d: imports point down", from, to)
	}},
	{"level 0 is plain", func(f file, imported string, own bool) string {
		if level, ok := levelOf(f.dir); own || f.test() || testPackage(f.dir) || !ok || level != 0 {
			return ""
		}
		if standard(imported) || within(imported, "golang.org/x") {
			return ""
		}
		for _, row := range thirdParty {
			if within(f.dir, row.from) && within(imported, row.to) {
				return ""
			}
		}
		return "level 0 imports the standard library and golang.org/x alone"
	}},
	{"public is public", func(f file, imported string, own bool) string {
		if !own || f.test() || !withinAny(f.dir, public) || !within(imported, "internal") || withinAny(imported, publicMay) {
			return ""
		}
		if within(f.dir, "node") && withinAny(imported, nodeMay) {
			return ""
		}
		return "a public package imports nothing internal but " + strings.Join(publicMay, " and ")
	}},
	{"examples", func(f file, imported string, own bool) string {
		if !own || f.test() || !within(f.dir, "examples") || withinAny(imported, public) {
			return ""
		}
		return "an example is what somebody else can write: it imports public packages alone"
	}},
	{"roots apart", func(f file, imported string, own bool) string {
		if !own || rootOf(f.dir) == "" || rootOf(imported) == "" || rootOf(f.dir) == rootOf(imported) {
			return ""
		}
		return "coordinator, agent and shard meet over the API, in tests too"
	}},
	{"drivers", func(f file, imported string, own bool) string {
		for _, d := range drivers {
			if !own && within(imported, d.module) && !within(f.dir, d.engine) {
				return "only " + d.engine + " imports this driver"
			}
		}
		return ""
	}},
	{"engines", func(f file, imported string, own bool) string {
		if !own || f.test() || testPackage(f.dir) || withinAny(f.dir, wiring) {
			return ""
		}
		for _, d := range drivers {
			if within(imported, d.engine) && !within(f.dir, d.engine) {
				return "an engine is imported by the wiring and by tests alone"
			}
		}
		return ""
	}},
	{"pure", func(f file, imported string, own bool) string {
		for _, row := range pure {
			if f.dir == row.path && !own && !f.test() && within(imported, row.not) && !within(imported, "net/netip") && !within(imported, "net/url") {
				return row.path + " decides and does no I/O"
			}
		}
		return ""
	}},
	{"no clock", func(f file, imported string, own bool) string {
		if imported != "time" || f.test() || !within(f.dir, "fence") {
			return ""
		}
		return "whether an attempt is admitted depends on no clock"
	}},
	{"tests apart", func(f file, imported string, own bool) string {
		if f.test() || testPackage(f.dir) {
			return ""
		}
		if !own && withinAny(imported, testOnly) {
			return "stands in _test.go files and *test packages alone"
		}
		if own && testPackage(imported) {
			return "a package for tests is imported by tests alone"
		}
		return ""
	}},
	{"hot path", func(f file, imported string, own bool) string {
		if f.test() || !within(f.dir, hotPath.path) || within(f.dir, hotPath.sessions) {
			return ""
		}
		if own && !withinAny(imported, hotPath.may) || !own && withinAny(imported, hotPath.dials) ||
			own && withinAny(imported, []string{hotPath.sessions, "fence/fencegrpc", "fence/fencehttp"}) {
			return "a shard decides and acts without asking anybody but its providers, whom it is given"
		}
		return ""
	}},
	{"node state", func(f file, imported string, own bool) string {
		if f.test() || !within(f.dir, nodeState.path) || !withinAny(imported, nodeState.not) ||
			own != (imported == "mesh") {
			return ""
		}
		return "what a member accepted is verified and kept without asking or telling anybody"
	}},
	{"dashboard", func(f file, imported string, own bool) string {
		if !own || f.test() || !within(f.dir, "internal/dashboard") || withinAny(imported, dashboardMay) {
			return ""
		}
		return "the dashboard is a client of the public API"
	}},
}

// sameRow reports whether both stand under the same row of levels.
func sameRow(a, b string) bool {
	first, _, ok := rowOf(a)
	second, _, _ := rowOf(b)
	return ok && first == second
}

// violations returns what breaks a rule, sorted.
func violations(files []file) []string {
	var out []string
	for _, f := range files {
		row, _, ok := rowOf(f.dir)
		switch {
		case !ok:
			out = append(out, fmt.Sprintf("no level: %s has no row in levels", f.dir))
		case row != f.dir && slices.Contains(houses, row):
			out = append(out, fmt.Sprintf("no level: %s is a room of %s and has no row of its own in levels", f.dir, row))
		}
		for element := range strings.SplitSeq(f.dir, "/") {
			if slices.Contains(badNames, element) {
				out = append(out, fmt.Sprintf("names: %s: %q says nothing about what is in it", f.dir, element))
			}
		}
		for _, imported := range f.imports {
			below, own := strings.CutPrefix(imported, module+"/")
			if !own {
				below = imported
			}
			for _, r := range rules {
				if problem := r.check(f, below, own); problem != "" {
					out = append(out, fmt.Sprintf("%s: %s imports %s: %s", r.name, path.Join(f.dir, f.name), below, problem))
				}
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// load reads the import clauses of all Go files below root.
func load(root string) ([]file, error) {
	var files []file
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name == root {
				return nil
			}
			// Not part of the module: what the go command leaves out too, and modules
			// of their own.
			if base := d.Name(); strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") || base == "testdata" || base == "bin" {
				return filepath.SkipDir
			}
			if _, err := os.Stat(filepath.Join(name, "go.mod")); err == nil {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(name))
		if err != nil {
			return err
		}
		f := file{dir: filepath.ToSlash(dir), name: d.Name()}
		for _, imp := range parsed.Imports {
			p, err := strconv.Unquote(imp.Path.Value)
			if err != nil {
				return err
			}
			f.imports = append(f.imports, p)
		}
		files = append(files, f)
		return nil
	})
	return files, err
}

func TestImports(t *testing.T) {
	files, err := load("../..")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(files, func(f file) bool { return f.dir == "internal/layers" }) {
		t.Fatal("this very package was not found")
	}
	for _, v := range violations(files) {
		t.Error(v)
	}
}

// Every rule has a case that it refuses, and one close to it that it lets pass.
func TestRules(t *testing.T) {
	const m = module + "/"
	imports := func(dir, name string, paths ...string) file { return file{dir, name, paths} }
	covered := make(map[string]bool)
	for _, tt := range []struct {
		rule      string // that refuses bad
		bad, good file
	}{
		{"levels", imports("internal/store", "a.go", m+"mesh"), imports("mesh", "a.go", m+"internal/durable")},
		{"levels", imports("credential", "a.go", m+"mesh"), imports("mesh", "a.go", m+"credential")},
		{"levels", imports("identity", "a.go", m+"fence"), imports("identity", "a_test.go", m+"internal/identitytest", m+"mesh")},
		{"levels", imports("internal/store", "a.go", m+"internal/history"), imports("internal/history", "a.go", m+"internal/store")},
		{"levels", imports("identity", "a.go", m+"api/fealty/v1"), imports("internal/authz", "a.go", m+"api/fealty/v1", m+"internal/explain")},
		{"levels", imports("internal/coordinator", "a.go", m+"internal/cli"), imports("cmd/fealty", "a.go", m+"internal/cli")},
		{"levels", imports("internal/cli", "a.go", m+"cmd/fealty"), imports("internal/cli", "a.go", m+"internal/agent", m+"internal/coordinator")},
		{"levels", imports("internal/ca", "a.go", m+"internal/keyring"), imports("internal/ca", "a.go", m+"identity")},
		{"levels", imports("internal/store", "a.go", m+"internal/store/sqlite"), imports("internal/store/sqlite/hub", "a.go", m+"internal/store/sqlite/lock")},
		// Between the rooms of the coordinator. A test may go anywhere within its house.
		{"levels", imports("internal/watch", "a.go", m+"internal/coordinator/record"), imports("internal/coordinator/record", "a.go", m+"internal/watch", m+"internal/store")},
		{"levels", imports("internal/flowcontrol", "a.go", m+"internal/watch"), imports("internal/flowcontrol", "a.go", m+"internal/connlimit", m+"internal/explain")},
		{"levels", imports("internal/coordinator/record", "a.go", m+"internal/coordinator/bundle"), imports("internal/coordinator/bundle", "a.go", m+"internal/coordinator/record")},
		{"levels", imports("internal/coordinator/record", "a.go", m+"internal/coordinator"), imports("internal/coordinator", "a.go", m+"internal/coordinator/record", m+"internal/coordinator/delivery")},
		{"levels", imports("internal/coordinator/bundle", "a.go", m+"internal/coordinator/transition"), imports("internal/coordinator/transition", "a.go", m+"internal/coordinator/bundle")},
		{"levels", imports("internal/coordinator/authority", "a.go", m+"internal/coordinator/transition"), imports("internal/coordinator/transition", "a.go", m+"internal/coordinator/authority")},
		{"levels", imports("internal/coordinator/authority/internal/seed", "a.go", m+"internal/coordinator/authority"), imports("internal/coordinator/authority", "a.go", m+"internal/coordinator/authority/internal/seed")},
		{"levels", imports("internal/coordinator/authority", "a.go", m+"internal/coordinator/election"), imports("internal/coordinator/election", "a.go", m+"internal/coordinator/authority")},
		{"levels", imports("internal/coordinator/peerrecovery", "a.go", m+"internal/coordinator/ownerrecovery"), imports("internal/coordinator/ownerrecovery", "a.go", m+"internal/coordinator/authority")},
		{"levels", imports("internal/coordinator/membership", "a.go", m+"internal/coordinator/trust"), imports("internal/coordinator/trust", "a.go", m+"internal/coordinator/membership")},
		{"levels", imports("internal/coordinator/desired", "a.go", m+"internal/coordinator/publication"), imports("internal/coordinator/publication", "a.go", m+"internal/coordinator/membership", m+"internal/compiler")},
		{"levels", imports("internal/coordinator/admission", "a.go", m+"internal/coordinator/delivery"), imports("internal/coordinator/delivery", "a.go", m+"internal/coordinator/publication")},
		{"levels", imports("internal/coordinator/delivery", "a.go", m+"internal/coordinator"), imports("internal/coordinator/delivery", "a_test.go", m+"internal/coordinator/coordinatortest", m+"internal/coordinator")},
		{"tests apart", imports("internal/coordinator/trust", "a.go", m+"internal/coordinator/coordinatortest"), imports("internal/coordinator/coordinatortest", "a.go", m+"internal/coordinator", m+"internal/coordinator/trust", "testing")},
		{"no level", imports("internal/coordinator/novelty", "a.go"), imports("internal/coordinator/record/recordtest", "a.go")},
		{"level 0 is plain", imports("fence", "a.go", "google.golang.org/grpc"), imports("api/fealty/v1", "a.pb.go", "google.golang.org/grpc/codes")},
		{"level 0 is plain", imports("identity", "a.go", "github.com/spiffe/go-spiffe/v2/workloadapi"), imports("identity", "a.go", "github.com/spiffe/go-spiffe/v2/spiffeid", "golang.org/x/crypto/cryptobyte")},
		{"public is public", imports("mesh", "a.go", m+"internal/explain"), imports("credential", "a.go", m+"internal/durable")},
		{"public is public", imports("snapshot", "a.go", m+"internal/fault"), imports("snapshot", "a.go", m+"internal/identityform")},
		{"public is public", imports("credential/workloadapi", "a.go", m+"internal/ca"), imports("mesh", "a_test.go", m+"internal/explain")},
		{"roots apart", imports("internal/agent", "a.go", m+"internal/coordinator"), imports("internal/agent", "a.go", m+"api/fealty/v1")},
		{"roots apart", imports("internal/shard", "a_test.go", m+"internal/agent"), imports("internal/shard", "a_test.go", m+"internal/shard")},
		{"roots apart", imports("internal/agent", "a.go", m+"internal/coordinator/record"), imports("internal/coordinator/record", "a_test.go", m+"internal/coordinator/membership")},
		{"roots apart", imports("internal/agent", "a_test.go", m+"internal/coordinator/coordinatortest"), imports("internal/sim", "a_test.go", m+"internal/coordinator/coordinatortest", m+"internal/agent")},
		{"roots apart", imports("internal/coordinator/delivery", "a_test.go", m+"internal/agent"), imports("internal/agent", "a.go", m+"internal/watch")},
		{"drivers", imports("internal/coordinator", "a_test.go", "modernc.org/sqlite"), imports("internal/store/sqlite", "a.go", "modernc.org/sqlite", "modernc.org/sqlite/lib")},
		{"drivers", imports("internal/store/sqlite", "a.go", "github.com/jackc/pgx/v5"), imports("internal/store/postgres", "a.go", "github.com/jackc/pgx/v5/pgxpool")},
		{"engines", imports("internal/coordinator", "a.go", m+"internal/store/sqlite"), imports("internal/cli", "a.go", m+"internal/store/sqlite")},
		{"engines", imports("internal/store/etcd", "a.go", m+"internal/store/sqlite"), imports("internal/coordinator", "a_test.go", m+"internal/store/sqlite")},
		{"pure", imports("fence", "a.go", "net"), imports("fence/durable", "a.go", "os")},
		{"pure", imports("fence", "a.go", "net/http"), imports("fence", "a_test.go", "os")},
		{"no clock", imports("fence", "ledger.go", "time"), imports("fence", "ledger_test.go", "time")},
		{"no clock", imports("fence/durable", "a.go", "time"), imports("fence/durable", "a_test.go", "time")},
		{"pure", imports("internal/manifest", "a.go", "os/exec"), imports("internal/manifest", "a.go", "net/netip")},
		{"tests apart", imports("internal/agent", "a.go", "testing"), imports("internal/store/storetest", "a.go", "testing", "github.com/anishathalye/porcupine")},
		{"tests apart", imports("internal/agent", "a.go", "pgregory.net/rapid"), imports("internal/agent", "a_test.go", "pgregory.net/rapid", "testing/synctest")},
		{"tests apart", imports("internal/agent", "a.go", m+"test/testlane"), imports("test/testlane", "a.go", "testing")},
		{"tests apart", imports("internal/agent", "a.go", m+"internal/identitytest"), imports("internal/agent", "a_test.go", m+"internal/identitytest")},
		{"examples", imports("examples/provider", "a.go", m+"internal/durable"), imports("examples/provider", "a.go", m+"provider", m+"fence/durable")},
		{"node state", imports("internal/node/state", "a.go", m+"mesh"), imports("internal/node/state", "a_test.go", m+"mesh")},
		{"node state", imports("internal/node/state", "a.go", "google.golang.org/grpc/codes"),
			imports("internal/node/state", "a.go", "google.golang.org/protobuf/types/known/timestamppb", m+"api/fealty/v1")},
		{"node state", imports("internal/node/state", "a.go", "github.com/prometheus/client_golang/prometheus"),
			imports("internal/agent", "a.go", "github.com/prometheus/client_golang/prometheus", m+"mesh")},
		{"dashboard", imports("internal/dashboard", "a.go", m+"internal/store"), imports("internal/dashboard", "a.go", m+"mesh", m+"api/fealty/v1")},
		{"hot path", imports("internal/shard", "a.go", m+"api/fealty/v1"), imports("internal/shard/session", "a.go", m+"api/fealty/v1", "google.golang.org/grpc")},
		{"hot path", imports("internal/shard/execution", "a.go", m+"mesh"), imports("internal/shard/execution", "a.go", m+"fence", m+"internal/shard/decision")},
		{"hot path", imports("internal/shard/execution", "a.go", "google.golang.org/grpc/status"), imports("internal/shard/execution", "a_test.go", "google.golang.org/grpc/status")},
		{"hot path", imports("internal/shard/journal", "a.go", "net/http"), imports("internal/shard/journal", "a.go", m+"internal/auditlog", m+"internal/durable")},
		{"hot path", imports("internal/shard", "a.go", m+"internal/shard/session"), imports("internal/shard", "a.go", m+"internal/shard/rails")},
		{"hot path", imports("internal/shard/execution", "a.go", m+"fence/fencegrpc"), imports("internal/coordinator", "a.go", m+"mesh")},
		{"levels", imports("internal/shard/demand", "a.go", m+"internal/shard/decision"), imports("internal/shard/decision", "a.go", m+"internal/shard/demand")},
		{"levels", imports("internal/shard/decision", "a.go", m+"internal/shard/rails"), imports("internal/shard/rails", "a.go", m+"internal/shard/decision")},
		{"levels", imports("internal/shard/rails", "a.go", m+"internal/shard/execution"), imports("internal/shard", "a.go", m+"internal/shard/execution")},
		{"no level", imports("internal/shard/novelty", "a.go"), imports("internal/shard/rails/railstest", "a.go")},
		{"pure", imports("internal/shard/decision", "a.go", "os"), imports("internal/shard/decision", "a_test.go", "os")},
		{"no level", imports("internal/novelty", "a.go"), imports("internal/store/sqlite/migrations", "a.go")},
		{"no level", imports(".", "main.go"), imports("cmd/fealty", "main.go")},
		{"names", imports("internal/beside/util", "a.go"), imports("internal/beside/utility", "a.go")},
		{"names", imports("internal/store/common", "a.go"), imports("internal/store", "common.go")},
	} {
		refused := false
		bad := violations([]file{tt.bad})
		for _, v := range bad {
			refused = refused || strings.HasPrefix(v, tt.rule+": ")
		}
		if !refused {
			t.Errorf("%s: %+v was let pass (%v)", tt.rule, tt.bad, bad)
		}
		if good := violations([]file{tt.good}); len(good) > 0 {
			t.Errorf("%s: refused: %v", tt.rule, good)
		}
		covered[tt.rule] = true
	}
	for _, r := range rules {
		if !covered[r.name] {
			t.Errorf("rule %q has no case that it refuses", r.name)
		}
	}
}

// All that a shard decides and acts with reaches nothing that dials, over whatever packages of the
// module: so no hot path can come to ask a coordinator.
func TestHotPathDialsNobody(t *testing.T) {
	files, err := load("../..")
	if err != nil {
		t.Fatal(err)
	}
	imports := make(map[string][]string)
	for _, f := range files {
		if !f.test() && !testPackage(f.dir) {
			imports[f.dir] = append(imports[f.dir], f.imports...)
		}
	}
	reached := make(map[string]bool)
	var follow func(dir string)
	follow = func(dir string) {
		if reached[dir] {
			return
		}
		reached[dir] = true
		for _, imported := range imports[dir] {
			below, own := strings.CutPrefix(imported, module+"/")
			switch {
			case own:
				follow(below)
			case within(imported, "google.golang.org/grpc"), imported == "net/http":
				t.Errorf("%s reaches %s by %s", hotPath.path, imported, dir)
			}
		}
	}
	follow(hotPath.path)
	if !reached["fence"] || !reached[hotPath.path+"/decision"] {
		t.Errorf("only %d packages were looked at", len(reached))
	}
}

// docs/architecture.md is the map that people read; it has to show every package, and
// none that is not there.
func TestMapIsComplete(t *testing.T) {
	text, err := os.ReadFile("../../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	files, err := load("../..")
	if err != nil {
		t.Fatal(err)
	}
	there := make(map[string]bool)
	for _, f := range files {
		there[f.dir] = true
	}
	for _, row := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(string(text), -1) {
		if !there[row[1]] {
			t.Errorf("docs/architecture.md has a row for %s, and there is no such package", row[1])
		}
	}
	missing := make(map[string]bool)
	for _, f := range files {
		if !strings.Contains(string(text), "`"+f.dir+"`") {
			missing[f.dir] = true
		}
	}
	for dir := range missing {
		t.Errorf("docs/architecture.md does not show %s: give it a row with its promise", dir)
	}
}

// Rows that cannot have an effect are mistakes in the tables.
func TestTables(t *testing.T) {
	seen := make(map[string]bool)
	for _, row := range levels {
		if seen[row.path] || row.why == "" {
			t.Errorf("levels: %s stands twice or has no reason", row.path)
		}
		seen[row.path] = true
	}
	for _, row := range sameLevel {
		from, ok1 := levelOf(row.from)
		to, ok2 := levelOf(row.to)
		if !ok1 || !ok2 || from != to {
			t.Errorf("sameLevel: %s (level %d) and %s (level %d) do not stand on one level", row.from, from, row.to, to)
		}
	}
	for _, row := range thirdParty {
		if level, ok := levelOf(row.from); !ok || level != 0 {
			t.Errorf("thirdParty: %s is not on level 0, where alone the row counts", row.from)
		}
	}
	for _, list := range [][]string{public, publicMay, nodeMay, roots, houses, wiring, dashboardMay} {
		for _, p := range list {
			if _, ok := levelOf(p); !ok {
				t.Errorf("%s has no level", p)
			}
		}
	}
	for _, d := range drivers {
		if level, _ := levelOf(d.engine); level != 2 {
			t.Errorf("drivers: %s is no engine", d.engine)
		}
	}
}
