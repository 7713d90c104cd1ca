package identitytest_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/identity/identitytest"
)

// exampleTB is the testing.TB that a test has, and an example has not.
type exampleTB struct{ testing.TB }

func (exampleTB) Helper()                   {}
func (exampleTB) Fatalf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }

// A test makes a member, and certificates that identify nobody: with two names, and with none.
func ExampleCA_Issue() {
	t := exampleTB{}
	ca := identitytest.NewCA(t, "prod.example")
	for _, uris := range [][]string{
		{"spiffe://prod.example/data/node-a"},
		{"spiffe://prod.example/data/node-a", "spiffe://prod.example/data/node-b"},
		nil,
	} {
		chain, key := ca.Issue(t, identitytest.Leaf{URIs: uris})
		m, err := credential.NewMaterial(credential.MaterialConfig{Chain: chain, Key: key, Bundle: ca.Bundle(t)})
		fmt.Println(err == nil, err == nil && m.ID().Kind() == identity.Data)
	}
	// Output:
	// true true
	// false false
	// false false
}

// The files are those that a program is started with, and that a renewal writes anew.
func ExampleCA_WriteFiles() {
	t := exampleTB{}
	dir, err := os.MkdirTemp("", "identitytest")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	ca := identitytest.NewCA(t, "prod.example")
	files := ca.WriteFiles(t, dir, identitytest.Leaf{URIs: []string{"spiffe://prod.example/provider/laptop"}})
	source, err := credential.NewFiles(credential.FilesConfig{
		Paths: credential.FilePaths{Cert: files.Cert, Key: files.Key, CA: files.CA}})
	if err != nil {
		fmt.Println(err)
		return
	}
	m, err := source.Current(context.Background())
	fmt.Println(m.ID(), err, ca.Root().IsCA)
	// Output:
	// spiffe://prod.example/provider/laptop <nil> true
}
