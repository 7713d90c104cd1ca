package coordinator_test

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity/identitytest"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/replicas"
	"github.com/fealty-io/fealty/internal/enrolment"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/recovery"
	"github.com/fealty-io/fealty/internal/tlsfiles"
	"github.com/fealty-io/fealty/manifest"
	"github.com/fealty-io/fealty/mesh"
)

// corpFiles are the three files of a coordinator, and what writes a certificate of a PKI
// into them.
type corpFiles struct {
	t     testing.TB
	paths credential.FilePaths
}

func newCorpFiles(t testing.TB, pki *identitytest.PKI, name string) *corpFiles {
	t.Helper()
	dir := t.TempDir()
	f := &corpFiles{t, credential.FilePaths{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"),
		CA: filepath.Join(dir, "ca.crt")}}
	f.write(pki, name)
	return f
}

func (f *corpFiles) write(pki *identitytest.PKI, name string) {
	f.t.Helper()
	f.edit(pki, commonName(name))
}

func (f *corpFiles) edit(pki *identitytest.PKI, edit func(*x509.Certificate)) {
	f.t.Helper()
	key := identitytest.NewKey(f.t)
	f.put(f.paths.Cert, identitytest.PEM(pki.Issue(f.t, key, edit)...))
	f.put(f.paths.Key, identitytest.KeyPEM(f.t, key))
	f.put(f.paths.CA, identitytest.PEM(pki.Root.Cert))
}

func (f *corpFiles) put(path string, data []byte) {
	f.t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		f.t.Fatal(err)
	}
}

// certificate is what a coordinator with these files shows.
func (f *corpFiles) certificate() *enrolment.Certificate {
	f.t.Helper()
	files, err := tlsfiles.Open(credential.FilesConfig{Paths: f.paths})
	if err != nil {
		f.t.Fatal(err)
	}
	c, err := enrolment.New(f.t.Context(), files)
	if err != nil {
		f.t.Fatal(err)
	}
	return c
}

// byCertificate is m with one entry for all coordinators, by x509, under the roots of pki.
func byCertificate(m []byte, pki *identitytest.PKI) []byte {
	var out []string
	for line := range strings.Lines(string(m)) {
		switch {
		case strings.Contains(line, "kind: coordinator"):
		case strings.HasPrefix(line, "admit:"):
			out = append(out, line,
				"  - {name: coordinators, kind: coordinator, match: [\"x509:subject:CN=coordinator-*\"]}\n")
		default:
			out = append(out, line)
		}
	}
	entries := corpEntries(pki)
	return []byte(strings.Join(out, "") + entries[strings.Index(entries, "proofs:"):])
}

// corpFleet is a ready coordinator and n that never ran, which the manifest admits by
// their certificates alone: a, b and so on. Each has a folder and files of its own. No
// keeper holds the seed.
func corpFleet(t testing.TB, n int) (pki *identitytest.PKI, f *coordinatortest.Fleet, rs []*coordinatortest.Fleet,
	files []*corpFiles) {
	t.Helper()
	pki = identitytest.NewPKI(t, "corp", nil)
	files = []*corpFiles{newCorpFiles(t, pki, "coordinator-a")}
	f = coordinatortest.NewFleet(t, func(c *coordinator.Config) { c.TLS = files[0].paths })
	for i := range n {
		r, own := coordinatortest.NewReplica(t, f), newCorpFiles(t, pki, "coordinator-"+string(rune('b'+i)))
		r.Config = func(c *coordinator.Config) { c.TLS = own.paths }
		files = append(files, own)
	}
	f.People = coordinatortest.NewPeople(t, "alice", "bob")
	wantOnlyNil(t, f.Set(coordinatortest.WithSeed(byCertificate(f.Manifest(""), pki), f.People.Seed(1, ""))))
	awaitReplica(f, func(r replicas.Record) bool { return r.Phase == "ready" })
	return pki, f, f.Replicas, files
}

// Coordinators that the manifest admits by x509 alone found a cluster, recover from each
// other after a loss, prepare each other for the next head, find each other by their
// records, and are verified by data owners.
func TestCoordinatorsProveCertificates(t *testing.T) {
	t.Parallel()
	pki, f, rs, _ := corpFleet(t, 1)
	r := rs[0]
	r.Start()
	r.AwaitHead(f)
	if a, b := f.C.Rooms().Head.State(), r.C.Rooms().Head.State(); !a.Secrets.Same(b.Secrets) || a.MeshKey != b.MeshKey {
		t.Error("it is ready with other secrets")
	}
	given, received := audited(f, "seed.given"), audited(f, "seed.received")
	if len(given) != 1 || given[0].Target != "coordinator/b" ||
		given[0].Actor != "spiffe://test.example/coordinator/a" ||
		given[0].Fields["shown"] != "x509:subject:CN=coordinator-b" || given[0].Fields["x509"] == "" {
		t.Errorf("the audit log says of the giver %+v", given)
	}
	if len(received) != 1 || received[0].Fields["from"] != "a" {
		t.Errorf("the audit log says of the taker %+v", received)
	}
	awaitReplica(r, func(x replicas.Record) bool { return x.Phase == "ready" })
	all, err := f.C.Coordinators().Newest(f.Context(), f.C.Rooms().Head.State().Manifest)
	if err != nil || len(all) != 2 || all[0].Name != "a" || all[1].Name != "b" {
		t.Fatalf("the records show %+v, %v", all, err)
	}
	// A set at one prepares the other: it has the key before the head moves.
	next := coordinatortest.WithSeed(byCertificate(f.Manifest(""), pki), f.People.Seed(1, ""))
	next = []byte(strings.Replace(string(next), "match: [\"x509:subject:CN=coordinator-*\"]",
		"match: [\"x509:subject:CN=coordinator-*\", \"x509:dns:*.c.example\"]", 1))
	wantOnlyNil(t, f.Set(next))
	r.AwaitHead(f)
	if got := audited(f, "mesh.prepared"); len(got) != 1 || got[0].Fields["from"] != "a" ||
		got[0].Fields["shown"] != "x509:subject:CN=coordinator-a" {
		t.Errorf("prepared: %+v", got)
	}
	// After a loss of both of its secrets each gets them from the other.
	f.Stop()
	f.Start()
	f.AwaitHead(r)
	s := f.C.Rooms().Head.State()
	got, err := verifyAt(t, f.Addr, recovery.Expected{Manifest: s.Manifest, Pin: s.RootPin})
	if err != nil || got.Coordinator != "a" {
		t.Errorf("verified %+v, %v", got, err)
	}
	other := identitytest.NewPKI(t, "other", nil)
	expected, err := manifest.Parse(byCertificate(f.Manifest(""), other))
	wantOnlyNil(t, err)
	if _, err := verifyAt(t, f.Addr, recovery.Expected{Manifest: expected}); !errors.Is(err, explain.VerifyUnproven) {
		t.Errorf("under the roots of another PKI: %v", err)
	}
}

// A stranger that shows anything else than a certificate that the manifest admits, proven
// over this very channel, is given nothing.
func TestSeedGoesToNoOtherCertificate(t *testing.T) {
	t.Parallel()
	pki, f, rs, files := corpFleet(t, 1)
	r := rs[0]
	r.Link.Lie(hideReplicas)
	files[1].write(pki, "node-b") // so that it gets nothing by itself
	r.Start()
	foreign := identitytest.NewPKI(t, "corp", nil) // of the same names
	certificate := func(pki *identitytest.PKI, edit func(*x509.Certificate)) *enrolment.Certificate {
		own := newCorpFiles(t, pki, "x")
		own.edit(pki, edit)
		return own.certificate()
	}
	ask := func(c *enrolment.Certificate) error {
		_, err := askAs(f, r, coordinatortest.NewTestKey(t),
			func(a *coordinator.Asking) { a.C.Cfg().Self = r.C.EnrolledAs(a.C.Cfg().Self.PrivateKey(), c) })
		return err
	}
	// A certificate of an entry is enough, under a key that no manifest names.
	if err := ask(certificate(pki, commonName("coordinator-z"))); err != nil {
		t.Fatalf("with a certificate of an entry: %v", err)
	}
	if got := audited(f, "seed.given"); len(got) != 1 || got[0].Fields["to"] != "z" {
		t.Fatalf("given: %+v", got)
	}
	for _, tc := range []struct {
		name string
		cert *enrolment.Certificate
		says string
	}{
		{"none", nil, "names its key"},
		{"of another CA of the same name", certificate(foreign, commonName("coordinator-b")),
			"no root of the manifest vouches for its certificate"},
		{"of another name", certificate(pki, commonName("node-b")), "x509:subject:CN=node-b"},
		{"with two names", certificate(pki, func(c *x509.Certificate) {
			c.Subject.ExtraNames = append(c.Subject.ExtraNames, twoNames("coordinator-b", "coordinator-a")...)
		}), "nor what its certificate shows"},
	} {
		err := ask(tc.cert)
		if !errors.Is(err, explain.PeerRefused) || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v, want %s that says %q", tc.name, err, explain.PeerRefused, tc.says)
		}
	}

	// Over the wire, with the certificate of another coordinator, which is no secret.
	of := files[0].certificate()
	theirs := of.Certificates("")
	key := coordinatortest.NewTestKey(t)
	claim := proof.KeyClaim(key.Public().(ed25519.PublicKey))
	var earlier []byte // made for another exchange of the same holder
	rawAsk := func(certificates [][]byte, vouch func(said [64]byte) []byte) error {
		return askRaw(f, r, key, certificates, vouch)
	}
	wantOnlyNil(t, rawAsk(theirs, func(said [64]byte) []byte {
		v, err := of.Vouch(claim, said)
		wantOnlyNil(t, err)
		earlier = v
		return v
	}))
	before := len(audited(f, "seed.given"))
	mine := identitytest.NewKey(t)
	for _, tc := range []struct {
		name         string
		certificates [][]byte
		vouch        func(said [64]byte) []byte
	}{
		{"claimed and not proven", theirs, func([64]byte) []byte { return nil }},
		{"proven by another key", theirs, func(said [64]byte) []byte { return vouchBy(t, of, mine, claim, said) }},
		{"proven over another channel", theirs, func([64]byte) []byte { return earlier }},
		{"proven for another enrolment key", theirs, func(said [64]byte) []byte {
			v, err := of.Vouch(proof.KeyClaim(r.Key.Public().(ed25519.PublicKey)), said)
			wantOnlyNil(t, err)
			return v
		}},
		{"one claimed, another proven", theirs, func(said [64]byte) []byte {
			v, err := certificate(pki, commonName("node-b")).Vouch(claim, said)
			wantOnlyNil(t, err)
			return v
		}},
		{"garbage proven", theirs, func([64]byte) []byte { return []byte{1, 0, 9, 'x'} }},
		{"garbage claimed", [][]byte{[]byte("x")}, nil},
		{"too many claimed", [][]byte{theirs[0], theirs[0], theirs[0], theirs[0], theirs[0], theirs[0]}, nil},
	} {
		if err := rawAsk(tc.certificates, tc.vouch); !errors.Is(err, explain.PeerRefused) {
			t.Errorf("%s: %v, want %s", tc.name, err, explain.PeerRefused)
		}
	}
	if got := audited(f, "seed.given"); len(got) != before {
		t.Errorf("the seed was given: %+v", got[before:])
	}
}

// vouchBy is what another key than the certificate's makes of it.
func vouchBy(t testing.TB, of *enrolment.Certificate, key *ecdsa.PrivateKey, claim string, said [64]byte) []byte {
	t.Helper()
	good, err := of.Vouch(claim, said)
	wantOnlyNil(t, err)
	pki := identitytest.NewPKI(t, "mine", nil)
	own, err := proof.Vouch(proof.X509Credential{Chain: pki.Issue(t, key, commonName("coordinator-b")), Key: key},
		claim, said)
	wantOnlyNil(t, err)
	// The chain of one with the signature of the other, which is the last part of both.
	part := func(v []byte) int { // where the signature begins
		at := 1
		for range int(v[0]) {
			at += 2 + int(v[at])<<8 + int(v[at+1])
		}
		return at
	}
	return append(good[:part(good):part(good)], own[part(own):]...)
}

// askRaw asks f for the secrets of its head by a client of its own.
func askRaw(f, r *coordinatortest.Fleet, key ed25519.PrivateKey, certificates [][]byte,
	vouch func(said [64]byte) []byte) error {
	f.T.Helper()
	conn, err := r.C.Rooms().PeerRecovery.DialPeer(f.Addr)
	wantOnlyNil(f.T, err)
	defer conn.Close()
	stream, err := fealtyv1.NewPeerServiceClient(conn).Recover(f.Context())
	wantOnlyNil(f.T, err)
	s := f.C.Rooms().Head.State()
	t := proof.PeerTranscript{Purpose: proof.Recover, Cluster: coordinatortest.Cluster, Head: s.Head.Hash[:],
		AskerNonce: make([]byte, proof.NonceBytes),
		AskerKey:   key.Public().(ed25519.PublicKey), Recipient: f.People.Keys["alice"].Recipient().String()}
	rand.Read(t.AskerNonce)
	hello := &fealtyv1.PeerHello{Cluster: t.Cluster, Head: t.Head, Nonce: t.AskerNonce, Key: proof.KeyClaim(t.AskerKey),
		Recipient: t.Recipient, Certificates: certificates}
	wantOnlyNil(f.T,
		stream.Send(&fealtyv1.PeerServiceRecoverRequest{Step: &fealtyv1.PeerServiceRecoverRequest_Hello{Hello: hello}}))
	m, err := stream.Recv()
	if err != nil {
		return explain.Of(err)
	}
	cs, _ := mesh.ConnectionState(stream.Context())
	t.Binding, err = proof.Binding(cs)
	wantOnlyNil(f.T, err)
	t.GiverNonce = m.GetChallenge().GetNonce()
	t.GiverKey, err = proof.ParseKeyClaim(m.GetChallenge().GetKey())
	wantOnlyNil(f.T, err)
	evidence, err := proof.ProvePeer(key, proof.Asker, t)
	wantOnlyNil(f.T, err)
	said, err := t.Digest(proof.Asker)
	wantOnlyNil(f.T, err)
	wantOnlyNil(f.T,
		stream.Send(&fealtyv1.PeerServiceRecoverRequest{Step: &fealtyv1.PeerServiceRecoverRequest_Evidence{Evidence: evidence}, X509: vouch(said)}))
	if m, err = stream.Recv(); err != nil {
		return explain.Of(err)
	}
	if m.GetSecrets() == nil {
		return errors.New("the answer holds no secrets")
	}
	return nil
}

// A recovering coordinator takes nothing from who proves a certificate of another CA,
// whatever that one would give.
func TestSeedComesFromNoOtherCertificate(t *testing.T) {
	t.Parallel()
	pki, f, rs, files := corpFleet(t, 1)
	r := rs[0]
	files[1].write(pki, "node-b")
	r.Start() // it is in recovery mode: no entry admits it
	for _, tc := range []struct {
		name string
		cert *enrolment.Certificate
		says string
	}{
		{"of another CA", newCorpFiles(t, identitytest.NewPKI(t, "corp", nil), "coordinator-a").certificate(),
			"no root of the manifest vouches"},
		{"of another name", newCorpFiles(t, pki, "node-a").certificate(), "x509:subject:CN=node-a"},
		{"none", nil, "names its key"},
		{"of an entry", f.C.Rooms().Self.Certificate(), ""},
	} {
		giver := f.C.WithPeers()
		giver.Cfg().Self = f.C.EnrolledAs(f.C.Rooms().Self.PrivateKey(), tc.cert)
		at := servePeer(t, coordinatortest.Served[fealtyv1.PeerServiceServer](giver.RegisterServices))
		_, err := askAs(f, r, coordinatortest.NewTestKey(t), func(a *coordinator.Asking) {
			a.Peer = at
			a.C.Cfg().Self = r.C.EnrolledAs(a.C.Cfg().Self.PrivateKey(),
				newCorpFiles(t, pki, "coordinator-b").certificate())
		})
		if tc.says == "" && err == nil {
			continue // what the others are refused for is their certificate
		}
		if err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v, want one that says %q", tc.name, err, tc.says)
		}
		if got := audited(f, "seed.given"); len(got) > 0 {
			t.Errorf("%s: the seed was given: %+v", tc.name, got)
		}
	}
}

// A coordinator whose certificate no entry admits says so, with the entry, and is ready
// as soon as its files are mended. A ready one takes new files only if it stays
// who it is by them.
func TestCoordinatorFollowsItsFiles(t *testing.T) {
	t.Parallel()
	pki, f, rs, files := corpFleet(t, 1)
	r, own := rs[0], files[1]
	foreign := identitytest.NewPKI(t, "corp", nil)
	own.write(foreign, "coordinator-b")
	r.Start()
	// status looks at the files, as the coordinator itself does every few seconds.
	says := func(parts ...string) {
		t.Helper()
		var text string
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			resp, err := r.Local().Status.GetStatus(r.Context(), &fealtyv1.GetStatusRequest{})
			wantOnlyNil(t, err)
			text = resp.GetPhase() + " " + resp.GetPhaseReason()
			for _, x := range resp.GetFindings() {
				text += "\n" + x.GetCode() + " " + x.GetSummary()
			}
			missing := false
			for _, p := range parts {
				if no, is := strings.CutPrefix(p, "!"); is == strings.Contains(text, no) {
					missing = true
				}
			}
			if !missing {
				return
			}
		}
		t.Fatalf("status does not say %q:\n%s", parts, text)
	}
	says("recovery", "leads to a root of the manifest, and this one does not",
		"coordinators (x509:subject:CN=coordinator-*)")
	own.write(pki, "node-b")
	says("recovery", "it shows x509:subject:CN=node-b", "coordinators (x509:subject:CN=coordinator-*)")
	own.write(pki, "coordinator-b")
	says("ready")
	r.AwaitHead(f)
	if got := len(audited(f, "seed.given")); got != 1 {
		t.Errorf("the seed was given %d times", got)
	}

	// Ready: what would make another one of it, or none, is not taken.
	shown := func() string { return string(r.C.Rooms().Self.Certificate().Certificates("")[0]) }
	before := shown()
	own.write(pki, "coordinator-z")
	says("ready", string(explain.CoordinatorCertificateRenames))
	own.write(foreign, "coordinator-b")
	says("ready", string(explain.CoordinatorCertificateForeign))
	own.put(own.paths.Key, []byte("torn"))
	says("ready", string(explain.CredentialUnusable))
	if shown() != before {
		t.Error("what was refused is shown")
	}
	own.write(pki, "coordinator-b")
	says("ready", "!FE-H12", "!FE-C1")
	if shown() == before {
		t.Error("the new certificate is not shown")
	}
	// And by it the other one recovers, which lost everything in memory.
	f.Stop()
	f.Start()
	f.AwaitHead(r)

	// A manifest that would leave it out is refused where it is set.
	m := byCertificate(f.Manifest(""), foreign)
	coordinatortest.WantCode(t, f.Set(coordinatortest.WithSeed(m, f.People.Seed(1, ""))),
		explain.CoordinatorCertificateForeign)
	coordinatortest.WantCode(t, f.Set(
		coordinatortest.WithSeed([]byte(strings.ReplaceAll(string(byCertificate(f.Manifest(""), pki)), "CN=coordinator-*",
			"CN=control-*")), f.People.Seed(1, ""))), explain.CoordinatorCertificateOther)
}

// Without the files a coordinator says which entry wants them.
func TestCoordinatorWithoutItsCertificate(t *testing.T) {
	t.Parallel()
	_, _, rs, _ := corpFleet(t, 1)
	r := rs[0]
	r.Config = nil
	r.Start()
	r.AwaitState("the reason", func(s *authority.State) bool {
		return s.Phase == authority.Recovery && strings.Contains(s.Reason,
			"coordinators (x509:subject:CN=coordinator-*)") && strings.Contains(s.Reason, "no certificate")
	})
	// Files that hold nothing usable, or some of three flags, are told at the start.
	for name, tc := range map[string]struct {
		spoil func(*corpFiles) credential.FilePaths
		want  explain.Code
	}{
		"some flags": {func(own *corpFiles) credential.FilePaths { return credential.FilePaths{Cert: own.paths.Cert} },
			explain.TLSFilesIncomplete},
		"another key": {func(own *corpFiles) credential.FilePaths {
			own.put(own.paths.Key, identitytest.KeyPEM(t, identitytest.NewKey(t)))
			return own.paths
		}, explain.CredentialMismatch},
		"out of date": {func(own *corpFiles) credential.FilePaths {
			own.edit(identitytest.NewPKI(t, "corp", nil), func(c *x509.Certificate) {
				commonName("coordinator-b")(c)
				c.NotAfter = time.Now().Add(-time.Second)
			})
			return own.paths
		}, explain.CredentialExpired},
	} {
		own := newCorpFiles(t, identitytest.NewPKI(t, "corp", nil), "coordinator-b")
		cfg := *r.C.Cfg()
		cfg.TLS, cfg.DataDir, cfg.Registry = tc.spoil(own), t.TempDir(), nil
		if c, err := coordinator.New(t.Context(), cfg); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %s", name, err, tc.want)
			if c != nil {
				c.Close()
			}
		}
	}
}

// A certificate that ended: its coordinator goes on and says so, others neither give it
// anything nor take anything from it, and it is not forgotten.
func TestCoordinatorCertificateEnds(t *testing.T) {
	t.Parallel()
	_, f, rs, _ := corpFleet(t, 1)
	r := rs[0]
	r.Start()
	r.AwaitHead(f)
	awaitReplica(r, func(x replicas.Record) bool { return x.Phase == "ready" })
	r.Stop()
	m := f.C.Rooms().Head.State().Manifest
	f.Advance(25 * time.Hour)
	all, err := f.C.Coordinators().Newest(f.Context(), m)
	if err != nil || len(all) != 2 {
		t.Errorf("a coordinator that stopped before its certificate ended is forgotten: %+v, %v", all, err)
	}
	if _, err := f.C.Rooms().Self.Admits(m); err != nil {
		t.Errorf("it does not go on: %v", err)
	}
	resp, err := f.Local().Status.GetStatus(f.Context(), &fealtyv1.GetStatusRequest{})
	wantOnlyNil(t, err)
	if len(resp.GetFindings()) == 0 || resp.GetFindings()[0].GetCode() != string(explain.CredentialExpired) {
		t.Errorf("status says %v", resp.GetFindings())
	}
	given := len(audited(f, "seed.given"))
	_, err = askAs(f, r, coordinatortest.NewTestKey(t), func(a *coordinator.Asking) {
		a.C.Cfg().Now = f.Clock
	})
	if !errors.Is(err, explain.PeerRefused) || !strings.Contains(err.Error(), "out of date") {
		t.Errorf("it is given something: %v", err)
	}
	if got := len(audited(f, "seed.given")); got != given {
		t.Error("the seed was given")
	}
}

// Owners send shares to a coordinator that the manifest admits by x509, wherever they
// reach it, and to no other.
func TestSharesGoToNoOtherCertificate(t *testing.T) {
	t.Parallel()
	pki, f, rs, files := corpFleet(t, 1)
	r := rs[0]
	share := f.People.ShareFile(f.Store, "alice")
	files[1].write(identitytest.NewPKI(t, "corp", nil), "coordinator-b")
	r.Start()
	f.Kill() // nobody holds the seed any more
	if _, err := coordinatortest.BringTo(t, r.Addr, share, recovery.Options{}); err == nil ||
		explain.Of(err).Code != explain.CoordinatorCertificateForeign {
		t.Errorf("one whose certificate is foreign asks for shares: %v", err)
	}
	// One that asks all the same is not believed.
	_, _, claimed, err := r.C.Rooms().Head.ClaimedHistory(r.Context())
	wantOnlyNil(t, err)
	loaded := loaded(r)
	head := &recovery.Head{Hash: sha256.Sum256(loaded.Links[len(loaded.Links)-1]), Cluster: coordinatortest.Cluster}
	open := recovery.Open{Attempt: recovery.ID{1}, Cluster: coordinatortest.Cluster, Head: head.Hash,
		Recipient: f.People.Keys["alice"].Recipient().String(), Ends: time.Now().Add(time.Minute),
		Key: r.C.Rooms().Self.EnrolmentKey()}
	for _, tc := range []struct {
		name string
		cert *enrolment.Certificate
		ok   bool
	}{
		{"none", nil, false},
		{"foreign", newCorpFiles(t, identitytest.NewPKI(t, "corp", nil), "coordinator-b").certificate(), false},
		{"of an entry", newCorpFiles(t, pki, "coordinator-b").certificate(), true},
	} {
		raw, err := open.Sign(r.Key, func(said [64]byte) ([]byte,
			error) {
			return tc.cert.Vouch(r.C.Rooms().Self.EnrolmentKey(), said)
		})
		wantOnlyNil(t, err)
		_, err = recovery.ReadOpen(raw, recovery.Claimed{Head: head, Manifest: claimed}, r.C.Rooms().Self.EnrolmentKey(),
			time.Now())
		if (err == nil) != tc.ok {
			t.Errorf("an attempt with certificate %s: %v", tc.name, err)
		}
	}
	r.Stop()
	files[1].write(pki, "coordinator-b")
	r.Start()
	got, err := coordinatortest.BringTo(t, r.Addr, share, recovery.Options{})
	wantOnlyNil(t, err)
	if s := r.C.Rooms().Head.State(); !got.Recovered || s.Phase != authority.Ready {
		t.Fatalf("%+v, and it is %v", got, s.Phase)
	}
}

func twoNames(names ...string) []pkix.AttributeTypeAndValue {
	var out []pkix.AttributeTypeAndValue
	for _, n := range names {
		out = append(out, pkix.AttributeTypeAndValue{Type: asn1.ObjectIdentifier{2, 5, 4, 3}, Value: n})
	}
	return out
}
