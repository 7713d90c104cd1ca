package status

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/proof"
)

// HeardLately is how old the record of a coordinator may be whose addresses others are
// told.
const HeardLately = 10 * time.Minute

// TokenAddresses are where who gets a token goes: to this coordinator, and to those of
// m that were heard of lately, so that a token outlives the coordinator that made it.
func (p *Peers) TokenAddresses(ctx context.Context, m *manifest.Manifest) []string {
	out := slices.Clone(p.cfg.Addresses)
	others, err := p.cfg.Replicas.Newest(ctx, m)
	if err != nil {
		return out // our own will do
	}
	for _, r := range others {
		if r.Key != p.cfg.Self.EnrolmentKey() && p.cfg.Now().Sub(r.At).Abs() < HeardLately {
			out = append(out, r.Addresses...)
		}
	}
	return firstAddresses(out, proof.MaxAddresses)
}

// KnownAddresses are where coordinators are, this one first, without asking the store.
func (p *Peers) KnownAddresses() []string {
	out := slices.Clone(p.cfg.Addresses)
	published := p.cfg.Published()
	for _, key := range slices.Sorted(maps.Keys(published)) {
		out = append(out, published[key]...)
	}
	return firstAddresses(out, maxBootstrapAddresses)
}

// maxBootstrapAddresses bounds the coordinators that a new member is told. Its
// node_runtime names all of them.
const maxBootstrapAddresses = 8

// firstAddresses returns the first n of all, each once.
func firstAddresses(all []string, n int) []string {
	var out []string
	for _, a := range all {
		if len(out) < n && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}
