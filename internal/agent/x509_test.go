package agent_test

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"pgregory.net/rapid"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/agent"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/node/nodetest"
	"github.com/fealty-io/fealty/internal/pki/enterprise"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/test/testlane"
)

// Some of the three flags are an error that names the missing ones, and none of the
// three is left to say nothing.
func TestTLSFiles(t *testing.T) {
	for _, tc := range []struct {
		paths   credential.FilePaths
		code    errcode.Code
		missing string
	}{
		{credential.FilePaths{Cert: "a"}, errcode.TLSFilesIncomplete, "--tls-key and --tls-ca"},
		{credential.FilePaths{Key: "a", CA: "b"}, errcode.TLSFilesIncomplete, "--tls-cert"},
		{credential.FilePaths{Cert: "a", Key: "b"}, errcode.TLSFilesIncomplete, "--tls-ca"},
		{credential.FilePaths{}, errcode.CredentialUnusable, ""},
		{credential.FilePaths{Cert: "/nowhere/a", Key: "/nowhere/b", CA: "/nowhere/c"}, errcode.CredentialUnusable,
			"/nowhere/a is missing"},
	} {
		_, err := enterprise.Open(credential.FilesConfig{Paths: tc.paths})
		if !errors.Is(err, tc.code) || !strings.Contains(err.Error(), tc.missing) {
			t.Errorf("%+v: %v", tc.paths, err)
		}
	}
}

// operatorNode is a machine that joined by the certificate in its files.
type operatorNode struct {
	*node
	paths credential.FilePaths
	write func(commonName string)
	id    identity.ID
}

func newOperatorNode(f *nodetest.Fleet) *operatorNode {
	f.TB.Helper()
	t := f.TB.(*testing.T)
	if f.Pki == nil {
		f.Pki = pkitest.NewPKI(t, "corp", f.Clock)
	}
	n := &operatorNode{node: newNode(f)}
	n.paths, n.write = nodetest.TLSFiles(t, f.Pki)
	n.write("node-k")
	files, err := enterprise.Open(credential.FilesConfig{Paths: n.paths, Now: f.Clock, Log: nodetest.Quiet()})
	f.Must(err)
	r, err := n.Join(f.ByX509(files))
	f.Must(err)
	n.id = r.ID
	return n
}

func (n *operatorNode) open() (*agent.Agent, error) {
	a, err := agent.Open(n.Fleet.TB.Context(), agent.Config{DataDir: n.Dir, FS: n.Disk.FS(), Now: n.Fleet.Clock,
		Log: nodetest.Quiet(), Dial: n.Fleet.Dial, TLS: n.paths})
	if a != nil {
		a.Serve("", "")
	}
	return a, err
}

func (n *operatorNode) mustOpen() *agent.Agent {
	n.Fleet.TB.Helper()
	a, err := n.open()
	n.Fleet.Must(err)
	return a
}

// isBack checks that the node is the member that it was, on both sides.
func (n *operatorNode) isBack(t require, a *agent.Agent) {
	m := n.Fleet.Member(n.id)
	switch {
	case a.Node().Me().ID != n.id || a.Node().Self().ID != n.id || m.ID != n.id:
		t.Fatalf("it is %v, and %v in the record, was %v", a.Node().Self().ID, m.ID, n.id)
	case m.Key != a.Node().SVID().Key.ID:
		t.Fatalf("the member's key is %v, the node's %v", m.Key, a.Node().SVID().Key.ID)
	case m.Incarnation != a.Node().Self().Incarnation:
		t.Fatalf("the member's incarnation is %v, the node's %v", m.Incarnation, a.Node().Self().Incarnation)
	case a.Unready() != "" || bootVersion(a) == 0:
		t.Fatalf("not ready: %q, bootstrap %d", a.Unready(), bootVersion(a))
	case n.Fleet.Count(&n.Fleet.Seen.Clones) != 0:
		t.Fatalf("a clone alarm for one node")
	}
}

// require is a test, or one run of a property.
type require interface {
	Fatalf(format string, args ...any)
}

// A running agent that was cut off for longer than its certificate and any grace comes
// back by itself, as the member that it was; so does one that is started then.
func TestComesBackByCertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := nodetest.New(t)
		f.Do(func() { f.SVIDTTL, f.RenewEvery, f.Grace = 2*time.Hour, 10*time.Minute, 3*time.Hour })
		n := newOperatorNode(f)
		a := n.mustOpen()
		stop := n.run(a)
		time.Sleep(time.Minute)
		first := a.Node().Self().Incarnation
		var runtime *fealtyv1.SignedSnapshot
		m := f.Member(a.Node().Me().ID)
		f.Do(func() { runtime = f.Runtime(&m) })
		f.Must(n.take(a, runtime))
		if h, _ := runtimeOf(a); h.ConfigVersion == 0 {
			t.Fatalf("no node_runtime is in use: %v", a.Node().Status().Refusals())
		}
		f.Do(func() { f.Faults.Down["all"] = true })
		f.Cut()
		time.Sleep(8 * time.Hour)
		if a.Unready() == "" {
			t.Fatal("the node is ready without a certificate: the test shows nothing")
		}
		f.Do(func() { delete(f.Faults.Down, "all"); f.Seen.Proven = nil })
		time.Sleep(20 * time.Minute)
		n.isBack(t, a)
		if a.Node().Self().Incarnation == first {
			t.Error("an enrolment that is the old incarnation")
		}
		if h, _ := runtimeOf(a); h.ConfigVersion != 0 {
			t.Errorf("the node_runtime of the old incarnation says what the node is: %v", h.Subject)
		}
		if v := a.Node().Status().View(); !v.Connected || v.Renewal != nil {
			t.Errorf("connected %v, shows %v", v.Connected, v.Renewal)
		}
		f.Do(func() {
			if i := slices.Index(f.Seen.Proven, proof.TypeX509); i < 1 || f.Seen.Proven[i-1] != proof.TypeSVID {
				t.Errorf("it proved %v, want its own key before the certificate", f.Seen.Proven)
			}
		})
		_ = stop()

		f.Shift.Store(int64(8 * time.Hour))
		n.write("node-k") // the PKI renews it
		a = n.mustOpen()
		if got := a.Node().Status().Refusals(); len(got) != 0 {
			t.Errorf("left over from the old incarnation: %v", got)
		}
		second := a.Node().Self().Incarnation
		stop = n.run(a)
		time.Sleep(20 * time.Minute)
		n.isBack(t, a)
		if second == first || a.Node().Self().Incarnation == second {
			t.Errorf("incarnations %v, %v, %v", first, second, a.Node().Self().Incarnation)
		}
		_ = stop()
	})
}

// Answers are lost, power fails, the node is away for less and for more than the grace:
// it stays one member, in one incarnation at a time, and no alarm is raised.
func TestReenrolProperty(t *testing.T) {
	testlane.Checks(t, 15, 200)
	f := nodetest.New(t)
	n := newOperatorNode(f)
	enrolled := 0
	course := func(rt *rapid.T, steps []string) {
		f.Shift.Store(0)
		f.Do(func() { clear(f.Members); f.Faults.LoseJoins = 0 })
		n.node = newNode(f)
		n.write("node-k")
		files, err := enterprise.Open(credential.FilesConfig{Paths: n.paths, Now: f.Clock, Log: nodetest.Quiet()})
		f.Must(err)
		_, err = n.Join(f.ByX509(files))
		f.Must(err)
		a := n.mustOpen()
		defer func() { a.Close() }()
		was := a.Node().Self().Incarnation
		for _, step := range steps {
			switch step {
			case "renew":
				_ = a.Renewal().Renew(rt.Context())
			case "away", "long away":
				d := f.SVIDTTL + f.Grace/2
				if step == "long away" {
					d += f.Grace
				}
				f.Shift.Add(int64(d))
				n.write("node-k")
			case "lose":
				f.Do(func() { f.Faults.LoseJoins = 1 })
				if err := a.Renewal().Rejoin(rt.Context()); err == nil {
					rt.Fatal("rejoined without an answer")
				}
			case "cut":
				n.Disk.FailAt(rapid.IntRange(1, 40).Draw(rt, "at"), durabletest.ErrPowerCut)
				_ = a.Renewal().Rejoin(rt.Context())
				n.Disk.Restart(rapid.SampledFrom(durabletest.Afters()).Draw(rt, "after"))
				a = n.mustOpen()
			case "restart":
				a.Close()
				a = n.mustOpen()
			}
		}
		if err := a.Renewal().Rejoin(rt.Context()); err != nil {
			rt.Fatalf("in the end: %v", err)
		}
		n.isBack(rt, a)
		a.Close()
		a = n.mustOpen()
		n.isBack(rt, a)
		if a.Node().Self().Incarnation != was {
			enrolled++
		}
		f.Do(func() {
			if len(f.Members) != 1 {
				rt.Fatalf("it is %d members", len(f.Members))
			}
		})
	}
	rapid.Check(t, func(rt *rapid.T) {
		course(rt, rapid.SliceOfN(rapid.SampledFrom([]string{"renew", "away", "long away", "lose", "cut", "restart"}), 1,
			6).Draw(rt, "steps"))
	})
	// None of these may have been away for longer than the grace.
	rapid.Check(t, func(rt *rapid.T) {
		course(rt, []string{"long away", rapid.SampledFrom([]string{"renew", "lose", "restart"}).Draw(rt, "then")})
	})
	if enrolled == 0 {
		t.Error("no run enrolled anew: the test shows nothing")
	}
}

// Only the one answer that the grace is over, which who is no clone and not banned
// gets, makes an agent prove the certificate.
func TestNoReenrolment(t *testing.T) {
	for _, code := range []errcode.Code{
		errcode.JoinBanned, errcode.CallerBanned, errcode.JoinClone, errcode.JoinUnauthorized, errcode.JoinKindMismatch,
		errcode.RenewOlderKey,
		errcode.RenewEntryGone, errcode.JoinNameTaken, errcode.RateLimited, errcode.RecoveryMode, errcode.Unreachable,
	} {
		f := nodetest.New(t)
		n := newOperatorNode(f)
		a := n.mustOpen()
		before := f.Member(n.id)
		f.Shift.Store(int64(f.SVIDTTL + f.Grace + time.Hour))
		n.write("node-k")
		f.Do(func() { f.Seen.Proven, f.Faults.RefuseSVID = nil, errcode.New(code) })
		if err := a.Renewal().Rejoin(t.Context()); !errors.Is(err, code) {
			t.Errorf("%s: %v", code, err)
		}
		if after := f.Member(n.id); slices.Contains(f.Seen.Proven, proof.TypeX509) || after.Key != before.Key {
			t.Errorf("%s: it proved %v", code, f.Seen.Proven)
		}
		a.Close()
	}
}

// A copy of the machine's state is a clone, also where the operator's files were copied
// with it: the certificate is no way around the alarm.
func TestCloneDoesNotReenrol(t *testing.T) {
	f := nodetest.New(t)
	n := newOperatorNode(f)
	thief := &operatorNode{node: n.clone(), paths: n.paths, write: n.write, id: n.id}
	a := n.mustOpen()
	defer a.Close()
	f.Must(a.Renewal().Renew(t.Context()))
	f.Shift.Store(int64(f.SVIDTTL + f.Grace + time.Hour))
	n.write("node-k")
	b := thief.mustOpen()
	defer b.Close()
	if err := b.Renewal().Rejoin(t.Context()); !errors.Is(err, errcode.JoinClone) || f.Count(&f.Seen.Clones) != 1 {
		t.Errorf("the clone: %v, %d alarms", err, f.Count(&f.Seen.Clones))
	}
	if f.Member(n.id).Key != a.Node().SVID().Key.ID {
		t.Error("the clone took the member over")
	}
	// The one with the last key comes back.
	f.Must(a.Renewal().Rejoin(t.Context()))
	if f.Member(n.id).Key != a.Node().SVID().Key.ID {
		t.Error("the member is not back")
	}
}

// With the certificate of another member an agent becomes nobody else, and adds no
// member beside itself.
func TestReenrolAsAnother(t *testing.T) {
	f := nodetest.New(t)
	n := newOperatorNode(f)
	n.node = newNode(f)
	n.id = n.MustJoin().ID // by a token, under another name than its certificate gives
	a := n.mustOpen()
	defer a.Close()
	f.Do(func() { delete(f.Members, "data/node-k") })
	f.Shift.Store(int64(f.SVIDTTL + f.Grace + time.Hour))
	n.write("node-k")
	if err := a.Renewal().Rejoin(t.Context()); !errors.Is(err, errcode.JoinOtherMember) {
		t.Errorf("%v", err)
	}
	if len(f.Members) != 1 || a.Node().Self().ID != n.id {
		t.Errorf("%d members; the node is %s, was %s", len(f.Members), a.Node().Self().ID, n.id)
	}
}

// Without the files, or with ones that a coordinator refuses, the agent stays up and
// says why; files that are mended are tried at once.
func TestReenrolRefusedThenMended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := nodetest.New(t)
		f.Do(func() { f.SVIDTTL, f.RenewEvery, f.Grace = 2*time.Hour, 10*time.Minute, time.Hour })
		n := newOperatorNode(f)
		a := n.mustOpen()
		own := f.Pki
		f.Do(func() { f.Pki = pkitest.NewPKI(t, "corp", f.Clock) }) // the manifest names another root
		f.Shift.Store(int64(10 * time.Hour))
		stop := n.run(a)
		time.Sleep(time.Minute + time.Second)
		if v := a.Node().Status().View(); !errors.Is(v.Renewal, errcode.JoinUnauthorized) || a.Unready() == "" {
			t.Fatalf("shows %v", v.Renewal)
		}
		f.Do(func() { f.Pki = own })
		n.write("node-k")
		time.Sleep(10 * time.Second) // far less than the pause after a lasting refusal
		if v := a.Node().Status().View(); v.Renewal != nil || a.Unready() != "" {
			t.Errorf("after the files were mended it shows %v, %q", v.Renewal, a.Unready())
		}
		_ = stop()
	})
}

// The fault of new files is shown, counted once, and mended by itself; good material
// stays in use meanwhile.
func TestFilesRotate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := nodetest.New(t)
		n := newOperatorNode(f)
		stranger := pkitest.NewPKI(t, "other", f.Clock)
		a := n.mustOpen()
		stop := n.run(a)
		// The agent looks every five seconds. The writing is done between two looks, or it
		// is the writing that is seen.
		time.Sleep(time.Second)
		put := func(path string, data []byte) {
			t.Helper()
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		issue := func(pki *pkitest.PKI, edit func(*x509.Certificate)) {
			key := pkitest.NewKey(t)
			put(n.paths.Cert, pkitest.PEM(pki.Issue(t, key, edit)...))
			put(n.paths.Key, pkitest.KeyPEM(t, key))
		}
		for _, tc := range []struct {
			name   string
			spoil  func()
			reason credential.Reason
			code   errcode.Code
		}{
			{"half-written", func() {
				data, err := os.ReadFile(n.paths.Cert)
				f.Must(err)
				put(n.paths.Cert, data[:len(data)/2])
			}, credential.Malformed, errcode.CredentialUnusable},
			{"missing", func() { f.Must(os.Remove(n.paths.CA)) }, credential.Unreadable, errcode.CredentialUnusable},
			{"new certificate, old key", func() {
				put(n.paths.Cert, pkitest.PEM(f.Pki.Issue(t, pkitest.NewKey(t), nil)...))
			}, credential.KeyMismatch, errcode.CredentialMismatch},
			{"expired", func() {
				issue(f.Pki, func(c *x509.Certificate) { c.NotAfter = f.Clock().Add(-time.Second) })
			}, credential.Expired, errcode.CredentialExpired},
			{"not yet valid", func() {
				issue(f.Pki, func(c *x509.Certificate) { c.NotBefore = f.Clock().Add(time.Hour) })
			}, credential.Expired, errcode.CredentialExpired},
			{"foreign", func() { issue(stranger, nil) }, credential.Untrusted, errcode.CredentialForeign},
			{"garbage", func() { put(n.paths.Key, []byte("garbage")) }, credential.Malformed,
				errcode.CredentialUnusable},
		} {
			n.write("node-k")
			time.Sleep(17 * time.Second)
			good, err := a.Operator().Current(t.Context())
			f.Must(err)
			if c := enterprise.Tell(t.Context(), a.Operator()); c.GetProblem() != "" || c.GetFile() != n.paths.Cert ||
				c.GetSubject() != "CN=node-k" {
				t.Fatalf("%s: good files show %v", tc.name, c)
			}
			counter := a.Counters().Reloads().WithLabelValues(string(tc.reason))
			before := testutil.ToFloat64(counter)
			tc.spoil()
			time.Sleep(63 * time.Second) // nobody asks: the agent looks by itself
			if got := testutil.ToFloat64(counter) - before; got != 1 {
				t.Errorf("%s: counted %v times as %s, want once", tc.name, got, tc.reason)
			}
			c := enterprise.Tell(t.Context(), a.Operator())
			if c.GetReason() != string(tc.reason) || !strings.HasPrefix(c.GetProblem(), string(tc.code)+": ") {
				t.Errorf("%s: shows %q, %q; want %s, %s", tc.name, c.GetReason(), c.GetProblem(), tc.reason, tc.code)
			}
			if m, err := a.Operator().Current(t.Context()); err != nil || m != good {
				t.Errorf("%s: the last good certificate is not in use: %v, %v", tc.name, m, err)
			}
		}
		if n, err := testutil.GatherAndCount(a.Counters().Registry(),
			"fealty_operator_certificate_not_after_seconds"); err != nil || n != 1 {
			t.Errorf("%d gauges of the end, %v", n, err)
		}
		_ = stop()
	})
}

// A member that was started under an earlier release with a certificate which this one
// refuses starts, renews, and says what is wrong with it; when the file is mended that is
// over. Nobody joins by such a certificate.
func TestStartsWithACertificateOfBefore(t *testing.T) {
	for name, edit := range map[string]func(*x509.Certificate){
		"name constraints in the leaf": func(c *x509.Certificate) {
			c.PermittedDNSDomains, c.PermittedDNSDomainsCritical = []string{"corp.example"}, true
		},
		"a critical usage that nobody knows": func(c *x509.Certificate) {
			usages, err := asn1.Marshal([]asn1.ObjectIdentifier{{1, 3, 6, 1, 5, 5, 7, 3, 2},
				{1, 3, 6, 1, 4, 1, 99999, 1}})
			if err != nil {
				t.Fatal(err)
			}
			c.ExtKeyUsage = nil
			c.ExtraExtensions = append(c.ExtraExtensions,
				pkix.Extension{Id: asn1.ObjectIdentifier{2, 5, 29, 37}, Critical: true, Value: usages})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := nodetest.New(t)
				n := newOperatorNode(f)
				key := pkitest.NewKey(t)
				chain := f.Pki.Issue(t, key, func(c *x509.Certificate) { c.Subject.CommonName = "node-k"; edit(c) })
				for path, data := range map[string][]byte{n.paths.Cert: pkitest.PEM(chain...),
					n.paths.Key: pkitest.KeyPEM(t, key)} {
					f.Must(os.WriteFile(path, data, 0o600))
				}
				if _, err := enterprise.Open(credential.FilesConfig{Paths: n.paths, Now: f.Clock,
					Log: nodetest.Quiet()}); !errors.Is(err, errcode.CredentialForeign) {
					t.Fatalf("a join by it: %v", err)
				}
				a := n.mustOpen()
				stop := n.run(a)
				time.Sleep(time.Hour)
				if f.Count(&f.Seen.Renewals) == 0 || a.Unready() != "" {
					t.Errorf("%d renewals, unready %q", f.Count(&f.Seen.Renewals), a.Unready())
				}
				if told := enterprise.Tell(t.Context(), a.Operator()); told.GetReason() != string(credential.Untrusted) ||
					!strings.Contains(told.GetProblem(), string(errcode.CredentialForeign)) {
					t.Errorf("status says %v", told)
				}
				n.write("node-k")
				time.Sleep(time.Minute) // the times of files are those of the machine, which stand still here
				if told := enterprise.Tell(t.Context(), a.Operator()); told.GetReason() != "" {
					t.Errorf("status says %v of what was mended", told)
				}
				_ = stop()
			})
		})
	}
}
