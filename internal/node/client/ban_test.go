package client_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/test/bufconn"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/node/client"
	"github.com/fealty-io/fealty/mesh"
	"github.com/fealty-io/fealty/test/wait"
)

// A connection of a banned member ends at every end endWithin after the ban was acknowledged, of
// which deliverWithin is for the way to the agent, that has no period: a coordinator sends what
// changed at once. The rest are the periods in a program beside the agent.
const (
	endWithin     = 5 * time.Second
	deliverWithin = 2500 * time.Millisecond
)

// endings listens, and says when the server closed a connection. At the client's end nothing says so:
// one that was told to go away hangs up by itself, and may read no more.
type endings struct {
	net.Listener
	end func()
}

func (l endings) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return ending{c, l.end}, nil
}

type ending struct {
	net.Conn
	end func()
}

func (c ending) Close() error {
	defer c.end()
	return c.Conn.Close()
}

// deaf serves calls that look at nothing until release is closed.
type deaf struct {
	*health.Server
	release chan struct{}
}

func (d deaf) Watch(_ *healthpb.HealthCheckRequest, s grpc.ServerStreamingServer[healthpb.HealthCheckResponse]) error {
	err := s.Send(new(healthpb.HealthCheckResponse))
	<-d.release
	return err
}

// In virtual time, with what a real agent wrote: whenever between two looks of the program the ban
// comes, what the banned member has open is ended in the time that delivery leaves of the five
// seconds, also where the call that runs does not look at its context.
func TestBanEndsWhatIsOpenInTime(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	folder := joined(t, f, "node-a")
	stolen := f.Member("node-b")
	before, after := t.TempDir(), t.TempDir()
	put(t, folder, before)
	a, err := client.Open(client.Config{Dir: folder, Now: f.Clock, Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	trusted, err := a.Source().Current(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = fealtyv1.NewMemberServiceClient(f.LocalConn()).BanMember(t.Context(), &fealtyv1.BanMemberRequest{Kind: "data",
		Name: "node-b", Reason: "stolen"})
	if err != nil {
		t.Fatal(err)
	}
	banned := stolen.ID
	wait.Until(t, "the agent believes the ban", func() bool {
		a.Look()
		m, err := a.Source().Current(t.Context())
		return err == nil && m.Bundle().Banned(banned, identity.KeyID{})
	})
	put(t, folder, after)

	real := f.Clock()
	for _, phase := range []time.Duration{0, time.Nanosecond, time.Second, 2*time.Second - time.Nanosecond} {
		live := t.TempDir()
		put(t, before, live)
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			now := func() time.Time { return real.Add(time.Since(began)) }
			a, err := client.Open(client.Config{Dir: live, Now: now, Log: quiet})
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			var all sync.WaitGroup
			defer all.Wait()
			defer stop()
			all.Go(func() { _ = a.Run(ctx) })
			guard, err := mesh.NewGuard(mesh.GuardConfig{Source: a.Source(), Now: now})
			if err != nil {
				t.Fatal(err)
			}
			l, s := bufconn.Listen(1<<16), grpc.NewServer(guard.ServerOptions()...)
			d := deaf{health.NewServer(), make(chan struct{})}
			healthpb.RegisterHealthServer(s, d)
			ended := make(chan time.Time, 64)
			all.Go(func() { _ = s.Serve(endings{l, func() { ended <- time.Now() }}) })
			defer s.Stop()
			defer close(d.release)
			m, err := credential.NewMaterial(credential.MaterialConfig{Chain: stolen.Chain, Key: stolen.Key,
				Bundle: trusted.Bundle(), Now: now})
			if err != nil {
				t.Fatal(err)
			}
			c, err := mesh.Dial("passthrough:///a", credential.Static(m), credential.ExactID(a.ID()), mesh.Options{Now: now,
				Dialer: func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			call, done := context.WithTimeout(ctx, time.Minute) // where nothing ends it, the test fails
			defer done()
			stream, err := healthpb.NewHealthClient(c).Watch(call, new(healthpb.HealthCheckRequest))
			if err == nil {
				_, err = stream.Recv()
			}
			if err != nil {
				t.Fatal("before the ban:", err)
			}
			time.Sleep(20*time.Second + phase - time.Since(began)) // so long after a look
			synctest.Wait()
			select {
			case <-ended:
				t.Fatal("the connection ended before the ban")
			default:
			}
			put(t, after, live)
			written := time.Now()
			if _, err := stream.Recv(); err == nil {
				t.Error("the call goes on")
			}
			select {
			case at := <-ended:
				if took := at.Sub(written); took > endWithin-deliverWithin {
					t.Errorf("written %v after a look, the ban ends the connection after %v, want %v", phase, took,
						endWithin-deliverWithin)
				}
			case <-time.After(time.Minute):
				t.Errorf("written %v after a look, the ban ends no connection", phase)
			}
		})
	}
}
