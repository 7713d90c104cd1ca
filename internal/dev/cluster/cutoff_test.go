package cluster // inside: it begins a join as Cluster.Join does, and cuts it off

import (
	"context"
	"log/slog"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/node/enroll"
)

// deaf is a connection whose end hears nothing more, once it is told so.
type deaf struct {
	net.Conn
	now  *atomic.Bool    // from now on
	over <-chan struct{} // closed when the connection ends
}

func (d deaf) Read(p []byte) (int, error) {
	n, err := d.Conn.Read(p)
	if d.now.Load() {
		<-d.over
		return 0, net.ErrClosed
	}
	return n, err
}

// A member that was admitted, and was cut off before it heard so, joins when the cluster
// starts again: by the token that it began with, which is then gone.
func TestJoinThatWasCutOff(t *testing.T) {
	t.Parallel()
	const name = "node-x"
	c, err := Start(t.Context(), Options{Members: []string{}, Release: "test", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	tok, err := c.Token(t.Context(), &fealtyv1.CreateTokenRequest{Entry: PoolEntry, Name: name})
	if err != nil {
		t.Fatal(err)
	}
	begun := c.MemberDir(name) + tokenSuffix
	if err := keepToken(begun, tok); err != nil {
		t.Fatal(err)
	}
	ctx, cutOff := context.WithCancel(t.Context())
	defer cutOff()
	go func() { // once it was admitted
		for ctx.Err() == nil && len(members(t, c)) == 0 {
			time.Sleep(5 * time.Millisecond)
		}
		cutOff()
	}()
	var hushed atomic.Bool
	cut := ctx.Done()
	_, err = enroll.Join(ctx, enroll.JoinConfig{
		DataDir: c.MemberDir(name), Proof: enroll.ByToken(tok), Kind: identity.Data, Log: slog.New(slog.DiscardHandler), Release: "test",
		Dial: func(ctx context.Context, addr string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
			return deaf{conn, &hushed, cut}, err
		},
		Progress: func(s enroll.Step) {
			if s.Name == enroll.StepClock {
				hushed.Store(true)
			}
		},
	})
	if err == nil || ctx.Err() == nil {
		t.Fatalf("the join was not cut off: %v", err)
	}
	was := members(t, c)[0].GetKeyId()
	joined, err := c.Join(t.Context(), name)
	if now := members(t, c); err != nil || !joined || len(now) != 1 || now[0].GetKeyId() != was {
		t.Fatalf("it joined: %v, %v, with key %s after %s", joined, err, now[0].GetKeyId(), was)
	}
	if _, err := os.Stat(begun); !os.IsNotExist(err) {
		t.Errorf("the token that was used: %v", err)
	}
}

func members(t *testing.T, c *Cluster) []*fealtyv1.Member {
	t.Helper()
	st, err := c.Status(t.Context())
	if err != nil {
		t.Error(err)
	}
	return st.GetMembers()
}
