package sharing

import "time"

// Bounds are those of a server.
type Bounds = bounds

// NewBounds returns bounds of which nothing is used.
func NewBounds() *Bounds { return newBounds() }

// Give counts bytes that member is about to be given.
func (l *bounds) Give(member string, bytes int, now time.Time) error {
	return l.give(member, bytes, now)
}
