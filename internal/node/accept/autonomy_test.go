package accept_test

import (
	"context"
	"errors"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/node/accept"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/guard"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
	"github.com/fealty-io/fealty/internal/signed/signedtest"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/internal/trust"
	"github.com/fealty-io/fealty/snapshot"
)

// present renews the identity of the node by what a coordinator certified.
func (m *machine) present() error {
	m.t.Helper()
	key, err := dir.NewKeyPair()
	m.Must(err)
	return m.node.Renew(m.t.Context(), key, dir.RawChain(m.Issue(key.Signer().Public(), m.member.ID, m.SVIDTTL)),
		func(ctx context.Context, s dir.SVID, c *credential.Material) error {
			unkept, err := m.node.Present(ctx, s, c)
			return errors.Join(unkept, err)
		})
}

// later sets the clocks of everybody forward.
func (m *machine) later(d time.Duration) { m.Shift.Add(int64(d)) }

// The newest word of the cluster is the latest of what was signed and of when the node was certified:
// a coordinator was there then. A certificate that is older than what was signed takes nothing back.
func TestNewestWord(t *testing.T) {
	m := newMachine(t)
	m.mustTake(m.Runtime(m.member))
	record, _ := m.node.TrustState().Active[runtimeScope].Verified.Record()
	if got := m.node.Autonomy.Facts(); !got.Word.Equal(record.IssuedAt) || !got.SVIDEnd.Equal(m.node.SVID().Leaf().NotAfter) {
		t.Fatalf("the newest word is of %v, want that of the record, %v; the certificate begins at %v", got.Word, record.IssuedAt, m.node.SVID().Leaf().NotBefore)
	}
	until, _ := m.node.Autonomy.DegradedUntil()
	m.later(2 * time.Hour)
	m.Must(m.present())
	begin := m.node.SVID().Leaf().NotBefore
	if !begin.After(record.IssuedAt) {
		t.Fatalf("the certificate begins at %v, and the record is of %v", begin, record.IssuedAt)
	}
	if got := m.node.Autonomy.Facts(); !got.Word.Equal(begin) {
		t.Errorf("after a renewal the newest word is of %v, want %v", got.Word, begin)
	}
	if later, _ := m.node.Autonomy.DegradedUntil(); !later.After(until) {
		t.Errorf("it works alone until %v, and before the renewal until %v", later, until)
	}
	m.later(time.Hour)
	m.mustTake(m.Runtime(m.member))
	record, _ = m.node.TrustState().Active[runtimeScope].Verified.Record()
	if got := m.node.Autonomy.Facts(); !got.Word.Equal(record.IssuedAt) {
		t.Errorf("news came after the renewal, and the newest word is of %v, want %v", got.Word, record.IssuedAt)
	}
}

// Without news the node does for a while what its policy allows, and nothing afterwards; a refusal is told
// and counted, and what local services get ends with it.
func TestAlone(t *testing.T) {
	m := newMachine(t)
	m.mustTake(m.Gives(m.member, []snapshot.Scope{qosScope}, func(c *runtime) {
		c.Degraded.Allow, c.Degraded.Max = []string{"continue_services"}, 4*time.Hour
	}))
	m.mustTake(m.OfGroup(m.member, signedtest.QoS(1)))
	m.heard()
	for _, tc := range []struct {
		name                  string
		after                 time.Duration
		continues, given      bool
		degraded, over, start bool
	}{
		{"with news", 0, true, true, false, false, true},
		{"alone", 3 * time.Hour, true, false, true, false, false},
		{"the time is over", 6 * time.Hour, false, false, true, true, false},
	} {
		m.later(tc.after)
		m.node.Autonomy.LookDegraded(t.Context())
		if err := m.node.Autonomy.Permit(guard.ContinueServices); (err == nil) != tc.continues {
			t.Errorf("%s: services go on: %v", tc.name, err)
		}
		if err := m.node.Autonomy.Permit(guard.StartServices); (err == nil) != tc.start {
			t.Errorf("%s: services start: %v", tc.name, err)
		}
		news := m.node.Autonomy.NewsOf(qosScope)
		_, err := m.node.Autonomy.Use(qosScope)
		if _, refused := errors.AsType[*guard.RefusedError](err); (err == nil) != (news.GetContent() != nil) || (err != nil) != (news.GetOver() != nil) || err != nil && !refused {
			t.Errorf("%s: it may use it: %v, and its services are told %v", tc.name, err, news)
		}
		// Its policy does not let it report later: it tells nobody, and writes nothing down.
		if got := m.node.Autonomy.Reportable(); len(got) > 0 || m.has(dir.DegradedName) {
			t.Errorf("%s: to report %v, and kept: %v", tc.name, got, m.has(dir.DegradedName))
		}
		told := m.heard()
		if (told["refused start_services "+"degraded"] > 0 || len(told) > 0) != (!tc.start || tc.degraded) {
			t.Errorf("%s: told %v", tc.name, told)
		}
		var resp fealtyv1.GetNodeResponse
		m.node.Autonomy.StandsDegraded(&resp)
		if got := len(resp.GetDegradedPeriods()) > 0; got != tc.degraded {
			t.Errorf("%s: in degraded mode: %v", tc.name, got)
		}
		if tc.degraded {
			if over := resp.GetDegradedPeriods()[0].GetOverAt() != nil; over != tc.over {
				t.Errorf("%s: the time to work alone is over: %v", tc.name, over)
			}
		}
		allowed := false
		for _, p := range resp.GetPermissions() {
			if p.GetAction() == string(guard.ContinueServices) {
				allowed = p.GetPermitted()
			}
			if p.GetPermitted() == (p.GetReason() != "") {
				t.Errorf("%s: %v", tc.name, p)
			}
		}
		if allowed != tc.continues {
			t.Errorf("%s: told that services may go on: %v", tc.name, allowed)
		}
	}
	// News end it, and it is reported; over a restart it was not forgotten.
	m.mustTake(m.TrustBundle())
	m.Version++
	m.mustTake(m.TrustBundle())
	m.mustTake(m.Gives(m.member, []snapshot.Scope{qosScope}))
	m.node.Autonomy.LookDegraded(t.Context())
	if got := m.node.Autonomy.Reportable(); len(got) != 1 || got[0].GetUntil() == nil {
		t.Errorf("to report: %v", got)
	}
	m.restart(durabletest.Synced)
	if got := m.node.Autonomy.Reportable(); len(got) != 1 || got[0].GetUntil() == nil {
		t.Errorf("to report after a restart: %v", got)
	}
}

// A node whose key or name is banned does nothing, whatever else it knows.
func TestBannedNode(t *testing.T) {
	m := newMachine(t)
	m.mustTake(m.Runtime(m.member))
	if got := m.node.Autonomy.Facts().Withdrawn; got != "" {
		t.Fatalf("withdrawn: %q", got)
	}
	m.Banned = append(m.Banned, m.key.ID)
	m.Version++
	m.mustTake(m.TrustBundle())
	if got := m.node.Autonomy.Facts().Withdrawn; got != guard.LimitIdentity {
		t.Errorf("withdrawn: %q", got)
	}
	m.restart(durabletest.Synced)
	if got := m.node.Autonomy.Facts().Withdrawn; got != guard.LimitIdentity {
		t.Errorf("after a restart: %q", got)
	}
}

// A renewed certificate is used if it is over the key that was asked for, of this node, under its
// root, and believed now; one that the disk does not take is used all the same.
func TestRenew(t *testing.T) {
	m := newMachine(t)
	other := signedtest.New(t, []string{signedtest.Coordinator})
	key, err := dir.NewKeyPair()
	m.Must(err)
	b, _ := m.NewMember("node-b")
	second, err := dir.NewKeyPair()
	m.Must(err)
	was := m.node.SVID()
	for name, chain := range map[string][][]byte{
		"none":                nil,
		"over another key":    dir.RawChain(m.Issue(second.Signer().Public(), m.member.ID, m.SVIDTTL)),
		"of another node":     dir.RawChain(m.Issue(key.Signer().Public(), b.ID, m.SVIDTTL)),
		"under another root":  dir.RawChain(other.Issue(key.Signer().Public(), m.member.ID, m.SVIDTTL)),
		"without its root":    dir.RawChain(m.Issue(key.Signer().Public(), m.member.ID, m.SVIDTTL))[:2],
		"of a stranger's CA":  append(dir.RawChain(other.Issue(key.Signer().Public(), m.member.ID, m.SVIDTTL))[:2], m.Root.Raw),
		"of another's member": dir.RawChain(other.Issue(key.Signer().Public(), b.ID, m.SVIDTTL)),
	} {
		err := m.node.Renew(t.Context(), key, chain, func(context.Context, dir.SVID, *credential.Material) error {
			t.Errorf("%s: it is handed on", name)
			return nil
		})
		if err == nil || m.node.SVID() != was {
			t.Errorf("%s: %v", name, err)
		}
	}
	m.disk.Refuse(syscall.ENOSPC)
	if err := m.present(); !errors.Is(err, syscall.ENOSPC) || m.node.SVID() == was {
		t.Errorf("a full disk: %v, and the new one is in use: %v", err, m.node.SVID() != was)
	}
	m.disk.Refuse(nil)
	m.Must(m.present())
	now := m.node.SVID().Key.ID
	if cur, err := m.node.Source().Current(t.Context()); err != nil || cur.Pin() != now {
		t.Errorf("it presents %v, %v", cur, err)
	}
	m.restart(durabletest.Synced)
	if m.node.SVID().Key.ID != now {
		t.Error("after a restart it presents another one")
	}
}

// The last step of a renewal that was cut off is made up for by the next start.
func TestRenewalCutOff(t *testing.T) {
	m := newMachine(t)
	m.Must(m.node.Store().WriteNext(state.PendingKey{Key: m.key, Purpose: "renew"}))
	m.restart(durabletest.Synced)
	if m.has(dir.NextName) {
		t.Error("the key of a renewal that was finished is still pending")
	}
	next, err := dir.NewKeyPair()
	m.Must(err)
	m.Must(m.node.Store().WriteNext(state.PendingKey{Key: next, Purpose: "renew"}))
	m.restart(durabletest.Synced)
	if !m.has(dir.NextName) {
		t.Error("the key of a renewal that was not finished is gone")
	}
}

// What a member that comes back is given is used in the incarnation that it is for, or refused whole.
func TestRejoin(t *testing.T) {
	for _, tc := range []struct {
		name  string
		grant func(m *machine, key dir.KeyPair) *fealtyv1.JoinGrant
		code  errcode.Code
		anew  bool
	}{
		{"in the incarnation that it knows", func(m *machine, key dir.KeyPair) *fealtyv1.JoinGrant { return m.GrantTo(m.member, key) }, "", false},
		{"in a new one", func(m *machine, key dir.KeyPair) *fealtyv1.JoinGrant {
			return m.GrantTo(&signedtest.Member{ID: m.member.ID, Incarnation: key.ID}, key)
		}, "", true},
		{"of another node", func(m *machine, key dir.KeyPair) *fealtyv1.JoinGrant {
			b, _ := m.NewMember("node-b")
			return m.GrantTo(b, key)
		}, errcode.JoinGrantRefused, false},
		{"with a trust bundle of before", func(m *machine, key dir.KeyPair) *fealtyv1.JoinGrant {
			m.Version -= 2
			return m.GrantTo(m.member, key)
		}, errcode.JoinGrantRefused, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newMachine(t)
			m.mustTake(m.Gives(m.member, []snapshot.Scope{qosScope}))
			m.mustTake(m.OfGroup(m.member, signedtest.QoS(1)))
			key, err := dir.NewKeyPair()
			m.Must(err)
			adopted := false
			anew, err := m.node.Rejoin(t.Context(), tc.grant(m, key), accept.Granted{Address: "c1", Pin: identity.KeyOf(m.Root), Key: key},
				func(ctx context.Context, s dir.SVID, c *credential.Material, unkept error) error {
					adopted = true
					_, err := m.node.Present(ctx, s, c)
					return errors.Join(unkept, err)
				})
			if tc.code != "" {
				if !errors.Is(err, tc.code) || m.node.SVID().Key.ID != m.key.ID || m.version(qosScope) == 0 {
					t.Errorf("%v", err)
				}
				return
			}
			if err != nil || anew != tc.anew || adopted == tc.anew || m.node.SVID().Key.ID != key.ID {
				t.Fatalf("anew %v, adopted %v, %v", anew, adopted, err)
			}
			check := func(when string) {
				if (m.version(runtimeScope) == 0) != tc.anew || (m.version(qosScope) == 0) != tc.anew || m.version(bootScope) == 0 {
					t.Errorf("%s: node_runtime %d, qos_policy %d", when, m.version(runtimeScope), m.version(qosScope))
				}
				if want := (map[bool]identity.KeyID{false: m.key.ID, true: key.ID})[tc.anew]; m.node.Self().Incarnation != want {
					t.Errorf("%s: it is in another incarnation", when)
				}
			}
			check("at once")
			if can := m.has(dir.CurrentName(qosScope)); can == tc.anew {
				t.Errorf("others read what was for the old incarnation: %v", can)
			}
			m.restart(durabletest.Synced)
			check("after a restart")
			if got := m.refusals(); len(got) != 0 {
				t.Errorf("after a restart what was for the old incarnation is refused: %v", got)
			}
		})
	}
}

// A machine that slept may hear news before it looks at the clock: that it was alone, and for too long, is
// noted all the same. And the next look is when something ends, or sooner.
func TestNewsAfterSleep(t *testing.T) {
	m := newMachine(t)
	m.mustTake(m.Runtime(m.member, func(_ *header, c *runtime, _ *record) { c.Degraded.Max = time.Hour }))
	m.node.Autonomy.LookDegraded(t.Context())
	m.heard()
	m.later(6 * time.Hour)
	m.Version++
	m.mustTake(m.TrustBundle(), m.Runtime(m.member))
	if told := m.heard(); told["entered"] != 1 {
		t.Errorf("told %v", told)
	}
	m.node.Autonomy.LookDegraded(t.Context())
	if got := m.node.Autonomy.Reportable(); len(got) != 1 || got[0].GetOverAt() == nil || got[0].GetUntil() == nil {
		t.Errorf("to report: %v", got)
	}
	next := m.node.Autonomy.Facts().Ends()
	slices.SortFunc(next, time.Time.Compare)
	i := slices.IndexFunc(next, func(at time.Time) bool { return at.After(m.node.Clock.Now()) })
	if i < 0 {
		t.Fatal("nothing ends")
	}
	m.later(next[i].Sub(m.node.Clock.Now()) - 30*time.Second)
	if wait := m.node.Autonomy.LookDegraded(t.Context()); wait <= 0 || wait > 30*time.Second {
		t.Errorf("something ends in 30 seconds, and the next look is in %v", wait)
	}
}

// A statement of the signers counts at once and for good if it verifies, and changes nothing if not, or
// if it is only asked what it would do.
func TestEmergency(t *testing.T) {
	m := newMachine(t)
	m.mustTake(m.Runtime(m.member))
	was := m.node.TrustState()
	revoking := func(n uint64) []byte {
		return m.Emergency(n, func(e *trust.Emergency) { e.ConfigKeys = []snapshot.Digest{m.ConfigDigest()} })
	}
	stranger := signedtest.New(t, []string{signedtest.Coordinator})
	for name, raw := range map[string][]byte{
		"none": nil, "garbage": []byte("x"),
		"by somebody else":   stranger.Emergency(1, func(e *trust.Emergency) { e.Keys = []identity.KeyID{{1}}; e.Root = identity.KeyOf(m.Root) }),
		"under another root": m.Emergency(1, func(e *trust.Emergency) { e.Keys = []identity.KeyID{{1}}; e.Root = identity.KeyID{2} }),
	} {
		if _, err := m.node.ApplyEmergency(t.Context(), raw, false); !errors.Is(err, errcode.EmergencyRefused) || m.node.TrustState() != was {
			t.Errorf("%s: %v", name, err)
		}
	}
	elsewhere := m.Emergency(1, func(e *trust.Emergency) { e.Keys = []identity.KeyID{{1}} })
	if got, err := m.node.ApplyEmergency(t.Context(), elsewhere, true); err != nil || !got.GetChanged() || len(got.GetDistrusted()) > 0 {
		t.Errorf("what revokes no key that signed for this node: %v, %v", got, err)
	}
	one := revoking(1)
	got, err := m.node.ApplyEmergency(t.Context(), one, true)
	if err != nil || !got.GetChanged() || !slices.Contains(got.GetDistrusted(), string(runtimeScope)) || m.node.TrustState() != was || m.has(dir.EmergencyAName) {
		t.Fatalf("dry: %v, %v", got, err)
	}
	m.disk.Refuse(syscall.ENOSPC)
	if _, err := m.node.ApplyEmergency(t.Context(), one, false); !errors.Is(err, errcode.FileNotWritten) || m.node.TrustState() != was {
		t.Errorf("a full disk: %v", err)
	}
	m.disk.Refuse(nil)
	if got, err = m.node.ApplyEmergency(t.Context(), one, false); err != nil || !got.GetChanged() {
		t.Fatalf("%v, %v", got, err)
	}
	if m.version(runtimeScope) != 0 || m.version(bootScope) != 0 || !slices.Contains(m.refusals(), "node_runtime "+internalsnapshot.ReasonSigner) {
		t.Errorf("what the revoked key signed is in use, or not told: %v", m.refusals())
	}
	if got, err = m.node.ApplyEmergency(t.Context(), one, false); err != nil || got.GetChanged() {
		t.Errorf("again: %v, %v", got, err)
	}
	// One copy is damaged: handed in again, both have it.
	m.disk.Put(path(dir.EmergencyAName), []byte("x"))
	if _, err := m.node.ApplyEmergency(t.Context(), one, false); err != nil {
		t.Error(err)
	}
	if raw, _, err := m.node.Store().ReadEmergencies(m.node.Self()); err != nil || len(raw) != 1 {
		t.Errorf("%d on disk, %v", len(raw), err)
	}
	// Both are lost: it is handed in again, and outlives a restart.
	m.Must(m.node.Store().Remove(dir.EmergencyAName, dir.EmergencyBName))
	if got, err = m.node.ApplyEmergency(t.Context(), one, false); err != nil || got.GetChanged() || !m.has(dir.EmergencyAName) || !m.has(dir.EmergencyBName) {
		t.Errorf("after both copies were lost: %v, %v", got, err)
	}
	m.restart(durabletest.Torn)
	if m.version(runtimeScope) != 0 || len(m.node.TrustState().Emergencies) != 1 {
		t.Error("after a restart what the revoked key signed is in use")
	}
	// Another key, in a newer bundle, signs what is used again.
	m.NextKey()
	m.Version++
	m.mustTake(m.TrustBundle(), m.Runtime(m.member))
	if m.version(runtimeScope) == 0 {
		t.Errorf("signed by the next key: %v", m.refusals())
	}
}

// Links of the history are kept for the bundle that follows, as far as they are within limits.
func TestLinks(t *testing.T) {
	m := newMachine(t)
	m.Epoch++
	m.Version++
	m.node.HearLinks(t.Context(), nil)
	m.node.HearLinks(t.Context(), make([][]byte, state.MaxLinks+1))
	m.node.HearLinks(t.Context(), [][]byte{make([]byte, state.MaxLinkBytes), {1}})
	if got := m.node.TrustState().Links; got != nil {
		t.Errorf("%d links are kept", len(got))
	}
	lost, _, err := m.node.Take(t.Context(), state.ByCoordinator, []state.Offer{offer(m.TrustBundle())})
	if err != nil || !lost {
		t.Errorf("links are missing: %v, %v", lost, err)
	}
	m.node.HearLinks(t.Context(), m.Links())
	m.mustTake(m.TrustBundle())
	if got := m.node.TrustState().Active[bundleScope].Verified.Header().AuthorityEpoch; got != 2 || len(m.refusals()) != 0 {
		t.Errorf("with them it is in epoch %d, refused %v", got, m.refusals())
	}
	m.node.HearLinks(t.Context(), make([][]byte, state.MaxLinks))
	if got := m.node.TrustState().Links; len(got) != state.MaxLinks {
		t.Errorf("%d links are kept", len(got))
	}
	if m.node.HearChanges(t.Context(), nil) || m.node.HearChanges(t.Context(), [][]byte{[]byte("x")}) || m.node.Moved() != nil {
		t.Error("another root is believed on nobody's word")
	}
}

// A new content of a scope with a trial is on it for its time; it fails if who uses it says so, or if the
// contact that there was is gone at the end, and passes otherwise.
func TestTrials(t *testing.T) {
	for _, tc := range []struct {
		name      string
		connected bool // when it came
		do        func(m *machine) error
		end       bool // its time is over
		still     bool // it is on trial
		in        int  // use, afterwards
		err       error
	}{
		{"nobody says anything", true, nil, false, true, 2, nil},
		{"it ends with contact", true, nil, true, false, 2, nil},
		{"it ends without the contact that there was", true, func(m *machine) error { m.node.Status().Closed(nil); return nil }, true, false, 1, nil},
		{"it ends without contact, and there was none", false, nil, true, false, 2, nil},
		{"who uses it says that it is good", true, func(m *machine) error { return m.node.Trials.Verdict(m.t.Context(), qosScope, 0, true, "") }, false, true, 2, nil},
		{"who uses it says that it is bad", true, func(m *machine) error { return m.node.Trials.Verdict(m.t.Context(), qosScope, 0, false, "no") }, false, false, 1, nil},
		{"somebody says so of the version", true, func(m *machine) error {
			return m.node.Trials.Verdict(m.t.Context(), qosScope, m.version(qosScope), false, "no")
		}, false, false, 1, nil},
		{"somebody says so of another version", true, func(m *machine) error {
			return m.node.Trials.Verdict(m.t.Context(), qosScope, m.version(qosScope)+1, false, "no")
		}, false, true, 2, state.ErrNoTrial},
		{"somebody says so of another scope", true, func(m *machine) error { return m.node.Trials.Verdict(m.t.Context(), runtimeScope, 0, false, "no") }, false, true, 2, state.ErrNoTrial},
		{"the disk is full", true, func(m *machine) error {
			m.disk.Refuse(syscall.ENOSPC)
			defer m.disk.Refuse(nil)
			return m.node.Trials.Verdict(m.t.Context(), qosScope, 0, false, "no")
		}, false, false, 1, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMachine(t)
				m.mustTake(m.Gives(m.member, []snapshot.Scope{degradedScope, qosScope}))
				m.mustTake(m.OfGroup(m.member, signedtest.QoS(1)))
				m.mustTake(m.OfGroup(m.member, &snapshot.DegradedModePolicy{Max: time.Hour, Trials: []snapshot.Trial{{Scope: qosScope, Duration: time.Minute}}}))
				if tc.connected {
					m.node.Status().Opened("c1")
				}
				m.mustTake(m.OfGroup(m.member, signedtest.QoS(2)))
				if _, on := m.node.TrustState().OnTrial(qosScope); !on {
					t.Fatal("it is not on trial")
				}
				if tc.do != nil {
					if err := tc.do(m); !errors.Is(err, tc.err) {
						t.Fatalf("%v, want %v", err, tc.err)
					}
				}
				if tc.end {
					next, err := m.node.Trials.EndTrials(t.Context())
					if err != nil || next > time.Minute || next <= 0 {
						t.Fatalf("look again in %v, %v", next, err)
					}
					time.Sleep(time.Minute - time.Nanosecond)
					if _, err := m.node.Trials.EndTrials(t.Context()); err != nil {
						t.Fatal(err)
					}
					if _, on := m.node.TrustState().OnTrial(qosScope); !on {
						t.Error("its trial is over before its time")
					}
					time.Sleep(time.Nanosecond)
				}
				if _, err := m.node.Trials.EndTrials(t.Context()); err != nil {
					t.Fatal(err)
				}
				check := func(when string) {
					content, _ := m.node.TrustState().Active[qosScope].Verified.QoSPolicy()
					if got := content.Classes[0].Priority; got != tc.in {
						t.Errorf("%s: %d is in use, want %d", when, got, tc.in)
					}
					if _, on := m.node.TrustState().OnTrial(qosScope); on != tc.still {
						t.Errorf("%s: it is on trial: %v", when, on)
					}
					if failed := slices.Contains(m.refusals(), "qos_policy "+state.ReasonQuarantined); failed != (tc.in == 1) {
						t.Errorf("%s: told %v", when, m.refusals())
					}
				}
				check("at once")
				m.restart(durabletest.Synced)
				check("after a restart")
			})
		})
	}
}

// The floor of the clock is kept now and then, and at once when an epoch starts it anew.
func TestClockIsKept(t *testing.T) {
	m := newMachine(t)
	if m.has(dir.ClockName) {
		t.Fatal("it is there already")
	}
	m.Epoch++
	m.Version++
	m.node.HearLinks(t.Context(), m.Links())
	m.mustTake(m.TrustBundle())
	if !m.has(dir.ClockName) {
		t.Error("a new epoch is not kept at once")
	}
	m.Must(m.disk.FS().Remove(path(dir.ClockName)))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.node.Clock.Watch(ctx); !errors.Is(err, context.Canceled) || !m.has(dir.ClockName) {
		t.Errorf("%v, kept: %v", err, m.has(dir.ClockName))
	}
}
