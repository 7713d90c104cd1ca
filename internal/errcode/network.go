package errcode

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"syscall"
)

// Network says what the network answered to who wanted a connection, in words of people.
// An error without any is said as it says itself.
func Network(err error) string {
	var dns *net.DNSError
	switch {
	case errors.As(err, &dns):
		return "the name " + dns.Name + " has no address"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "nothing listens there"
	case errors.Is(err, fs.ErrNotExist):
		return "there is no such socket: the process does not run, or it has another folder"
	case errors.Is(err, fs.ErrPermission) && Local(err):
		return "this user may not open it: run as the user of the process, or as root"
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return "it did not answer in time"
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Err != nil {
		return op.Err.Error()
	}
	return err.Error()
}

// Local reports whether err is of a socket of this machine.
func Local(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Net == "unix"
}
