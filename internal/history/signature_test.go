package history_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"testing"

	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/manifest/template"
)

// signedChange is a change with a signer of the manifest in force.
func signedChange(t testing.TB) (next *manifest.Manifest, inForce *manifest.Manifest, signer, stranger ed25519.PrivateKey) {
	t.Helper()
	key := func() (ed25519.PrivateKey, manifest.Key) {
		public, private, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		k, err := manifest.NewKey(public)
		if err != nil {
			t.Fatal(err)
		}
		return private, k
	}
	signer, k := key()
	stranger, other := key()
	parse := func(names ...manifest.Signer) *manifest.Manifest {
		data, err := template.Write(template.Options{Cluster: "test.example", Signers: names,
			Owners: []manifest.Owner{{Name: "host", Keeper: "file:/k"}}, Coordinators: []template.Enrolled{{Name: "c", Key: k}}})
		if err != nil {
			t.Fatal(err)
		}
		m, err := manifest.Parse(data)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	// A signer of the next manifest does not sign this one.
	return parse(manifest.Signer{Name: "eve", Key: other}), parse(manifest.Signer{Name: "alice", Key: k}), signer, stranger
}

// Each thing that can be wrong with a signature has an error of its own.
func TestCheckSignatures(t *testing.T) {
	next, inForce, signer, stranger := signedChange(t)
	head := history.Hash{1}
	sign := func(kind history.Kind, m *manifest.Manifest, head history.Hash, key ed25519.PrivateKey) history.SignatureFile {
		f, err := history.SignChange(kind, m, head, key)
		if err != nil {
			t.Fatal(err)
		}
		back, err := history.DecodeSignatureFile(f.Encode())
		if err != nil || back != f {
			t.Fatalf("%+v comes back as %+v, %v", f, back, err)
		}
		return f
	}
	good := sign(history.KindSet, next, head, signer)
	forged := good
	forged.Signature.Signature[5] ^= 1
	relabelled := sign(history.KindReshare, next, head, signer)
	relabelled.Kind = history.KindSet
	for name, tc := range map[string]struct {
		files []history.SignatureFile
		want  error
	}{
		"good":                     {[]history.SignatureFile{good}, nil},
		"none":                     {nil, nil},
		"another manifest":         {[]history.SignatureFile{sign(history.KindSet, inForce, head, signer)}, history.ErrOtherManifest},
		"a reshare":                {[]history.SignatureFile{sign(history.KindReshare, next, head, signer)}, history.ErrOtherChange},
		"another head":             {[]history.SignatureFile{sign(history.KindSet, next, history.Hash{2}, signer)}, history.ErrOtherHead},
		"changed":                  {[]history.SignatureFile{forged}, history.ErrBadSignature},
		"a reshare called a set":   {[]history.SignatureFile{relabelled}, history.ErrBadSignature},
		"a signer of the next one": {[]history.SignatureFile{good, sign(history.KindSet, next, head, stranger)}, history.ErrNoSigner},
		"twice":                    {[]history.SignatureFile{good, good}, history.ErrSignedTwice},
		"a bad one behind a good":  {[]history.SignatureFile{good, forged}, history.ErrBadSignature},
	} {
		err := history.CheckSignatures(tc.files, history.KindSet, next, head, inForce)
		if !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
	}
}

// FuzzSignatureFile reads whatever comes as a signature file.
func FuzzSignatureFile(f *testing.F) {
	next, _, signer, _ := signedChange(f)
	file, err := history.SignChange(history.KindReshare, next, history.Hash{7}, signer)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(file.Encode())
	f.Add(bytes.Replace(file.Encode(), []byte("reshare"), []byte("restore"), 1))
	f.Add([]byte(`{"schema":"fealty.signature/v1"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := history.DecodeSignatureFile(data)
		if err != nil {
			if !errors.Is(err, history.ErrEncoding) {
				t.Fatalf("refused with %v", err)
			}
			return
		}
		if again, err := history.DecodeSignatureFile(got.Encode()); err != nil || again != got {
			t.Fatalf("%+v comes back as %+v, %v", got, again, err)
		}
	})
}
