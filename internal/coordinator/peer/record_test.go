package peer_test

import (
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/coordinator/peer/status"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/store"
)

// Every coordinator says at every change what it is; all of them show all of them.
func TestReplicasTellEachOther(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	r := coordinatortest.NewReplica(t, f)
	if err := f.Set(f.Manifest("")); err != nil {
		t.Fatal(err)
	}
	r.Start()
	r.AwaitHead(f)
	at := func(f *coordinatortest.Fleet) func(peer.Record) bool {
		head := f.State().Head.Hash
		return func(r peer.Record) bool { return r.Phase == "ready" && r.Head == head }
	}
	coordinatortest.AwaitReplica(f, at(f))
	told := coordinatortest.AwaitReplica(r, at(f))
	if told.Name != "coordinator-2" || !slices.Equal(told.Addresses, []string{r.Addr}) || told.Index != 2 ||
		told.Release != "test" {
		t.Errorf("coordinator-2 says it is %+v", told)
	}
	for i, asked := range []*coordinatortest.Fleet{f, r} {
		all := coordinatortest.GetStatus(asked).GetReplicas()
		if len(all) != 2 || all[0].GetName() != "coordinator-1" || all[1].GetName() != "coordinator-2" ||
			!all[i].GetSelf() || all[1-i].GetSelf() || all[1].GetEnrolmentKey() != r.Enrolment {
			t.Errorf("coordinator-%d shows %v", i+1, all)
		}
	}

	// Its phase and its head change: it says so at once.
	if err := f.Set(f.Manifest("  - {name: more, kind: data, match: [\"token:more\"]}\n")); err != nil {
		t.Fatal(err)
	}
	coordinatortest.AwaitReplica(f, at(f))
	r.Kill()
	f.Stop()
	if err := moveAway(f); err != nil {
		t.Fatal(err)
	}
	r.Start()
	coordinatortest.AwaitReplica(r, func(r peer.Record) bool {
		return r.Phase == "recovery" && r.Head.IsZero() &&
			r.Index == 0
	})
	if all := coordinatortest.GetStatus(r).GetReplicas(); len(all) != 2 || all[1].GetPhase() != "recovery" ||
		all[0].GetPhase() != "ready" {
		t.Errorf("in recovery mode it shows %v", all)
	}
}

// A record is believed by nobody unless the holder of an admitted key signed it.
func TestReplicaRecordsAreSigned(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	r := coordinatortest.NewReplica(t, f)
	if err := f.Set(f.Manifest("")); err != nil {
		t.Fatal(err)
	}
	r.Start()
	r.AwaitHead(f)
	coordinatortest.AwaitReplica(r, func(r peer.Record) bool { return r.Phase == "ready" })
	coordinatortest.AwaitReplica(f, func(r peer.Record) bool { return r.Phase == "ready" && r.Index == 2 })
	r.Kill()
	mine, err := peer.Key(f.C.Parts().Self.PrivateKey().Public().(ed25519.PublicKey))
	coordinatortest.WantOnly(t, "key", err, "")
	its, err := peer.Key(r.C.Parts().Self.PrivateKey().Public().(ed25519.PublicKey))
	coordinatortest.WantOnly(t, "key", err, "")
	genuine, err := f.Store.Get(t.Context(), its)
	coordinatortest.WantOnly(t, "read", err, "")
	_, stranger, err := ed25519.GenerateKey(nil)
	coordinatortest.WantOnly(t, "key", err, "")
	strangers, err := peer.Key(stranger.Public().(ed25519.PublicKey))
	coordinatortest.WantOnly(t, "key", err, "")
	again := func(change func(*peer.Record), key ed25519.PrivateKey) []byte {
		var signed peer.Signed
		var rec peer.Record
		coordinatortest.WantOnly(t, "decode", json.Unmarshal(genuine.Value, &signed), "")
		coordinatortest.WantOnly(t, "decode", json.Unmarshal(signed.Record, &rec), "")
		change(&rec)
		raw, err := json.Marshal(rec)
		coordinatortest.WantOnly(t, "encode", err, "")
		out, err := json.Marshal(peer.Signed{Record: raw, Signature: proof.SignReplica(key, raw)})
		coordinatortest.WantOnly(t, "encode", err, "")
		return out
	}
	names := func() string {
		all, err := coordinatortest.DirectoryOf(f.Store, f.Clock).Newest(t.Context(), f.State().Manifest)
		coordinatortest.WantOnly(t, "replicas", err, "")
		var out []string
		for _, r := range all {
			out = append(out, r.Name)
		}
		return strings.Join(out, " ")
	}
	const both, one = "coordinator-1 coordinator-2", "coordinator-1"
	for _, tc := range []struct {
		name, key string
		value     []byte
		want      string
	}{
		{"as it was", its, genuine.Value, both},
		{"signed by it again", its, again(func(r *peer.Record) { r.Name = "somebody-else" },
			r.C.Parts().Self.PrivateKey()),
			both},
		{"one byte is another", its, []byte(strings.Replace(string(genuine.Value), "ready", "reedy", 1)), one},
		{"signed by another", its, again(func(*peer.Record) {}, stranger), one},
		{"under another key", strangers, genuine.Value, both},
		{"by who is not admitted", strangers,
			again(func(r *peer.Record) { r.Key = proof.KeyClaim(stranger.Public().(ed25519.PublicKey)) },
				stranger), both},
		{"an address that is none", its, again(func(r *peer.Record) { r.Addresses = []string{"host"} },
			r.C.Parts().Self.PrivateKey()), one},
		{"too many addresses", its,
			again(func(r *peer.Record) { r.Addresses = slices.Repeat([]string{"h:1"}, peer.MaxAddrs+1) },
				r.C.Parts().Self.PrivateKey()), one},
		{"a phase that is none", its, again(func(r *peer.Record) { r.Phase = "\x1b[31m" },
			r.C.Parts().Self.PrivateKey()), one},
		{"too large", its, again(func(r *peer.Record) { r.Name = strings.Repeat("x", peer.MaxBytes) },
			r.C.Parts().Self.PrivateKey()), one},
		{"a key of low order", its, again(func(r *peer.Record) { r.Key = proof.KeyClaim(make([]byte, 32)) },
			r.C.Parts().Self.PrivateKey()), one},
		{"nothing", its, []byte("null"), one},
		{"no JSON", its, []byte("{"), one},
	} {
		if _, err := f.Store.Commit(t.Context(),
			store.Tx{Put: []store.Write{{Key: tc.key, Value: tc.value}}}); err != nil {
			t.Fatal(err)
		}
		if got := names(); got != tc.want {
			t.Errorf("%s: %s; want %s", tc.name, got, tc.want)
		}
		if _, err := f.Store.Commit(t.Context(),
			store.Tx{Put: []store.Write{{Key: its, Value: genuine.Value}}, Delete: []string{strangers}}); err != nil {
			t.Fatal(err)
		}
	}

	// A record that says nothing to anybody goes; a coordinator that is heard stays.
	put := func(key string, value []byte) {
		if _, err := f.Store.Commit(t.Context(), store.Tx{Put: []store.Write{{Key: key, Value: value}}}); err != nil {
			t.Fatal(err)
		}
	}
	put(strangers, again(func(r *peer.Record) { r.Key = proof.KeyClaim(stranger.Public().(ed25519.PublicKey)) },
		stranger))
	put(peer.Prefix+"rubbish", []byte("rubbish"))
	coordinatortest.AwaitLeader(t, f) // who leads drops them, and the other one may have led until it was killed
	s := f.State()
	coordinatortest.WantOnly(t, "prune", f.C.Parts().Announcement.Drop(t.Context(), s, f.Clock()), "")
	if got := coordinatortest.Keys(f, peer.Prefix); !slices.Equal(got, slices.Sorted(slices.Values([]string{mine,
		its}))) {
		t.Errorf("left are %v", got)
	}
	week := f.Clock().Add(status.Retention + time.Hour)
	coordinatortest.WantOnly(t, "prune", f.C.Parts().Announcement.Drop(t.Context(), s, week), "")
	if got := coordinatortest.Keys(f, peer.Prefix); len(got) != 2 {
		t.Errorf("of those that died a week ago %v are left", got)
	}
	put(its, again(func(r *peer.Record) { r.Stopped = true }, r.C.Parts().Self.PrivateKey()))
	coordinatortest.WantOnly(t, "prune", f.C.Parts().Announcement.Drop(t.Context(), s, week), "")
	if got := coordinatortest.Keys(f, peer.Prefix); !slices.Equal(got, []string{mine}) {
		t.Errorf("a week after one stopped %v are left", got)
	}
}

// The records of dead coordinators, which stay until somebody forgets them, take no place
// of one that lives, whatever the names and the clocks; and each of them can be forgotten.
func TestDeadReplicasTakeNoPlace(t *testing.T) {
	t.Parallel()
	keys := make([]ed25519.PrivateKey, peer.Max+20)
	var entries strings.Builder
	for i := range keys {
		_, key, err := ed25519.GenerateKey(nil)
		coordinatortest.WantOnly(t, "key", err, "")
		keys[i] = key
		fmt.Fprintf(&entries, "  - {name: other-%02d, kind: coordinator, match: [\"key:%s\"]}\n", i,
			proof.KeyClaim(key.Public().(ed25519.PublicKey)))
	}
	d := coordinatortest.ReadyDesk(t, entries.String())
	write := func(i int, stopped bool) {
		t.Helper()
		public := keys[i].Public().(ed25519.PublicKey)
		raw, err := json.Marshal(peer.Record{Key: proof.KeyClaim(public), Addresses: []string{"127.0.0.1:1"},
			Phase: "ready", Stopped: stopped,
			At: d.Clock().Add(-time.Duration(i) * time.Hour)}) // the clock of the last one is the most behind
		coordinatortest.WantOnly(t, "encode", err, "")
		value, err := json.Marshal(peer.Signed{Record: raw, Signature: proof.SignReplica(keys[i], raw)})
		coordinatortest.WantOnly(t, "encode", err, "")
		at, err := peer.Key(public)
		coordinatortest.WantOnly(t, "key", err, "")
		_, err = d.Store.Commit(t.Context(), store.Tx{Put: []store.Write{{Key: at, Value: value}}})
		coordinatortest.WantOnly(t, "write", err, "")
	}
	for i := range keys {
		write(i, false)
	}
	last := len(keys) - 1
	write(0, true) // it stops, by the newest word of all
	all, err := coordinatortest.DirectoryOf(d.Store, d.Clock).Newest(t.Context(), d.State().Manifest)
	coordinatortest.WantOnly(t, "replicas", err, "")
	var names []string
	for _, r := range all {
		names = append(names, r.Name)
	}
	living := fmt.Sprintf("other-%02d", last)
	if len(names) != peer.Max || !slices.IsSorted(names) || !slices.Contains(names,
		living) || slices.Contains(names, "other-00") || slices.Contains(names, "other-01") {
		t.Errorf("told are %v, want %s among them", names, living)
	}
	if _, err := (coordinatortest.Served[fealtyv1.CoordinatorServiceServer](
		d.C.Parts().Peers.RegisterServices)).ForgetCoordinator(
		t.Context(),
		&fealtyv1.ForgetCoordinatorRequest{Name: "other-00"}); err != nil {
		t.Errorf("one that is not told of any more is forgotten: %v", err)
	}
	for i := range last {
		write(i, false) // all but that one
	}
	write(0, true)
	write(1, true)
	if all, _ = coordinatortest.DirectoryOf(d.Store, d.Clock).Newest(t.Context(),
		d.State().Manifest); slices.ContainsFunc(all,
		func(r peer.Record) bool { return r.Name == living || r.Stopped }) {
		t.Errorf("told are those that stopped, or said nothing for longest, in the place of others: %v", all)
	}
}

// Without a manifest there is nothing to be a replica of.
func TestNoReplicaRecordBeforeAManifest(t *testing.T) {
	t.Parallel()
	f := coordinatortest.NewFleet(t, nil)
	if err := f.C.Parts().Announcement.Announce(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if got := coordinatortest.Keys(f, ""); len(got) > 0 {
		t.Errorf("an uninitialized coordinator wrote %v", got)
	}
}

func FuzzOpenReplica(f *testing.F) {
	key := ed25519.NewKeyFromSeed(make([]byte, 32))
	public := key.Public().(ed25519.PublicKey)
	at, err := peer.Key(public)
	if err != nil {
		f.Fatal(err)
	}
	for _, text := range []string{`{}`, `null`, `{"addresses":["h:1"],"phase":"ready"}`,
		`{"addresses":[],"phase":"recovery","key":1}`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, record []byte) {
		// As it is, and as what is well signed: a fuzzer does not find that by itself.
		var fields map[string]any
		if json.Unmarshal(record, &fields) == nil && fields != nil {
			fields["key"] = proof.KeyClaim(public)
			record, err = json.Marshal(fields)
			if err != nil {
				t.Fatal(err)
			}
		}
		value, err := json.Marshal(map[string]any{"record": json.RawMessage(record),
			"signature": proof.SignReplica(key, record)})
		if err != nil {
			value = record
		}
		r, err := peer.Open(store.Entry{Key: at, Value: value})
		if err != nil {
			return
		}
		if r.Key != proof.KeyClaim(public) || len(r.Addresses) > peer.MaxAddrs || r.Phase != "ready" &&
			r.Phase != "recovery" {
			t.Fatalf("read %s as %s", value, fmt.Sprintf("%+v", r))
		}
	})
}

// moveAway takes the keeper's file away, so that a start cannot open the seed.
func moveAway(f *coordinatortest.Fleet) error { return os.Remove(filepath.Join(f.Dir, "keeper.key")) }
