package storeguard_test

import (
	"os"
	"path/filepath"
	"testing"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/desired"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/health"
	"github.com/fealty-io/fealty/internal/store/sqlite"
)

// An SQLite file is put back while the coordinator is down, and others write to it. A
// ban that is gone is noticed however much they wrote. Config that is gone is noticed
// while the store's revision is below what was seen, and not once it is above: that is
// the boundary which docs/explanation/failure-model.md tells of.
func TestPutBackAndGrown(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		bans  bool // what is lost is a ban, else config
		above bool // the revision grew past what was seen
		want  health.Kind
	}{
		{"config, and the revision is below", false, false, health.Revision},
		{"config, and the revision is above", false, true, ""},
		{"a ban, and the revision is above", true, true, health.Counter},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			f := coordinatortest.ReadyFleet(t, nil)
			banned := f.Member("node-1").ID
			dir, kept := filepath.Join(f.Dir, "store"), filepath.Join(f.Dir, "kept")
			f.Stop()
			coordinatortest.WantOnly(t, "copy the store", os.CopyFS(kept, os.DirFS(dir)), "")
			f.Start()
			before := configNames(t, f)
			if tc.bans {
				_, err := f.Local().Member.BanMember(f.Context(),
					&fealtyv1.BanMemberRequest{Kind: string(banned.Kind()), Name: banned.Name(), Reason: "test"})
				coordinatortest.WantOnly(t, "ban", err, "")
			} else {
				_, err := coordinatortest.Served[fealtyv1.ConfigServiceServer](
					f.C.Parts().Desired.RegisterServices).PutConfig(
					f.Context(),
					coordinatortest.PutRequest(coordinatortest.QosRecord))
				coordinatortest.WantOnly(t, "put", err, "")
			}
			// Many more, so that what a start itself writes is not what passes the revision.
			scribble(t, f.Store, 50)
			if _, err := f.Store.List(f.Context(), "scribble/"); err != nil {
				t.Fatal(err)
			}
			f.Stop()
			seen := f.C.Parts().StoreGuard.Revision()

			coordinatortest.WantOnly(t, "remove the store", os.RemoveAll(dir), "")
			coordinatortest.WantOnly(t, "put the store back", os.CopyFS(dir, os.DirFS(kept)), "")
			if tc.above {
				st, err := sqlite.Open(t.Context(), filepath.Join(dir, "db"), sqlite.Options{})
				coordinatortest.WantOnly(t, "open", err, "")
				for at := scribble(t, st, 1); uint64(at) <= seen; at = scribble(t, st, 1) {
				}
				coordinatortest.WantOnly(t, "close", st.Close(), "")
			}
			f.Start()

			loss := f.C.Parts().StoreGuard.Lost()
			switch {
			case tc.want == "" && loss != nil:
				t.Errorf("it is noticed now that the store %v: say so in the failure model", loss)
			case tc.want != "" && (loss == nil || loss.Kind != tc.want):
				t.Errorf("of what is lost it says %v, want %s", loss, tc.want)
			}
			if tc.bans && !f.C.Parts().Bundle.Bans(banned, identity.KeyID{}) {
				t.Error("the ban is lifted")
			}
			if got := configNames(t, f); !tc.bans && len(got) != len(before) {
				t.Errorf("nothing was lost: %v, and %v before", got, before)
			}
			_, err := coordinatortest.Served[fealtyv1.ConfigServiceServer](
				f.C.Parts().Desired.RegisterServices).PutConfig(
				f.Context(),
				coordinatortest.PutRequest(coordinatortest.QosRecord))
			if want := tc.want != ""; (err != nil && errcode.Of(err).Code == errcode.StoreWentBack) != want {
				t.Errorf("a change: %v", err)
			}
		})
	}
}

// scribble writes n times to a family that nobody reads, and returns the newest revision.
func scribble(t *testing.T, st store.Store, n int) (at store.Revision) {
	t.Helper()
	for range n {
		var err error
		at, err = st.Commit(t.Context(), store.Tx{Put: []store.Write{{Key: "scribble/x", Value: []byte("x")}}})
		coordinatortest.WantOnly(t, "write", err, "")
	}
	return at
}

func configNames(t *testing.T, f *coordinatortest.Fleet) (names []string) {
	t.Helper()
	l, err := f.Store.List(f.Context(), desired.Prefix)
	coordinatortest.WantOnly(t, "list", err, "")
	for _, e := range l.Entries {
		names = append(names, e.Key)
	}
	return names
}
