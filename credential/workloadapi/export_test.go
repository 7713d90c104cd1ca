package workloadapi

import (
	"context"
	"time"

	pb "github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
)

// Hurry has the source lose no time. most bounds how long an agent may stay silent.
func (cfg *Config) Hurry(most time.Duration) {
	cfg.pace = pace{answer: most, first: time.Millisecond, most: 10 * time.Millisecond, again: 10 * time.Millisecond}
}

// Listen takes the answers of one stream of api, and returns why that ended.
func (cfg Config) Listen(ctx context.Context, api pb.SpiffeWorkloadAPIClient) (good bool, err error) {
	return (&Source{cfg: cfg, api: api, changed: make(chan struct{})}).listen(ctx)
}
