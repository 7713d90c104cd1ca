package story

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/dev/cluster"
	"github.com/fealty-io/fealty/internal/dev/process"
	"github.com/fealty-io/fealty/internal/node/client"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/mesh"
)

// wire is the one TCP connection of a client.
type wire struct {
	net.Conn
	ended chan struct{} // closed when nothing comes any more
	end   func()
}

func (w *wire) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	if err != nil {
		w.end()
	}
	return n, err
}

// caller is a member that calls the provider with the certificate that it has now. It follows
// nothing: what ends its connection is the other end.
type caller struct {
	conn  *mesh.Conn
	wires chan *wire // each that was opened
}

// newCaller has a member join, and takes its certificate.
func (e *edges) newCaller(ctx context.Context, name, target string, expect identity.ID) (*caller, error) {
	folder, err := e.join(ctx, identity.Shard, name)
	if err != nil {
		return nil, err
	}
	agent, err := client.Open(client.Config{Dir: folder, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	m, err := agent.Source().Current(ctx)
	if err != nil {
		return nil, err
	}
	c := &caller{wires: make(chan *wire, 64)}
	c.conn, err = mesh.Dial("passthrough:///"+target, credential.Static(m), credential.ExactID(expect),
		mesh.Options{Dialer: func(ctx context.Context, addr string) (net.Conn, error) {
			raw, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
			if err != nil {
				return nil, err
			}
			w := &wire{Conn: raw, ended: make(chan struct{})}
			w.end = sync.OnceFunc(func() { close(w.ended) })
			select {
			case c.wires <- w:
			default: // one of many that were refused
			}
			return w, nil
		}})
	return c, err
}

func (c *caller) call(ctx context.Context) error {
	_, err := fealtyv1.NewProviderServiceClient(c.conn).ListMachines(ctx, &fealtyv1.ListMachinesRequest{Limit: 1})
	return err
}

// revokedConnection has two shards be connected to a provider that believes what its agent
// believes, and one of them banned.
func (e *edges) revokedConnection(ctx context.Context) (string, error) {
	e.c.Means().Note("", "a provider as a program beside its agent")
	folder, err := e.join(ctx, identity.Provider, "edge")
	if err != nil {
		return "", err
	}
	if err := durable.OS().WriteFile(e.profiles(), []byte(profiles)); err != nil {
		return "", err
	}
	p, err := e.started(process.Serve(process.Config{Dir: e.dir, Name: "edge", Program: e.program,
		Args: []string{"provider", "process", "--agent", folder, "--profiles", e.profiles(), "--believe-epochs"}}))
	if err != nil {
		return "", err
	}
	id, err := identity.New(e.c.ID(), identity.Provider, "edge")
	if err != nil {
		return "", err
	}
	var open [2]*wire
	var callers [2]*caller
	for i, name := range []string{"stolen", "honest"} {
		if callers[i], err = e.newCaller(ctx, name, p.At, id); err != nil {
			return "", err
		}
		defer callers[i].conn.Close()
	}
	if err := e.c.Await(ctx, p.Name+" to serve", p.Serves); err != nil {
		return "", err
	}
	for i, c := range callers {
		if err := c.call(ctx); err != nil {
			return "", fmt.Errorf("a call before the ban: %w", err)
		}
		open[i] = <-c.wires
	}
	err = e.c.WithAdmin(func(conn *grpc.ClientConn) error {
		_, err := fealtyv1.NewMemberServiceClient(conn).BanMember(ctx, &fealtyv1.BanMemberRequest{
			Kind: string(identity.Shard), Name: "stolen", Reason: "the story says that its key was stolen"})
		return err
	})
	if err != nil {
		return "", err
	}
	acknowledged := time.Now()
	select {
	case <-open[0].ended:
	case <-time.After(cluster.AwaitLimit): // 5 seconds are promised; the step says how long it took, on a machine with other work
		return "", fmt.Errorf("%s after the ban was acknowledged the connection stands", cluster.AwaitLimit)
	case <-ctx.Done():
		return "", ctx.Err()
	}
	took := time.Since(acknowledged)
	let := false
	err = e.c.Await(ctx, "the banned member to be refused when it calls again", func(context.Context) (bool, error) {
		err := callers[0].call(ctx)
		let = let || err == nil
		// Until the client has noted the end of the connection, a call may fail on that.
		refused, ok := errors.AsType[*mesh.HandshakeError](err)
		return let || ok && refused.Reason == mesh.ClientRejected, err
	})
	if let {
		return "", errors.New("the banned member calls again, and gets an answer")
	}
	if err != nil {
		return "", err
	}
	if err := callers[1].call(ctx); err != nil {
		return "", fmt.Errorf("the member beside it: %w", err)
	}
	select {
	case <-open[1].ended:
		return "", errors.New("the connection of the member beside it ended too")
	case <-callers[1].wires:
		return "", errors.New("the member beside it had to connect again")
	default:
	}
	return fmt.Sprintf("its connection ended %d ms after the ban was acknowledged; when it connects again it is "+
		"refused (%s); the other member's connection stands", took.Milliseconds(), mesh.ClientRejected), nil
}
