package coordinator_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"syscall"
	"testing"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/election"
	"github.com/fealty-io/fealty/internal/coordinator/finding"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/coordinator/storeguard"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
)

// wantWentBack checks that c says that its store went back wherever people look, and
// changes nothing.
func wantWentBack(d *coordinatortest.Desk, when string) {
	d.T.Helper()
	c := d.C
	if s := d.State(); s.Phase != authority.Ready {
		d.T.Fatalf("%s: it is %v, %s", when, s.Phase, s.Reason)
	}
	st, err := c.Parts().Shown.Status.GetStatus(context.Background(),
		&fealtyv1.GetStatusRequest{})
	if err != nil {
		d.T.Fatalf("%s: status: %v", when, err)
	}
	found, baseline := false, ""
	for _, f := range st.GetFindings() {
		found = found || f.GetCode() == string(errcode.StoreWentBack)
		if f.GetCode() == string(errcode.MemberBaseline) {
			baseline = f.GetRemedy()
		}
	}
	if !found || st.GetFindings()[0].GetSeverity() != finding.Critical || st.GetVerdict().GetState() != "unchangeable" {
		d.T.Errorf("%s: status is %v, and finds %v", when, st.GetVerdict(), st.GetFindings())
	}
	if baseline == "" || strings.Contains(baseline, "token create") || strings.Contains(baseline, "undrain") ||
		!strings.Contains(baseline, "store") {
		d.T.Errorf("%s: of the baseline it advises %q, and nobody can join now", when, baseline)
	}
	answered := httptest.NewRecorder()
	c.MetricsHandler(c.Cfg().Monitoring.Registry).ServeHTTP(answered, httptest.NewRequest(http.MethodGet,
		"/probe/readiness", nil))
	var a coordinator.ProbeAnswer
	if err := json.Unmarshal(answered.Body.Bytes(), &a); err != nil || a.Store != "went back" || !a.OK ||
		a.Changes != "refused" ||
		!strings.Contains(a.Reason, "the store went back") {
		d.T.Errorf("%s: readiness says %s", when, answered.Body)
	}
	if _, _, leads := c.Parts().Election.Leading(); leads {
		d.T.Errorf("%s: it leads", when)
	}
	_, err = coordinatortest.Served[fealtyv1.TokenServiceServer](c.Parts().Admission.RegisterServices).CreateToken(
		context.Background(),
		&fealtyv1.CreateTokenRequest{Entry: "pool"})
	if !errors.Is(err, errcode.StoreWentBack) {
		d.T.Errorf("%s: a token: %v", when, err)
	}
	if err := d.Set(d.Extra); !errors.Is(err, errcode.StoreWentBack) {
		d.T.Errorf("%s: a set: %v", when, err)
	}
}

// A dump of before a ban is put back, under the same head. The ban stays in force, nothing
// is changed and no bundle is signed, on the coordinators that run and on those that start
// on it; members are certified by what is known. A restore in place that the signers
// want is the way on, and a member that knows of the ban brings it back.
func TestStoreWentBack(t *testing.T) {
	d := coordinatortest.PoolDesk(t)
	stays, gone := d.Joined("a"), d.Joined("b")
	back := coordinatortest.CopyOf(d.Store)
	if err := coordinatortest.TryBan(d, gone.ID); err != nil {
		t.Fatal(err)
	}
	banned := d.C.Parts().Bundle.View()
	key := identity.KeyOf(gone.Leaf)
	d.C.Parts().StoreGuard.Keep(t.Context())
	back()

	// While it runs.
	if err := d.C.Parts().Bundle.Refresh(t.Context(), d.State(), true); !errors.Is(err, errcode.StoreWentBack) {
		t.Fatalf("the trust state of before: %v", err)
	}
	wantWentBack(d, "while it runs")
	if coordinatortest.ForgedRecords(d.C) != 0 {
		t.Error("it says that somebody altered a record")
	}
	was := d.Store.Snapshot()
	for _, when := range []string{"while it runs", "after a restart", "after another one"} {
		if !d.C.Parts().Bundle.Bans(gone.ID, key) || d.C.Parts().Bundle.View().Version != banned.Version {
			t.Errorf("%s: the ban is lifted, by bundle %d after %d", when, d.C.Parts().Bundle.View().Version,
				banned.Version)
		}
		if chain, err := recertify(stays); err != nil || len(chain) == 0 {
			t.Errorf("%s: a member is not certified again: %v", when, err)
		}
		if _, err := recertify(gone); err == nil {
			t.Errorf("%s: the banned member is certified", when)
		}
		d.Restart()
		wantWentBack(d, "after a restart")
	}
	for key, e := range d.Store.Snapshot() { // the desk itself makes who starts the leader
		guarded := !slices.ContainsFunc(coordinator.Unguarded, func(family string) bool {
			return strings.HasPrefix(key,
				family)
		})
		if guarded && key != election.TermKey && was[key].Version != e.Version {
			t.Errorf("somebody wrote %s", key)
		}
	}

	// Not by itself, whatever the store shows later.
	coordinatortest.WantOnly(t, "lift", d.Store.Lifter().Lift(t.Context(), d.Store.Revision()+1000), "")
	d.Restart()
	wantWentBack(d, "once its revisions are above")

	coordinatortest.RestoreInPlace(d, d.Store, d.Signer)
	d.Restart()
	if s := d.State(); s.Phase != authority.Ready || s.Head.Kind != history.KindRestore {
		t.Fatalf("after the restore it is %v at a %s: %s", s.Phase, s.Head.Kind, s.Reason)
	}
	if d.C.Parts().StoreGuard.Lost() != nil || d.C.Parts().Bundle.View().Version <= banned.Version {
		t.Errorf("after the restore: %v, bundle %d", d.C.Parts().StoreGuard.Lost(), d.C.Parts().Bundle.View().Version)
	}
	if n, err := d.C.Parts().Trust.TakePresented(t.Context(), banned.Signed); err != nil || n == 0 {
		t.Fatalf("what a member knows of bans: %d, %v", n, err)
	}
	if err := d.C.Parts().Bundle.Apply(t.Context()); err != nil || !d.C.Parts().Bundle.Bans(gone.ID, key) {
		t.Errorf("the ban is not in force: %v", err)
	}
	d.Joined("c")
	if err := coordinatortest.TryBan(d, stays.ID); err != nil {
		t.Error(err)
	}
	d.Restart()
	if s := d.State(); s.Phase != authority.Ready || d.C.Parts().StoreGuard.Lost() != nil ||
		!d.C.Parts().Bundle.Bans(gone.ID,
			key) || !d.C.Parts().Bundle.Bans(stays.ID, identity.KeyID{}) {
		t.Errorf("another start: %v, %v", s.Phase, d.C.Parts().StoreGuard.Lost())
	}
}

// recertify asks for the recorded key again.
func recertify(m *coordinatortest.Machine) ([][]byte, error) { return m.RenewWith(m.Leaf, m.Key) }

// Somebody who can write to the store puts back all of the trust state as it was before a
// ban, each record whole, in writes of their own: the ban stays in force, on the
// coordinator that runs and on one that starts.
func TestTrustPutBack(t *testing.T) {
	d := coordinatortest.PoolDesk(t)
	d.Joined("a")
	gone := d.Joined("b")
	before := d.Store.Snapshot()
	if err := coordinatortest.TryBan(d, gone.ID); err != nil {
		t.Fatal(err)
	}
	d.C.Parts().StoreGuard.Keep(t.Context())
	version := d.C.Parts().Bundle.View().Version
	for key := range d.Store.Snapshot() {
		if !strings.HasPrefix(key, bundle.Prefix) {
			continue
		}
		if e, ok := before[key]; ok {
			d.Store.Write(key, e.Value)
		} else {
			d.Store.Alter(key, func([]byte) []byte { return nil })
		}
	}
	for range 2 {
		_ = d.C.Parts().Bundle.Refresh(t.Context(), d.State(), true)
		wantWentBack(d, "with trust/* put back")
		if !d.C.Parts().Bundle.Bans(gone.ID, identity.KeyOf(gone.Leaf)) ||
			d.C.Parts().Bundle.View().Version != version {
			t.Fatal("the ban is lifted")
		}
		d.Restart()
	}
}

// A ban ends by an unban that names it: one of an older ban that is put back lifts
// nothing, also if somebody who has the key writes the trust state anew.
func TestBanWithoutUnban(t *testing.T) {
	for name, unban := range map[string]bool{"no unban": false, "an unban of an older ban": true} {
		t.Run(name, func(t *testing.T) {
			d := coordinatortest.PoolDesk(t)
			gone := d.Joined("b")
			if err := coordinatortest.TryBan(d, gone.ID); err != nil {
				t.Fatal(err)
			}
			if _, err := d.Members().UnbanMember(t.Context(),
				&fealtyv1.UnbanMemberRequest{Kind: "data", Name: "b"}); err != nil {
				t.Fatal(err)
			}
			if d.C.Parts().Bundle.Bans(gone.ID, identity.KeyID{}) || d.C.Parts().StoreGuard.Lost() != nil {
				t.Fatalf("a ban that a person lifted: %v", d.C.Parts().StoreGuard.Lost())
			}
			if err := coordinatortest.TryBan(d, gone.ID); err != nil {
				t.Fatal(err)
			}
			// As a coordinator writes it that does not know of the ban.
			s := d.State()
			in, err := d.C.Parts().Bundle.Read(t.Context(), s)
			if err != nil {
				t.Fatal(err)
			}
			ban, err := record.Get[record.Ban](t.Context(), s.Records, record.BanIDKey("data", "b"))
			if err != nil || ban.Value.Counter == 0 {
				t.Fatalf("the ban has counter %d, %v", ban.Value.Counter, err)
			}
			ch := s.Records.NewChange(s.HeadVersion)
			ch.Delete(record.BanIDKey("data", "b"), ban.Version)
			if !unban {
				ch.Drop(record.UnbanKey("data", "b"))
			}
			next := in.State.Value
			next.Change++
			left := in.With(bundle.Delta{Unban: []identity.ID{gone.ID}}, next)
			next.Bans = left.Sum()
			ch.Put(bundle.StateKey, in.State.Version, next)
			if _, err := ch.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			_ = d.C.Parts().Bundle.Refresh(t.Context(), s, true)
			wantWentBack(d, "after a ban went without an unban")
			if !d.C.Parts().Bundle.Bans(gone.ID, identity.KeyID{}) {
				t.Error("the ban is lifted")
			}
		})
	}
}

// A store that an earlier release wrote has no counters of bans and no unbans, and what
// that release saw of it stands nowhere: it is taken over without an alarm, and from then
// on it is watched.
func TestTakesOverStoreOfBefore(t *testing.T) {
	d := coordinatortest.PoolDesk(t)
	gone := d.Joined("b")
	if err := coordinatortest.TryBan(d, gone.ID); err != nil {
		t.Fatal(err)
	}
	s := d.State()
	in, err := d.C.Parts().Bundle.Read(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	ban, err := record.Get[record.Ban](t.Context(), s.Records, record.BanIDKey("data", "b"))
	if err != nil {
		t.Fatal(err)
	}
	ban.Value.Counter, in.State.Value.UnbansFrom = 0, 0
	in.State.Value.Change++
	ch := s.Records.NewChange(s.HeadVersion)
	ch.Put(record.BanIDKey("data", "b"), ban.Version, ban.Value)
	ch.Put(bundle.StateKey, in.State.Version, in.State.Value)
	if _, err := ch.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	coordinatortest.Forgets(d, storeguard.StoreSeenFile, storeguard.TrustSeenFile)
	back := coordinatortest.CopyOf(d.Store)
	if s := d.State(); s.Phase != authority.Ready || d.C.Parts().StoreGuard.Lost() != nil ||
		!d.C.Parts().Bundle.Bans(gone.ID,
			identity.KeyID{}) {
		t.Fatalf("it is %v, %v", s.Phase, d.C.Parts().StoreGuard.Lost())
	}
	if _, err := d.Members().UnbanMember(t.Context(),
		&fealtyv1.UnbanMemberRequest{Kind: "data", Name: "b"}); err != nil {
		t.Fatal(err)
	}
	if d.C.Parts().Bundle.Bans(gone.ID, identity.KeyID{}) || d.C.Parts().StoreGuard.Lost() != nil {
		t.Errorf("its ban cannot be lifted: %v", d.C.Parts().StoreGuard.Lost())
	}
	back()
	_ = d.C.Parts().Bundle.Refresh(t.Context(), d.State(), true)
	wantWentBack(d, "after it was taken over")
}

// A coordinator that saw nothing, as on a new disk, believes another one by what the
// cluster signed. A number is told to people with the name of who says it, and holds up
// nothing.
func TestPeersProve(t *testing.T) {
	d := coordinatortest.PoolDesk(t)
	gone := d.Joined("b")
	back := coordinatortest.CopyOf(d.Store)
	if err := coordinatortest.TryBan(d, gone.ID); err != nil {
		t.Fatal(err)
	}
	proof := d.C.Parts().Bundle.View()
	back()
	coordinatortest.Forgets(d, storeguard.StoreSeenFile, storeguard.TrustSeenFile)
	if d.C.Parts().StoreGuard.Lost() != nil || d.C.Parts().Bundle.Bans(gone.ID, identity.KeyID{}) {
		t.Fatalf("it knows by itself: %v", d.C.Parts().StoreGuard.Lost())
	}
	s := d.State()
	other := *proof
	for name, c := range map[string]struct {
		seen  *fealtyv1.GetSeenResponse
		claim string
	}{
		"nothing":           {&fealtyv1.GetSeenResponse{}, ""},
		"a number":          {&fealtyv1.GetSeenResponse{Revision: 1<<53 - 1}, "revision 9007199254740991"},
		"that it went back": {&fealtyv1.GetSeenResponse{Lost: true}, "it went back, it says"},
		"another restore":   {&fealtyv1.GetSeenResponse{Restored: 1_800_000_000, Revision: 1<<53 - 1, Lost: true}, ""},
		"what it " +
			"forged": {&fealtyv1.GetSeenResponse{TrustBundle: &fealtyv1.SignedSnapshot{Envelope: append([]byte(nil),
			other.Signed[:len(other.Signed)-2]...)}}, ""},
	} {
		claim, err := d.C.Parts().Peers.Compare(t.Context(), s, "x", c.seen)
		if err != nil || !strings.Contains(claim, c.claim) || c.claim == "" && claim != "" {
			t.Errorf("who says %s: %q, %v", name, claim, err)
		}
		if loss := d.C.Parts().StoreGuard.Lost(); loss != nil {
			t.Fatalf("who says %s holds it up: %v", name, loss)
		}
	}
	if _, err := (coordinatortest.Served[fealtyv1.TokenServiceServer](
		d.C.Parts().Admission.RegisterServices)).CreateToken(t.Context(),
		&fealtyv1.CreateTokenRequest{Entry: "pool"}); err != nil {
		t.Errorf("a token: %v", err)
	}
	if claim, err := d.C.Parts().Peers.Compare(t.Context(), s, "x",
		&fealtyv1.GetSeenResponse{TrustBundle: proof.Message()}); err != nil || claim != "" {
		t.Errorf("the bundle that the cluster signed: %q, %v", claim, err)
	}
	wantWentBack(d, "after another one proved it")
	if loss := d.C.Parts().StoreGuard.Lost(); loss.From != "coordinator x" {
		t.Errorf("nobody is named: %+v", loss)
	}
}

// A store goes back just after a coordinator started on it, and before it read anything else
// as a ready one: what it read on the way there counts.
func TestWentBackAfterTheStart(t *testing.T) {
	t.Parallel()
	d := coordinatortest.PoolDesk(t)
	d.Joined("a")
	coordinatortest.WantOnlyNil(t, d.C.Close())
	back := coordinatortest.CopyOf(d.Store)
	d.Store.Write("member/data/b", nil) // of another coordinator, and gone with the store of now
	d.Store.Remove("member/data/b")
	d.Open()
	if loss := d.C.Parts().StoreGuard.Lost(); d.State().Phase != authority.Ready || loss != nil {
		t.Fatalf("it is %v, and %v is lost", d.State().Phase, loss)
	}
	back()
	_, err := d.C.Store().List(t.Context(), record.MemberPrefix)
	coordinatortest.WantOnlyNil(t, err)
	if d.C.Parts().StoreGuard.Lost() == nil {
		t.Error("nobody noticed that the store went back")
	}
}

// What was seen of the store is not written down: status says that the protection is off, until it is on again.
func TestUnwrittenSeenIsTold(t *testing.T) {
	t.Parallel()
	d := coordinatortest.PoolDesk(t)
	keep := func() int {
		t.Helper()
		d.Joined(fmt.Sprint("m", d.Store.Calls()))
		d.C.Parts().StoreGuard.Keep(t.Context())
		return len(coordinatortest.FindingsAt(d, t, errcode.StoreUnrecorded))
	}
	if n := keep(); n != 0 {
		t.Fatalf("%d findings before", n)
	}
	d.Disk.Refuse(syscall.ENOSPC)
	if n := keep(); n != 1 {
		t.Errorf("%d findings while it is not written", n)
	}
	d.Disk.Refuse(nil)
	if n := keep(); n != 0 {
		t.Errorf("%d findings when it is written again", n)
	}
}
