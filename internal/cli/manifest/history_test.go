package manifest_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/cli/clitest"
	manifestpkg "github.com/fealty-io/fealty/internal/cli/manifest"
	"github.com/fealty-io/fealty/internal/cli/program"
	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/cli/term/message"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/store/storetest"
)

// signedHistory returns a history of one transition, as a coordinator sends it.
func signedHistory(t *testing.T) *fealtyv1.GetHistoryResponse {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	m, err := manifest.Parse([]byte(clitest.Manifest))
	if err != nil {
		t.Fatal(err)
	}
	genesis := history.Genesis(m)
	genesis.MeshCAKey, genesis.Salt = identity.KeyID{1}, history.Salt{2}
	for _, o := range m.Seed.People() {
		genesis.ShareCommitments = append(genesis.ShareCommitments, history.ShareCommitment{Owner: o.Name, Hash: history.Hash{3}})
	}
	st := storetest.NewMemory(100).Open()
	t.Cleanup(func() { st.Close() })
	v, err := history.New(st).Append(t.Context(), nil, genesis, m, key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	link := v.Links()[0]
	record, err := link.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return &fealtyv1.GetHistoryResponse{
		Head: v.Head().Encode(), TransactionKey: der, Manifests: [][]byte{m.Bytes()},
		Transitions: []*fealtyv1.Transition{{
			Record: record, Hash: link.Hash[:], Index: link.Index, AuthorityEpoch: link.AuthorityEpoch, Kind: string(link.Kind), ManifestHash: link.Manifest[:],
		}},
	}
}

// Nothing that a coordinator sends beside what is signed is believed.
func TestVerifyHistory(t *testing.T) {
	for _, tt := range []struct {
		name  string
		alter func(*fealtyv1.GetHistoryResponse)
		ok    bool
	}{
		{"as signed", func(*fealtyv1.GetHistoryResponse) {}, true},
		{"another head", func(h *fealtyv1.GetHistoryResponse) { h.Head[len(h.Head)-3] ^= 1 }, false},
		{"no head", func(h *fealtyv1.GetHistoryResponse) { h.Head = nil }, false},
		{"another key", func(h *fealtyv1.GetHistoryResponse) { h.TransactionKey[len(h.TransactionKey)-1] ^= 1 }, false},
		{"no key", func(h *fealtyv1.GetHistoryResponse) { h.TransactionKey = nil }, false},
		{"an altered record", func(h *fealtyv1.GetHistoryResponse) { h.Transitions[0].Record[20] ^= 1 }, false},
		{"no transitions", func(h *fealtyv1.GetHistoryResponse) { h.Transitions = nil }, false},
		{"another manifest", func(h *fealtyv1.GetHistoryResponse) { h.Manifests[0] = append(h.Manifests[0], '\n') }, false},
		{"no manifest", func(h *fealtyv1.GetHistoryResponse) { h.Manifests = nil }, false},
		{"another hash beside the record", func(h *fealtyv1.GetHistoryResponse) { h.Transitions[0].Hash = make([]byte, 32) }, false},
		{"another index beside the record", func(h *fealtyv1.GetHistoryResponse) { h.Transitions[0].Index = 7 }, false},
		{"another epoch beside the record", func(h *fealtyv1.GetHistoryResponse) { h.Transitions[0].AuthorityEpoch = 7 }, false},
		{"another kind beside the record", func(h *fealtyv1.GetHistoryResponse) { h.Transitions[0].Kind = "set" }, false},
	} {
		h := signedHistory(t)
		tt.alter(h)
		var out strings.Builder
		c := program.New(program.Env{Stdout: &out})
		err := manifestpkg.VerifyHistory(c, h, identity.KeyID{})
		if (err == nil) != tt.ok || err != nil && !errors.Is(err, errcode.HistoryInvalid) {
			t.Errorf("%s: %v", tt.name, err)
		}
		if err != nil && out.Len() > 0 {
			t.Errorf("%s: refused, and shown: %s", tt.name, out.String())
		}
	}
	h := signedHistory(t)
	key := identity.KeyID(sha256.Sum256(h.GetTransactionKey()))
	var out strings.Builder
	if err := manifestpkg.VerifyHistory(program.New(program.Env{Stdout: &out}), h, key); err != nil || !strings.Contains(out.String(), key.String()+", the one that was given") {
		t.Errorf("%v\n%s", err, out.String())
	}
	key[0] ^= 1
	if err := manifestpkg.VerifyHistory(program.New(program.Env{}), h, key); !errors.Is(err, errcode.HistoryInvalid) {
		t.Errorf("another key than the pinned one: %v", err)
	}
}

// An exported history can be verified from its file.
func TestExportedHistory(t *testing.T) {
	var b strings.Builder
	if err := term.Write(&b, term.JSON, message.Of(signedHistory(t))); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, tt := range map[string]struct {
		text string
		exit errcode.Exit
		says string
	}{
		"as exported":            {b.String(), 0, ""},
		"another schema":         {strings.Replace(b.String(), term.Schema, "fealty.cli/v2", 1), errcode.ExitRefused, `schema "fealty.cli/v2"`},
		"not JSON":               {"x", errcode.ExitRefused, "not JSON"},
		"not base64":             {strings.Replace(b.String(), `"head": "`, `"head": "*`, 1), errcode.ExitRefused, "FE-H107"},
		"a line break in base64": {strings.Replace(b.String(), `"head": "`, `"head": "\n`, 1), errcode.ExitRefused, "FE-H107"},
		"something else":         {`{"schema": "` + term.Schema + `"}`, errcode.ExitRefused, "FE-H107"},
		"more than JSON":         {b.String() + "{}", errcode.ExitRefused, "not JSON"},
		"words for a key":        {strings.Replace(b.String(), `"transaction_key": "`, `"transaction_key": 7, "x": "`, 1), errcode.ExitRefused, "FE-H107"},
	} {
		if err := os.WriteFile(filepath.Join(dir, "h.json"), []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		r := clitest.Fixture{Dir: dir}.Run(t.Context(), "manifest", "verify-history", "--file", "h.json").Want(t, int(tt.exit), tt.says)
		if t.Failed() {
			t.Fatalf("%s: %s", name, r.Stderr)
		}
		clitest.Fixture{Stdin: strings.NewReader(tt.text)}.Run(t.Context(), "manifest", "verify-history", "--file", "-").Want(t, int(tt.exit), tt.says)
	}
}
