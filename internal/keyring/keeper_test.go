package keyring_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
)

const keyFile = "/etc/fealty/seed.key"

var (
	seedPlace = keyring.Place{Cluster: "prod.example", Purpose: keyring.PurposeSeed, Owner: "kms", SeedEpoch: 1}
	meshPlace = keyring.Place{Cluster: "prod.example", Purpose: keyring.PurposeMesh, Owner: "kms", SeedEpoch: 1, Head: [32]byte{1, 2, 3}}
)

func fileKeeper(t testing.TB, fsys durable.FS) keyring.Keeper {
	t.Helper()
	k, err := keyring.KeeperOf(keyring.Owner{Name: "kms", Keeper: "file:" + keyFile}, fsys)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// keyedKeeper returns a keeper with a key.
func keyedKeeper(t testing.TB) keyring.Keeper {
	t.Helper()
	k := fileKeeper(t, durabletest.NewDisk().FS())
	if _, err := k.MakeKey(t.Context()); err != nil {
		t.Fatal(err)
	}
	return k
}

// sealFirst seals as a first set does: it makes the key if there is none.
func sealFirst(ctx context.Context, k keyring.Keeper, place keyring.Place, plaintext []byte) ([]byte, error) {
	if _, err := k.MakeKey(ctx); err != nil {
		return nil, err
	}
	return k.Seal(ctx, place, plaintext)
}

func seal(t testing.TB, k keyring.Keeper, place keyring.Place, plaintext []byte) []byte {
	t.Helper()
	sealed, err := sealFirst(t.Context(), k, place, plaintext)
	if err != nil {
		t.Fatal(err)
	}
	return sealed
}

func TestFileKeeperRoundTrip(t *testing.T) {
	k := fileKeeper(t, durabletest.NewDisk().FS())
	for _, plaintext := range [][]byte{nil, []byte("x"), bytes.Repeat([]byte("secret"), 100), make([]byte, keyring.MaxPlaintextBytes)} {
		for _, place := range []keyring.Place{seedPlace, meshPlace} {
			sealed := seal(t, k, place, plaintext)
			if len(plaintext) > 12 && bytes.Contains(sealed, plaintext[:12]) && plaintext[0] != 0 {
				t.Error("the sealed bytes show the plaintext")
			}
			if again := seal(t, k, place, plaintext); bytes.Equal(again, sealed) {
				t.Error("sealing twice gives the same bytes: the nonce repeats")
			}
			got, err := k.Open(t.Context(), place, sealed)
			if err != nil || !bytes.Equal(got, plaintext) {
				t.Errorf("%d bytes: got %d, %v", len(plaintext), len(got), err)
			}
		}
	}
	if _, err := k.Seal(t.Context(), seedPlace, make([]byte, keyring.MaxPlaintextBytes+1)); err == nil {
		t.Error("sealed above the limit")
	}
}

func TestFileKeeperBindsPlace(t *testing.T) {
	k := fileKeeper(t, durabletest.NewDisk().FS())
	for name, elsewhere := range map[string]func(*keyring.Place){
		"cluster":    func(p *keyring.Place) { p.Cluster = "prod.example2" },
		"owner":      func(p *keyring.Place) { p.Owner = "kmt" },
		"seed epoch": func(p *keyring.Place) { p.SeedEpoch++ },
		"head":       func(p *keyring.Place) { p.Head[31] ^= 1 },
		"purpose":    func(p *keyring.Place) { p.Purpose, p.Head = keyring.PurposeSeed, [32]byte{} },
		// Written one after the other without lengths, these would be the same.
		"border of fields": func(p *keyring.Place) { p.Cluster, p.Owner = "amesh-ca", "b" },
	} {
		here := meshPlace
		if name == "border of fields" {
			here.Cluster, here.Owner = "a", "mesh-cab"
		}
		place := here
		elsewhere(&place)
		if _, err := k.Open(t.Context(), place, seal(t, k, here, []byte("secret"))); !errors.Is(err, keyring.ErrNotOpened) {
			t.Errorf("%s differs: %v", name, err)
		}
	}
}

func TestFileKeeperRefusesDamage(t *testing.T) {
	k := fileKeeper(t, durabletest.NewDisk().FS())
	sealed := seal(t, k, seedPlace, []byte("secret"))
	for i := range sealed {
		for _, flip := range []byte{1, 0x80} {
			bad := slices.Clone(sealed)
			bad[i] ^= flip
			if got, err := k.Open(t.Context(), seedPlace, bad); !errors.Is(err, keyring.ErrNotOpened) && !errors.Is(err, keyring.ErrOtherKey) || got != nil {
				t.Errorf("byte %d changed: %v", i, err)
			}
		}
	}
	for n := range sealed {
		if _, err := k.Open(t.Context(), seedPlace, sealed[:n]); !errors.Is(err, keyring.ErrNotOpened) {
			t.Errorf("cut to %d bytes: %v", n, err)
		}
	}
	for _, long := range [][]byte{append(slices.Clone(sealed), 0), make([]byte, 1<<20)} {
		if _, err := k.Open(t.Context(), seedPlace, long); !errors.Is(err, keyring.ErrNotOpened) {
			t.Errorf("%d bytes: %v", len(long), err)
		}
	}
}

func TestPlaces(t *testing.T) {
	k := fileKeeper(t, durabletest.NewDisk().FS())
	sealed := seal(t, k, seedPlace, []byte("secret"))
	for name, bad := range map[string]keyring.Place{
		"no cluster":        {Purpose: keyring.PurposeSeed, Owner: "kms", SeedEpoch: 1},
		"no owner":          {Cluster: "prod.example", Purpose: keyring.PurposeSeed, SeedEpoch: 1},
		"long owner":        {Cluster: "prod.example", Owner: strings.Repeat("x", 256), Purpose: keyring.PurposeSeed, SeedEpoch: 1},
		"no purpose":        {Cluster: "prod.example", Owner: "kms", SeedEpoch: 1},
		"other purpose":     {Cluster: "prod.example", Owner: "kms", Purpose: "other", SeedEpoch: 1},
		"no epoch":          {Cluster: "prod.example", Owner: "kms", Purpose: keyring.PurposeSeed},
		"seed at a head":    {Cluster: "prod.example", Owner: "kms", Purpose: keyring.PurposeSeed, SeedEpoch: 1, Head: [32]byte{1}},
		"mesh without head": {Cluster: "prod.example", Owner: "kms", Purpose: keyring.PurposeMesh, SeedEpoch: 1},
	} {
		if _, err := k.Seal(t.Context(), bad, nil); err == nil {
			t.Errorf("%s: sealed", name)
		}
		if _, err := k.Open(t.Context(), bad, sealed); err == nil {
			t.Errorf("%s: opened", name)
		}
	}
}

func TestFileKeeperKeyFile(t *testing.T) {
	line := "fealty-keeper-key-v1 " + base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{9}, 32)) + "\n"
	for _, test := range []struct {
		name    string
		content string
		mode    fs.FileMode
		want    []error // all must match, opening and sealing
		says    string
	}{
		{"good", line, 0o600, nil, ""},
		{"read-only", line, 0o400, nil, ""},
		{"group may read", line, 0o640, []error{keyring.ErrKeyFile, durable.ErrExposed}, "chmod 600"},
		{"others may read", line, 0o604, []error{keyring.ErrKeyFile, durable.ErrExposed}, "chmod 600"},
		{"empty", "", 0o600, []error{keyring.ErrKeyFile}, "restore it from its backup"},
		{"cut short", line[:40], 0o600, []error{keyring.ErrKeyFile}, "restore it from its backup"},
		{"no newline", strings.TrimSpace(line), 0o600, []error{keyring.ErrKeyFile}, "restore it"},
		{"two lines", line + line, 0o600, []error{keyring.ErrKeyFile}, "restore it"},
		{"short key", "fealty-keeper-key-v1 " + base64.StdEncoding.EncodeToString(make([]byte, 31)) + "\n", 0o600, []error{keyring.ErrKeyFile}, "restore it"},
		{"raw key", strings.Repeat("k", 32), 0o600, []error{keyring.ErrKeyFile}, "restore it"},
		{"other version", strings.Replace(line, "v1", "v2", 1), 0o600, []error{keyring.ErrKeyFile}, "restore it"},
		{"loose base64", strings.Replace(line, "=\n", "\n=", 1), 0o600, []error{keyring.ErrKeyFile}, "restore it"},
		{"huge", strings.Repeat("x", 1<<16), 0o600, []error{keyring.ErrKeyFile}, "restore it"},
	} {
		t.Run(test.name, func(t *testing.T) {
			disk := durabletest.NewDisk()
			disk.Put(keyFile, []byte(line))
			k := fileKeeper(t, disk.FS())
			sealed := seal(t, k, seedPlace, []byte("secret"))
			disk.Put(keyFile, []byte(test.content))
			disk.Chmod(keyFile, test.mode)
			_, openErr := k.Open(t.Context(), seedPlace, sealed)
			_, sealErr := k.Seal(t.Context(), seedPlace, []byte("secret"))
			for _, err := range []error{openErr, sealErr} {
				if (err == nil) != (test.want == nil) {
					t.Fatalf("got %v", err)
				}
				for _, want := range test.want {
					if !errors.Is(err, want) {
						t.Errorf("%v does not match %v", err, want)
					}
				}
				if err != nil && (!strings.Contains(err.Error(), test.says) || !strings.Contains(err.Error(), keyFile)) {
					t.Errorf("%v does not say %q of %s", err, test.says, keyFile)
				}
				if err != nil && len(test.content) > 30 && strings.Contains(err.Error(), test.content[22:30]) {
					t.Errorf("%v shows what is in the file", err)
				}
			}
			// With any fault of it, the file is not replaced.
			if data, err := disk.FS().ReadFile(keyFile, 1<<20); err != nil || string(data) != test.content {
				t.Errorf("the file was changed: %v", err)
			}
		})
	}
}

func TestFileKeeperMissingAndOther(t *testing.T) {
	disk := durabletest.NewDisk()
	k := fileKeeper(t, disk.FS())
	sealed := seal(t, k, seedPlace, []byte("secret"))
	if err := disk.FS().Remove(keyFile); err != nil {
		t.Fatal(err)
	}
	_, err := k.Open(t.Context(), seedPlace, sealed)
	if !errors.Is(err, keyring.ErrKeyFile) || !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), keyFile) || !strings.Contains(err.Error(), "restore") {
		t.Errorf("missing: %v", err)
	}
	if _, err := k.Seal(t.Context(), seedPlace, []byte("secret")); !errors.Is(err, keyring.ErrNoKey) || !errors.Is(err, keyring.ErrKeyFile) {
		t.Errorf("seal without a key: %v", err)
	}
	if _, err := k.KeyID(t.Context(), seedPlace); !errors.Is(err, keyring.ErrNoKey) {
		t.Errorf("the id of no key: %v", err)
	}
	if names, _ := disk.FS().ReadDir(filepath.Dir(keyFile)); slices.Contains(names, "seed.key") {
		t.Error("who opens or seals made a key file, which can open nothing")
	}
	seal(t, k, seedPlace, []byte("other secret")) // under a new key
	if _, err := k.Open(t.Context(), seedPlace, sealed); !errors.Is(err, keyring.ErrOtherKey) || errors.Is(err, keyring.ErrNotOpened) {
		t.Errorf("another key: %v", err)
	}
}

// The id of a key is what stands in all that is sealed under it, and says nothing of the
// key; making a key that is there changes nothing.
func TestFileKeeperKeyID(t *testing.T) {
	t.Parallel()
	disk := durabletest.NewDisk()
	k := fileKeeper(t, disk.FS())
	made, err := k.MakeKey(t.Context())
	if err != nil || !made {
		t.Fatalf("made %v, %v", made, err)
	}
	id, err := k.KeyID(t.Context(), seedPlace)
	if err != nil || !id.Valid() || len(id) != 16 {
		t.Fatalf("id %q, %v", id, err)
	}
	line, err := disk.FS().ReadFile(keyFile, 1<<10)
	if err != nil {
		t.Fatal(err)
	}
	key, err := base64.StdEncoding.DecodeString(strings.Fields(string(line))[1])
	if err != nil || strings.Contains(fmt.Sprintf("%x", key), string(id)) {
		t.Errorf("the id shows the key: %v", err)
	}
	data, err := keyring.SealSeed(t.Context(), k, seedPlace, keyring.NewSeed())
	if err != nil {
		t.Fatal(err)
	}
	if under, err := keyring.SealedUnder(data); under != id || err != nil {
		t.Errorf("sealed under %q, %v, want %q", under, err, id)
	}
	if made, err = k.MakeKey(t.Context()); err != nil || made {
		t.Errorf("made again: %v, %v", made, err)
	}
	if again, err := k.KeyID(t.Context(), seedPlace); again != id || err != nil {
		t.Errorf("the id became %q, %v", again, err)
	}
	for _, bad := range []keyring.KeyID{"", ".", "-a", "a/b", "a b", "ä", keyring.KeyID(strings.Repeat("a", keyring.MaxKeyIDBytes+1))} {
		if bad.Valid() {
			t.Errorf("%q passes as an id", bad)
		}
	}
}

// A secret that Seal returned opens after a power cut at any instant, whatever it cut.
func TestFileKeeperCreatesDurably(t *testing.T) {
	for _, after := range durabletest.Afters() {
		for n, ended := 1, false; !ended; n++ {
			disk := durabletest.NewDisk()
			disk.FailAt(n, durabletest.ErrPowerCut)
			sealed, err := sealFirst(t.Context(), fileKeeper(t, disk.FS()), seedPlace, []byte("secret"))
			ended = !disk.Failed()
			if (err == nil) != ended {
				t.Fatalf("%v at call %d: %v", after, n, err)
			}
			disk.Restart(after)
			if err == nil {
				if got, err := fileKeeper(t, disk.FS()).Open(t.Context(), seedPlace, sealed); err != nil || string(got) != "secret" {
					t.Errorf("%v: %q, %v", after, got, err)
				}
			}
			if sealed, err = sealFirst(t.Context(), fileKeeper(t, disk.FS()), seedPlace, []byte("again")); err != nil {
				t.Errorf("%v at call %d: the next start: %v", after, n, err)
			} else if got, err := fileKeeper(t, disk.FS()).Open(t.Context(), seedPlace, sealed); err != nil || string(got) != "again" {
				t.Errorf("%v at call %d: %q, %v", after, n, got, err)
			}
		}
		for _, fault := range []error{syscall.EIO, syscall.ENOSPC, syscall.EROFS} {
			disk := durabletest.NewDisk()
			disk.FailAt(3, fault)
			if _, err := sealFirst(t.Context(), fileKeeper(t, disk.FS()), seedPlace, nil); !errors.Is(err, fault) || !errors.Is(err, keyring.ErrKeyFile) {
				t.Errorf("%v: %v", fault, err)
			}
		}
	}
}

// Coordinators that share a key file and seal for the first time at once must not
// replace each other's key: what the loser sealed would never open again.
func TestFileKeeperFirstSealRace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := durabletest.NewDisk()
		var sealed [8][]byte
		var missed, g sync.WaitGroup
		missed.Add(len(sealed))
		for i := range sealed {
			g.Go(func() {
				var err error
				if sealed[i], err = sealFirst(t.Context(), fileKeeper(t, &allMiss{FS: disk.FS(), missed: &missed}), seedPlace, []byte{byte(i)}); err != nil {
					t.Error(err)
				}
			})
		}
		g.Wait()
		for i, s := range sealed {
			if got, err := fileKeeper(t, disk.FS()).Open(t.Context(), seedPlace, s); err != nil || !bytes.Equal(got, []byte{byte(i)}) {
				t.Errorf("%d: %v, %v", i, got, err)
			}
		}
	})
}

// allMiss holds everyone's first read back until all have found no file.
type allMiss struct {
	durable.FS
	missed *sync.WaitGroup
	once   sync.Once
}

func (f *allMiss) ReadSecret(name string, limit int64) ([]byte, error) {
	data, err := f.FS.ReadSecret(name, limit)
	f.once.Do(func() {
		f.missed.Done()
		f.missed.Wait()
	})
	return data, err
}

func TestFileKeeperLockHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := durabletest.NewDisk()
		if err := disk.FS().MkdirAll(filepath.Dir(keyFile)); err != nil {
			t.Fatal(err)
		}
		if _, err := disk.FS().Lock(keyFile + ".lock"); err != nil {
			t.Fatal(err)
		}
		_, err := sealFirst(t.Context(), fileKeeper(t, disk.FS()), seedPlace, nil)
		if !errors.Is(err, durable.ErrLocked) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := sealFirst(ctx, fileKeeper(t, disk.FS()), seedPlace, nil); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
}

func TestKeeperOf(t *testing.T) {
	for _, test := range []struct {
		owner  keyring.Owner
		want   error
		scheme string
	}{
		{keyring.Owner{Name: "kms", Keeper: "file:/etc/k"}, nil, ""},
		{keyring.Owner{Name: "alice", Recipient: "age1…"}, keyring.ErrNoKeeper, ""},
		{keyring.Owner{Name: "exec", Keeper: "exec:/usr/bin/unwrap"}, nil, ""},
		{keyring.Owner{Name: "cloud", Keeper: "awskms:arn"}, keyring.ErrNoKeeper, "awskms"},
	} {
		k, err := keyring.KeeperOf(test.owner, durabletest.NewDisk().FS())
		if !errors.Is(err, test.want) || (k == nil) != (err != nil) {
			t.Errorf("%v: %v", test.owner, err)
		}
		var none *keyring.NoKeeperError
		if errors.As(err, &none) && (none.Owner != test.owner.Name || none.Scheme != test.scheme || !strings.Contains(err.Error(), test.owner.Name)) {
			t.Errorf("%v: %v", test.owner, err)
		}
	}
	for _, bad := range []string{"file:", "file:seed.key", "file:./seed.key", "file:/etc/../seed.key", "file:/", "file:/etc/", "exec:", "exec:unwrap", "exec:/usr/bin/../unwrap"} {
		if _, err := keyring.KeeperOf(keyring.Owner{Name: "kms", Keeper: bad}, nil); err == nil || errors.Is(err, keyring.ErrNoKeeper) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// meshCA returns a key and a certificate of it.
func meshCA(t testing.TB) (*ecdsa.PrivateKey, []byte) {
	ca := pkitest.NewAuthority(t, "prod.example").MeshCA()
	return ca.Key, ca.Cert.Raw
}

func TestSealSeed(t *testing.T) {
	k := keyedKeeper(t)
	seed := keyring.NewSeed()
	place := keyring.Place{Cluster: "prod.example", Owner: "kms", SeedEpoch: 3}
	data, err := keyring.SealSeed(t.Context(), k, place, seed)
	if err != nil {
		t.Fatal(err)
	}
	got, err := keyring.OpenSeed(t.Context(), k, place, data)
	if err != nil || !got.Equal(seed) {
		t.Fatalf("got %v, %v", got, err)
	}
	for field, elsewhere := range map[string]func(*keyring.Place){
		"cluster":    func(p *keyring.Place) { p.Cluster = "other.example" },
		"owner":      func(p *keyring.Place) { p.Owner = "bob" },
		"seed_epoch": func(p *keyring.Place) { p.SeedEpoch = 4 },
	} {
		other := place
		elsewhere(&other)
		_, err := keyring.OpenSeed(t.Context(), k, other, data)
		var place *keyring.PlaceError
		if !errors.As(err, &place) || place.Field != field || !errors.Is(err, keyring.ErrOtherPlace) || errors.Is(err, keyring.ErrOtherHead) {
			t.Errorf("%s differs: %v", field, err)
		}
	}
	if _, err := keyring.SealSeed(t.Context(), k, place, keyring.Seed{}); !errors.Is(err, keyring.ErrNoSeed) {
		t.Errorf("no seed: %v", err)
	}
	if _, err := keyring.SealSeed(t.Context(), k, keyring.Place{}, seed); err == nil {
		t.Error("sealed for nowhere")
	}
	// A mesh CA is not taken for a seed, even where all else agrees.
	key, cert := meshCA(t)
	mesh := place
	mesh.Head = [32]byte{9}
	sealedMesh, err := keyring.SealMesh(t.Context(), k, mesh, key, cert)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := keyring.OpenSeed(t.Context(), k, place, sealedMesh); !errors.Is(err, keyring.ErrOtherPlace) {
		t.Errorf("a mesh CA as a seed: %v", err)
	}
}

func TestSealMesh(t *testing.T) {
	k := keyedKeeper(t)
	key, cert := meshCA(t)
	place := keyring.Place{Cluster: "prod.example", Owner: "kms", SeedEpoch: 3, Head: [32]byte{7, 7}}
	inUse, err := key.Bytes() // what it signs with
	if err != nil {
		t.Fatal(err)
	}
	before := bytes.Clone(inUse)
	data, err := keyring.SealMesh(t.Context(), k, place, key, cert)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(inUse, before) {
		t.Error("the key in use was overwritten")
	}
	gotKey, gotCert, err := keyring.OpenMesh(t.Context(), k, place, data)
	if err != nil || !gotKey.Equal(key) || !bytes.Equal(gotCert, cert) {
		t.Fatal(err)
	}

	moved := place
	moved.Head = [32]byte{8}
	_, _, err = keyring.OpenMesh(t.Context(), k, moved, data)
	var differs *keyring.PlaceError
	if !errors.As(err, &differs) || differs.Field != "head" || !errors.Is(err, keyring.ErrOtherHead) ||
		!strings.Contains(err.Error(), fmt.Sprintf("%x", place.Head)) || !strings.Contains(err.Error(), fmt.Sprintf("%x", moved.Head)) {
		t.Errorf("another head: %v", err)
	}
	// Relabelled for the new head it passes the labels, and does not open.
	forged := bytes.Replace(data, fmt.Appendf(nil, "%x", place.Head), fmt.Appendf(nil, "%x", moved.Head), 1)
	if _, _, err := keyring.OpenMesh(t.Context(), k, moved, forged); !errors.Is(err, keyring.ErrNotOpened) {
		t.Errorf("relabelled: %v", err)
	}

	_, otherCert := meshCA(t)
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, seal := range map[string]func() ([]byte, error){
		"another's certificate": func() ([]byte, error) { return keyring.SealMesh(t.Context(), k, place, key, otherCert) },
		"no certificate":        func() ([]byte, error) { return keyring.SealMesh(t.Context(), k, place, key, nil) },
		"no key":                func() ([]byte, error) { return keyring.SealMesh(t.Context(), k, place, nil, cert) },
		"P-384":                 func() ([]byte, error) { return keyring.SealMesh(t.Context(), k, place, p384, cert) },
		"no head":               func() ([]byte, error) { return keyring.SealMesh(t.Context(), k, seedPlace, key, cert) },
	} {
		if _, err := seal(); err == nil {
			t.Errorf("%s: sealed", name)
		}
	}
}

// TestSealedPayloads has the keeper vouch for payloads that no Seal made: whoever
// has the key file but is wrong must not make us panic or adopt.
func TestSealedPayloads(t *testing.T) {
	k := keyedKeeper(t)
	key, cert := meshCA(t)
	_, otherCert := meshCA(t)
	scalar, err := key.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	record := func(place keyring.Place, plaintext []byte) []byte {
		data, err := json.Marshal(map[string]any{
			"version": 1, "purpose": place.Purpose, "cluster": place.Cluster, "owner": place.Owner,
			"seed_epoch": fmt.Sprint(place.SeedEpoch), "head": map[bool]string{true: fmt.Sprintf("%x", place.Head)}[place.Head != [32]byte{}],
			"sealed": seal(t, k, place, plaintext),
		})
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	mesh := func(parts ...[]byte) []byte { return slices.Concat(parts...) }
	if _, _, err := keyring.OpenMesh(t.Context(), k, meshPlace, record(meshPlace, mesh([]byte{32}, scalar, cert))); err != nil {
		t.Fatalf("the good one: %v", err)
	}
	for name, plaintext := range map[string][]byte{
		"empty":               {},
		"no key":              {32},
		"short key":           mesh([]byte{31}, scalar[:31], cert),
		"zero key":            mesh([]byte{32}, make([]byte, 32), cert),
		"key above the order": mesh([]byte{32}, bytes.Repeat([]byte{0xff}, 32), cert),
		"no certificate":      mesh([]byte{32}, scalar),
		"garbage certificate": mesh([]byte{32}, scalar, []byte("garbage")),
		"other certificate":   mesh([]byte{32}, scalar, otherCert),
	} {
		if _, _, err := keyring.OpenMesh(t.Context(), k, meshPlace, record(meshPlace, plaintext)); !errors.Is(err, keyring.ErrMalformed) {
			t.Errorf("mesh CA, %s: %v", name, err)
		}
	}
	for name, plaintext := range map[string][]byte{"empty": {}, "short": make([]byte, 31), "zeros": make([]byte, 32), "long": bytes.Repeat([]byte{1}, 33)} {
		if _, err := keyring.OpenSeed(t.Context(), k, seedPlace, record(seedPlace, plaintext)); !errors.Is(err, keyring.ErrMalformed) {
			t.Errorf("seed, %s: %v", name, err)
		}
	}
}

func TestSealedRecordsAreStrict(t *testing.T) {
	k := keyedKeeper(t)
	data, err := keyring.SealSeed(t.Context(), k, seedPlace, keyring.NewSeed())
	if err != nil {
		t.Fatal(err)
	}
	edit := func(old, new string) []byte {
		if !bytes.Contains(data, []byte(old)) {
			t.Fatalf("%s has no %s", data, old)
		}
		return bytes.Replace(data, []byte(old), []byte(new), 1)
	}
	for name, bad := range map[string][]byte{
		"nothing":          nil,
		"no JSON":          []byte("garbage"),
		"no object":        []byte("[]"),
		"empty object":     []byte("{}"),
		"trailing data":    append(slices.Clone(data), data...),
		"newer version":    edit(`"version":1`, `"version":2`),
		"unknown member":   edit(`"version":1`, `"version":1,"more":1`),
		"duplicate member": edit(`"version":1`, `"version":1,"version":1`),
		"other case":       edit(`"owner"`, `"Owner"`),
		"number epoch":     edit(`"seed_epoch":"1"`, `"seed_epoch":1`),
		"negative epoch":   edit(`"seed_epoch":"1"`, `"seed_epoch":"-1"`),
		"long owner":       edit(`"owner":"kms"`, `"owner":"`+strings.Repeat("k", 300)+`"`),
		"large":            append(slices.Clone(data), bytes.Repeat([]byte(" "), keyring.MaxSealedBytes)...),
	} {
		if _, err := keyring.OpenSeed(t.Context(), k, seedPlace, bad); !errors.Is(err, keyring.ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzOpenSealed(f *testing.F) {
	k := keyedKeeper(f)
	data, err := keyring.SealSeed(f.Context(), k, seedPlace, keyring.NewSeed())
	if err != nil {
		f.Fatal(err)
	}
	key, cert := meshCA(f)
	mesh, err := keyring.SealMesh(f.Context(), k, meshPlace, key, cert)
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range [][]byte{data, mesh, []byte("{}"), []byte(`{"version":1}`), nil} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		_, err := keyring.OpenSeed(t.Context(), k, seedPlace, in)
		known := errors.Is(err, keyring.ErrMalformed) || errors.Is(err, keyring.ErrOtherPlace) || errors.Is(err, keyring.ErrNotOpened) || errors.Is(err, keyring.ErrOtherKey)
		if err == nil {
			// Only what was sealed opens, however it is spelled.
			var a, b struct{ Sealed []byte }
			if json.Unmarshal(in, &a) != nil || json.Unmarshal(data, &b) != nil || !bytes.Equal(a.Sealed, b.Sealed) {
				t.Errorf("opened %q", in)
			}
		} else if !known {
			t.Errorf("%q: an error of no kind: %v", in, err)
		}
		keyring.OpenMesh(t.Context(), k, meshPlace, in)
	})
}

// Examine finds what is wrong with a keeper, and neither makes a key nor runs a
// program.
func TestExamine(t *testing.T) {
	dir := t.TempDir()
	sub := func(name string, mode os.FileMode) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := errors.Join(os.Mkdir(path, 0o700), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	file := func(path, text string, mode os.FileMode) string {
		t.Helper()
		if err := errors.Join(os.WriteFile(path, []byte(text), 0o600), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	well, open := sub("well", 0o700), sub("open", 0o777)
	ran := filepath.Join(dir, "ran")
	script := "#!/bin/sh\ntouch " + ran + "\n"
	for _, tc := range []struct {
		name, keeper string
		want         error
	}{
		{"a key file yet to be made", "file:" + well + "/seed.key", nil},
		{"a key file that others read", "file:" + file(well+"/exposed.key", "x", 0o644), keyring.ErrKeyFile},
		{"a key file with something else", "file:" + file(well+"/other.key", "x", 0o600), keyring.ErrKeyFile},
		{"a folder that is not there", "file:" + dir + "/no/seed.key", fs.ErrNotExist},
		{"a folder that is a file", "file:" + file(dir+"/f", "", 0o600) + "/seed.key", keyring.ErrKeyFile},
		{"a folder that everybody writes", "file:" + open + "/seed.key", keyring.ErrExposedFolder},
		{"a program", "exec:" + file(well+"/p", script, 0o755), nil},
		{"a program that is not there", "exec:" + well + "/nothing", keyring.ErrKeeperProgram},
		{"no program", "exec:" + file(well+"/q", script, 0o600), keyring.ErrKeeperProgram},
		{"a program that everybody writes", "exec:" + file(well+"/w", script, 0o777), keyring.ErrKeeperProgram},
		{"a program in a folder that everybody writes", "exec:" + file(open+"/p", script, 0o755), keyring.ErrKeeperProgram},
		{"another scheme", "cloud:/x", keyring.ErrNoKeeper},
	} {
		err := keyring.Examine(keyring.Owner{Name: "host", Keeper: tc.keeper})
		if !errors.Is(err, tc.want) || tc.want != keyring.ErrExposedFolder && errors.Is(err, keyring.ErrExposedFolder) {
			t.Errorf("%s: %v, want %v", tc.name, err, tc.want)
		}
	}
	if err := keyring.Examine(keyring.Owner{Name: "host", Keeper: "file:seed.key"}); err == nil {
		t.Error("a relative path was not refused")
	}
	for _, path := range []string{ran, well + "/seed.key", well + "/seed.key.lock", open + "/seed.key"} {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s was made: %v", path, err)
		}
	}
}
