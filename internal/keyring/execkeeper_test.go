package keyring_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
	"github.com/fealty-io/fealty/test/wait"
)

// program writes a shell script and returns its keeper. $DIR is its folder.
func program(t testing.TB, timeout time.Duration, script string) (*keyring.ExecKeeper, string) {
	t.Helper()
	dir := t.TempDir()
	name := filepath.Join(dir, "keeper")
	durabletest.WriteProgram(t, name, []byte("#!/bin/sh\nDIR="+dir+"\n"+script))
	return keyring.ExecKeeperOf(name, timeout), dir
}

// flips encrypts badly and is its own inverse: it swaps the case of bits by tr.
const flips = `LC_ALL=C tr '\000-\177\200-\377' '\200-\377\000-\177'`

func TestExecKeeperRoundTrip(t *testing.T) {
	k, dir := program(t, 20*time.Second, `
env | sort > $DIR/env-$1
echo "$@" > $DIR/argv-$1
pwd > $DIR/pwd
tee $DIR/stdin-$1 | `+flips)
	t.Setenv("AWS_SECRET_ACCESS_KEY", "a secret of the coordinator")
	for _, place := range []keyring.Place{seedPlace, meshPlace} {
		for _, plaintext := range [][]byte{nil, []byte("the secret itself"), bytes.Repeat([]byte{1}, keyring.MaxPlaintextBytes)} {
			sealed := seal(t, k, place, plaintext)
			if len(plaintext) > 0 && bytes.Contains(sealed, plaintext) {
				t.Error("the sealed bytes show the secret")
			}
			got, err := k.Open(t.Context(), place, sealed)
			if err != nil || !bytes.Equal(got, plaintext) {
				t.Fatalf("got %d bytes, %v", len(got), err)
			}
			given, err := os.ReadFile(filepath.Join(dir, "stdin-seal"))
			if err != nil || len(given) != 32 || len(plaintext) > 0 && bytes.Contains(given, plaintext) {
				t.Errorf("the program got %d bytes, want a data key alone: %v", len(given), err)
			}
		}
	}
	if _, err := k.Seal(t.Context(), seedPlace, make([]byte, keyring.MaxPlaintextBytes+1)); err == nil {
		t.Error("sealed above the limit")
	}
	read := func(name string) string {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(data))
	}
	if got := read("argv-seal") + " " + read("argv-open") + " " + read("pwd"); got != "seal open /" {
		t.Errorf("arguments and folder: %q", got)
	}
	var env []string
	for _, line := range strings.Split(read("env-open"), "\n") {
		// Variables that the shell sets by itself.
		if name, _, _ := strings.Cut(line, "="); name != "PWD" && name != "OLDPWD" && name != "SHLVL" && name != "_" {
			env = append(env, line)
		}
	}
	want := `FEALTY_KEEPER_CLUSTER=prod.example
FEALTY_KEEPER_HEAD=0102030000000000000000000000000000000000000000000000000000000000
FEALTY_KEEPER_OWNER=kms
FEALTY_KEEPER_PURPOSE=mesh-ca
FEALTY_KEEPER_SEED_EPOCH=1
FEALTY_KEEPER_VERSION=1
LANG=C
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin`
	if got := strings.Join(env, "\n"); got != want {
		t.Errorf("the program's environment is\n%s", got)
	}
}

// The program only encrypts: that a secret is whole and in its place is checked
// beyond it.
func TestExecKeeperBindsPlaceAndBytes(t *testing.T) {
	k, _ := program(t, 20*time.Second, flips)
	plaintext := []byte("secret")
	sealed := seal(t, k, seedPlace, plaintext)
	for name, elsewhere := range map[string]func(*keyring.Place){
		"cluster":    func(p *keyring.Place) { p.Cluster = "prod.example2" },
		"owner":      func(p *keyring.Place) { p.Owner = "kmt" },
		"seed epoch": func(p *keyring.Place) { p.SeedEpoch++ },
		"purpose":    func(p *keyring.Place) { p.Purpose, p.Head = keyring.PurposeMesh, [32]byte{1} },
	} {
		place := seedPlace
		elsewhere(&place)
		if got, err := k.Open(t.Context(), place, sealed); !errors.Is(err, keyring.ErrNotOpened) || got != nil {
			t.Errorf("in another %s: %v", name, err)
		}
	}
	for i := range sealed {
		bad := bytes.Clone(sealed)
		bad[i] ^= 0x81
		if got, err := k.Open(t.Context(), seedPlace, bad); !errors.Is(err, keyring.ErrNotOpened) || got != nil {
			t.Fatalf("byte %d of %d flipped: %v", i, len(bad), err)
		}
		if i%8 == 0 {
			if _, err := k.Open(t.Context(), seedPlace, sealed[:i]); !errors.Is(err, keyring.ErrNotOpened) {
				t.Fatalf("the first %d bytes: %v", i, err)
			}
		}
	}
	other, _ := program(t, 20*time.Second, `cat > /dev/null; head -c 32 /dev/zero`)
	if got, err := other.Open(t.Context(), seedPlace, sealed); !errors.Is(err, keyring.ErrNotOpened) || got != nil {
		t.Errorf("with another key: %v", err)
	}
	file := seal(t, fileKeeper(t, durabletest.NewDisk().FS()), seedPlace, plaintext)
	if _, err := k.Open(t.Context(), seedPlace, file); !errors.Is(err, keyring.ErrNotOpened) {
		t.Errorf("sealed by a key file: %v", err)
	}
	if _, err := k.Seal(t.Context(), keyring.Place{}, plaintext); err == nil {
		t.Error("sealed for no place")
	}
}

// A program prints the id of its key, or knows none: one that was written before ids
// were asked for goes on as it is. One that cannot be run has none.
func TestExecKeeperKeyID(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, script string
		want         keyring.KeyID
	}{
		{"prints it", `[ $1 = id ] && echo tpm-81000001`, "tpm-81000001"},
		{"prints it without a line break", `[ $1 = id ] && printf %s A.b_c-9`, "A.b_c-9"},
		{"knows no id", `case $1 in seal|open) ` + flips + `;; *) echo usage >&2; exit 2;; esac`, keyring.ProgramKey},
		{"takes every other word for open", flips, keyring.ProgramKey},
		{"prints what is no id", `echo no id/../..`, keyring.ProgramKey},
	} {
		k, _ := program(t, 20*time.Second, test.script)
		if id, err := k.KeyID(t.Context(), seedPlace); id != test.want || err != nil {
			t.Errorf("%s: %q, %v, want %q", test.name, id, err, test.want)
		}
	}
	for _, script := range []string{"kill -9 $$", "cat /dev/zero"} {
		k, _ := program(t, 20*time.Second, script)
		if id, err := k.KeyID(t.Context(), seedPlace); id != "" || !errors.Is(err, keyring.ErrKeeperProgram) {
			t.Errorf("%s: %q, %v", script, id, err)
		}
	}
	if _, err := keyring.ExecKeeperOf("/no/such/program", time.Second).KeyID(t.Context(), seedPlace); !errors.Is(err, keyring.ErrKeeperProgram) {
		t.Errorf("no program: %v", err)
	}
}

func TestExecKeeperProgramsThatFail(t *testing.T) {
	for _, test := range []struct{ name, script, says string }{
		{"fails and says why", "echo the HSM is away >&2; echo more >&2; exit 3", `exit status 3 and said "the HSM is away"`},
		{"fails and says nothing", "exit 1", "exit status 1: "},
		{"says what cannot be printed", `printf '\033[31mred\007\n' >&2; exit 1`, `said "[31mred"`},
		{"says too much", "head -c 1000000 /dev/zero | tr '\\0' x >&2; exit 1", "xxxx…"},
		{"is killed", "kill -9 $$", "signal: killed"},
		{"writes nothing", "cat > /dev/null", "wrote nothing"},
		{"writes what it got", "cat", "holds the key"},
		{"writes what it got in hexadecimal", "od -An -v -tx1 | tr -d ' \\n'", "holds the key"},
		{"writes what it got in base64", "base64", "holds the key"},
		{"writes without end", "cat /dev/zero", "more than the 4096 bytes"},
		{"opens to something else", `[ $1 = seal ] && ` + flips + ` || head -c 32 /dev/zero`, "does not give back"},
		{"opens to too much", `[ $1 = seal ] && ` + flips + ` || head -c 33 /dev/zero`, "more than the 32 bytes"},
		{"opens to too little", `[ $1 = seal ] && ` + flips + ` || head -c 31 /dev/zero`, "does not give back"},
		{"opens to nothing", `[ $1 = seal ] && ` + flips + ` || cat > /dev/null`, "does not give back"},
		{"cannot open", `[ $1 = seal ] && ` + flips + ` || exit 9`, "open: it ended with exit status 9"},
		{"does not read", `[ $1 = seal ] && exec echo wrapped; exec head -c 32 /dev/zero`, "does not give back"},
	} {
		t.Run(test.name, func(t *testing.T) {
			k, _ := program(t, 20*time.Second, test.script)
			sealed, err := k.Seal(t.Context(), seedPlace, []byte("secret"))
			if !errors.Is(err, keyring.ErrKeeperProgram) || sealed != nil || !strings.Contains(err.Error(), test.says) || !strings.Contains(err.Error(), k.Name()) {
				t.Errorf("%v", err)
			}
			if err != nil && len(err.Error()) > 1000 {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
		})
	}
}

// A program that hangs is killed with what it started, and what it left behind
// does not keep the coordinator waiting.
func TestExecKeeperProgramsThatHang(t *testing.T) {
	alive := func(t *testing.T, dir string) bool {
		t.Helper()
		pid, err := os.ReadFile(filepath.Join(dir, "pid"))
		if errors.Is(err, fs.ErrNotExist) {
			return false // it was killed before it started anything
		}
		if err != nil {
			t.Fatal(err)
		}
		stat, err := os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/stat")
		return err == nil && !strings.Contains(string(stat), ") Z ")
	}
	gone := func(t *testing.T, dir string) {
		t.Helper()
		wait.Until(t, "what the program started ends", func() bool { return !alive(t, dir) })
	}
	const hangs = "sleep 300 & echo $! > $DIR/pid; wait"
	t.Run("timeout", func(t *testing.T) {
		k, dir := program(t, time.Second, hangs)
		if _, err := k.Seal(t.Context(), seedPlace, []byte("x")); !errors.Is(err, keyring.ErrKeeperProgram) || !strings.Contains(err.Error(), "within 1s") {
			t.Error(err)
		}
		gone(t, dir)
	})
	t.Run("caller gives up", func(t *testing.T) {
		k, dir := program(t, time.Minute, hangs)
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			defer cancel()
			for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
				if data, err := os.ReadFile(filepath.Join(dir, "pid")); err == nil && len(data) > 0 {
					return
				}
			}
		}()
		if _, err := k.Seal(ctx, seedPlace, []byte("x")); !errors.Is(err, context.Canceled) || errors.Is(err, keyring.ErrKeeperProgram) {
			t.Error(err)
		}
		gone(t, dir)
	})
	t.Run("left behind by one that fails", func(t *testing.T) {
		k, dir := program(t, time.Minute, "sleep 300 > /dev/null 2>&1 & echo $! > $DIR/pid; exit 1")
		if _, err := k.Seal(t.Context(), seedPlace, []byte("x")); !errors.Is(err, keyring.ErrKeeperProgram) || !strings.Contains(err.Error(), "exit status 1") {
			t.Error(err)
		}
		gone(t, dir)
	})
	t.Run("left behind", func(t *testing.T) {
		k, dir := program(t, time.Minute, "sleep 300 & echo $! > $DIR/pid; "+flips)
		if _, err := k.Seal(t.Context(), seedPlace, []byte("x")); !errors.Is(err, keyring.ErrKeeperProgram) || !strings.Contains(err.Error(), "kept its output open") {
			t.Error(err)
		}
		gone(t, dir)
	})
}

// Somebody who can put another program in the place of the keeper's gets the seed.
func TestExecKeeperRefusesPrograms(t *testing.T) {
	for _, test := range []struct {
		name, says string
		spoil      func(t *testing.T, name string) (other string)
	}{
		{"group may write", "can be written by its group", func(t *testing.T, name string) string { chmod(t, name, 0o775); return name }},
		{"all may write", "can be written by everybody", func(t *testing.T, name string) string { chmod(t, name, 0o757); return name }},
		{"not executable", "is no program", func(t *testing.T, name string) string { chmod(t, name, 0o644); return name }},
		{"folder that all may write", "the folder", func(t *testing.T, name string) string { chmod(t, filepath.Dir(name), 0o777); return name }},
		{"a folder", "is no program", func(t *testing.T, name string) string { return filepath.Dir(name) }},
		{"missing", "is not there", func(t *testing.T, name string) string { return name + "2" }},
		{"a link in a folder that all may write", "the folder", func(t *testing.T, name string) string {
			dir := t.TempDir()
			chmod(t, dir, 0o777)
			symlink(t, name, filepath.Join(dir, "link"))
			return filepath.Join(dir, "link")
		}},
		{"a link to a link in a folder that all may write", "the folder", func(t *testing.T, name string) string {
			open, mine := t.TempDir(), t.TempDir()
			chmod(t, open, 0o777)
			symlink(t, name, filepath.Join(open, "between"))
			symlink(t, filepath.Join(open, "between"), filepath.Join(mine, "link"))
			return filepath.Join(mine, "link")
		}},
		{"a folder of another user's that is sticky", "belongs to another user", func(t *testing.T, name string) string {
			if os.Geteuid() != 0 {
				return ""
			}
			chmod(t, filepath.Dir(name), 0o755|fs.ModeSticky) // its owner still moves what is in it
			chown(t, filepath.Dir(name))
			return name
		}},
		{"a link of another user's in a sticky folder", "belongs to another user", func(t *testing.T, name string) string {
			if os.Geteuid() != 0 {
				return ""
			}
			dir := t.TempDir()
			chmod(t, dir, 0o777|fs.ModeSticky)
			symlink(t, name, filepath.Join(dir, "link"))
			chown(t, filepath.Join(dir, "link"))
			return filepath.Join(dir, "link")
		}},
		{"a circle of links", "too many", func(t *testing.T, name string) string {
			link := filepath.Join(filepath.Dir(name), "circle")
			symlink(t, link, link)
			return link
		}},
		{"of another user", "belongs to another user", func(t *testing.T, name string) string {
			if os.Geteuid() != 0 {
				return "" // only root can give files away
			}
			chown(t, name)
			return name
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			k, dir := program(t, 20*time.Second, "touch $DIR/ran; "+flips)
			name := test.spoil(t, k.Name())
			if name == "" {
				return
			}
			sealed, err := keyring.ExecKeeperOf(name, 20*time.Second).Seal(t.Context(), seedPlace, []byte("x"))
			if !errors.Is(err, keyring.ErrKeeperProgram) || sealed != nil || !strings.Contains(err.Error(), test.says) {
				t.Error(err)
			}
			if _, err := os.Stat(filepath.Join(dir, "ran")); !errors.Is(err, fs.ErrNotExist) {
				t.Error("the program was run")
			}
		})
	}
	k, dir := program(t, 20*time.Second, flips)
	link := filepath.Join(dir, "link")
	symlink(t, "keeper", link)
	linked := keyring.ExecKeeperOf(link, 20*time.Second)
	if got, err := linked.Open(t.Context(), seedPlace, seal(t, k, seedPlace, []byte("x"))); err != nil || string(got) != "x" {
		t.Error("a link to a good program:", err)
	}
}

func symlink(t *testing.T, to, name string) {
	t.Helper()
	if err := os.Symlink(to, name); err != nil {
		t.Fatal(err)
	}
}

// chown gives a file or a link to another user.
func chown(t *testing.T, name string) {
	t.Helper()
	if err := os.Lchown(name, 12345, -1); err != nil {
		t.Fatal(err)
	}
}

func chmod(t *testing.T, name string, mode fs.FileMode) {
	t.Helper()
	if err := os.Chmod(name, mode); err != nil {
		t.Fatal(err)
	}
}

// The whole way: a seed and a mesh CA, sealed by the keeper that the manifest names.
func TestExecKeeperKeepsTheSeed(t *testing.T) {
	made, _ := program(t, time.Minute, flips)
	k, err := keyring.KeeperOf(keyring.Owner{Name: "kms", Keeper: "exec:" + made.Name()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	seed := keyring.NewSeed()
	place := keyring.Place{Cluster: "prod.example", Owner: "kms", SeedEpoch: 1}
	data, err := keyring.SealSeed(t.Context(), k, place, seed)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := keyring.OpenSeed(t.Context(), k, place, data); err != nil || !got.Equal(seed) {
		t.Error(err)
	}
	key, cert := meshCA(t)
	place.Head = [32]byte{1}
	if data, err = keyring.SealMesh(t.Context(), k, place, key, cert); err != nil {
		t.Fatal(err)
	}
	if got, _, err := keyring.OpenMesh(t.Context(), k, place, data); err != nil || !got.Equal(key) {
		t.Error(err)
	}
}

// What the program of a keeper logs in with is replaced again and again while the keeper is asked all the time, and
// what it was before is refused. No call fails where the file is replaced first; where it is replaced last, calls fail
// until it is, and are answered from then on.
func TestExecKeeperCredentialRotates(t *testing.T) {
	t.Parallel()
	k, dir := program(t, time.Minute, `
read -r token <"$DIR/token" && grep -qx "$token" "$DIR/server" || { echo "the login is refused" >&2; exit 1; }
`+flips)
	put := func(name, text string) {
		t.Helper()
		next := filepath.Join(dir, name+".new")
		if err := errors.Join(os.WriteFile(next, []byte(text), 0o600), os.Rename(next, filepath.Join(dir, name))); err != nil {
			t.Fatal(err)
		}
	}
	put("token", "t0\n")
	put("server", "t0\n")
	plaintext := []byte("the secret itself")
	sealed := seal(t, k, seedPlace, plaintext)
	open := func() error {
		got, err := k.Open(t.Context(), seedPlace, sealed)
		if err == nil && !bytes.Equal(got, plaintext) {
			err = errors.New("another secret was opened")
		}
		return err
	}
	// Who refuses a login waits for the calls that may have begun with it; nothing else does.
	var refusing sync.RWMutex
	var calls atomic.Int64
	var over atomic.Bool
	var callers sync.WaitGroup
	for range 3 {
		callers.Go(func() {
			for !over.Load() && !t.Failed() {
				refusing.RLock()
				err := open()
				refusing.RUnlock()
				if err != nil {
					t.Errorf("while its login is replaced: %v", err)
				}
				calls.Add(1)
			}
		})
	}
	token := "t0"
	for n := range 5 {
		next := fmt.Sprintf("t%d", n+1)
		put("server", token+"\n"+next+"\n")
		began := calls.Load()
		put("token", next+"\n") // under the calls
		refusing.Lock()
		put("server", next+"\n")
		refusing.Unlock()
		for calls.Load() < began+6 && !t.Failed() {
			if err := open(); err != nil {
				t.Errorf("with the one of before refused: %v", err)
			}
		}
		token = next
	}
	over.Store(true)
	callers.Wait()
	put("server", "last\n")
	if err := open(); err == nil || !strings.Contains(err.Error(), "the login is refused") {
		t.Errorf("with a login that is refused: %v", err)
	}
	put("token", "last\n")
	if err := open(); err != nil {
		t.Errorf("with the next one: %v", err)
	}
}
