package manifest_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/manifest"
)

// BenchmarkParse reads the longest list of entries that a manifest may have, and documents
// as long as that which were made to be slow to read and are refused. The ratio is of
// the slowest of these to the honest one, for each byte.
func BenchmarkParse(b *testing.B) {
	base := newDoc(b)
	long := base
	for i := range manifest.MaxEntries - strings.Count(base.admit, "\n  - ") {
		long.admit += fmt.Sprintf("  - {name: e%d, kind: data, match: [\"token:e%d\"]}\n", i, i)
	}
	honest := long.String()
	size := len(honest)
	full := func(piece string) string { return strings.Repeat(piece, size/len(piece)) }
	hard := map[string]string{
		"lists":      base.String() + "x: [" + full("[],") + "]\n",
		"fields":     base.String() + full("a: b\n"),
		"items":      base.String() + "x:\n" + full("- {a: b}\n"),
		"characters": base.String() + "x: \"" + full(`\u3164`) + "\"\n",
		"deep":       base.String() + "x: " + full("["),
	}
	took := func(text string, wanted bool) time.Duration {
		began := time.Now()
		_, err := manifest.Parse([]byte(text))
		d := time.Since(began)
		if (err == nil) != wanted {
			b.Fatalf("%.60s…: %v", text, err)
		}
		return d
	}
	var ok time.Duration
	bad := map[string]time.Duration{}
	for b.Loop() {
		ok += took(honest, true)
		for name, text := range hard {
			bad[name] += took(text, false) * time.Duration(size) / time.Duration(len(text))
		}
	}
	var slowest time.Duration
	for _, d := range bad {
		slowest = max(slowest, d)
	}
	b.ReportMetric(0, "ns/op") // of all of them
	b.ReportMetric(float64(ok.Nanoseconds())/float64(b.N)/float64(size), "accepted-ns/byte")
	b.ReportMetric(float64(slowest)/float64(ok), "refused/accepted")
}
