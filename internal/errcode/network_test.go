package errcode_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/fealty-io/fealty/internal/errcode"
)

func TestNetwork(t *testing.T) {
	t.Parallel()
	of := func(network string, err error) error {
		return fmt.Errorf("dial: %w", &net.OpError{Op: "dial", Net: network, Err: err})
	}
	for _, row := range []struct {
		err   error
		want  string
		local bool
	}{
		{of("tcp", &net.DNSError{Name: "c1.example", IsNotFound: true}), "the name c1.example has no address", false},
		{of("tcp", os.NewSyscallError("connect", syscall.ECONNREFUSED)), "nothing listens there", false},
		{of("tcp", os.ErrDeadlineExceeded), "it did not answer in time", false},
		{context.DeadlineExceeded, "it did not answer in time", false},
		{of("unix", fs.ErrNotExist), "there is no such socket: the process does not run, or it has another folder", true},
		{of("unix", fs.ErrPermission), "this user may not open it: run as the user of the process, or as root", true},
		{of("tcp", fs.ErrPermission), fs.ErrPermission.Error(), false},
		{of("tcp", os.NewSyscallError("connect", syscall.ENETUNREACH)), "connect: network is unreachable", false},
		{errors.New("anything else"), "anything else", false},
	} {
		if got := errcode.Network(row.err); got != row.want || errcode.Local(row.err) != row.local {
			t.Errorf("%v: %q, local %t, want %q, %t", row.err, got, errcode.Local(row.err), row.want, row.local)
		}
	}
}
