package coordinatortest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"filippo.io/age"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/keyring/recovery"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/mesh/pinned"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/mesh"
)

// People are owners with keys of their own.
type People struct {
	t     TB
	Names []string
	Keys  map[string]*age.X25519Identity
}

// NewPeople returns owners of these names with new keys.
func NewPeople(t TB, names ...string) *People {
	t.Helper()
	p := &People{t: t, Names: names, Keys: make(map[string]*age.X25519Identity)}
	for _, n := range names {
		key, err := age.GenerateX25519Identity()
		if err != nil {
			t.Fatal(err)
		}
		p.Keys[n] = key
	}
	return p
}

// Seed returns the seed section of a manifest: these people with a threshold, and
// a keeper if one is named.
func (p *People) Seed(threshold int, keeper string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed:\n  threshold: %d\n  owners:\n", threshold)
	if keeper != "" {
		fmt.Fprintf(&b, "    - {name: host, keeper: %q}\n", keeper)
	}
	for _, n := range p.Names {
		fmt.Fprintf(&b, "    - {name: %s, recipient: %s}\n", n, p.Keys[n].Recipient())
	}
	return b.String()
}

// WithSeed returns the manifest m with another seed section.
func WithSeed(m []byte, seed string) []byte {
	before, rest, _ := strings.Cut(string(m), "seed:\n")
	_, after, _ := strings.Cut(rest, "signers:\n")
	return []byte(before + seed + "signers:\n" + after)
}

// ShareFile opens the newest share file of a person that the store holds.
func (p *People) ShareFile(st store.Store, name string) keyring.ShareFile {
	p.t.Helper()
	l, err := st.List(context.Background(), "seed/share/")
	if err != nil {
		p.t.Fatal(err)
	}
	var newest store.Entry
	for _, e := range l.Entries {
		if strings.HasSuffix(e.Key, "/"+name) && e.Version > newest.Version {
			newest = e
		}
	}
	file, err := keyring.OpenShare([]age.Identity{p.Keys[name]}, newest.Value)
	if err != nil {
		p.t.Fatalf("the share file of %s: %v", name, err)
	}
	return file
}

// Bring brings a share to the fleet's coordinator, as an owner's tool does.
func (f *Fleet) Bring(file keyring.ShareFile, opts recovery.Options) (recovery.Progress, error) {
	f.T.Helper()
	return BringTo(f.T, f.Addr, file, opts)
}

// BringTo brings a share to the coordinator at addr, as an owner's tool does.
func BringTo(t TB, addr string, file keyring.ShareFile, opts recovery.Options) (recovery.Progress, error) {
	t.Helper()
	conn, err := mesh.DialPinned(addr, pinned.Unproven(), mesh.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return recovery.Bring(ctx, conn, file, opts)
}

// BringRaw sends what alter makes of the request of a careless tool that verifies
// nothing.
func (f *Fleet) BringRaw(file keyring.ShareFile,
	alter func(*fealtyv1.RecoveryOffer, *fealtyv1.RecoverRequest)) (*fealtyv1.RecoveryProgress, error) {
	f.T.Helper()
	conn, err := mesh.DialPinned(f.Addr, pinned.Unproven(), mesh.Options{})
	if err != nil {
		f.T.Fatal(err)
	}
	defer conn.Close()
	stream, err := fealtyv1.NewRecoveryServiceClient(conn).Recover(f.Context())
	if err != nil {
		return nil, err
	}
	first, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	for {
		page, err := stream.Recv()
		if err != nil {
			return nil, err
		}
		if len(page.GetHistory().GetHead()) > 0 {
			break
		}
	}
	offer := first.GetOffer()
	req := &fealtyv1.RecoverRequest{Attempt: offer.GetAttempt(), Owner: file.Owner,
		Share: SentShare(f.T, offer.GetRecipient(), offer.GetAttempt(), file.Cluster, file.Owner, file.Share)}
	if alter != nil {
		alter(offer, req)
	}
	if err := stream.Send(req); err != nil {
		return nil, err
	}
	answer, err := stream.Recv()
	return answer.GetProgress(), err
}

// SentShare seals a share to the recipient of an attempt.
func SentShare(t TB, recipient string, attempt []byte, cluster, owner string, share keyring.Share) []byte {
	t.Helper()
	sent, err := keyring.SendShare(recipient,
		keyring.Attempt{ID: recovery.ID(attempt).String(), Cluster: cluster, Owner: owner}, share)
	if err != nil {
		t.Fatal(err)
	}
	return sent
}

// OwnedDesk returns a desk whose seed people hold, 2 of 3, beside a keeper if one
// is named.
func OwnedDesk(t TB, keeper string) (*Desk, *People) {
	t.Helper()
	d, p := NewDesk(t), NewPeople(t, "alice", "bob", "carol")
	d.Seed = p.Seed(2, keeper)
	if err := d.Set(PoolEntries); err != nil {
		t.Fatalf("first set: %v", err)
	}
	return d, p
}

// NewOwnedFleet starts a coordinator whose seed is held by three people, two of whom
// it takes, and by a keeper.
func NewOwnedFleet(t testing.TB, config func(*coordinator.Config)) (*Fleet, *People) {
	t.Helper()
	f, p := NewFleet(t, config), NewPeople(t, "alice", "bob", "carol")
	if err := f.Set(WithSeed(f.Manifest(""), p.Seed(2,
		"file:"+filepath.Join(f.Dir, "keeper.key")))); err != nil {
		t.Fatalf("first set: %v", err)
	}
	return f, p
}

// LoseKeeper restarts the coordinator without its keeper's file.
func LoseKeeper(f *Fleet) {
	f.T.Helper()
	f.Stop()
	if err := os.Remove(filepath.Join(f.Dir, "keeper.key")); err != nil {
		f.T.Fatal(err)
	}
	f.Start()
	if phase, why := f.C.Phase(); phase != "recovery" || !strings.Contains(why, "keeper.key is missing") {
		f.T.Fatalf("phase %s (%s), want recovery for want of the keeper", phase, why)
	}
}

// BringBoth brings two shares until the coordinator is ready, as owners do who try
// again.
func BringBoth(t testing.TB, d *Desk, files ...keyring.ShareFile) {
	t.Helper()
	for range 2 {
		for _, f := range files {
			if d.State().Phase == authority.Ready {
				return
			}
			if _, err := BringShare(d, f); err != nil && !errors.Is(err, errcode.RecoveryOver) &&
				!errors.Is(err, errcode.RecoveryNotNeeded) {
				t.Fatalf("the share of %s: %v", f.Owner, err)
			}
		}
	}
	WantPhase(d, "ready", "")
}

// BringShare brings a share to the desk's coordinator, past the network and the tool.
func BringShare(d *Desk, file keyring.ShareFile) (*fealtyv1.RecoveryProgress, error) {
	d.T.Helper()
	return BringAt(d.T, d.C, file)
}

// BringAt is [BringShare] at another coordinator of the desk.
func BringAt(t TB, c *coordinator.Coordinator, file keyring.ShareFile) (*fealtyv1.RecoveryProgress,
	error) {
	t.Helper()
	g, err := c.Parts().Secrets.OwnerRecovery.Open(context.Background())
	if err != nil {
		return nil, err
	}
	return c.Parts().Secrets.OwnerRecovery.Bring(context.Background(), &fealtyv1.RecoverRequest{
		Attempt: g.ID[:], Owner: file.Owner,
		Share: SentShare(t, g.Recipient(), g.ID[:], file.Cluster, file.Owner, file.Share),
	}, AnyOwner)
}

// AnyOwner has room for every owner that has proven itself.
func AnyOwner(string) error { return nil }

// SignedChange returns a request for a transition of kind, signed as one of signedAs.
func SignedChange(d *Desk, kind, signedAs history.Kind, m []byte) *fealtyv1.SetManifestRequest {
	d.T.Helper()
	parsed, err := manifest.Parse(m)
	if err != nil {
		d.T.Fatal(err)
	}
	head := d.State().Head.Hash
	return &fealtyv1.SetManifestRequest{Manifest: m, Reason: "test", Kind: string(kind), CurrentTransition: head[:],
		Signatures: SignedBy(d.T, history.StatementOf(signedAs, parsed.Hash(), head), d.Signer)}
}

// Reshare gives the seed other owners.
func Reshare(d *Desk, seed string) (*fealtyv1.SetManifestResponse, error) {
	d.T.Helper()
	was := d.Seed
	d.Seed = seed
	resp, err := d.C.Parts().Moves.Manifests.Set(d.T.(*testing.T).Context(),
		SignedChange(d, history.KindReshare, history.KindReshare, d.Manifest(d.Extra)), false)
	if err != nil {
		d.Seed = was
	}
	return resp, err
}
