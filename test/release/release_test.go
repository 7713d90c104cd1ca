package release

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/test/testlane"
)

// root is the folder of the module, from here.
const root = "../.."

// output runs a program in a folder and returns what it printed. More of the environment is name=value.
func output(t *testing.T, dir string, more []string, name string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	cmd.Env = append(slices.DeleteFunc(os.Environ(), isSetting), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com")
	cmd.Env = append(cmd.Env, more...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// isSetting reports whether a variable is taken for a setting of fealty, which knows nothing of lanes of tests.
func isSetting(variable string) bool { return strings.HasPrefix(variable, "FEALTY_") }

// must is output of what succeeds.
func must(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	out, err := output(t, dir, nil, name, args...)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(out)
}

// What is no release is refused by its name, before anything is made.
func TestRefused(t *testing.T) {
	t.Parallel()
	script, err := os.ReadFile(filepath.Join(root, "tools/release.sh"))
	if err != nil {
		t.Fatal(err)
	}
	plain := t.TempDir()
	put := func(name string, content []byte) {
		path := filepath.Join(plain, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	put("tools/release.sh", script)
	refused := func(version, why string) {
		t.Helper()
		if out, err := output(t, plain, nil, "tools/release.sh", version); err == nil || !strings.Contains(out, why) {
			t.Errorf("tools/release.sh %s: %v, want a refusal with %q:\n%s", version, err, why, out)
		}
		if _, err := os.Stat(filepath.Join(plain, "dist")); err == nil {
			t.Errorf("tools/release.sh %s left dist", version)
		}
	}
	for _, version := range []string{"", "0.1.0", "v0.1", "v01.2.3", "v0.1.0 ", "v0.1.0-", "v0.1.0+x", "latest", "v1.2.3/../x"} {
		refused(version, "want one such as v0.4.1")
	}
	refused("v0.1.0", "no checkout of git")

	must(t, plain, "git", "init", "--quiet")
	must(t, plain, "git", "add", ".")
	must(t, plain, "git", "commit", "--quiet", "--message=one")
	first := must(t, plain, "git", "rev-parse", "HEAD")
	must(t, plain, "git", "tag", "--annotate", "--message=one", "v0.1.0")
	must(t, plain, "git", "commit", "--quiet", "--allow-empty", "--message=two")
	refused("v0.1.0", "v0.1.0 is the tag of commit "+first)
	put("new", nil)
	refused("v0.2.0", "?? new")
	put("tools/release.sh", append(script, "# changed\n"...))
	refused("v0.2.0", " M tools/release.sh")
}

// The linker says nothing about a variable that is not there.
func TestNamesThatAreSetExist(t *testing.T) {
	t.Parallel()
	script, err := os.ReadFile(filepath.Join(root, "tools/release.sh"))
	if err != nil {
		t.Fatal(err)
	}
	const source = "internal/cli/program/build.go"
	if !strings.Contains(string(script), "package=github.com/fealty-io/fealty/"+filepath.Dir(source)+"\n") {
		t.Errorf("tools/release.sh sets variables of another package than that of %s", source)
	}
	syntax, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, source), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	variables := make(map[string]bool)
	ast.Inspect(syntax, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok {
			for _, name := range spec.Names {
				variables[name.Name] = len(spec.Values) == 0
			}
		}
		return true
	})
	set := regexp.MustCompile(`-X \$package\.(\w+)=`).FindAllStringSubmatch(string(script), -1)
	for _, m := range set {
		if !variables[m[1]] {
			t.Errorf("%s has no variable %s without a value", source, m[1])
		}
	}
	if len(set) != 3 {
		t.Errorf("tools/release.sh sets %d variables, want 3", len(set))
	}
}

// One commit gives the same bytes in two folders, whoever makes them; and they are what they say.
// TestRefused, TestNamesThatAreSetExist and internal/cli.TestManual hold the parts in the quick lane.
func TestTwiceTheSame(t *testing.T) {
	t.Parallel()
	testlane.Nightly(t)
	base := t.TempDir()
	environments := map[string][]string{
		"a": {"LANG=C", "TZ=UTC"},
		"another/folder with a longer name": {"LANG=de_DE.UTF-8", "LC_ALL=de_DE.UTF-8", "TZ=Asia/Tokyo", "GOFLAGS=-buildvcs=true",
			"GOAMD64=v2", "GZIP=-1", "TAR_OPTIONS=--owner=1", "SOURCE_DATE_EPOCH=1", "FEALTY_LISTEN=x"},
	}
	made := make(map[string]map[string][]byte)
	commit := must(t, root, "git", "rev-parse", "HEAD")
	for name, env := range environments {
		clone := filepath.Join(base, name)
		must(t, root, "git", "clone", "--quiet", "--no-hardlinks", ".", clone)
		must(t, clone, "git", "checkout", "--quiet", "--detach", commit) // and not what was committed since
		mask := "umask 022"
		if name != "a" {
			mask = "umask 077"
		}
		if out, err := output(t, clone, env, "sh", "-c", mask+" && make release VERSION=v0.1.0"); err != nil {
			t.Fatalf("make release: %v\n%s", err, out)
		}
		if left := must(t, clone, "git", "status", "--porcelain"); left != "" {
			t.Errorf("make release left beside dist:\n%s", left)
		}
		made[name] = filesIn(t, filepath.Join(clone, "dist"))
	}
	first, second := made["a"], made["another/folder with a longer name"]
	for name, content := range first {
		if !bytes.Equal(content, second[name]) {
			t.Errorf("%s is another one the second time", name)
		}
	}
	if len(first) != len(second) || len(first) != 8 { // archives for three machines, two packages for two of them, and the sums
		t.Errorf("%d files the first time, %d the second time", len(first), len(second))
	}

	dist := filepath.Join(base, "a", "dist")
	must(t, dist, "sha256sum", "--check", "--strict", "SHA256SUMS")
	name := "fealty-v0.1.0-linux-" + runtime.GOARCH
	must(t, base, "tar", "-xzf", filepath.Join(dist, name+".tar.gz"))
	version := must(t, base, filepath.Join(base, name, "fealty"), "version")
	seconds := must(t, root, "git", "show", "--no-patch", "--format=%ct", commit)
	want := "fealty v0.1.0, commit " + commit + " of " + must(t, base, "date", "--utc", "--date=@"+seconds, "+%Y-%m-%dT%H:%M:%SZ")
	if version != want {
		t.Errorf("fealty version prints %q, want %q", version, want)
	}
	installs(t, filepath.Join(dist, "fealty-v0.1.0-linux-"+runtime.GOARCH+".deb"), want)
	for _, file := range []string{"man/fealty.1.gz", "man/fealty-member-ban.1.gz", "completions/fealty.bash", "completions/_fealty",
		"completions/fealty.fish", "LICENSE", "THIRD-PARTY-LICENSES"} {
		if info, err := os.Stat(filepath.Join(base, name, file)); err != nil || info.Size() == 0 || info.Mode().Perm() != 0o644 {
			t.Errorf("the archive has no %s for everybody to read: %v", file, err)
		}
	}
	if got := must(t, base, filepath.Join(base, name, "fealty-store"), "--version"); !strings.HasPrefix(got, "fealty-store v0.1.0, etcd 3.") {
		t.Errorf("fealty-store --version prints %q", got)
	}
	notices, err := os.ReadFile(filepath.Join(base, name, "THIRD-PARTY-LICENSES"))
	if err != nil {
		t.Fatal(err)
	}
	dep := regexp.MustCompile(`(?m)^\tdep\t(\S+)\t(\S+)`)
	linked := dep.FindAllStringSubmatch(must(t, base, "go", "version", "-m", filepath.Join(base, name, "fealty")), -1)
	ofStore := dep.FindAllStringSubmatch(must(t, base, "go", "version", "-m", filepath.Join(base, name, "fealty-store")), -1)
	for _, m := range append(linked, ofStore...) {
		if m[1] == "github.com/fealty-io/fealty" {
			continue // what fealty-store takes of the product
		}
		if !strings.Contains(string(notices), "==== "+m[1]+" "+m[2]+",") {
			t.Errorf("THIRD-PARTY-LICENSES has nothing of %s %s, which is linked", m[1], m[2])
		}
	}
	if len(linked) == 0 || len(ofStore) == 0 {
		t.Error("the program names no module that is linked: nothing was looked at")
	}
}

// filesIn returns the content of each file of a folder, by its name.
func filesIn(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string][]byte)
	for _, e := range entries {
		if e.IsDir() {
			for name, content := range filesIn(t, filepath.Join(dir, e.Name())) {
				out[filepath.Join(e.Name(), name)] = content
			}
			continue
		}
		content, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		out[e.Name()] = content
	}
	return out
}
