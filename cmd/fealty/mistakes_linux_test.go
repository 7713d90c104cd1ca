package main

import (
	"encoding/json"
	"encoding/pem"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/platform/freeport"
)

// A mistake is a command that somebody gets wrong, and what the answer has to tell them so
// that they can go on.
type mistake struct {
	what string
	do   []string
	exit int
	says []string // in what is printed and in what is said, each on one line
	not  []string // anywhere
}

// Each of these answers once left a new user without a way on, or sent them on a wrong one.
func TestMistakes(t *testing.T) {
	exe, err := program()
	if err != nil {
		t.Fatal(err)
	}
	f := startOne(t, exe)
	const name = "coordinator-1"
	ask := func(args ...string) []string { return append(args, "--socket", f.socket(name)) }
	for file, text := range map[string]string{
		"tab.yaml":     "kind: service\n\tname: web\n",
		"large.yaml":   "kind: qos\nname: gold\n#" + strings.Repeat("x", 1<<20),
		"many.yaml":    strings.Repeat("kind: qos\nname: gold\n---\n", 300),
		"twice/a.yaml": "kind: service\nname: web\ntype: container\n",
		"twice/b.yaml": "kind: service\nname: web\ntype: container\n",
		"colon.yaml":   "kind: service\nname web\n",
		"locked.key":   string(pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED PRIVATE KEY", Bytes: []byte("sealed")})),
		"node.token":   f.must(ask("token", "create", "--entry", "nodes")...),
	} {
		file = filepath.Join(f.dir, file)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	f.must("join", strings.TrimSpace(f.must(ask("token", "create", "--entry", "nodes", "--name", "data-node")...)), "--data", "data-node")
	var status struct {
		RootPin string `json:"root_pin"`
	}
	if err := json.Unmarshal([]byte(f.must(ask("status", "-o", "json")...)), &status); err != nil {
		t.Fatal(err)
	}
	root, err := identity.ParseKeyID(status.RootPin)
	if err != nil {
		t.Fatal(err)
	}
	wrong := root
	wrong[0] ^= 1
	silent, err := net.Listen("tcp", "127.0.0.1:0") // and nobody accepts
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() })
	web := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(web.Close)
	closed, err := freeport.Addr()
	if err != nil {
		t.Fatal(err)
	}
	join := func(args ...string) []string { return append([]string{"join", "--data", t.TempDir()}, args...) }
	token := func(args ...string) []string { return join(append(args, "--token-file", "node.token")...) }
	key := func(args ...string) []string {
		return join(append(args, "--key", "alice.key", "--cluster", "prod.example")...)
	}

	rows := []mistake{
		{
			"a port that nobody listens on", token("--coordinator", closed), 4,
			[]string{"FE-N103", closed + " failed, the last one with: nothing listens there", "check that the address is right"},
			[]string{"verified snapshots"},
		},
		{
			"a machine that does not answer", token("--coordinator", silent.Addr().String()), 4,
			[]string{"FE-N103", "it did not answer in time", "that its port is open from here"},
			[]string{"verified snapshots", "deadline"},
		},
		{
			"a name that has no address", key("--coordinator", "nosuch.invalid:7443", "--root-pin", root.String()), 4,
			[]string{"FE-N103", "the name nosuch.invalid has no address", "--coordinator names another one"},
			[]string{"verified snapshots", "lookup"},
		},
		{
			"another port than the token's", token("--coordinator", web.Listener.Addr().String()), 4,
			[]string{"FE-X110: the handshake with " + web.Listener.Addr().String() + " failed", "it does not speak TLS 1.3", "check the port"},
			[]string{"identity ok"},
		},
		{
			"a folder in place of the socket in it", []string{"member", "list", "--socket", name}, 2,
			[]string{"FE-U103: the path of the socket cannot be " + name, "it is a folder and no socket", "such as admin.sock"},
			[]string{"nothing listens"},
		},
		{
			"a file in place of a socket", []string{"member", "list", "--socket", "m.yaml"}, 2,
			[]string{"FE-U103: the path of the socket cannot be m.yaml", "it is a file and no socket"},
			[]string{"nothing listens"},
		},
		{
			"a word of another tool", []string{"logs"}, 2,
			[]string{"FE-U101", "did you mean fealty audit list?"},
			[]string{"login"},
		},
		{
			"an entry that there is not", ask("token", "create", "--entry", "nods"), 8,
			[]string{"FE-U108", "did you mean nodes?"},
			nil,
		},
		{
			"a tab in YAML", ask("config", "put", "-f", "tab.yaml"), 3,
			[]string{"tab.yaml:2:1: a tab stands where YAML takes spaces only; indent with spaces"},
			[]string{"token", "'\t'"},
		},
		{
			"a line without a colon", ask("config", "put", "colon.yaml"), 3,
			[]string{"colon.yaml:2:1: this line has no colon after its key; write it as KEY: VALUE, with a space after the colon"},
			[]string{"non-map"},
		},
		{
			"an action that there is not", ask("audit", "list", "--action", "nosuch"), 8,
			[]string{"FE-U108: there is no entry of the audit log with the action nosuch", "no such action is known either",
				"give one of audit, backup, config"},
			[]string{"did you mean"},
		},
		{
			"a slip in an action", ask("audit", "list", "--action", "member.bann"), 8,
			[]string{"FE-U108", "did you mean member.ban?"},
			nil,
		},
		{
			"an action of a sort that there is", ask("audit", "list", "--action", "token.drop"), 8,
			[]string{"FE-U108", "give one of token.create, token.revoke"},
			nil,
		},
		{
			"an action that nobody did yet", ask("audit", "list", "--action", "member.ban"), 0,
			[]string{"CHECKPOINT"},
			[]string{"FE-"},
		},
		{
			"a domain for a person", ask("domain", "assign", "eu", "--to", "admin/bob"), 2,
			[]string{"FE-U103: --to cannot be admin/bob", "only data members and shards own domains"},
			[]string{"undrain"},
		},
		{
			"a quota below nothing", ask("quota", "put", "acme/web", "--machines", "-5"), 2,
			[]string{"FE-U103: --machines cannot be -5", "from 0 to"},
			[]string{"missing"},
		},
		{
			"a shard beside an agent of another kind", []string{"shard", "--agent", "data-node", "--data", "shard", "--listen", "127.0.0.1:0"}, 3,
			[]string{"it is that of data/data-node, and a shard is needed", "joined as a shard: fealty join --kind shard"},
			[]string{"mend the files"},
		},
		{
			"a large file", ask("config", "put", "-f", "large.yaml"), 3,
			[]string{"FE-U105", "more than 1048576 bytes", "do:  divide it"},
			[]string{"who may read it"},
		},
		{
			"many documents", ask("config", "put", "-f", "many.yaml"), 3,
			[]string{"301 documents; at most 256 are allowed in one text: divide it"},
			nil,
		},
		{
			"a record twice in a folder", ask("config", "put", "-f", "twice"), 3,
			[]string{"twice/b.yaml:1: service/web stands in twice/a.yaml:1 too", "config put -f twice --dry-run"},
			[]string{"-f twice/b.yaml"},
		},
		{
			"the pin of another cluster", key("--coordinator", f.listens[name], "--root-pin", wrong.String()), 5,
			[]string{"FE-X105", "the server has root key " + root.String(), "under root key " + wrong.String(), "do not go on"},
			[]string{"PeerUntrusted", "mesh:"},
		},
		{
			"no pin", key("--coordinator", f.listens[name]), 2,
			[]string{"FE-U103: --root-pin cannot be missing", "as fealty status shows them at a coordinator"},
			nil,
		},
		{
			"a pin that is none", key("--coordinator", f.listens[name], "--root-pin", "1234"), 2,
			[]string{"FE-U103: --root-pin cannot be 1234", "the root pin that fealty status -o wide shows"},
			nil,
		},
		{
			"a blank pin, of a variable that is not set", key("--coordinator", f.listens[name], "--root-pin", ""), 2,
			[]string{"FE-U103: --root-pin cannot be blank", "the root pin that fealty status -o wide shows"},
			[]string{"cannot be missing"},
		},
		{
			"a blank pin to verify a cluster by", []string{"verify", "--manifest", "m.yaml", "--coordinator", f.listens[name],
				"--marks", t.TempDir(), "--root-pin", ""}, 2,
			[]string{"FE-U103: --root-pin cannot be blank", "the root pin, as fealty status showed it, or leave it out"},
			[]string{"verified"},
		},
		{
			"an address of IPv6 without its port", key("--coordinator", "::1", "--root-pin", root.String()), 2,
			[]string{"FE-U103: --coordinator cannot be ::1", "or [fd00::1]:7443"},
			nil,
		},
		{
			"a store that is down", []string{"coordinator", "--data", "late", "--store", "postgres://u@" + closed + "/db?sslmode=disable"}, 4,
			[]string{"FE-S103", "nothing listens there", "start this again when it answers"},
			[]string{"when it is back"},
		},
		{
			"a signer's key under a passphrase", ask("manifest", "set", "m.yaml", "--sign-with", "locked.key"), 3,
			[]string{"FE-K104", "its key is encrypted", "openssl pkey -in locked.key -out FILE"},
			[]string{"no PEM block"},
		},
	}
	t.Run("at once", func(t *testing.T) {
		for _, row := range rows {
			t.Run(row.what, func(t *testing.T) {
				t.Parallel()
				f.wrong(t, row)
			})
		}
	})

	// A process that needs its files tells what a machine does to them.
	f.must("join", "--token-file", "node.token", "--data", "node")
	if out, err := exec.Command("cp", "-a", filepath.Join(f.dir, "node"), filepath.Join(f.dir, "copy")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	f.agent("node")
	f.until("node is connected", func(out string) bool { return strings.Contains(out, "is connected") }, "status", "--data", "node")
	f.agent("copy")
	f.until("node hears of its copy", func(out string) bool {
		return strings.Contains(out, "FE-M110") && strings.Contains(out, "another process runs as the same member")
	}, "status", "--data", "node")
	f.kill("copy")

	keeper := filepath.Join(f.dir, "keeper.key")
	asked := func() { // and it has said more than that it just started
		t.Helper()
		f.until("it asked its keeper", func(out string) bool { return strings.Contains(out, "keeper-1") }, ask("status")...)
	}
	f.kill(name)
	if err := os.Rename(keeper, keeper+".away"); err != nil {
		t.Fatal(err)
	}
	f.start(name)
	asked()
	f.wrong(t, mistake{
		"the file of a keeper is gone", ask("status"), 0,
		[]string{"needs attention\n  ✖ FE-K101 critical: keeper keeper-1 cannot be used: " + keeper + " is missing",
			"restore the file from its backup\n", "✖ FE-R101 critical", "its keeper opens nothing (FE-K101)",
			"nobody owns a share of the seed"},
		[]string{"FE-K102", "file does not exist", "give the coordinator the key that sealed it", "brings a share", "--share"},
	})
	f.kill(name)
	if err := errors.Join(os.Rename(keeper+".away", keeper), os.Chmod(keeper, 0o644)); err != nil {
		t.Fatal(err)
	}
	f.start(name)
	asked()
	f.wrong(t, mistake{
		"others can read the file of a keeper", ask("status"), 0,
		[]string{"needs attention\n  ✖ FE-K101 critical: keeper keeper-1 cannot be used: others can read " + keeper, "chmod 600 it"},
		[]string{"FE-K102", "durable:", "brings a share", "--share"},
	})
	f.kill(name)
	if err := os.Chmod(keeper, 0o600); err != nil {
		t.Fatal(err)
	}
	f.start(name)
	f.ready(name)

	for _, file := range []string{"fealty.db", "fealty.db-wal", "fealty.db-shm"} {
		if err := os.Remove(filepath.Join(f.dir, file)); err != nil {
			t.Fatal(err)
		}
	}
	f.wrong(t, mistake{
		"the file of the store is removed: a change", ask("token", "create", "--entry", "nodes"), 1,
		[]string{"FE-S118", "its file was moved, removed or replaced while it was open", "put the file back under its name"},
		nil,
	})
	f.wrong(t, mistake{
		"the file of the store is removed: the status", ask("status", "--exit-code"), 10,
		[]string{"FE-S118 critical", "put the file back under its name"},
		[]string{"no coordinator leads"},
	})
	f.wrong(t, mistake{
		"the file of the store is removed: the checks", ask("check"), 9,
		[]string{"store.writes FE-S118", "put the file back under its name"},
		[]string{"is not a file of this machine"},
	}, 10) // where the file has to be opened anew to be read, that fails too
}

// wrong makes a mistake, and looks at the answer, which may end with one of the others too.
func (f *fleet) wrong(t *testing.T, m mistake, others ...int) {
	t.Helper()
	printed, err := f.run(m.do...)
	got := 0
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		got = exit.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	all := printed
	if err != nil {
		all += "\n" + err.Error()
	}
	all = strings.ReplaceAll(all, f.exe, "fealty")
	if got != m.exit && !slices.Contains(others, got) {
		t.Errorf("%s: it ended with %d, want %d:\n%s", m.what, got, m.exit, all)
	}
	one := strings.Join(strings.Fields(all), " ")
	for _, want := range m.says {
		if !strings.Contains(one, strings.Join(strings.Fields(want), " ")) {
			t.Errorf("%s: it does not say %q:\n%s", m.what, want, all)
		}
	}
	for _, no := range m.not {
		if strings.Contains(all, no) {
			t.Errorf("%s: it says %q:\n%s", m.what, no, all)
		}
	}
}
