package coordinatortest

import (
	"context"

	"google.golang.org/grpc/metadata"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/signed"
)

// Process begins the life of another process of a member, as one does that starts and reaches the
// coordinator: under the next grant.
func (d *Desk) Process(m *Machine) fence.Life {
	d.T.Helper()
	life := fence.Life{Incarnation: fence.NewIncarnation()}
	got, err := Served[fealtyv1.GrantServiceServer](d.C.Parts().Fencing.Grants.RegisterServices).Grant(
		Calls(m, fence.Life{}), &fealtyv1.GrantRequest{Name: m.ID.Name(), Incarnation: life.Incarnation.String()})
	if err != nil {
		d.T.Fatal(err)
	}
	life.Epoch, life.Grant = fence.NewEpoch(got.GetNumber(), 1), got.GetGrant()
	return life
}

// NextLife is the life of a process that was started while no coordinator answered, after one.
func NextLife(life fence.Life) fence.Life {
	next := life
	next.Epoch++
	next.Incarnation = fence.NewIncarnation()
	next.Lineage = append(next.Lineage[:len(next.Lineage):len(next.Lineage)], life.Incarnation)
	next.Lineage = next.Lineage[max(0, len(next.Lineage)-signed.MaxLineage):]
	return next
}

// Calls is the context in which the coordinator hears a call of a process of a member; the zero
// life says nothing of itself, as one of an earlier release.
func Calls(m *Machine, life fence.Life) context.Context {
	ctx := identity.NewContext(context.Background(), identity.Peer{ID: m.ID, Leaf: m.Leaf, Key: identity.KeyOf(m.Leaf)})
	if life.Incarnation.IsZero() {
		return ctx
	}
	md := metadata.Pairs(signed.TokenKey,
		fence.Token{Epoch: life.Epoch, Sequence: 1, Incarnation: life.Incarnation}.String())
	if len(life.Lineage) > 0 {
		md.Set(signed.LineageKey, life.Lineage.String())
	}
	if life.Grant != "" {
		md.Set(signed.GrantKey, life.Grant)
	}
	return metadata.NewIncomingContext(ctx, md)
}
