package desired_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/config"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/desired"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/store"
)

func TestConfigPutGetListDelete(t *testing.T) {
	d := coordinatortest.PoolDesk(t)
	before := len(d.Store.Keys(desired.Prefix))
	plan := coordinatortest.PutRequest(config.Example)
	plan.DryRun = true
	dry, err := coordinatortest.ConfigAt(d).PutConfig(t.Context(), plan)
	if err != nil || len(dry.GetChanges()) != len(config.Kinds()) || len(d.Store.Keys(desired.Prefix)) != before {
		t.Fatalf("dry run: %d changes, %v", len(dry.GetChanges()), err)
	}
	put := coordinatortest.MustPut(d, config.Example)
	if put.GetVersion() <= dry.GetVersion() {
		t.Errorf("version %d after %d", put.GetVersion(), dry.GetVersion())
	}
	again := coordinatortest.MustPut(d, config.Example)
	if again.GetVersion() != put.GetVersion() {
		t.Errorf("the same again is version %d, want %d still", again.GetVersion(), put.GetVersion())
	}
	for i, c := range again.GetChanges() {
		if string(c.GetBefore()) != string(c.GetAfter()) ||
			string(c.GetAfter()) != string(put.GetChanges()[i].GetAfter()) ||
			len(put.GetChanges()[i].GetBefore()) != 0 {
			t.Errorf("change %v, after %v", c, put.GetChanges()[i])
		}
	}
	entries, text := coordinatortest.Audits(d, "config.put")
	if len(entries) != len(config.Kinds()) || strings.Contains(text, "verify-full") ||
		entries[0].Fields["after"] == "" || entries[0].Fields["before"] != "" {
		t.Errorf("%d audit entries: %s", len(entries), text)
	}

	list, err := coordinatortest.ConfigAt(d).ListConfig(t.Context(), &fealtyv1.ListConfigRequest{})
	if err != nil || len(list.GetRecords()) != len(config.Kinds()) || list.GetVersion() != put.GetVersion() ||
		list.GetNextPageToken() != "" {
		t.Fatalf("list: %v, %v", list, err)
	}
	for size := 1; size < 4; size++ {
		var got []string
		token := ""
		for {
			page, err := coordinatortest.ConfigAt(d).ListConfig(t.Context(),
				&fealtyv1.ListConfigRequest{PageSize: uint32(size), PageToken: token})
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range page.GetRecords() {
				got = append(got, r.GetKind()+"/"+r.GetName())
			}
			if token = page.GetNextPageToken(); token == "" {
				break
			}
		}
		if len(got) != len(config.Kinds()) || !slices.IsSorted(got) {
			t.Errorf("pages of %d: %v", size, got)
		}
	}
	peers, err := coordinatortest.ConfigAt(d).ListConfig(t.Context(), &fealtyv1.ListConfigRequest{Kind: "peer"})
	if err != nil || len(peers.GetRecords()) != 1 {
		t.Errorf("peers: %v, %v", peers, err)
	}
	one, err := coordinatortest.ConfigAt(d).GetConfig(t.Context(), &fealtyv1.GetConfigRequest{Kind: "qos", Name: "gold"})
	if err != nil {
		t.Fatal(err)
	}
	if same, err := coordinatortest.ConfigAt(d).PutConfig(t.Context(),
		&fealtyv1.PutConfigRequest{Records: [][]byte{one.GetRecord().GetRecord()}}); err != nil ||
		same.GetVersion() != put.GetVersion() {
		t.Errorf("put of what was got: %v, %v", same, err)
	}

	_, err = coordinatortest.ConfigAt(d).DeleteConfig(t.Context(),
		&fealtyv1.DeleteConfigRequest{Records: []*fealtyv1.ConfigRecord{{Kind: "qos", Name: "gold"}}})
	coordinatortest.WantOnly(t, "delete of what is in use", err, errcode.ConfigInUse)
	if !strings.Contains(err.Error(), "service/web") {
		t.Errorf("%v does not name who refers to it", err)
	}
	all := &fealtyv1.DeleteConfigRequest{Records: list.GetRecords(), ExpectedVersion: put.GetVersion()}
	gone, err := coordinatortest.ConfigAt(d).DeleteConfig(t.Context(), all)
	if err != nil || len(d.Store.Keys(desired.RecordPrefix)) != 0 || gone.GetVersion() <= put.GetVersion() {
		t.Fatalf("delete of all: %v, %v", gone, err)
	}
	if entries, _ := coordinatortest.Audits(d, "config.delete"); len(entries) != len(config.Kinds()) ||
		entries[0].Fields["before"] == "" || entries[0].Fields["after"] != "" {
		t.Errorf("audit of the deletion: %v", entries)
	}
	all.ExpectedVersion = 0
	_, err = coordinatortest.ConfigAt(d).DeleteConfig(t.Context(), all)
	coordinatortest.WantOnly(t, "delete again", err, errcode.NotFound)
}

func TestConfigRefusals(t *testing.T) {
	d := coordinatortest.PoolDesk(t)
	put := coordinatortest.MustPut(d, config.Example)
	stale := put.GetVersion() - 1
	many := &fealtyv1.PutConfigRequest{}
	for range config.MaxBatch + 1 {
		many.Records = append(many.Records, []byte(coordinatortest.QosRecord))
	}
	for _, tt := range []struct {
		name string
		call func() error
		code errcode.Code
	}{
		{"nothing",
			func() error {
				_, err := coordinatortest.ConfigAt(d).PutConfig(t.Context(), &fealtyv1.PutConfigRequest{})
				return err
			},
			errcode.RequestField},
		{"too many", func() error { _, err := coordinatortest.ConfigAt(d).PutConfig(t.Context(), many); return err },
			errcode.RequestField},
		{"two in one", func() error {
			_, err := coordinatortest.ConfigAt(d).PutConfig(t.Context(),
				&fealtyv1.PutConfigRequest{Records: [][]byte{[]byte(config.Example)}})
			return err
		}, errcode.RequestField},
		{"one twice", func() error {
			_, err := coordinatortest.PutAt(d, coordinatortest.QosRecord+"---\n"+coordinatortest.QosRecord)
			return err
		},
			errcode.ConfigInvalid},
		{"no record", func() error { _, err := coordinatortest.PutAt(d, "kind: thing\nname: x\n"); return err }, errcode.ConfigInvalid},
		{"unknown reference", func() error { _, err := coordinatortest.PutAt(d, "kind: route\nname: r\nservice: nope\n"); return err },
			errcode.ConfigInvalid},
		{"a secret", func() error {
			_, err := coordinatortest.PutAt(d, "kind: organization\nname: o\ndescription: AKIAIOSFODNN7EXAMPLE\n")
			return err
		}, errcode.ConfigInvalid},
		{"stale put", func() error {
			req := coordinatortest.PutRequest(coordinatortest.QosRecord)
			req.ExpectedVersion = stale
			_, err := coordinatortest.ConfigAt(d).PutConfig(t.Context(), req)
			return err
		}, errcode.ConfigStale},
		{"stale delete", func() error {
			_, err := coordinatortest.ConfigAt(d).DeleteConfig(t.Context(),
				&fealtyv1.DeleteConfigRequest{Records: []*fealtyv1.ConfigRecord{{Kind: "storage", Name: "mirror"}},
					ExpectedVersion: stale})
			return err
		}, errcode.ConfigStale},
		{"delete of nothing", func() error {
			_, err := coordinatortest.ConfigAt(d).DeleteConfig(t.Context(), &fealtyv1.DeleteConfigRequest{})
			return err
		}, errcode.RequestField},
		{"delete of no kind", func() error {
			_, err := coordinatortest.ConfigAt(d).DeleteConfig(t.Context(),
				&fealtyv1.DeleteConfigRequest{Records: []*fealtyv1.ConfigRecord{{Kind: "thing", Name: "x"}}})
			return err
		}, errcode.NotFound},
		{"get of no name", func() error {
			_, err := coordinatortest.ConfigAt(d).GetConfig(t.Context(), &fealtyv1.GetConfigRequest{Kind: "qos", Name: "../x"})
			return err
		}, errcode.RequestField},
		{"get of what is not there", func() error {
			_, err := coordinatortest.ConfigAt(d).GetConfig(t.Context(), &fealtyv1.GetConfigRequest{Kind: "qos", Name: "silver"})
			return err
		}, errcode.NotFound},
		{"list of no kind", func() error {
			_, err := coordinatortest.ConfigAt(d).ListConfig(t.Context(), &fealtyv1.ListConfigRequest{Kind: "thing"})
			return err
		}, errcode.NotFound},
		{"a page too large", func() error {
			_, err := coordinatortest.ConfigAt(d).ListConfig(t.Context(), &fealtyv1.ListConfigRequest{PageSize: desired.MaxPage + 1})
			return err
		}, errcode.RequestField},
		{"a page after nothing", func() error {
			_, err := coordinatortest.ConfigAt(d).ListConfig(t.Context(), &fealtyv1.ListConfigRequest{PageToken: "qos"})
			return err
		}, errcode.RequestField},
	} {
		before := d.Store.Snapshot()
		err := tt.call()
		coordinatortest.WantOnly(t, tt.name, err, tt.code)
		if strings.Contains(err.Error(), "AKIA") {
			t.Errorf("%s: the secret is shown: %v", tt.name, err)
		}
		if after := d.Store.Snapshot(); len(after) != len(before) ||
			after[desired.StateKey].Version != before[desired.StateKey].Version {
			t.Errorf("%s: the store changed", tt.name)
		}
	}
}

// Of two writers that saw the same version one is refused, and neither undoes what
// the other did. Without a version both count, one after the other.
func TestConfigWriters(t *testing.T) {
	d := coordinatortest.PoolDesk(t)
	other, err := d.Another("other")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	coordinatortest.WantOnly(t,
		"set", d.Set(coordinatortest.PoolEntries+fmt.Sprintf(
			"  - {name: coordinator-2, kind: coordinator, match: [\"key:%s\"]}\n",
			other.Parts().Self.EnrolmentKey())), "")
	other.Parts().Moves.Succession.Look(t.Context())
	writers := []*coordinator.Coordinator{d.C, other}
	version := coordinatortest.MustPut(d, coordinatortest.QosRecord).GetVersion()
	results := make(chan error, len(writers))
	for i, c := range writers {
		go func() {
			req := coordinatortest.PutRequest(fmt.Sprintf("kind: qos\nname: gold\npriority: %d\n", 10+i))
			req.ExpectedVersion = version
			_, err := coordinatortest.Served[fealtyv1.ConfigServiceServer](
				c.Parts().Desired.RegisterServices).PutConfig(
				context.Background(),
				req)
			results <- err
		}()
	}
	stale := 0
	for range writers {
		if err := <-results; errors.Is(err, errcode.ConfigStale) {
			stale++
		} else if err != nil {
			t.Error(err)
		}
	}
	if stale != 1 {
		t.Errorf("%d writers were refused, want 1", stale)
	}
	const each = 10
	for i, c := range writers {
		go func() {
			for n := range each {
				if _, err := (coordinatortest.Served[fealtyv1.ConfigServiceServer](
					c.Parts().Desired.RegisterServices)).PutConfig(
					context.Background(),
					coordinatortest.PutRequest(fmt.Sprintf("kind: qos\nname: q-%d-%d\n", i, n))); err != nil {
					results <- err
					return
				}
			}
			results <- nil
		}()
	}
	for range writers {
		// Ten conflicts in a row are an answer too: nothing was lost.
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	for _, c := range writers {
		list, err := coordinatortest.Served[fealtyv1.ConfigServiceServer](
			c.Parts().Desired.RegisterServices).ListConfig(
			t.Context(),
			&fealtyv1.ListConfigRequest{})
		if err != nil || len(list.GetRecords()) != 1+each*len(writers) {
			t.Errorf("%d records, %v", len(list.GetRecords()), err)
		}
	}
}

// A write that was decided on what somebody else changed meanwhile is decided again,
// and both are there.
func TestConfigWriteInBetween(t *testing.T) {
	d := coordinatortest.PoolDesk(t)
	d.Store.Intercept(func(store.Tx) {
		d.Store.Intercept(nil)
		coordinatortest.MustPut(d, "kind: qos\nname: between\n")
	})
	coordinatortest.MustPut(d, coordinatortest.QosRecord)
	v, err := d.C.Parts().Desired.Read(t.Context(), d.State(), true)
	if err != nil || v.Set.Len() != 2 {
		t.Errorf("%v, %v", v, err)
	}
	// A writer that named the version that it was made from is refused instead.
	req := coordinatortest.PutRequest("kind: qos\nname: late\n")
	req.ExpectedVersion = uint64(v.State.Version)
	d.Store.Intercept(func(store.Tx) {
		d.Store.Intercept(nil)
		coordinatortest.MustPut(d, "kind: qos\nname: again\n")
	})
	_, err = coordinatortest.ConfigAt(d).PutConfig(t.Context(), req)
	coordinatortest.WantOnly(t, "the late one", err, errcode.ConfigStale)
}

// Config of another head, an older one too, is nobody's doing: a store that is restored
// under a running coordinator shows that before it shows the restore.
func TestConfigOfAnOlderHead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := coordinatortest.PoolDesk(t)
		coordinatortest.MustPut(d, coordinatortest.QosRecord)
		was := d.Store.Snapshot()
		coordinatortest.WantOnlyNil(t, d.Set(coordinatortest.PoolEntries+"# again\n"))
		coordinatortest.MustPut(d, "kind: qos\nname: more\n")
		for _, key := range []string{history.HeadKey, desired.StateKey,
			desired.KeyOf(config.Key{Kind: "qos", Name: "more"})} {
			if e, ok := was[key]; ok {
				d.Store.Write(key, e.Value)
			} else {
				d.Store.Remove(key)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- d.C.Parts().Desired.Run(ctx, d.State()) }()
		synctest.Wait()
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if n := coordinatortest.ForgedRecords(d.C); n != 0 {
			t.Errorf("%v records are called altered", n)
		}
	})
}

// A write whose answer is lost is looked up, and what stays unknown says so.
func TestConfigUnknownOutcome(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		lost []coordinatortest.LostAnswer
		code errcode.Code
	}{
		"it happened": {[]coordinatortest.LostAnswer{coordinatortest.LostApplied}, ""},
		"it did not":  {[]coordinatortest.LostAnswer{coordinatortest.LostDropped}, ""},
		"nobody can tell": {[]coordinatortest.LostAnswer{coordinatortest.LostForGood, coordinatortest.Answered},
			errcode.StoreOutcomeUnknown},
		"nobody can tell, it not": {[]coordinatortest.LostAnswer{coordinatortest.LostForGoodN,
			coordinatortest.Answered},
			errcode.StoreOutcomeUnknown},
		"it did not, three in row": {[]coordinatortest.LostAnswer{coordinatortest.LostDropped,
			coordinatortest.LostDropped,
			coordinatortest.LostDropped}, ""},
	} {
		d := coordinatortest.PoolDesk(t)
		d.Store.Lose(tt.lost...)
		_, err := coordinatortest.PutAt(d, coordinatortest.QosRecord)
		coordinatortest.WantOnly(t, name, err, tt.code)
		// Applied or not, the same again leads there, and nothing is double.
		coordinatortest.MustPut(d, coordinatortest.QosRecord)
		if entries, _ := coordinatortest.Audits(d, "config.put"); len(entries) != 1 {
			t.Errorf("%s: %d audit entries", name, len(entries))
		}
	}
}

// Changes to the records by somebody without the seed are found, and not obeyed: the
// config in force stays, nothing is written on what is there, and after a start there
// is none.
func TestConfigAltered(t *testing.T) {
	t.Parallel()
	record := func(kind config.Kind, name string) string { return desired.KeyOf(config.Key{Kind: kind, Name: name}) }
	gone := func([]byte) []byte { return nil }
	for name, alter := range map[string]func(d *coordinatortest.Desk, before map[string]store.Entry){
		"a record is " +
			"gone": func(d *coordinatortest.Desk, _ map[string]store.Entry) {
			d.Store.Alter(record("storage", "mirror"), gone)
		},
		"the state is gone": func(d *coordinatortest.Desk, _ map[string]store.Entry) {
			d.Store.Alter(desired.StateKey,
				gone)
		},
		"a record is rewritten": func(d *coordinatortest.Desk, _ map[string]store.Entry) {
			d.Store.Alter(record("qos", "gold"), func(b []byte) []byte { b[len(b)-1] ^= 1; return b })
		},
		"everything is gone": func(d *coordinatortest.Desk, _ map[string]store.Entry) {
			for _, k := range d.Store.Keys(desired.Prefix) {
				d.Store.Alter(k, gone)
			}
		},
		"a record is an older one": func(d *coordinatortest.Desk, before map[string]store.Entry) {
			d.Store.Alter(record("qos", "gold"), func([]byte) []byte { return before[record("qos", "gold")].Value })
		},
		"a record is another's": func(d *coordinatortest.Desk, _ map[string]store.Entry) {
			other := d.Store.Snapshot()[record("storage", "mirror")].Value
			d.Store.Alter(record("qos", "gold"), func([]byte) []byte { return other })
		},
		"a record is back": func(d *coordinatortest.Desk, before map[string]store.Entry) {
			d.Store.Put(before[record("qos", "old")])
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := coordinatortest.PoolDesk(t)
			coordinatortest.MustPut(d, "kind: qos\nname: old\n---\nkind: qos\nname: gold\npriority: 1\n")
			before := d.Store.Snapshot()
			if _, err := coordinatortest.ConfigAt(d).DeleteConfig(t.Context(),
				&fealtyv1.DeleteConfigRequest{Records: []*fealtyv1.ConfigRecord{{Kind: "qos",
					Name: "old"}}}); err != nil {
				t.Fatal(err)
			}
			version := coordinatortest.MustPut(d, config.Example).GetVersion()
			set, _, _ := d.C.Parts().Desired.Configured()
			alter(d, before)
			if _, err := d.C.Parts().Desired.Read(t.Context(), d.State(), true); !errors.Is(err, store.ErrForged) {
				t.Errorf("read: %v", err)
			}
			if now, v, ok := d.C.Parts().Desired.Configured(); !ok || uint64(v) != version || now != set {
				t.Errorf("the config in force is of version %d, want %d", v, version)
			}
			d.Restart()
			if d.State().Phase != authority.Ready {
				t.Fatalf("after a start: %v %s", d.State().Phase, d.State().Reason)
			}
			if _, _, ok := d.C.Parts().Desired.Configured(); ok {
				t.Error("after a start there is a config")
			}
			_, err := coordinatortest.PutAt(d, coordinatortest.QosRecord)
			coordinatortest.WantOnly(t, "put", err, errcode.StoreForged)
			_, err = coordinatortest.ConfigAt(d).ListConfig(t.Context(), &fealtyv1.ListConfigRequest{})
			coordinatortest.WantOnly(t, "list", err, errcode.StoreForged)
		})
	}
}

// The whole config of an earlier time is refused by whoever has seen a later one.
func TestConfigRolledBack(t *testing.T) {
	d := coordinatortest.PoolDesk(t)
	coordinatortest.MustPut(d, coordinatortest.QosRecord)
	old := d.Store.Snapshot()
	version := coordinatortest.MustPut(d, "kind: qos\nname: gold\npriority: 8\n").GetVersion()
	d.Store.Revert(old)
	_, err := coordinatortest.PutAt(d, "kind: qos\nname: silver\n")
	coordinatortest.WantOnly(t, "put", err, errcode.StoreForged)
	if _, v, ok := d.C.Parts().Desired.Configured(); !ok || uint64(v) != version {
		t.Errorf("the config in force is of version %d, want %d", v, version)
	}
}

// Nor is it believed if somebody writes all of it anew, so that its version is above.
func TestConfigWrittenBack(t *testing.T) {
	d := coordinatortest.PoolDesk(t)
	coordinatortest.MustPut(d, coordinatortest.QosRecord)
	old := d.Store.Snapshot()
	version := coordinatortest.MustPut(d, "kind: qos\nname: gold\npriority: 8\n").GetVersion()
	var tx store.Tx
	for key, e := range old {
		if strings.HasPrefix(key, desired.Prefix) {
			tx.Put = append(tx.Put, store.Write{Key: key, Value: e.Value})
		}
	}
	if _, err := d.Store.Commit(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
	_, err := coordinatortest.PutAt(d, "kind: qos\nname: silver\n")
	coordinatortest.WantOnly(t, "put", err, errcode.StoreForged)
	if _, v, ok := d.C.Parts().Desired.Configured(); !ok || uint64(v) != version {
		t.Errorf("the config in force is of version %d, want %d", v, version)
	}
}

// A store of before the config has one after the next start, and only then.
func TestConfigBegins(t *testing.T) {
	d := coordinatortest.PoolDesk(t)
	if set, version, ok := d.C.Parts().Desired.Configured(); !ok || version == 0 || set.Len() != 0 {
		t.Fatalf("after the first set: %v, %d, %v", set, version, ok)
	}
	in, err := d.C.Parts().Bundle.Read(t.Context(), d.State())
	if err != nil {
		t.Fatal(err)
	}
	in.State.Value.Config = false
	in.State.Value.Change++
	ch := d.State().Records.NewChange(d.State().HeadVersion)
	ch.Put(bundle.StateKey, in.State.Version, in.State.Value)
	ch.Delete(desired.StateKey, d.Store.Snapshot()[desired.StateKey].Version)
	if _, err := ch.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.Restart()
	coordinatortest.MustPut(d, config.Example)
}

// doubled lists the first record of the config twice.
type doubled struct{ store.Store }

func (s doubled) List(ctx context.Context, prefix string) (store.Listing, error) {
	l, err := s.Store.List(ctx, prefix)
	if i := slices.IndexFunc(l.Entries, func(e store.Entry) bool { return e.Key != desired.StateKey }); prefix == desired.Prefix && i >= 0 {
		l.Entries = append(slices.Clone(l.Entries), l.Entries[i])
	}
	return l, err
}

// A record that the store has twice, each copy with its MAC, is forged: that keeps nobody from being
// ready, and none of it is believed.
func TestRecordThatIsThereTwice(t *testing.T) {
	d := coordinatortest.PoolDesk(t)
	coordinatortest.MustPut(d, coordinatortest.QosRecord)
	d.Alter = func(c *coordinator.Config) { c.Store = doubled{c.Store} }
	d.Restart()
	if s := d.State(); s.Phase != authority.Ready {
		t.Fatalf("%v: %s", s.Phase, s.Reason)
	}
	if _, err := d.C.Parts().Desired.Read(t.Context(), d.State(), true); !errors.Is(err, store.ErrForged) ||
		!strings.Contains(err.Error(), "there twice") {
		t.Error(err)
	}
}
