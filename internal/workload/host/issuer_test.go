package host_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fealty-io/fealty/identity"
	internalidentity "github.com/fealty-io/fealty/internal/identity"
	"github.com/fealty-io/fealty/internal/pki"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
	internalworkload "github.com/fealty-io/fealty/internal/workload"
	"github.com/fealty-io/fealty/internal/workload/host"
)

const cluster = "test.example"

// site is a node with a coordinator that has switches.
type site struct {
	t     *testing.T
	auth  *pkitest.Authority
	disk  *durabletest.Disk
	start time.Time
	log   bytes.Buffer

	mu      sync.Mutex
	offset  time.Duration // of the node's clock; guarded by mu
	down    error         // guarded by mu
	refuse  string        // guarded by mu
	lost    bool          // the answer; guarded by mu
	asked   []time.Time   // guarded by mu
	batches []int         // guarded by mu
	// answer changes what is answered, and signed is called after a batch was signed. Guarded by mu.
	answer func([]host.Answer) []host.Answer
	signed func()
	cut    time.Time        // no certificate lives longer; guarded by mu
	bundle *identity.Bundle // guarded by mu
}

func newSite(t *testing.T) *site {
	s := &site{t: t, disk: durabletest.NewDisk(), start: time.Now()}
	s.auth = pkitest.NewAuthority(t, cluster, pkitest.WithClock(time.Now))
	s.bundle = s.auth.Bundle()
	return s
}

func (s *site) now() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Add(s.offset)
}

func (s *site) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// public is a key that somebody else has.
type public struct{ crypto.PublicKey }

func (p public) Public() crypto.PublicKey { return p.PublicKey }
func (public) Sign(io.Reader, []byte, crypto.SignerOpts) ([]byte, error) {
	return nil, errors.New("not mine")
}

func (s *site) issue(id identity.ID, key crypto.Signer, ttl time.Duration) [][]byte {
	now := time.Now().Truncate(time.Second)
	until := now.Add(ttl)
	if !s.cut.IsZero() && s.cut.Before(until) {
		until = s.cut
	}
	chain, _ := s.auth.Issue(s.t, id, pkitest.WithKey(key),
		pkitest.WithValidity(now.Add(-internalidentity.Backdate), until),
		pkitest.WithTemplate(func(c *x509.Certificate) {
			c.Subject = pkix.Name{CommonName: internalidentity.VoucherName("data/node-a", s.auth.MeshCA().KeyID().String())}
		}))
	return [][]byte{chain[0].Raw, chain[1].Raw, s.auth.Root().Cert.Raw}
}

func (s *site) certify(ctx context.Context, asks []host.Ask) ([]host.Answer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked, s.batches = append(s.asked, time.Now()), append(s.batches, len(asks))
	if s.down != nil {
		return nil, s.down
	}
	var out []host.Answer
	for _, a := range asks {
		if s.refuse != "" {
			out = append(out, host.Answer{Refusal: s.refuse})
			continue
		}
		key, err := pki.ParseCSR(a.CSR)
		if err != nil {
			return nil, err
		}
		out = append(out, host.Answer{Chain: s.issue(a.Registration.ID, public{key}, a.Registration.TTL)})
	}
	if s.answer != nil {
		out = s.answer(out)
	}
	if s.lost {
		return nil, errors.New("the answer was lost")
	}
	return out, nil
}

func (s *site) issuer() *host.Issuer {
	return host.NewIssuer(host.IssuerConfig{FS: s.disk.FS(), Dir: "workloads", Certify: s.certify, Now: s.now,
		Verify: func(chain []*x509.Certificate) (identity.Verified, error) {
			s.mu.Lock()
			bundle := s.bundle
			s.mu.Unlock()
			v, err := bundle.Verify(chain, s.now())
			s.mu.Lock()
			signed := s.signed
			s.mu.Unlock()
			if signed != nil {
				signed()
			}
			return v, err
		}, Log: slog.New(slog.NewTextHandler(&s.log, nil))})
}

// run runs i until the test ends or what it returns is called.
func (s *site) run(i *host.Issuer) (stop func()) {
	ctx, cancel := context.WithCancel(s.t.Context())
	done := make(chan error, 1)
	go func() { done <- i.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			s.t.Errorf("Run ended with %v", err)
		}
	})
	s.t.Cleanup(stop)
	synctest.Wait()
	return stop
}

func (s *site) calls() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.asked)
}

// serial is that of what id is given, and what refuses it.
func serial(i *host.Issuer, id identity.ID) string {
	svid, err := i.SVID(id)
	if err != nil {
		return ""
	}
	return svid.Leaf().SerialNumber.String()
}

func (s *site) files() []string {
	names, err := s.disk.FS().ReadDir("workloads")
	if err != nil {
		return nil
	}
	return names
}

func pass(d time.Duration) { time.Sleep(d); synctest.Wait() }

func registered(t *testing.T, ttl time.Duration, names ...string) (out []internalworkload.Registration) {
	uid := uint32(7)
	for _, n := range names {
		id, err := identity.New(cluster, identity.Workload, n)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, internalworkload.Registration{Service: n, ID: id, TTL: ttl, Selector: internalworkload.Selector{UID: &uid}})
	}
	return out
}

func inside(t *testing.T, f func(t *testing.T, s *site)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, newSite(t)) })
}

// A workload is certified when it is registered, and anew between 40% and 60% of a life, each at
// a point of its own that it keeps.
func TestRenewal(t *testing.T) {
	inside(t, func(t *testing.T, s *site) {
		i, regs := s.issuer(), registered(t, time.Hour, "a", "b", "c", "d", "e", "f")
		changed := i.Changed()
		i.Register(regs)
		var none *host.NoneError
		if _, err := i.SVID(regs[0].ID); !errors.As(err, &none) || none.Err != nil {
			t.Errorf("before the first answer: %v", err)
		}
		s.run(i)
		select {
		case <-changed:
		default:
			t.Error("nobody was told")
		}
		points := make(map[time.Duration]bool)
		for n := range regs {
			one := newSite(t)
			i := one.issuer()
			i.Register(regs[n : n+1])
			one.run(i)
			first := serial(i, regs[n].ID)
			if first == "" {
				t.Fatalf("%s is not certified", regs[n].ID)
			}
			pass(24*time.Minute - time.Second)
			if serial(i, regs[n].ID) != first {
				t.Errorf("%s was renewed before 40%% of its life", regs[n].ID)
			}
			pass(12*time.Minute + 2*time.Second)
			if serial(i, regs[n].ID) == first || one.calls() != 2 {
				t.Errorf("%s was not renewed once by 60%% of its life: %d calls", regs[n].ID, one.calls())
			}
			points[one.asked[1].Sub(one.asked[0]).Round(time.Second)] = true
		}
		if len(points) < len(regs) {
			t.Errorf("workloads are renewed together: %v", points)
		}
	})
}

// A short life, by what is registered or by the member's own end, is no reason to ask without a pause.
func TestShortLives(t *testing.T) {
	inside(t, func(t *testing.T, s *site) {
		i, regs := s.issuer(), registered(t, time.Minute, "a", "b", "c", "d", "e", "f", "g", "h")
		i.Register(regs)
		s.run(i)
		pass(10 * time.Minute)
		// Each is renewed after 24 s at the earliest.
		if n := s.calls(); n > 1+len(regs)*25 {
			t.Errorf("%d calls in ten minutes for %d workloads of a minute", n, len(regs))
		}
		for _, r := range regs {
			if serial(i, r.ID) == "" {
				t.Errorf("%s has no certificate", r.ID)
			}
		}
		// The member's own certificate ends, and so does all that it vouches for.
		s.set(func() { s.cut = time.Now().Truncate(time.Second).Add(2 * time.Minute) })
		before := s.calls()
		pass(2*time.Minute - time.Second)
		if n := s.calls() - before; n > len(regs)*25 {
			t.Errorf("%d calls in the last two minutes", n)
		}
	})
}

// A refusal is asked about again ever more rarely, up to every five minutes, and logged once; a
// new bundle has it asked at once.
func TestRefusal(t *testing.T) {
	inside(t, func(t *testing.T, s *site) {
		i, regs := s.issuer(), registered(t, time.Hour, "a")
		s.refuse = "not yours"
		i.Register(regs)
		s.run(i)
		if _, err := i.SVID(regs[0].ID); err == nil || !strings.Contains(err.Error(), "not yours") {
			t.Errorf("refused: %v", err)
		}
		pass(time.Hour)
		var pauses []time.Duration
		for n := range s.asked[1:] {
			pauses = append(pauses, s.asked[n+1].Sub(s.asked[n]))
		}
		want := []time.Duration{5 * time.Second, 10 * time.Second, 20 * time.Second, 40 * time.Second, 80 * time.Second,
			160 * time.Second, 5 * time.Minute, 5 * time.Minute}
		if len(pauses) < len(want) || !slices.Equal(pauses[:len(want)], want) {
			t.Errorf("asked again after %v, want %v", pauses, want)
		}
		if n := strings.Count(s.log.String(), "a workload is not certified"); n != 1 {
			t.Errorf("logged %d times", n)
		}
		s.set(func() { s.refuse = "" })
		i.Recheck()
		synctest.Wait()
		if serial(i, regs[0].ID) == "" {
			t.Error("not certified after another bundle")
		}
	})
}

// In an outage a certificate is given until its end and never after, callers are told of its end,
// and the first coordinator that answers ends it.
func TestOutage(t *testing.T) {
	inside(t, func(t *testing.T, s *site) {
		i, regs := s.issuer(), registered(t, time.Hour, "a")
		i.Register(regs)
		s.run(i)
		first := serial(i, regs[0].ID)
		s.set(func() { s.down = errors.New("no coordinator answers") })
		pass(time.Hour - 2*time.Second)
		if serial(i, regs[0].ID) != first {
			t.Fatal("it was not given until its end")
		}
		changed := i.Changed()
		pass(2 * time.Second)
		select {
		case <-changed:
		default:
			t.Error("callers were not told of the end")
		}
		if _, err := i.SVID(regs[0].ID); err == nil || !strings.Contains(err.Error(), "no coordinator answers") {
			t.Errorf("after its end: %v", err)
		}
		if st := i.States(); len(st) != 1 || !st[0].NotAfter.IsZero() || st[0].Err == nil {
			t.Errorf("after its end: %+v", st)
		}
		s.set(func() { s.down = nil })
		pass(time.Minute)
		if serial(i, regs[0].ID) == "" {
			t.Error("not certified a minute after the outage")
		}
	})
}

// A clock that is set forth for a while costs nothing that was certified, and one that is set
// back neither stops renewal nor has anything given before its time.
func TestClockIsSet(t *testing.T) {
	inside(t, func(t *testing.T, s *site) {
		i, regs := s.issuer(), registered(t, time.Hour, "a")
		i.Register(regs)
		s.run(i)
		first := serial(i, regs[0].ID)
		s.set(func() { s.down, s.offset = errors.New("away"), 2*time.Hour })
		if serial(i, regs[0].ID) != "" {
			t.Error("given past its end")
		}
		pass(5 * time.Minute)
		s.set(func() { s.offset = 0 })
		pass(time.Minute)
		if serial(i, regs[0].ID) != first {
			t.Error("lost, though the clock is right again")
		}
		s.set(func() { s.offset = -2 * time.Hour })
		if serial(i, regs[0].ID) != "" {
			t.Error("given before its time")
		}
		pass(time.Minute)
		s.set(func() { s.offset, s.down = 0, nil })
		pass(2 * time.Minute)
		if got := serial(i, regs[0].ID); got == "" {
			t.Error("not certified though the clock is right and coordinators answer")
		}
		// A renewal that was put off while the clock was ahead is not put off for as long.
		s.set(func() { s.offset, s.refuse = 24*time.Hour, "no" })
		pass(10 * time.Minute)
		s.set(func() { s.offset, s.refuse = 0, "" })
		for range 120 {
			pass(time.Minute)
			if serial(i, regs[0].ID) == "" {
				t.Fatal("not renewed in time after the clock was set back")
			}
		}
	})
}

// Others are told when somebody is told otherwise than they were, because the clock was set: also where Run
// looks before and after that, and sees nothing.
func TestClockThatNobodySaw(t *testing.T) {
	inside(t, func(t *testing.T, s *site) {
		i, regs := s.issuer(), registered(t, time.Hour, "a")
		i.Register(regs)
		s.run(i)
		if serial(i, regs[0].ID) == "" {
			t.Fatal("not certified")
		}
		for _, offset := range []time.Duration{2 * time.Hour, 0, -2 * time.Hour, 0} {
			changed := i.Changed()
			s.set(func() { s.down, s.offset = errors.New("away"), offset })
			if got := serial(i, regs[0].ID); (got == "") != (offset != 0) {
				t.Errorf("with a clock that is off by %v it gives %q", offset, got)
			}
			select {
			case <-changed:
			default:
				t.Errorf("nobody is told with a clock that is off by %v", offset)
			}
			changed = i.Changed()
			serial(i, regs[0].ID)
			select {
			case <-changed:
				t.Errorf("others are told twice, off by %v", offset)
			default:
			}
		}
	})
}

// A certificate on disk is given at once after a restart, unless it does not count any more.
func TestRestart(t *testing.T) {
	for _, tc := range []struct {
		name  string
		spoil func(s *site, path string)
		given bool
	}{
		{"as it was", func(*site, string) {}, true},
		{"power cut", func(s *site, _ string) { s.disk.Restart(durabletest.Synced) }, true},
		{"damaged", func(s *site, path string) {
			raw, _, _ := s.disk.Read(path, 1<<20)
			raw = bytes.Clone(raw)
			raw[len(raw)/2] ^= 1
			s.disk.Put(path, raw)
		}, false},
		{"cut short", func(s *site, path string) {
			raw, _, _ := s.disk.Read(path, 1<<20)
			s.disk.Put(path, raw[:len(raw)/2])
		}, false},
		{"empty", func(s *site, path string) { s.disk.Put(path, nil) }, false},
		{"huge", func(s *site, path string) { s.disk.Put(path, make([]byte, 4<<20)) }, false},
		{"open to others", func(s *site, path string) { s.disk.Chmod(path, 0o644) }, false},
		{"expired", func(*site, string) { time.Sleep(time.Hour) }, false},
		{"of another root", func(s *site, _ string) {
			s.bundle = pkitest.NewAuthority(s.t, cluster, pkitest.WithClock(time.Now)).Bundle()
		}, false},
		{"banned", func(s *site, _ string) {
			s.bundle = s.auth.Bundle(func(c *identity.BundleConfig) {
				c.BannedIDs = append(c.BannedIDs, s.auth.ID(s.t, identity.Data, "node-a"))
			})
		}, false},
		{"of another workload", func(s *site, path string) {
			// Two files that took each other's name.
			i := s.issuer()
			i.Register(registered(s.t, time.Hour, "other"))
			stop := s.run(i)
			defer stop()
			for _, n := range s.files() {
				if other := filepath.Join("workloads", n); other != path {
					raw, _, _ := s.disk.Read(other, 1<<20)
					s.disk.Put(path, raw)
				}
			}
		}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inside(t, func(t *testing.T, s *site) {
				i, regs := s.issuer(), registered(t, time.Hour, "a")
				i.Register(regs)
				stop := s.run(i)
				first := serial(i, regs[0].ID)
				names := s.files()
				if first == "" || len(names) != 1 {
					t.Fatalf("certified: %q, on disk %q", first, names)
				}
				stop()
				tc.spoil(s, filepath.Join("workloads", names[0]))
				s.set(func() { s.down = errors.New("away") })
				again := s.issuer()
				again.Register(regs)
				switch got := serial(again, regs[0].ID); {
				case tc.given && got != first:
					t.Errorf("after the restart %q, want %q", got, first)
				case !tc.given && got != "":
					t.Errorf("given after the restart")
				}
			})
		})
	}
}

// A workload that is registered no more is given to nobody, at once, and its file goes.
func TestUnregister(t *testing.T) {
	inside(t, func(t *testing.T, s *site) {
		i, regs := s.issuer(), registered(t, time.Hour, "a", "b")
		i.Register(regs)
		s.run(i)
		if n := len(s.files()); n != 2 {
			t.Fatalf("%d files", n)
		}
		i.Register(regs[1:])
		if serial(i, regs[0].ID) != "" || serial(i, regs[1].ID) == "" {
			t.Error("the wrong one is given")
		}
		synctest.Wait()
		if n := len(s.files()); n != 1 {
			t.Errorf("%d files after one was taken away", n)
		}
		// Nothing is removed before anybody knows what is registered, and then what went meanwhile.
		again := s.issuer()
		s.run(again)
		if n := len(s.files()); n != 1 {
			t.Errorf("%d files before the first Register", n)
		}
		again.Register(nil)
		synctest.Wait()
		if n := len(s.files()); n != 0 {
			t.Errorf("%d files after a start with nothing registered", n)
		}
	})
}

// One id that two services register lives as short as the shorter says.
func TestShortestLifeCounts(t *testing.T) {
	inside(t, func(t *testing.T, s *site) {
		i := s.issuer()
		long, short := registered(t, time.Hour, "a")[0], registered(t, 10*time.Minute, "a")[0]
		i.Register([]internalworkload.Registration{short, long})
		s.run(i)
		if st := i.States(); len(st) != 1 || st[0].Registration.TTL != 10*time.Minute {
			t.Errorf("states %+v", st)
		}
	})
}

// A life that is made shorter counts at once, and one that is registered again as it was asks for nothing.
func TestShorterLifeCountsAtOnce(t *testing.T) {
	inside(t, func(t *testing.T, s *site) {
		i := s.issuer()
		i.Register(registered(t, time.Hour, "a"))
		s.run(i)
		pass(12*time.Minute + time.Second) // not the time of a look that Run takes anyway
		i.Register(registered(t, time.Hour, "a"))
		synctest.Wait()
		if n := s.calls(); n != 1 {
			t.Fatalf("%d calls for one certificate that lasts", n)
		}
		i.Register(registered(t, 10*time.Minute, "a"))
		synctest.Wait()
		if n := s.calls(); n != 2 {
			t.Errorf("%d calls once it is to live no longer than it did, want 2", n)
		}
	})
}

// A mesh CA that the bundle drops takes its certificates with it, and another one is asked for;
// also one that was signed before the bundle came and is accepted after.
func TestRecheck(t *testing.T) {
	inside(t, func(t *testing.T, s *site) {
		i, regs := s.issuer(), registered(t, time.Hour, "a")
		i.Register(regs)
		s.run(i)
		first := serial(i, regs[0].ID)
		next := func() {
			s.auth.AddMeshCA(t)
			last := s.auth.MeshCA().KeyID()
			s.bundle = s.auth.Bundle(func(c *identity.BundleConfig) {
				c.MeshKeys = []identity.KeyID{last}
			})
		}
		s.set(next)
		i.Recheck()
		synctest.Wait()
		second := serial(i, regs[0].ID)
		if second == first || second == "" {
			t.Errorf("first %q, after the recheck %q", first, second)
		}
		// The bundle changes between the check of an answer and its use.
		swapped := false
		s.set(func() {
			s.signed = func() {
				s.mu.Lock()
				if swapped {
					s.mu.Unlock()
					return
				}
				swapped = true
				next()
				s.mu.Unlock()
				i.Recheck()
			}
		})
		pass(37 * time.Minute)
		svid, err := i.SVID(regs[0].ID)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.bundle.Verify(svid.Chain, s.now()); err != nil || !swapped {
			t.Errorf("given though the bundle dropped its mesh CA: %v", err)
		}
	})
}

// A certificate that was checked under the bundle before, and comes into use while a recheck looks
// at the others, does not slip through it.
func TestRecheckMissesNone(t *testing.T) {
	inside(t, func(t *testing.T, s *site) {
		i, regs := s.issuer(), registered(t, time.Hour, "a", "b")
		i.Register(regs[:1])
		s.run(i)
		checked, free := make([]chan struct{}, 2), 0 // the first two checks wait: of b, and of a in the recheck
		for n := range checked {
			checked[n] = make(chan struct{})
		}
		s.set(func() {
			s.signed = func() {
				s.mu.Lock()
				n := free
				free++
				s.mu.Unlock()
				if n < len(checked) {
					<-checked[n]
				}
			}
		})
		i.Register(regs)
		synctest.Wait()
		s.set(func() {
			s.auth.AddMeshCA(t)
			last := s.auth.MeshCA().KeyID()
			s.bundle = s.auth.Bundle(func(c *identity.BundleConfig) { c.MeshKeys = []identity.KeyID{last} })
		})
		rechecked := make(chan struct{})
		go func() { i.Recheck(); close(rechecked) }()
		synctest.Wait()
		close(checked[0])
		synctest.Wait()
		close(checked[1])
		<-rechecked
		pass(time.Minute)
		for _, r := range regs {
			svid, err := i.SVID(r.ID)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.bundle.Verify(svid.Chain, s.now()); err != nil {
				t.Errorf("%s is given though the bundle dropped its mesh CA: %v", r.ID, err)
			}
		}
	})
}

// A thousand workloads are asked about 64 at a time; an outage costs one call for each batch and
// pause, and the disk keeps nobody waiting.
func TestThousand(t *testing.T) {
	inside(t, func(t *testing.T, s *site) {
		var names []string
		for n := range 1000 {
			names = append(names, fmt.Sprintf("w%04d", n))
		}
		i, regs := s.issuer(), registered(t, time.Hour, names...)
		i.Register(regs)
		s.run(i)
		if got := s.batches; len(got) != 16 || slices.Max(got) != host.MaxBatch {
			t.Errorf("asked in %v", got)
		}
		for _, r := range regs {
			if serial(i, r.ID) == "" {
				t.Fatalf("%s is not certified", r.ID)
			}
		}
		if n := len(s.files()); n != 1000 {
			t.Errorf("%d files", n)
		}
	})
}

// An answer that is lost, or is not what was asked for, changes nothing but the pause.
func TestBadAnswers(t *testing.T) {
	for _, tc := range []struct {
		name string
		set  func(s *site)
	}{
		{"lost", func(s *site) { s.lost = true }},
		{"none", func(s *site) { s.answer = func([]host.Answer) []host.Answer { return nil } }},
		{"too many", func(s *site) {
			s.answer = func(a []host.Answer) []host.Answer { return append(a, a...) }
		}},
		{"neither chain nor refusal", func(s *site) {
			s.answer = func(a []host.Answer) []host.Answer { return make([]host.Answer, len(a)) }
		}},
		{"swapped", func(s *site) {
			s.answer = func(a []host.Answer) []host.Answer { slices.Reverse(a); return a }
		}},
		{"another key", func(s *site) {
			s.answer = func(a []host.Answer) []host.Answer {
				for n, id := range registered(s.t, time.Hour, "a", "b") {
					a[n].Chain = s.issue(id.ID, pkitest.NewKey(s.t), time.Hour)
				}
				return a
			}
		}},
		{"out of date", func(s *site) { s.cut = time.Now().Add(-time.Second) }},
		{"noise", func(s *site) {
			s.answer = func(a []host.Answer) []host.Answer {
				for n := range a {
					raw := make([]byte, 300)
					rand.Read(raw)
					a[n].Chain = [][]byte{raw, raw, raw}
				}
				return a
			}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inside(t, func(t *testing.T, s *site) {
				i, regs := s.issuer(), registered(t, time.Hour, "a", "b")
				tc.set(s)
				i.Register(regs)
				s.run(i)
				for _, r := range regs {
					if serial(i, r.ID) != "" {
						t.Errorf("%s is given", r.ID)
					}
				}
				pass(time.Minute)
				if n := s.calls(); n > 8 {
					t.Errorf("%d calls in a minute", n)
				}
				s.set(func() { s.lost, s.answer, s.cut = false, nil, time.Time{} })
				pass(2 * time.Minute)
				for _, r := range regs {
					if serial(i, r.ID) == "" {
						t.Errorf("%s is not given after a good answer", r.ID)
					}
				}
			})
		})
	}
}

// A disk that fails costs nobody a certificate, and has them all once it works.
func TestDisk(t *testing.T) {
	inside(t, func(t *testing.T, s *site) {
		i, regs := s.issuer(), registered(t, time.Hour, "a", "b", "c")
		s.disk.Refuse(errors.New("no space left"))
		i.Register(regs)
		s.run(i)
		for _, r := range regs {
			if serial(i, r.ID) == "" {
				t.Errorf("%s is not certified", r.ID)
			}
		}
		pass(5 * time.Minute)
		if n := strings.Count(s.log.String(), "not on disk"); n != 1 {
			t.Errorf("logged %d times in five minutes", n)
		}
		s.disk.Refuse(nil)
		pass(2 * time.Minute)
		if n := len(s.files()); n != 3 {
			t.Errorf("%d files after the disk works", n)
		}
	})
}
