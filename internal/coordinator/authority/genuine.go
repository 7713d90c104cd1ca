package authority

import (
	"context"

	"github.com/fealty-io/fealty/internal/coordinator/record"
)

// MaxForgedLogged is how many altered records of a list the log names each time that somebody looks.
const MaxForgedLogged = 8

// ListGenuine reads the records below prefix under s, sorted by key, for lists whose records say nothing of one
// another: one that was altered in the store is left out and reported, and hides no other. altered has the keys of
// those, sorted.
//
// The error is that of the store, or a [store.ConflictError] on the head if s does not open all of them
// because the head moved on.
func ListGenuine[T any](ctx context.Context, h *Head, s *State, prefix string) (genuine []record.Versioned[T],
	altered []string, err error) {
	l, err := h.cfg.Store.List(ctx, prefix)
	if err != nil {
		return nil, nil, err
	}
	genuine = make([]record.Versioned[T], 0, len(l.Entries))
	var bad []Suspect
	for _, e := range l.Entries {
		if v, err := record.Open[T](s.Records, e); err == nil {
			genuine = append(genuine, v)
		} else {
			altered, bad = append(altered, e.Key), append(bad, Suspect{What: e.Key, Err: err})
		}
	}
	return genuine, altered, h.ForgedUnder(ctx, s, bad[:min(len(bad), MaxForgedLogged)]...)
}
