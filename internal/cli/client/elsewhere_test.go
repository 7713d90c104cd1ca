package client // where a call goes next is decided on what no caller sees

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fealty-io/fealty/internal/errcode"
)

// A question to a coordinator that cannot read its store is asked of the next; a change
// is not tried twice.
func TestStoreElsewhere(t *testing.T) {
	for _, changes := range []bool{false, true} {
		if got := (&Line{}).elsewhere(true, changes, errcode.New(errcode.StoreUnreachable)); got == changes {
			t.Errorf("changes %v: %v", changes, got)
		}
	}
}

// Calls go to the next endpoint only where nothing can have happened.
func TestElsewhere(t *testing.T) {
	for _, tt := range []struct {
		name          string
		sent, changes bool
		err           error
		want          bool
	}{
		{"not reached", false, true, errcode.New(errcode.Unreachable), true},
		{"not trusted", false, true, errcode.New(errcode.PeerUntrusted), true},
		{"recovering", true, true, errcode.New(errcode.RecoveryMode), true},
		{"done before it was recovering", true, true, errcode.New(errcode.DoneNotInForce), false},
		{"refused", true, false, errcode.New(errcode.Denied), false},
		{"unknown", true, true, errcode.New(errcode.OutcomeUnknown), false},
		{"a change that was lost", true, true, errcode.New(errcode.Unreachable), false},
		{"a question that was lost", true, false, errcode.New(errcode.Unreachable), true},
	} {
		if got := (&Line{}).elsewhere(tt.sent, tt.changes, tt.err); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
	// A change that was sent is made again after two answers alone: those of a coordinator
	// which did nothing.
	for _, code := range errcode.Codes() {
		if got := (&Line{}).elsewhere(true, true, errcode.New(code)); got != (code == errcode.RecoveryMode || code == errcode.HeadNotFollowed) {
			t.Errorf("after %s a change is made again elsewhere: %v", code, got)
		}
	}
}

// answers is a stream whose first message comes, or fails, or does not come until the stream is ended.
type answers struct {
	grpc.ClientStream
	ctx    context.Context
	err    error
	silent bool
}

func (a answers) Recv() (*wrapperspb.StringValue, error) {
	if a.silent {
		<-a.ctx.Done()
		return nil, a.ctx.Err()
	}
	return wrapperspb.String("first"), a.err
}

// A stream begins at the next endpoint where one is silent for as long as a call may take, or not ready; where all are
// silent it ends with that, and none is asked twice. What refuses is asked alone.
func TestStreamBeginsElsewhere(t *testing.T) {
	const timeout = 5 * time.Second
	recovering, denied := answers{err: errcode.New(errcode.RecoveryMode)}, answers{err: errcode.New(errcode.Denied)}
	for _, tt := range []struct {
		name  string
		each  []answers
		want  errcode.Code // "": the first message came
		asked int
		took  time.Duration
	}{
		{"silent, then one that answers", []answers{{silent: true}, {}}, "", 2, timeout},
		{"not ready, silent, then one that answers", []answers{recovering, {silent: true}, {}, {}}, "", 3, timeout},
		{"all are silent", []answers{{silent: true}, {silent: true}}, errcode.Unreachable, 2, 2 * timeout},
		{"refused", []answers{denied, {}}, errcode.Denied, 1, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &Line{timeout: timeout}
				for range tt.each {
					l.endpoints = append(l.endpoints, &endpoint{name: "one"})
				}
				began, asked := time.Now(), 0
				_, first, end, err := FirstOf(t.Context(), l, "CreateBackup",
					func(ctx context.Context) (grpc.ServerStreamingClient[wrapperspb.StringValue], error) {
						a := tt.each[asked]
						a.ctx = ctx
						asked++
						return a, nil
					})
				got := errcode.Code("")
				if err != nil {
					got = errcode.Of(err).Code
				} else {
					defer end()
					if first.GetValue() != "first" {
						t.Errorf("the first message is %v", first)
					}
				}
				if took := time.Since(began); got != tt.want || asked != tt.asked || took != tt.took {
					t.Errorf("%q after %d were asked, and %v (%v); want %q after %d, and %v", got, asked, took, err, tt.want, tt.asked, tt.took)
				}
			})
		})
	}
}
