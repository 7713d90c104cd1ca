package coordinator

import "sync"

// strangers bounds the streams of callers that nobody vouches for, in all and from
// one source, so that one stranger cannot take all the places.
type strangers struct {
	most, perSource int

	mu      sync.Mutex
	streams int            // guarded by mu
	sources map[string]int // streams by source; guarded by mu
}

func newStrangers(most, perSource int) *strangers {
	return &strangers{most: most, perSource: perSource, sources: make(map[string]int)}
}

// enter takes a place for a stream from source. Who got one leaves it.
func (s *strangers) enter(source string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.streams >= s.most || s.sources[source] >= s.perSource {
		return false
	}
	s.streams++
	s.sources[source]++
	return true
}

func (s *strangers) leave(source string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams--
	if s.sources[source]--; s.sources[source] == 0 {
		delete(s.sources, source)
	}
}
