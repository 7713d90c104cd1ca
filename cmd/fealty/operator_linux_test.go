package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/test/wait"
)

// The operator of examples, as a program, with the identity of a member: machines follow the number in its file, over a
// start of the shard, which forgets; a number that is none changes nothing; and what its shard has is shown beside it.
func TestOperatorProgram(t *testing.T) {
	t.Parallel()
	f, a := startActuation(t)
	f.must("domain", "assign", "eu", "--to", "shard/eu-1", "--socket", f.socket("coordinator-1"))
	source, err := os.ReadFile("../../examples/operator/main.go")
	if lines := strings.Count(string(source), "\n"); err != nil || lines >= 60 {
		t.Errorf("the example has %d lines, %v, and fewer than 60 are promised", lines, err)
	}
	example := filepath.Join(t.TempDir(), "operator")
	build := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-tags=grpcnotrace,nethttpomithttp2", "-o", example,
		"../../examples/operator")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	const number = "number"
	want := func(text string) {
		t.Helper()
		a.write(number+".new", []byte(text))
		if err := os.Rename(filepath.Join(a.dir, number+".new"), filepath.Join(a.dir, number)); err != nil {
			t.Fatal(err)
		}
	}
	has := func(n int) {
		t.Helper()
		wait.Until(t, fmt.Sprintf("%d machines", n), func() bool { return len(a.working()) == n })
	}
	want("2\n")
	program := exec.Command(example, filepath.Join(a.dir, "acme"), a.at["shard-eu-1"], "web", filepath.Join(a.dir, number))
	said := filepath.Join(a.dir, "operator.log")
	log, err := os.Create(said)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	program.Stdout, program.Stderr = log, log
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = program.Process.Kill()
		_ = program.Wait()
		if t.Failed() {
			t.Log(a.log("operator"))
		}
	})
	has(2)
	show := func(args ...string) string {
		t.Helper()
		out := f.must(append([]string{"demand", "show", "--shard", a.at["shard-eu-1"], "--agent", "acme"}, args...)...)
		return strings.Join(strings.Fields(out), " ")
	}
	if out := show(); !strings.Contains(out, "operator connected") || !strings.Contains(out, "2 web at priority 1") {
		t.Errorf("beside it is shown: %s", out)
	}
	want("many\n")
	want("4\n")
	has(4)

	restart := func(flags ...string) {
		t.Helper()
		if err := a.runs["shard-eu-1"].Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = a.runs["shard-eu-1"].Wait() // that it was killed is known
		a.run("shard-eu-1", append([]string{"shard", "--agent", "eu-1", "--provider", "laptop=" + a.at["provider"], "--cycle", "200ms"}, flags...)...)
	}
	restart("--reclaim-grace", "1h")
	wait.Until(t, "the demand at the shard that was started anew", func() bool {
		out, err := f.run("demand", "show", "--shard", a.at["shard-eu-1"], "--agent", "acme")
		return err == nil && strings.Contains(out, "4 web at priority 1")
	})
	want("3\n")
	wait.Until(t, "a notice", func() bool { return strings.Contains(a.log("operator"), "notice: web-") })

	// Somebody states demand by hand: that is asked about, and the program hears that it was overtaken.
	set := []string{"demand", "set", "--want", "web=4", "--shard", a.at["shard-eu-1"], "--agent", "acme"}
	if out, err := f.run(set...); err == nil || !strings.Contains(fmt.Sprint(out, err), "an operator of acme is connected") {
		t.Errorf("without consent: %s, %v", out, err)
	}
	f.must(append(set, "--yes")...)
	if err := program.Wait(); err == nil || !strings.Contains(a.log("operator"), "started later") {
		t.Errorf("the program ended with %v", err)
	}
	if out := show("-o", "json"); !strings.Contains(out, `"operator_connected": false`) {
		t.Errorf("after it: %s", out)
	}
}
