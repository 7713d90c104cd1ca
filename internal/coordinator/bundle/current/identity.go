package current

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"fmt"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/pki"
	"github.com/fealty-io/fealty/internal/platform/watch"
)

// firstTrust returns the bundle to begin with at s. While the store is known to have lost
// something it is what it was.
func (b *Current) firstTrust(ctx context.Context, s *authority.State) (*bundle.View, error) {
	in, err := b.Ensure(ctx, s)
	if lost := b.cfg.StoreGuard.LostError(); lost != nil {
		t, err := b.keptTrust(s)
		if err != nil {
			return nil, fmt.Errorf("%w (%w)", lost, err)
		}
		return t, nil
	}
	if err != nil {
		return nil, fmt.Errorf("fit the trust state to the head: %w", err)
	}
	return s.Bundle.Sign(in, b.cfg.Now())
}

// Follow has the first trust bundle of next believed and presented.
func (b *Current) Follow(ctx context.Context, next *authority.State) (authority.Adoption, error) {
	t, err := b.firstTrust(ctx, next)
	if err != nil {
		return authority.Adoption{}, err
	}
	return authority.Adoption{Present: func() error { return b.presentAs(next, t) }, Tell: b.bundleChanged.Notify}, nil
}

// presentAs certifies this coordinator anew and presents it. t is the bundle to
// believe from now on; nil keeps the current one, as one does that came into force since t was made.
func (b *Current) presentAs(s *authority.State, t *bundle.View) error {
	// A bundle that comes in between would be lost, and its bans with it.
	b.trustMu.Lock()
	defer b.trustMu.Unlock()
	if have := b.trust.Load(); t == nil || have != nil && have.Epoch == t.Epoch && have.Newer(t) {
		t = have
	}
	m, err := b.ownMaterial(s, t.Bundle)
	if err != nil {
		return fmt.Errorf("certify this coordinator: %w", err)
	}
	if err := b.cfg.Source.Adopt(m); err != nil {
		return fmt.Errorf("adopt this coordinator's own certificate: %w", err)
	}
	b.trust.Store(t)
	b.cfg.StoreGuard.SawBundle(t.Signed)
	return nil
}

// ownMaterial certifies this coordinator with a new key.
func (b *Current) ownMaterial(s *authority.State, bundle *identity.Bundle) (*credential.Material, error) {
	entry, err := b.cfg.Self.Admits(s.Manifest)
	if err != nil {
		return nil, err
	}
	id, err := identity.New(s.Manifest.Cluster, identity.Coordinator, entry.Name)
	if err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	now := b.cfg.Now()
	raw, err := s.Issue(key.Public(), id, entry.Entry, now.Add(entry.Entry.SVIDTTL), now)
	if err != nil {
		return nil, err
	}
	chain := make([]*x509.Certificate, 0, len(raw))
	for _, der := range raw[:2] {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, err
		}
		chain = append(chain, cert)
	}
	return credential.NewMaterial(credential.MaterialConfig{Chain: chain, Key: key, Bundle: bundle, Now: b.cfg.Now})
}

// KeepIdentity renews this coordinator's own certificate in good time, until ctx
// ends. It looks at the clock often rather than sleep for long: a machine that
// slept wakes up with a certificate that has ended.
func (b *Current) KeepIdentity(ctx context.Context, s *authority.State) error {
	for {
		if err := watch.Sleep(ctx, identityPause); err != nil {
			return err
		}
		if err := b.RenewIdentity(ctx, s); err != nil {
			return err
		}
	}
}

// RenewIdentity certifies this coordinator anew if it is time to.
func (b *Current) RenewIdentity(ctx context.Context, s *authority.State) error {
	m, err := b.cfg.Source.Current(ctx)
	if err != nil {
		return err
	}
	leaf := m.Chain()[0]
	entry, err := b.cfg.Self.Admits(s.Manifest)
	if err != nil {
		return err
	}
	now := b.cfg.Now()
	age := now.Sub(leaf.NotBefore.Add(pki.Backdate))
	if age >= -pki.Backdate && age < record.RenewEvery(entry.Entry.SVIDTTL) && now.Before(leaf.NotAfter) ||
		!b.cfg.Head.Acts(s) {
		return nil
	}
	return b.presentAs(s, nil)
}
