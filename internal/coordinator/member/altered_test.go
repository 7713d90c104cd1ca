package member_test

import (
	"slices"
	"strings"
	"testing"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/finding"
	"github.com/fealty-io/fealty/internal/coordinator/member"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/store"
)

// The record of one member is altered in the store. It counts for nothing, and hides no other member: status and the
// list show those, a critical finding names the record with what to do, and all of it ends once the record is as it was.
func TestAlteredRecordHidesNobody(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	a, b := f.Member("node-a"), f.Member("node-b")
	key := record.MemberKey(identity.Data, "node-a")
	put := func(change func(value []byte) []byte) {
		t.Helper()
		e, err := f.Store.Get(f.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Store.CompareAndSwap(f.Context(), key, e.Version, change(slices.Clone(e.Value))); err != nil {
			t.Fatal(err)
		}
	}
	flip := func(value []byte) []byte {
		value[len(value)-1] ^= 1
		return value
	}
	data := func(members []*fealtyv1.Member) (out []string) {
		for _, path := range paths(members) {
			if strings.HasPrefix(path, "data/") {
				out = append(out, path)
			}
		}
		return out
	}
	want := func(what string, altered bool) {
		t.Helper()
		shown, left := []string{"data/node-a", "data/node-b"}, []string(nil)
		if altered {
			shown, left = shown[1:], shown[:1]
		}
		st := coordinatortest.GetStatus(f)
		if got := data(st.GetMembers()); !slices.Equal(got, shown) {
			t.Errorf("%s: status shows %q, want %q", what, got, shown)
		}
		if n := st.GetBaseline().GetDataMembers(); n != uint32(len(shown)) {
			t.Errorf("%s: %d data members count", what, n)
		}
		var found []*fealtyv1.Finding
		for _, x := range st.GetFindings() {
			if x.GetCode() == string(errcode.StoreForged) {
				found = append(found, x)
			}
		}
		if (len(found) == 1) != altered || len(found) > 1 || altered && (found[0].GetSeverity() != finding.Critical ||
			!strings.Contains(found[0].GetSummary(), "member/data/node-a") || strings.Contains(found[0].GetSummary(), "node-b") ||
			found[0].GetRemedy() != errcode.New(errcode.StoreForged).Do) {
			t.Errorf("%s: status finds %v", what, found)
		}
		for _, kind := range []string{"", "data"} {
			list, err := f.Local().Member.ListMembers(f.Context(), &fealtyv1.ListMembersRequest{Kind: kind})
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if got := data(list.GetMembers()); !slices.Equal(got, shown) || !slices.Equal(list.GetAltered(), left) {
				t.Errorf("%s: the list shows %q and leaves out %q", what, got, list.GetAltered())
			}
		}
		list, err := f.Local().Member.ListMembers(f.Context(), &fealtyv1.ListMembersRequest{Kind: "witness"})
		if err != nil || len(list.GetAltered()) > 0 {
			t.Errorf("%s: the list of witnesses leaves out %q, %v", what, list.GetAltered(), err)
		}
	}
	want("at first", false)
	put(flip)
	want("altered", true)
	coordinatortest.WantCode(t, a.Renew(false), errcode.StoreForged)
	if err := b.Renew(false); err != nil {
		t.Errorf("the other one renews: %v", err)
	}
	want("after renewals", true)
	f.Restart()
	want("after a restart", true)
	put(flip)
	want("as it was", false)
	if err := a.Renew(false); err != nil {
		t.Errorf("as it was: %v", err)
	}
	put(flip)
	want("altered again", true)
	if _, err := f.Store.Commit(f.Context(), store.Tx{Delete: []string{key}}); err != nil {
		t.Fatal(err)
	}
	st := coordinatortest.GetStatus(f)
	if got := data(st.GetMembers()); !slices.Equal(got, []string{"data/node-b"}) ||
		slices.ContainsFunc(st.GetFindings(), func(x *fealtyv1.Finding) bool { return x.GetCode() == string(errcode.StoreForged) }) {
		t.Errorf("deleted: status shows %q and finds %v", got, st.GetFindings())
	}
}

// A record that is altered and put back with the version that it had, as a dump of the database is, counts again.
func TestAlteredAndPutBackUnderOneVersion(t *testing.T) {
	t.Parallel()
	a := rec(identity.Data, "a")
	for name, known := range map[string]bool{"a member that was known": true, "one that was altered before anybody read it": false} {
		t.Run(name, func(t *testing.T) {
			x := member.NewRoster()
			if known {
				x.Put(a, 3)
			}
			news := []record.Versioned[record.Member]{{Value: a, Version: 3}}
			listed := []string{"data/a"}
			x.CatchUp(listed, nil, map[string]store.Revision{"data/a": 3}, 5)
			if got := x.Forged(); !slices.Equal(got, []string{"data/a"}) || len(x.All()) != 0 {
				t.Errorf("altered are %q, shown %v", got, x.All())
			}
			if page, more := x.Page("", "", 10, nil); len(page) > 0 || more {
				t.Errorf("altered: the page is %v", page)
			}
			if known {
				news = nil
			}
			x.CatchUp(listed, news, nil, 5)
			if got := x.Forged(); len(got) > 0 || len(x.All()) != 1 {
				t.Errorf("put back: altered are %q, shown %v", got, x.All())
			}
		})
	}
}
