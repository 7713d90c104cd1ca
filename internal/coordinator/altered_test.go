package coordinator_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/actuation/domains"
	"github.com/fealty-io/fealty/internal/coordinator/actuation/incidents"
	"github.com/fealty-io/fealty/internal/coordinator/actuation/instructions"
	"github.com/fealty-io/fealty/internal/coordinator/admission"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/finding"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/coordinator/recovery/backup"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/instruction"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/sealed"
)

// fullDesk is one that has two records of each list: members data/a, which is banned, data/b and data/c, and
// shards that own a domain each, wait for an instruction and had a process fenced.
func fullDesk(t *testing.T) (d *coordinatortest.Desk, machines map[string]*coordinatortest.Machine, tokens []string) {
	d = coordinatortest.ReadyDesk(t, coordinatortest.PoolEntries+"  - {name: shards, kind: shard, match: [\"token:shards\"]}\n")
	machines = make(map[string]*coordinatortest.Machine)
	for _, name := range []string{"a", "b", "c"} {
		machines[name] = d.Joined(name)
	}
	for _, name := range []string{"eu-1", "eu-2"} {
		m := d.Machine()
		token := d.Token(&fealtyv1.CreateTokenRequest{Entry: "shards", Name: name})
		tokens = append(tokens, token.ID)
		coordinatortest.WantOnlyNil(t, m.Join(identity.Shard, proof.NewTokenProver(token)))
		machines[name] = m
		as := identity.NewContext(context.Background(), identity.Peer{ID: m.ID, Leaf: m.Leaf, Key: identity.KeyOf(m.Leaf)})
		_, err := incidentsOf(d).ReportFenced(as, &fealtyv1.ReportFencedRequest{Name: name,
			Incarnation: fence.NewIncarnation().String(), Epoch: 1<<32 | 2, Problem: "stale"})
		coordinatortest.WantOnlyNil(t, err)
		_, err = domainsOf(d).AssignDomain(context.Background(), &fealtyv1.AssignDomainRequest{Name: "of-" + name,
			To: "shard/" + name})
		coordinatortest.WantOnlyNil(t, err)
		_, err = instructionsOf(d).Instruct(context.Background(), &fealtyv1.InstructRequest{Id: "i-" + name,
			Member: "shard/" + name, Kind: instruction.Pause, Reason: "a test"})
		coordinatortest.WantOnlyNil(t, err)
	}
	coordinatortest.BanAt(d, t, identity.Data, "a")
	return d, machines, tokens
}

func incidentsOf(d *coordinatortest.Desk) fealtyv1.IncidentServiceServer {
	return coordinatortest.Served[fealtyv1.IncidentServiceServer](d.C.Parts().Fencing.Incidents.RegisterServices)
}

func domainsOf(d *coordinatortest.Desk) fealtyv1.DomainServiceServer {
	return coordinatortest.Served[fealtyv1.DomainServiceServer](d.C.Parts().Fencing.Domains.RegisterServices)
}

func instructionsOf(d *coordinatortest.Desk) fealtyv1.InstructionServiceServer {
	return coordinatortest.Served[fealtyv1.InstructionServiceServer](d.C.Parts().Fencing.Instructions.RegisterServices)
}

func tokensOf(d *coordinatortest.Desk) fealtyv1.TokenServiceServer {
	return coordinatortest.Served[fealtyv1.TokenServiceServer](d.C.Parts().Admission.RegisterServices)
}

// lists asks for status and every list there is, and returns their lines, and what the lists say is left out.
func lists(t *testing.T, d *coordinatortest.Desk) (st *fealtyv1.GetStatusResponse, lines, out []string) {
	t.Helper()
	st, err := d.C.Parts().Shown.Status.GetStatus(t.Context(), &fealtyv1.GetStatusRequest{})
	if err != nil {
		t.Fatalf("status: %v", err)
	}
	for _, m := range st.GetMembers() {
		lines = append(lines, "status "+m.GetKind()+"/"+m.GetName()+" "+m.GetState())
	}
	for _, f := range st.GetFindings() {
		if f.GetCode() == string(errcode.ShardFenced) {
			lines = append(lines, "fenced "+strings.Fields(f.GetSummary()[strings.Index(f.GetSummary(), "shard/"):])[0])
		}
	}
	members, err := d.Members().ListMembers(t.Context(), &fealtyv1.ListMembersRequest{})
	if err != nil {
		t.Fatalf("member list: %v", err)
	}
	for _, m := range members.GetMembers() {
		lines = append(lines, "member "+m.GetKind()+"/"+m.GetName()+" "+m.GetState())
	}
	all, err := domainsOf(d).ListDomains(t.Context(), &fealtyv1.ListDomainsRequest{})
	if err != nil {
		t.Fatalf("domain list: %v", err)
	}
	for _, x := range all.GetDomains() {
		lines = append(lines, "domain "+x.GetName())
	}
	told, err := instructionsOf(d).ListInstructions(t.Context(), &fealtyv1.ListInstructionsRequest{})
	if err != nil {
		t.Fatalf("instruction list: %v", err)
	}
	for _, x := range told.GetInstructions() {
		lines = append(lines, "instruction "+x.GetMember()+"/"+x.GetId())
	}
	tokens, err := tokensOf(d).ListTokens(t.Context(), &fealtyv1.ListTokensRequest{})
	if err != nil {
		t.Fatalf("token list: %v", err)
	}
	for _, x := range tokens.GetTokens() {
		lines = append(lines, "token "+x.GetId())
	}
	slices.Sort(lines)
	return st, lines, slices.Concat(members.GetAltered(), all.GetAltered(), told.GetAltered(), tokens.GetAltered())
}

// One record of any family is altered in the store, in any way: whatever it was in the middle of is shown, but for
// that one line; status or the list names it; and all is as before once it is as it was. Who was banned stays so.
func TestAlteredRecordHidesNoOther(t *testing.T) {
	t.Parallel()
	d, machines, tokens := fullDesk(t)
	keyBan := record.BanKeyKey(coordinatortest.KeyOf(t, machines["a"].Key))
	others := d.Store.Snapshot()[record.MemberKey(identity.Data, "b")].Value
	ways := map[string]func([]byte) []byte{
		"one bit":                   func(v []byte) []byte { v[len(v)-1] ^= 1; return v },
		"cut short":                 func(v []byte) []byte { return v[:7] },
		"empty":                     func([]byte) []byte { return []byte{} },
		"text":                      func([]byte) []byte { return []byte(`{"reason":"none"}`) },
		"another's":                 func([]byte) []byte { return others },
		"undecodable under its MAC": nil,
	}
	_, before, out := lists(t, d)
	if len(out) > 0 {
		t.Fatalf("left out before anything is altered: %q", out)
	}
	for _, tt := range []struct {
		key    string
		gone   []string // lines
		out    string   // what a list names; blank: no list has it
		effect string   // what status says of it
	}{
		{record.MemberKey(identity.Data, "c"), []string{"status data/c active", "member data/c active"}, "data/c",
			"neither renews nor joins"},
		{record.BanIDKey(identity.Data, "a"), nil, "", "stays banned"},
		{keyBan, nil, "", "stays banned"},
		{bundle.StateKey, nil, "", "every ban in force stays"},
		{domains.KeyOf("of-eu-1"), []string{"domain of-eu-1"}, "of-eu-1", "its owner is told nothing"},
		{incidents.KeyOf(identity.Shard, "eu-1"), []string{"fenced shard/eu-1"}, "", "is not known"},
		{instructions.KeyOf("shard/eu-1", "i-eu-1"), []string{"instruction shard/eu-1/i-eu-1"}, "shard/eu-1/i-eu-1",
			"told neither that instruction nor any other"},
		{admission.TokenKey(tokens[0]), []string{"token " + tokens[0]}, tokens[0], "admits nobody"},
	} {
		for way, alter := range ways {
			t.Run(tt.key+"/"+way, func(t *testing.T) {
				whole := d.Store.Snapshot()
				defer d.Store.Revert(whole)
				if alter == nil { // as no release before writes it
					w, err := d.State().Records.Seal(tt.key, 7)
					coordinatortest.WantOnlyNil(t, err)
					d.Store.Write(tt.key, w.Value)
				} else if !d.Store.Alter(tt.key, alter) {
					t.Fatal("there is no such record")
				}
				st, lines, out := lists(t, d)
				want := slices.DeleteFunc(slices.Clone(before), func(l string) bool { return slices.Contains(tt.gone, l) })
				if !slices.Equal(lines, want) {
					t.Errorf("shown are\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
				}
				if got := strings.Join(out, " "); got != tt.out {
					t.Errorf("the lists leave out %q, want %q", got, tt.out)
				}
				wantAltered(t, st, tt.key, tt.effect)
				if st.GetBans() != 2 {
					t.Errorf("status counts %d bans, want 2", st.GetBans())
				}
				one, err := d.Members().GetMember(t.Context(), &fealtyv1.GetMemberRequest{Kind: "data", Name: "a"})
				if err != nil || !one.GetMember().GetBanned() || one.GetMember().GetState() != record.Banned {
					t.Errorf("the banned one is shown as %v, %v", one.GetMember(), err)
				}
				if err := machines["a"].Renew(); err == nil {
					t.Error("the banned one renews")
				}
				if err := machines["a"].Rejoin(); err == nil {
					t.Error("the banned one comes back")
				}
			})
		}
		st, lines, out := lists(t, d)
		if !slices.Equal(lines, before) || len(out) > 0 {
			t.Fatalf("%s as it was: shown are\n%s\nwant\n%s\nleft out %q", tt.key, strings.Join(lines, "\n"),
				strings.Join(before, "\n"), out)
		}
		wantAltered(t, st, tt.key, "")
	}
	coordinatortest.WantOnlyNil(t, machines["b"].Renew())
}

// Who asks for one member is told of its fenced processes and its domains; and where the store does not tell these, that
// nobody knows, with the rest as before.
func TestMemberIsShownWithWhatIsBesideIt(t *testing.T) {
	t.Parallel()
	d, _, _ := fullDesk(t)
	show := func(kind identity.Kind, name string) *fealtyv1.GetMemberResponse {
		t.Helper()
		got, err := d.Members().GetMember(t.Context(), &fealtyv1.GetMemberRequest{Kind: string(kind), Name: name})
		coordinatortest.WantOnlyNil(t, err)
		return got
	}
	got := show(identity.Shard, "eu-1")
	if f := got.GetFenced(); len(f) != 1 || f[0].GetEpoch() != 1<<32|2 || f[0].GetProblem() != "stale" ||
		f[0].GetHeardAt().AsTime().IsZero() || f[0].GetToldAt().AsTime().IsZero() {
		t.Errorf("fenced are %v", f)
	}
	if x := got.GetDomains(); len(x) != 1 || x[0].GetName() != "of-eu-1" || x[0].GetOwner() != "shard/eu-1" {
		t.Errorf("its domains are %v", x)
	}
	if other := show(identity.Data, "b"); len(other.GetFenced()) > 0 || len(other.GetDomains()) > 0 || len(other.GetUnknown()) > 0 {
		t.Errorf("another is shown as %v", other)
	}
	unknown := func(want string) {
		t.Helper()
		if got := show(identity.Shard, "eu-1"); !slices.Equal(got.GetUnknown(), []string{want}) || got.GetMember().GetName() != "eu-1" {
			t.Errorf("shown is %v, want that it is not known %s", got, want)
		}
	}
	d.Store.SetUnread(domains.Prefix)
	unknown("which domains it owns or is to own")
	d.Store.SetUnread("")
	whole := d.Store.Snapshot()
	d.Store.Alter(incidents.KeyOf(identity.Shard, "eu-1"), func(v []byte) []byte { v[len(v)-1] ^= 1; return v })
	unknown("whether a process of it was fenced")
	d.Store.Revert(whole)
	d.Advance(incidents.Shown + time.Second)
	if f := show(identity.Shard, "eu-1").GetFenced(); len(f) > 0 {
		t.Errorf("long after its last word fenced are %v", f)
	}
}

// A ban that somebody wrote into the store who has no key bans nobody, and hides nothing that is found of a member.
func TestInventedBanHidesNobody(t *testing.T) {
	t.Parallel()
	d, _, _ := fullDesk(t)
	_, before, _ := lists(t, d)
	d.Store.Write(record.BanIDKey(identity.Data, "b"), []byte("none"))
	st, lines, _ := lists(t, d)
	if !slices.Equal(lines, before) {
		t.Errorf("shown are\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(before, "\n"))
	}
	wantAltered(t, st, record.BanIDKey(identity.Data, "b"), "stays banned if the bundle in force bans them")
	one, err := d.Members().GetMember(t.Context(), &fealtyv1.GetMemberRequest{Kind: "data", Name: "b"})
	if err != nil || one.GetMember().GetBanned() {
		t.Errorf("who was never banned is shown as %v, %v", one.GetMember(), err)
	}
}

// wantAltered wants one critical finding that names a record that was altered, says what that comes to, and what
// to do; none of a blank effect.
func wantAltered(t *testing.T, st *fealtyv1.GetStatusResponse, key, effect string) {
	t.Helper()
	var found []*fealtyv1.Finding
	for _, f := range st.GetFindings() {
		if f.GetCode() == string(errcode.StoreForged) {
			found = append(found, f)
		}
	}
	switch {
	case effect == "" && len(found) > 0:
		t.Errorf("status finds %v", found)
	case effect == "":
	case len(found) != 1 || found[0].GetSeverity() != finding.Critical || !strings.Contains(found[0].GetSummary(), key) ||
		!strings.Contains(found[0].GetSummary(), effect) || found[0].GetRemedy() != errcode.New(errcode.StoreForged).Do:
		t.Errorf("status finds %v of %s, want one that it %s", found, key, effect)
	}
}

// Bans that were deleted in the store are found missing: who was banned stays so, and status says that no
// ban can be made until they are back.
func TestDeletedBanIsFound(t *testing.T) {
	t.Parallel()
	d, machines, _ := fullDesk(t)
	for _, key := range []string{record.BanIDKey(identity.Data, "a"), bundle.StateKey} {
		whole := d.Store.Snapshot()
		d.Store.Alter(key, func([]byte) []byte { return nil })
		st, _, _ := lists(t, d)
		wantAltered(t, st, map[bool]string{true: bundle.StateKey, false: bundle.Prefix + "ban/"}[key == bundle.StateKey],
			"nobody else can be banned")
		if machines["a"].Rejoin() == nil {
			t.Errorf("%s is gone, and the banned one comes back", key)
		}
		d.Store.Revert(whole)
		st, _, _ = lists(t, d)
		wantAltered(t, st, key, "")
	}
}

// A family that the store does not give, as when somebody damaged an entry below what opens it, or when it stopped
// to answer meanwhile, is not one of which nothing is wrong: status names what is not known.
func TestUnreadFamilyIsNotWell(t *testing.T) {
	t.Parallel()
	d, _, _ := fullDesk(t)
	clauses := func() []string {
		st, err := d.C.Parts().Shown.Status.GetStatus(t.Context(), &fealtyv1.GetStatusRequest{})
		coordinatortest.WantOnlyNil(t, err)
		return st.GetVerdict().GetUnknown()
	}
	before := clauses()
	for prefix, want := range map[string]string{
		backup.UpkeepPrefix: "when a backup was made",
		incidents.Prefix:    "whether processes were fenced",
		domains.Prefix:      "whether domains have owners that are heard",
		sealed.Seed(&d.State().Head.Transition).Under() + "host": "whether keepers open the seed",
		"instruction/waiting/": "whether instructions wait as they were given",
		admission.TokenPrefix:  "whether tokens are as they were created",
		peer.Prefix:            "which other coordinators there are",
	} {
		d.Store.SetUnread(prefix)
		if got := clauses(); !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(append(slices.Clone(before), want)))) {
			t.Errorf("without %s not known is %q, want %q besides %q", prefix, got, want, before)
		}
	}
	d.Store.SetUnread("")
	if got := clauses(); !slices.Equal(got, before) {
		t.Errorf("at the end not known is %q, and was %q", got, before)
	}
}

// Who writes to the store chooses keys too: one that is no text, or that has no end, ends no list.
func TestAlteredNamesAreText(t *testing.T) {
	t.Parallel()
	d, _, _ := fullDesk(t)
	for _, prefix := range []string{record.MemberPrefix, domains.Prefix, "instruction/waiting/", admission.TokenPrefix} {
		d.Store.Write(prefix+"a\xff"+strings.Repeat("b", 1<<20), []byte("{}"))
	}
	st, _, out := lists(t, d)
	if len(out) != 4 {
		t.Fatalf("%d are named, want 4", len(out))
	}
	for _, name := range out {
		if !strings.HasPrefix(name, "a?b") || len(name) > store.MaxKeyBytes+2 {
			t.Errorf("named is one of %d bytes, %.20q", len(name), name)
		}
	}
	if _, err := proto.Marshal(st); err != nil {
		t.Errorf("status: %v", err)
	}
}
