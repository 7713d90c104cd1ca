package metrics

import (
	"encoding/json"
	"net/http"
)

// answer is the body of an answer.
type answer struct {
	OK  bool   `json:"ok"`
	Log string `json:"log,omitempty"`
}

// ProbeHandler answers 200 while ok says so, and 503 otherwise, with {"ok":true} or {"ok":false}. Where log returns why the
// log of the process is lost, that stands beside it. A nil log is not asked.
func ProbeHandler(ok func() bool, log func() string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		a := answer{OK: ok()}
		if log != nil {
			a.Log = log()
		}
		w.Header().Set("Content-Type", "application/json")
		if !a.OK {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_ = json.NewEncoder(w).Encode(a) // the prober went away: nobody is left to tell
	})
}
