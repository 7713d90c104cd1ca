package session

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/shard/scheduler"
)

// MaxUnacknowledged bounds the notices that an operator has not acknowledged: more are told
// when it has.
const MaxUnacknowledged = 1024

// ErrOrder is matched by every [*OrderError].
var ErrOrder = errors.New("out of order")

// OrderError says that a notice was acknowledged that was not the next one. It ends the
// session: one of the two has lost count, and the next session begins anew.
type OrderError struct {
	Got  uint64
	Want uint64 // 0: none waits for it
}

func (e *OrderError) Error() string {
	if e.Want == 0 {
		return fmt.Sprintf("session: notice %d was acknowledged, and none waits for it: open another session", e.Got)
	}
	return fmt.Sprintf("session: notice %d was acknowledged, and notice %d is the next one: open another session",
		e.Got, e.Want)
}

// Is reports that an OrderError matches [ErrOrder].
func (e *OrderError) Is(target error) bool { return target == ErrOrder }

// GRPCStatus is the error as it travels.
func (e *OrderError) GRPCStatus() *status.Status { return status.New(codes.InvalidArgument, e.Error()) }

// talk is what one session has said. It does no I/O, and belongs to one goroutine.
type talk struct {
	sent, acknowledged uint64 // numbers of notices
	told               map[scheduler.MachineKey]scheduler.Notice
	capacity           *fealtyv1.TenantCapacity // as it was told; nil: not yet
}

func newTalk() *talk { return &talk{told: make(map[scheduler.MachineKey]scheduler.Notice)} }

// acknowledge takes the acknowledgement of notice n.
func (t *talk) acknowledge(n uint64) error {
	switch {
	case t.acknowledged == t.sent:
		return &OrderError{Got: n}
	case n != t.acknowledged+1:
		return &OrderError{Got: n, Want: t.acknowledged + 1}
	}
	t.acknowledged = n
	return nil
}

// notices returns what is new of the notices that are out, and which of those that were
// told are over.
func (t *talk) notices(out []scheduler.Notice) (say []*fealtyv1.SessionResponse) {
	add := func(n scheduler.Notice, until *timestamppb.Timestamp) {
		t.sent++
		say = append(say,
			&fealtyv1.SessionResponse{Message: &fealtyv1.SessionResponse_Notice{Notice: &fealtyv1.MachineNotice{
				Number: t.sent, Provider: n.Machine.Provider, Machine: n.Machine.ID, Profile: n.Profile, Until: until,
				Preempted: n.Kind == scheduler.Preempt}}})
	}
	room := func() bool { return t.sent-t.acknowledged < MaxUnacknowledged }
	there := make(map[scheduler.MachineKey]struct{}, len(out))
	for _, n := range out {
		there[n.Machine] = struct{}{}
	}
	var over []scheduler.Notice
	for k, n := range t.told {
		if _, still := there[k]; !still {
			over = append(over, n)
		}
	}
	slices.SortFunc(over, func(a, b scheduler.Notice) int { return a.Machine.Compare(b.Machine) })
	for _, n := range over {
		if !room() {
			return say
		}
		add(n, nil)
		delete(t.told, n.Machine)
	}
	for _, n := range out {
		if told, known := t.told[n.Machine]; known && told == n {
			continue
		}
		if !room() {
			return say
		}
		add(n, timestamppb.New(n.Until.Round(time.Millisecond)))
		t.told[n.Machine] = n
	}
	return say
}

// changed returns what the tenant has if it is another thing than was told; else nil.
func (t *talk) changed(wanted []scheduler.DemandRow, tallies []*scheduler.Tally) *fealtyv1.SessionResponse {
	now := capacity(wanted, tallies)
	if t.capacity != nil && proto.Equal(t.capacity, now) {
		return nil
	}
	t.capacity = now
	return &fealtyv1.SessionResponse{Message: &fealtyv1.SessionResponse_Capacity{Capacity: now}}
}

// capacity is what a tenant wants and has, by the profiles' names.
func capacity(wanted []scheduler.DemandRow, tallies []*scheduler.Tally) *fealtyv1.TenantCapacity {
	profiles := make(map[string]*fealtyv1.ProfileCapacity)
	of := func(name string) *fealtyv1.ProfileCapacity {
		if profiles[name] == nil {
			profiles[name] = &fealtyv1.ProfileCapacity{Profile: name}
		}
		return profiles[name]
	}
	// Counts are bounded far below the range of their fields: a million of each.
	for _, row := range wanted {
		of(row.Profile).Wanted += uint32(row.Count)
	}
	for _, tally := range tallies {
		p := of(tally.Profile)
		p.Configuring, p.Configured = uint32(tally.Configuring), uint32(tally.Configured)
		p.Draining, p.Failed = uint32(tally.Draining), uint32(tally.Failed)
	}
	now := &fealtyv1.TenantCapacity{}
	for _, p := range profiles {
		now.Profiles = append(now.Profiles, p)
	}
	slices.SortFunc(now.Profiles, func(a, b *fealtyv1.ProfileCapacity) int {
		return cmp.Compare(a.GetProfile(), b.GetProfile())
	})
	return now
}
