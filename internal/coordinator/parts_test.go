package coordinator_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
)

// unopened returns a coordinator that opened nothing.
func unopened(t testing.TB, log *slog.Logger) *coordinator.Coordinator {
	t.Helper()
	ephemeral, err := credential.NewEphemeral(time.Now)
	if err != nil {
		t.Fatal(err)
	}
	c, err := coordinator.Assemble(coordinator.Config{Log: log}, coordinatortest.NewTestKey(t), credential.NewIssued(
		ephemeral))
	if err != nil {
		t.Fatal(err)
	}
	return c
}
