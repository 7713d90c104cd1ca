//go:build !linux

package process

import (
	"errors"
	"os/exec"
)

// Supported reports whether shards can be shown here: the provider of processes runs on Linux.
const Supported = false

// Unsupported is why.
const Unsupported = "the provider of processes, whose machines a shard acts on here, runs on Linux alone"

var errSystem = errors.New("process: programs are stopped and woken on Linux alone")

func apart(*exec.Cmd) {}

func pause(int) error { return errSystem }
func wake(int) error  { return errSystem }
func kill(int) error  { return errSystem }
func Alive(int) bool  { return false }
