// Package probe answers a supervisor over HTTP whether a process is well.
package probe

import (
	"encoding/json"
	"net/http"
)

// Handler answers 200 while ok says so, and 503 otherwise, with {"ok":true} or {"ok":false}.
func Handler(ok func() bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		is := ok()
		w.Header().Set("Content-Type", "application/json")
		if !is {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_ = json.NewEncoder(w).Encode(map[string]bool{"ok": is}) // the prober went away: nobody is left to tell
	})
}
