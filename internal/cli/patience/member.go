// Package patience is how long a command waits, and the loop that it waits in.
package patience

import "time"

// Duration is a flag with a duration above 0.
type Duration struct{ D time.Duration }

func (l *Duration) String() string {
	if l == nil || l.D == 0 {
		return ""
	}
	return l.D.String()
}

func (l *Duration) Type() string { return "duration" }

func (l *Duration) Set(text string) error { return (*Flag)(l).Set(text) }
