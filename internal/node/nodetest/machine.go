package nodetest

import (
	"context"
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/enroll"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
	"github.com/fealty-io/fealty/internal/signed/signedtest"
	"github.com/fealty-io/fealty/snapshot"
)

// Machine is a machine: its disk, and how it joins.
type Machine struct {
	Fleet *Fleet
	Disk  *durabletest.Disk
	Dir   string
}

// NewMachine returns one with an empty disk.
func NewMachine(f *Fleet) *Machine {
	return &Machine{Fleet: f, Disk: durabletest.NewDisk(), Dir: signedtest.DataDir}
}

// JoinConfig is how the machine joins by p.
func (h *Machine) JoinConfig(p enroll.Proof) enroll.JoinConfig {
	return enroll.JoinConfig{DataDir: h.Dir, Proof: p, FS: h.Disk.FS(), Now: h.Fleet.Clock, Log: Quiet(),
		Dial: h.Fleet.Dial}
}

// Join makes the machine a member.
func (h *Machine) Join(p enroll.Proof) (enroll.Result, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return enroll.Join(ctx, h.JoinConfig(p))
}

// MustJoin joins by a token of its own.
func (h *Machine) MustJoin() enroll.Result {
	h.Fleet.TB.Helper()
	r, err := h.Join(enroll.ByToken(h.Fleet.Token()))
	h.Fleet.Must(err)
	return r
}

// Files are all that a joined node has on disk.
var Files = []string{
	dir.SVIDName, dir.AnchorName, dir.MarksAName, dir.MarksBName,
	dir.SnapshotName(snapshot.ScopeTrustBundle, dir.Active), dir.SnapshotName(snapshot.ScopeNodeBootstrap, dir.Active),
}

// Clone returns another machine with a copy of h's files.
func (h *Machine) Clone() *Machine {
	h.Fleet.TB.Helper()
	c := NewMachine(h.Fleet)
	names := slices.Clone(Files)
	for _, scope := range state.Scopes {
		names = append(names, dir.SnapshotName(scope, dir.Active), dir.SnapshotName(scope, dir.Previous))
	}
	for _, name := range names {
		if h.Has(name) {
			c.Disk.Put(c.Path(name), h.Read(name))
		}
	}
	return c
}

// Path is where the file of a name is.
func (h *Machine) Path(name string) string { return h.Dir + "/" + name }

// Read returns a file.
func (h *Machine) Read(name string) []byte {
	h.Fleet.TB.Helper()
	data, err := h.Disk.FS().ReadFile(h.Path(name), 64<<20)
	h.Fleet.Must(err)
	return data
}

// Has reports whether there is a file.
func (h *Machine) Has(name string) bool {
	_, err := h.Disk.FS().ReadFile(h.Path(name), 64<<20)
	return err == nil
}

// Load reads what the machine has accepted, as an agent does that starts.
func (h *Machine) Load() (*state.Loaded, error) {
	if !state.Joined(h.Disk.FS(), h.Dir) {
		return nil, (&state.Store{FS: h.Disk.FS(), Dir: h.Dir}).NotJoined()
	}
	store, err := state.OpenStore(h.Disk.FS(), h.Dir)
	if err != nil {
		return nil, err
	}
	defer store.Close()
	l, err := store.Load(state.NewClock(h.Fleet.Clock, nil))
	if errors.Is(err, state.ErrNoMember) {
		return nil, store.NotJoined()
	}
	return l, err
}

// MustLoad is Load for a machine that is a member.
func (h *Machine) MustLoad() *state.Loaded {
	h.Fleet.TB.Helper()
	l, err := h.Load()
	h.Fleet.Must(err)
	return l
}

// VersionOf is the config version of what b has in use of scope; 0 for nothing.
func VersionOf(b *state.TrustState, scope snapshot.Scope) uint64 {
	if h := b.Active[scope]; h != nil {
		return h.Verified.Header().ConfigVersion
	}
	return 0
}

// TLSFiles are the three files of a machine with a certificate of the operator's PKI.
func TLSFiles(t testing.TB, pki *pkitest.PKI) (credential.FilePaths, func(commonName string)) {
	t.Helper()
	dir := t.TempDir()
	p := credential.FilePaths{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"),
		CA: filepath.Join(dir, "ca.crt")}
	return p, func(name string) {
		t.Helper()
		key := pkitest.NewKey(t)
		chain := pki.Issue(t, key, func(c *x509.Certificate) { c.Subject.CommonName = name })
		for path, data := range map[string][]byte{p.Cert: pkitest.PEM(chain...),
			p.Key: pkitest.KeyPEM(t, key), p.CA: pkitest.PEM(pki.Root.Cert)} {
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
}
