package coordinatortest

import (
	"errors"
	"io"
	"path/filepath"
	"strings"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/mesh/pinned"
	"github.com/fealty-io/fealty/internal/proof"
)

// SetupToken is the token that a coordinator without a manifest wrote to its folder, where only its own user reads it, and its line.
func (f *Fleet) SetupToken() (tok proof.SetupToken, line string) {
	f.T.Helper()
	raw, err := f.files().ReadSecret(filepath.Join(f.folder(), authority.SetupTokenFile), proof.MaxLineBytes+2)
	if err != nil {
		f.T.Fatal(err)
	}
	if tok, err = proof.ParseSetupToken(string(raw)); err != nil {
		f.T.Fatal(err)
	}
	return tok, strings.TrimSpace(string(raw))
}

// FirstSet sets m with tok over a connection of its own. alter changes the message; nil: nothing.
func (f *Fleet) FirstSet(tok proof.SetupToken, m []byte, alter func(*fealtyv1.FirstSetRequest)) error {
	f.T.Helper()
	return f.FirstSetBy(tok, m, func(evidence []byte, _ int) []*fealtyv1.FirstSetRequest {
		req := &fealtyv1.FirstSetRequest{Set: &fealtyv1.SetManifestRequest{Manifest: m, Reason: "first"},
			Evidence: evidence}
		if alter != nil {
			alter(req)
		}
		return []*fealtyv1.FirstSetRequest{req}
	})
}

// FirstSetBy sends what messages makes of the evidence for m by tok, and of how many bytes a part may have.
func (f *Fleet) FirstSetBy(tok proof.SetupToken, m []byte,
	messages func(evidence []byte, partBytes int) []*fealtyv1.FirstSetRequest) error {
	f.T.Helper()
	conn, err := f.DialPinned(pinned.Leaf(tok.KeyHash))
	if err != nil {
		return err
	}
	defer conn.Close()
	stream, err := fealtyv1.NewManifestServiceClient(conn).FirstSet(f.Context())
	if err != nil {
		return err
	}
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	binding, err := BindingOf(stream.Context())
	if err != nil {
		return err
	}
	evidence, err := tok.Prove(proof.SetupTranscript{Nonce: first.GetNonce(), Binding: binding, Manifest: m})
	if err != nil {
		return err
	}
	for _, req := range messages(evidence, int(first.GetPartBytes())) {
		// After an EOF the server has said why it takes no more.
		if err := stream.Send(req); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
	}
	_, err = stream.Recv()
	return err
}
