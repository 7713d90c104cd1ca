package authority

import (
	"context"
)

// An Adoption is what a part of the coordinator prepared for a head. All of them are presented once all parts
// are prepared, and told once all are presented; both may be nil. None takes the turn of
// the authority, or a lock that is held over I/O.
type Adoption struct {
	Present func() error // what fails here leaves the coordinator in recovery mode
	Tell    func()
}

// A Follower prepares its room for the head of next, before that is in force. The
// adoption holds what it prepared.
type Follower func(ctx context.Context, next *State) (Adoption, error)

// A Fitter says why what its part makes of a head cannot be made of after, which follows
// from. That has no history, records or issuer: it is not written yet. from is nil for the
// first head.
type Fitter func(ctx context.Context, from, after *State) error
