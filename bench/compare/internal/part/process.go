// Package part has what the processes of a comparison share: how one is told what to do and measured, agents that hold
// streams, and the certificates of peers.
package part

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Variable in the environment makes a process of this program one part of a comparison: it takes orders as lines of
// JSON, and answers each by one. Its CPU time and memory are then its own.
const Variable = "FEALTY_COMPARE_PART"

// Order is what a part is told. Each part knows some of them.
type Order struct {
	Do     string `json:"do"`
	Dir    string `json:"dir,omitempty"`    // for its files
	Target string `json:"target,omitempty"` // an address, or a token
	N      int    `json:"n,omitempty"`
}

// Answer is what a part says.
type Answer struct {
	Error  string `json:"error,omitempty"`
	Target string `json:"target,omitempty"`
}

// Handler carries out the orders of a part.
type Handler interface {
	Do(ctx context.Context, o Order) (Answer, error)
	Close() error
}

// Be takes orders until in ends.
func Be(h Handler, in io.Reader, out io.Writer) (err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer func() { cancel(); err = errors.Join(err, h.Close()) }()
	orders, answers := json.NewDecoder(bufio.NewReader(in)), json.NewEncoder(out)
	for {
		var o Order
		switch err := orders.Decode(&o); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		var a Answer
		if a, err = carryOut(ctx, h, o); err != nil {
			a.Error = err.Error()
		}
		if err := answers.Encode(a); err != nil {
			return err
		}
	}
}

// carryOut has h do what it is told, but for what any process does alike.
func carryOut(ctx context.Context, h Handler, o Order) (Answer, error) {
	switch o.Do {
	case "collect": // what is no longer used is given back, so that memory can be compared
		debug.FreeOSMemory()
		return Answer{}, nil
	case "profile":
		f, err := os.Create(o.Target)
		if err != nil {
			return Answer{}, err
		}
		return Answer{}, pprof.StartCPUProfile(f)
	case "profiled":
		pprof.StopCPUProfile()
		return Answer{}, nil
	}
	return h.Do(ctx, o)
}

// Process is a part in a process of its own, as the one that compares sees it.
type Process struct {
	name string
	cmd  *exec.Cmd
	in   io.WriteCloser
	say  *json.Encoder
	out  *json.Decoder
}

// Of is a program that takes no orders, as it is measured: cmd was started.
func Of(name string, cmd *exec.Cmd) *Process { return &Process{name: name, cmd: cmd} }

// Start starts a part of the program at path, with more in its environment. Without a path the program is this one.
func Start(ctx context.Context, path string, env []string, name string) (_ *Process, err error) {
	if path == "" {
		if path, err = os.Executable(); err != nil {
			return nil, err
		}
	}
	p := &Process{name: name, cmd: exec.CommandContext(ctx, path)}
	p.cmd.Env, p.cmd.Stderr = slices.Concat(os.Environ(), env, []string{Variable + "=" + name}), os.Stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.say, p.out = json.NewEncoder(p.in), json.NewDecoder(out)
	return p, p.cmd.Start()
}

// Tell has the part carry out an order, and returns its answer.
func (p *Process) Tell(o Order) (Answer, error) {
	if err := p.say.Encode(o); err != nil {
		return Answer{}, fmt.Errorf("%s: %s: %w", p.name, o.Do, err)
	}
	var a Answer
	if err := p.out.Decode(&a); err != nil {
		return Answer{}, fmt.Errorf("%s: %s: %w", p.name, o.Do, err)
	}
	if a.Error != "" {
		return a, fmt.Errorf("%s: %s: %s", p.name, o.Do, a.Error)
	}
	return a, nil
}

// Stop has the process end with its input, and waits for it.
func (p *Process) Stop() error {
	p.in.Close()
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	return nil
}

// CPU returns the CPU time that the process has used.
func (p *Process) CPU() (time.Duration, error) { return CPUOf(p.cmd.Process.Pid) }

// CPUOf returns the CPU time that a process has used, by the kernel's clock of it: in nanoseconds, where the figures of
// /proc are in hundredths of a second.
func CPUOf(pid int) (time.Duration, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|2), &t); err != nil {
		return 0, fmt.Errorf("read the clock of CPU time: %w", err)
	}
	return time.Duration(t.Nano()), nil
}

// Memory returns the bytes of memory that the process holds.
func (p *Process) Memory() (float64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			return kib * 1024, err
		}
	}
	return 0, fmt.Errorf("%s: its status has no VmRSS", p.name)
}
