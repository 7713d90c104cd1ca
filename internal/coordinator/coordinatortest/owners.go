package coordinatortest

import (
	"context"
	"fmt"
	"strings"
	"time"

	"filippo.io/age"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/recovery"
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
	conn, err := mesh.DialPinned(addr, credential.Unproven(), mesh.Options{})
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
	conn, err := mesh.DialPinned(f.Addr, credential.Unproven(), mesh.Options{})
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
