package release

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/internal/cli"
	"github.com/fealty-io/fealty/internal/cli/program"
)

// Each unit waits until its program serves, is watched, runs a command that exists with settings that it knows, as a user
// that the package makes, and lets it do little else.
func TestUnits(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(root, "deploy/systemd")
	units, err := filepath.Glob(filepath.Join(folder, "*.service"))
	if err != nil || len(units) != 4 {
		t.Fatal(units, err)
	}
	users, err := os.ReadFile(filepath.Join(folder, "sysusers.conf"))
	if err != nil {
		t.Fatal(err)
	}
	analyze, _ := exec.LookPath("systemd-analyze")
	if analyze == "" {
		t.Log("no systemd-analyze here: exposure is not measured")
	}
	for _, path := range units {
		name := filepath.Base(path)
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		unit := string(raw)
		for _, line := range []string{"Type=notify", "WatchdogSec=30s", "WatchdogSignal=SIGKILL", "ExecReload=/bin/kill -HUP $MAINPID", "LoadCredential=" +
			strings.TrimSuffix(name, ".service") + ".tls.key", "LimitCORE=0"} {
			if !strings.Contains(unit, "\n"+line+"\n") {
				t.Errorf("%s lacks %s", name, line)
			}
		}
		user := regexp.MustCompile(`(?m)^User=(.+)$`).FindStringSubmatch(unit)
		if user == nil || !regexp.MustCompile(`(?m)^u `+user[1]+` `).Match(users) {
			t.Errorf("%s runs as %q, which sysusers.conf does not make", name, user)
		}
		start := regexp.MustCompile(`(?m)^ExecStart=/usr/bin/fealty (.+)$`).FindStringSubmatch(unit)
		if start == nil {
			t.Errorf("%s starts no fealty", name)
			continue
		}
		args := strings.Fields(strings.TrimSuffix(start[1], " $FLAGS"))
		last := "--help" // the flags are a person's
		for i, arg := range args {
			if file, ok := strings.CutPrefix(arg, "/etc/fealty/"); ok {
				args[i], last = filepath.Join(folder, file), "--print-config"
			}
		}
		var out, errs bytes.Buffer
		if exit := cli.Run(t.Context(), program.Env{Args: append(args, last), Stdout: &out, Stderr: &errs}); exit != 0 {
			t.Errorf("%s: fealty %s: status %d: %s", name, strings.Join(args, " "), exit, errs.String())
		}
		if analyze == "" {
			continue
		}
		if out, err := output(t, ".", nil, analyze, "security", "--offline=true", "--no-pager", "--threshold=20", path); err != nil {
			t.Errorf("%s is exposed more than 2.0: %v\n%s", name, err, out)
		}
		// What it would say of a machine without the package is left out.
		copied := filepath.Join(t.TempDir(), name)
		unit = regexp.MustCompile(`(?m)^Documentation=.*$`).ReplaceAllString(strings.ReplaceAll(unit, "/usr/bin/fealty", "/bin/true"), "")
		if err := os.WriteFile(copied, []byte(unit), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := output(t, ".", nil, analyze, "verify", "--man=no", copied); err != nil || strings.Contains(out, name) {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

// installs installs a deb on an empty root, and removes it again. TestTwiceTheSame, which made it, calls this.
func installs(t *testing.T, deb, version string) {
	t.Helper()
	if _, err := exec.LookPath("dpkg"); err != nil || os.Geteuid() != 0 {
		t.Log("no dpkg here, or not root: the package is not installed")
		return
	}
	base := t.TempDir()
	for _, dir := range []string{"etc", "var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/dpkg/triggers", "var/log"} {
		if err := os.MkdirAll(filepath.Join(base, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(base, "var/lib/dpkg/status"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	dpkg := func(args ...string) {
		t.Helper()
		must(t, base, "dpkg", append([]string{"--root=" + base, "--force-script-chrootless"}, args...)...)
	}
	dpkg("--install", deb)
	if got := must(t, base, filepath.Join(base, "usr/bin/fealty"), "version"); got != version {
		t.Errorf("the installed fealty version prints %q, want %q", got, version)
	}
	for path, mode := range map[string]os.FileMode{
		"usr/bin/fealty": 0o755, "usr/bin/fealty-store": 0o755, "usr/share/man/man1": 0o755, "usr/share/man/man1/fealty-join.1.gz": 0o644,
		"usr/lib/systemd/system/fealty-coordinator.service": 0o644, "usr/lib/systemd/system/fealty-agent.service": 0o644,
		"usr/lib/systemd/system/fealty-shard.service": 0o644, "usr/lib/systemd/system/fealty-provider.service": 0o644,
		"etc/fealty/coordinator.yaml": 0o644, "var/lib/fealty": 0o755, "var/lib/fealty/agent": 0o700, "var/lib/fealty/keeper": 0o700,
		"usr/share/bash-completion/completions/fealty": 0o644, "usr/share/doc/fealty/THIRD-PARTY-LICENSES": 0o644,
	} {
		if info, err := os.Stat(filepath.Join(base, path)); err != nil || info.Mode().Perm() != mode {
			t.Errorf("the package does not give /%s mode %o: %v %v", path, mode, info, err)
		}
	}
	passwd, err := os.ReadFile(filepath.Join(base, "etc/passwd"))
	if err != nil || strings.Count(string(passwd), "fealty") < 3 {
		t.Errorf("the package made the users %q: %v", passwd, err)
	}
	mine, kept := filepath.Join(base, "etc/fealty/coordinator.yaml"), filepath.Join(base, "var/lib/fealty/agent/key")
	for _, path := range []string{mine, kept} {
		if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	dpkg("--install", deb) // again, as an upgrade does
	dpkg("--remove", "fealty")
	for _, path := range []string{mine, kept} {
		if text, err := os.ReadFile(path); err != nil || string(text) != "mine" {
			t.Errorf("%s is %q after the package was removed: %v", path, text, err)
		}
	}
	for _, path := range []string{"usr/bin/fealty", "usr/lib/systemd/system/fealty-agent.service", "usr/share/man/man1/fealty.1.gz"} {
		if _, err := os.Stat(filepath.Join(base, path)); !os.IsNotExist(err) {
			t.Errorf("/%s is there after the package was removed: %v", path, err)
		}
	}
}
