package snapshot

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/snapshot"
)

// step presents a snapshot to a node. Zero fields mean: epoch 3, the content and
// the root that follow from version and generation, issued at the version's time.
type step struct {
	epoch, version, generation uint64
	content, root              byte
	issued                     int // minutes after the base time
	subject                    Subject
	want                       Reason // "": accepted
}

func (s step) verified(f *fleet) *Verified {
	h := f.header()
	h.ScopeType, h.Subject = ScopeNodeBootstrap, s.subject
	if h.Subject.IsZero() {
		h.Subject = NodeSubject(f.me, f.incarnation)
	}
	h.AuthorityEpoch, h.ConfigVersion = s.epoch, s.version
	if h.AuthorityEpoch == 0 {
		h.AuthorityEpoch = 3
	}
	h.ContentHash = DigestOf(fmt.Append(nil, s.epoch, s.version, s.content))
	h.IssuedAt = f.now.Add(time.Duration(s.issued) * time.Minute)
	r := f.record()
	r.AuthorityEpoch, r.Generation = h.AuthorityEpoch, s.generation
	r.Root = DigestOf(fmt.Append(nil, h.AuthorityEpoch, s.generation, s.root))
	r.IssuedAt = h.IssuedAt
	return &Verified{
		activation: activation{h, DigestOf(must(encode(&h))), &r},
		content:    new(NodeBootstrap),
	}
}

func TestAccept(t *testing.T) {
	f := newFleet(t)
	group := GroupSubject([]string{"ingress"}, nil)
	for _, c := range []struct {
		name  string
		steps []step
	}{
		{"versions grow", []step{{version: 1, generation: 1}, {version: 2, generation: 2}, {version: 7, generation: 3}}},
		{"rollback", []step{{version: 2, generation: 1}, {version: 1, generation: 2, want: ReasonVersion}}},
		{"new epoch resets the version", []step{{version: 900, generation: 9}, {epoch: 4, version: 1, generation: 1}, {version: 901, generation: 10, want: snapshot.ReasonEpoch}}},
		{"poisoned version is repaired by an epoch", []step{{version: snapshot.MaxVersion, generation: snapshot.MaxVersion}, {version: 3, generation: 2, want: ReasonVersion}, {epoch: 4, version: 3, generation: 2}}},
		{"renewal", []step{{version: 1, generation: 1}, {version: 1, generation: 2, issued: 5}, {version: 1, generation: 3, issued: 4, want: ReasonVersion}}},
		{"renewed by a record alone", []step{{version: 1, generation: 1}, {version: 1, generation: 2}, {version: 1, generation: 2, want: ReasonUnchanged}, {version: 1, generation: 1, want: ReasonStaleRecord}}},
		{"equivocation of content", []step{{version: 1, generation: 1}, {version: 1, generation: 2, content: 1, issued: 9, want: ReasonEquivocation}}},
		{"equivocation of records", []step{{version: 1, generation: 1}, {version: 2, generation: 1, root: 1, want: ReasonEquivocation}}},
		{"equivocation of records to another subject", []step{{version: 1, generation: 1}, {version: 1, generation: 1, root: 1, subject: group, want: ReasonEquivocation}}},
		{"same generation in another epoch", []step{{version: 1, generation: 1}, {epoch: 4, version: 1, generation: 1, root: 1}}},
		{"newer version under an older record", []step{{version: 1, generation: 5}, {version: 2, generation: 4, want: ReasonStaleRecord}}},
		{"subjects have marks of their own", []step{{version: 9, generation: 5}, {version: 1, generation: 4, subject: group}, {version: 8, generation: 6, want: ReasonVersion}}},
		{"another incarnation is another subject", []step{{version: 9, generation: 5}, {version: 1, generation: 4, subject: NodeSubject(f.me, identity.KeyID{7})}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var m Marks
			for i, s := range c.steps {
				before := string(must(m.Marshal()))
				next, err := Accept(m, s.verified(f))
				if string(must(m.Marshal())) != before {
					t.Fatalf("step %d changed the marks it was given", i)
				}
				if s.want == "" {
					if err != nil {
						t.Fatalf("step %d: %v", i, err)
					}
					m = next
					continue
				}
				check := checkVersion
				if s.want == snapshot.ReasonEpoch {
					check = checkEpoch
				}
				wantRefused(t, err, check, s.want)
				if string(must(next.Marshal())) != before {
					t.Fatalf("step %d: a refusal moved the marks", i)
				}
			}
		})
	}
}

func TestAcceptPanicsOnUnverified(t *testing.T) {
	for _, v := range []*Verified{nil, new(Verified)} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("Accept(%v) did not panic", v)
				}
			}()
			Accept(Marks{}, v)
		}()
	}
}

// A node that moves from group to group keeps to the limit, and goes on: the group goes
// that it heard nothing of for the longest time, and nothing of it comes back.
func TestMarksAreBounded(t *testing.T) {
	f := newFleet(t)
	var m Marks
	group := func(i int) Subject { return GroupSubject([]string{fmt.Sprint("r", i)}, nil) }
	accept := func(s step) {
		t.Helper()
		m = must(Accept(m, s.verified(f)))
	}
	accept(step{version: 1, generation: 1}) // its own: no group takes the place of that
	const moves = 2 * snapshot.MaxMarks
	for i := range uint64(moves) {
		accept(step{version: i + 2, generation: i + 2, subject: group(int(i))})
	}
	if n := len(m.All()); n != snapshot.MaxMarks {
		t.Fatalf("%d marks", n)
	}
	if again := must(ParseMarks(must(m.Marshal()))); len(again.All()) != snapshot.MaxMarks {
		t.Fatal("a full set of marks does not survive the disk")
	}
	if _, ok := m.Get(ScopeNodeBootstrap, NodeSubject(f.me, f.incarnation)); !ok {
		t.Error("the node's own mark is gone")
	}
	for i := range uint64(moves) {
		_, err := Accept(m, step{version: i + 2, generation: i + 2, subject: group(int(i))}.verified(f))
		if err == nil {
			t.Fatalf("group %d came back under its old record", i)
		}
	}
	_, err := Accept(m, step{version: 1, generation: 2, subject: group(0)}.verified(f))
	wantRefused(t, err, checkVersion, ReasonStaleRecord)
	accept(step{version: 2, generation: moves + 9, subject: group(0)})

	// With poisoned generations everywhere an epoch is what mends it, as ever.
	for i := range snapshot.MaxMarks {
		accept(step{version: snapshot.MaxVersion, generation: snapshot.MaxVersion - snapshot.MaxMarks + uint64(i), subject: group(moves + i)})
	}
	_, err = Accept(m, step{version: 3, generation: moves + 10, subject: group(1)}.verified(f))
	wantRefused(t, err, checkVersion, ReasonStaleRecord)
	accept(step{epoch: 4, version: 3, generation: moves + 10, subject: group(1)})
	// A node that enrols again needs a place too.
	accept(step{version: 1, generation: 1, subject: NodeSubject(f.me, identity.KeyID{7})})
}

// Signed time raises the floor, within an epoch never lowers it, and a new epoch
// starts it again.
func TestSignedTime(t *testing.T) {
	f := newFleet(t)
	m := Marks{}
	if !m.SignedTime().IsZero() {
		t.Fatal("no marks have a signed time")
	}
	for _, s := range []struct {
		step
		want int
	}{
		{step{version: 1, generation: 1, issued: 10}, 10},
		{step{version: 2, generation: 2, issued: 5}, 10},
		{step{version: 3, generation: 3, issued: 20}, 20},
		{step{epoch: 4, version: 1, generation: 1, issued: 7}, 7},
	} {
		m = mustAccept(t, m, s.verified(f))
		if got := m.SignedTime().Sub(f.now); got != time.Duration(s.want)*time.Minute {
			t.Fatalf("after %+v: %v, want %d minutes", s.step, got, s.want)
		}
	}
	// A record is signed time too, over a header however old.
	v := step{epoch: 4, version: 2, generation: 2}.verified(f)
	v.record.IssuedAt = f.now.Add(time.Hour)
	if got := mustAccept(t, m, v).SignedTime(); !got.Equal(v.record.IssuedAt) {
		t.Fatalf("after a record of %v: %v", v.record.IssuedAt, got)
	}
}

func TestRecheck(t *testing.T) {
	f := newFleet(t)
	at := func(version uint64, renewed time.Duration, generation uint64) *Signed {
		return f.signedBootstrap(t, func(h *Header, _ *NodeBootstrap, r *Record) {
			h.ConfigVersion, r.Generation = version, generation
			h.IssuedAt = h.IssuedAt.Add(renewed)
		})
	}
	v1, v2, v2b, v3 := at(1, 0, 1), at(2, 0, 2), at(2, time.Second, 3), at(3, 0, 4)
	var m Marks
	accept := func(s *Signed) {
		t.Helper()
		v, err := Verify(s, f.trust(), m, f.now)
		if err != nil {
			t.Fatal(err)
		}
		m = mustAccept(t, m, v)
	}
	// known fails unless exactly these come up again after a restart.
	known := func(want ...*Signed) {
		t.Helper()
		m = must(ParseMarks(must(m.Marshal())))
		for _, s := range []*Signed{v1, v2, v2b, v3} {
			is := false
			for _, w := range want {
				is = is || s == w
			}
			_, err := Recheck(s, f.trust(), m, f.now)
			if is && err != nil {
				t.Fatal(err)
			}
			if !is {
				wantRefused(t, err, checkVersion, ReasonUnrecorded)
			}
		}
	}
	known()
	accept(v1)
	known(v1)
	accept(v2)
	known(v1, v2)
	accept(v2b)
	known(v1, v2, v2b) // active may still be v2, previous v1
	accept(v3)
	known(v1, v2b, v3) // active may still be v2b, previous v1

	// The disk is not trusted: all other checks run.
	_, err := Recheck(v3, f.trust(), m, f.now.Add(365*24*time.Hour))
	wantRefused(t, err, checkSigner, snapshot.ReasonSigner) // its bundle ended
	trust := f.trust()
	trust.Incarnation[0]++
	_, err = Recheck(v3, trust, m, f.now)
	wantRefused(t, err, checkSubject, snapshot.ReasonSubject)
	cut := *v3
	cut.Content = cut.Content[:len(cut.Content)-1]
	_, err = Recheck(&cut, f.trust(), m, f.now)
	wantRefused(t, err, checkHash, snapshot.ReasonHash)

	// The previous one may be of an epoch that ended, under a bundle of the new one.
	next := f.trust()
	next.Bundle = f.mustVerify(t, f.signedBundle(t, func(h *Header, b *TrustBundle) { h.AuthorityEpoch, b.AuthorityEpoch = 4, 4 }), f.trust())
	v4 := f.signedBootstrap(t, func(h *Header, _ *NodeBootstrap, r *Record) { h.AuthorityEpoch, r.AuthorityEpoch = 4, 4 })
	after := mustAccept(t, m, must(Verify(v4, next, m, f.now)))
	for _, s := range []*Signed{v3, v4} {
		if _, err := Recheck(s, next, after, f.now); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Recheck(v4, f.trust(), after, f.now); err != nil {
		t.Fatal("under the bundle before: ", err)
	}
	_, err = Verify(v3, next, after, f.now)
	wantRefused(t, err, checkEpoch, snapshot.ReasonEpoch)

	// An epoch that came with another snapshot does not undo what is active.
	m = mustAccept(t, m, f.mustVerify(t, f.signedBundle(t, func(h *Header, b *TrustBundle) { h.AuthorityEpoch, b.AuthorityEpoch = 9, 9 }), f.trust()))
	if _, err := Recheck(v3, f.trust(), m, f.now); err != nil {
		t.Fatal(err)
	}
}

func TestParseMarks(t *testing.T) {
	f := newFleet(t)
	m := mustAccept(t, Marks{}, f.bundle)
	m = mustAccept(t, m, step{version: 4, generation: 2}.verified(f))
	data := must(m.Marshal())
	if again := must(must(ParseMarks(data)).Marshal()); string(again) != string(data) {
		t.Fatalf("marks changed on disk:\n%s\n%s", data, again)
	}
	if _, ok := m.Get(ScopeTrustBundle, ClusterSubject()); !ok {
		t.Fatal("no mark of the bundle")
	}
	all := m.All()
	if all[0].Scope != ScopeNodeBootstrap || all[1].Scope != ScopeTrustBundle {
		t.Fatal("marks are not sorted by scope")
	}
	for name, bad := range map[string][]byte{
		"nothing": nil, "empty": []byte("{}"), "cut": data[:len(data)-1], "more": append(data[:len(data):len(data)], ' '),
		"of tomorrow":               bytes.Replace(data, []byte(`"schema_version":1`), []byte(`"schema_version":2`), 1),
		"twice":                     must(encode(&marksFile{append(all, all[1])})),
		"out of order":              must(encode(&marksFile{[]Mark{all[1], all[0]}})),
		"no version":                must(encode(&marksFile{[]Mark{func(m Mark) Mark { m.ConfigVersion = 0; return m }(all[0])}})),
		"no epoch":                  must(encode(&marksFile{[]Mark{func(m Mark) Mark { m.AuthorityEpoch = 0; return m }(all[0])}})),
		"record's epoch above 2^53": must(encode(&marksFile{[]Mark{func(m Mark) Mark { m.PublicationEpoch = snapshot.MaxVersion + 1; return m }(all[0])}})),
		"above 2^53":                must(encode(&marksFile{[]Mark{func(m Mark) Mark { m.Generation = snapshot.MaxVersion + 1; return m }(all[0])}})),
	} {
		if _, err := ParseMarks(bad); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// I11: whatever is presented in whatever order, over restarts, the accepted
// (epoch, version) of a scope and subject never goes down, one version never has
// two contents, records never go back within an epoch, and what was accepted
// last comes up again.
func TestMarksNeverGoDown(t *testing.T) {
	f := newFleet(t)
	subjects := []Subject{NodeSubject(f.me, f.incarnation), GroupSubject([]string{"ingress"}, nil), ClusterSubject()}
	rapid.Check(t, func(t *rapid.T) {
		var m Marks
		type point struct{ epoch, version uint64 }
		last := map[Subject]*Verified{}
		previous := map[Subject]*Verified{}
		contents := map[Subject]map[point]Digest{}
		roots := map[point]Digest{} // of accepted generations that are still in a mark
		t.Repeat(map[string]func(*rapid.T){
			"restart": func(t *rapid.T) {
				data := must(m.Marshal())
				m = must(ParseMarks(data))
				for s, v := range last {
					for _, held := range []*Verified{v, previous[s]} {
						if held == nil {
							continue
						}
						if msg := m.recordedFault(&held.activation); msg != "" {
							t.Fatalf("after a restart: %s: %s", s, msg)
						}
					}
				}
			},
			"present": func(t *rapid.T) {
				v := step{
					epoch:      rapid.Uint64Range(1, 3).Draw(t, "epoch"),
					version:    rapid.Uint64Range(1, 4).Draw(t, "version"),
					generation: rapid.Uint64Range(1, 5).Draw(t, "generation"),
					content:    rapid.Byte().Draw(t, "content") / 200,
					root:       rapid.Byte().Draw(t, "root") / 200,
					issued:     rapid.IntRange(0, 3).Draw(t, "issued"),
					subject:    rapid.SampledFrom(subjects).Draw(t, "subject"),
				}.verified(f)
				s := v.header.Subject
				next, err := Accept(m, v)
				was := last[s]
				if err != nil {
					// A header that is new in every way is never refused.
					if was == nil && roots[point{v.record.AuthorityEpoch, v.record.Generation}].IsZero() {
						t.Fatalf("the first for %s: %v", s, err)
					}
					if was != nil && v.header.AuthorityEpoch > 3 {
						t.Fatalf("a new epoch: %v", err)
					}
					return
				}
				m = next
				p := point{v.header.AuthorityEpoch, v.header.ConfigVersion}
				if was != nil {
					w := point{was.header.AuthorityEpoch, was.header.ConfigVersion}
					if p.epoch < w.epoch || p.epoch == w.epoch && p.version < w.version {
						t.Fatalf("%s went from %v to %v", s, w, p)
					}
					if p.epoch == w.epoch && v.record.Generation < was.record.Generation {
						t.Fatalf("%s went from generation %d to %d", s, was.record.Generation, v.record.Generation)
					}
					if p == w && v.digest != was.digest && !v.header.IssuedAt.After(was.header.IssuedAt) {
						t.Fatalf("%s renewed by what was issued before", s)
					}
					if p == w && v.digest == was.digest && v.record.Generation == was.record.Generation {
						t.Fatalf("%s accepted the same twice", s)
					}
				}
				if contents[s] == nil {
					contents[s] = map[point]Digest{}
				}
				if known, ok := contents[s][p]; ok && known != v.header.ContentHash {
					t.Fatalf("%s has two contents at %v", s, p)
				}
				contents[s][p] = v.header.ContentHash
				for other, o := range last {
					if other != s && o.record.AuthorityEpoch == v.record.AuthorityEpoch && o.record.Generation == v.record.Generation && o.record.Root != v.record.Root {
						t.Fatalf("generation %d has two roots", v.record.Generation)
					}
				}
				roots[point{v.record.AuthorityEpoch, v.record.Generation}] = v.record.Root
				if was != nil && p != (point{was.header.AuthorityEpoch, was.header.ConfigVersion}) {
					previous[s] = was
				}
				last[s] = v
			},
		})
	})
}
