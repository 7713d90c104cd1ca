package workloadapi_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"

	"github.com/fealty-io/fealty/credential/workloadapi"
)

// exampleTB lets an example, which has no testing.TB, have an agent.
type exampleTB struct {
	testing.TB
	ends *[]func()
}

func (exampleTB) Helper()             {}
func (exampleTB) Fatal(args ...any)   { panic(fmt.Sprint(args...)) }
func (tb exampleTB) Cleanup(f func()) { *tb.ends = append(*tb.ends, f) }
func (tb exampleTB) end() {
	for _, f := range *tb.ends {
		f()
	}
}

// A process is who its agent says, and follows it.
func ExampleConfig_Open() {
	tb := exampleTB{ends: new([]func())}
	defer tb.end()
	agent := newAgent(tb) // SPIFFE_ENDPOINT_SOCKET names it, unless Address does
	agent.rotate()

	cfg := workloadapi.Config{Address: agent.address, Log: slog.New(slog.DiscardHandler)}
	source, err := cfg.Open(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer source.Close()
	changed := source.Changed() // taken before the source is asked
	m, err := source.Current(context.Background())
	fmt.Println(m.ID(), err)

	agent.rotate()
	<-changed
	renewed, err := source.Current(context.Background())
	fmt.Println(renewed.ID(), renewed.Pin() != m.Pin(), err)
	// Output:
	// spiffe://prod.example/workload/billing/api <nil>
	// spiffe://prod.example/workload/billing/api true <nil>
}
