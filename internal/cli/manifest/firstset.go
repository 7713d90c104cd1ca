package manifest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/cli/program"
	"github.com/fealty-io/fealty/internal/cli/settings"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/errcode/render"
	"github.com/fealty-io/fealty/internal/mesh/pinned"
	"github.com/fealty-io/fealty/internal/platform/humanize"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/mesh"
)

// Behind one address may stand several coordinators, such as those of a Kubernetes Service,
// and a setup token is good at the one that wrote it. So an address is connected to again
// while another coordinator answers: at most firstSetTries times, and no more than
// firstSetTriesOfOne times if it is always the same one. Of three coordinators that are
// picked at random, the right one is missed in one of 10^11 and in one of 250,000 cases.
// Nothing is sent to the others.
const (
	firstSetTries      = 64
	firstSetTriesOfOne = 12
)

// firstSet sets the first manifest from another machine: the setup token is proven
// over the very connection that carries the manifest, to the coordinator whose key
// the token names. The addresses that the settings name are tried first, then those
// of the token; each has the time of a call.
func firstSet(ctx context.Context, c *program.CLI, cfg *settings.Values, file string,
	req *fealtyv1.SetManifestRequest) (*fealtyv1.SetManifestResponse, error) {
	if socket := cfg.Find("socket"); socket.Text != "" && socket.Rank == settings.FromFlag {
		return nil, errcode.New(errcode.BadValue, "name", "--socket", "value", "given together with --setup-token-file",
			"problem", "over the socket of a coordinator the first manifest is set without a token", "want", "one of them")
	}
	data, err := render.ReadFile(cfg.Within(file), proof.MaxLineBytes+2)
	if err != nil {
		return nil, errcode.Wrap(err, errcode.FileMissing, "purpose", "setup token", "file", file)
	}
	token, err := proof.ParseSetupToken(string(data))
	if err != nil {
		return nil, render.Translate(err)
	}
	addresses := slices.Clone(cfg.List("coordinator"))
	for _, addr := range token.Addresses {
		if !slices.Contains(addresses, addr) {
			addresses = append(addresses, addr)
		}
	}
	var told error
	for _, addr := range addresses {
		resp, sent, err := firstSetOver(ctx, c, cfg, addr, token, req)
		if err == nil {
			return resp, nil
		}
		// What a coordinator says counts for more than that nobody answered elsewhere.
		if told == nil || errors.Is(told, errcode.Unreachable) {
			told = err
		}
		if sent || ctx.Err() != nil {
			return nil, err
		}
	}
	return nil, told
}

// firstSetOver sets the first manifest over addr. It connects again while another
// coordinator than the token's answers there. sent says that the manifest was sent.
func firstSetOver(ctx context.Context, c *program.CLI, cfg *settings.Values, addr string, token proof.SetupToken,
	req *fealtyv1.SetManifestRequest) (resp *fealtyv1.SetManifestResponse, sent bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, cfg.Duration("timeout"))
	defer cancel()
	others := make(map[identity.KeyID]bool)
	for try := 1; ; try++ {
		resp, err = firstSetAt(ctx, c, addr, token, req, &sent)
		if err == nil {
			return resp, true, nil
		}
		other, ok := errors.AsType[*pinned.Error](err)
		switch {
		case sent || !ok:
			return nil, sent, render.OverNetwork(err, addr, "FirstSet", sent, !req.GetDryRun(), cfg.Text("timeout"))
		case other.Key.IsZero():
			return nil, false, errcode.Wrap(err, errcode.PeerUntrusted, "endpoint", addr, "problem",
				"what answers there is no coordinator without a manifest: "+other.Detail, "do",
				"if the cluster has its first manifest, change it with a login or over --socket; else check the address")
		}
		others[other.Key] = true
		if try == firstSetTries || try == firstSetTriesOfOne && len(others) == 1 || ctx.Err() != nil {
			return nil, false, errcode.Wrap(err, errcode.PeerUntrusted, "endpoint", addr, "problem",
				fmt.Sprintf("the coordinator that wrote the setup token did not answer there: in %d attempts %s did",
					try, humanize.Plural(len(others), "another one", "other ones")), "do",
				"if it was started again since, take the token that it wrote then; if several stand behind that address, "+
					"name its own with --coordinator HOST:PORT, or set the manifest on its machine with --socket FILE")
		}
	}
}

func firstSetAt(ctx context.Context, c *program.CLI, addr string, token proof.SetupToken,
	req *fealtyv1.SetManifestRequest, sent *bool) (*fealtyv1.SetManifestResponse, error) {
	conn, err := mesh.DialPinned(addr, pinned.Leaf(token.KeyHash), mesh.Options{Now: c.Env.Now})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	stream, err := fealtyv1.NewManifestServiceClient(conn).FirstSet(ctx)
	if err != nil {
		return nil, err
	}
	challenge, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	cs, ok := proof.ConnectionState(stream.Context())
	if !ok {
		return nil, errcode.New(errcode.JoinNoBinding)
	}
	binding, err := proof.Binding(cs)
	if err != nil {
		return nil, errcode.Wrap(err, errcode.JoinNoBinding, "problem", err.Error())
	}
	evidence, err := token.Prove(proof.SetupTranscript{Nonce: challenge.GetNonce(), Binding: binding,
		Manifest: req.GetManifest()})
	if err != nil {
		return nil, errcode.Wrap(err, errcode.PeerProtocol, "endpoint", addr, "problem", "its challenge is malformed")
	}
	*sent = true
	// An error of Send says only that there is an answer.
	for _, part := range firstSetParts(req, evidence, int(challenge.GetPartBytes())) {
		if err := stream.Send(part); err != nil {
			if stream.Context().Err() != nil {
				return nil, err
			}
			break
		}
	}
	answer, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	return answer.GetDone(), nil
}

// firstSetParts are the messages of a first set at a coordinator that takes manifests of
// at most so many bytes in one; 0: any.
func firstSetParts(req *fealtyv1.SetManifestRequest, evidence []byte, most int) []*fealtyv1.FirstSetRequest {
	text := req.GetManifest()
	if most <= 0 || len(text) <= most {
		return []*fealtyv1.FirstSetRequest{{Set: req, Evidence: evidence}}
	}
	rest := proto.Clone(req).(*fealtyv1.SetManifestRequest)
	rest.Manifest = nil
	hash := sha256.Sum256(text)
	out := []*fealtyv1.FirstSetRequest{{Set: rest, Evidence: evidence, ManifestBytes: uint32(len(text)),
		ManifestHash: hash[:]}}
	for part := range slices.Chunk(text, most) {
		out = append(out, &fealtyv1.FirstSetRequest{Part: part})
	}
	return out
}
