package agent

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/enroll"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/mesh"
)

const loginDir = "/home/alice/.config/fealty"

func (n *node) login(p enroll.Proof, kind identity.Kind) (enroll.Result, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return enroll.Login(ctx, enroll.LoginConfig{Dir: loginDir, Proof: p, Kind: kind, FS: n.disk.FS(), Now: n.f.clock, Log: quiet(), Dial: n.f.dial})
}

func (n *node) loadLogin() (enroll.LoginIdentity, error) {
	return enroll.LoadLogin(n.disk.FS(), loginDir, n.f.clock)
}

func TestLogin(t *testing.T) {
	f := newFleet(t)
	n := newNode(f)
	if _, err := n.loadLogin(); !errors.Is(err, explain.LoginNeeded) {
		t.Fatalf("without a login: %v", err)
	}
	r, err := n.login(enroll.ByToken(f.token()), identity.Admin)
	f.must(err)
	got, err := n.loadLogin()
	f.must(err)
	if got.ID != r.ID || r.ID.Kind() != identity.Admin || !slices.Equal(got.Addresses, []string{coordinator}) || !got.NotAfter.Equal(r.NotAfter) || r.Autonomy != 0 {
		t.Errorf("logged in as %+v, loaded %+v", r, got)
	}
	// It works: a coordinator knows who calls, and that a session does not renew.
	conn, err := mesh.Dial(enroll.Target(got.Addresses[0]), got.Source, credential.AnyOfKind(identity.Coordinator), mesh.Options{Dialer: f.dial, Now: f.clock})
	f.must(err)
	defer conn.Close()
	key, err := dir.NewKeyPair()
	f.must(err)
	_, err = fealtyv1.NewAdmissionServiceClient(conn).Renew(t.Context(), &fealtyv1.RenewRequest{Name: r.ID.Name(), Csr: mustCSR(t, key)})
	if !errors.Is(explain.Of(err), explain.Denied) {
		t.Fatalf("renewal of a session: %v", err)
	}

	// A failed login leaves the old one; a good one replaces it.
	f.do(func() { f.refuseJoin = explain.New(explain.TokenSpent) })
	if _, err := n.login(enroll.ByToken(f.token()), identity.Admin); !errors.Is(err, explain.TokenSpent) {
		t.Fatal(err)
	}
	if again, err := n.loadLogin(); err != nil || again.ID != r.ID {
		t.Errorf("after a failed login: %v, %v", again.ID, err)
	}
	f.do(func() { f.refuseJoin = nil })
	second, err := n.login(enroll.ByToken(f.token()), "")
	f.must(err)
	if again, err := n.loadLogin(); err != nil || again.ID != second.ID || second.ID.Kind() != identity.Readonly {
		t.Errorf("after another login: %v, %v", again.ID, err)
	}
	if _, err := n.login(enroll.ByToken(f.token()), identity.Data); !errors.Is(err, explain.BadValue) {
		t.Errorf("a node logs in: %v", err)
	}
}

func TestLoginRepeatsItsKey(t *testing.T) {
	f := newFleet(t)
	n := newNode(f)
	token := enroll.ByToken(f.token())
	f.do(func() { f.loseJoins = 1 })
	if _, err := n.login(token, identity.Admin); err == nil {
		t.Fatal("logged in without an answer")
	}
	r, err := n.login(token, identity.Admin)
	if err != nil || r.Outcome != fealtyv1.JoinOutcome_JOIN_OUTCOME_ALREADY_MEMBER {
		t.Fatalf("%+v, %v", r, err)
	}
}

func TestLoginUnusable(t *testing.T) {
	f := newFleet(t)
	n := newNode(f)
	_, err := n.login(enroll.ByToken(f.token()), identity.Readonly)
	f.must(err)
	name := loginDir + "/" + enroll.LoginName
	data, err := n.disk.FS().ReadSecret(name, 1<<20)
	f.must(err)
	for i := 0; i < len(data); i += 7 {
		flipped := slices.Clone(data)
		flipped[i] ^= 1 << (i % 8)
		for what, damaged := range map[string][]byte{"cut": data[:i], "turned": flipped} {
			n.disk.Put(name, damaged)
			if _, err := n.loadLogin(); !errors.Is(err, explain.LoginNeeded) {
				t.Fatalf("%s at %d: %v", what, i, err)
			}
		}
	}
	n.disk.Put(name, data)
	n.disk.Chmod(name, 0o640)
	if _, err := n.loadLogin(); !errors.Is(err, explain.LoginNeeded) {
		t.Errorf("readable by others: %v", err)
	}
	n.disk.Put(name, data)
	n.disk.Chmod(name, 0o600)
	f.shift.Store(int64(30 * time.Hour))
	if _, err := n.loadLogin(); !errors.Is(err, explain.LoginNeeded) || !errors.Is(err, identity.ErrExpired) {
		t.Errorf("expired: %v", err)
	}
}
