package state_test

import (
	"errors"
	"testing"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
	"github.com/fealty-io/fealty/internal/signed/signedtest"
	"github.com/fealty-io/fealty/snapshot"
)

// machine is one that joined, its disk, and the authorities of its cluster. Nobody is asked over
// any network: a snapshot is what the author signs.
type machine struct {
	*signedtest.Author
	t      testing.TB
	member *signedtest.Member
	key    dir.KeyPair
	disk   *durabletest.Disk

	filled map[snapshot.Scope][]uint64 // by fill: the versions that were in use, the last one still
}

func newMachine(t testing.TB) *machine {
	t.Helper()
	return like(t, signedtest.New(t, []string{signedtest.Coordinator}))
}

// like is a machine that joined the cluster of author.
func like(t testing.TB, author *signedtest.Author) *machine {
	t.Helper()
	m := &machine{Author: author, t: t, disk: durabletest.NewDisk()}
	m.member, m.key = m.NewMember("node-a")
	m.Enrol(m.disk.FS(), signedtest.DataDir, m.member, m.key)
	return m
}

// open opens the folder; it is given back when the test ends, or the disk restarts.
func (m *machine) open() *state.Store {
	m.t.Helper()
	s, err := state.OpenStore(m.disk.FS(), signedtest.DataDir)
	m.Must(err)
	m.t.Cleanup(func() { _ = s.Close() })
	return s
}

// load reads the folder as an agent does that starts.
func (m *machine) load() (*state.Loaded, error) {
	m.t.Helper()
	s, err := state.OpenStore(m.disk.FS(), signedtest.DataDir)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	return s.Load(state.NewClock(m.Clock, nil))
}

func (m *machine) mustLoad() *state.Loaded {
	m.t.Helper()
	l, err := m.load()
	m.Must(err)
	return l
}

// path is where a file of the folder is.
func path(name string) string { return signedtest.DataDir + "/" + name }

func (m *machine) read(name string) []byte {
	m.t.Helper()
	data, err := m.disk.FS().ReadFile(path(name), 64<<20)
	m.Must(err)
	return data
}

func (m *machine) has(name string) bool {
	_, err := m.disk.FS().ReadFile(path(name), 64<<20)
	return err == nil
}

// signed is what came in a message.
func (m *machine) signed(came *fealtyv1.SignedSnapshot) *snapshot.Signed {
	m.t.Helper()
	s, err := snapshot.Unmarshal(came.GetEnvelope())
	m.Must(err)
	return s
}

// took returns b after came was accepted.
func (m *machine) took(me state.Self, b *state.TrustState, came *fealtyv1.SignedSnapshot) *state.TrustState {
	m.t.Helper()
	d, err := state.Decide(me, b, m.signed(came), m.Clock())
	m.Must(err)
	return d.After(b, came.GetEnvelope())
}

// nextEpoch returns b under the trust bundle of the next authority epoch.
func (m *machine) nextEpoch(me state.Self, b *state.TrustState) *state.TrustState {
	m.t.Helper()
	m.Epoch++
	m.Version++
	next := *b
	next.Links = m.Links()
	return m.took(me, &next, m.TrustBundle())
}

// keep puts came into use on disk, in the order of an agent.
func (m *machine) keep(s *state.Store, me state.Self, b *state.TrustState, came *fealtyv1.SignedSnapshot) *state.TrustState {
	m.t.Helper()
	d, err := state.Decide(me, b, m.signed(came), m.Clock())
	m.Must(err)
	scope := d.V.Header().ScopeType
	m.Must(s.Write(dir.SnapshotName(scope, dir.Pending), came.GetEnvelope()))
	m.Must(s.WriteLedger(d.Ledger))
	var old []byte
	if h := b.Active[scope]; h != nil {
		old = h.Raw
	}
	m.Must(s.Place(scope, came.GetEnvelope(), old))
	return d.After(b, came.GetEnvelope())
}

// versionOf is what b has in use of scope; 0 for nothing.
func versionOf(b *state.TrustState, scope snapshot.Scope) uint64 {
	if h := b.Active[scope]; h != nil {
		return h.Verified.Header().ConfigVersion
	}
	return 0
}

// reasonOf is why a snapshot was refused; "" for anything else.
func reasonOf(err error) string {
	if r, ok := errors.AsType[*snapshot.RejectedError](err); ok {
		return string(r.Reason)
	}
	if errors.Is(err, snapshot.ErrMalformed) {
		return "malformed"
	}
	return ""
}

// isAhead reports whether a refusal shows that the authority epoch moved on.
func isAhead(err error) bool {
	r, ok := errors.AsType[*snapshot.RejectedError](err)
	return ok && r.Ahead
}

// lockedLoad reads the folder that s has open.
func (m *machine) lockedLoad(s *state.Store) *state.Loaded {
	m.t.Helper()
	l, err := s.Load(state.NewClock(m.Clock, nil))
	m.Must(err)
	return l
}
