package sharing

import (
	"context"
	"time"

	"github.com/fealty-io/fealty/internal/platform/ratelimit"
)

// Bounds are those of a server.
type Bounds = bounds

// NewBounds returns bounds of which nothing is used.
func NewBounds() *Bounds { return newBounds() }

// Give counts bytes that member is about to be given.
func (l *bounds) Give(member string, bytes int, now time.Time) error {
	return l.give(member, bytes, now)
}

// Begin begins a call of member.
func (l *bounds) Begin(member string, now time.Time) (end func(), err error) {
	return l.begin(member, now)
}

// Untaken counts an answer that member left.
func (l *bounds) Untaken(member string, now time.Time) { l.untaken.Charge(member, now, 1) }

// UntakenEvery is how often a member may leave one.
const UntakenEvery = untakenEvery

// InPieces sends content to one caller, and returns once nothing is sent any more.
func InPieces(ctx context.Context, content string, send func([]byte) error) error {
	var writers ratelimit.Readers
	return inPieces(ctx, &writers, content, send)
}

// StallTime is how long a piece of a content may take.
const StallTime = stallTime
