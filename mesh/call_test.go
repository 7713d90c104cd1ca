package mesh_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/mesh"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The context of a call ends with its connection for a handler that waits for that, for one that
// looks only now and then, and for what either derives from it; each time the cause is the cut.
func TestContextOfACall(t *testing.T) {
	for name, derive := range map[string]func(context.Context) (context.Context, context.CancelFunc){
		"itself": func(ctx context.Context) (context.Context, context.CancelFunc) { return ctx, func() {} },
		"a deadline": func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, time.Hour)
		},
		"a value": func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithValue(ctx, new(int), 1), func() {}
		},
	} {
		for _, waits := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					a := pkitest.NewAuthority(t, cluster)
					ln, opts := inMemory()
					src := credential.NewIssued(material(t, a, identity.Coordinator, "c1"))
					s := serve(t, ln, mesh.GuardConfig{Source: src})
					m := material(t, a, identity.Data, "n1")
					s.onWho = func(ctx context.Context) {
						ctx, cancel := derive(ctx)
						defer cancel()
						if err := context.Cause(ctx); err != nil || ctx.Err() != nil || identity.FromContext(ctx).ID != m.ID() {
							t.Errorf("before the ban: %v, %v, a call of %v", err, ctx.Err(), identity.FromContext(ctx).ID)
						}
						if err := src.Trust(banning(a, m.ID())); err != nil {
							t.Error(err)
						}
						if waits {
							<-ctx.Done()
						} else {
							time.Sleep(mesh.DefaultGrace / 2)
						}
						cut, ok := errors.AsType[*mesh.CutError](context.Cause(ctx))
						if !ok || cut.Reason != mesh.PeerBanned || ctx.Err() != context.Canceled {
							t.Errorf("after the ban: %v, because of %v", ctx.Err(), context.Cause(ctx))
						}
						select {
						case <-ctx.Done():
						default:
							t.Error("nobody who begins to wait now is told")
						}
					}
					c := dial(t, "passthrough:///c1", credential.Static(m), credential.AnyOfKind(identity.Coordinator), opts)
					if _, err := who(t, c); err != nil {
						t.Errorf("the answer that was given after the cut: %v", err)
					}
					if _, err := who(t, c); status.Code(err) != codes.PermissionDenied && !rejected(err, mesh.ClientRejected) {
						t.Errorf("another call: %v", err)
					}
				})
			})
		}
	}
}

// A call that is over is not remembered, however its context was used: before its end or after it.
func TestCallsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := pkitest.NewAuthority(t, cluster)
		ln, opts := inMemory()
		s := serve(t, ln, mesh.GuardConfig{Source: credential.Static(material(t, a, identity.Coordinator, "c1"))})
		c := dial(t, "passthrough:///c1", credential.Static(material(t, a, identity.Data, "n1")),
			credential.AnyOfKind(identity.Coordinator), opts)
		var of context.Context
		for name, during := range map[string]bool{"waits during the call": true, "waits after it": false} {
			s.onWho = func(ctx context.Context) {
				if of = ctx; during {
					ctx.Done()
				}
				if _, waited := s.guard.Calls(); waited != map[bool]int{true: 1}[during] {
					t.Errorf("%s: %d are waited for", name, waited)
				}
			}
			if _, err := who(t, c); err != nil {
				t.Fatal(err)
			}
			<-of.Done()
			if of.Err() != context.Canceled {
				t.Errorf("%s: %v", name, of.Err())
			}
			if all, waited := s.guard.Calls(); all+waited != 0 {
				t.Errorf("%s: %d calls run, and %d are waited for", name, all, waited)
			}
		}
	})
}
