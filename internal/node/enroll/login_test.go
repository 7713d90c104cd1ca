package enroll_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/enroll"
	"github.com/fealty-io/fealty/internal/node/nodetest"
	"github.com/fealty-io/fealty/internal/signed/signedtest"
	"github.com/fealty-io/fealty/mesh"
)

const loginDir = "/home/alice/.config/fealty"

func login(n *nodetest.Machine, p enroll.Proof, kind identity.Kind) (enroll.Result, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return enroll.Login(ctx, enroll.LoginConfig{Dir: loginDir, Proof: p, Kind: kind, FS: n.Disk.FS(), Now: n.Fleet.Clock, Log: nodetest.Quiet(), Dial: n.Fleet.Dial})
}

func loadLogin(n *nodetest.Machine) (enroll.LoginIdentity, error) {
	return enroll.LoadLogin(n.Disk.FS(), loginDir, n.Fleet.Clock)
}

func TestLogin(t *testing.T) {
	f := nodetest.New(t)
	n := nodetest.NewMachine(f)
	if _, err := loadLogin(n); !errors.Is(err, errcode.LoginNeeded) {
		t.Fatalf("without a login: %v", err)
	}
	r, err := login(n, enroll.ByToken(f.Token()), identity.Admin)
	f.Must(err)
	got, err := loadLogin(n)
	f.Must(err)
	if got.ID != r.ID || r.ID.Kind() != identity.Admin || !slices.Equal(got.Addresses, []string{signedtest.Coordinator}) || !got.NotAfter.Equal(r.NotAfter) || r.Autonomy != 0 {
		t.Errorf("logged in as %+v, loaded %+v", r, got)
	}
	// It works: a coordinator knows who calls, and that a session does not renew.
	conn, err := mesh.Dial(enroll.Target(got.Addresses[0]), got.Source, credential.AnyOfKind(identity.Coordinator), mesh.Options{Dialer: f.Dial, Now: f.Clock})
	f.Must(err)
	defer conn.Close()
	key, err := dir.NewKeyPair()
	f.Must(err)
	_, err = fealtyv1.NewAdmissionServiceClient(conn).Renew(t.Context(), &fealtyv1.RenewRequest{Name: r.ID.Name(), Csr: nodetest.CSR(t, key)})
	if !errors.Is(errcode.Of(err), errcode.Denied) {
		t.Fatalf("renewal of a session: %v", err)
	}

	// A failed login leaves the old one; a good one replaces it.
	f.Do(func() { f.Faults.RefuseJoin = errcode.New(errcode.TokenSpent) })
	if _, err := login(n, enroll.ByToken(f.Token()), identity.Admin); !errors.Is(err, errcode.TokenSpent) {
		t.Fatal(err)
	}
	if again, err := loadLogin(n); err != nil || again.ID != r.ID {
		t.Errorf("after a failed login: %v, %v", again.ID, err)
	}
	f.Do(func() { f.Faults.RefuseJoin = nil })
	second, err := login(n, enroll.ByToken(f.Token()), "")
	f.Must(err)
	if again, err := loadLogin(n); err != nil || again.ID != second.ID || second.ID.Kind() != identity.Readonly {
		t.Errorf("after another login: %v, %v", again.ID, err)
	}
	if _, err := login(n, enroll.ByToken(f.Token()), identity.Data); !errors.Is(err, errcode.BadValue) {
		t.Errorf("a node logs in: %v", err)
	}
}

func TestLoginRepeatsItsKey(t *testing.T) {
	f := nodetest.New(t)
	n := nodetest.NewMachine(f)
	token := enroll.ByToken(f.Token())
	f.Do(func() { f.Faults.LoseJoins = 1 })
	if _, err := login(n, token, identity.Admin); err == nil {
		t.Fatal("logged in without an answer")
	}
	r, err := login(n, token, identity.Admin)
	if err != nil || r.Outcome != fealtyv1.JoinOutcome_JOIN_OUTCOME_ALREADY_MEMBER {
		t.Fatalf("%+v, %v", r, err)
	}
}

func TestLoginUnusable(t *testing.T) {
	f := nodetest.New(t)
	n := nodetest.NewMachine(f)
	_, err := login(n, enroll.ByToken(f.Token()), identity.Readonly)
	f.Must(err)
	name := loginDir + "/" + enroll.LoginName
	data, err := n.Disk.FS().ReadSecret(name, 1<<20)
	f.Must(err)
	for i := 0; i < len(data); i += 7 {
		flipped := slices.Clone(data)
		flipped[i] ^= 1 << (i % 8)
		for what, damaged := range map[string][]byte{"cut": data[:i], "turned": flipped} {
			n.Disk.Put(name, damaged)
			if _, err := loadLogin(n); !errors.Is(err, errcode.LoginNeeded) {
				t.Fatalf("%s at %d: %v", what, i, err)
			}
		}
	}
	n.Disk.Put(name, data)
	n.Disk.Chmod(name, 0o640)
	if _, err := loadLogin(n); !errors.Is(err, errcode.LoginNeeded) {
		t.Errorf("readable by others: %v", err)
	}
	n.Disk.Put(name, data)
	n.Disk.Chmod(name, 0o600)
	f.Shift.Store(int64(30 * time.Hour))
	if _, err := loadLogin(n); !errors.Is(err, errcode.LoginNeeded) || !errors.Is(err, identity.ErrExpired) {
		t.Errorf("expired: %v", err)
	}
}
