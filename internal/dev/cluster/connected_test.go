// In the package, because what awaitConnected waits for is a function that the test gives it.
package cluster

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
)

// Nobody waits in silence, and a member that never comes is a warning: it goes on
// trying, and the cluster runs.
func TestAwaitConnected(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var said []string
		say := func(text string) { said = append(said, text) }
		started := time.Now()
		come := func(after time.Duration) func(context.Context) ([]string, error) {
			return func(context.Context) ([]string, error) {
				if time.Since(started) >= after {
					return nil, nil
				}
				return []string{"node-c"}, nil
			}
		}
		if err := awaitConnected(t.Context(), say, come(time.Second)); err != nil || len(said) > 0 {
			t.Errorf("one that came in time: %v, %q", err, said)
		}
		if err := awaitConnected(t.Context(), say, come(10*time.Second)); err != nil || !slices.Contains(said, "waiting for node-c …") {
			t.Errorf("one that came late: %v, %q", err, said)
		}
		said = nil
		err := awaitConnected(t.Context(), say, come(time.Hour))
		if err != nil || len(said) < 2 || !strings.HasPrefix(said[len(said)-1], "warning: not connected after 2m0s: node-c") {
			t.Errorf("one that never came: %v, %q", err, said)
		}
		broken := errors.New("no answer")
		if err := awaitConnected(t.Context(), say, func(context.Context) ([]string, error) { return nil, broken }); !errors.Is(err, broken) {
			t.Errorf("nobody could tell: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := awaitConnected(ctx, say, come(time.Hour)); !errors.Is(err, context.Canceled) {
			t.Errorf("it was interrupted: %v", err)
		}
	})
}

// A cluster of which a member was banned, one removed and one set to drain starts
// again, and says whom it does not wait for.
func TestStartWithoutWhoIsKeptOut(t *testing.T) {
	t.Parallel()
	ctx, dir := t.Context(), t.TempDir()
	opts := Options{DataDir: dir, Coordinators: 1, Members: []string{"node-a", "node-b", "node-c", "node-d"}, Release: "test", Log: quiet()}
	c, err := Start(ctx, opts)
	if err != nil {
		t.Fatal(err)
	}
	err = c.WithAdmin(func(conn *grpc.ClientConn) error {
		members := fealtyv1.NewMemberServiceClient(conn)
		_, ban := members.BanMember(ctx, &fealtyv1.BanMemberRequest{Kind: "data", Name: "node-c", Reason: "trying it out"})
		_, remove := members.RemoveMember(ctx, &fealtyv1.RemoveMemberRequest{Kind: "data", Name: "node-b", Force: true, Reason: "trying it out"})
		_, drain := members.DrainMember(ctx, &fealtyv1.DrainMemberRequest{Kind: "data", Name: "node-d"})
		return errors.Join(ban, remove, drain)
	})
	if err := errors.Join(err, c.Close()); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var said []string // guarded by mu
	opts.Progress = func(text string) {
		mu.Lock()
		defer mu.Unlock()
		said = append(said, text)
	}
	if c, err = Start(ctx, opts); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	mu.Lock()
	defer mu.Unlock()
	for _, want := range []string{"node-b was removed: it is not waited for", "node-c is banned: it is not waited for", "node-d is draining: it is not waited for"} {
		if !slices.Contains(said, want) {
			t.Errorf("%q was not said: %q", want, said)
		}
	}
	if missing, err := c.unconnected(ctx, []string{"node-a"}); err != nil || len(missing) > 0 {
		t.Errorf("node-a is not connected: %v", err)
	}
}
