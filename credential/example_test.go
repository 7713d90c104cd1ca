package credential_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
)

// exampleTB lets an example, which has no testing.TB, use identitytest.
type exampleTB struct{ testing.TB }

func (exampleTB) Helper()                   {}
func (exampleTB) Fatal(args ...any)         { panic(fmt.Sprint(args...)) }
func (exampleTB) Fatalf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }

// A source keeps what is good: material of somebody else does not take its place.
func ExampleIssued() {
	tb := exampleTB{}
	authority := pkitest.NewAuthority(tb, "prod.example")
	issue := func(name string) (*credential.Material, error) {
		chain, key := authority.Issue(tb, authority.ID(tb, identity.Data, name))
		return credential.NewMaterial(credential.MaterialConfig{Chain: chain, Key: key, Bundle: authority.Bundle()})
	}
	m, err := issue("node-a")
	if err != nil {
		fmt.Println(err)
		return
	}
	source := credential.NewIssued(m)

	other, err := issue("node-b")
	if err != nil {
		fmt.Println(err)
		return
	}
	refused, _ := errors.AsType[*credential.MaterialError](source.Adopt(other))
	fmt.Println(refused.Reason, refused.Reason == credential.OtherIdentity)

	if m, err = source.Current(context.Background()); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(m.ID())
	// Output:
	// OtherIdentity true
	// spiffe://prod.example/data/node-a
}

// A client says whom it expects before it dials; one that expects nobody gets no
// configuration.
func ExampleClientTLS() {
	tb := exampleTB{}
	authority := pkitest.NewAuthority(tb, "prod.example")
	chain, key := authority.Issue(tb, authority.ID(tb, identity.Data, "node-a"))
	m, err := credential.NewMaterial(credential.MaterialConfig{Chain: chain, Key: key, Bundle: authority.Bundle()})
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = credential.ClientTLS(credential.Static(m), credential.AnyOfKind(identity.Coordinator),
		credential.ClientOptions{})
	fmt.Println(err)
	_, err = credential.ClientTLS(credential.Static(m), credential.Expect{}, credential.ClientOptions{})
	fmt.Println(errors.Is(err, credential.ErrNoExpectation))
	// Output:
	// <nil>
	// true
}

// Files are followed as they are: while a new certificate stands beside the old key, the material
// of before stays in use and the source says why.
func ExampleFiles() {
	dir, err := os.MkdirTemp("", "tls")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	pki := pkitest.NewPKI(exampleTB{}, "corp", nil)
	put := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			panic(err)
		}
		return path
	}
	chain := func(key crypto.Signer) []byte {
		return pkitest.PEM(pki.Issue(exampleTB{}, key, sans("spiffe://corp.example/workload/billing"))...)
	}
	old, fresh := pkitest.NewKey(exampleTB{}), pkitest.NewKey(exampleTB{})
	files, err := credential.NewFiles(credential.FilesConfig{Log: slog.New(slog.DiscardHandler),
		Paths: credential.FilePaths{Cert: put("tls.crt", chain(old)),
			Key: put("tls.key", pkitest.KeyPEM(exampleTB{}, old)),
			CA:  put("ca.crt", pkitest.PEM(pki.Root.Cert))}})
	if err != nil {
		fmt.Println(err)
		return
	}
	show := func() {
		m, _ := files.Current(context.Background()) // it looks at the files, and never fails
		fmt.Println(m.ID(), "has the fresh key:", fresh.PublicKey.Equal(m.Key().Public()))
		if refused, ok := errors.AsType[*credential.MaterialError](files.Failure()); ok {
			fmt.Println("not in use:", refused.Reason, refused.Reason == credential.KeyMismatch)
		}
	}
	show()
	put("tls.crt", chain(fresh))
	show()
	put("tls.key", pkitest.KeyPEM(exampleTB{}, fresh))
	show()
	// Output:
	// spiffe://corp.example/workload/billing has the fresh key: false
	// spiffe://corp.example/workload/billing has the fresh key: false
	// not in use: KeyMismatch true
	// spiffe://corp.example/workload/billing has the fresh key: true
}

// A client may expect one of several, and says whom it met instead.
func ExampleAnyOf() {
	var ids []identity.ID
	for _, name := range []string{"eu-1", "eu-2", "us-1"} {
		id, err := identity.New("prod.example", identity.Shard, name)
		if err != nil {
			fmt.Println(err)
			return
		}
		ids = append(ids, id)
	}
	expect := credential.AnyOf(ids[:2]...)
	fmt.Println(expect.Check(ids[1]))
	err := expect.Check(ids[2]) // as it is found in the error of a handshake
	if other, ok := errors.AsType[*credential.MismatchError](err); ok {
		fmt.Println("met", other.Got.Name(), "in place of", other.Expected)
	}
	// Output:
	// <nil>
	// met us-1 in place of spiffe://prod.example/shard/eu-1 or spiffe://prod.example/shard/eu-2
}

// A process may start before it has an identity: its source is empty, and says when that changed.
func ExampleNewIssued() {
	source := credential.NewIssued(nil)
	changed := source.Changed() // taken before the source is asked
	_, err := source.Current(context.Background())
	fmt.Println(errors.Is(err, credential.ErrNoMaterial))

	tb := exampleTB{}
	authority := pkitest.NewAuthority(tb, "prod.example")
	chain, key := authority.Issue(tb, authority.ID(tb, identity.Data, "node-a"))
	go func() { // the join, which takes a while
		m, err := credential.NewMaterial(credential.MaterialConfig{Chain: chain, Key: key, Bundle: authority.Bundle()})
		if err == nil {
			err = source.Adopt(m)
		}
		if err != nil {
			panic(err)
		}
	}()
	<-changed
	m, err := source.Current(context.Background())
	fmt.Println(m.ID(), err)
	// Output:
	// true
	// spiffe://prod.example/data/node-a <nil>
}

// A server that has no identity yet serves with a certificate of its own making, and who is told the key on a trusted
// way knows it. Once it has its identity, the same source serves with that.
func ExampleNewEphemeral() {
	tb := exampleTB{}
	own, err := credential.NewEphemeral(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	source := credential.NewIssued(own) // for credential.ServerTLS
	fmt.Println("known by its key:", own.Pin() == identity.KeyOf(own.Chain()[0]))

	authority := pkitest.NewAuthority(tb, "prod.example")
	chain, key := authority.Issue(tb, authority.ID(tb, identity.Coordinator, "c1"))
	m, err := credential.NewMaterial(credential.MaterialConfig{Chain: chain, Key: key, Bundle: authority.Bundle()})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := source.Adopt(m); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(m.ID())
	// There is no way back.
	refused, _ := errors.AsType[*credential.MaterialError](source.Adopt(own))
	fmt.Println(refused.Reason)
	// Output:
	// known by its key: true
	// spiffe://prod.example/coordinator/c1
	// OtherIdentity
}

// Files that only prove a machine, to join with, need no SPIFFE id. Their key has to be one that a proof is made with.
func ExampleFilesConfig() {
	tb := exampleTB{}
	dir, err := os.MkdirTemp("", "tls")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	pki := pkitest.NewPKI(tb, "corp", nil)
	proof := func(curve elliptic.Curve) (*credential.Files, error) {
		key, err := ecdsa.GenerateKey(curve, rand.Reader)
		if err != nil {
			return nil, err
		}
		paths := credential.FilePaths{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"),
			CA: filepath.Join(dir, "ca.crt")}
		for path, content := range map[string][]byte{
			paths.Cert: pkitest.PEM(pki.Issue(tb, key, sans())...),
			paths.Key:  pkitest.KeyPEM(tb, key),
			paths.CA:   pkitest.PEM(pki.Root.Cert),
		} {
			if err := os.WriteFile(path, content, 0o600); err != nil {
				return nil, err
			}
		}
		return credential.NewFiles(credential.FilesConfig{Paths: paths, Proof: true, Log: slog.New(slog.DiscardHandler)})
	}
	files, err := proof(elliptic.P256())
	if err != nil {
		fmt.Println(err)
		return
	}
	m, _ := files.Current(context.Background()) // it never fails
	fmt.Println("an identity:", !m.ID().IsZero())

	_, err = proof(elliptic.P521())
	refused, _ := errors.AsType[*credential.MaterialError](err)
	fmt.Println(refused.Reason == credential.UnfitKey)
	// Output:
	// an identity: false
	// true
}
