package nodetest

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/pki"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/signed/signedtest"
)

// admission is the fleet's AdmissionService.
type admission struct {
	fealtyv1.UnimplementedAdmissionServiceServer
	f *Fleet
}

func (s admission) Join(stream fealtyv1.AdmissionService_JoinServer) error {
	f := s.f
	cs, ok := proof.ConnectionState(stream.Context())
	if !ok {
		return status.Error(codes.FailedPrecondition, "no TLS")
	}
	binding, err := proof.Binding(cs)
	if err != nil {
		return err
	}
	nonce := make([]byte, proof.NonceBytes)
	rand.Read(nonce)
	f.Mu.Lock()
	skew, refuse := f.Faults.Skew, f.Faults.RefuseJoin
	f.Mu.Unlock()
	challenge := &fealtyv1.JoinChallenge{Nonce: nonce, ServerTime: timestamppb.New(f.Clock().Add(skew))}
	err = stream.Send(&fealtyv1.JoinResponse{Step: &fealtyv1.JoinResponse_Challenge{Challenge: challenge}})
	if err != nil {
		return err
	}
	req, err := stream.Recv()
	if err != nil {
		return err
	}
	if refuse != nil {
		return refuse
	}
	public, err := pki.ParseCSR(req.GetCsr())
	if err != nil {
		return err
	}
	spki, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		return err
	}
	f.Mu.Lock()
	defer f.Mu.Unlock()
	f.Seen.Joins++
	e := proof.Evidence{Type: req.GetProof().GetType(), Claim: req.GetProof().GetClaim(),
		Evidence: req.GetProof().GetEvidence(), PublicKey: req.GetProof().GetPublicKey()}
	proven, err := f.proofs().Verify(stream.Context(), proof.Transcript{Role: proof.Candidate,
		Cluster: signedtest.Cluster, Nonce: nonce, Binding: binding, PublicKey: spki}, e)
	var clone *proof.CloneError
	switch {
	case errors.As(err, &clone):
		f.Seen.Clones++
		return errcode.Wrap(err, errcode.JoinClone, "identity", e.Claim)
	case err != nil && e.Type == proof.TypeToken:
		return errcode.New(errcode.TokenUnknown)
	case err != nil:
		return errcode.Wrap(err, errcode.JoinUnauthorized)
	}
	f.Seen.Proven = append(f.Seen.Proven, proven.Type())
	grant, err := f.admitLocked(identity.Kind(req.GetKind()), req.GetMember(), proven, public)
	if err != nil {
		return err
	}
	if f.Faults.EditGrant != nil {
		f.Faults.EditGrant(grant)
	}
	if f.Faults.LoseJoins > 0 {
		f.Faults.LoseJoins--
		return status.Error(codes.Unavailable, "the connection broke")
	}
	return stream.Send(&fealtyv1.JoinResponse{Step: &fealtyv1.JoinResponse_Grant{Grant: grant}})
}

func (f *Fleet) proofs() *proof.Registry {
	if f.Pki == nil {
		f.Pki = pkitest.NewPKI(f.TB, "corp", f.Clock)
	}
	roots, err := identity.NewOperatorRoots([]*x509.Certificate{f.Pki.Root.Cert})
	f.Must(err)
	return proof.NewRegistry(
		proof.NewX509Verifier(roots, f.Clock),
		proof.NewKeyVerifier(),
		proof.NewTokenVerifier(func(_ context.Context, id string) (ed25519.PublicKey, string, error) {
			t, ok := f.Tokens[id]
			if !ok {
				return nil, "", proof.ErrNotFound
			}
			return t.PublicKey(), "edge-pool", nil
		}),
		proof.NewSVIDVerifier(func(_ context.Context, kind identity.Kind, name string) (identity.KeyID,
			[]identity.KeyID, error) {
			m := f.Members[string(kind)+"/"+name]
			if m == nil {
				return identity.KeyID{}, nil, proof.ErrNotFound
			}
			return m.Key, m.Older, nil
		}),
	)
}

func (f *Fleet) admitLocked(kind identity.Kind, claimed string, p proof.Proven, public any) (*fealtyv1.JoinGrant,
	error) {
	key, err := identity.KeyOfPublic(public)
	if err != nil {
		return nil, err
	}
	name := "node-k"
	if p.TokenID() != "" {
		name = "node-" + p.TokenID()
	}
	if p.Type() == proof.TypeSVID {
		kind, name = p.Member()
	}
	if slices.Contains(f.Banned, key) || slices.Contains(f.Banned, p.KeyID()) {
		return nil, errcode.New(errcode.JoinBanned, "identity", name)
	}
	path := string(kind) + "/" + name
	outcome := fealtyv1.JoinOutcome_JOIN_OUTCOME_ALREADY_MEMBER
	m := f.Members[path]
	switch {
	case p.Type() == proof.TypeSVID && f.Faults.RefuseSVID != nil:
		return nil, f.Faults.RefuseSVID
	case p.Type() == proof.TypeSVID && f.Clock().After(m.NotAfter.Add(f.Grace)):
		return nil, errcode.New(errcode.RejoinGraceOver, "identity", path)
	case claimed != "" && (claimed != name || m == nil):
		return nil, errcode.New(errcode.JoinOtherMember, "claimed", claimed)
	case m == nil:
		id, err := identity.New(signedtest.Cluster, kind, name)
		if err != nil {
			return nil, err
		}
		m = &signedtest.Member{ID: id, Key: key, Incarnation: key, Proof: p.Type()}
		f.Members[path] = m
		outcome = fealtyv1.JoinOutcome_JOIN_OUTCOME_ADMITTED
	case p.Type() == proof.TypeSVID:
		m.Rekey(key)
	case p.Type() == proof.TypeKey, p.Type() == proof.TypeX509:
		m.Rekey(key)
		m.Incarnation = key
	case m.Key != key:
		return nil, errcode.New(errcode.JoinNameTaken, "identity", path)
	}
	m.NotAfter = f.Clock().Add(f.SVIDTTL)
	grant := &fealtyv1.JoinGrant{
		Outcome: outcome, Chain: dir.RawChain(f.Issue(public, m.ID, f.SVIDTTL)), RootStatement: f.RootStatement(),
		TrustBundle: f.TrustBundle(),
	}
	if kind != identity.Admin && kind != identity.Readonly {
		grant.NodeBootstrap = f.Bootstrap(m)
	}
	return grant, nil
}

func (s admission) Renew(ctx context.Context, req *fealtyv1.RenewRequest) (*fealtyv1.RenewResponse, error) {
	f := s.f
	peer := identity.FromContext(ctx)
	public, err := pki.ParseCSR(req.GetCsr())
	if err != nil {
		return nil, err
	}
	key, err := identity.KeyOfPublic(public)
	if err != nil {
		return nil, err
	}
	f.Mu.Lock()
	defer f.Mu.Unlock()
	f.Seen.Renewals++
	if f.Faults.RefuseRenew != nil {
		return nil, f.Faults.RefuseRenew
	}
	m := f.Members[string(peer.ID.Kind())+"/"+peer.ID.Name()]
	switch {
	case m == nil:
		return nil, errcode.New(errcode.RenewEntryGone, "identity", peer.ID.String())
	case peer.Key == m.Key:
	case key == m.Key && len(m.Older) > 0 && peer.Key == m.Older[0]:
	default:
		f.Seen.Clones++
		return nil, errcode.New(errcode.RenewOlderKey, "identity", peer.ID.String())
	}
	switch {
	case f.Faults.NoStore == "":
		m.Rekey(key)
		m.NotAfter = f.Clock().Add(f.SVIDTTL)
	case !req.GetRecordedKey() || key != m.Key:
		return nil, errcode.New(f.Faults.NoStore, "what", "the renewal")
	}
	resp := &fealtyv1.RenewResponse{Chain: dir.RawChain(f.Issue(public, m.ID, f.SVIDTTL))}
	if f.Faults.EditRenewal != nil {
		f.Faults.EditRenewal(resp)
	}
	if f.Faults.LoseRenews > 0 {
		f.Faults.LoseRenews--
		return nil, status.Error(codes.Unavailable, "the connection broke")
	}
	return resp, nil
}

func (s admission) Leave(ctx context.Context, _ *fealtyv1.LeaveRequest) (*fealtyv1.LeaveResponse, error) {
	f := s.f
	peer := identity.FromContext(ctx)
	path := string(peer.ID.Kind()) + "/" + peer.ID.Name()
	f.Mu.Lock()
	m := f.Members[path]
	answer, refuse := f.Faults.LeaveError, f.Faults.RefuseLeave
	f.Mu.Unlock()
	if refuse != nil {
		return nil, refuse
	}
	if m == nil {
		return nil, errcode.New(errcode.NotFound, "what", "member", "name", path)
	}
	f.TrustChanged(func() {
		f.Banned = append(append(f.Banned, m.Key), m.Older...)
		delete(f.Members, path)
	})
	if answer != nil {
		return nil, answer()
	}
	<-ctx.Done() // the ban cuts our connection: the answer is lost
	return nil, ctx.Err()
}
