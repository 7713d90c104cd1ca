package metrics_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fealty-io/fealty/internal/platform/metrics"
)

// A gauge is what the value is when it is collected, and not what it was before.
func TestAskedEachTime(t *testing.T) {
	value := 1.0
	of := metrics.GaugeOf("of", "A value.", func() float64 { return value })
	above := metrics.GaugeIf("above", "1 while the value is above one.", func() bool { return value > 1 })
	for _, want := range []struct{ value, above float64 }{{1, 0}, {2, 1}, {1, 0}} {
		value = want.value
		if got := testutil.ToFloat64(of); got != want.value {
			t.Errorf("Of is %v, want %v", got, want.value)
		}
		if got := testutil.ToFloat64(above); got != want.above {
			t.Errorf("If is %v at %v, want %v", got, value, want.above)
		}
	}
}
