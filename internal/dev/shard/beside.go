package shard

import (
	"context"
	"errors"

	"github.com/fealty-io/fealty/internal/dev/process"
	"github.com/fealty-io/fealty/internal/errcode"
)

// Beside is a fleet that is started when somebody wants to see it. It belongs to one goroutine.
type Beside struct {
	cfg   Config
	fleet *Fleet // nil: none runs
}

// New starts nothing.
func New(cfg Config) *Beside { return &Beside{cfg: cfg} }

// Close ends what runs. The agents of its members are not its own.
func (b *Beside) Close() error {
	f := b.fleet
	if f == nil {
		return nil
	}
	b.fleet = nil
	return f.Close()
}

func (b *Beside) start(ctx context.Context) (err error) {
	if b.fleet != nil {
		return nil
	}
	if b.cfg.Program == "" {
		return errors.New("shard: Config.Program is missing, and shards are programs")
	}
	b.fleet, err = Start(ctx, b.cfg)
	return err
}

// Show starts a fleet that works. Where none can be shown it starts nothing, and tells say why, if
// there is a program to start: a cluster without shards is worth more than none. The error is that
// of ctx.
func (b *Beside) Show(ctx context.Context, say func(string)) error {
	if b.cfg.Program == "" {
		return nil
	}
	if !process.Supported {
		say("no shard runs: " + process.Unsupported)
		return nil
	}
	err := b.start(ctx)
	if err != nil && errcode.Of(err).Code == errcode.TokenRequest {
		say("no shard runs: a release before made this cluster, and its manifest admits none")
		return nil
	}
	if err == nil {
		err = b.fleet.work(ctx)
	}
	if err != nil {
		err = errors.Join(err, b.Close())
		say("warning: no shard runs: " + err.Error())
	}
	return ctx.Err()
}

// Describe says what runs, for a person: a name and a sentence each.
func (b *Beside) Describe() [][2]string {
	if b.fleet == nil {
		return nil
	}
	return b.fleet.describe()
}

// ErrNone says that no shard runs.
var ErrNone = errors.New("no shard runs here")

// Zombie makes a zombie of the shard: it is stopped where it stands, and a successor works. With
// dry nothing is done. It returns what was done, and what to watch.
func (b *Beside) Zombie(ctx context.Context, dry bool) (did string, watch []string, err error) {
	if b.fleet == nil {
		return "", nil, ErrNone
	}
	return b.fleet.zombie(ctx, dry)
}

// Wake wakes the zombies that were stopped, and waits until each was fenced and the coordinators,
// which have to serve, tell of it. With dry nothing is done. It returns what was done, nothing if
// there is none, and what to watch.
func (b *Beside) Wake(ctx context.Context, dry bool) (did, watch []string, err error) {
	if b.fleet == nil {
		return nil, nil, nil
	}
	return b.fleet.wake(ctx, dry)
}
