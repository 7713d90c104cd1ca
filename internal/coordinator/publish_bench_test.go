// Inside the package: it hears when a publication is in force.
package coordinator

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// BenchmarkChange measures one small change of the config on an idle cluster, from the call
// until it is told to members, in times of the call alone.
func BenchmarkChange(b *testing.B) {
	f := readyFleet(b, nil)
	f.member("n1")
	changes := 0
	put := func() {
		b.Helper()
		changes++
		text := fmt.Sprintf("kind: organization\nname: acme\n---\nkind: route\nname: r\norganization: acme\nmatch: path /%d-%d\nto: [p]\n"+
			"---\nkind: peer\nname: p\norganization: acme\nmember: data/n1\naddresses: [\"p.example:1\"]\nclass: bootstrap", b.N, changes)
		if _, err := (configServer{c: f.c}).PutConfig(f.ctx(), putRequest(text)); err != nil {
			b.Fatal(err)
		}
	}
	var calls, told []time.Duration
	for range b.N {
		time.Sleep(3 * publishPause) // idle
		news := f.c.publicationNews.wait()
		began := time.Now()
		put()
		calls = append(calls, time.Since(began))
		<-news
		told = append(told, time.Since(began))
	}
	slices.Sort(calls)
	slices.Sort(told)
	call, tell := calls[len(calls)/2], told[len(told)/2]
	b.ReportMetric(float64(call.Microseconds())/1000, "call-ms")
	b.ReportMetric(float64(tell.Microseconds())/1000, "told-ms")
	b.ReportMetric(float64(tell)/float64(call), "told/call")
}
