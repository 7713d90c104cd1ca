package coordinator

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/ca"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/coordinator/replicas"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/flowcontrol"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/proof"
	decide "github.com/fealty-io/fealty/internal/replica"
	"github.com/fealty-io/fealty/internal/sealed"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/patience"
	"github.com/fealty-io/fealty/manifest"
)

// maxHistoryPage bounds the transitions and manifests of one answer.
const maxHistoryPage = 3 << 20

// firstSetsAtOnce bounds who brings a first manifest, and firstSetsPerSource those of them
// from one address: what they bring is large.
const (
	firstSetsAtOnce    = 32
	firstSetsPerSource = 8
)

// newFirstSets are the places of who sets the first manifest. Whoever proves the setup
// token keeps its slot.
func newFirstSets() *flowcontrol.Limiter {
	return flowcontrol.New(flowcontrol.Limits{What: "first sets", Most: firstSetsAtOnce,
		PerSource: firstSetsPerSource, Patience: flowcontrol.AnswerTimeout, PerHolder: 1})
}

// manifestServer serves ManifestService.
type manifestServer struct {
	fealtyv1.UnimplementedManifestServiceServer
	c *Authority
}

// registerServices registers the services that set and reseed the manifest.
func (c *Authority) registerServices(to grpc.ServiceRegistrar) {
	fealtyv1.RegisterManifestServiceServer(to, manifestServer{c: c})
	fealtyv1.RegisterReseedServiceServer(to, reseedServer{c: c})
}

func (m manifestServer) SetManifest(ctx context.Context,
	req *fealtyv1.SetManifestRequest) (*fealtyv1.SetManifestResponse, error) {
	return m.c.set(ctx, req, identity.FromContext(ctx).Local != nil)
}

// FirstSet is a set over a proof of the setup token, bound to this channel and
// to this manifest.
func (m manifestServer) FirstSet(stream fealtyv1.ManifestService_FirstSetServer) error {
	c := m.c
	ctx, cancel := context.WithTimeout(stream.Context(), flowcontrol.ExchangeTimeout)
	defer cancel()
	if c.cfg.Self.SetupKey() == nil { // before anything is read
		return explain.New(explain.HistoryInitialized)
	}
	addr := identity.FromContext(ctx).Addr
	if !c.cfg.Limiter.Allow(addr, c.cfg.Now()) {
		return explain.New(explain.RateLimited, "what", "first sets", "limit", fmt.Sprint(c.cfg.Limiter.Limit()))
	}
	slot, err := c.firstSets.Enter(ctx, addr, c.cfg.Now())
	if err != nil {
		return err
	}
	defer slot.Leave()
	return slot.Reason(m.firstSet(slot, stream))
}

func (m manifestServer) firstSet(slot *flowcontrol.Slot, stream fealtyv1.ManifestService_FirstSetServer) error {
	c, ctx := m.c, slot.Context()
	ch, err := openChannel(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(&fealtyv1.FirstSetResponse{Step: &fealtyv1.FirstSetResponse_Nonce{Nonce: ch.nonce},
		PartBytes: flowcontrol.PartBytes}); err != nil {
		return err
	}
	req, err := flowcontrol.Receive(ctx, c.cfg.Readers, stream.Recv)
	if err != nil {
		return err
	}
	if err := ch.stale(); err != nil {
		return err
	}
	setup := c.cfg.Self.SetupKey()
	if setup == nil {
		return explain.New(explain.HistoryInitialized)
	}
	t := proof.SetupTranscript{Nonce: ch.nonce, Binding: ch.binding, Manifest: req.GetSet().GetManifest(),
		Hash: req.GetManifestHash()}
	if err := proof.VerifySetup(setup, t, req.GetEvidence()); err != nil {
		c.cfg.Refusals.Log(ctx, c.cfg.Log, slog.LevelWarn, "first set refused",
			slog.String("remote", identity.FromContext(ctx).Addr), slog.Any("err", err))
		return explain.Wrap(err, explain.SetupRefused)
	}
	if err := slot.Prove("the setup token"); err != nil {
		return err
	}
	if len(req.GetManifestHash()) > 0 {
		if req.Set == nil {
			req.Set = &fealtyv1.SetManifestRequest{}
		}
		if req.Set.Manifest, err = c.manifestParts(ctx, req, stream); err != nil {
			return err
		}
	}
	done, err := c.set(ctx, req.GetSet(), true)
	if err != nil {
		return err
	}
	return stream.Send(&fealtyv1.FirstSetResponse{Step: &fealtyv1.FirstSetResponse_Done{Done: done}})
}

// manifestParts receives the manifest whose hash was proven.
func (c *Authority) manifestParts(ctx context.Context, req *fealtyv1.FirstSetRequest,
	stream fealtyv1.ManifestService_FirstSetServer) ([]byte, error) {
	size := int(req.GetManifestBytes())
	if size == 0 || size > manifest.MaxBytes {
		return nil, explain.New(explain.RequestField,
			"field", "manifest_bytes", "problem", fmt.Sprintf("it is %d, want from 1 to %d", size, manifest.MaxBytes))
	}
	whole, err := flowcontrol.ReceiveParts(ctx, c.cfg.Readers, nil, size, func() ([]byte, bool, error) {
		m, err := stream.Recv()
		return m.GetPart(), true, err
	})
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(whole); !bytes.Equal(sum[:], req.GetManifestHash()) {
		return nil, explain.New(explain.RequestField,
			"field", "part", "problem", "the manifest is not the one that was proven")
	}
	return whole, nil
}

// A move is one transition on its way into force, and what the state after it
// holds. The kinds of transitions differ in how they compose a move; the way from
// there is one and the same: check, write what it needs, swap the head, adopt.
type move struct {
	from     *authority.State // what it follows; nil for the first
	manifest *manifest.Manifest
	link     history.Link
	secrets  *authority.Secrets
	root     *x509.Certificate
	mesh     *ca.MeshCA
	keepers  []found  // of manifest, as they were found here
	shares   shareSet // made by it; empty if it makes none

	// madeKeys are the keys of keepers that were made for it on this machine. They stay,
	// whatever becomes of it.
	madeKeys []*fealtyv1.KeeperKey

	// newSeed says that the seed was made for this move: its root is written, and
	// it is wiped if the move does not come into force.
	newSeed bool

	// actor is who brought it about, for the audit log; empty: who called.
	actor string
	// told is set once a state that was not adopted took along what the audit log is told
	// of the move.
	told bool
	// received says for the audit log where the seed came from, if it was in no state of
	// this coordinator before; nil: it was, or newSeed.
	received map[string]string
}

// wipe overwrites the secrets that were made for the move, if nobody uses them. A
// nil move has none.
func (mv *move) wipe() {
	if mv != nil && mv.newSeed {
		mv.secrets.Wipe()
	}
}

// wipeMesh overwrites the mesh CA key that was made for the move, once it is known that
// no head will ever name it.
func (mv *move) wipeMesh() {
	if mv.mesh != nil && (mv.from == nil || mv.mesh.KeyID() != mv.from.MeshKey) {
		authority.WipeMesh(mv.mesh)
	}
}

// maxCandidates bounds the moves whose outcome is unknown at one time. Who loses
// more answers than that needs a keeper, or the owners, for the oldest.
const maxCandidates = 8

// keepCandidate remembers a move that may have come into force, or may yet, so
// that its keys are at hand when its head is seen. It reports whether it did.
func (c *Authority) keepCandidate(mv *move) bool {
	if c.candidates[mv.link.Hash] != mv && len(c.candidates) >= maxCandidates {
		return false
	}
	if c.candidates == nil {
		c.candidates = make(map[history.Hash]*move)
	}
	c.candidates[mv.link.Hash] = mv
	return true
}

// settleCandidates forgets the moves that are decided, now that head is adopted.
// The seed of head may be that of one of them.
func (c *Authority) settleCandidates(head history.Link) {
	for hash, mv := range c.candidates {
		if !decide.Decided(decide.HeadOf(&mv.link), decide.HeadOf(&head)) {
			continue // it may come yet
		}
		if mv.link.Salt != head.Salt {
			mv.wipe()
		}
		if mv.link.MeshCAKey != head.MeshCAKey {
			mv.wipeMesh()
		}
		delete(c.candidates, hash)
	}
}

// set makes a manifest the one in force. first allows a set without signatures
// where there is no history: who asks is at the machine, or proved the setup
// token.
//
// The order is the proof (manifest.md, History): the new mesh CA key is made and
// sealed before the head moves, so that a crash right after the swap costs
// nothing; the head moves by compare-and-swap; an unknown outcome is settled by
// reading the head.
func (c *Authority) set(ctx context.Context, req *fealtyv1.SetManifestRequest,
	first bool) (*fealtyv1.SetManifestResponse, error) {
	if err := record.CheckReason(req.GetReason(), false); err != nil {
		return nil, err
	}
	s, release, err := c.headTurn(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	if s.Phase == authority.Recovery {
		return nil, explain.New(explain.RecoveryMode, "reason", s.Reason)
	}
	next, err := c.proposed(s, req.GetManifest())
	if err != nil {
		return nil, err
	}
	if err := c.staysAdmitted(s, next); err != nil {
		return nil, err
	}
	if err := c.readByAll(ctx, s, next); err != nil {
		return nil, err
	}
	keepers, err := c.cfg.Keepers.keepers(next)
	if err != nil {
		return nil, err
	}
	mv, err := c.compose(req, s, next, first)
	inUse := false
	defer func() {
		if !inUse {
			mv.wipe()
		}
	}()
	if err != nil {
		return nil, err
	}
	if err := c.cfg.Keepers.lookAtKeepers(ctx, mv, keepers); err != nil {
		return nil, err
	}
	if err := c.moveFits(ctx, mv); err != nil {
		return nil, err
	}
	if req.GetDryRun() {
		return &fealtyv1.SetManifestResponse{Transition: transitionMessage(mv.link)}, nil
	}
	if err := c.writeSecrets(ctx, mv); err != nil {
		return nil, err
	}
	if inUse, err = c.swap(ctx, mv); err != nil {
		return nil, err
	}
	return &fealtyv1.SetManifestResponse{Transition: transitionMessage(mv.link), Shares: mv.shares.message(),
		KeysMade: mv.madeKeys}, nil
}

// staysAdmitted reports whether next admits this coordinator, and under the name
// that it has.
func (c *Authority) staysAdmitted(s *authority.State, next *manifest.Manifest) error {
	entry, err := c.cfg.Self.Admits(next)
	if err != nil || s.Phase != authority.Ready {
		return err
	}
	if now, err := c.cfg.Self.Admits(s.Manifest); err == nil && now.Name != entry.Name {
		return explain.New(explain.RequestField, "field", "admit", "problem",
			fmt.Sprintf("it renames this coordinator from %s to %s, and a process keeps its identity: keep the name, "+
				"or add the other one for another enrolment key", now.Name, entry.Name))
	}
	return nil
}

// readByAll refuses a field that is new in next and that a coordinator which next admits,
// and which is heard, cannot read: it would refuse the whole manifest, and be none any
// more.
func (c *Authority) readByAll(ctx context.Context, s *authority.State, next *manifest.Manifest) error {
	before := []string(nil)
	if s.Phase == authority.Ready {
		before = s.Manifest.LaterFields()
	}
	added := slices.DeleteFunc(next.LaterFields(), func(f string) bool { return slices.Contains(before, f) })
	if len(added) == 0 {
		return nil
	}
	all, err := c.cfg.Replicas.Newest(ctx, next)
	if err != nil {
		return c.cfg.Head.StoreError("read what the coordinators read", err)
	}
	for _, r := range all {
		if r.Key == c.cfg.Self.EnrolmentKey() || r.Stopped || c.cfg.Now().Sub(r.At).Abs() >= replicas.SilentAfter {
			continue
		}
		for _, field := range added {
			if !slices.Contains(r.Reads, field) {
				return explain.New(explain.ManifestFieldUnread, "field", field, "coordinator", r.Name,
					"release", cmp.Or(r.Release, "an earlier one"))
			}
		}
	}
	return nil
}

// compose makes the move that req asks for, after s. It writes nothing. What it
// returns with an error is to be wiped.
func (c *Authority) compose(req *fealtyv1.SetManifestRequest, s *authority.State, m *manifest.Manifest,
	first bool) (*move,
	error) {
	if s.Phase == authority.Uninitialized {
		if !first {
			return nil, explain.New(explain.HistoryUninitialized)
		}
		if k := history.Kind(req.GetKind()); k != "" && k != history.KindSet {
			return nil, explain.New(explain.HistoryUninitialized, "method", "a "+string(k))
		}
		return c.composeGenesis(req, m)
	}
	if err := follows(req, s, m); err != nil {
		return nil, err
	}
	kind := history.Kind(req.GetKind())
	if kind == "" {
		kind = history.KindSet
	}
	if err := changesOnly(kind, s.Manifest, m); err != nil {
		return nil, err
	}
	mv := &move{from: s, manifest: m, secrets: s.Secrets, root: s.Root, mesh: s.MeshCA()}
	t, moves := s.Chain.Next(kind, m)
	if err := authorize(req, s, t); err != nil {
		return nil, err
	}
	if kind == history.KindReshare {
		if err := mv.splitSeed(t); err != nil {
			return nil, err
		}
	}
	if moves {
		if err := c.newMesh(mv, t); err != nil {
			return nil, err
		}
	}
	return mv, mv.seal(t)
}

// changesOnly reports whether what changes between two manifests is what a
// transition of kind may change. Signers who consented to one kind did not consent
// to what only another may do.
func changesOnly(kind history.Kind, before, after *manifest.Manifest) error {
	switch kind {
	case history.KindSet:
		if !sameOwners(after.Seed, before.Seed) {
			return explain.New(explain.ManifestOtherKind,
				"kind", "set", "problem", "it changes the owners of the seed, or how many of them it takes, and a set "+
					"keeps them",
				"do", "set all else first, then: fealty manifest reshare FILE")
		}
	case history.KindReshare:
		if c, beyond := manifest.Diff(before, after).BeyondSeed(); beyond {
			return explain.New(explain.ManifestOtherKind,
				"kind", "reshare", "problem", fmt.Sprintf("it also changes %s of %s, and a reshare changes the seed's "+
					"owners alone", c.Class, c.Subject),
				"do", "start from fealty manifest get, change seed alone, and bring the rest with: fealty manifest "+
					"set FILE")
		}
		if len(after.Seed.People()) == 0 && sameOwners(after.Seed, before.Seed) {
			return explain.New(explain.ManifestOtherKind,
				"kind", "reshare", "problem", "no owner is a person with a share, and the keepers stay the same: "+
					"there is nothing to share anew", "do", "change seed.owners first")
		}
		for _, o := range after.Seed.Keepers() {
			// The sealed seed is stored under the keeper's name. What the keeper of the
			// manifest in force opens must not be overwritten before the head moves.
			i := slices.IndexFunc(before.Seed.Owners,
				func(b manifest.Owner) bool { return b.Name == o.Name && b.Keeper != "" && b.Keeper != o.Keeper })
			if i >= 0 {
				return explain.New(explain.ManifestOtherKind,
					"kind", "reshare", "problem", fmt.Sprintf("keeper %s was %s and becomes %s under the same name",
						o.Name, before.Seed.Owners[i].Keeper, o.Keeper),
					"do", "give the new keeper another name")
			}
		}
	default:
		return explain.New(explain.RequestField,
			"field", "kind", "problem", fmt.Sprintf("%.32q is none that can be asked for: set or reshare", kind))
	}
	return nil
}

// follows reports whether req was made for the state s.
func follows(req *fealtyv1.SetManifestRequest, s *authority.State, m *manifest.Manifest) error {
	switch {
	case len(req.GetCurrentTransition()) == 0:
		return explain.New(explain.HistoryInitialized, "cluster", s.Manifest.Cluster)
	case string(req.GetCurrentTransition()) != string(s.Head.Hash[:]):
		return explain.New(explain.ManifestStale, "expected", shortHex(req.GetCurrentTransition()), "head",
			s.Head.Hash.String()[:16], "index", fmt.Sprint(s.Head.Index))
	case m.Cluster != s.Manifest.Cluster:
		return explain.New(explain.RequestField, "field", "cluster", "problem",
			fmt.Sprintf("the manifest is of %s, and this cluster is %s", m.Cluster, s.Manifest.Cluster))
	}
	return nil
}

// authorize gives t reason and signatures of req, and reports whether those reach
// the threshold of the signers in force.
func authorize(req *fealtyv1.SetManifestRequest, s *authority.State, t *history.Transition) error {
	t.Reason = req.GetReason()
	for _, sig := range req.GetSignatures() {
		key, err := manifest.ParseKey(sig.GetKey())
		if err != nil || len(sig.GetSignature()) != 64 {
			return explain.New(explain.ManifestMissigned, "change", t.Kind.Undone(), "signer", sig.GetKey())
		}
		if slices.ContainsFunc(t.Signatures, func(s history.Signature) bool { return s.Key == key }) {
			return explain.New(explain.SignatureTwice, "change", t.Kind.Undone(), "signer", key.String())
		}
		t.Signatures = append(t.Signatures, history.Signature{Key: key, Signature: [64]byte(sig.GetSignature())})
	}
	if err := history.Authorize(s.Manifest, t.Statement(), t.Signatures); err != nil {
		return unauthorizedSet(t.Kind, err)
	}
	return nil
}

// composeGenesis makes the seed, its root and the first transition.
func (c *Authority) composeGenesis(req *fealtyv1.SetManifestRequest, m *manifest.Manifest) (*move, error) {
	t := history.Genesis(m)
	t.Reason = req.GetReason()
	mv := &move{manifest: m}
	if err := c.makeSeed(mv, t); err != nil {
		return nil, err
	}
	if err := mv.splitSeed(t); err != nil {
		return mv, err
	}
	if err := c.newMesh(mv, t); err != nil {
		return mv, err
	}
	return mv, mv.seal(t)
}

// makeSeed makes a new seed, and what derives from it, for mv and its transition.
func (c *Authority) makeSeed(mv *move, t *history.Transition) error {
	secrets, salt, err := authority.Make()
	if err != nil {
		return err
	}
	mv.secrets, mv.newSeed, t.Salt = secrets, true, salt
	if mv.root, err = ca.Root(secrets.RootCA(), mv.manifest.Cluster, c.cfg.Now().Add(-ca.Backdate)); err != nil {
		return fmt.Errorf("make the root: %w", err)
	}
	return nil
}

// newMesh makes the mesh CA of a new authority epoch.
func (c *Authority) newMesh(mv *move, t *history.Transition) error {
	mesh, err := ca.NewMeshCA(mv.root, mv.secrets.RootCA(), ca.MeshConfig{Cluster: mv.manifest.Cluster,
		Epoch: t.AuthorityEpoch, Validity: authority.MeshLife(mv.manifest)}, c.cfg.Now())
	if err != nil {
		return fmt.Errorf("make the mesh CA: %w", err)
	}
	mv.mesh, t.MeshCAKey = mesh, mesh.KeyID()
	return nil
}

// seal names the transition of the move by its hash, which is known before
// anything is written.
func (mv *move) seal(t *history.Transition) (err error) {
	mv.link, err = linkOf(t)
	return err
}

// moveFits reports whether a trust bundle can be made after the move, and of another
// manifest what members are told. A head that no bundle follows from would stop the
// cluster.
func (c *Authority) moveFits(ctx context.Context, mv *move) error {
	after := &authority.State{Manifest: mv.manifest, Head: mv.link, Secrets: mv.secrets, Root: mv.root,
		MeshKey: mv.mesh.KeyID()}
	after.Bundle = &bundle.Authority{
		Manifest: after.Manifest, Head: after.Head, Root: after.Root, MeshKey: after.MeshKey,
		ConfigRoot: mv.secrets.ConfigRoot, ConfigKey: mv.secrets.ConfigSigning,
	}
	for _, fits := range c.cfg.Fits {
		if err := fits(ctx, mv.from, after); err != nil {
			return err
		}
	}
	return nil
}

// writeSecrets writes what must be found by who comes up at the new head: the
// seed, sealed by each keeper, its shares, encrypted to their owners, and the root.
func (c *Authority) writeSecrets(ctx context.Context, mv *move) error {
	for i := range mv.keepers {
		if err := c.cfg.Keepers.sealSeed(ctx, &mv.keepers[i], mv); err != nil {
			return err
		}
	}
	if mv.newSeed {
		if _, err := c.cfg.Head.Overwrite(ctx, sealed.RootKey(&mv.link.Transition), mv.root.Raw); err != nil {
			return err
		}
		if err := c.cfg.Faults.Hit("set.after-seed"); err != nil {
			return err
		}
	}
	return c.writeShares(ctx, mv)
}

// linkOf names t by its hash, which is known before anything is written.
func linkOf(t *history.Transition) (history.Link, error) {
	raw, err := t.Encode()
	if err != nil {
		return history.Link{}, explain.Wrap(err, explain.RequestField, "field", "transition", "problem", err.Error())
	}
	return history.Link{Transition: *t, Hash: sha256.Sum256(raw)}, nil
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
		Record: raw, Hash: l.Hash[:], Index: l.Index, AuthorityEpoch: l.AuthorityEpoch, Kind: string(l.Kind),
		Reason:       l.Reason,
		ManifestHash: l.Manifest[:], MeshCaKey: l.MeshCAKey[:],
	}
}

// swap brings mv into force, in the order that package replica gives: the mesh CA key
// was made before its hash was put into the transition; it is sealed, the head moves,
// and is adopted. It reports whether the secrets of the move are in use now, or may be.
//
// If it stays unknown whether the head moved, nothing is adopted here: the loop
// that follows the head finds its keys among the candidates or, after a restart,
// sealed under the new head's hash.
func (c *Authority) swap(ctx context.Context, mv *move) (inUse bool, err error) {
	if err := c.cfg.Self.CheckPin(mv.root); err != nil {
		return false, err
	}
	if mv.actor == "" {
		mv.actor = record.Actor(ctx)
	}
	var order decide.Move
	var verified *history.Verified
	for {
		result := decide.OK
		switch order.Stage() {
		case decide.Make:
		case decide.Seal:
			if err = c.cfg.Keepers.sealMesh(ctx, mv); err != nil {
				result = decide.Failed
			}
		case decide.Prepare:
			if took := c.cfg.Peers().prepare(ctx, mv); len(took) > 0 {
				c.cfg.Log.LogAttrs(ctx, slog.LevelInfo, "peers have the mesh CA key of the next head",
					slog.Any("peers", took), slog.String("head", mv.link.Hash.String()))
			}
		case decide.Swap:
			c.cfg.BeforeMove(ctx, mv.from)
			verified, result, err = c.moveHead(ctx, mv)
		case decide.Adopt:
			inUse = true
			// The head moved: what follows must not be given up because the caller did, and
			// is no reason to say that it did not. The loop that follows the head goes on
			// where it fails.
			if s, failed := c.newState(verified, mv.secrets, mv.root, mv.mesh); failed != nil {
				c.cfg.Log.LogAttrs(ctx, slog.LevelError, "the new head was not adopted", slog.Any("err", failed))
				result = decide.Failed
			} else {
				c.untold = append(c.untold, mv.audit(s)...)
				c.keepCandidate(mv)                         // so that its keys are here whatever the adoption comes to
				if lost(c.adopt(patience.Beyond(ctx), s)) { // logged there, and tried again
					mv.told, result = true, decide.Conflict
				}
			}
		case decide.Keep:
			inUse = c.keepCandidate(mv)
			c.cfg.Head.LookAgain()
		case decide.Drop:
			mv.wipeMesh()
			c.cfg.Head.LookAgain()
		case decide.Done:
			return inUse, err
		}
		order.Ended(result)
	}
}

// moveHead moves the head to mv, and says how that ended.
func (c *Authority) moveHead(ctx context.Context, mv *move) (*history.Verified, decide.Result, error) {
	if err := c.cfg.Faults.Hit("set.before-swap"); err != nil {
		return nil, decide.Failed, err
	}
	var from *history.Verified
	if mv.from != nil {
		from = mv.from.Chain
	}
	verified, err := c.cfg.Head.History().Append(ctx, from, &mv.link.Transition, mv.manifest, mv.secrets.Transaction())
	switch {
	case errors.Is(err, store.ErrUnknownOutcome):
		return nil, decide.Unknown, c.setError(err)
	case errors.Is(err, store.ErrConflict):
		return nil, decide.Conflict, c.setError(err)
	case err != nil:
		return nil, decide.Failed, c.setError(err)
	}
	if err := c.cfg.Faults.Hit("set.after-swap"); err != nil {
		return nil, decide.Unknown, err
	}
	if verified.Version() == 0 {
		return nil, decide.Overtaken, nil // on again, by somebody else
	}
	return verified, decide.OK, nil
}

// setError words why the head did not move. If somebody else moved it, our state
// is behind, and is loaded anew by the loop that follows the head.
func (c *Authority) setError(err error) error {
	var conflict *history.ConflictError
	if errors.As(err, &conflict) {
		return explain.Wrap(err, explain.ManifestStale,
			"expected", "the head of "+
				"before", "head", conflict.Head.Hash.String()[:16], "index", fmt.Sprint(conflict.Head.Index))
	}
	return c.cfg.Head.StoreError("set the manifest", err)
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

func unauthorizedSet(kind history.Kind, err error) error {
	change := kind.Undone()
	var u *history.UnauthorizedError
	if errors.As(err, &u) && u.Key == nil {
		return explain.Wrap(err, explain.ManifestUnsigned, "change", change,
			"sign", "fealty manifest "+string(kind)+" --sign-with "+
				"KEY", "got", fmt.Sprint(u.Have), "want", fmt.Sprint(u.Need))
	}
	if u != nil && u.Foreign {
		return explain.Wrap(err, explain.SignatureForeign, "change", change, "signer", u.Key.String())
	}
	if u != nil {
		return explain.Wrap(err, explain.ManifestMissigned, "change", change, "signer", u.Key.String())
	}
	return explain.Wrap(err, explain.ManifestMissigned, "change", change)
}

// proposed reads a manifest that is to follow s. One that is in force already was
// accepted: what a later release would refuse in it must not stand in the way of a new
// seed.
func (c *Authority) proposed(s *authority.State, data []byte) (*manifest.Manifest, error) {
	if s.Phase == authority.Ready && manifest.Hash(sha256.Sum256(data)) == s.Manifest.Hash() {
		return s.Manifest, nil
	}
	m, err := c.cfg.Parse(data)
	if err != nil {
		return nil, manifestProblems(err)
	}
	return m, nil
}

func manifestProblems(err error) error {
	var invalid *manifest.InvalidError
	if !errors.As(err, &invalid) {
		return explain.Wrap(err, explain.ManifestInvalid, "problem", err.Error())
	}
	return explain.Wrap(err, explain.ManifestInvalid, "count", fmt.Sprint(len(invalid.Problems)),
		"problem", invalid.Problems[0].Error())
}

// audit is what the audit log is told of a move that brought s about: the transition,
// and which of its secrets were made for it.
func (mv *move) audit(s *authority.State) []record.AuditEntry {
	t := &mv.link.Transition
	out := []record.AuditEntry{{Actor: mv.actor, Action: "manifest." + string(t.Kind), Target: s.Head.Hash.String(),
		Reason: t.Reason,
		Fields: map[string]string{"index": fmt.Sprint(t.Index), "authority_epoch": fmt.Sprint(t.AuthorityEpoch)}}}
	if mv.received != nil {
		out = append(out, originOf(s, actionSeedReceived, mv.received))
	}
	if mv.newSeed {
		out = append(out, originOf(s, actionSeedCreated, nil))
	}
	if mv.from == nil || mv.from.Head.MeshCAKey != mv.link.MeshCAKey {
		out = append(out, originOf(s, actionMeshMade, nil))
	}
	for _, k := range mv.madeKeys {
		out = append(out, record.AuditEntry{Actor: mv.actor, Action: "keeper.key.made", Target: k.GetKeeper(),
			Fields: map[string]string{"key": k.GetKeyId(), "coordinator": k.GetCoordinator()}})
	}
	return out
}

func (m manifestServer) GetManifest(ctx context.Context,
	req *fealtyv1.GetManifestRequest) (*fealtyv1.GetManifestResponse, error) {
	s, err := m.c.cfg.Head.AtHead(ctx)
	if err != nil {
		return nil, err
	}
	if req.GetIndex() == 0 || req.GetIndex() == s.Head.Index {
		return &fealtyv1.GetManifestResponse{Manifest: s.Manifest.Bytes(), Transition: transitionMessage(s.Head)}, nil
	}
	v, h, err := m.c.verifiedHistory(ctx, s)
	if err != nil {
		return nil, err
	}
	for _, l := range v.Links() {
		if l.Index == req.GetIndex() {
			return &fealtyv1.GetManifestResponse{Manifest: h.Manifests[l.Manifest],
				Transition: transitionMessage(l)}, nil
		}
	}
	return nil, explain.New(explain.NotFound, "what", "transition", "name", fmt.Sprint(req.GetIndex()))
}

func (m manifestServer) GetHistory(ctx context.Context, req *fealtyv1.GetHistoryRequest) (*fealtyv1.GetHistoryResponse,
	error) {
	s, err := m.c.cfg.Head.AtHead(ctx)
	if err != nil {
		return nil, err
	}
	v, h, err := m.c.verifiedHistory(ctx, s)
	if err != nil {
		return nil, err
	}
	key, err := x509.MarshalPKIXPublicKey(s.Secrets.Transaction().Public())
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
func (c *Authority) verifiedHistory(ctx context.Context, s *authority.State) (*history.Verified, *history.History,
	error) {
	h, err := c.cfg.Head.History().Load(ctx)
	var damaged *history.BlobError
	switch {
	case errors.As(err, &damaged), errors.Is(err, history.ErrEmpty), errors.Is(err, history.ErrEncoding), errors.Is(err,
		history.ErrUnverified):
		return nil, nil, explain.Wrap(err, explain.HistoryInvalid, "cluster", s.Manifest.Cluster, "problem",
			err.Error())
	case err != nil:
		return nil, nil, c.cfg.Head.StoreError("read the history", err)
	}
	v, err := history.Verify(h, s.Secrets.TransactionKey())
	if err != nil {
		return nil, nil, explain.Wrap(err, explain.HistoryInvalid, "cluster", s.Manifest.Cluster, "problem",
			err.Error())
	}
	return v, h, nil
}

// shortHex shows the beginning of a hash that a caller gave.
func shortHex(b []byte) string { return fmt.Sprintf("%x", b[:min(len(b), 8)]) }
