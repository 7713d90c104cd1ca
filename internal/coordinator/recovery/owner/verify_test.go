package owner_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	goproto "google.golang.org/protobuf/proto"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/recovery/owner"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring/recovery"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/mesh/pinned"
	"github.com/fealty-io/fealty/internal/pki"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/mesh"
)

// A data owner verifies a ready coordinator, follows it over its changes, and is told
// by name what is not as expected.
func TestVerify(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	s := f.State()
	want := recovery.Expected{Manifest: s.Manifest, Pin: s.RootPin}
	got, err := coordinatortest.VerifyAt(t, f.Addr, want)
	coordinatortest.WantOnly(t, "verify", err, "")
	if got.Coordinator != "coordinator-1" || got.History.Current().Hash != s.Head.Hash ||
		identity.KeyOf(got.Root) != s.RootPin || identity.KeyOf(got.MeshCA) != s.MeshKey {
		t.Fatalf("verified %+v", got)
	}
	first := got.Mark()

	// Another manifest is in force: the tool says since when the expected one is not.
	if err := f.Set(f.Manifest("  - {name: more, kind: data, match: [\"token:more\"]}\n")); err != nil {
		t.Fatal(err)
	}
	want.Seen = first
	_, err = coordinatortest.VerifyAt(t, f.Addr, want)
	coordinatortest.WantCode(t, err, errcode.VerifyManifest)
	if when := errcode.Of(err).Fields["when"]; when != "it was in force until index 2, by set" {
		t.Errorf("when: %q", when)
	}
	want.Manifest = f.State().Manifest
	got, err = coordinatortest.VerifyAt(t, f.Addr, want)
	coordinatortest.WantOnly(t, "verify the next", err, "")

	// The mark of a head that was seen binds: an older head, another head at the same place, another root.
	second := got.Mark()
	for name, tc := range map[string]struct {
		change func(*recovery.Expected)
		want   errcode.Code
	}{
		"rollback": {func(e *recovery.Expected) { e.Seen.AuthorityEpoch += 2; e.Seen.Index += 5; e.Seen.Hash[0]++ },
			errcode.HistoryWentBack},
		"fork": {func(e *recovery.Expected) { e.Seen.Hash[0]++ }, errcode.HistoryForked},
		"another " +
			"key": {func(e *recovery.Expected) {
			e.Seen.TransactionKey = make([]byte,
				32)
			e.Seen.TransactionKey[0] = 2
		},
			errcode.VerifyHistory},
		"another root":  {func(e *recovery.Expected) { e.Seen.Root[0]++ }, errcode.VerifyAuthority},
		"another pin":   {func(e *recovery.Expected) { e.Pin[0]++ }, errcode.VerifyAuthority},
		"as it is":      {func(*recovery.Expected) {}, ""},
		"since earlier": {func(e *recovery.Expected) { e.Seen = first }, ""},
	} {
		e := want
		e.Seen = second
		tc.change(&e)
		_, err := coordinatortest.VerifyAt(t, f.Addr, e)
		coordinatortest.WantOnly(t, name, err, tc.want)
	}
	foreign, err := manifest.Parse([]byte(string(f.Manifest("")) + "  - {name: x, kind: data, match: [\"token:x\"]}\n"))
	coordinatortest.WantOnly(t, "parse", err, "")
	_, err = coordinatortest.VerifyAt(t, f.Addr, recovery.Expected{Manifest: foreign})
	coordinatortest.WantCode(t, err, errcode.VerifyManifest)
	if when := errcode.Of(err).Fields["when"]; when != "it was never in force" {
		t.Errorf("when: %q", when)
	}
}

// A stranger's view of a ready cluster holds nothing of its manifests: neither of
// the one in force nor of one before.
func TestStrangersSeeNoManifest(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	for _, name := range []string{"confidential-one", "confidential-two"} {
		if err := f.Set(f.Manifest("  - {name: " + name + ", kind: data, match: [\"token:" + name +
			"\"]}\n")); err != nil {
			t.Fatal(err)
		}
	}
	conn, err := mesh.DialPinned(f.Addr, pinned.Unproven(), mesh.Options{})
	coordinatortest.WantOnly(t, "dial", err, "")
	defer conn.Close()
	stream, err := fealtyv1.NewVerifyServiceClient(conn).Verify(t.Context(),
		&fealtyv1.VerifyRequest{Nonce: make([]byte, proof.NonceBytes)})
	coordinatortest.WantOnly(t, "verify", err, "")
	links := 0
	for {
		m, err := stream.Recv()
		if err == io.EOF {
			break
		}
		coordinatortest.WantOnly(t, "receive", err, "")
		raw, err := goproto.Marshal(m)
		coordinatortest.WantOnly(t, "encode", err, "")
		if n := len(m.GetHistory().GetManifests()); n > 0 || bytes.Contains(raw, []byte("confidential")) {
			t.Errorf("a stranger is shown %d manifests in %d bytes", n, len(raw))
		}
		links += len(m.GetHistory().GetTransitions())
	}
	if links != 3 {
		t.Errorf("%d links were shown, want 3", links)
	}
	for name, call := range map[string]func() error{
		"GetManifest": func() error {
			_, err := fealtyv1.NewManifestServiceClient(conn).GetManifest(t.Context(), &fealtyv1.GetManifestRequest{})
			return err
		},
		"GetHistory": func() error {
			_, err := fealtyv1.NewManifestServiceClient(conn).GetHistory(t.Context(), &fealtyv1.GetHistoryRequest{})
			return err
		},
		"Recover": func() error {
			r, err := fealtyv1.NewRecoveryServiceClient(conn).Recover(t.Context())
			if err == nil {
				_, err = r.Recv()
			}
			return err
		},
	} {
		if err := call(); err == nil {
			t.Errorf("%s answers a stranger at a ready coordinator", name)
		}
	}
}

// The data owner's looks: the first one takes what the coordinator shows, the second one
// goes on from there over three sets and asks the signers that it remembers.
func TestVerifyAfterSets(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	got, err := coordinatortest.VerifyAt(t, f.Addr, recovery.Expected{Manifest: f.State().Manifest})
	coordinatortest.WantOnly(t, "the first look", err, "")
	if got.History.Unsigned() != 0 || got.Manifest.Hash() != f.State().Manifest.Hash() {
		t.Errorf("the first look found %d unchecked links", got.History.Unsigned())
	}
	first := got.Mark()
	for i := range 3 {
		if err := f.Set(f.Manifest(fmt.Sprintf("  - {name: more-%d, kind: data, match: [\"token:more-%d\"]}\n", i,
			i))); err != nil {
			t.Fatal(err)
		}
	}
	got, err = coordinatortest.VerifyAt(t, f.Addr, recovery.Expected{Manifest: f.State().Manifest,
		Seen: first})
	coordinatortest.WantOnly(t, "the second look", err, "")
	// The first set has the signers of the mark; the third follows a manifest that nobody
	// showed, as the second does.
	if got.History.Unsigned() != 2 || len(got.History.Links()) != 4 || got.Restored {
		t.Errorf("the second look: %d links, %d unchecked", len(got.History.Links()), got.History.Unsigned())
	}
	if m := got.Mark(); m.Index != 4 || m.Signers == nil {
		t.Errorf("its mark: %+v", m)
	}
}

// In recovery mode it proves itself and shows its history, and no authority.
func TestVerifyInRecoveryMode(t *testing.T) {
	t.Parallel()
	f, _ := coordinatortest.NewOwnedFleet(t, nil)
	want := recovery.Expected{Manifest: f.State().Manifest}
	got, err := coordinatortest.VerifyAt(t, f.Addr, want)
	coordinatortest.WantOnly(t, "verify", err, "")
	coordinatortest.LoseKeeper(f)
	_, err = coordinatortest.VerifyAt(t, f.Addr, want)
	coordinatortest.WantCode(t, err, errcode.RecoveryMode)
	want.Seen = got.Mark()
	_, err = coordinatortest.VerifyAt(t, f.Addr, want)
	coordinatortest.WantCode(t, err, errcode.RecoveryMode)
	want.Seen.Hash[0]++
	_, err = coordinatortest.VerifyAt(t, f.Addr, want)
	coordinatortest.WantCode(t, err, errcode.HistoryForked)
}

// Each thing that is verified has somebody who lies about it alone.
func TestVerifyRefusesLiars(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	s := f.State()
	want := recovery.Expected{Manifest: s.Manifest}
	_, own, err := ed25519.GenerateKey(rand.Reader)
	coordinatortest.WantOnly(t, "key", err, "")
	h, _, _, err := f.C.Parts().Head.ClaimedHistory(t.Context())
	coordinatortest.WantOnly(t, "history", err, "")
	genuine, _, err := f.C.Parts().Shown.Verification.Claim(t.Context(), make([]byte, 32), make([]byte, 32))
	coordinatortest.WantOnly(t, "claim", err, "")
	// by makes a claim by the coordinator's own key, of what change made of the truth.
	by := func(key ed25519.PrivateKey, change func(*proof.VerifyTranscript)) func(nonce,
		binding []byte) (*fealtyv1.VerifyClaim, *history.History, error) {
		return func(nonce, binding []byte) (*fealtyv1.VerifyClaim, *history.History, error) {
			tr := proof.VerifyTranscript{
				Cluster: coordinatortest.Cluster, Nonce: nonce, Binding: binding, Head: genuine.GetHead(), Ready: true,
				Root: genuine.GetRoot(), MeshCA: genuine.GetMeshCa(), TransactionKey: genuine.GetTransactionKey(),
			}
			change(&tr)
			claim, evidence, err := proof.ProveVerify(key, tr)
			return &fealtyv1.VerifyClaim{
				Cluster: tr.Cluster, Ready: tr.Ready, Head: tr.Head, Root: tr.Root, MeshCa: tr.MeshCA,
				TransactionKey: tr.TransactionKey,
				Key:            claim, Evidence: evidence,
			}, h, err
		}
	}
	nothing := func(*proof.VerifyTranscript) {}
	otherMesh, err := pki.NewMeshCA(s.Root, s.Secrets.RootCA(),
		pki.MeshConfig{Cluster: coordinatortest.Cluster, Epoch: s.Head.AuthorityEpoch, Validity: time.Hour}, time.Now())
	coordinatortest.WantOnly(t, "mesh CA", err, "")
	unlike := func(c *x509.Certificate) []byte {
		other, err := pkitest.Unlike(c, s.Root, s.Secrets.RootCA())
		coordinatortest.WantOnly(t, "a certificate of another profile", err, "")
		return other.Raw
	}
	other := coordinatortest.ReadyFleet(t, nil)
	met := make(map[string]bool)
	for _, tc := range []struct {
		check, name string
		want        errcode.Code
		answer      func(nonce, binding []byte) (*fealtyv1.VerifyClaim, *history.History, error)
	}{
		{"coordinator", "by nobody's key", errcode.VerifyUnproven, by(own, nothing)},
		{"coordinator", "relayed: over another connection", errcode.VerifyUnproven,
			by(f.C.Parts().Self.PrivateKey(), func(tr *proof.VerifyTranscript) { tr.Binding = make([]byte, 32) })},
		{"coordinator", "replayed: for another nonce", errcode.VerifyUnproven,
			by(f.C.Parts().Self.PrivateKey(), func(tr *proof.VerifyTranscript) { tr.Nonce = make([]byte, 32) })},
		{"coordinator", "of another cluster", errcode.PeerOtherCluster,
			by(f.C.Parts().Self.PrivateKey(), func(tr *proof.VerifyTranscript) { tr.Cluster = "other.example" })},
		{"coordinator", "altered on its way", errcode.VerifyUnproven,
			func(nonce, binding []byte) (*fealtyv1.VerifyClaim, *history.History, error) {
				c, h, err := by(f.C.Parts().Self.PrivateKey(), nothing)(nonce, binding)
				c.MeshCa = otherMesh.Certificate().Raw
				return c, h, err
			}},
		{"coordinator", "nothing", errcode.VerifyUnproven,
			func(_, _ []byte) (*fealtyv1.VerifyClaim, *history.History, error) { return nil, h, nil }},
		{"signing key", "in recovery, of a cluster never seen", errcode.RecoveryMode,
			by(f.C.Parts().Self.PrivateKey(), func(tr *proof.VerifyTranscript) {
				tr.Ready, tr.Root, tr.MeshCA, tr.TransactionKey = false, nil, nil, nil
			})},
		{"history", "under another key", errcode.VerifyHistory,
			by(f.C.Parts().Self.PrivateKey(),
				func(tr *proof.VerifyTranscript) { tr.TransactionKey = own.Public().(ed25519.PublicKey) })},
		{"history", "of another head", errcode.VerifyHistory,
			by(f.C.Parts().Self.PrivateKey(), func(tr *proof.VerifyTranscript) { tr.Head = make([]byte, 32) })},
		{"history", "damaged", errcode.VerifyHistory,
			func(nonce, binding []byte) (*fealtyv1.VerifyClaim, *history.History, error) {
				c, h, err := by(f.C.Parts().Self.PrivateKey(), nothing)(nonce, binding)
				cut := *h
				cut.Links = cut.Links[1:]
				return c, &cut, err
			}},
		{"root", "of the right key, and of another profile", errcode.VerifyAuthority,
			by(f.C.Parts().Self.PrivateKey(), func(tr *proof.VerifyTranscript) { tr.Root = unlike(s.Root) })},
		{"mesh CA", "of the right key, and of another profile", errcode.VerifyAuthority,
			by(f.C.Parts().Self.PrivateKey(),
				func(tr *proof.VerifyTranscript) { tr.MeshCA = unlike(s.MeshCA().Certificate()) })},
		{"root", "of another cluster", errcode.VerifyAuthority,
			by(f.C.Parts().Self.PrivateKey(), func(tr *proof.VerifyTranscript) { tr.Root = tr.MeshCA })},
		{"mesh CA", "of the same root and epoch, and not of the head", errcode.VerifyAuthority,
			by(f.C.Parts().Self.PrivateKey(),
				func(tr *proof.VerifyTranscript) { tr.MeshCA = otherMesh.Certificate().Raw })},
		{"mesh CA", "under another root", errcode.VerifyAuthority,
			by(f.C.Parts().Self.PrivateKey(), func(tr *proof.VerifyTranscript) {
				tr.MeshCA = other.State().MeshCA().Certificate().Raw
			})},
	} {
		_, err := coordinatortest.VerifyAt(t, (&coordinatortest.Impostor{Answer: tc.answer}).Serve(t), want)
		if got := errcode.Of(err); err == nil || got.Code != tc.want {
			t.Errorf("%s, %s: %v, want %s", tc.check, tc.name, err, tc.want)
		}
		met[tc.check] = true
	}
	// The harness works, and who holds the coordinator's key is believed.
	_, err = coordinatortest.VerifyAt(t, (&coordinatortest.Impostor{Answer: by(f.C.Parts().Self.PrivateKey(),
		nothing)}).Serve(t), want)
	coordinatortest.WantOnly(t, "genuine", err, "")
	// TestVerify and TestVerifyInRecoveryMode have the others.
	met["mark"], met["manifest"], met["ready"] = true, true, true
	for _, c := range recovery.VerifyChecks() {
		if !met[c.Name] || c.Why == "" {
			t.Errorf("nobody lies about %s, or it says nothing of why", c.Name)
		}
	}
}

// Strangers who verify are bounded, and cost the store no more than a look at the
// head.
func TestVerifiersAreBounded(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	want := recovery.Expected{Manifest: f.State().Manifest}
	var place *ratelimit.Slot
	for range owner.MaxVerificationsPerSource {
		var err error
		place, err = f.C.Parts().Shown.Verification.Places().Enter(t.Context(), "127.0.0.1", coordinatortest.Epoch0)
		coordinatortest.WantOnly(t, "enter", err, "")
	}
	_, err := coordinatortest.VerifyAt(t, f.Addr, want)
	coordinatortest.WantCode(t, err, errcode.RateLimited)
	place.Leave()
	_, err = coordinatortest.VerifyAt(t, f.Addr, want)
	coordinatortest.WantOnly(t, "verify", err, "")
	before := f.C.Parts().Shown.Verification.Shown()
	_, err = f.C.Parts().Shown.Verification.Show(t.Context())
	coordinatortest.WantOnly(t, "show", err, "")
	if f.C.Parts().Shown.Verification.Shown() != before {
		t.Error("the history was read again")
	}
	for range 2 * owner.VerifyBurst { // it refills meanwhile
		if _, err = coordinatortest.VerifyAt(t, f.Addr, want); err != nil {
			break
		}
	}
	coordinatortest.WantCode(t, err, errcode.RateLimited)
}

// A restore takes the place of what was seen only with the signatures of the signers of
// then: a backup may be of before a change of signers, who were dismissed for a reason.
func TestVerifyFollowsRestoresOfTheSigners(t *testing.T) {
	t.Parallel()
	f, owners := coordinatortest.NewOwnedFleet(t, nil)
	look := func(seen recovery.Mark) (*recovery.Cluster, error) {
		return coordinatortest.VerifyAt(t, f.Addr, recovery.Expected{Manifest: f.State().Manifest,
			Seen: seen})
	}
	mark := func() recovery.Mark {
		t.Helper()
		found, err := look(recovery.Mark{})
		coordinatortest.WantOnly(t, "look", err, "")
		raw, err := json.Marshal(found.Mark())
		coordinatortest.WantOnly(t, "encode", err, "")
		m, err := recovery.ParseMark(raw, coordinatortest.Cluster)
		coordinatortest.WantOnly(t, "parse", err, "")
		return m
	}
	b := coordinatortest.Save(f, owners).Signed(f.Signer)
	seed := owners.Seed(2, "file:"+filepath.Join(f.Dir, "keeper.key"))
	if err := f.Set(coordinatortest.WithSeed(f.Manifest("  - {name: extra, kind: witness, match: [\"token:extra\"]}\n"),
		seed)); err != nil {
		t.Fatal(err)
	}
	same := mark()
	was, err := manifest.NewKey(f.Signer.Public().(ed25519.PublicKey))
	coordinatortest.WantOnly(t, "key", err, "")
	public, _, err := ed25519.GenerateKey(rand.Reader)
	coordinatortest.WantOnly(t, "key", err, "")
	next, err := manifest.NewKey(public)
	coordinatortest.WantOnly(t, "key", err, "")
	if err := f.Set(bytes.Replace(f.State().Manifest.Bytes(), []byte(was.String()),
		[]byte(next.String()), 1)); err != nil {
		t.Fatal(err)
	}
	other := mark()
	b.Restore()
	// Its coordinator forgot what it saw, or helps.
	if err := os.Remove(filepath.Join(f.Dir, "coordinator", authority.MarkFile)); err != nil {
		t.Fatal(err)
	}
	f.Start()
	f.Await(authority.Ready)
	found, err := look(same)
	coordinatortest.WantOnly(t, "seen under the same signers", err, "")
	if !found.Restored {
		t.Error("it does not say that a restore took the place of what was seen")
	}
	_, err = look(other)
	coordinatortest.WantCode(t, err, errcode.HistoryForked)
	other.Signers = nil // of an earlier release, which did not know them
	_, err = look(other)
	coordinatortest.WantOnly(t, "seen without signers", err, "")
}
