package fence

import (
	"errors"
	"fmt"
	"sync"
)

// ErrStaleTerm is matched by every [*StaleTermError]. It is final for the order that was
// refused: its leader was deposed, and the next one gives it again if it is still wanted.
var ErrStaleTerm = errors.New("stale term")

// StaleTermError says which term was refused, and which one is known.
type StaleTermError struct {
	Got  int64 // the term refused
	Mark int64 // the highest term seen
}

func (e *StaleTermError) Error() string {
	return fmt.Sprintf("fence: an order of term %d was refused, since term %d has begun: "+
		"its leader was deposed, and must not be obeyed", e.Got, e.Mark)
}

// Is reports that a StaleTermError matches [ErrStaleTerm].
func (e *StaleTermError) Is(target error) bool { return target == ErrStaleTerm }

// Term is the highest term of a leader that a receiver has seen. The zero Term has seen
// none. It may be used by several goroutines.
//
// It forgets with its process: one that starts at 0 again believes a deposed leader until
// it hears of the next. durable.OpenTerm, in package fence/durable, does not.
type Term struct {
	mu   sync.Mutex
	mark int64 // guarded by mu
}

// Check answers nil if an order of this term may be obeyed, and remembers the term if it
// is higher than the mark. An equal term passes: one leader gives many orders. A lower
// one, and one below 1, is a [*StaleTermError], and changes nothing.
//
// Check believes every higher term. Where a stranger can send one it is checked against a
// signed statement first: see [Authority.OpenTerm].
func (t *Term) Check(term int64) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if term < 1 || term < t.mark {
		return &StaleTermError{Got: term, Mark: t.mark}
	}
	t.mark = term
	return nil
}

// Mark returns the highest term seen; 0 if none was.
func (t *Term) Mark() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mark
}
