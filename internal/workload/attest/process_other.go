//go:build !linux

package attest

import (
	"context"
	"errors"
	"net"

	"github.com/fealty-io/fealty/internal/workload"
)

// Process is a process that opened a connection.
type Process struct{}

// MaxFiles is not known.
func MaxFiles() int { return 0 }

// OpenProcess refuses: this system is not asked who is on the other end.
func OpenProcess(net.Conn, *Hashes) (*Process, error) {
	return nil, errors.New("attest: processes are told apart on Linux alone")
}

// Close does nothing.
func (p *Process) Close() error { return nil }

// PID is 0.
func (p *Process) PID() int32 { return 0 }

// UID is nobody's.
func (p *Process) UID() uint32 { return 1<<32 - 1 }

// GID is nobody's.
func (p *Process) GID() uint32 { return 1<<32 - 1 }

// Facts are none.
func (p *Process) Facts(context.Context, workload.Want) (workload.Facts, error) {
	return workload.Facts{}, ErrGone
}

// FindProcess refuses, as [OpenProcess] does.
func FindProcess(int32, *Hashes) (*Process, error) { return OpenProcess(nil, nil) }
