package dashboard

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// Bounds of streams.
const (
	maxStreams   = 16
	alivePeriod  = 3 * time.Second  // a stream that says nothing for longer is lost
	eventTimeout = 10 * time.Second // of one write to a browser
)

// hub tells streams which version of what is shown is the newest.
type hub struct {
	mu      sync.Mutex
	version string        // guarded by mu
	changed chan struct{} // closed when version changes, or hub.again is called; guarded by mu
	streams int           // guarded by mu
	wanted  chan struct{} // closed while there is a stream; guarded by mu
	poke    chan struct{} // something changed that is not in the status: look now
}

func newHub() *hub {
	return &hub{changed: make(chan struct{}), wanted: make(chan struct{}), poke: make(chan struct{}, 1)}
}

// enter counts a stream in, if there is room for it.
func (h *hub) enter() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.streams == maxStreams {
		return false
	}
	if h.streams++; h.streams == 1 {
		close(h.wanted)
	}
	return true
}

func (h *hub) leave() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.streams--; h.streams == 0 {
		h.wanted = make(chan struct{})
	}
}

// now returns the newest version, and what is closed when there is another one.
func (h *hub) now() (version string, changed <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.version, h.changed
}

func (h *hub) tell(version string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if version != h.version {
		h.version = version
		close(h.changed)
		h.changed = make(chan struct{})
	}
}

// look has watch look at once.
func (h *hub) look() {
	select {
	case h.poke <- struct{}{}:
	default: // it is about to
	}
}

// someone is closed while there is a stream.
func (h *hub) someone() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.wanted
}

// watch looks again and again how the fleet is, while there is a stream, until ctx ends. A coordinator that takes long to
// answer is asked less often.
func (s *site) watch(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.hub.someone():
		}
		began := time.Now()
		s.hub.tell(s.source.version(ctx))
		pause := time.NewTimer(max(pollEvery, 2*time.Since(began)))
		select {
		case <-ctx.Done():
		case <-pause.C:
		case <-s.hub.poke:
		}
		pause.Stop()
	}
}

// events tells a page when it is old.
func (s *site) events(w http.ResponseWriter, r *http.Request) {
	if !s.hub.enter() {
		w.Header().Set("Retry-After", "10")
		http.Error(w, fmt.Sprintf("there are %d streams already, which is as many as there may be: close a page", maxStreams), http.StatusServiceUnavailable)
		return
	}
	defer s.hub.leave()
	out := http.NewResponseController(w)
	// The bounds of a page's request and answer are none of a stream: each of its writes has one.
	if err := out.SetReadDeadline(time.Time{}); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	send := func(event, data string) bool {
		if out.SetWriteDeadline(time.Now().Add(eventTimeout)) != nil {
			return false
		}
		if _, err := fmt.Fprintf(w, "event: %s\ndata: %s\n\n", event, data); err != nil {
			return false
		}
		return out.Flush() == nil
	}
	alive := time.NewTicker(alivePeriod)
	defer alive.Stop()
	last := ""
	for {
		version, changed := s.hub.now()
		if version != "" && version != last {
			if last = version; !send("version", version) {
				return
			}
		}
		select {
		case <-r.Context().Done():
			return
		case <-s.source.life.Done():
			return
		case <-changed:
		case <-alive.C:
			if !send("alive", last) {
				return
			}
		}
	}
}
