package story

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/dev/process"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/platform/localsocket"
	"github.com/fealty-io/fealty/internal/workload/files"
	"github.com/fealty-io/fealty/mesh"
)

const (
	host        = "host-a" // the machine of the processes
	service     = "billing"
	workload    = "billing/api"
	maxCertFile = 64 << 10 // bytes
)

// workloadSVID has an agent run as a program, and two processes ask it: one by the path that is
// registered, and one by another path.
func (e *edges) workloadSVID(ctx context.Context) (string, error) {
	e.c.Means().Note("", "an agent and two processes of its machine as programs")
	folder := filepath.Join(e.dir, host)
	socket := filepath.Join(e.dir, "workload.sock")
	if err := localsocket.CheckPath(socket); err != nil {
		return "", err
	}
	if err := e.runHost(ctx, folder, socket); err != nil {
		return "", err
	}
	right, err := e.copyProgram(service)
	if err != nil {
		return "", err
	}
	id := "spiffe://" + e.c.ID() + "/" + string(identity.Workload) + "/" + workload
	record := fmt.Sprintf("kind: service\nname: %s\ntype: process\nmembers: [data/%s]\n"+
		"workload: {id: %s, uid: %d, path: %q}\n", service, host, workload, os.Getuid(), right)
	err = e.c.WithAdmin(func(conn *grpc.ClientConn) error {
		_, err := fealtyv1.NewConfigServiceClient(conn).PutConfig(ctx,
			&fealtyv1.PutConfigRequest{Records: [][]byte{[]byte(record)}})
		return err
	})
	if err != nil {
		return "", err
	}
	agent, err := mesh.DialLocal(filepath.Join(folder, dir.SocketName))
	if err != nil {
		return "", err
	}
	defer agent.Close()
	local := fealtyv1.NewLocalWorkloadServiceClient(agent)
	err = e.c.Await(ctx, "the agent to have a certificate of "+id, func(ctx context.Context) (bool, error) {
		l, err := local.ListWorkloads(ctx, &fealtyv1.ListWorkloadsRequest{})
		for _, w := range l.GetWorkloads() {
			if w.GetSpiffeId() == id && w.GetNotAfter() != nil {
				return true, nil
			}
		}
		return false, errors.Join(err, fmt.Errorf("it has %v", l.GetWorkloads()))
	})
	if err != nil {
		return "", err
	}
	ask := func(name, program string) (*process.Program, error) {
		return e.started(process.Start(process.Config{Dir: e.dir, Name: name, Program: program,
			Args: []string{"workload", "write", "--dir", filepath.Join(e.dir, name+"-tls"), "--socket",
				"unix:" + socket}}))
	}
	assigned, err := ask("assigned", right)
	if err != nil {
		return "", err
	}
	another, err := ask("unassigned", e.program)
	if err != nil {
		return "", err
	}
	if err := e.awaitSVID(ctx, assigned, id); err != nil {
		return "", err
	}
	err = e.c.Await(ctx, "another process to be refused", func(context.Context) (bool, error) {
		return strings.Contains(another.Said(), "no identity issued"), errors.Join(another.Runs(),
			fmt.Errorf("it says %q", another.Said()))
	})
	if err != nil {
		return "", err
	}
	why, err := e.whyNot(ctx, local, another, id)
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(filepath.Join(e.dir, another.Name+"-tls", files.Certificate)); err == nil {
		return "", errors.New("the process that was refused has a certificate")
	}
	return fmt.Sprintf("process %d has a certificate of %s; process %d, of the same user, is told "+
		"\"no identity issued\", and the agent says: %s", assigned.PID(), id, another.PID(), why), nil
}

// runHost has a machine join whose processes may have identities, with its agent as a program.
func (e *edges) runHost(ctx context.Context, folder, socket string) error {
	token := filepath.Join(e.dir, host+".token")
	err := e.c.WithAdmin(func(conn *grpc.ClientConn) error {
		resp, err := fealtyv1.NewTokenServiceClient(conn).CreateToken(ctx, &fealtyv1.CreateTokenRequest{Entry: "hosts",
			Name: host})
		if err != nil {
			return err
		}
		return durable.OS().WriteFile(token, []byte(resp.GetLine()))
	})
	if err != nil {
		return err
	}
	p, err := e.started(process.Start(process.Config{Dir: e.dir, Name: host, Program: e.program,
		Args: []string{"join", "--run", "--data", folder, "--token-file", token, "--workload-socket", socket}}))
	if err != nil {
		return err
	}
	err = e.c.Await(ctx, host+" to serve its processes", func(context.Context) (bool, error) {
		_, err := os.Stat(socket)
		return err == nil, errors.Join(p.Runs(), err)
	})
	return errors.Join(err, os.Remove(token))
}

// copyProgram returns the path of the program under another name, as the kernel says it.
func (e *edges) copyProgram(name string) (string, error) {
	at, err := filepath.EvalSymlinks(e.dir)
	if err != nil {
		return "", err
	}
	path := filepath.Join(at, name)
	if os.Link(e.program, path) == nil {
		return path, nil
	}
	// It is of somebody else, or on another file system.
	from, err := os.Open(e.program)
	if err != nil {
		return "", err
	}
	defer from.Close()
	to, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o700)
	if err != nil {
		return "", err
	}
	_, err = io.Copy(to, from)
	return path, errors.Join(err, to.Close())
}

// awaitSVID waits until a process has the certificate of id, which leads to the roots beside it.
func (e *edges) awaitSVID(ctx context.Context, p *process.Program, id string) error {
	at := filepath.Join(e.dir, p.Name+"-tls")
	return e.c.Await(ctx, "a process to have its certificate", func(context.Context) (bool, error) {
		if err := p.Runs(); err != nil {
			return false, err
		}
		leaf, err := certificateIn(filepath.Join(at, files.Certificate))
		if err != nil {
			return false, fmt.Errorf("%w: %s", err, p.Said())
		}
		switch got, err := identity.FromCertificate(leaf); {
		case err != nil:
			return false, err
		case got.String() != id:
			return false, fmt.Errorf("it is of %s", got)
		}
		chain, roots := x509.NewCertPool(), x509.NewCertPool()
		for file, pool := range map[string]*x509.CertPool{files.Certificate: chain, files.Bundle: roots} {
			text, err := durable.OS().ReadFile(filepath.Join(at, file), maxCertFile)
			if err != nil {
				return false, err
			}
			pool.AppendCertsFromPEM(text)
		}
		_, err = leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: chain})
		return err == nil, err
	})
}

// certificateIn reads the first certificate of a file.
func certificateIn(path string) (*x509.Certificate, error) {
	text, err := durable.OS().ReadFile(path, maxCertFile)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("%s holds no PEM", path)
	}
	return x509.ParseCertificate(block.Bytes)
}

// whyNot returns why a process is not id, as the agent says to who may ask.
func (e *edges) whyNot(ctx context.Context, local fealtyv1.LocalWorkloadServiceClient, p *process.Program,
	id string) (string, error) {
	resp, err := local.CheckWorkload(ctx, &fealtyv1.CheckWorkloadRequest{Pid: int32(p.PID())})
	if err != nil {
		return "", err
	}
	for _, f := range resp.GetFits() {
		if f.GetSpiffeId() == id && f.GetMismatch() != "" {
			return f.GetMismatch(), nil
		}
	}
	return "", fmt.Errorf("the agent does not say why process %d is not %s: %v", p.PID(), id, resp)
}
