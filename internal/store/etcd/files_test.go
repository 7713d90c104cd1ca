package etcd_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/internal/store/etcd"
)

// A file of the URL is read whole or refused before anything is dialled: one whose second certificate is damaged was
// taken for one of a single certificate. What people write around the blocks is no fault.
func TestFilesOfTheURL(t *testing.T) {
	p, key := pkitest.NewPKI(t, "corp", nil), pkitest.NewKey(t)
	root, leaf := string(pkitest.PEM(p.Root.Cert)), string(pkitest.PEM(p.Issue(t, key, nil)...))
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	ca := file("ca", "# our root\n"+root)
	cert, private := file("cert", leaf), file("key", string(pkitest.KeyPEM(t, key)))
	other := file("other", string(pkitest.KeyPEM(t, pkitest.NewKey(t))))
	for name, tc := range map[string]struct{ query, says string }{
		"fit":               {"ca=" + ca + "&cert=" + cert + "&key=" + private, ""},
		"a damaged CA":      {"ca=" + file("damaged", root+strings.Replace(root, "MII", "M!I", 1)), "line "},
		"a key as CA":       {"ca=" + file("secret", root+string(pkitest.KeyPEM(t, key))), "replace that key pair"},
		"a key of another":  {"ca=" + ca + "&cert=" + cert + "&key=" + other, "replace both together"},
		"no key in the key": {"ca=" + ca + "&cert=" + cert + "&key=" + cert, "it holds no private key"},
	} {
		_, err := etcd.Open(t.Context(), "etcd://127.0.0.1:1/x?"+tc.query, etcd.Options{})
		_, address := errors.AsType[*etcd.AddressError](err)
		if address != (tc.says != "") || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v, want %q", name, err, tc.says)
		}
	}
}
