package coordinator

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/ca"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/manifest"
	"github.com/fealty-io/fealty/snapshot"
)

// maxHistoryPage bounds the transitions and manifests of one answer.
const maxHistoryPage = 3 << 20

// manifestServer serves ManifestService.
type manifestServer struct {
	fealtyv1.UnimplementedManifestServiceServer
	c *Coordinator
}

func (m manifestServer) SetManifest(ctx context.Context, req *fealtyv1.SetManifestRequest) (*fealtyv1.SetManifestResponse, error) {
	return m.c.set(ctx, req, identity.FromContext(ctx).Local != nil)
}

// FirstSet is a set over a proof of the setup token, bound to this channel and
// to this manifest.
func (m manifestServer) FirstSet(stream fealtyv1.ManifestService_FirstSetServer) error {
	c := m.c
	ctx, cancel := context.WithTimeout(stream.Context(), joinTimeout)
	defer cancel()
	if !c.limiter.allow(identity.FromContext(ctx).Addr, c.now()) {
		return explain.New(explain.RateLimited, "what", "first sets", "limit", fmt.Sprint(c.limiter.rates.PerSource))
	}
	ch, err := openChannel(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(&fealtyv1.FirstSetResponse{Step: &fealtyv1.FirstSetResponse_Nonce{Nonce: ch.nonce}}); err != nil {
		return err
	}
	waiting, stop := context.WithTimeout(ctx, answerTimeout)
	defer stop()
	req, err := receive(waiting, c, stream.Recv)
	if err != nil {
		return err
	}
	if err := ch.stale(); err != nil {
		return err
	}
	setup := c.setup.Load()
	if setup == nil {
		return explain.New(explain.HistoryInitialized)
	}
	t := proof.SetupTranscript{Nonce: ch.nonce, Binding: ch.binding, Manifest: req.GetSet().GetManifest()}
	if err := proof.VerifySetup(setup.public, t, req.GetEvidence()); err != nil {
		c.refusals.log(ctx, c.log, slog.LevelWarn, "first set refused", slog.String("remote", identity.FromContext(ctx).Addr), slog.Any("err", err))
		return explain.Wrap(err, explain.SetupRefused)
	}
	done, err := c.set(ctx, req.GetSet(), true)
	if err != nil {
		return err
	}
	return stream.Send(&fealtyv1.FirstSetResponse{Step: &fealtyv1.FirstSetResponse_Done{Done: done}})
}

// set makes a manifest the one in force. first allows a set without signatures
// where there is no history: who asks is at the machine, or proved the setup
// token.
//
// The order is the proof (manifest.md, History): the new mesh CA key is made and
// sealed before the head moves, so that a crash right after the swap costs
// nothing; the head moves by compare-and-swap; an unknown outcome is settled by
// reading the head.
func (c *Coordinator) set(ctx context.Context, req *fealtyv1.SetManifestRequest, first bool) (*fealtyv1.SetManifestResponse, error) {
	if len(req.GetReason()) > maxReasonBytes {
		return nil, tooLong("reason", maxReasonBytes)
	}
	select {
	case c.setting <- struct{}{}:
		defer func() { <-c.setting }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	next, err := manifest.Parse(req.GetManifest())
	if err != nil {
		return nil, manifestProblems(err)
	}
	s := c.state.Load()
	if s.phase == phaseRecovery {
		return nil, explain.New(explain.RecoveryMode, "reason", s.reason)
	}
	entry, err := c.admits(next)
	if err != nil {
		return nil, err
	}
	if s.phase == phaseReady {
		if now, err := c.admits(s.manifest); err == nil && now.Name != entry.Name {
			return nil, explain.New(explain.RequestField, "field", "admit", "problem",
				fmt.Sprintf("it renames this coordinator from %s to %s, and a process keeps its identity: keep the name, or add the other one for another enrolment key", now.Name, entry.Name))
		}
	}
	keepers, err := c.keepers(next)
	if err != nil {
		return nil, err
	}
	if s.phase == phaseUninitialized {
		if !first {
			return nil, explain.New(explain.HistoryUninitialized)
		}
		return c.genesis(ctx, req, next, keepers)
	}
	return c.succeed(ctx, req, s, next, keepers)
}

// genesis makes the seed and writes the first transition.
func (c *Coordinator) genesis(ctx context.Context, req *fealtyv1.SetManifestRequest, m *manifest.Manifest, keepers map[string]keyring.Keeper) (*fealtyv1.SetManifestResponse, error) {
	const seedEpoch, epoch = 1, 1
	now := c.now()
	seed, salt := keyring.NewSeed(), keyring.NewSalt()
	keys, err := seed.Derive(salt)
	if err != nil {
		return nil, err
	}
	root, err := ca.Root(keys.RootCA(), m.Cluster, now.Add(-ca.Backdate))
	if err != nil {
		return nil, fmt.Errorf("make the root: %w", err)
	}
	mesh, err := ca.NewMeshCA(root, keys.RootCA(), ca.MeshConfig{Cluster: m.Cluster, Epoch: epoch, Validity: meshLife(m)}, now)
	if err != nil {
		return nil, fmt.Errorf("make the mesh CA: %w", err)
	}
	t := history.Genesis(m)
	t.MeshCAKey, t.Salt, t.Reason = mesh.KeyID(), history.Salt(salt), req.GetReason()
	for i, o := range m.Seed.Owners {
		// With a threshold of 1 every share is the seed itself.
		t.ShareCommitments = append(t.ShareCommitments, history.ShareCommitment{
			Owner: o.Name, Hash: keyring.Commitment(m.Cluster, seedEpoch, i+1, seed),
		})
	}
	link, err := linkOf(t)
	if err != nil {
		return nil, err
	}
	after := &state{manifest: m, head: link, secrets: &secrets{seed, keys}, root: root, meshKey: mesh.KeyID()}
	if err := c.bundleFits(after, trustInput{}); err != nil {
		return nil, err
	}
	if req.GetDryRun() {
		return &fealtyv1.SetManifestResponse{Transition: transitionMessage(link)}, nil
	}
	for name, k := range keepers {
		if err := c.sealSeed(ctx, k, name, m.Cluster, t, seed); err != nil {
			return nil, err
		}
	}
	if err := c.writeSealed(ctx, rootKey(seedEpoch, t.Salt), root.Raw); err != nil {
		return nil, err
	}
	if err := c.faults.Hit("set.after-seed"); err != nil {
		return nil, err
	}
	return c.swap(ctx, link, m, nil, seed, keys, root, mesh, keepers)
}

// succeed writes a transition from the manifest in force to the next one.
func (c *Coordinator) succeed(ctx context.Context, req *fealtyv1.SetManifestRequest, s *state, m *manifest.Manifest, keepers map[string]keyring.Keeper) (*fealtyv1.SetManifestResponse, error) {
	switch {
	case len(req.GetCurrentTransition()) == 0:
		return nil, explain.New(explain.HistoryInitialized, "cluster", s.manifest.Cluster)
	case string(req.GetCurrentTransition()) != string(s.head.Hash[:]):
		return nil, explain.New(explain.ManifestStale, "expected", shortHex(req.GetCurrentTransition()), "head", s.head.Hash.String()[:16], "index", fmt.Sprint(s.head.Index))
	case m.Cluster != s.manifest.Cluster:
		return nil, explain.New(explain.RequestField, "field", "cluster", "problem", fmt.Sprintf("the manifest is of %s, and this cluster is %s", m.Cluster, s.manifest.Cluster))
	case !sameOwners(m.Seed, s.manifest.Seed):
		return nil, explain.New(explain.RequestField, "field", "seed", "problem", "a set keeps the seed's owners and threshold; they change by a reshare")
	}
	t, moves := s.chain.Next(history.KindSet, m)
	t.Reason = req.GetReason()
	for _, sig := range req.GetSignatures() {
		key, err := manifest.ParseKey(sig.GetKey())
		if err != nil || len(sig.GetSignature()) != 64 {
			return nil, explain.New(explain.ManifestMissigned, "signer", sig.GetKey())
		}
		t.Signatures = append(t.Signatures, history.Signature{Key: key, Signature: [64]byte(sig.GetSignature())})
	}
	if err := history.Authorize(s.manifest, t.Statement(), t.Signatures); err != nil {
		return nil, unauthorizedSet(err)
	}
	mesh := s.issuer.Load().MeshCA()
	if moves {
		var err error
		mesh, err = ca.NewMeshCA(s.root, s.secrets.keys.RootCA(), ca.MeshConfig{Cluster: m.Cluster, Epoch: t.AuthorityEpoch, Validity: meshLife(m)}, c.now())
		if err != nil {
			return nil, fmt.Errorf("make the mesh CA: %w", err)
		}
		t.MeshCAKey = mesh.KeyID()
	}
	link, err := linkOf(t)
	if err != nil {
		return nil, err
	}
	in, err := c.readTrust(ctx, s)
	if err != nil {
		return nil, c.storeError("read the trust state", err)
	}
	after := &state{manifest: m, head: link, secrets: s.secrets, root: s.root, meshKey: mesh.KeyID()}
	if err := c.bundleFits(after, in); err != nil {
		return nil, err
	}
	if req.GetDryRun() {
		return &fealtyv1.SetManifestResponse{Transition: transitionMessage(link)}, nil
	}
	for _, o := range m.Seed.Owners {
		// A key file that was lost or replaced while this process held the seed is
		// made good now, while it still does.
		if have, err := c.openSeedOf(ctx, m.Cluster, t, o); err == nil && have.Equal(s.secrets.seed) {
			have.Wipe()
			continue
		}
		c.log.LogAttrs(ctx, slog.LevelWarn, "a keeper does not open the seed any more; it is sealed again", slog.String("keeper", o.Name))
		if err := c.sealSeed(ctx, keepers[o.Name], o.Name, m.Cluster, t, s.secrets.seed); err != nil {
			return nil, err
		}
	}
	return c.swap(ctx, link, m, s.chain, s.secrets.seed, s.secrets.keys, s.root, mesh, keepers)
}

// bundleFits reports whether a trust bundle can be made of what is in force after
// a set. A head that no bundle follows from would stop the cluster.
func (c *Coordinator) bundleFits(after *state, in trustInput) error {
	next, _ := nextTrustState(in, after, c.now().UTC().Truncate(time.Second))
	if n := len(next.MeshKeys); n > snapshot.MaxMeshKeys {
		return explain.New(explain.RateLimited, "what", "the set, which makes a new mesh CA key,", "limit", fmt.Sprintf("%d mesh CA keys whose certificates are still valid", snapshot.MaxMeshKeys))
	}
	if _, err := signTrust(after, in.with(trustDelta{}, next), c.now()); err != nil {
		return explain.Wrap(err, explain.RequestField, "field", "manifest", "problem", "no trust bundle can be made of it: "+err.Error())
	}
	return nil
}

// sealSeed has a keeper seal the seed that t names, and stores that.
func (c *Coordinator) sealSeed(ctx context.Context, k keyring.Keeper, name, cluster string, t *history.Transition, seed keyring.Seed) error {
	sealed, err := keyring.SealSeed(ctx, k, keyring.Place{Cluster: cluster, Owner: name, SeedEpoch: t.SeedEpoch}, seed)
	if err != nil {
		return explain.Wrap(err, explain.KeeperUnusable, "keeper", name, "problem", err.Error())
	}
	return c.writeSealed(ctx, sealedSeedKey(t.SeedEpoch, t.Salt, name), sealed)
}

// linkOf names t by its hash, which is known before anything is written.
func linkOf(t *history.Transition) (history.Link, error) {
	raw, err := t.Encode()
	if err != nil {
		return history.Link{}, explain.Wrap(err, explain.RequestField, "field", "transition", "problem", err.Error())
	}
	return history.Link{Transition: *t, Hash: sha256Sum(raw)}, nil
}

func transitionMessage(l history.Link) *fealtyv1.Transition {
	if l.Hash.IsZero() {
		return nil
	}
	raw, err := l.Encode()
	if err != nil {
		return nil // it was encoded when its hash was made
	}
	return &fealtyv1.Transition{
		Record: raw, Hash: l.Hash[:], Index: l.Index, AuthorityEpoch: l.AuthorityEpoch, Kind: string(l.Kind), Reason: l.Reason,
		ManifestHash: l.Manifest[:], MeshCaKey: l.MeshCAKey[:],
	}
}

// swap seals the mesh CA key for the new head, moves the head, and adopts it.
//
// If it stays unknown whether the head moved, nothing is adopted here: the mesh CA
// key is sealed under the new head's hash, so the loop that follows the head finds
// both, or neither.
func (c *Coordinator) swap(ctx context.Context, link history.Link, m *manifest.Manifest, from *history.Verified,
	seed keyring.Seed, keys keyring.Keys, root *x509.Certificate, mesh *ca.MeshCA, keepers map[string]keyring.Keeper,
) (*fealtyv1.SetManifestResponse, error) {
	for name, k := range keepers {
		place := keyring.Place{Cluster: m.Cluster, Owner: name, SeedEpoch: link.SeedEpoch, Head: link.Hash}
		sealed, err := keyring.SealMesh(ctx, k, place, mesh.Key(), mesh.Certificate().Raw)
		if err != nil {
			return nil, explain.Wrap(err, explain.KeeperUnusable, "keeper", name, "problem", err.Error())
		}
		if err := c.writeSealed(ctx, sealedMeshKey(link.Hash, name), sealed); err != nil {
			return nil, err
		}
	}
	if err := c.faults.Hit("set.before-swap"); err != nil {
		return nil, err
	}
	verified, err := c.history.Append(ctx, from, &link.Transition, m, keys.Transaction())
	if err != nil {
		c.kickHead()
		return nil, c.setError(err)
	}
	if err := c.faults.Hit("set.after-swap"); err != nil {
		return nil, err
	}
	// The head moved: what follows must not be given up because the caller did, and
	// is no reason to say that it did not. The loop that follows the head goes on
	// where it fails.
	ctx = context.WithoutCancel(ctx)
	done := &fealtyv1.SetManifestResponse{Transition: transitionMessage(link)}
	if verified.Version() == 0 {
		c.kickHead() // and on again, by somebody else
		return done, nil
	}
	s, err := c.newState(verified, seed, keys, root, mesh)
	if err != nil {
		c.log.LogAttrs(ctx, slog.LevelError, "the new head was not adopted", slog.Any("err", err))
		c.kickHead()
		return done, nil
	}
	if err := c.adopt(ctx, s); err == nil {
		c.auditSet(ctx, s, &link.Transition)
	}
	return done, nil
}

// setError words why the head did not move. If somebody else moved it, our state
// is behind, and is loaded anew by the loop that follows the head.
func (c *Coordinator) setError(err error) error {
	var conflict *history.ConflictError
	if errors.As(err, &conflict) {
		return explain.Wrap(err, explain.ManifestStale, "expected", "the head of before", "head", conflict.Head.Hash.String()[:16], "index", fmt.Sprint(conflict.Head.Index))
	}
	return c.storeError("set the manifest", err)
}

// writeSealed writes what a keeper or the root's own key authenticates. An older
// value is of a set that never came into force, and is replaced.
func (c *Coordinator) writeSealed(ctx context.Context, key string, value []byte) error {
	for range commitTries {
		e, err := c.store.Get(ctx, key)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return c.storeError("write a sealed secret", err)
		}
		switch _, err := c.store.CompareAndSwap(ctx, key, e.Version, value); {
		case err == nil:
			return nil
		case !errors.Is(err, store.ErrConflict) && !errors.Is(err, store.ErrUnknownOutcome):
			return c.storeError("write a sealed secret", err)
		}
	}
	return errBusy("the sealed secret")
}

// keepers returns the keepers among the owners of m. This release brings the
// seed back through a keeper alone, so a manifest without one, or one that needs
// several shares, would lose the cluster with this process.
func (c *Coordinator) keepers(m *manifest.Manifest) (map[string]keyring.Keeper, error) {
	if m.Seed.Threshold != 1 {
		return nil, explain.New(explain.RequestField, "field", "seed.threshold", "problem",
			fmt.Sprintf("%d shares would be needed, and this release brings the seed back through one keeper: set it to 1", m.Seed.Threshold))
	}
	out := make(map[string]keyring.Keeper)
	for _, o := range m.Seed.Owners {
		k, err := keyring.KeeperOf(keyring.Owner(o), c.fs)
		if err != nil {
			return nil, explain.Wrap(err, explain.KeeperUnusable, "keeper", o.Name, "problem", err.Error())
		}
		out[o.Name] = k
	}
	return out, nil
}

func sameOwners(a, b manifest.Seed) bool {
	if a.Threshold != b.Threshold || len(a.Owners) != len(b.Owners) {
		return false
	}
	for i := range a.Owners {
		if a.Owners[i] != b.Owners[i] {
			return false
		}
	}
	return true
}

func unauthorizedSet(err error) error {
	var u *history.UnauthorizedError
	if errors.As(err, &u) && u.Key == nil {
		return explain.Wrap(err, explain.ManifestUnsigned, "got", fmt.Sprint(u.Have), "want", fmt.Sprint(u.Need))
	}
	if u != nil {
		return explain.Wrap(err, explain.ManifestMissigned, "signer", u.Key.String())
	}
	return explain.Wrap(err, explain.ManifestMissigned)
}

func manifestProblems(err error) error {
	var invalid *manifest.InvalidError
	if !errors.As(err, &invalid) {
		return explain.Wrap(err, explain.ManifestInvalid, "problem", err.Error())
	}
	return explain.Wrap(err, explain.ManifestInvalid, "count", fmt.Sprint(len(invalid.Problems)), "problem", invalid.Problems[0].Error())
}

// auditSet records a set. It follows the swap, because the head is its own
// transaction; the history itself is the record that counts.
func (c *Coordinator) auditSet(ctx context.Context, s *state, t *history.Transition) {
	ch := s.records.newChange(s.headVersion)
	ch.audit(c.now(), auditEntry{Actor: actor(ctx), Action: "manifest." + string(t.Kind), Target: s.head.Hash.String(), Reason: t.Reason,
		Fields: map[string]string{"index": fmt.Sprint(t.Index), "authority_epoch": fmt.Sprint(t.AuthorityEpoch)}})
	if _, err := ch.commit(ctx); err != nil {
		c.log.LogAttrs(ctx, slog.LevelWarn, "the audit entry of a set was not written; the history has it", slog.Any("err", err))
	}
}

func (m manifestServer) GetManifest(ctx context.Context, req *fealtyv1.GetManifestRequest) (*fealtyv1.GetManifestResponse, error) {
	s, err := m.c.ready()
	if err != nil {
		return nil, err
	}
	if req.GetIndex() == 0 || req.GetIndex() == s.head.Index {
		return &fealtyv1.GetManifestResponse{Manifest: s.manifest.Bytes(), Transition: transitionMessage(s.head)}, nil
	}
	v, h, err := m.c.verifiedHistory(ctx, s)
	if err != nil {
		return nil, err
	}
	for _, l := range v.Links() {
		if l.Index == req.GetIndex() {
			return &fealtyv1.GetManifestResponse{Manifest: h.Manifests[l.Manifest], Transition: transitionMessage(l)}, nil
		}
	}
	return nil, explain.New(explain.NotFound, "what", "transition", "name", fmt.Sprint(req.GetIndex()))
}

func (m manifestServer) GetHistory(ctx context.Context, req *fealtyv1.GetHistoryRequest) (*fealtyv1.GetHistoryResponse, error) {
	s, err := m.c.ready()
	if err != nil {
		return nil, err
	}
	v, h, err := m.c.verifiedHistory(ctx, s)
	if err != nil {
		return nil, err
	}
	key, err := x509.MarshalPKIXPublicKey(s.secrets.keys.Transaction().Public())
	if err != nil {
		return nil, err
	}
	out := &fealtyv1.GetHistoryResponse{Head: h.Head, TransactionKey: key}
	sent := make(map[manifest.Hash]bool)
	size := 0
	for _, l := range v.Links() {
		if l.Index < req.GetFrom() {
			continue
		}
		t := transitionMessage(l)
		size += len(t.GetRecord())
		if !sent[l.Manifest] {
			size += len(h.Manifests[l.Manifest])
		}
		// Clients take no more than 4 MiB. Who does not see the head yet asks again,
		// from the index after the last.
		if size > maxHistoryPage && len(out.Transitions) > 0 {
			break
		}
		out.Transitions = append(out.Transitions, t)
		if !sent[l.Manifest] {
			sent[l.Manifest] = true
			out.Manifests = append(out.Manifests, h.Manifests[l.Manifest])
		}
	}
	return out, nil
}

// verifiedHistory reads the history and verifies it again: what is shown is what
// the store holds, and no more than what verifies.
func (c *Coordinator) verifiedHistory(ctx context.Context, s *state) (*history.Verified, *history.History, error) {
	h, err := c.history.Load(ctx)
	var damaged *history.BlobError
	switch {
	case errors.As(err, &damaged), errors.Is(err, history.ErrEmpty), errors.Is(err, history.ErrEncoding), errors.Is(err, history.ErrUnverified):
		return nil, nil, explain.Wrap(err, explain.HistoryInvalid, "cluster", s.manifest.Cluster, "problem", err.Error())
	case err != nil:
		return nil, nil, c.storeError("read the history", err)
	}
	v, err := history.Verify(h, s.secrets.keys.Transaction().Public().(ed25519.PublicKey))
	if err != nil {
		return nil, nil, explain.Wrap(err, explain.HistoryInvalid, "cluster", s.manifest.Cluster, "problem", err.Error())
	}
	return v, h, nil
}

// newKey makes a key for an SVID of our own.
func newKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	return key, nil
}

// keyMemory is how long a banned key is remembered: until no certificate over it
// can be valid, or its holder in grace.
func keyMemory(m *manifest.Manifest) time.Duration {
	return max(m.LongestSVIDTTL(), manifest.DefaultDegradedMax) + m.RejoinGrace
}

// shortHex shows the beginning of a hash that a caller gave.
func shortHex(b []byte) string { return fmt.Sprintf("%x", b[:min(len(b), 8)]) }
