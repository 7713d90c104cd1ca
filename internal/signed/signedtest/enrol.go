package signedtest

import (
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/platform/durable"
)

// NewMember names a member of kind data, and makes the key that it enrols with.
func (a *Author) NewMember(name string) (*Member, dir.KeyPair) {
	a.TB.Helper()
	key, err := dir.NewKeyPair()
	a.Must(err)
	id, err := identity.New(Cluster, identity.Data, name)
	a.Must(err)
	return &Member{ID: id, Key: key.ID, Incarnation: key.ID}, key
}

// GrantTo is what a coordinator gives to m, whose certificate is over key.
func (a *Author) GrantTo(m *Member, key dir.KeyPair) *fealtyv1.JoinGrant {
	a.TB.Helper()
	return &fealtyv1.JoinGrant{
		Outcome:       fealtyv1.JoinOutcome_JOIN_OUTCOME_ADMITTED,
		Chain:         dir.RawChain(a.Issue(key.Signer().Public(), m.ID, a.SVIDTTL)),
		RootStatement: a.RootStatement(), TrustBundle: a.TrustBundle(), NodeBootstrap: a.Bootstrap(m),
	}
}

// Wants is what m asks for, with key, when it joins.
func (a *Author) Wants(m *Member, key dir.KeyPair) state.Wanted {
	return state.Wanted{Cluster: Cluster, Kind: m.ID.Kind(), Pin: identity.KeyOf(a.Root), Key: key}
}

// JournalOf is what a join of m with key writes down.
func (a *Author) JournalOf(m *Member, key dir.KeyPair) state.Journal {
	a.TB.Helper()
	got, err := state.VerifyGrant(a.GrantTo(m, key), a.Wants(m, key), a.Clock)
	a.Must(err)
	journal, err := got.Journal(a.Addresses(), a.Clock())
	a.Must(err)
	return journal
}

// Enrol makes a folder that of m, as a join does, with nobody asked.
func (a *Author) Enrol(files durable.FS, folder string, m *Member, key dir.KeyPair) {
	a.TB.Helper()
	store, err := state.OpenStore(files, folder)
	a.Must(err)
	a.Must(store.CommitJoin(a.JournalOf(m, key)))
	a.Must(store.Close())
}

// Ago is the time so long before now, as headers say times.
func (a *Author) Ago(d time.Duration) time.Time { return a.Clock().Add(-d).UTC().Truncate(time.Second) }
