package coordinator

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/manifest"
)

// heardLately is how old the record of a coordinator may be whose addresses others are
// told.
const heardLately = 10 * time.Minute

// tokenAddresses are where who gets a token goes: to this coordinator, and to those of
// m that were heard of lately, so that a token outlives the coordinator that made it.
func (c *Membership) tokenAddresses(ctx context.Context, m *manifest.Manifest) []string {
	out := slices.Clone(c.cfg.Addresses)
	others, err := c.cfg.Replicas.Newest(ctx, m)
	if err != nil {
		return out // our own will do
	}
	for _, r := range others {
		if r.Key != c.cfg.Self.EnrolmentKey() && c.cfg.Now().Sub(r.At).Abs() < heardLately {
			out = append(out, r.Addresses...)
		}
	}
	return firstAddresses(out, proof.MaxAddresses)
}

// knownAddresses are where coordinators are, this one first, without asking the store.
func (c *Membership) knownAddresses() []string {
	out := slices.Clone(c.cfg.Addresses)
	published := c.cfg.Published()
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
