package process

import (
	"context"

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
