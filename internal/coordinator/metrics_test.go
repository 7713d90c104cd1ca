package coordinator_test

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/test/goldentest"
)

// Dashboards and alerts name metrics: a name, a type, a label or a bucket changes only
// where somebody means it.
func TestMetricNames(t *testing.T) {
	all, err := coordinator.Metrics()
	if err != nil {
		t.Fatal(err)
	}
	reg := all.(prometheus.Registerer)
	descs := make(chan *prometheus.Desc)
	go func() { // ends with what it describes, which is read to the end
		defer close(descs)
		all.Describe(descs)
	}()
	form := regexp.MustCompile(`^Desc\{fqName: "([^"]*)", .*, constLabels: \{\}, variableLabels: \{([a-z_,]*)\}\}$`)
	var rows []string
	for _, d := range slices.Collect(received(descs)) {
		m := form.FindStringSubmatch(d.String())
		if m == nil {
			t.Errorf("a metric describes itself as %s, in another form than this test knows", d)
			continue
		}
		// A second collector for a metric gets an error that names the first.
		already, ok := errors.AsType[prometheus.AlreadyRegisteredError](reg.Register(describes{d}))
		if !ok {
			t.Errorf("%s: its collector was not found: does it collect several metrics?", m[1])
			continue
		}
		kind, err := kindOf(already.ExistingCollector)
		if err != nil {
			t.Errorf("%s: %v", m[1], err)
		}
		rows = append(rows, strings.TrimRight(fmt.Sprintf("%s{%s} %s", m[1], m[2], kind), " "))
	}
	slices.Sort(rows)
	goldentest.Compare(t, "testdata/metrics.txt", strings.Join(rows, "\n")+"\n")
}

// describes is a collector that only describes.
type describes struct{ desc *prometheus.Desc }

func (d describes) Describe(ch chan<- *prometheus.Desc) { ch <- d.desc }
func (describes) Collect(chan<- prometheus.Metric)      {}

// received yields what comes over ch until it is closed.
func received[T any](ch <-chan T) func(func(T) bool) {
	return func(yield func(T) bool) {
		for v := range ch {
			if !yield(v) {
				return
			}
		}
	}
}

// kindOf returns the type of what c collects, as scrapers are told it, and the buckets
// of a histogram.
func kindOf(c prometheus.Collector) (string, error) {
	switch name := reflect.TypeOf(c).String(); name {
	case "*prometheus.counter", "*prometheus.CounterVec":
		return "counter", nil
	case "*prometheus.gauge", "*prometheus.GaugeVec":
		return "gauge", nil
	case "*prometheus.valueFunc": // what NewGaugeFunc and NewCounterFunc return
		switch v := reflect.ValueOf(c).Elem().FieldByName("valType"); prometheus.ValueType(v.Int()) {
		case prometheus.GaugeValue:
			return "gauge", nil
		case prometheus.CounterValue:
			return "counter", nil
		}
		return "", errors.New("its function is of no type that this test knows")
	case "*prometheus.histogram":
		kind := "histogram"
		for _, bound := range reflect.ValueOf(c).Elem().FieldByName("upperBounds").Seq2() {
			kind += fmt.Sprintf(" %g", bound.Float())
		}
		return kind, nil
	default:
		return "", fmt.Errorf("its collector is a %s, which this test does not know", name)
	}
}
