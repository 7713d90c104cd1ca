package operator

import (
	"context"
	"errors"
	"io"
	"iter"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/shard/scheduler"
	"github.com/fealty-io/fealty/internal/shard/session"
)

// View is what a shard knows of a tenant.
type View struct {
	Shard Shard

	// Known: a demand was taken since the shard started. While none was, the tenant is given nothing, and nothing is
	// taken from it.
	Known bool

	// Demand is what counts, by profile and the highest priority first.
	Demand []Row

	// Run and Number are of what was stated last; 0: nothing was since the shard started. Held: it drops almost
	// everything, and Demand is what was stated before.
	Run, Number uint64
	Held        bool

	// Session: an operator of the tenant has a session now.
	Session bool

	// Capacity is what the tenant has, by profile.
	Capacity []Capacity

	// Notices are the machines that it is about to lose, those first that it loses first, and at most 1,024 of them;
	// More is how many more there are.
	Notices []Notice
	More    int
}

// View returns what the shard knows of the tenant now. Errors are those of [Operator.Watch].
func (o *Operator) View(ctx context.Context) (now View, err error) {
	o.Watch(ctx)(func(v View, failed error) bool {
		now, err = v, failed
		return false
	})
	return now, err
}

// Watch tells what the shard knows of the tenant: first as it is now, then each time that a cycle changed it, until
// the caller stops or ctx ends. It takes no session's place, and needs no Run. It does not connect again: an error is
// the last of what it tells, and matches [ErrDenied], [ErrProtocol] or [ErrUnreachable], or is that of ctx.
func (o *Operator) Watch(ctx context.Context) iter.Seq2[View, error] {
	return func(yield func(View, error) bool) {
		parent := ctx
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		late := time.AfterFunc(welcomeTimeout, func() { cancel(errSilent) }) // for the first answer
		defer late.Stop()
		fail := func(err error) {
			switch {
			case parent.Err() != nil:
				err = context.Cause(parent)
			case errors.Is(context.Cause(ctx), errSilent):
				err = o.sessionError(errSilent)
			case errors.Is(err, io.EOF):
				err = o.broken("the shard ended a watch without a reason")
			default:
				err = o.sessionError(err)
			}
			yield(View{}, err)
		}
		stream, err := o.calls.WatchDemand(ctx, &fealtyv1.WatchDemandRequest{Tenant: o.tenant})
		if err != nil {
			fail(err)
			return
		}
		for {
			m, err := stream.Recv()
			if err != nil {
				fail(err)
				return
			}
			late.Stop()
			v, ok := view(m)
			if !ok {
				yield(View{}, o.broken("the shard told of names that are none, or of more than there may be"))
				return
			}
			if !yield(v, nil) {
				return
			}
		}
	}
}

func view(m *fealtyv1.WatchDemandResponse) (v View, ok bool) {
	v = View{Shard: Shard{Name: m.GetShard(), Term: m.GetTerm()}, Known: m.GetKnown(), Run: m.GetRun(), Number: m.GetNumber(),
		Held: m.GetHeld(), Session: m.GetSession(), More: int(m.GetMoreNotices())}
	if !scheduler.ValidName(v.Shard.Name) || len(m.GetNotices()) > session.MaxWatchNotices || len(m.GetRows()) > MaxRows {
		return View{}, false
	}
	for _, row := range m.GetRows() {
		v.Demand = append(v.Demand, Row{row.GetProfile(), row.GetPriority(), int(row.GetCount())})
	}
	if Check(v.Demand) != nil {
		return View{}, false
	}
	if v.Capacity, ok = capacity(m.GetProfiles()); !ok {
		return View{}, false
	}
	for _, told := range m.GetNotices() {
		n, ok := notice(told)
		if !ok {
			return View{}, false
		}
		v.Notices = append(v.Notices, n)
	}
	return v, true
}
