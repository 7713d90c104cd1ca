package grants

import (
	"context"
	"errors"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/platform/errorinfo"
	"github.com/fealty-io/fealty/internal/signed"
	"github.com/fealty-io/fealty/internal/store"
)

// noteTries is how often it is tried to note a life that is new, while others change the record.
const noteTries = 3

// Served is a process that coordinators serve: the newest of its member.
type Served struct {
	key     string
	version store.Revision

	// Epoch and Incarnation are those that it showed; zero of a process that shows none.
	Epoch       fence.Epoch
	Incarnation string
}

// Require has a change fail if another process of the member was granted, or heard of, meanwhile.
func (s Served) Require(ch *record.Change) { ch.Require(s.key, s.version) }

// Serve returns the process that calls, if it is the newest of its member, and otherwise a
// refusal that carries the fence's own detail: one that ends the process if another one is in
// charge. A process shows its life by the metadata of a fenced call (package fence/fencegrpc).
//
// A process that shows none is served while none of its member did under the newest grant: it is
// of an earlier release then, or of a member that acts under no grant.
func (g *Grants) Serve(ctx context.Context, s *authority.State) (Served, error) {
	id := identity.FromContext(ctx).ID
	claim, shows, err := g.claim(ctx, s, id)
	if err != nil {
		return Served{}, err
	}
	for range noteTries {
		have, err := record.Get[Record](ctx, s.Records, KeyOf(id.Kind(), id.Name()))
		if err != nil {
			return Served{}, g.cfg.Head.StoreError("read the newest grant", err)
		}
		after, reason := have.Value, fence.Reason("")
		if shows {
			after, reason = have.Value.after(claim)
		} else if have.Value.Life > 0 {
			reason = fence.ReasonStale
		}
		if reason != "" {
			g.refused.WithLabelValues(string(reason)).Inc()
			return Served{}, refusal(id, reason)
		}
		served := Served{key: KeyOf(id.Kind(), id.Name()), version: have.Version}
		if shows {
			served.Epoch, served.Incarnation = claim.Token.Epoch, claim.Token.Incarnation.String()
		}
		if after == have.Value {
			g.called(id, claim, shows)
			return served, nil
		}
		if after.Number != have.Value.Number {
			after.At = g.cfg.Now().UTC()
		}
		ch := s.Records.NewChange(s.HeadVersion)
		ch.Put(served.key, have.Version, after)
		if served.version, err = ch.Commit(ctx); !errors.Is(err, store.ErrConflict) {
			if err != nil {
				return Served{}, g.cfg.Head.StoreError("note a process of "+record.PathOf(id), err)
			}
			g.called(id, claim, shows)
			return served, nil
		}
	}
	return Served{}, record.Busy("the processes of " + record.PathOf(id))
}

// called has people see that the process of a claim is there.
func (g *Grants) called(id identity.ID, c fence.Claim, shows bool) {
	incarnation := ""
	if shows {
		incarnation = c.Token.Incarnation.String()
	}
	g.cfg.Asking.Membership.Live().Called(id, c.Token.Epoch, incarnation, g.cfg.Now())
}

// claim reads what the process that calls shows of itself.
func (g *Grants) claim(ctx context.Context, s *authority.State, id identity.ID) (c fence.Claim, shows bool, err error) {
	md, _ := metadata.FromIncomingContext(ctx)
	token := md.Get(signed.TokenKey)
	if len(token) == 0 {
		return c, false, nil
	}
	if err := c.Read(g.authority(s), token, md.Get(signed.LineageKey), md.Get(signed.GrantKey)); err != nil {
		return c, false, errcode.New(errcode.RequestField, "field", signed.TokenKey, "problem",
			"the process that calls is not named as a fenced call does")
	}
	if grant, ok := c.Grant.Get(); ok && grant.Holder != id.String() {
		return c, false, errcode.New(errcode.RequestField, "field", signed.GrantKey,
			"problem", "it is the grant of another holder")
	}
	return c, true, nil
}

// after decides as a receiver of fenced requests does, with the record as its mark: it returns
// the record as it is once the process of a claim is served, or why that one is not.
func (r Record) after(c fence.Claim) (Record, fence.Reason) {
	epoch, process := c.Token.Epoch, c.Token.Incarnation.String()
	next := r
	next.Life, next.Incarnation = epoch.Life(), process
	switch grant, signed := c.Grant.Get(); {
	case epoch.Grant() < r.Number && r.Life == 0:
		// Whoever was granted it may have ended before it began, and this be the one after it: it
		// is not ended for that, and asks for a grant of its own when it is started again.
		return r, fence.ReasonUngranted
	case epoch.Grant() < r.Number:
		return r, fence.ReasonStale
	case epoch.Grant() == 0:
		return r, "" // nobody ever granted the member anything
	case epoch.Grant() > r.Number && (!signed || grant.Number != epoch.Grant()):
		return r, fence.ReasonUngranted
	case epoch.Grant() > r.Number: // of a store that went back
		next.Number = epoch.Grant()
		return next, ""
	case epoch.Life() < r.Life:
		return r, fence.ReasonStale
	case r.Incarnation == process || r.Incarnation == "": // a release before kept no incarnation
		return next, ""
	}
	// The lives of a lineage follow one another, so that nobody skips any: see [fence.Lineage].
	switch between := int(epoch.Life() - max(r.Life, 1)); {
	case between > 0 && between <= len(c.Lineage) &&
		c.Lineage[len(c.Lineage)-between].String() == r.Incarnation:
		return next, ""
	case between > signed.MaxLineage && len(c.Lineage) == signed.MaxLineage:
		return r, fence.ReasonUngranted // it may be of that line, and cannot show so
	}
	return r, fence.ReasonClone
}

// refusedError is a refusal as [errcode.Error] words it, with the fence's own detail, by which
// the process that called ends itself.
type refusedError struct {
	err    *errcode.Error
	reason fence.Reason
}

func refusal(id identity.ID, reason fence.Reason) error {
	problem := "another process of this member is in charge"
	switch reason {
	case fence.ReasonClone:
		problem = "it and another process run with copies of one folder"
	case fence.ReasonUngranted:
		problem = "its grant is not the newest of this member, or it was started too often since"
	}
	return &refusedError{errcode.New(errcode.ProcessOvertaken, "member", record.PathOf(id), "problem", problem), reason}
}

func (e *refusedError) Error() string { return e.err.Error() }
func (e *refusedError) Unwrap() error { return e.err }

// Is reports what a refusal by the fence matches.
func (e *refusedError) Is(target error) bool { return e.reason.Matches(target) }

// GRPCStatus is what the process is told: no mark of another one.
func (e *refusedError) GRPCStatus() *status.Status {
	return errorinfo.With(e.err.GRPCStatus(), &errdetails.ErrorInfo{Reason: string(e.reason), Domain: signed.ErrorDomain})
}
