package admission

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/admission/batch"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/pki"
	"github.com/fealty-io/fealty/internal/platform/hostinfo"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/store"
)

// Bounds on joins.
const (
	// JoinsAtOnce bounds the joins that are decided at once, joinsPending those
	// that wait for their candidate's answer, which costs little, and joinsPerSource
	// those of them from one address. Renewals have no part in these queues, so a flood
	// of bad joins does not slow them.
	JoinsAtOnce    = 32
	joinsPending   = 4096
	joinsPerSource = 512
	// maxJoinBytes bounds the answer of a candidate, which is kept while it waits to
	// be decided: a proof and a request for a certificate are far smaller.
	maxJoinBytes = 64 << 10
)

// newJoinsWaiting bounds the candidates that were challenged. The rate at which
// they come has its own settings: see Rates of package coordinator.
func newJoinsWaiting(pending, perSource int) *ratelimit.Limiter {
	return ratelimit.New(ratelimit.Limits{What: "joins", Most: cmp.Or(pending, joinsPending),
		PerSource: cmp.Or(perSource, joinsPerSource), Patience: ratelimit.AnswerTimeout})
}

// Join runs the handshake of an admission on one stream: challenge, proof, grant. See
// docs/explanation/threat-model.md.
func (a admissionServer) Join(stream fealtyv1.AdmissionService_JoinServer) error {
	c := a.c
	ctx, cancel := context.WithTimeout(authority.Granted(stream.Context()), ratelimit.ExchangeTimeout)
	defer cancel()
	peer := identity.FromContext(ctx)
	started := time.Now()
	kind := ""
	grant, err := func() (*fealtyv1.JoinGrant, error) {
		if _, err := c.cfg.Head.Ready(); err != nil {
			return nil, err
		}
		if err := c.cfg.Limiter.Admit("joins", peer.Addr, c.cfg.Now()); err != nil {
			return nil, err
		}
		slot, err := c.joinsWaiting.Enter(ctx, peer.Addr, c.cfg.Now())
		if err != nil {
			return nil, err
		}
		defer slot.Leave()
		ch, err := proof.OpenChallenge(ctx)
		if err != nil {
			return nil, err
		}
		err = stream.Send(&fealtyv1.JoinResponse{Step: &fealtyv1.JoinResponse_Challenge{
			Challenge: &fealtyv1.JoinChallenge{Nonce: ch.Nonce, ServerTime: timestamppb.New(c.cfg.Now())},
		}})
		if err != nil {
			return nil, err
		}
		req, err := ratelimit.Receive(slot.Context(), c.cfg.Readers, stream.Recv)
		if err != nil {
			return nil, slot.Reason(err)
		}
		if n := proto.Size(req); n > maxJoinBytes {
			return nil, errcode.New(errcode.RequestField,
				"field", "join request", "problem", fmt.Sprintf("it has %d bytes, at most %d are allowed", n,
					maxJoinBytes))
		}
		slot.Leave()
		release, err := ratelimit.KeepConnection(ctx, "joins", 0)
		if err != nil {
			return nil, err
		}
		defer release()
		if err := ch.Stale(); err != nil {
			return nil, err
		}
		kind = ratelimit.Clip(req.GetKind(), ratelimit.MaxShownBytes)
		// A candidate that is slow to answer holds none of these.
		select {
		case c.joinSlots <- struct{}{}:
			defer func() { <-c.joinSlots }()
		case <-ctx.Done():
			return nil, errcode.New(errcode.RateLimited,
				"what", "joins", "limit", fmt.Sprintf("%d at once", JoinsAtOnce))
		}
		return c.Join(ctx, ch, req)
	}()
	c.metrics.joins.WithLabelValues(joinLabel(grant, err)).Inc()
	c.metrics.joinSeconds.Observe(time.Since(started).Seconds())
	if err != nil {
		c.cfg.Refusals.Log(ctx, c.cfg.Log, slog.LevelWarn, "join refused", slog.String("remote", peer.Addr),
			slog.String("kind", kind),
			slog.String("code", errcode.CodeOf(err)), slog.String("reason", err.Error()))
		return err
	}
	return stream.Send(&fealtyv1.JoinResponse{Step: &fealtyv1.JoinResponse_Grant{Grant: grant}})
}

func joinLabel(g *fealtyv1.JoinGrant, err error) string {
	switch {
	case err != nil && errcode.CodeOf(err) != "":
		return errcode.CodeOf(err)
	case err != nil:
		return "error"
	case g.GetOutcome() == fealtyv1.JoinOutcome_JOIN_OUTCOME_ALREADY_MEMBER:
		return "already_member"
	}
	return "admitted"
}

// Join decides and applies one join over ch. On every error the catalog is
// unchanged, except after an unknown outcome of the store (I1).
func (a *Admission) Join(ctx context.Context, ch proof.Challenge,
	req *fealtyv1.JoinRequest) (*fealtyv1.JoinGrant, error) {
	turn := a.oneTurn()
	var j *joiner
	err := a.cfg.Head.Transact(ctx, "the join", func(s *authority.State) (err error) {
		if lost := a.cfg.StoreGuard.LostError(); lost != nil {
			return lost
		}
		first := j == nil
		if first || j.s != s {
			if j, err = a.prove(ctx, s, ch, req); err != nil {
				return err
			}
			j.turn = turn
		}
		if !first {
			// Nobody is refused on what memory says, and a join that lost to somebody looks again.
			if err := a.look(ctx, j); err != nil {
				return err
			}
		}
		return a.enter(ctx, j)
	})
	if err != nil {
		return nil, err
	}
	return a.grant(ctx, j)
}

// enter decides j together with the joins that come at the same time, and commits it. The error matches
// [store.ErrConflict] if it is to be decided again, as [errLookAgain] does.
func (a *Admission) enter(ctx context.Context, j *joiner) error {
	const what = "admit the member"
	if err := a.cfg.Faults.Hit("join.proven"); err != nil {
		return err
	}
	err := a.joins.Do(ctx, a.lineOf(j), j)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, batch.ErrUnderWay):
		return a.cfg.Head.StoreError(what, fmt.Errorf("%w: %w", store.ErrUnknownOutcome, err))
	}
	return a.cfg.Head.CommitError(what, err)
}

// prove runs the checks that come before the catalog is looked at: cluster, and
// proof. A fault of the CSR is reported after the bans.
func (a *Admission) prove(ctx context.Context, s *authority.State, ch proof.Challenge,
	req *fealtyv1.JoinRequest) (*joiner, error) {
	kind := identity.Kind(req.GetKind())
	// The transcript holds the key to certify, so the CSR is opened before the
	// proof. A CSR that cannot be opened has no key that a proof could cover.
	csr, unopened := pki.OpenCSR(req.GetCsr())
	var spki []byte
	if unopened == nil {
		spki = csr.SPKI()
	}
	t := proof.Transcript{Role: proof.Candidate, Cluster: req.GetClusterId(), Nonce: ch.Nonce, Binding: ch.Binding,
		PublicKey: spki}
	e := proof.Evidence{Type: req.GetProof().GetType(), Claim: req.GetProof().GetClaim(),
		Evidence: req.GetProof().GetEvidence(), PublicKey: req.GetProof().GetPublicKey()}
	var proven proof.Proven
	var proofErr error
	if spki != nil {
		proven, proofErr = a.proofs(s).Verify(ctx, t, e)
	}
	if req.GetClusterId() != s.Manifest.Cluster {
		fields := []any{"presented", ratelimit.Clip(req.GetClusterId(), ratelimit.MaxShownBytes)}
		if spki != nil && proofErr == nil {
			// Only who is known here learns which cluster this is.
			fields = append(fields, "cluster", s.Manifest.Cluster)
		}
		return nil, errcode.New(errcode.JoinWrongCluster, fields...)
	}
	if spki == nil {
		return nil, csrRejection(unopened)
	}
	if proofErr != nil {
		return nil, a.proofRejection(ctx, e, proofErr)
	}
	if !joinable(kind) {
		return nil, kindMismatch(fmt.Sprint(proven.Selectors()), "",
			identity.Kind(ratelimit.Clip(string(kind), ratelimit.MaxShownBytes)))
	}
	said := req.GetMachine()
	cand := candidate{
		kind: kind, proven: proven, key: identity.KeyID(sha256.Sum256(spki)), member: req.GetMember(),
		machine: hostinfo.Clean(hostinfo.Facts{Host: said.GetHost(), OS: said.GetOs(), Addresses: said.GetAddresses()}),
		seen:    hostinfo.Source(identity.FromContext(ctx).Addr),
	}
	// Who proved nothing is not worth the check of a signature.
	publicKey, csrErr := csr.Key()
	if csrErr != nil {
		csrErr = csrRejection(csrErr)
	}
	return &joiner{s: s, cand: cand, publicKey: publicKey, csrErr: csrErr}, nil
}

// joinable reports whether Join admits kind: coordinators get in by recovery,
// workloads get their identity from the member that runs them.
func joinable(k identity.Kind) bool {
	switch k {
	case identity.Data, identity.Witness, identity.Shard, identity.Operator, identity.Provider, identity.Admin,
		identity.Readonly:
		return true
	}
	return false
}

// countMembers counts the members under entry. Every transaction that changes
// their number under this head writes the entry's count, so whoever read the
// version of that before may rely on what is counted here. A member whose record was altered in the store
// ends the count: without it an entry would have room that it has not.
func (a *Admission) countMembers(ctx context.Context, s *authority.State, entry *manifest.Entry) (int, error) {
	recs, err := record.List[record.Member](ctx, s.Records, record.MemberPrefix+string(entry.Kind)+"/")
	if err != nil {
		return 0, err
	}
	n := 0
	for _, r := range recs {
		if r.Value.Entry == entry.Name {
			n++
		}
	}
	return n, nil
}

// inGrace reports whether a member may rejoin by its last certified key: while
// its SVID is valid, and for the manifest's rejoin_grace after that. A person's
// session has no grace: it ends when it ends.
func inGrace(s *authority.State, rec record.Member, now time.Time) error {
	grace := s.Manifest.RejoinGrace
	if record.IsSession(rec.Kind) {
		grace = 0
	}
	if end := rec.NotAfter.Add(grace); rec.Name != "" && !now.Before(end) {
		return errcode.New(errcode.RejoinGraceOver, "identity", rec.Path(), "not_after",
			rec.NotAfter.UTC().Format(time.RFC3339), "grace", grace.String())
	}
	return nil
}

// generatedName makes up the name that a token without one gives. It holds 40
// random bits, and the store's condition that the record is new decides.
func generatedName(tok Token) string {
	b := make([]byte, 5)
	rand.Read(b)
	return tok.Entry + "-" + hex.EncodeToString(b)
}

// verifiers are those of one state.
type verifiers struct {
	of *authority.State
	*proof.Registry
}

// proofs returns the verifiers, over the records of s.
func (a *Admission) proofs(s *authority.State) *proof.Registry {
	if v := a.verifiers.Load(); v != nil && v.of == s {
		return v.Registry
	}
	v := &verifiers{s, a.newProofs(s)}
	a.verifiers.Store(v)
	return v.Registry
}

func (a *Admission) newProofs(s *authority.State) *proof.Registry {
	all := []proof.Verifier{
		proof.NewKeyVerifier(),
		proof.NewTokenVerifier(func(ctx context.Context, id string) (ed25519.PublicKey, string, error) {
			if !validTokenID(id) {
				return nil, "", proof.ErrNotFound
			}
			rec, err := a.known.token(ctx, s.Records, id)
			if err == nil && (!rec.Exists() || voids(s, rec.Value)) {
				err = proof.ErrNotFound
			}
			return rec.Value.PublicKey, rec.Value.Entry, err
		}),
		proof.NewSVIDVerifier(func(ctx context.Context, kind identity.Kind, name string) (identity.KeyID,
			[]identity.KeyID, error) {
			rec, err := record.Get[record.Member](ctx, s.Records, record.MemberKey(kind, name))
			if err == nil && (!rec.Exists() || !rec.Value.Held()) {
				err = proof.ErrNotFound
			}
			if err != nil {
				return identity.KeyID{}, nil, err
			}
			older := make([]identity.KeyID, 0, len(rec.Value.Older))
			for _, o := range rec.Value.Older {
				older = append(older, o.Key)
			}
			return rec.Value.Key, older, nil
		}),
	}
	if s.X509Roots != nil {
		all = append(all, proof.NewX509Verifier(s.X509Roots, a.cfg.Now))
	}
	return proof.NewRegistry(all...)
}

// proofRejection words what the verifier found, without a hint of what exists.
func (a *Admission) proofRejection(ctx context.Context, e proof.Evidence, err error) error {
	var clone *proof.CloneError
	var unknown *proof.UnknownTypeError
	var lookup *proof.LookupError
	var certificate *proof.CertificateError
	switch {
	case errors.As(err, &clone):
		a.cfg.Membership.OlderKey(ctx, clone.Kind, clone.Name, clone.Error())
		return errcode.Wrap(err, errcode.JoinClone, "identity", e.Claim, "key", clone.Key.String()[:16])
	case errors.As(err, &unknown):
		return errcode.Wrap(err, errcode.ProofUnknownType, "type",
			ratelimit.Clip(unknown.Type, ratelimit.MaxShownBytes), "known", fmt.Sprint(unknown.Known))
	case errors.As(err, &lookup):
		return a.cfg.Head.StoreError("look up what the proof names", lookup.Err)
	case errors.As(err, &certificate):
		return certificateRejection(certificate)
	case e.Type == proof.TypeX509 && errors.Is(err, proof.ErrRefused):
		// The certificate is good and the caller's own, or stolen: either way it is told
		// nothing that it does not show.
		return errcode.Wrap(err, errcode.ProofOtherSession)
	case e.Type == proof.TypeToken:
		return unknownToken()
	}
	return errcode.Wrap(err, errcode.JoinUnauthorized, "shown",
		"a "+ratelimit.Clip(e.Type, ratelimit.MaxShownBytes)+" proof that does not verify over this channel")
}

// certificateRejection says which rule refused a candidate's certificate. The caller
// is nobody yet, so that it is told of its own chain alone: no root of the manifest,
// and nothing that names one.
func certificateRejection(err *proof.CertificateError) error {
	chain := err.Err
	switch chain.Reason {
	case identity.ErrExpired:
		return errcode.Wrap(err, errcode.JoinCertificateExpired,
			"not_before", chain.NotBefore.UTC().Format(time.RFC3339),
			"not_after", chain.NotAfter.UTC().Format(time.RFC3339), "now", chain.Now.UTC().Format(time.RFC3339))
	case identity.ErrUntrusted:
		return errcode.Wrap(err, errcode.JoinCertificateForeign, "issuer",
			ratelimit.Clip(err.Issuer, ratelimit.MaxShownBytes))
	}
	return errcode.Wrap(err, errcode.JoinCertificateUnfit, "rule", chain.Rule, "section", chain.Section, "problem",
		ratelimit.Clip(chain.Detail, 4*ratelimit.MaxShownBytes))
}

// unknownToken is the one answer to an unknown token and to a wrong signature.
func unknownToken() error { return errcode.New(errcode.TokenUnknown) }

func csrRejection(err error) error {
	return errcode.Wrap(err, errcode.JoinBadCSR, "problem", err.Error())
}
