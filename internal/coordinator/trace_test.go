package coordinator_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"filippo.io/age"
	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/auditlog"
	"github.com/fealty-io/fealty/internal/backup"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/platform/failpoint"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/test/goldentest"
)

// The order in which a coordinator reads, writes and passes its fault points is what makes
// a crash between any two of them harmless. Each file below testdata/traces has that order
// for one thing that a coordinator does; what is random in a key has a name there, the same
// wherever it comes again.
func TestTraces(t *testing.T) {
	traces := make(map[string]string)
	all := map[string]func(*tracing){
		"start":           traceStart,
		"restart":         traceRestart,
		"set":             traceSet,
		"set-with-peer":   traceSetWithPeer,
		"reshare":         traceReshare,
		"rotate-mesh-key": traceRotateMeshKey,
		"reseed":          traceReseed,
		"recover-owners":  traceRecoverOwners,
		"recover-peer":    traceRecoverPeer,
		"restore":         traceRestore,
	}
	for name, run := range all {
		t.Run(name, func(t *testing.T) {
			tr := newTracing(t)
			run(tr)
			traces[name+".txt"] = tr.text()
		})
	}
	switch {
	case len(traces) == len(all):
		goldentest.Folder(t, "testdata/traces", traces)
	default: // -run chose some of them, or one failed
		for name, text := range traces {
			goldentest.Compare(t, "testdata/traces/"+name, text)
		}
	}
}

// tracing writes down what the coordinators of one test do. Each of them writes to a part
// of its own, so that two that wait for each other make the same text however they are
// scheduled; what one of them does is in order.
type tracing struct {
	*testing.T

	mu    sync.Mutex
	out   strings.Builder
	parts []*part           // of the section under way; guarded by mu
	names map[string]string // of what is random in keys; guarded by mu
	count map[string]int    // of names with a prefix; guarded by mu

	open    map[string]*coordinator.Coordinator // that are followed; guarded by mu
	shown   map[string]string                   // what they showed last; guarded by mu
	bundles []uint64                            // versions of trust bundles that were met, in order; guarded by mu
}

// part is what one coordinator did in a section.
type part struct {
	who   string
	lines []string
	shows string // what it showed when it did the last of that
}

func newTracing(t *testing.T) *tracing {
	return &tracing{
		T: t, names: make(map[string]string), count: make(map[string]int),
		open: make(map[string]*coordinator.Coordinator), shown: make(map[string]string),
	}
}

// during runs do and writes down what it makes coordinators do. Nothing is written down
// outside of it. It fails the test if do does.
func (tr *tracing) during(what string, do func() error) {
	tr.Helper()
	tr.mu.Lock()
	tr.parts = []*part{}
	tr.mu.Unlock()
	if err := do(); err != nil {
		tr.Fatalf("%s: %v", what, err)
	}
	tr.mu.Lock()
	defer tr.mu.Unlock()
	for _, p := range tr.parts {
		tr.partLocked(p.who) // and what the last call made of it
	}
	if tr.out.Len() > 0 {
		tr.out.WriteByte('\n')
	}
	fmt.Fprintf(&tr.out, "# %s\n", what)
	for _, p := range tr.parts {
		if len(tr.parts) > 1 {
			fmt.Fprintf(&tr.out, "## %s\n", p.who)
		}
		named := make([]string, len(p.lines))
		for i, line := range p.lines {
			named[i] = tr.nameLocked(line)
		}
		sortAlike(named)
		tr.out.WriteString(strings.Join(named, "\n") + "\n")
	}
	tr.parts = nil
}

func (tr *tracing) text() string { return tr.out.String() }

// say writes down what somebody did, in one line or several.
func (tr *tracing) say(who, format string, args ...any) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if tr.parts == nil {
		return // outside of during
	}
	p := tr.partLocked(who)
	p.lines = append(p.lines, strings.Split(fmt.Sprintf(format, args...), "\n")...)
}

// partLocked returns the part of who, with what others see of it if that is news.
func (tr *tracing) partLocked(who string) *part {
	i := slices.IndexFunc(tr.parts, func(p *part) bool { return p.who == who })
	if i < 0 {
		i = len(tr.parts)
		tr.parts = append(tr.parts, &part{who: who, shows: tr.shown[who]})
	}
	p := tr.parts[i]
	if c := tr.open[who]; c != nil {
		tr.shown[who] = tr.showsLocked(c)
	}
	if now := tr.shown[who]; now != p.shows {
		p.lines, p.shows = append(p.lines, "shows "+now), now
	}
	return p
}

// follow writes down from now on when a coordinator gets another state or trust bundle,
// between which of its calls.
func (tr *tracing) follow(c *coordinator.Coordinator) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	who := strings.TrimPrefix(c.Cfg().DataDir, "/")
	tr.open[who], tr.shown[who] = c, tr.showsLocked(c)
}

// showsLocked says what others see of a coordinator: its state, and which of the trust
// bundles that were met it believes.
func (tr *tracing) showsLocked(c *coordinator.Coordinator) string {
	s := c.Parts().Head.State()
	bundle := "no bundle"
	if t := c.Parts().Bundle.View(); t != nil {
		if !slices.Contains(tr.bundles, t.Version) {
			tr.bundles = append(tr.bundles, t.Version)
		}
		bundle = fmt.Sprintf("bundle %d", slices.Index(tr.bundles, t.Version)+1)
	}
	return fmt.Sprintf("%s at index %d, %s", s.Phase, s.Head.Index, bundle)
}

// random matches what is random in keys of the store, or depends on the time: first the
// names of chains of the audit log, then hashes and ids.
var random = regexp.MustCompile(`\b[0-9]{20}-[0-9a-f]{8}\b|\b[0-9a-f]{16,}\b|\b[a-z2-7]{16}\b`)

// nameLocked gives everything random in a line its name, by its form and its turn.
// A number that is padded with zeros is none; no hash or id is as long as that.
func (tr *tracing) nameLocked(line string) string {
	return random.ReplaceAllStringFunc(line, func(s string) string {
		if len(s) == 20 && strings.HasPrefix(s, "000000") {
			return s
		}
		if tr.names[s] == "" {
			kind := "id"
			switch {
			case strings.Contains(s, "-"):
				kind = "chain"
			case len(s) == 64:
				kind = "hash"
			}
			tr.count[kind]++
			tr.names[s] = fmt.Sprintf("<%s-%d>", kind, tr.count[kind])
		}
		return tr.names[s]
	})
}

// call gives what is random a name of its own, before it is met.
func (tr *tracing) call(random, name string) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.names[random] = "<" + name + ">"
}

// sortAlike sorts lines of one transaction that follow each other and differ only in what
// is random, which is the order of what is read by its keys and comes in no other.
func sortAlike(lines []string) {
	begin := func(line string) string {
		before, _, ok := strings.Cut(line, "<")
		if !ok || !strings.HasPrefix(line, "    ") {
			return ""
		}
		return before
	}
	for i := 0; i < len(lines); {
		end := i + 1
		for end < len(lines) && begin(lines[i]) != "" && begin(lines[end]) == begin(lines[i]) {
			end++
		}
		slices.Sort(lines[i:end])
		i = end
	}
}

// traced is a store that writes down what is asked of it.
type traced struct {
	store.Store
	tr  *tracing
	who string
}

func (s traced) Get(ctx context.Context, key string) (store.Entry, error) {
	e, err := s.Store.Get(ctx, key)
	s.tr.say(s.who, "get %s%s", key, outcome(err))
	return e, err
}

func (s traced) List(ctx context.Context, prefix string) (store.Listing, error) {
	l, err := s.Store.List(ctx, prefix)
	s.tr.say(s.who, "list %s%s", prefix, outcome(err))
	return l, err
}

func (s traced) CompareAndSwap(
	ctx context.Context, key string, old store.Revision, value []byte,
) (store.Revision, error) {
	version, err := s.Store.CompareAndSwap(ctx, key, old, value)
	s.tr.say(s.who, "swap %s%s%s", key, absent(old), outcome(err))
	return version, err
}

func (s traced) Commit(ctx context.Context, tx store.Tx) (store.Revision, error) {
	version, err := s.Store.Commit(ctx, tx)
	lines := []string{"commit" + outcome(err)}
	for _, c := range tx.If {
		lines = append(lines, "    if "+c.Key+absent(c.Version))
	}
	for _, w := range tx.Put {
		lines = append(lines, "    put "+w.Key+action(w))
	}
	for _, key := range tx.Delete {
		lines = append(lines, "    delete "+key)
	}
	s.tr.say(s.who, "%s", strings.Join(lines, "\n"))
	return version, err
}

func (s traced) Outcome(ctx context.Context, id string) (store.Revision, error) {
	version, err := s.Store.Outcome(ctx, id)
	s.tr.say(s.who, "outcome%s", outcome(err))
	return version, err
}

// Raise does as an engine does that begins above a floor; see [store.Raiser].
func (s traced) Raise(ctx context.Context, floor store.Revision) error {
	s.tr.say(s.who, "raise")
	return s.Store.(*coordinatortest.MemStore).Lifter().Raise(ctx, floor)
}

// absent says of a condition that it wants no such key.
func absent(version store.Revision) string {
	if version == 0 {
		return " (new)"
	}
	return ""
}

// outcome says how a call ended that did not succeed.
func outcome(err error) string {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, store.ErrNotFound):
		return ": none"
	case errors.Is(err, store.ErrConflict):
		return ": conflict"
	}
	return ": error"
}

// action says what an entry of the audit log is about.
func action(w store.Write) string {
	var e record.AuditEntry
	if !strings.HasPrefix(w.Key, auditlog.Prefix) || json.Unmarshal(w.Value, &e) != nil {
		return ""
	}
	return " (" + e.Action + ")"
}

// points returns fault points that are written down as those of who.
func (tr *tracing) points(who string) *failpoint.Points {
	p := new(failpoint.Points)
	p.Watch(func(name string) { tr.say(who, "point %s", name) })
	return p
}

// desk returns a desk whose coordinators are traced, before any of them is open.
func (tr *tracing) desk() *coordinatortest.Desk {
	tr.Helper()
	d := coordinatortest.UnopenedDesk(tr.T)
	d.Alter = func(cfg *coordinator.Config) {
		who := strings.TrimPrefix(cfg.DataDir, "/")
		cfg.Store, cfg.Faults = traced{cfg.Store, tr, who}, tr.points(who)
	}
	return d
}

// opens opens the coordinator of d while that is traced.
func (tr *tracing) opens(d *coordinatortest.Desk, what string) {
	tr.Helper()
	tr.mu.Lock()
	clear(tr.open) // the one of before is closed
	clear(tr.shown)
	tr.mu.Unlock()
	tr.during(what, func() error {
		d.Open()
		return nil
	})
	tr.follow(d.C)
}

func (tr *tracing) wantPhase(c *coordinator.Coordinator, want authority.Phase) {
	tr.Helper()
	if s := c.Parts().Head.State(); s.Phase != want {
		tr.Fatalf("phase %s (%s), want %s", s.Phase, s.Reason, want)
	}
}

func traceStart(tr *tracing) {
	d := tr.desk()
	tr.opens(d, "start on an empty store")
	tr.wantPhase(d.C, authority.Uninitialized)
	tr.during("first set", func() error { return d.Set(coordinatortest.PoolEntries) })
	tr.wantPhase(d.C, authority.Ready)
	tr.during("a look at the head", func() error {
		d.LookAgain()
		return nil
	})
}

// settled returns a traced desk after its first set, with records of several families. Of
// those whose keys are random there is one in each, since two would come in any order.
func (tr *tracing) settled(seed string) *coordinatortest.Desk {
	tr.Helper()
	d := tr.desk()
	d.Seed = seed
	d.Open()
	coordinatortest.WantOnly(tr.T, "first set", d.Set(coordinatortest.PoolEntries), "")
	coordinatortest.MustPut(d, "kind: qos\nname: gold\npriority: 1\n")
	m := d.Machine()
	token := d.Token(&fealtyv1.CreateTokenRequest{Entry: "small", Name: "a"})
	coordinatortest.WantOnly(tr.T, "join", m.Join(identity.Data, proof.NewTokenProver(token)), "")
	ban := &fealtyv1.BanMemberRequest{Kind: "data", Name: "a", Reason: "test"}
	_, err := d.Members().BanMember(context.Background(), ban)
	coordinatortest.WantOnly(tr.T, "ban", err, "")
	tr.follow(d.C)
	return d
}

func traceRestart(tr *tracing) {
	d := tr.settled("")
	head := d.State().Head.Hash
	tr.during("stop", d.C.Close)
	tr.opens(d, "start with a keeper")
	tr.wantPhase(d.C, authority.Ready)
	if d.State().Head.Hash != head {
		tr.Error("a restart changed the head")
	}
}

func traceSet(tr *tracing) {
	d := tr.settled("")
	tr.during("a set of entries alone", func() error {
		return d.Set(coordinatortest.PoolEntries + "  - {name: extra, kind: witness, match: [\"token:extra\"]}\n")
	})
	before := d.State()
	tr.during("a set of authority, with a new mesh CA key", func() error {
		return d.Set(coordinatortest.PoolEntries + coordinatortest.CoordinatorEntry(tr.T, 2))
	})
	if after := d.State(); after.MeshKey == before.MeshKey {
		tr.Error("the mesh CA key is that of before")
	}
}

func traceReshare(tr *tracing) {
	p := coordinatortest.NewPeople(tr.T, "alice", "bob")
	d := tr.settled(p.Seed(2, "file:/keeper/key"))
	tr.during("a reshare to other owners", func() error {
		_, err := coordinatortest.Reshare(d, p.Seed(1, "file:/keeper/key"))
		return err
	})
}

func traceRotateMeshKey(tr *tracing) {
	d := tr.settled("")
	before := d.State()
	tr.during("rotate the mesh CA key", func() error {
		_, err := coordinatortest.TrustService(d).RotateMeshKey(context.Background(),
			&fealtyv1.RotateMeshKeyRequest{Reason: "yearly"})
		return err
	})
	if after := d.State(); after.MeshKey == before.MeshKey {
		tr.Error("the mesh CA key is that of before")
	}
}

func traceReseed(tr *tracing) {
	d := tr.settled("")
	ctx := context.Background()
	salt := d.State().Head.Salt
	req := &fealtyv1.CommitReseedRequest{Reason: "test"}
	tr.during("prepare", func() error {
		p, err := coordinatortest.Served[fealtyv1.ReseedServiceServer](
			d.C.Parts().Moves.Manifests.RegisterServices).PrepareReseed(
			ctx,
			&fealtyv1.PrepareReseedRequest{})
		req.Change = p.GetChange()
		return err
	})
	req.Signatures = coordinatortest.SignChange(d.T, req.Change, d.Signer)
	tr.during("commit", func() error {
		_, err := coordinatortest.Served[fealtyv1.ReseedServiceServer](
			d.C.Parts().Moves.Manifests.RegisterServices).CommitReseed(
			ctx, req)
		return err
	})
	tr.wantPhase(d.C, authority.Ready)
	if d.State().Head.Salt == salt {
		tr.Error("the seed is that of before")
	}
	tr.during("stop", d.C.Close)
	tr.opens(d, "start under the new seed")
	tr.wantPhase(d.C, authority.Ready)
}

func traceRecoverOwners(tr *tracing) {
	p := coordinatortest.NewPeople(tr.T, "alice", "bob", "carol")
	d := tr.settled(p.Seed(2, ""))
	coordinatortest.WantOnly(tr.T, "close", d.C.Close(), "")
	tr.opens(d, "start without a keeper")
	tr.wantPhase(d.C, authority.Recovery)
	tr.during("a look at the head", func() error {
		d.LookAgain()
		return nil
	})
	for _, name := range []string{"alice", "bob"} {
		tr.during(name+" brings a share", func() error {
			_, err := coordinatortest.BringShare(d, p.ShareFile(d.Store, name))
			return err
		})
	}
	tr.wantPhase(d.C, authority.Ready)
}

// pair returns a traced desk whose seed people own, and the keys of a second replica that
// its manifest admits.
func (tr *tracing) pair() *coordinatortest.Desk {
	tr.Helper()
	for {
		d := tr.desk()
		d.Seed = coordinatortest.NewPeople(tr.T, "alice", "bob").Seed(1, "")
		d.Open()
		second, err := d.Another("second")
		coordinatortest.WantOnly(tr.T, "make the keys of the second", err, "")
		coordinatortest.WantOnly(tr.T, "close", second.Close(), "")
		first, other := d.C.Parts().Self.PrivateKey().Public().(ed25519.PublicKey),
			second.Parts().Self.PrivateKey().Public().(ed25519.PublicKey)
		if identity.KeyID(sha256.Sum256(first)).String() > identity.KeyID(sha256.Sum256(other)).String() {
			continue // the audit log is read in the order of these, so they come in one order
		}
		const admits = "  - {name: coordinator-2, kind: coordinator, match: [\"key:%s\"]}\n"
		entry := fmt.Sprintf(admits, second.Parts().Self.EnrolmentKey())
		coordinatortest.WantOnly(tr.T, "first set", d.Set(coordinatortest.PoolEntries+entry), "")
		tr.follow(d.C)
		return d
	}
}

// recovers opens the second replica of d, which asks d's coordinator at addr.
func (tr *tracing) recovers(d *coordinatortest.Desk, addr, own string) *coordinator.Coordinator {
	tr.Helper()
	before := d.Alter
	d.Alter = func(cfg *coordinator.Config) {
		before(cfg)
		cfg.Peers = []string{addr}
		if own != "" {
			cfg.Advertise = []string{own}
		}
	}
	var second *coordinator.Coordinator
	tr.during("the second starts", func() (err error) {
		second, err = d.Another("second")
		return err
	})
	tr.wantPhase(second, authority.Recovery)
	tr.follow(second)
	tr.during("it asks the first", func() error {
		second.Parts().Moves.Succession.Look(context.Background())
		return nil
	})
	tr.wantPhase(second, authority.Ready)
	return second
}

func traceRecoverPeer(tr *tracing) {
	d := tr.pair()
	second := tr.recovers(d, coordinatortest.ServePeer(tr.T,
		coordinatortest.Served[fealtyv1.PeerServiceServer](d.C.Parts().Secrets.PeerRecovery.RegisterServices)), "")
	if second.Parts().Head.State().Head.Hash != d.State().Head.Hash {
		tr.Error("they are at two heads")
	}
}

// lateServer is a server of a coordinator that is made after its address is known.
type lateServer struct {
	fealtyv1.UnimplementedPeerServiceServer
	c *coordinator.Coordinator
}

func (l *lateServer) Prepare(stream fealtyv1.PeerService_PrepareServer) error {
	return coordinatortest.Served[fealtyv1.PeerServiceServer](
		l.c.Parts().Secrets.PeerRecovery.RegisterServices).Prepare(stream)
}

func traceSetWithPeer(tr *tracing) {
	d := tr.pair()
	peer := new(lateServer)
	own := coordinatortest.ServePeer(tr.T, peer)
	peer.c = tr.recovers(d,
		coordinatortest.ServePeer(tr.T, coordinatortest.Served[fealtyv1.PeerServiceServer](
			d.C.Parts().Secrets.PeerRecovery.RegisterServices)), own)
	tr.during("it says where it is",
		func() error { return peer.c.Parts().Announcement.Announce(context.Background(), false) })
	tr.during("the first rotates the mesh CA key", func() error {
		_, err := coordinatortest.TrustService(d).RotateMeshKey(context.Background(),
			&fealtyv1.RotateMeshKeyRequest{Reason: "yearly"})
		return err
	})
	tr.during("the second looks at the head", func() error {
		peer.c.Parts().Moves.Succession.Look(context.Background())
		return nil
	})
	tr.wantPhase(peer.c, authority.Ready)
	if peer.c.Parts().Head.State().MeshKey != d.State().MeshKey {
		tr.Error("they have two mesh CA keys")
	}
}

// backupStream takes what a backup is sent as.
type backupStream struct {
	grpc.ServerStream
	file bytes.Buffer
}

func (*backupStream) Context() context.Context { return context.Background() }

func (b *backupStream) Send(part *fealtyv1.CreateBackupResponse) error {
	_, err := b.file.Write(part.GetChunk())
	return err
}

func traceRestore(tr *tracing) {
	p := coordinatortest.NewPeople(tr.T, "alice", "bob")
	d := tr.settled(p.Seed(1, "file:/keeper/key"))
	head := d.State().Head // its two values in the store come in either order
	tr.call(head.Hash.String(), "head")
	tr.call(head.Manifest.String(), "manifest")
	var saved backupStream
	tr.during("back up", func() error {
		return coordinatortest.Served[fealtyv1.BackupServiceServer](
			d.C.Parts().Shown.Backups.RegisterServices).CreateBackup(
			&fealtyv1.CreateBackupRequest{}, &saved)
	})
	coordinatortest.WantOnly(tr.T, "set", d.Set(
		coordinatortest.PoolEntries+"  - {name: extra, kind: witness, match: [\"token:extra\"]}\n"), "")
	coordinatortest.WantOnly(tr.T, "close", d.C.Close(), "")

	ids := []age.Identity{p.Keys["alice"]}
	found, err := backup.Check(bytes.NewReader(saved.file.Bytes()), ids)
	coordinatortest.WantOnly(tr.T, "check", err, "")
	plan, err := backup.Plan(found, d.Clock(), "test")
	coordinatortest.WantOnly(tr.T, "plan", err, "")
	key, err := manifest.NewKey(d.Signer.Public().(ed25519.PublicKey))
	coordinatortest.WantOnly(tr.T, "key", err, "")
	signed := ed25519.Sign(d.Signer, plan.Transition(found.History).Statement())
	plan.Signatures = append(plan.Signatures, history.Signature{Key: key, Signature: [64]byte(signed)})
	d.Store = coordinatortest.NewMemStore()
	tr.during("restore into an empty store", func() error {
		r, err := backup.Open(bytes.NewReader(saved.file.Bytes()), ids)
		if err != nil {
			return err
		}
		_, err = backup.Restore(context.Background(), traced{d.Store, tr, "restore"}, plan, r, tr.points("restore"))
		return err
	})
	tr.opens(d, "start on what was restored")
	tr.wantPhase(d.C, authority.Ready)
	if s := d.State(); s.Head.Kind != history.KindRestore {
		tr.Errorf("the head is a %s", s.Head.Kind)
	}
}
