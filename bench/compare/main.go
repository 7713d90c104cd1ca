// Command compare measures Fealty beside peers that come as public Go modules: both do the same work in turns, in one run
// on one machine, so that a busy hour is busy for both. It is what make bench-compare runs.
//
// What counts is CPU time, of this process where both ends are in it, and else of a server that is a process of its
// own; for a change of the leader it is time. Each number is a median of rounds, and each ratio the median of the
// ratios of the rounds, with the half of them that is in the middle.
//
// It is a module of its own, so that no peer is in the module graph of the product.
package main

import (
	"context"
	"debug/buildinfo"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/fealty-io/fealty/bench/compare/internal/part"
)

// options say how much is measured.
type options struct {
	rounds  int
	streams int
	etcd    string // etcd's server, a program
	xds     string // the program in folder xds
	profile string // where builds writes the profile of the first coordinator; "": nowhere
	few     bool   // as little as there can be: to see that it runs
}

// scaled returns how many operations a round has.
func (o options) scaled(n int) int {
	if o.few {
		return 1
	}
	return n
}

// comparison is a part of the table.
type comparison struct {
	name string
	run  func(context.Context, options) ([]row, error)
}

func comparisons() []comparison {
	return []comparison{
		{"handshake", handshakes},
		{"call", calls},
		{"verify", verifications},
		{"admission", admissions},
		{"streams", streams},
		{"failover", failovers},
	}
}

// inReadme are the rows that the README shows.
func inReadme() (what, peer []string) {
	return []string{"mutual handshake by identity", "verify and read 4 KiB of content", "tell a stream of 36 changed records", "open a stream"},
		[]string{"crypto/tls", "go-tuf", "grpc-go", "grpc-go"}
}

func main() {
	if name := os.Getenv(part.Variable); name != "" {
		h, err := partNamed(name)
		if err == nil {
			err = part.Be(h, os.Stdin, os.Stdout)
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "compare: %s: %v\n", name, err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		os.Exit(1)
	}
}

// partNamed returns a part that this program can be.
func partNamed(name string) (part.Handler, error) {
	switch name {
	case "serve-fealty":
		return new(fealtyServer), nil
	case "serve-bare":
		return new(bareServer), nil
	case "agents-fealty":
		return newRenewing(), nil
	case "agents-bare":
		return part.NewListeners(new(bareAgents)), nil
	case "agents-etcd":
		return part.NewListeners(new(etcdAgents)), nil
	}
	return nil, fmt.Errorf("there is no part %q", name)
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("compare", flag.ContinueOnError)
	var o options
	flags.IntVar(&o.rounds, "rounds", 20, "how often the sides take turns")
	flags.IntVar(&o.streams, "streams", 1000, "how many streams a server holds")
	flags.StringVar(&o.xds, "xds", "", "the program of folder xds")
	flags.StringVar(&o.etcd, "etcd", "", "the program of etcd's server; tools/etcd.sh builds it")
	flags.BoolVar(&o.few, "few", false, "as little work as there can be: to see that it runs")
	only := flags.String("only", "", "comparisons to run, separated by commas; nothing is written then")
	var variants []variant
	flags.Func("variant", "a build of this program to compare this one with, and with nothing else, as NAME=[VARIABLE=VALUE,…]PATH; may be repeated", func(text string) error {
		v, err := parseVariant(text)
		variants = append(variants, v)
		return err
	})
	flags.StringVar(&o.profile, "profile", "", "a file for the CPU profile of a coordinator under joins, streams and changes, and nothing else")
	write := flags.String("write", "", "folder of the project, in which the table, the picture and the README are written")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return nil
	case err != nil:
		return err
	case flags.NArg() > 0:
		return fmt.Errorf("%q is no flag", flags.Arg(0))
	case o.rounds < 1 || o.streams < o.rounds:
		return errors.New("there has to be a round, and a stream for each")
	case *only != "" && *write != "":
		return errors.New("a part of the table is not written: leave out -only or -write")
	}
	if len(variants) > 0 || o.profile != "" {
		if o.profile != "" { // another process writes it
			path, err := filepath.Abs(o.profile)
			if err != nil {
				return err
			}
			o.profile = path
		}
		rows, err := builds(ctx, o, variants)
		if err != nil || len(variants) == 0 {
			return err
		}
		fmt.Print(report{rows: rows, rounds: o.rounds}.lines())
		return nil
	}
	var chosen []string
	if *only != "" {
		chosen = strings.Split(*only, ",")
	}
	for _, name := range chosen {
		if !slices.ContainsFunc(comparisons(), func(c comparison) bool { return c.name == name }) {
			return fmt.Errorf("there is no comparison %q", name)
		}
	}
	r, err := newReport(ctx, o, *write)
	if err != nil {
		return err
	}
	for _, c := range comparisons() {
		if chosen != nil && !slices.Contains(chosen, c.name) {
			continue
		}
		fmt.Fprintln(os.Stderr, "compare:", c.name)
		rows, err := c.run(ctx, o)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		r.rows = append(r.rows, rows...)
	}
	if r.load, err = loadSince(r.load); err != nil {
		return err
	}
	fmt.Print(r.table())
	if *write == "" {
		return nil
	}
	summary, err := r.summary(inReadme())
	if err != nil {
		return err
	}
	return errors.Join(
		replaceIn(filepath.Join(*write, filepath.FromSlash("docs/reference/benchmarks.md")), r.table()),
		os.WriteFile(filepath.Join(*write, filepath.FromSlash("docs/reference/benchmarks.svg")), r.picture(), 0o644),
		replaceIn(filepath.Join(*write, "README.md"), summary))
}

// newReport says where and when it is measured, and at which commit of the folder.
func newReport(ctx context.Context, o options, dir string) (report, error) {
	r := report{began: time.Now(), rounds: o.rounds, streams: o.streams / o.rounds * o.rounds, commit: "unknown"}
	if dir != "" {
		// The last one that changed code of the product: later ones change nothing that is measured.
		out, err := exec.CommandContext(ctx, "git", "-C", dir, "log", "-1", "--format=%h", "--abbrev=12", "--", "*.go", "go.mod",
			":!bench", ":!docs", ":!test", ":!*_test.go").Output()
		if err != nil {
			return r, fmt.Errorf("ask git for the commit: %w", err)
		}
		r.commit = strings.TrimSpace(string(out))
	}
	cpuinfo, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return r, err
	}
	model := "unknown processor"
	for line := range strings.Lines(string(cpuinfo)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			model = strings.TrimSpace(value)
			break
		}
	}
	r.machine = fmt.Sprintf("%d cores of %s, %s %s, %s", runtime.NumCPU(), model, runtime.GOOS, runtime.GOARCH, runtime.Version())
	if r.load, err = loadNow(); err != nil {
		return r, err
	}
	r.peers, err = peersOf(ctx, o)
	return r, err
}

// peersOf names the peers with their versions, as the programs say that are run.
func peersOf(ctx context.Context, o options) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	var named []string
	for _, program := range []struct {
		path    string
		modules []string
	}{
		{self, []string{"github.com/spiffe/go-spiffe/v2", "google.golang.org/grpc", "github.com/theupdateframework/go-tuf/v2",
			"github.com/hashicorp/raft"}},
		{o.xds, []string{"github.com/envoyproxy/go-control-plane"}},
	} {
		info, err := buildinfo.ReadFile(program.path)
		if err != nil {
			return "", err
		}
		for _, path := range program.modules {
			at := slices.IndexFunc(info.Deps, func(m *debug.Module) bool { return m.Path == path })
			if at < 0 {
				return "", fmt.Errorf("%s is not in %s", path, program.path)
			}
			named = append(named, "`"+path+"` "+strings.TrimPrefix(info.Deps[at].Version, "v"))
		}
	}
	out, err := exec.CommandContext(ctx, o.etcd, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("ask etcd for its version: %w", err)
	}
	first, _, _ := strings.Cut(string(out), "\n")
	return strings.Join(append(named, strings.Replace(first, "etcd Version:", "etcd", 1)), ", "), nil
}

// loadNow returns how many processes want a processor, as a mean of the last minute.
func loadNow() (string, error) {
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "", err
	}
	load, _, _ := strings.Cut(string(data), " ")
	return load, nil
}

func loadSince(before string) (string, error) {
	after, err := loadNow()
	return fmt.Sprintf("the load of the machine was %s before and %s at the end, this work included", before, after), err
}
