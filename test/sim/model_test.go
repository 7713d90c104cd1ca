package sim_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/store/sealed"
)

// model is what was acknowledged, and what may have happened: who asked did not hear.
type model struct {
	mu      sync.Mutex
	sets    []history.Hash           // acknowledged; guarded by mu
	config  map[string]map[int]bool  // the priorities that a record may have; 0: none; guarded by mu
	members map[string]*member       // guarded by mu
	tokens  map[string]*token        // by id; guarded by mu
	opens   map[keyring.KeyID]bool   // the keys that opened the seed of salt; guarded by mu
	keys    map[keyring.KeyID][]byte // the files of all keys that ever were on a disk; guarded by mu
	salt    history.Salt             // guarded by mu
	void    map[string]bool          // tokens that a new seed made worthless; guarded by mu
}

type member struct {
	*coordinatortest.Node
	acked     bool // else it may be one
	banned    tri
	processes processes
}

// tri is what may be known of something.
type tri int

const (
	no tri = iota
	perhaps
	yes
)

type token struct {
	line   string
	uses   int
	acked  int // joins
	unsure int // joins whose outcome nobody knows
}

func newModel() *model {
	return &model{config: make(map[string]map[int]bool), members: make(map[string]*member), tokens: make(map[string]*token),
		opens: make(map[keyring.KeyID]bool), keys: make(map[keyring.KeyID][]byte), void: make(map[string]bool)}
}

// Operations. Each asks one coordinator, and notes what came of it.

func (m *model) set(x *coord, extra string, head history.Hash) {
	out, err := x.set(x.f.manifest(extra), head)
	x.f.say("set at %d: %v", x.n, short(err))
	if err != nil {
		return
	}
	x.f.saw.add("sets")
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sets = append(m.sets, history.Hash(out.GetTransition().GetHash()))
}

func (m *model) reseed(x *coord) {
	out, err := x.reseed()
	x.f.say("reseed at %d: %v", x.n, short(err))
	if refused(err) && err != nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil {
		x.f.saw.add("reseeds")
		m.sets = append(m.sets, history.Hash(out.GetTransition().GetHash()))
	}
	for id := range m.tokens {
		m.void[id] = true
	}
}

func (m *model) put(x *coord, name string, priority int) {
	err := x.asAdmin(func(ctx context.Context, conn grpc.ClientConnInterface) error {
		_, err := fealtyv1.NewConfigServiceClient(conn).PutConfig(ctx, &fealtyv1.PutConfigRequest{
			Records: [][]byte{fmt.Appendf(nil, "kind: qos\nname: %s\npriority: %d\n", name, priority)},
		})
		return err
	})
	x.f.say("put of %s=%d at %d: %v", name, priority, x.n, short(err))
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case err == nil:
		x.f.saw.add("puts")
		m.config[name] = map[int]bool{priority: true}
	case !refused(err):
		if m.config[name] == nil {
			m.config[name] = map[int]bool{0: true}
		}
		m.config[name][priority] = true
	}
}

func (m *model) makeToken(x *coord, entry string, uses int) {
	var out *fealtyv1.CreateTokenResponse
	err := x.asAdmin(func(ctx context.Context, conn grpc.ClientConnInterface) (err error) {
		out, err = fealtyv1.NewTokenServiceClient(conn).CreateToken(ctx, &fealtyv1.CreateTokenRequest{Entry: entry, Uses: uint32(uses)})
		return err
	})
	x.f.say("token of %d uses for %s at %d: %v", uses, entry, x.n, short(err))
	if err != nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tokens[out.GetToken().GetId()] = &token{line: out.GetLine(), uses: uses}
}

func (m *model) join(x *coord, id string) {
	m.mu.Lock()
	tok := m.tokens[id]
	m.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), call)
	defer cancel()
	j, err := &coordinatortest.Node{}, errDown
	if x.c != nil {
		j, err = x.join(ctx, identity.Data, proof.NewTokenProver(need(proof.ParseJoinToken(tok.line))))
	}
	x.f.say("join with %.8s at %d: %v", id, x.n, short(err))
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case err == nil:
		x.f.saw.add("joins")
		tok.acked++
		m.members[j.ID.Name()] = &member{Node: j, acked: true}
	case !refused(err):
		tok.unsure++
	}
}

func (m *model) ban(x *coord, name string, lift bool) {
	err := x.asAdmin(func(ctx context.Context, conn grpc.ClientConnInterface) error {
		if lift {
			_, err := fealtyv1.NewMemberServiceClient(conn).UnbanMember(ctx, &fealtyv1.UnbanMemberRequest{Kind: "data", Name: name})
			return err
		}
		_, err := fealtyv1.NewMemberServiceClient(conn).BanMember(ctx, &fealtyv1.BanMemberRequest{Kind: "data", Name: name, Reason: "test"})
		return err
	})
	x.f.say("ban of %s at %d, lifting %v: %v", name, x.n, lift, short(err))
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case err == nil && lift:
		x.f.saw.add("unbans")
		m.members[name].banned = no
	case err == nil:
		x.f.saw.add("bans")
		m.members[name].banned = yes
	case !refused(err):
		m.members[name].banned = perhaps
	}
}

func short(err error) string {
	if err == nil {
		return "done"
	}
	if e, ok := errcode.FromStatus(err); ok {
		return fmt.Sprintf("%s %s: %.200s", e.Code, e.What, e.Why)
	}
	return fmt.Sprintf("%.200s", strings.ReplaceAll(err.Error(), "\n", " "))
}

// Checks.

// checkKeys holds what was sealed against what was sealed before: a key that opened the
// seed in force opens it still, and one that did opens the seed that came after it.
func (m *model) checkKeys(f *fleet) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, x := range f.coord {
		raw, err := x.Disk.FS().ReadSecret(keeperFile, keyring.MaxKeyFileBytes)
		if err != nil {
			continue
		}
		if id, err := keyOn(x.Disk).KeyID(context.Background(), keyring.Place{}); err == nil {
			m.keys[id] = raw
		}
	}
	head := f.head()
	now := make(map[keyring.KeyID]bool)
	for _, c := range need(sealed.Copies(context.Background(), f.truth, sealed.Seed(&head.Transition), "host")) {
		for id, raw := range m.keys {
			disk := durabletest.NewDisk()
			disk.Put(keeperFile, raw)
			seed, err := keyring.OpenSeed(context.Background(), keyOn(disk), keyring.Place{Cluster: coordinatortest.Cluster, Owner: "host", SeedEpoch: head.SeedEpoch}, c.Entry.Value)
			if err == nil {
				now[id] = true
				seed.Wipe()
			}
		}
	}
	both := 0
	for id := range m.opens {
		if now[id] {
			both++
		} else if head.Salt == m.salt {
			f.violated("key %s opened the seed in force, and does not any more", id)
		}
	}
	if both == 0 && len(m.opens) > 0 && head.Salt != m.salt {
		f.violated("no key that opened the seed before opens the one in force: %v did, %v do", slices.Collect(maps.Keys(m.opens)), slices.Collect(maps.Keys(now)))
	}
	if len(now) == 0 {
		f.violated("no key opens the seed in force")
	}
	m.opens, m.salt = now, head.Salt
}

func keyOn(disk *durabletest.Disk) keyring.Keeper {
	return need(keyring.KeeperOf(keyring.Owner{Name: "host", Keeper: "file:" + keeperFile}, disk.FS()))
}

// missing returns what was acknowledged and is not what coordinator x shows.
func (m *model) missing(x *coord) (out []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	err := x.asAdmin(func(ctx context.Context, conn grpc.ClientConnInterface) error {
		for _, name := range slices.Sorted(maps.Keys(m.config)) {
			got, err := fealtyv1.NewConfigServiceClient(conn).GetConfig(ctx, &fealtyv1.GetConfigRequest{Kind: "qos", Name: name})
			if err != nil && errcode.Of(err).Code != errcode.NotFound {
				return err
			}
			if !slices.ContainsFunc(slices.Collect(maps.Keys(m.config[name])), func(p int) bool {
				return p == 0 && err != nil || err == nil && strings.Contains(string(got.GetRecord().GetRecord()), fmt.Sprintf("%d", p))
			}) {
				add("config %s is %s (%v), want one of %v", name, got.GetRecord().GetRecord(), short(err), m.config[name])
			}
		}
		shown := make(map[string]*fealtyv1.Member)
		for page := ""; ; {
			list, err := fealtyv1.NewMemberServiceClient(conn).ListMembers(ctx, &fealtyv1.ListMembersRequest{PageToken: page, PageSize: 1000})
			if err != nil {
				return err
			}
			for _, one := range list.GetMembers() {
				shown[one.GetName()] = one
			}
			if page = list.GetNextPageToken(); page == "" {
				break
			}
		}
		for _, name := range slices.Sorted(maps.Keys(m.members)) {
			is, want := shown[name], m.members[name]
			switch {
			case is == nil:
				add("member %s is gone", name)
			case want.banned == yes && !is.GetBanned():
				add("the ban of %s is gone", name)
			case want.banned == no && is.GetBanned():
				add("%s is banned again", name)
			}
		}
		list, err := fealtyv1.NewTokenServiceClient(conn).ListTokens(ctx, &fealtyv1.ListTokensRequest{})
		if err != nil {
			return err
		}
		for id, want := range m.tokens {
			i := slices.IndexFunc(list.GetTokens(), func(t *fealtyv1.Token) bool { return t.GetId() == id })
			switch {
			case m.void[id]:
			case i < 0:
				add("token %s is gone", id)
			default:
				used := int(list.GetTokens()[i].GetUsed())
				if used < want.acked || used > want.acked+want.unsure || want.acked > want.uses {
					add("token %s was used %d times, and %d joined by it, and %d perhaps", id, used, want.acked, want.unsure)
				}
				one, err := fealtyv1.NewTokenServiceClient(conn).GetToken(ctx, &fealtyv1.GetTokenRequest{Id: id})
				if err != nil {
					return err
				}
				if n := len(one.GetToken().GetAdmitted()); n != used {
					add("token %s was used %d times and names %d members", id, used, n)
				}
			}
		}
		return nil
	})
	if err != nil {
		add("it does not show what it has: %v", short(err))
	}
	return out
}

// letIn names the banned members that coordinator x certifies.
func (m *model) letIn(x *coord) (in []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(m.members)) {
		if one := m.members[name]; one.banned == yes && x.renews(one.Node) == nil {
			in = append(in, name)
		}
	}
	return in
}

// checkHistory looks at the chain in the store, and that it holds what was acknowledged.
func (m *model) checkHistory(f *fleet) (missing []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	links := f.links()
	keys, epochs := make(map[uint64]identity.KeyID), make(map[identity.KeyID]uint64)
	have := make(map[history.Hash]bool)
	for i, l := range links {
		have[l.Hash] = true
		if i > 0 && l.Previous != links[i-1].Hash {
			f.violated("index %d does not follow the one before it", l.Index)
		}
		if k, ok := keys[l.AuthorityEpoch]; ok && k != l.MeshCAKey {
			f.violated("epoch %d has two mesh CA keys", l.AuthorityEpoch)
		}
		if e, ok := epochs[l.MeshCAKey]; ok && e != l.AuthorityEpoch {
			f.violated("a mesh CA key is of epochs %d and %d", e, l.AuthorityEpoch)
		}
		keys[l.AuthorityEpoch], epochs[l.MeshCAKey] = l.MeshCAKey, l.AuthorityEpoch
	}
	for _, h := range m.sets {
		if !have[h] {
			missing = append(missing, fmt.Sprintf("the transition %v is not in the history", h))
		}
	}
	return missing
}

// terms watches that no two coordinators lead under one term, until stop is closed.
func (f *fleet) terms(stop <-chan struct{}) {
	led := make(map[uint64]int)
	t := time.NewTicker(250 * time.Millisecond)
	defer t.Stop()
	for {
		select {
		case <-stop:
			return
		case <-t.C:
		}
		for _, x := range f.coord {
			c := x.running.Load()
			if c == nil {
				continue
			}
			term, ok := c.Leading()
			if !ok {
				continue
			}
			if other, was := led[term]; was && other != x.n {
				f.violated("I4: coordinators %d and %d led under term %d", other, x.n, term)
			}
			led[term] = x.n
		}
	}
}
