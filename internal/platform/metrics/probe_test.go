package metrics_test

import (
	"net/http/httptest"
	"testing"

	"github.com/fealty-io/fealty/internal/platform/metrics"
)

func TestHandler(t *testing.T) {
	t.Parallel()
	well, lost := true, ""
	h := metrics.ProbeHandler(func() bool { return well }, func() string { return lost })
	for _, want := range []struct {
		well   bool
		lost   string
		status int
		body   string
	}{
		{true, "", 200, "{\"ok\":true}\n"}, {false, "", 503, "{\"ok\":false}\n"},
		{true, "it is full", 200, "{\"ok\":true,\"log\":\"it is full\"}\n"},
	} {
		well, lost = want.well, want.lost
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/probe/readiness", nil))
		if w.Code != want.status || w.Body.String() != want.body || w.Header().Get("Content-Type") != "application/json" {
			t.Errorf("well %v: %d %q %v", want.well, w.Code, w.Body, w.Header())
		}
	}
}
