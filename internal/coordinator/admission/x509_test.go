package admission_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/internal/proof"
)

func uriNames(uris ...string) func(*x509.Certificate) {
	return func(c *x509.Certificate) { c.ExtraExtensions = []pkix.Extension{pkitest.AltNames(uris...)} }
}

// A machine with a certificate of the operator's PKI joins over the wire, under the
// name that its certificate shows.
func TestX509JoinAdmitsByPattern(t *testing.T) {
	t.Parallel()
	pki := pkitest.NewPKI(t, "corp", nil)
	f := coordinatortest.NewFleet(t, nil)
	if err := f.Set(f.Manifest(coordinatortest.CorpEntries(pki))); err != nil {
		t.Fatal(err)
	}
	n := f.Node()
	if err := n.Join(identity.Data, coordinatortest.CorpProver(t, pki,
		coordinatortest.CommonName("node-c"))); err != nil {
		t.Fatal(err)
	}
	if want := "spiffe://" + coordinatortest.Cluster + "/data/c"; n.ID.String() != want ||
		n.Grant.GetOutcome() != fealtyv1.JoinOutcome_JOIN_OUTCOME_ADMITTED {
		t.Fatalf("%s, %v; want %s, admitted", n.ID, n.Grant.GetOutcome(), want)
	}
	resp, err := f.Local().Member.GetMember(f.Context(), &fealtyv1.GetMemberRequest{Kind: "data", Name: "c"})
	if err != nil {
		t.Fatal(err)
	}
	if m := resp.GetMember(); m.GetEntry() != "racks" || m.GetJoinedBy() != "x509:subject:CN=node-c" {
		t.Errorf("the record says %v", m)
	}
	if err := n.Renew(true); err != nil {
		t.Errorf("renewal: %v", err)
	}
	// Other types of keys that PKIs hand out.
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, key := range map[string]crypto.Signer{"node-p384": p384, "node-ed25519": pkitest.NewEd25519Key(t)} {
		if err := f.Node().Join(identity.Data,
			coordinatortest.ProverOf(pki.Issue(t, key, coordinatortest.CommonName(name)),
				key)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A candidate that shows the same unique subject is the same member, with any
// certificate and key; it keeps its record.
func TestX509RejoinKeepsTheRecord(t *testing.T) {
	pki := pkitest.NewPKI(t, "corp", nil)
	d := coordinatortest.ReadyDesk(t, coordinatortest.CorpEntries(pki))
	m := d.Machine()
	if err := m.Join(identity.Data, coordinatortest.CorpProver(t, pki,
		coordinatortest.CommonName("node-c"))); err != nil {
		t.Fatal(err)
	}
	before := d.Record(identity.Data, "c")
	for range 2 {
		d.Advance(time.Hour)
		again := d.Machine()
		if err := again.Join(identity.Data,
			coordinatortest.CorpProver(t, pki, coordinatortest.CommonName("node-c"))); err != nil {
			t.Fatal(err)
		}
		if got := again.Grant.GetOutcome(); got != fealtyv1.JoinOutcome_JOIN_OUTCOME_ALREADY_MEMBER ||
			again.ID != m.ID {
			t.Fatalf("outcome %v as %s, want ALREADY_MEMBER as %s", got, again.ID, m.ID)
		}
		after := d.Record(identity.Data, "c")
		if !after.Value.JoinedAt.Equal(before.Value.JoinedAt) || after.Value.Key != coordinatortest.KeyOf(t,
			again.Key) ||
			after.Value.Key == before.Value.Key || after.Value.ProofType != proof.TypeX509 {
			t.Fatalf("record %+v, was %+v", after.Value, before.Value)
		}
	}
	// Long after the grace for the last key is over too: that needs no human.
	d.Advance(30 * 24 * time.Hour)
	fresh := pkitest.NewPKI(t, "corp", d.Clock)
	fresh.Root, fresh.Intermediate = pki.Root, pki.Intermediate
	if err := d.Machine().Join(identity.Data,
		coordinatortest.CorpProver(t, fresh, coordinatortest.CommonName("node-c"))); err != nil {
		t.Fatal(err)
	}
	// Another certificate that gives the same name is somebody else.
	coordinatortest.WantCode(t, d.Machine().Join(identity.Data,
		coordinatortest.CorpProver(t, fresh,
			func(c *x509.Certificate) { c.DNSNames = []string{"c.nodes.example"} })), errcode.JoinNameTaken)
}

// Each of these is refused, and nothing changes.
func TestX509Refusals(t *testing.T) {
	pki := pkitest.NewPKI(t, "corp", nil)
	d := coordinatortest.ReadyDesk(t, coordinatortest.CorpEntries(pki))
	stranger := pkitest.NewPKI(t, "corp", nil)
	key := pkitest.NewKey(t)
	for _, tc := range []struct {
		name   string
		kind   identity.Kind
		prover proof.Prover
		want   errcode.Code
		says   string // in what the candidate is told
	}{
		{"wrong CA", identity.Data, coordinatortest.CorpProver(t, stranger, coordinatortest.CommonName("node-c")),
			errcode.JoinCertificateForeign,
			"CN=corp root,O=acme"},
		{"expired", identity.Data, coordinatortest.CorpProver(t, pki, func(c *x509.Certificate) {
			coordinatortest.CommonName("node-c")(c)
			c.NotAfter = time.Now().Add(-time.Minute)
		}), errcode.JoinCertificateExpired, "at the coordinator"},
		{"not yet valid", identity.Data, coordinatortest.CorpProver(t, pki, func(c *x509.Certificate) {
			coordinatortest.CommonName("node-c")(c)
			c.NotBefore = time.Now().Add(time.Hour)
		}), errcode.JoinCertificateExpired, "at the coordinator"},
		{"for servers only", identity.Data, coordinatortest.CorpProver(t, pki, func(c *x509.Certificate) {
			coordinatortest.CommonName("node-c")(c)
			c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		}), errcode.JoinCertificateUnfit, "rule extended-key-usage (RFC 5280 §4.2.1.12)"},
		{"the CA itself", identity.Data, coordinatortest.ProverOf([]*x509.Certificate{pki.Intermediate.Cert},
			pki.Intermediate.Key),
			errcode.JoinCertificateUnfit, "rule not-a-ca"},
		{"foreign name", identity.Data, coordinatortest.CorpProver(t, pki, coordinatortest.CommonName("printer-7")),
			errcode.JoinUnauthorized,
			"x509:subject:CN=printer-7"},
		{"no name", identity.Data, coordinatortest.CorpProver(t, pki, nil), errcode.JoinUnauthorized,
			"nothing that an entry matches"},
		{"a name that captures more", identity.Data,
			coordinatortest.CorpProver(t, pki, coordinatortest.CommonName("node-a/b")),
			errcode.JoinUnauthorized, ""},
		{"a name with a line break", identity.Data,
			coordinatortest.CorpProver(t, pki, coordinatortest.CommonName("node-a\nb")),
			errcode.JoinUnauthorized, ""},
		{"two URIs, one of which is admitted", identity.Witness,
			coordinatortest.CorpProver(t, pki, uriNames("spiffe://corp.example/watcher/1",
				"spiffe://corp.example/other")), errcode.JoinUnauthorized, ""},
		{"two URIs, both admitted", identity.Witness,
			coordinatortest.CorpProver(t, pki, uriNames("spiffe://corp.example/watcher/1",
				"spiffe://corp.example/watcher/2")), errcode.JoinUnauthorized, ""},
		{"another kind", identity.Admin, coordinatortest.CorpProver(t, pki, coordinatortest.CommonName("node-c")),
			errcode.JoinKindMismatch,
			""},
		{"a coordinator", identity.Coordinator,
			coordinatortest.CorpProver(t, pki, coordinatortest.CommonName("node-c")),
			errcode.JoinKindMismatch, ""},
		{"for another channel", identity.Data,
			elsewhere{coordinatortest.ProverOf(pki.Issue(t, key, coordinatortest.CommonName(
				"node-c")),
				key)},
			errcode.ProofOtherSession, "binding of this TLS session"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := d.Store.Snapshot()
			err := d.Machine().Join(tc.kind, tc.prover)
			coordinatortest.WantCode(t, err, tc.want)
			if !strings.Contains(errcode.Of(err).Error(), tc.says) {
				t.Errorf("the candidate is told %v, want %q in it", err, tc.says)
			}
			if after := d.Store.Snapshot(); !reflect.DeepEqual(after, before) {
				t.Errorf("the store changed: %d entries, were %d", len(after), len(before))
			}
		})
	}
	// The same with one URI, so that the rows above show something.
	if err := d.Machine().Join(identity.Witness,
		coordinatortest.CorpProver(t, pki, uriNames("spiffe://corp.example/watcher/1"))); err != nil {
		t.Fatal(err)
	}
}

// A candidate is told of its own chain, and not what the manifest has: neither of a
// root of the same name as its issuer, nor of entries and members.
func TestX509RefusalTellsNothingOfOthers(t *testing.T) {
	pki := pkitest.NewPKI(t, "corp", nil)
	d := coordinatortest.ReadyDesk(t, coordinatortest.CorpEntries(pki))
	if err := d.Machine().Join(identity.Data,
		coordinatortest.CorpProver(t, pki, coordinatortest.CommonName("node-c"))); err != nil {
		t.Fatal(err)
	}
	// A root of this very name is in the manifest: whether that is so must not show.
	same, other := pkitest.NewPKI(t, "corp", nil), pkitest.NewPKI(t, "elsewhere", nil)
	var told [2]string
	for i, stranger := range []*pkitest.PKI{same, other} {
		err := errcode.Of(d.Machine().Join(identity.Data,
			coordinatortest.CorpProver(t, stranger, coordinatortest.CommonName(
				"node-c"))))
		told[i] = strings.ReplaceAll(err.Error(), stranger.Root.Cert.Subject.String(), "OWN ISSUER")
	}
	if told[0] != told[1] {
		t.Errorf("with a root's name: %s\nwith another: %s", told[0], told[1])
	}
	if err := d.Machine().Join(identity.Data,
		coordinatortest.CorpProver(t, pki, coordinatortest.CommonName("printer-7"))); strings.Contains(
		errcode.Of(err).Error(), "node-") {
		t.Errorf("it is told of an entry: %v", err)
	}
}

// A candidate that says it is a member already becomes that one or nobody.
func TestX509ClaimedMember(t *testing.T) {
	pki := pkitest.NewPKI(t, "corp", nil)
	d := coordinatortest.ReadyDesk(t, coordinatortest.CorpEntries(pki))
	join := func(name string) *coordinatortest.Machine {
		m := d.Machine()
		if err := m.Join(identity.Data, coordinatortest.CorpProver(t, pki,
			coordinatortest.CommonName("node-"+name))); err != nil {
			t.Fatal(err)
		}
		return m
	}
	for _, tc := range []struct {
		name    string
		shows   string
		claims  string
		prepare func()
		want    errcode.Code // "" for the member's own record
	}{
		{"itself", "itself", "itself", func() { join("itself") }, ""},
		{"another member's name", "one", "two", func() { join("one"); join("two") }, errcode.JoinOtherMember},
		{"a name that nobody has, by a proof that gives another", "nobody", "member", func() { join("member") },
			errcode.JoinOtherMember},
		{"one that was removed", "removed", "removed",
			func() { join("removed"); coordinatortest.RemoveAt(d, t, identity.Data, "removed") }, errcode.JoinOtherMember},
		{"one that never was", "new", "new", func() {}, errcode.JoinOtherMember},
		{"one that was replaced", "replaced", "replaced",
			func() { join("replaced"); coordinatortest.ReplaceAt(d, t, identity.Data, "replaced") }, errcode.JoinOtherMember},
		{"one that is banned", "banned", "banned",
			func() { join("banned"); coordinatortest.BanAt(d, t, identity.Data, "banned") },
			errcode.JoinBanned},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.prepare()
			before := d.Store.Snapshot()
			was := d.Record(identity.Data, tc.shows).Value
			m := d.Machine()
			m.Claims = tc.claims
			err := m.Join(identity.Data, coordinatortest.CorpProver(t, pki,
				coordinatortest.CommonName("node-"+tc.shows)))
			if tc.want != "" {
				coordinatortest.WantCode(t, err, tc.want)
				if after := d.Store.Snapshot(); !reflect.DeepEqual(after, before) {
					t.Error("the store changed")
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			is := d.Record(identity.Data, tc.shows).Value
			if m.Grant.GetOutcome() != fealtyv1.JoinOutcome_JOIN_OUTCOME_ALREADY_MEMBER ||
				!is.JoinedAt.Equal(was.JoinedAt) || is.Incarnation != coordinatortest.KeyOf(t, m.Key) ||
				is.Incarnation == was.Incarnation {
				t.Errorf("outcome %v, record %+v, was %+v", m.Grant.GetOutcome(), is, was)
			}
		})
	}
}

// The manifest admits the holder of a certificate and its key. A step that takes an
// identity away leaves that; the remedy that the how-to names does not.
func TestX509WhatKeepsACertificateOut(t *testing.T) {
	t.Parallel()
	pki := pkitest.NewPKI(t, "corp", nil)
	for _, tc := range []struct {
		name string
		act  func(d *coordinatortest.Desk)
		want errcode.Code // "" for in again
	}{
		{"nothing", func(*coordinatortest.Desk) {}, ""},
		{"remove", func(d *coordinatortest.Desk) { coordinatortest.RemoveAt(d, t, identity.Data, "c") }, ""},
		{"replace", func(d *coordinatortest.Desk) { coordinatortest.ReplaceAt(d, t, identity.Data, "c") }, ""},
		{"ban", func(d *coordinatortest.Desk) { coordinatortest.BanAt(d, t, identity.Data, "c") }, errcode.JoinBanned},
		{"ban and remove", func(d *coordinatortest.Desk) {
			coordinatortest.BanAt(d, t, identity.Data, "c")
			coordinatortest.RemoveAt(d, t, identity.Data,
				"c")
		},
			errcode.JoinBanned},
		{"no entry for the name", func(d *coordinatortest.Desk) {
			coordinatortest.WantOnly(t, "set", d.Set(strings.ReplaceAll(coordinatortest.CorpEntries(pki), "CN=node-*",
				"CN=rack-*")), "")
		}, errcode.JoinUnauthorized},
		{"another root", func(d *coordinatortest.Desk) {
			coordinatortest.WantOnly(t, "set", d.Set(coordinatortest.CorpEntries(pkitest.NewPKI(t, "corp", nil))),
				"")
		}, errcode.JoinCertificateForeign},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := coordinatortest.ReadyDesk(t, coordinatortest.CorpEntries(pki))
			stolen := coordinatortest.CorpProver(t, pki, coordinatortest.CommonName("node-c"))
			node, thief := d.Machine(), d.Machine()
			coordinatortest.WantOnly(t, "join", node.Join(identity.Data, stolen), "")
			tc.act(d)
			coordinatortest.WantOnly(t, "the thief's join", thief.Join(identity.Data, stolen), tc.want)
			if tc.want == "" && node.Renew() == nil {
				t.Error("two machines hold the identity")
			}
		})
	}
}

// elsewhere proves over another connection than the one at hand.
type elsewhere struct{ proof.Prover }

func (e elsewhere) Prove(ctx context.Context, t proof.Transcript) (proof.Evidence, error) {
	t.Binding = make([]byte, proof.BindingBytes)
	return e.Prover.Prove(ctx, t)
}

// Without roots in the manifest the type is not known; taking them away sticks.
func TestX509NeedsRootsInTheManifest(t *testing.T) {
	pki := pkitest.NewPKI(t, "corp", nil)
	d := coordinatortest.ReadyDesk(t, coordinatortest.PoolEntries)
	coordinatortest.WantCode(t, d.Machine().Join(identity.Data,
		coordinatortest.CorpProver(t, pki, coordinatortest.CommonName(
			"node-c"))),
		errcode.ProofUnknownType)
	if err := d.Set(coordinatortest.CorpEntries(pki)); err != nil {
		t.Fatal(err)
	}
	m := d.Machine()
	if err := m.Join(identity.Data, coordinatortest.CorpProver(t, pki,
		coordinatortest.CommonName("node-c"))); err != nil {
		t.Fatal(err)
	}
	d.Restart()
	if err := d.Machine().Join(identity.Data,
		coordinatortest.CorpProver(t, pki, coordinatortest.CommonName("node-d"))); err != nil {
		t.Fatalf("after a restart: %v", err)
	}
	other := pkitest.NewPKI(t, "corp", nil)
	if err := d.Set(coordinatortest.CorpEntries(other)); err != nil {
		t.Fatal(err)
	}
	coordinatortest.WantCode(t, d.Machine().Join(identity.Data,
		coordinatortest.CorpProver(t, pki, coordinatortest.CommonName(
			"node-e"))),
		errcode.JoinCertificateForeign)
	if err := d.Set(coordinatortest.PoolEntries); err != nil {
		t.Fatal(err)
	}
	coordinatortest.WantCode(t, d.Machine().Join(identity.Data,
		coordinatortest.CorpProver(t, other, coordinatortest.CommonName(
			"node-e"))),
		errcode.ProofUnknownType)
	coordinatortest.WantCode(t, m.Renew(), errcode.RenewEntryGone)
}

// A proof that a relay passes on is bound to the candidate's session with the relay.
func TestRelayedX509ProofIsRefused(t *testing.T) {
	t.Parallel()
	pki := pkitest.NewPKI(t, "corp", nil)
	f := coordinatortest.NewFleet(t, nil)
	if err := f.Set(f.Manifest(coordinatortest.CorpEntries(pki))); err != nil {
		t.Fatal(err)
	}
	prover := coordinatortest.CorpProver(t, pki, coordinatortest.CommonName("node-c"))
	before := f.Catalog()
	relay := newRelay(t, f)
	conn, err := grpc.NewClient("passthrough:///"+relay.addr,
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{InsecureSkipVerify: true,
			MinVersion: tls.VersionTLS13})))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	coordinatortest.WantCode(t, f.Node().JoinOver(f.Context(), conn, identity.Data, prover), errcode.ProofOtherSession)
	if !relay.forwarded() {
		t.Fatal("the relay forwarded nothing: the test proves nothing")
	}
	if f.Catalog() != before {
		t.Fatal("the catalog changed")
	}
	pinned := f.Node()
	pinned.Dialer.Dialer = func(ctx context.Context, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", relay.addr)
	}
	if err := pinned.Join(identity.Data, prover); err == nil {
		t.Fatal("a pinned candidate spoke to the relay")
	}
	if err := f.Node().Join(identity.Data, prover); err != nil {
		t.Fatalf("the same certificate over one session: %v", err)
	}
}
