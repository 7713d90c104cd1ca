package process

import (
	"context"
	"log/slog"
	"time"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/shard"
)

// TellFenced is for tests of how often it is told.
var TellFenced = tellFenced

// CarriesOut is what a shard whose commands go by sender can be told, and keeps in the file of that name that it
// is paused.
func CarriesOut(s *shard.Shard, sender *fence.Sender, cfg Config, files durable.FS, pausedName string) map[string]func(context.Context) error {
	return (&running{shard: s, sender: sender, cfg: cfg}).carriesOut(files, pausedName)
}

// Reports has a shard report to conn, until ctx ends.
func Reports(ctx context.Context, conn grpc.ClientConnInterface, name string, s *shard.Shard, log *slog.Logger) {
	(&reporter{name: name, conn: conn, now: time.Now, log: log, pauses: new(pauses), shard: s}).run(ctx)
}

// ReportOf words what a shard has and does, which was started with --actuation-paused or told to pause.
func ReportOf(s shard.Summary, flag, told bool, number uint64, now time.Time) *fealtyv1.ShardReport {
	p := &pauses{flag: flag}
	p.told.Store(told)
	return reportOf(s, p, number, now)
}
