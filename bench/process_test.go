package bench

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
)

// roleVariable in the environment makes a process of this test binary one of several that a
// benchmark is made of: the CPU time and the memory of a process are known exactly, and a
// process may hold about 20,000 files open, while 10,000 connections have twice as many ends.
const roleVariable = "FEALTY_BENCH_ROLE"

// Roles of processes.
const (
	agentsRole      = "agents"      // of [BenchmarkDeliver]
	membersRole     = "members"     // of [BenchmarkStreams]
	coordinatorRole = "coordinator" // of [BenchmarkStreams]
	bareRole        = "bare"        // of [BenchmarkStreams]
	clientsRole     = "clients"     // of [BenchmarkCoordinator]
)

func TestMain(m *testing.M) {
	role := os.Getenv(roleVariable)
	if role == "" {
		os.Exit(m.Run())
	}
	be, ok := map[string]func(io.Reader, io.Writer) error{
		agentsRole: beAgents, membersRole: beMembers, coordinatorRole: beCoordinator, bareRole: beBare,
		clientsRole: beClients,
	}[role]
	if !ok {
		fmt.Fprintf(os.Stderr, "%s names no role\n", roleVariable)
		os.Exit(2)
	}
	if err := be(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", role, err)
		os.Exit(1)
	}
}

// process is another process, as the benchmark sees it: each order that it is told is answered
// by one report.
type process[O, R any] struct {
	role string
	in   *json.Encoder
	out  *json.Decoder
}

// startProcess starts a process in a role. It ends with the benchmark.
func startProcess[O, R any](b *testing.B, role string) process[O, R] {
	b.Helper()
	cmd := exec.CommandContext(b.Context(), os.Args[0])
	cmd.Env, cmd.Stderr = append(os.Environ(), roleVariable+"="+role), os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { // the process ends with its input
		in.Close()
		if err := cmd.Wait(); err != nil && b.Context().Err() == nil {
			b.Errorf("the process of the %s: %v", role, err)
		}
	})
	return process[O, R]{role, json.NewEncoder(in), json.NewDecoder(out)}
}

func (p process[O, R]) tell(b *testing.B, order O) (report R) {
	b.Helper()
	if err := p.in.Encode(order); err != nil {
		b.Fatal(err)
	}
	if err := p.out.Decode(&report); err != nil {
		b.Fatalf("the process of the %s: %v", p.role, err)
	}
	return report
}

// obey does what each order says that comes from in, and answers it, until there are no more.
func obey[O, R any](in io.Reader, out io.Writer, do func(O) (R, error)) error {
	orders, answers := json.NewDecoder(bufio.NewReader(in)), json.NewEncoder(out)
	for {
		var order O
		switch err := orders.Decode(&order); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		report, err := do(order)
		if err != nil {
			return err
		}
		if err := answers.Encode(report); err != nil {
			return err
		}
	}
}
