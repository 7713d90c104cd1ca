package coordinator_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/x509"
	"errors"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/admission"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/pki"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/test/testlane"
)

// world is what the model knows of a cluster: who rightly holds what. It repeats
// the promises of package admission, not the code.
type world struct {
	*coordinatortest.Desk
	r        *rapid.T
	machines []*coordinatortest.Machine
	holder   map[string]*coordinatortest.Machine // of a name, by "<kind>/<name>"
	order    []string                            // the names, as they first came
	banOrder []string
	vacant   map[string]bool              // its name waits for a new machine
	banned   map[string]bool              // identities
	dead     map[identity.KeyID]time.Time // banned keys, and until when they are refused
	killed   []*x509.Certificate          // that a ban or removal was for
	tokens   []*modelToken
	domains  map[string]bool // members that own one
	drained  map[string]bool // marked to go
	contact  map[string]bool // hold a stream
	withPool bool            // the manifest in force has the entry pool
}

type modelToken struct {
	proof.JoinToken
	entry, name string
	orgs        []string
	uses        int
	keys        map[identity.KeyID]bool // that it admitted
	ends        time.Time
	revoked     bool
}

// TestAdmissionModel lets machines, thieves and admins do what they like, with
// answers of the store that get lost, restarts and time that passes.
func TestAdmissionModel(t *testing.T) {
	testlane.Checks(t, 10, 100) // each is a cluster of its own
	rapid.Check(t, func(r *rapid.T) {
		w := &world{Desk: coordinatortest.ReadyDesk(r, coordinatortest.EntriesOf(true)), r: r,
			holder: make(map[string]*coordinatortest.Machine),
			vacant: make(map[string]bool), banned: make(map[string]bool),
			dead: make(map[identity.KeyID]time.Time), domains: make(map[string]bool), drained: make(map[string]bool),
			contact: make(map[string]bool), withPool: true}
		defer func() { _ = w.C.Close() }()
		r.Repeat(map[string]func(*rapid.T){
			"token":    w.makeToken,
			"join":     w.joinByToken,
			"rejoin":   w.rejoinBySVID,
			"renew":    w.renewal,
			"steal":    w.stolenKey,
			"ban":      w.ban,
			"unban":    w.unban,
			"replace":  w.replace,
			"remove":   w.remove,
			"drain":    w.drain,
			"undrain":  w.undrain,
			"stream":   w.stream,
			"leave":    w.leave,
			"revoke":   w.revoke,
			"own":      w.own,
			"manifest": w.otherManifest,
			"wait": func(r *rapid.T) {
				w.Advance(rapid.SampledFrom([]time.Duration{time.Minute, 2 * time.Hour, 26 * time.Hour,
					9 * 24 * time.Hour}).Draw(r, "for"))
				w.ok(w.C.Parts().Bundle.Refresh(context.Background(), w.State(), true))
				w.ok(w.C.Parts().Bundle.RenewIdentity(context.Background(), w.State()))
			},
			"prune":   func(*rapid.T) { w.ok(w.C.PruneOnce(context.Background(), w.State(), w.Clock())) },
			"restart": func(*rapid.T) { w.Restart(); clear(w.contact) },
			"":        w.check,
		})
	})
}

func (w *world) ok(err error) {
	w.r.Helper()
	if err != nil {
		w.r.Fatalf("%v", err)
	}
}

// lossy makes the answers of the next commits get lost in some way, and reports
// whether the call may fail for it.
func (w *world) lossy(r *rapid.T) bool {
	how := rapid.SampledFrom([][]coordinatortest.LostAnswer{nil, nil, nil, {coordinatortest.LostApplied},
		{coordinatortest.LostDropped}, {coordinatortest.LostForGood, coordinatortest.Answered},
		{coordinatortest.LostForGoodN, coordinatortest.Answered}}).Draw(r, "answers")
	w.Store.Lose(how...)
	return len(how) == 2
}

var modelNames = []string{"a", "b", "c"}

func (w *world) makeToken(r *rapid.T) {
	req := &fealtyv1.CreateTokenRequest{Entry: rapid.SampledFrom([]string{"pool", "small", "ops"}).Draw(r, "entry"),
		Uses: uint32(rapid.IntRange(1, 3).Draw(r, "uses")),
		Ttl:  durationpb.New(rapid.SampledFrom([]time.Duration{time.Hour, 29 * 24 * time.Hour}).Draw(r, "ttl"))}
	if req.Entry == "pool" {
		req.Organizations = rapid.SampledFrom([][]string{nil, {"acme"}, {"globex", "acme"}}).Draw(r, "organizations")
	}
	if rapid.Bool().Draw(r, "named") {
		req.Name, req.Uses = rapid.SampledFrom(modelNames).Draw(r, "name"), 1
	}
	if req.Entry == "pool" && !w.withPool {
		if _, err := (coordinatortest.Served[fealtyv1.TokenServiceServer](
			w.C.Parts().Admission.RegisterServices)).CreateToken(
			context.Background(), req); !errors.Is(err,
			errcode.NotFound) {
			r.Fatalf("a token for an entry that is gone: %v", err)
		}
		return
	}
	w.tokens = append(w.tokens, &modelToken{JoinToken: w.Token(req), entry: req.Entry, name: req.Name,
		orgs: req.Organizations, uses: int(req.Uses),
		keys: make(map[identity.KeyID]bool), ends: w.Clock().Add(req.Ttl.AsDuration())})
}

// admitted checks a certificate that was just given to m under entry.
func (w *world) admitted(r *rapid.T, m *coordinatortest.Machine) {
	path := string(m.ID.Kind()) + "/" + m.ID.Name()
	key := coordinatortest.KeyOf(w.T, m.Key)
	if identity.KeyOf(m.Leaf) != key {
		r.Fatalf("%s was certified over another key than it asked for", path)
	}
	if w.banned[path] {
		r.Fatalf("%s is banned and was certified", path)
	}
	if end, ok := w.dead[key]; ok && w.Clock().Before(end) {
		r.Fatalf("%s was certified over a banned key", path)
	}
	// A machine that came in under two names by one key, and asks for the first again, is the one that has it.
	if old := w.holder[path]; old != nil && coordinatortest.KeyOf(w.T, old.Key) != key && old != m && !w.vacant[path] {
		if !record.IsSession(m.ID.Kind()) || w.Clock().Before(old.Leaf.NotAfter) {
			r.Fatalf("the name %s changed hands without a replace", path)
		}
	}
	w.holder[path] = m
	if !slices.Contains(w.order, path) {
		w.order = append(w.order, path)
	}
	delete(w.vacant, path)
	rec := w.Record(m.ID.Kind(), m.ID.Name())
	if rec.Value.Key != key || !rec.Value.Held() {
		r.Fatalf("%s was certified over %v and its record says %v, %s", path, key, rec.Value.Key, rec.Value.State)
	}
	if rec.Value.NotAfter.Before(m.Leaf.NotAfter) {
		r.Fatalf("%s is certified until %v and its record says %v", path, m.Leaf.NotAfter, rec.Value.NotAfter)
	}
}

func (w *world) joinByToken(r *rapid.T) {
	if len(w.tokens) == 0 {
		return
	}
	tok := w.tokens[rapid.IntRange(0, len(w.tokens)-1).Draw(r, "token")]
	m := w.Machine()
	if len(w.machines) > 0 && rapid.Bool().Draw(r, "known machine") {
		m = w.machines[rapid.IntRange(0, len(w.machines)-1).Draw(r, "machine")]
	} else {
		w.machines = append(w.machines, m)
	}
	kind := identity.Data
	if tok.entry == "ops" {
		kind = identity.Admin
	}
	key := coordinatortest.KeyOf(w.T, m.Key)
	before, copied := m.ID, *m
	use := func() bool {
		use, err := record.Get[admission.TokenUse](context.Background(), w.State().Records,
			admission.TokenUseKey(tok.ID, key))
		w.ok(err)
		return use.Exists()
	}
	used := use()
	mayFail := w.lossy(r)
	err := m.Join(kind, proof.NewTokenProver(tok.JoinToken))
	w.Store.Lose()
	if coordinatortest.OutcomeUnknown(err) && mayFail {
		// It may have happened: then the use is bound to this key.
		if !use() {
			return
		}
		err = m.Join(kind, proof.NewTokenProver(tok.JoinToken))
		// A use of before may be spent: its member may be gone since.
		if err != nil && !used {
			r.Fatalf("the grant was lost, and the same key is refused: %v", err)
		}
	}
	path := string(kind) + "/" + tok.name
	usable := !tok.revoked && w.Clock().Before(tok.ends.Truncate(time.Second)) && len(tok.keys) < tok.uses
	if err != nil {
		_, dead := w.dead[key]
		if usable && !dead && !tok.keys[key] && tok.entry == "pool" && w.withPool &&
			(tok.name == "" || w.holder[path] == nil && !w.banned[path]) {
			r.Fatalf("a usable token was refused: %v", err)
		}
		return
	}
	if tok.entry == "pool" && !w.withPool {
		r.Fatal("the entry is gone, and its token admitted")
	}
	if !tok.keys[key] && !usable {
		r.Fatalf("a token that is used up, over or revoked admitted (revoked %v, %d of %d used, ends %v, now %v)",
			tok.revoked, len(tok.keys), tok.uses, tok.ends, w.Clock())
	}
	tok.keys[key] = true
	if len(tok.keys) > tok.uses {
		r.Fatalf("%d keys came in by a token for %d", len(tok.keys), tok.uses)
	}
	if tok.name != "" && m.ID.Name() != tok.name {
		r.Fatalf("admitted as %s by a token for %s", m.ID.Name(), tok.name)
	}
	if was := string(before.Kind()) + "/" + before.Name(); before != m.ID && w.holder[was] == m {
		// The machine goes on under another name; of the old one a copy stays.
		w.holder[was] = &copied
	}
	w.admitted(r, m)
	rec := w.Record(m.ID.Kind(), m.ID.Name()).Value
	for _, o := range rec.Organizations {
		if tok.orgs != nil && !slices.Contains(tok.orgs, o) {
			r.Fatalf("%s is of organization %s, and its token was for %v", rec.Path(), o, tok.orgs)
		}
	}
}

// live returns a machine that holds a name, or nil.
func (w *world) live(r *rapid.T) (*coordinatortest.Machine, string) {
	var paths []string // in the order of their first admission: generated names are random
	for _, path := range w.order {
		if w.holder[path] != nil {
			paths = append(paths, path)
		}
	}
	if len(paths) == 0 {
		return nil, ""
	}
	path := paths[rapid.IntRange(0, len(paths)-1).Draw(r, "member")]
	return w.holder[path], path
}

// may reports whether the model lets the rightful holder of path go on.
func (w *world) may(path string) bool {
	rec := w.Record(w.holder[path].ID.Kind(), w.holder[path].ID.Name())
	return !w.banned[path] && !w.vacant[path] && rec.Exists() && (w.withPool || rec.Value.Entry != "pool")
}

func (w *world) rejoinBySVID(r *rapid.T) {
	m, path := w.live(r)
	if m == nil {
		return
	}
	grace := w.State().Manifest.RejoinGrace
	if record.IsSession(m.ID.Kind()) {
		grace = 0
	}
	rec := w.Record(m.ID.Kind(), m.ID.Name())
	key := m.Key
	if rapid.Bool().Draw(r, "new key") {
		key, _ = coordinatortest.NewKey()
	}
	mayFail := w.lossy(r)
	err := m.JoinWith(key, m.ID.Kind(), proof.NewSVIDProver(m.ID.Kind(), m.ID.Name(), m.Key))
	w.Store.Lose()
	if coordinatortest.OutcomeUnknown(err) && mayFail {
		w.settle(r, m, key)
		return
	}
	allowed := w.may(path) && w.Clock().Before(rec.Value.NotAfter.Add(grace))
	switch {
	case err == nil && !allowed:
		r.Fatalf("%s rejoined (banned %v, vacant %v, until %v, now %v)", path, w.banned[path], w.vacant[path],
			rec.Value.NotAfter, w.Clock())
	case err != nil && allowed && !errors.Is(err, errcode.RateLimited) && !w.shared(m):
		r.Fatalf("%s proved its last key and was refused: %v", path, err)
	case err == nil:
		if m.Grant.GetOutcome() != fealtyv1.JoinOutcome_JOIN_OUTCOME_ALREADY_MEMBER {
			r.Fatalf("the outcome of a rejoin is %v", m.Grant.GetOutcome())
		}
		w.admitted(r, m)
		after := w.Record(m.ID.Kind(), m.ID.Name()).Value
		if !after.JoinedAt.Equal(rec.Value.JoinedAt) || !slices.Equal(after.Domains, rec.Value.Domains) ||
			after.Drain != rec.Value.Drain || after.Incarnation != rec.Value.Incarnation {
			r.Fatalf("a rejoin changed the record from %+v to %+v", rec.Value, after)
		}
	}
}

// settle is what a machine does that asked for a certificate over key and got no
// answer: if it was recorded the key is its own now, and it comes back by it.
func (w *world) settle(r *rapid.T, m *coordinatortest.Machine, key *ecdsa.PrivateKey) {
	rec := w.Record(m.ID.Kind(), m.ID.Name())
	if rec.Value.Key != coordinatortest.KeyOf(w.T, key) {
		return
	}
	if m.Key != key {
		m.Older, m.Key = append(m.Older, m.Key), key
	}
	if err := m.Rejoin(); err != nil {
		r.Fatalf("the answer was lost, and the key that was recorded is refused: %v", err)
	}
	w.admitted(r, m)
}

func (w *world) renewal(r *rapid.T) {
	m, path := w.live(r)
	if m == nil {
		return
	}
	next, err := coordinatortest.NewKey()
	w.ok(err)
	// A session ends when it ends: the next one takes a proof as at first.
	allowed := w.may(path) && w.Clock().Before(m.Leaf.NotAfter) && !record.IsSession(m.ID.Kind())
	mayFail := w.lossy(r)
	chain, err := m.RenewWith(m.Leaf, next)
	w.Store.Lose()
	if coordinatortest.OutcomeUnknown(err) && mayFail {
		if w.Record(m.ID.Kind(), m.ID.Name()).Value.Key != coordinatortest.KeyOf(w.T, next) {
			return
		}
		// The same new key again, with the old certificate.
		if chain, err = m.RenewWith(m.Leaf, next); err != nil {
			r.Fatalf("the answer was lost, and the same key again is refused: %v", err)
		}
	}
	switch {
	case err == nil && !allowed:
		r.Fatalf("%s was renewed (banned %v, vacant %v, until %v, now %v)", path, w.banned[path], w.vacant[path],
			m.Leaf.NotAfter, w.Clock())
	case err != nil && allowed && !errors.Is(err, errcode.RateLimited) && !w.shared(m):
		r.Fatalf("%s was not renewed: %v", path, err)
	case err == nil:
		m.Older, m.Key = append(m.Older, m.Key), next
		w.ok(m.Adopt(chain))
		w.admitted(r, m)
	}
}

// stolenKey is a thief with an earlier key of a member.
func (w *world) stolenKey(r *rapid.T) {
	m, path := w.live(r)
	if m == nil || len(m.Older) == 0 {
		return
	}
	before := w.Record(m.ID.Kind(), m.ID.Name())
	thief := &coordinatortest.Machine{Desk: w.Desk, Key: m.Older[rapid.IntRange(0, len(m.Older)-1).Draw(r, "key")],
		ID: m.ID}
	if coordinatortest.KeyOf(w.T, thief.Key) == before.Value.Key {
		return
	}
	if err := thief.Rejoin(); err == nil {
		r.Fatalf("an earlier key of %s rejoined", path)
	}
	next, err := coordinatortest.NewKey()
	w.ok(err)
	csrPeer := identity.Peer{ID: m.ID, Key: coordinatortest.KeyOf(w.T, thief.Key)}
	if _, err := coordinatortest.RenewOver(context.Background(), w.C, csrPeer, w.csr(next)); err == nil {
		r.Fatalf("an earlier key of %s was renewed", path)
	}
	ctx := identity.NewContext(context.Background(), csrPeer)
	if _, err := (coordinatortest.Served[fealtyv1.AdmissionServiceServer](
		w.C.Parts().Admission.RegisterServices)).Leave(
		ctx,
		&fealtyv1.LeaveRequest{Name: m.ID.Name()}); err == nil {
		r.Fatalf("an earlier key of %s ended its membership", path)
	}
	if after := w.Record(m.ID.Kind(), m.ID.Name()); after.Version != before.Version {
		r.Fatalf("an earlier key of %s changed its record", path)
	}
}

// shared reports whether the key of m was banned with another name that it had.
func (w *world) shared(m *coordinatortest.Machine) bool {
	_, dead := w.dead[coordinatortest.KeyOf(w.T, m.Key)]
	return dead
}

// kill marks all keys of a machine as banned.
func (w *world) kill(m *coordinatortest.Machine) {
	end := w.Clock().Add(record.KeyMemory(w.State().Manifest))
	for _, k := range append(slices.Clone(m.Older), m.Key) {
		w.dead[coordinatortest.KeyOf(w.T, k)] = end
	}
	for _, leaf := range m.Leaves {
		if id, err := identity.FromCertificate(leaf); err == nil && id == m.ID {
			w.killed = append(w.killed, leaf)
		}
	}
}

func (w *world) ban(r *rapid.T) {
	path := "data/" + rapid.SampledFrom(modelNames).Draw(r, "name")
	if m, p := w.live(r); m != nil {
		path = p
	}
	kind, name := coordinatortest.SplitPath(path)
	mayFail := w.lossy(r)
	_, err := w.Members().BanMember(context.Background(),
		&fealtyv1.BanMemberRequest{Kind: kind, Name: name, Reason: "model"})
	w.Store.Lose()
	if coordinatortest.OutcomeUnknown(err) && mayFail {
		_, err = w.Members().BanMember(context.Background(),
			&fealtyv1.BanMemberRequest{Kind: kind, Name: name, Reason: "again"})
	}
	w.ok(err)
	w.banned[path] = true
	w.banOrder = append(w.banOrder, path)
	if m := w.holder[path]; m != nil && w.Record(identity.Kind(kind), name).Exists() && !w.vacant[path] {
		w.kill(m)
	}
	id, err := identity.New(coordinatortest.Cluster, identity.Kind(kind), name)
	w.ok(err)
	if !w.C.Parts().Bundle.View().Bundle.Banned(id, coordinatortest.KeyNumber(0)) {
		r.Fatalf("%s is banned, and the bundle in force does not say so", path)
	}
}

func (w *world) unban(r *rapid.T) {
	if len(w.banOrder) == 0 {
		return
	}
	path := w.banOrder[rapid.IntRange(0, len(w.banOrder)-1).Draw(r, "path")]
	if !w.banned[path] {
		return
	}
	kind, name := coordinatortest.SplitPath(path)
	_, err := w.Members().UnbanMember(context.Background(), &fealtyv1.UnbanMemberRequest{Kind: kind, Name: name})
	w.ok(err)
	delete(w.banned, path)
	if w.holder[path] != nil {
		w.vacant[path] = true
	}
}

func (w *world) replace(r *rapid.T) {
	m, path := w.live(r)
	if m == nil || w.vacant[path] {
		return
	}
	kind, name := coordinatortest.SplitPath(path)
	_, err := w.Members().ReplaceMember(context.Background(),
		&fealtyv1.ReplaceMemberRequest{Kind: kind, Name: name, Reason: "model"})
	if !w.Record(m.ID.Kind(), m.ID.Name()).Exists() {
		return
	}
	w.ok(err)
	w.kill(m)
	w.vacant[path] = true
}

func (w *world) remove(r *rapid.T) {
	m, path := w.live(r)
	if m == nil {
		return
	}
	kind, name := coordinatortest.SplitPath(path)
	rec := w.Record(m.ID.Kind(), name)
	existed := rec.Exists()
	req := &fealtyv1.RemoveMemberRequest{Kind: kind, Name: name, Force: rapid.Bool().Draw(r, "force"), Reason: "model"}
	atWork := w.contact[path] && !w.vacant[path] && !w.banned[path] && !w.drained[path] &&
		w.Clock().Before(rec.Value.NotAfter)
	_, err := w.Members().RemoveMember(context.Background(), req)
	switch {
	case existed && !w.domains[path] && atWork && !req.Force:
		if !errors.Is(err, errcode.MemberInContact) {
			r.Fatalf("%s is at work, and its removal said %v", path, err)
		}
		return
	case w.domains[path] && existed:
		if !errors.Is(err, errcode.MemberOwnsDomains) {
			r.Fatalf("%s owns a domain, and its removal said %v", path, err)
		}
		return
	case existed:
		w.ok(err)
		if !w.vacant[path] {
			w.kill(m)
		}
	}
	w.gone(path)
}

func (w *world) drain(r *rapid.T) {
	m, path := w.live(r)
	if m == nil || record.IsSession(m.ID.Kind()) {
		return
	}
	w.mark(r, m, path, true, func(kind, name string) (bool, error) {
		resp, err := w.Members().DrainMember(context.Background(), &fealtyv1.DrainMemberRequest{Kind: kind, Name: name})
		return resp.GetChanged(), err
	})
}

func (w *world) undrain(r *rapid.T) {
	m, path := w.live(r)
	if m == nil {
		return
	}
	w.mark(r, m, path, false, func(kind, name string) (bool, error) {
		resp, err := w.Members().UndrainMember(context.Background(),
			&fealtyv1.UndrainMemberRequest{Kind: kind, Name: name})
		return resp.GetChanged(), err
	})
}

func (w *world) mark(r *rapid.T, m *coordinatortest.Machine, path string, want bool,
	f func(kind, name string) (bool, error)) {
	rec := w.Record(m.ID.Kind(), m.ID.Name())
	kind, name := coordinatortest.SplitPath(path)
	mayFail := w.lossy(r)
	changed, err := f(kind, name)
	w.Store.Lose()
	again := false
	if coordinatortest.OutcomeUnknown(err) && mayFail {
		again = true
		changed, err = f(kind, name)
	}
	if !rec.Exists() {
		if !errors.Is(err, errcode.NotFound) {
			r.Fatalf("%s is no member, and marking it said %v", path, err)
		}
		return
	}
	w.ok(err)
	if !again && changed == (w.drained[path] == want) {
		r.Fatalf("%s was drained: %v, wanted %v, and changed is %v", path, w.drained[path], want, changed)
	}
	w.drained[path] = want
}

// stream opens the stream of a member, or ends it.
func (w *world) stream(r *rapid.T) {
	m, path := w.live(r)
	if m == nil || record.IsSession(m.ID.Kind()) || !w.Record(m.ID.Kind(), m.ID.Name()).Exists() {
		return
	}
	if w.contact[path] = !w.contact[path]; w.contact[path] {
		w.C.Parts().Membership.Live().Opened(m.ID, "")
	} else {
		w.C.Parts().Membership.Live().Closed(m.ID, nil, true)
	}
}

func (w *world) leave(r *rapid.T) {
	m, path := w.live(r)
	if m == nil || record.IsSession(m.ID.Kind()) || w.domains[path] || !w.may(path) ||
		!w.Clock().Before(m.Leaf.NotAfter) {
		return
	}
	ctx := identity.NewContext(context.Background(), identity.Peer{ID: m.ID, Leaf: m.Leaf, Key: identity.KeyOf(m.Leaf)})
	_, err := coordinatortest.Served[fealtyv1.AdmissionServiceServer](w.C.Parts().Admission.RegisterServices).Leave(ctx,
		&fealtyv1.LeaveRequest{Name: m.ID.Name()})
	w.ok(err)
	w.ok(w.C.Parts().Bundle.Refresh(context.Background(), w.State(), false))
	w.kill(m)
	w.gone(path)
}

func (w *world) gone(path string) {
	delete(w.holder, path)
	delete(w.vacant, path)
	delete(w.domains, path)
	delete(w.drained, path)
	if w.contact[path] {
		kind, name := coordinatortest.SplitPath(path)
		id, err := identity.New(coordinatortest.Cluster, identity.Kind(kind), name)
		w.ok(err)
		w.C.Parts().Membership.Live().Closed(id, nil, false)
		delete(w.contact, path)
	}
}

func (w *world) revoke(r *rapid.T) {
	if len(w.tokens) == 0 {
		return
	}
	tok := w.tokens[rapid.IntRange(0, len(w.tokens)-1).Draw(r, "token")]
	if _, err := (coordinatortest.Served[fealtyv1.TokenServiceServer](
		w.C.Parts().Admission.RegisterServices)).RevokeToken(
		context.Background(),
		&fealtyv1.RevokeTokenRequest{Id: tok.ID}); err == nil {
		tok.revoked = true
	}
}

// own gives a member a domain, as a later release will.
func (w *world) own(r *rapid.T) {
	m, path := w.live(r)
	if m == nil || m.ID.Kind() != identity.Data {
		return
	}
	rec := w.Record(m.ID.Kind(), m.ID.Name())
	if !rec.Exists() {
		return
	}
	rec.Value.Domains = []string{"range-1"}
	ch := w.State().Records.NewChange(w.State().HeadVersion)
	ch.Put(record.MemberKey(m.ID.Kind(), m.ID.Name()), rec.Version, rec.Value)
	_, err := ch.Commit(context.Background())
	w.ok(err)
	w.domains[path] = true
}

func (w *world) otherManifest(*rapid.T) {
	w.withPool = !w.withPool
	w.ok(w.Set(coordinatortest.EntriesOf(w.withPool)))
}

// check is what always holds, of the records alone.
func (w *world) check(r *rapid.T) {
	recs, err := record.List[record.Member](context.Background(), w.State().Records, record.MemberPrefix)
	w.ok(err)
	small := 0
	for _, m := range recs {
		path := m.Value.Path()
		if m.Value.Entry == "small" {
			small++
		}
		for _, o := range m.Value.Organizations {
			if o != "acme" && o != "globex" {
				r.Fatalf("%s is of organization %s", path, o)
			}
			if m.Value.NarrowTo != nil && !slices.Contains(m.Value.NarrowTo, o) {
				r.Fatalf("%s is of %v, and was narrowed to %v", path, m.Value.Organizations, m.Value.NarrowTo)
			}
		}
		want := record.Active
		switch {
		case w.vacant[path]:
			want = record.Replacing
		case w.drained[path]:
			want = record.Draining
		}
		if m.Value.State != want || m.Value.Drain.At.IsZero() == w.drained[path] {
			r.Fatalf("%s is %s with mark %+v, want %s", path, m.Value.State, m.Value.Drain, want)
		}
	}
	if small > 2 {
		r.Fatalf("%d members under an entry for 2", small)
	}
	for path, m := range w.holder {
		if m != nil && m.ID.Kind() == identity.Data && !w.Record(m.ID.Kind(), m.ID.Name()).Exists() {
			r.Fatalf("%s has a machine and no record", path)
		}
	}
	// A banned key is in the bundle for as long as a certificate can be valid.
	bundle := w.C.Parts().Bundle.View().Bundle
	for path := range w.banned {
		kind, name := coordinatortest.SplitPath(path)
		id, err := identity.New(coordinatortest.Cluster, identity.Kind(kind), name)
		w.ok(err)
		if !bundle.Banned(id, coordinatortest.KeyNumber(0)) {
			r.Fatalf("%s is banned, and the bundle does not say so", path)
		}
	}
	for _, leaf := range w.killed {
		id, err := identity.FromCertificate(leaf)
		w.ok(err)
		if w.Clock().Before(leaf.NotAfter) && !bundle.Banned(id, identity.KeyOf(leaf)) {
			r.Fatalf("a certificate of %v that its ban was for would be accepted", id)
		}
	}
}

func (w *world) csr(key *ecdsa.PrivateKey) []byte {
	w.r.Helper()
	der, err := pki.NewCSR(key)
	w.ok(err)
	return der
}
