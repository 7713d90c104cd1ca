package peer_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/auditlog"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/authority/transition"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	coordinatorpeer "github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/coordinator/recovery/peer"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/pki/enterprise"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/store"
)

// A stranger that shows anything else than a certificate that the manifest admits, proven
// over this very channel, is given nothing.
func TestSeedGoesToNoOtherCertificate(t *testing.T) {
	t.Parallel()
	pki, f, rs, files := coordinatortest.CorpFleet(t, 1)
	r := rs[0]
	r.Link.Lie(coordinatortest.HideReplicas)
	files[1].Write(pki, "node-b") // so that it gets nothing by itself
	r.Start()
	foreign := pkitest.NewPKI(t, "corp", nil) // of the same names
	certificate := func(pki *pkitest.PKI, edit func(*x509.Certificate)) *enterprise.Certificate {
		own := coordinatortest.NewCorpFiles(t, pki, "x")
		own.Edit(pki, edit)
		return own.Certificate()
	}
	ask := func(c *enterprise.Certificate) error {
		_, err := askAs(f, r, coordinatortest.NewTestKey(t),
			func(a *peer.Asking) { a.By(enrolledAs(r, a.Key(), c)) })
		return err
	}
	// A certificate of an entry is enough, under a key that no manifest names.
	if err := ask(certificate(pki, coordinatortest.CommonName("coordinator-z"))); err != nil {
		t.Fatalf("with a certificate of an entry: %v", err)
	}
	if got := coordinatortest.Audited(f, "seed.given"); len(got) != 1 || got[0].Fields["to"] != "z" {
		t.Fatalf("given: %+v", got)
	}
	for _, tc := range []struct {
		name string
		cert *enterprise.Certificate
		says string
	}{
		{"none", nil, "names its key"},
		{"of another CA of the same name", certificate(foreign, coordinatortest.CommonName("coordinator-b")),
			"no root of the manifest vouches for its certificate"},
		{"of another name", certificate(pki, coordinatortest.CommonName("node-b")), "x509:subject:CN=node-b"},
		{"with two names", certificate(pki, func(c *x509.Certificate) {
			c.Subject.ExtraNames = append(c.Subject.ExtraNames, coordinatortest.TwoNames("coordinator-b",
				"coordinator-a")...)
		}), "nor what its certificate shows"},
	} {
		err := ask(tc.cert)
		if !errors.Is(err, errcode.PeerRefused) || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v, want %s that says %q", tc.name, err, errcode.PeerRefused, tc.says)
		}
	}

	// Over the wire, with the certificate of another coordinator, which is no secret.
	of := files[0].Certificate()
	theirs := of.Certificates("")
	key := coordinatortest.NewTestKey(t)
	claim := proof.KeyClaim(key.Public().(ed25519.PublicKey))
	var earlier []byte // made for another exchange of the same holder
	rawAsk := func(certificates [][]byte, vouch func(said [64]byte) []byte) error {
		return askRaw(f, key, certificates, vouch)
	}
	coordinatortest.WantOnlyNil(t, rawAsk(theirs, func(said [64]byte) []byte {
		v, err := of.Vouch(claim, said)
		coordinatortest.WantOnlyNil(t, err)
		earlier = v
		return v
	}))
	before := len(coordinatortest.Audited(f, "seed.given"))
	mine := pkitest.NewKey(t)
	for _, tc := range []struct {
		name         string
		certificates [][]byte
		vouch        func(said [64]byte) []byte
	}{
		{"claimed and not proven", theirs, func([64]byte) []byte { return nil }},
		{"proven by another key", theirs, func(said [64]byte) []byte {
			return coordinatortest.VouchBy(t, of, mine, claim,
				said)
		}},
		{"proven over another channel", theirs, func([64]byte) []byte { return earlier }},
		{"proven for another enrolment key", theirs, func(said [64]byte) []byte {
			v, err := of.Vouch(proof.KeyClaim(r.Key.Public().(ed25519.PublicKey)), said)
			coordinatortest.WantOnlyNil(t, err)
			return v
		}},
		{"one claimed, another proven", theirs, func(said [64]byte) []byte {
			v, err := certificate(pki, coordinatortest.CommonName("node-b")).Vouch(claim, said)
			coordinatortest.WantOnlyNil(t, err)
			return v
		}},
		{"garbage proven", theirs, func([64]byte) []byte { return []byte{1, 0, 9, 'x'} }},
		{"garbage claimed", [][]byte{[]byte("x")}, nil},
		{"too many claimed", [][]byte{theirs[0], theirs[0], theirs[0], theirs[0], theirs[0], theirs[0]}, nil},
	} {
		if err := rawAsk(tc.certificates, tc.vouch); !errors.Is(err, errcode.PeerRefused) {
			t.Errorf("%s: %v, want %s", tc.name, err, errcode.PeerRefused)
		}
	}
	if got := coordinatortest.Audited(f, "seed.given"); len(got) != before {
		t.Errorf("the seed was given: %+v", got[before:])
	}
}

// A recovering coordinator takes nothing from who proves a certificate of another CA,
// whatever that one would give.
func TestSeedComesFromNoOtherCertificate(t *testing.T) {
	t.Parallel()
	pki, f, rs, files := coordinatortest.CorpFleet(t, 1)
	r := rs[0]
	files[1].Write(pki, "node-b")
	r.Start() // it is in recovery mode: no entry admits it
	for _, tc := range []struct {
		name string
		cert *enterprise.Certificate
		says string
	}{
		{"of another CA", coordinatortest.NewCorpFiles(t, pkitest.NewPKI(t, "corp", nil),
			"coordinator-a").Certificate(),
			"no root of the manifest vouches"},
		{"of another name", coordinatortest.NewCorpFiles(t, pki, "node-a").Certificate(), "x509:subject:CN=node-a"},
		{"none", nil, "names its key"},
		{"of an entry", f.C.Parts().Self.Certificate(), ""},
	} {
		giver := f.C.Parts().Secrets.PeerRecovery.WithPeers()
		giver.Cfg().Self = enrolledAs(f, f.C.Parts().Self.PrivateKey(), tc.cert)
		at := coordinatortest.ServePeer(t, coordinatortest.Served[fealtyv1.PeerServiceServer](giver.RegisterServices))
		_, err := askAs(f, r, coordinatortest.NewTestKey(t), func(a *peer.Asking) {
			a.Of(at)
			a.By(enrolledAs(r, a.Key(), coordinatortest.NewCorpFiles(t, pki,
				"coordinator-b").Certificate()))
		})
		if tc.says == "" && err == nil {
			continue // what the others are refused for is their certificate
		}
		if err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v, want one that says %q", tc.name, err, tc.says)
		}
		if got := coordinatortest.Audited(f, "seed.given"); len(got) > 0 {
			t.Errorf("%s: the seed was given: %+v", tc.name, got)
		}
	}
}

// A certificate that ended: its coordinator goes on and says so, others neither give it
// anything nor take anything from it, and it is not forgotten.
func TestCoordinatorCertificateEnds(t *testing.T) {
	t.Parallel()
	_, f, rs, _ := coordinatortest.CorpFleet(t, 1)
	r := rs[0]
	r.Start()
	r.AwaitHead(f)
	coordinatortest.AwaitReplica(r, func(x coordinatorpeer.Record) bool { return x.Phase == "ready" })
	r.Stop()
	m := f.State().Manifest
	f.Advance(25 * time.Hour)
	all, err := coordinators(f).Newest(f.Context(), m)
	if err != nil || len(all) != 2 {
		t.Errorf("a coordinator that stopped before its certificate ended is forgotten: %+v, %v", all, err)
	}
	if _, err := f.C.Parts().Self.Admits(m); err != nil {
		t.Errorf("it does not go on: %v", err)
	}
	resp, err := f.Local().Status.GetStatus(f.Context(), &fealtyv1.GetStatusRequest{})
	coordinatortest.WantOnlyNil(t, err)
	if len(resp.GetFindings()) == 0 || resp.GetFindings()[0].GetCode() != string(errcode.CredentialExpired) {
		t.Errorf("status says %v", resp.GetFindings())
	}
	given := len(coordinatortest.Audited(f, "seed.given"))
	_, err = askAs(f, r, coordinatortest.NewTestKey(t), func(a *peer.Asking) {
		a.At(f.Clock)
	})
	if !errors.Is(err, errcode.PeerRefused) || !strings.Contains(err.Error(), "out of date") {
		t.Errorf("it is given something: %v", err)
	}
	if got := len(coordinatortest.Audited(f, "seed.given")); got != given {
		t.Error("the seed was given")
	}
}

// The mark in memory refuses what went back where the one on disk is lost.
func TestMarkInMemoryStandsAgainstPeers(t *testing.T) {
	t.Parallel()
	f, rs := coordinatortest.NewPeerFleet(t, 2, nil)
	r, evil := rs[0], rs[1]
	old, loaded := f.State(), coordinatortest.Loaded(f)
	coordinatortest.WantOnly(t, "set", coordinatortest.SetPeople(f, coordinatortest.MoreCoordinators(t)), "")
	r.Start()
	r.AwaitHead(f)
	r.Link.Lie(coordinatortest.HideReplicas) // it is the liar alone that is asked
	coordinatortest.WantOnly(t, "remove", os.Remove(filepath.Join(r.Dir, "coordinator", authority.MarkFile)), "")
	_, err := r.C.Parts().Secrets.PeerRecovery.WithPeers(coordinatortest.ServePeer(t, &liar{key: evil.Key,
		state: old})).FromPeers(r.Context(), loaded)
	if failed := wantStep(t, err, peer.StepHistory, "coordinator-3"); !errors.Is(failed.Err,
		history.ErrRollback) {
		t.Errorf("going back failed for another reason: %v", failed.Err)
	}
}

// A mesh CA key that a peer brings is kept only once the audit log has the hand-over.
func TestPreparedKeyIsAuditedFirst(t *testing.T) {
	t.Parallel()
	f, rs := coordinatortest.NewPeerFleet(t, 1, nil)
	r := rs[0]
	r.Start()
	r.AwaitHead(f)
	bring := func(mv *transition.Move) error {
		return f.C.Parts().Secrets.PeerRecovery.WithPeers().Bring(f.Context(), mv, r.Addr)
	}
	mv := coordinatortest.Candidate(f, coordinatortest.MoreCoordinators(t), nil)
	r.Link.Hold(func(tx store.Tx) error {
		for _, w := range tx.Put {
			if strings.HasPrefix(w.Key, auditlog.Prefix) {
				return errors.New("no space for it")
			}
		}
		return nil
	})
	if err := bring(mv); err == nil {
		t.Error("it was taken")
	}
	if slices.Contains(r.C.Parts().Secrets.Keys.Brought(), mv.Mesh.KeyID()) {
		t.Error("a key is kept of which the audit log knows nothing")
	}
	r.Link.Hold(nil)
	coordinatortest.WantOnly(t, "bring", bring(coordinatortest.Candidate(f, coordinatortest.MoreCoordinators(t), nil)),
		"")
	if got := coordinatortest.Audited(r, "mesh.prepared"); len(got) != 1 ||
		got[0].Fields["key"] != proof.KeyClaim(f.C.Parts().Self.PrivateKey().Public().(ed25519.PublicKey)) {
		t.Errorf("the audit log says %+v", got)
	}
}

// askRaw asks f for the secrets of its head by a client of its own.
func askRaw(f *coordinatortest.Fleet, key ed25519.PrivateKey, certificates [][]byte,
	vouch func(said [64]byte) []byte) error {
	f.T.Helper()
	conn, err := coordinatortest.DialUnproven(f.Addr)
	coordinatortest.WantOnlyNil(f.T, err)
	defer conn.Close()
	stream, err := fealtyv1.NewPeerServiceClient(conn).Recover(f.Context())
	coordinatortest.WantOnlyNil(f.T, err)
	s := f.State()
	t := proof.PeerTranscript{Purpose: proof.Recover, Cluster: coordinatortest.Cluster, Head: s.Head.Hash[:],
		AskerNonce: make([]byte, proof.NonceBytes),
		AskerKey:   key.Public().(ed25519.PublicKey), Recipient: f.People.Keys["alice"].Recipient().String()}
	rand.Read(t.AskerNonce)
	hello := &fealtyv1.PeerHello{Cluster: t.Cluster, Head: t.Head, Nonce: t.AskerNonce, Key: proof.KeyClaim(t.AskerKey),
		Recipient: t.Recipient, Certificates: certificates}
	coordinatortest.WantOnlyNil(f.T,
		stream.Send(&fealtyv1.PeerServiceRecoverRequest{Step: &fealtyv1.PeerServiceRecoverRequest_Hello{Hello: hello}}))
	m, err := stream.Recv()
	if err != nil {
		return errcode.Of(err)
	}
	t.Binding, err = coordinatortest.BindingOf(stream.Context())
	coordinatortest.WantOnlyNil(f.T, err)
	t.GiverNonce = m.GetChallenge().GetNonce()
	t.GiverKey, err = proof.ParseKeyClaim(m.GetChallenge().GetKey())
	coordinatortest.WantOnlyNil(f.T, err)
	evidence, err := proof.ProvePeer(key, proof.Asker, t)
	coordinatortest.WantOnlyNil(f.T, err)
	said, err := t.Digest(proof.Asker)
	coordinatortest.WantOnlyNil(f.T, err)
	coordinatortest.WantOnlyNil(f.T,
		stream.Send(&fealtyv1.PeerServiceRecoverRequest{
			Step: &fealtyv1.PeerServiceRecoverRequest_Evidence{Evidence: evidence}, X509: vouch(said)}))
	if m, err = stream.Recv(); err != nil {
		return errcode.Of(err)
	}
	if m.GetSecrets() == nil {
		return errors.New("the answer holds no secrets")
	}
	return nil
}

// enrolledAs returns an enrolment at f's address and by its clock, with another key or certificate, and without a pin.
func enrolledAs(f *coordinatortest.Fleet, key ed25519.PrivateKey, cert *enterprise.Certificate) *authority.Enrolment {
	return authority.NewEnrolment(authority.EnrolmentConfig{
		FS: durable.OS(), Log: slog.New(slog.DiscardHandler), Now: f.Clock, DataDir: f.T.TempDir(),
		Addresses: []string{f.Addr}, Key: key, Certificate: cert,
	})
}

// coordinators reads what coordinators say of themselves in the store of f.
func coordinators(f *coordinatortest.Fleet) *coordinatorpeer.Directory {
	return &coordinatorpeer.Directory{Store: f.Store, Failures: ratelimit.NewLogSampler(),
		Log: slog.New(slog.DiscardHandler), Now: f.Clock}
}
