package recovery

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/manifest"
)

const testCluster = "prod.example"

// made is a link that makes shares for owners, and the shares.
func made(t testing.TB, index, seedEpoch uint64, seed keyring.Seed, owners ...string) (history.Link, map[string]keyring.Share) {
	t.Helper()
	shares, err := keyring.Split(seed, 2, len(owners))
	if err != nil {
		t.Fatal(err)
	}
	l := history.Link{Transition: history.Transition{Index: index, SeedEpoch: seedEpoch, Threshold: 2}, Hash: history.Hash{byte(index)}}
	out := make(map[string]keyring.Share)
	for i, o := range owners {
		l.ShareCommitments = append(l.ShareCommitments, history.ShareCommitment{Owner: o, Hash: shares[i].Commitment(testCluster, seedEpoch)})
		out[o] = shares[i]
	}
	return l, out
}

// repeat is a link that keeps the shares of l.
func repeat(l history.Link, index uint64) history.Link {
	l.Index, l.Hash = index, history.Hash{byte(index)}
	return l
}

// After any history, the head tells the share in force from an old one, another
// owner's and a wrong one, and names the owner.
func TestCheck(t *testing.T) {
	seed, second := keyring.NewSeed(), keyring.NewSeed()
	first, old := made(t, 1, 1, seed, "alice", "bob", "carol")
	third, mid := made(t, 3, 1, seed, "alice", "dave")
	fifth, now := made(t, 5, 2, second, "alice", "bob", "dave")
	_, foreign := made(t, 1, 2, keyring.NewSeed(), "alice", "bob")
	h := NewHead([]history.Link{first, repeat(first, 2), third, repeat(third, 4), fifth, repeat(fifth, 6)}, &manifest.Manifest{Cluster: testCluster})
	if h.Index != 6 || h.Made() != 5 || !slices.Equal(h.Owners(), []string{"alice", "bob", "dave"}) || h.Threshold != 2 || h.SeedEpoch != 2 {
		t.Fatalf("the head is %+v", h)
	}
	for _, tc := range []struct {
		name, owner string
		share       keyring.Share
		want        errcode.Code
		made        string
	}{
		{"in force", "alice", now["alice"], "", ""},
		{"in force", "dave", now["dave"], "", ""},
		{"before the reseed", "alice", mid["alice"], errcode.ShareOld, "3"},
		{"before the reshare", "alice", old["alice"], errcode.ShareOld, "1"},
		{"old, of another owner", "bob", old["carol"], errcode.ShareOld, "1"},
		{"another owner's", "alice", now["bob"], errcode.ShareWrong, ""},
		{"of who is no owner any more", "carol", old["carol"], errcode.ShareNoOwner, ""},
		{"of another seed", "alice", foreign["alice"], errcode.ShareWrong, ""},
		{"none", "alice", keyring.Share{}, errcode.ShareWrong, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := h.Check(tc.owner, tc.share)
			if tc.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			e := errcode.Of(err)
			if e == nil || e.Code != tc.want || e.Fields["owner"] != tc.owner || e.Fields["made"] != tc.made {
				t.Fatalf("%v, want %s naming %s, made %q", err, tc.want, tc.owner, tc.made)
			}
		})
	}
}

// An attempt takes shares of its owners for itself, until an hour after the last
// one that was new, however owners and clock behave.
func TestAttempt(t *testing.T) {
	link, _ := made(t, 1, 1, keyring.NewSeed(), "alice", "bob", "carol")
	head := NewHead([]history.Link{link}, &manifest.Manifest{Cluster: testCluster})
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(1_800_000_000, 0)
		a := NewAttempt(ID{1}, head, now)
		last := now // when it began, or the last new share came
		var in []string
		t.Repeat(map[string]func(*rapid.T){
			"time passes": func(t *rapid.T) { now = now.Add(time.Duration(rapid.IntRange(0, 50).Draw(t, "minutes")) * time.Minute) },
			"gathered": func(t *rapid.T) {
				if now.Sub(last) >= Life {
					t.Skip("it is over")
				}
				owner := rapid.SampledFrom(head.Owners()).Draw(t, "owner")
				if !slices.Contains(in, owner) {
					in, last = append(in, owner), now
				}
				a.Gathered(now, in)
			},
			"": func(t *rapid.T) {
				id := a.ID
				over := now.Sub(last) >= Life
				if err := a.Takes(now, id[:], "alice"); (err != nil) != over || err != nil && !errors.Is(err, errcode.RecoveryOver) {
					t.Fatalf("over %v, and a share: %v", over, err)
				}
				if a.Takes(now, nil, "alice") == nil || a.Takes(now, []byte("0123456789abcdef"), "alice") == nil || a.Takes(now, id[:], "mallory") == nil {
					t.Fatal("it takes what is not for it")
				}
				if a.Serves(now, history.Hash{9}) || a.Serves(now, head.Hash) && over {
					t.Fatal("it is offered where it must not be")
				}
				if a.Enough() != (len(in) >= 2) || len(a.Missing())+len(a.Brought()) != 3 || !slices.IsSorted(a.Brought()) {
					t.Fatalf("brought %v, missing %v, enough %v", a.Brought(), a.Missing(), a.Enough())
				}
			},
		})
	})
}

// A history without end, or of nothing, is given up.
func TestReceiveHistoryIsBounded(t *testing.T) {
	page := func(n, size int) *fealtyv1.RecoveryHistory {
		p := &fealtyv1.RecoveryHistory{}
		for range n {
			p.Transitions = append(p.Transitions, make([]byte, size))
		}
		return p
	}
	for name, p := range map[string]*fealtyv1.RecoveryHistory{"many links": page(10_000, 0), "large links": page(8, 4<<20), "nothing": {}, "no page": nil, "manifests alone": {Manifests: [][]byte{{1}}}} {
		t.Run(name, func(t *testing.T) {
			pages := 0
			_, err := receiveHistory(func() (*fealtyv1.RecoveryHistory, error) {
				if pages++; pages > 1000 {
					return nil, errors.New("it never ends")
				}
				return p, nil
			})
			if !errors.Is(err, errBadHistory) {
				t.Fatalf("after %d pages: %v", pages, err)
			}
		})
	}
}

// For anything that a coordinator sends, the owner's side refuses or goes on, and
// never panics.
func FuzzOffer(f *testing.F) {
	offer, err := proto.Marshal(&fealtyv1.RecoveryOffer{Cluster: testCluster, Attempt: make([]byte, 16), Recipient: "age1x", Key: "ed25519:x", Evidence: make([]byte, 64)})
	if err != nil {
		f.Fatal(err)
	}
	page, err := proto.Marshal(&fealtyv1.RecoveryHistory{Transitions: [][]byte{{1}}, Head: []byte("{}")})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(offer, page)
	f.Add([]byte{}, []byte{})
	f.Fuzz(func(t *testing.T, rawOffer, rawPage []byte) {
		var o fealtyv1.RecoveryOffer
		var p fealtyv1.RecoveryHistory
		if proto.Unmarshal(rawOffer, &o) != nil || proto.Unmarshal(rawPage, &p) != nil {
			return
		}
		c := &checks{file: keyring.ShareFile{Cluster: testCluster, Owner: "alice", TransactionKey: make([]byte, 32)}, offer: &o, binding: make([]byte, 32)}
		if c.offered() != nil {
			return
		}
		sent := false
		h, err := receiveHistory(func() (*fealtyv1.RecoveryHistory, error) {
			if sent {
				return nil, io.EOF
			}
			sent = true
			return &p, nil
		})
		if err != nil {
			return
		}
		c.history = h
		for _, check := range ownerChecks {
			if check.find(c) != nil {
				return
			}
		}
		t.Fatal(fmt.Sprint("everything passed: ", &o))
	})
}
