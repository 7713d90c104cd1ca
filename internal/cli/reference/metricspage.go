package reference

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fealty-io/fealty/internal/agent"
	"github.com/fealty-io/fealty/internal/coordinator"
	processes "github.com/fealty-io/fealty/internal/provider/process"
	"github.com/fealty-io/fealty/internal/shard/process"
)

// metricsPage describes every metric, from what the programs register.
func metricsPage() (string, error) {
	var b strings.Builder
	b.WriteString("# Metrics\n\n" + generatedNote)
	b.WriteString(`With ` + "`--metrics HOST:PORT`" + ` a coordinator, an agent, a shard or a provider of processes ` +
		`serves metrics in Prometheus' format under ` + "`/metrics`" + `, and
probes under ` + "`/probe/`" + `, over plain HTTP. The listener carries no authority and serves no profiles.
[Monitor](../how-to/monitor.md) says which of them to alert on.

A metric with labels appears when it was first counted. Names that end in ` + "`_total`" + ` are counters, those ` +
		`that end in
` + "`_seconds`" + ` and measure a time taken are histograms with the usual ` +
		`` + "`_bucket`, `_sum` and `_count`" + `; all others are gauges.
`)
	for _, part := range []struct {
		title   string
		metrics func() (prometheus.Collector, error)
	}{{"Coordinator", coordinator.Metrics}, {"Agent", agent.Metrics}, {"Shard", process.Metrics},
		{"Provider of processes", processes.Metrics}} {
		all, err := part.metrics()
		if err != nil {
			return "", err
		}
		rows, err := metricRows(all)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "\n## %s\n\n| metric | labels | meaning |\n| --- | --- | --- |\n%s", part.title,
			strings.Join(rows, ""))
	}
	b.WriteString("\nNo label holds what a stranger made up: reasons, methods, scopes and codes are from fixed " +
		"lists.\n")
	return b.String(), nil
}

// description is the text of a [prometheus.Desc], which gives its parts in no other
// way.
var description = regexp.MustCompile(`^Desc\{fqName: ("[^"]*"), help: ("(?:[^"\\]|\\.)*"), unit: "", constLabels: ` +
	`\{\}, variableLabels: \{([a-z_,]*)\}\}$`)

// metricRows returns a row for each metric, sorted by name.
func metricRows(all prometheus.Collector) ([]string, error) {
	ch := make(chan *prometheus.Desc)
	go func() { // ends with what it describes, which is read to the end
		defer close(ch)
		all.Describe(ch)
	}()
	var rows []string
	var odd error
	for d := range ch {
		m := description.FindStringSubmatch(d.String())
		if m == nil {
			odd = fmt.Errorf("a metric describes itself as %s, which this release of Prometheus' library did not", d)
			continue
		}
		name, err := strconv.Unquote(m[1])
		if err != nil {
			odd = err
			continue
		}
		help, err := strconv.Unquote(m[2])
		if err != nil {
			odd = err
			continue
		}
		labels := ""
		if m[3] != "" {
			labels = "`" + strings.ReplaceAll(m[3], ",", "`, `") + "`"
		}
		rows = append(rows, fmt.Sprintf("| `%s` | %s | %s |\n", name, labels, help))
	}
	slices.Sort(rows)
	return rows, odd
}
