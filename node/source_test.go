package node_test

import (
	"bytes"
	"crypto/x509"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/mesh"
	"github.com/fealty-io/fealty/node"
	"github.com/fealty-io/fealty/test/logs"
	"github.com/fealty-io/fealty/test/wait"
)

// The source of a node keeps what every source keeps, with a real agent that renews.
func TestNodeIsASource(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	m := join(t, f, "node-a")
	conn, err := mesh.DialLocal(filepath.Join(m.Dir, dir.SocketName))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	svid := filepath.Join(m.Dir, filepath.FromSlash(dir.SVIDName))
	renew := func(t testing.TB) {
		wait.Until(t, "the agent renews", func() bool {
			_, err := fealtyv1.NewNodeServiceClient(conn).RenewIdentity(t.Context(), &fealtyv1.RenewIdentityRequest{})
			return err == nil
		})
	}
	pkitest.Run(t, func(t *testing.T) *pkitest.Subject {
		renew(t) // after what the case before left
		log := new(logs.Text)
		n, err := node.Open(m.Dir, node.Options{Now: f.Clock, Log: log.Logger(slog.LevelInfo)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { n.Close() })
		looks := true
		put := func(t testing.TB, text []byte) {
			if err := os.WriteFile(svid, text, 0o600); err != nil {
				t.Fatal(err)
			}
			n.Look()
		}
		read := func(t testing.TB) []byte {
			text, err := os.ReadFile(svid)
			if err != nil {
				t.Fatal(err)
			}
			return text
		}
		return &pkitest.Subject{
			Source: n.Source(), Failure: n.Failure, Log: log.String, Stop: func() { looks = false; n.Close() },
			Rotate: func(t testing.TB) *x509.Certificate {
				renew(t)
				other, err := node.Open(m.Dir, node.Options{Now: f.Clock, Log: quiet}) // that starts now
				if err != nil {
					t.Fatal(err)
				}
				defer other.Close()
				material, err := other.Source().Current(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if looks {
					n.Look() // rather than within five seconds
				}
				return material.Chain()[0]
			},
			Restate: func(t testing.TB) { put(t, read(t)) },
			Bad: []pkitest.Bad{
				{Name: "no file", Reason: credential.Unreadable, Put: func(t testing.TB) { os.Remove(svid); n.Look() }},
				{Name: "garbage", Reason: credential.Malformed, Put: func(t testing.TB) { put(t, []byte("no PEM at all")) }},
				{Name: "one that is cut short", Reason: credential.Malformed,
					Put: func(t testing.TB) { text := read(t); put(t, text[:len(text)/2]) }},
				{Name: "a key of another certificate", Reason: credential.KeyMismatch, Put: func(t testing.TB) {
					_, rest, _ := bytes.Cut(read(t), []byte("-----END PRIVATE KEY-----\n"))
					put(t, append(pkitest.KeyPEM(t, pkitest.NewKey(t)), rest...))
				}},
				{Name: "one of another cluster", Reason: credential.Untrusted, Put: func(t testing.TB) {
					a := pkitest.NewAuthority(t, n.ID().Cluster(), pkitest.WithClock(f.Clock))
					chain, key := a.Issue(t, a.ID(t, identity.Data, "node-a"))
					put(t, append(pkitest.KeyPEM(t, key), pkitest.PEM(chain...)...))
				}},
			},
		}
	})
}
