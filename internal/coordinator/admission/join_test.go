package admission_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"strings"
	"testing"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/admission"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/store"
)

// The seven cases of the authenticated cluster join, on a real seed: a founding
// cluster of two data members, and node-c that may join.

func TestJoinAdmitsAuthorizedDataMember(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	f.Member("node-a")
	f.Member("node-b")
	c := f.Member("node-c")
	if got := c.Grant.GetOutcome(); got != fealtyv1.JoinOutcome_JOIN_OUTCOME_ADMITTED {
		t.Fatalf("outcome %v, want ADMITTED", got)
	}
	v, err := c.VerifyGrant()
	if err != nil {
		t.Fatalf("the grant does not verify: %v", err)
	}
	boot, _ := v.NodeBootstrap()
	if len(boot.Members) != 3 {
		t.Fatalf("the grant shows %d members, want 3: %v", len(boot.Members), boot.Members)
	}
	st, err := f.Local().Status.GetStatus(f.Context(), &fealtyv1.GetStatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	// Members that joined are not members that are connected, and of those a coordinator
	// that just started says nothing yet.
	if b := st.GetBaseline(); b.GetDataMembers() != 3 || b.GetConnected() != 0 || b.GetUnknown() != 3 ||
		b.GetState() != "unknown" || b.GetMet() {
		t.Fatalf("baseline: %v", b)
	}
}

func TestJoinedMemberOwnsNothing(t *testing.T) {
	f := coordinatortest.ReadyFleet(t, nil)
	f.Member("node-c")
	resp, err := f.Local().Member.GetMember(f.Context(), &fealtyv1.GetMemberRequest{Kind: "data", Name: "node-c"})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(resp.GetMember().GetDomains()); n != 0 {
		t.Fatalf("a member that just joined owns %d domains, want none", n)
	}
}

func TestStrangerIsRefused(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	f.Member("node-a")
	before := f.Catalog()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	coordinatortest.WantCode(t, f.Node().Join(identity.Data, proof.NewKeyProver(key)), errcode.JoinUnauthorized)
	if after := f.Catalog(); after != before {
		t.Fatalf("the catalog changed:\n%s\nwas\n%s", after, before)
	}
}

func TestJoinOfAnotherClusterIsRefused(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	before := f.Catalog()
	n := f.Node()
	n.Cluster = "staging.example"
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	err = n.Join(identity.Data, proof.NewKeyProver(key))
	coordinatortest.WantCode(t, err, errcode.JoinWrongCluster)
	if after := f.Catalog(); after != before {
		t.Fatal("the catalog changed")
	}
}

func TestJoinAsAnotherKindIsRefused(t *testing.T) {
	f := coordinatortest.ReadyFleet(t, nil)
	before := f.Catalog()
	tok := f.Token(&fealtyv1.CreateTokenRequest{Entry: "pool", Name: "node-c"})
	coordinatortest.WantCode(t, f.Node().Join(identity.Witness, proof.NewTokenProver(tok)), errcode.JoinKindMismatch)
	if after := f.Catalog(); after != before {
		t.Fatal("the catalog changed")
	}
	// The refusal used nothing up.
	if err := f.Node().Join(identity.Data, proof.NewTokenProver(tok)); err != nil {
		t.Fatalf("the token was used up by a refusal: %v", err)
	}
}

func TestRejoinIsIdempotent(t *testing.T) {
	f := coordinatortest.ReadyFleet(t, nil)
	n := f.Member("node-c")
	if err := n.Join(identity.Data, proof.NewSVIDProver(identity.Data, "node-c", n.Key)); err != nil {
		t.Fatal(err)
	}
	if got := n.Grant.GetOutcome(); got != fealtyv1.JoinOutcome_JOIN_OUTCOME_ALREADY_MEMBER {
		t.Fatalf("outcome %v, want ALREADY_MEMBER", got)
	}
	if n := f.C.Parts().Membership.Roster().Count(identity.Data); n != 1 {
		t.Fatalf("%d members, want 1", n)
	}
}

// Autodetect ranges over members only: what a node learns of the others is the
// membership, before and after a join.
func TestOnlyMembersAreSeen(t *testing.T) {
	f := coordinatortest.ReadyFleet(t, nil)
	a := f.Member("node-a")
	seen := func(n *coordinatortest.Node) map[string]bool {
		v, err := n.VerifyGrant()
		if err != nil {
			t.Fatal(err)
		}
		boot, _ := v.NodeBootstrap()
		out := make(map[string]bool)
		for _, m := range boot.Members {
			out[m.ID.Name()] = true
		}
		return out
	}
	if got := seen(a); got["node-c"] || len(got) != 1 {
		t.Fatalf("before its join node-c is seen: %v", got)
	}
	c := f.Member("node-c")
	if got := seen(c); !got["node-a"] || !got["node-c"] || got["stranger"] || len(got) != 2 {
		t.Fatalf("after the join of node-c %v is seen", got)
	}
}

func TestRenewBanAndRestart(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	n := f.Member("node-a")
	if err := n.Renew(true); err != nil {
		t.Fatal(err)
	}
	epoch := f.State().Head.AuthorityEpoch
	f.Restart()
	if got := f.State().Head.AuthorityEpoch; got != epoch {
		t.Fatalf("epoch %d after a restart, want %d", got, epoch)
	}
	if err := n.Renew(true); err != nil {
		t.Fatal(err)
	}
	before := n.Bundle() // a banned node goes on with what it believed before
	if _, err := f.Local().Member.BanMember(f.Context(),
		&fealtyv1.BanMemberRequest{Kind: "data", Name: "node-a", Reason: "test"}); err != nil {
		t.Fatal(err)
	}
	n.Believes = before
	if err := n.Renew(true); err == nil {
		t.Fatal("a banned member was renewed")
	}
	coordinatortest.WantCode(t, n.Join(identity.Data, proof.NewSVIDProver(identity.Data, "node-a", n.Key)),
		errcode.JoinBanned)
	n.Key, _ = coordinatortest.NewKey()
	tok := f.Token(&fealtyv1.CreateTokenRequest{Entry: "pool", Name: "node-a"})
	coordinatortest.WantCode(t, n.Join(identity.Data, proof.NewTokenProver(tok)), errcode.JoinBanned)
}

// A member that calls itself what looks like a secret would be in nobody's snapshot,
// and would keep all from theirs: it is not admitted, and no token gives such a name.
// One that is there already holds up no other.
func TestNamesThatLookLikeSecrets(t *testing.T) {
	const name = "glpat-aaaaaaaaaaaaaaaaaaaaaa"
	d := coordinatortest.Tenants(t)
	_, err := coordinatortest.Served[fealtyv1.TokenServiceServer](d.C.Parts().Admission.RegisterServices).CreateToken(
		t.Context(),
		&fealtyv1.CreateTokenRequest{Entry: "acme", Name: name})
	coordinatortest.WantOnly(t, "token", err, errcode.TokenRequest)
	tok := d.Token(&fealtyv1.CreateTokenRequest{Entry: "acme", Name: "other"})
	rename := func(prefix, field, from, to string) {
		t.Helper()
		s, done := d.State(), false
		for key, e := range d.Store.Snapshot() {
			plain, err := s.Records.Open(key, e.Value)
			if !strings.HasPrefix(key, prefix) || err != nil || !bytes.Contains(plain, []byte(`"`+from+`"`)) {
				continue
			}
			plain = bytes.Replace(plain, []byte(`"`+field+`":"`+from+`"`), []byte(`"`+field+`":"`+to+`"`), 1)
			tx := store.Tx{Put: []store.Write{{Key: strings.TrimSuffix(key, from)}}}
			if tx.Put[0].Key += to; tx.Put[0].Key == key+to {
				tx.Put[0].Key = key
			}
			tx.Put[0].Value = s.Records.Auth.Seal(tx.Put[0].Key, plain)
			if _, err := d.Store.Commit(t.Context(), tx); err != nil {
				t.Fatal(err)
			}
			done = true
		}
		if !done {
			t.Fatalf("nothing below %s is called %s", prefix, from)
		}
	}
	rename(admission.TokenPrefix, "name", "other", name) // as an earlier release made it
	coordinatortest.WantOnly(t, "join", d.Machine().Join(identity.Data, proof.NewTokenProver(tok)),
		errcode.JoinUnauthorized)
	if _, ok := d.Store.Snapshot()[record.MemberKey(identity.Data, name)]; ok {
		t.Fatal("it is a member")
	}
	coordinatortest.JoinedAs(d, "acme", "earlier")
	rename(record.MemberPrefix, "name", "earlier", name)
	coordinatortest.FollowMembers(d, d.C)
	coordinatortest.JoinedAs(d, "acme", "later")
}

// Joins over one connection do not use up what its client may send, though one of them is under way at any time.
func TestManyJoinsOverOneConnection(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, func(c *coordinator.Config) { c.Gate.StrangerBytes = 8 << 10 })
	tok := f.Token(&fealtyv1.CreateTokenRequest{Entry: "pool", Uses: 100})
	conn := coordinatortest.Stranger(f)
	waiting, err := fealtyv1.NewAdmissionServiceClient(conn).Join(f.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := waiting.Recv(); err != nil { // its challenge, which it does not answer
		t.Fatal(err)
	}
	for i := range 30 {
		if err := f.Node().JoinOver(f.Context(), conn, identity.Data, proof.NewTokenProver(tok)); err != nil {
			t.Fatalf("join %d over the connection: %v", i+1, err)
		}
	}
}
