package agent

import (
	"context"
	"crypto/x509"
	"math/rand/v2"

	"github.com/fealty-io/fealty/internal/node/state"
)

// addresses returns the coordinators to talk to, in random order.
func (a *Agent) addresses() []string {
	out := state.MergeAddresses(a.node.Beliefs(), a.node.Me().Addresses)
	rand.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

// presentable reports whether the node holds a certificate that is in date.
func (a *Agent) presentable(ctx context.Context) bool {
	m, err := a.node.Source().Current(ctx)
	return err == nil && !m.ID().IsZero() && a.node.Now().Before(m.NotAfter())
}

// presents returns the certificate that a connection made now would present, or nil.
// It asks the source, which connections follow: a.node.svid is stored a moment later.
func (a *Agent) presents(ctx context.Context) *x509.Certificate {
	m, err := a.node.Source().Current(ctx)
	if err != nil || m.ID().IsZero() {
		return nil
	}
	return m.Chain()[0]
}
