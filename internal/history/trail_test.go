package history_test

import (
	"crypto/ed25519"
	"errors"
	"testing"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/manifest"
)

// trailLink makes a link after previous; signers sign it.
func trailLink(t *testing.T, previous history.Mark, index, epoch uint64, kind history.Kind, signers ...ed25519.PrivateKey) ([]byte, history.Mark) {
	t.Helper()
	l := history.Transition{Index: index, AuthorityEpoch: epoch, Previous: previous.Hash, Kind: kind, MeshCAKey: identity.KeyID{byte(index), byte(epoch)}}
	for _, key := range signers {
		l.Signatures = append(l.Signatures, history.Signature{Key: manifest.Key(key.Public().(ed25519.PublicKey)), Signature: [64]byte(ed25519.Sign(key, l.Statement()))})
	}
	raw, err := l.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return raw, history.Mark{AuthorityEpoch: epoch, Index: index, Hash: history.HashOf(raw)}
}

// TestTrail walks what leads on from a head that a node knows, and what does not.
func TestTrail(t *testing.T) {
	k := newTesters(t)
	known := manifest.Signers{Threshold: 2, Keys: []manifest.Signer{{Key: k.signer(0)}, {Key: k.signer(1)}}}
	signers, stranger := k.signers[:2], k.signers[2]
	const late = 1_800_000_000
	root, genesis := trailLink(t, history.Mark{}, 1, 1, history.KindGenesis)
	two, at2 := trailLink(t, genesis, 2, 1, history.KindSet, signers...)
	three, at3 := trailLink(t, at2, 3, 2, history.KindRekey)
	four, at4 := trailLink(t, at3, 4, 2, history.KindSet, signers...)
	other, beside := trailLink(t, at2, 3, 2, history.KindRekey, signers[0])
	unsigned, at4u := trailLink(t, at3, 4, 2, history.KindSet, signers[0])
	again, at5 := trailLink(t, at4, 5, 2, history.KindSet, stranger)
	back, restored := trailLink(t, at2, late, late, history.KindRestore, signers...)
	more, after := trailLink(t, restored, late+1, late, history.KindSet, signers...)
	few, byFew := trailLink(t, at2, late, late, history.KindRestore, signers[0])
	foreign, byOthers := trailLink(t, at2, late+1, late+1, history.KindRestore, signers[0], stranger)
	low, belowEpoch := trailLink(t, at2, late, 2, history.KindRestore, signers...)
	next, child := trailLink(t, at3, late, late, history.KindRestore, signers...)
	for _, row := range []struct {
		name     string
		links    [][]byte
		head     history.Mark
		restored bool
		want     error
	}{
		{"the same head, without links", nil, at3, false, nil},
		{"one link", [][]byte{four}, at4, false, nil},
		{"with all before", [][]byte{root, two, three, four}, at4, false, nil},
		{"signers are not known any more after a set", [][]byte{four, again}, at5, false, nil},
		{"no links", nil, at4, false, history.ErrNoTrail},
		{"a gap", [][]byte{again}, at5, false, history.ErrNoTrail},
		{"a gap on the way", [][]byte{four, more}, after, false, history.ErrNoTrail},
		{"another head than the last link", [][]byte{four}, at5, false, history.ErrNoTrail},
		{"a set that too few signed", [][]byte{unsigned}, at4u, false, history.ErrNoTrail},
		{"a lower head", [][]byte{root, two}, at2, false, history.ErrRollback},
		{"another one at its place", [][]byte{root, two, other}, beside, false, history.ErrFork},
		{"a restore from before", [][]byte{root, two, back}, restored, true, nil},
		{"and on", [][]byte{back, more}, after, true, nil},
		{"a restore from this very head", [][]byte{next}, child, true, nil},
		{"a restore that too few signed", [][]byte{two, few}, byFew, false, history.ErrNoTrail},
		{"a restore that others signed", [][]byte{two, foreign}, byOthers, false, history.ErrNoTrail},
		{"a restore of no higher epoch", [][]byte{two, low}, belowEpoch, false, history.ErrNoTrail},
		{"no link", [][]byte{[]byte("{}")}, at4, false, history.ErrEncoding},
	} {
		t.Run(row.name, func(t *testing.T) {
			trail := history.NewTrail(at3, known)
			var err error
			for _, raw := range row.links {
				if err = trail.Add(raw); err != nil {
					break
				}
			}
			got := false
			if err == nil {
				got, err = trail.LeadsTo(row.head)
			}
			if !errors.Is(err, row.want) || got != row.restored {
				t.Errorf("restored %v, %v; want %v, %v", got, err, row.restored, row.want)
			}
		})
	}
}

func TestRestoreRequest(t *testing.T) {
	k := newTesters(t)
	m := k.manifest(t, base)
	r := history.RestoreRequest{Cluster: m.Cluster, Manifest: m.Hash(), Current: history.Hash{1}, Index: 1_800_000_000, AuthorityEpoch: 1_800_000_000, Backup: history.Hash{2}}
	again, err := history.DecodeRestoreRequest(r.Encode())
	if err != nil || again != r {
		t.Fatalf("%+v, %v", again, err)
	}
	f, err := r.Sign(k.signers[0])
	if err != nil {
		t.Fatal(err)
	}
	if f, err = history.DecodeSignatureFile(f.Encode()); err != nil {
		t.Fatal(err)
	}
	if err := history.CheckRestoreSignature(f, r, m); err != nil {
		t.Fatal(err)
	}
	with := func(change func(r *history.RestoreRequest)) history.RestoreRequest {
		o := r
		change(&o)
		return o
	}
	stranger, err := r.Sign(k.signers[3])
	if err != nil {
		t.Fatal(err)
	}
	set, err := history.SignChange(history.KindSet, m, r.Current, k.signers[0])
	if err != nil {
		t.Fatal(err)
	}
	broken := f
	broken.Signature.Signature[0] ^= 1
	for name, row := range map[string]struct {
		file history.SignatureFile
		of   history.RestoreRequest
		want error
	}{
		"for another head":   {f, with(func(r *history.RestoreRequest) { r.Current[0]++ }), history.ErrOtherHead},
		"for another index":  {f, with(func(r *history.RestoreRequest) { r.Index++ }), history.ErrOtherHead},
		"for another epoch":  {f, with(func(r *history.RestoreRequest) { r.AuthorityEpoch++ }), history.ErrOtherHead},
		"for another backup": {f, with(func(r *history.RestoreRequest) { r.Backup[0]++ }), history.ErrOtherHead},
		"for a set":          {set, r, history.ErrOtherChange},
		"broken":             {broken, r, history.ErrBadSignature},
		"by a stranger":      {stranger, r, history.ErrNoSigner},
	} {
		if err := history.CheckRestoreSignature(row.file, row.of, m); !errors.Is(err, row.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, bad := range []history.SignatureFile{
		{Cluster: "x", Kind: history.KindRestore, Signature: f.Signature}, {Cluster: "x", Kind: history.KindRestore, Signature: f.Signature, Index: 1, AuthorityEpoch: 1},
		{Cluster: "x", Kind: history.KindSet, Signature: f.Signature, Backup: history.Hash{1}}, {Cluster: "x", Kind: history.KindSet, Signature: f.Signature, Index: 1, AuthorityEpoch: 1},
	} {
		if _, err := history.DecodeSignatureFile(bad.Encode()); !errors.Is(err, history.ErrEncoding) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}
