package coordinator_test

import (
	"crypto/sha256"
	"slices"
	"strings"
	"testing"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/recovery/owner"
	"github.com/fealty-io/fealty/internal/errcode"
)

// A first manifest that is larger than what a stranger may send at once comes in parts,
// after the proof; a part that is not what was proven changes nothing.
func TestFirstSetInParts(t *testing.T) {
	t.Parallel()
	f := coordinatortest.NewFleet(t, nil)
	tok, _ := f.SetupToken()
	m := []byte(string(f.Manifest("")) + strings.Repeat("# "+strings.Repeat("x", 97)+"\n", 3000)) // 300 KB
	coordinatortest.WantCode(t, f.FirstSet(tok, m, nil), errcode.MessageTooLarge)
	send := func(alter func(parts []*fealtyv1.FirstSetRequest) []*fealtyv1.FirstSetRequest) error {
		return f.FirstSetBy(tok, m, func(evidence []byte, partBytes int) []*fealtyv1.FirstSetRequest {
			hash := sha256.Sum256(m)
			parts := []*fealtyv1.FirstSetRequest{{Set: &fealtyv1.SetManifestRequest{Reason: "first"}, Evidence: evidence,
				ManifestBytes: uint32(len(m)), ManifestHash: hash[:]}}
			for part := range slices.Chunk(m, partBytes) {
				parts = append(parts, &fealtyv1.FirstSetRequest{Part: part})
			}
			return alter(parts)
		})
	}
	type requests = []*fealtyv1.FirstSetRequest
	for what, tc := range map[string]struct {
		alter func(requests) requests
		want  errcode.Code
	}{
		"another manifest": {func(r requests) requests {
			r[2].Part = slices.Clone(r[2].Part)
			r[2].Part[0] ^= 1
			return r
		}, errcode.RequestField},
		"more than was announced": {func(r requests) requests { r[0].ManifestBytes--; return r }, errcode.RequestField},
		"more than a manifest": {func(r requests) requests { r[0].ManifestBytes = 1 << 30; return r },
			errcode.RequestField},
		"no proof": {func(r requests) requests { r[0].Evidence = nil; return r[:1] },
			errcode.SetupRefused},
		"another hash": {func(r requests) requests { r[0].ManifestHash = make([]byte, 32); return r[:1] },
			errcode.SetupRefused},
		"half a " +
			"hash": {func(r requests) requests { r[0].ManifestHash = r[0].ManifestHash[:16]; return r[:1] },
			errcode.SetupRefused},
		"an empty part": {func(r requests) requests { r[1].Part = nil; return r[:2] }, errcode.RequestField},
	} {
		t.Run(what, func(t *testing.T) {
			coordinatortest.WantCode(t, send(tc.alter), tc.want)
			if phase, _ := f.C.Phase(); phase != "uninitialized" {
				t.Fatalf("phase %s", phase)
			}
		})
	}
	if err := send(func(r requests) requests { return r }); err != nil {
		t.Fatal(err)
	}
	if phase, reason := f.C.Phase(); phase != "ready" {
		t.Fatalf("phase %s: %s", phase, reason)
	}
	if got := len(f.State().Manifest.Bytes()); got != len(m) {
		t.Errorf("a manifest of %d bytes is in force, want %d", got, len(m))
	}
}

// A call of a stranger that finds no place is ended before its request is received.
func TestVerifyTakesItsPlaceBeforeItsRequest(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	answers := make(chan error, owner.MaxVerificationsPerSource+1)
	for range owner.MaxVerificationsPerSource + 1 {
		stream, err := coordinatortest.Stranger(f).NewStream(f.Context(),
			&fealtyv1.VerifyService_ServiceDesc.Streams[0],
			fealtyv1.VerifyService_Verify_FullMethodName)
		if err != nil {
			t.Fatal(err)
		}
		// Nothing is sent.
		go func() { answers <- stream.RecvMsg(new(fealtyv1.VerifyResponse)) }()
	}
	coordinatortest.WantCode(t, <-answers, errcode.RateLimited)
}
