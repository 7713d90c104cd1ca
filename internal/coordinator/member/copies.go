package member

import (
	"context"
	"crypto/x509"
	"encoding/hex"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/finding"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/pki"
	"github.com/fealty-io/fealty/internal/platform/watch"
	"github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/mesh"
)

// How a copy of a member is found: by the key that it presents, if the member renewed
// since, and by the process that it runs, which takes turns with the member's own
// ([CopyWatch]).

const (
	// NewKeySettles is for how long after a new key was seen in use a stream or a poll may
	// still begin under the one before: it was on its way.
	NewKeySettles = 30 * time.Second
	// openingsPause is how long streams are gathered before the others are told of them,
	// maxOpenings how many are, and OpeningsPage how many one message names.
	openingsPause = 100 * time.Millisecond
	maxOpenings   = 1 << 14
	OpeningsPage  = 1000
	runDigits     = 32
)

// Presents judges the key that a member presents, as its renewal does: an earlier one is
// used by another machine. Where the record cannot be read nobody is refused: an outage
// finds nothing out.
func (m *Membership) Presents(ctx context.Context, peer identity.Peer) error {
	rec, ok := m.members.Find(string(peer.ID.Kind()) + "/" + peer.ID.Name())
	if !ok || !rec.Held() {
		return nil // of no member, or of one that is to be replaced: others say so
	}
	now, age := m.cfg.Now(), rec.Age(peer.Key)
	if age == record.KeyUnknown {
		// It may be newer than what this coordinator has heard of, or of a restore's gap.
		s, err := m.cfg.Head.Ready()
		if err != nil {
			return err
		}
		asking, cancel := m.cfg.Head.Patience(ctx)
		defer cancel()
		stored, err := record.Get[record.Member](asking, s.Records, record.MemberKey(peer.ID.Kind(), peer.ID.Name()))
		if err != nil || !stored.Exists() || !stored.Value.Held() {
			return nil
		}
		rec = stored.Value
		CatchUp(s, &rec, peer.Leaf, now)
		age = rec.Age(peer.Key)
	}
	switch age {
	case record.KeyRecorded:
		m.live.Uses(peer.ID, peer.Key, now)
		return nil
	case record.KeyBefore:
		if used, ok := m.live.UsedFor(peer.ID, rec.Key, now); !ok || used < NewKeySettles {
			return nil
		}
	}
	err := errcode.New(errcode.RenewOlderKey, "identity", peer.ID.String(), "key", peer.Key.String()[:16])
	m.OlderKey(ctx, peer.ID.Kind(), peer.ID.Name(), err.Error())
	return err
}

// RunOf returns run if it names a process as members do, else "".
func RunOf(run string) string {
	if _, err := hex.DecodeString(run); err != nil || len(run) != runDigits {
		return ""
	}
	return run
}

// StreamOpened notes a stream that a member opened here.
func (m *Membership) StreamOpened(ctx context.Context, path, run string) {
	if run == "" {
		return
	}
	from := identity.FromContext(ctx).Addr
	if a, ok := m.copies.Opened(path, run, from, m.cfg.Now()); ok {
		m.cloneAlarm(ctx, "two processes take the place of each other", path+": "+fromWords(a))
		m.auditAlarm(a, "member.copied", path)
	}
	m.openings.add(path, opening{run, from})
}

// CopyFindings says whom two processes run as. Every coordinator hears of the streams.
func (m *Membership) CopyFindings() []*fealtyv1.Finding {
	members, all := m.copies.Alarms(m.cfg.Now())
	return alarmFindings(errcode.MemberCopied, members, all)
}

// OlderKeyFindings says of whom an earlier key was presented here.
func (m *Membership) OlderKeyFindings() []*fealtyv1.Finding {
	members, all := m.copies.OlderKeys(m.cfg.Now())
	return alarmFindings(errcode.MemberOlderKey, members, all)
}

func alarmFindings(code errcode.Code, members []string, alarms map[string]CopyAlarm) []*fealtyv1.Finding {
	var all []finding.Case
	for _, m := range members {
		a := alarms[m]
		all = append(all, finding.Case{Member: m, Value: a.At.UTC().Format(time.RFC3339) + ", " + fromWords(a)})
	}
	return finding.Fold(code, "at", all)
}

// fromWords says from where the processes of an alarm came.
func fromWords(a CopyAlarm) string {
	switch len(a.From) {
	case 0:
		return "from an address that is not known"
	case 1:
		return "from " + a.From[0]
	}
	return "from " + a.From[0] + " and " + a.From[1]
}

// auditAlarm writes to the audit log that an alarm began: once, however long it stands, at the
// coordinator that saw it first.
func (m *Membership) auditAlarm(a CopyAlarm, action, path string) {
	s, err := m.cfg.Head.Ready()
	if err != nil || !a.First {
		return
	}
	self, err := identity.New(s.Manifest.Cluster, identity.Coordinator, m.cfg.Self.NameIn(s.Manifest))
	if err != nil {
		return // it was dismissed just now
	}
	m.cfg.Auditing.Add(record.AuditEntry{At: a.At.UTC(), Actor: self.String(), Action: action, Target: path,
		Fields: map[string]string{"from": strings.Join(a.From, ", ")}})
}

// openings are streams that were opened here, of which the others are not told yet.
type openings struct {
	mu      sync.Mutex
	streams map[string]opening // the newest process of each member; guarded by mu
	more    watch.Signal
}

// opening is a stream that a process opened, and the address that it came from.
type opening struct{ run, from string }

// add notes a stream. Copies that do not fit are not told: a copy is found a little
// later.
func (o *openings) add(path string, stream opening) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.streams == nil {
		o.streams = make(map[string]opening)
	}
	if _, there := o.streams[path]; there || len(o.streams) < maxOpenings {
		o.streams[path] = stream
		o.more.Notify()
	}
}

func (o *openings) take() map[string]opening {
	o.mu.Lock()
	defer o.mu.Unlock()
	taken := maps.Clone(o.streams)
	clear(o.streams)
	return taken
}

// FollowOpenings tells the other coordinators of streams, until ctx ends.
func (m *Membership) FollowOpenings(ctx context.Context) error {
	for {
		more := m.openings.more.Wait()
		if taken := m.openings.take(); len(taken) > 0 {
			m.tellOpenings(ctx, taken)
		} else if err := watch.Event(ctx, more); err != nil {
			return err
		}
		if err := watch.Sleep(ctx, openingsPause); err != nil {
			return err
		}
	}
}

// tellOpenings tells every other coordinator that is heard. A member that does not listen
// now finds out by the next stream.
func (m *Membership) tellOpenings(ctx context.Context, streams map[string]opening) {
	s, err := m.cfg.Head.Ready()
	if err != nil {
		return
	}
	var pages []*fealtyv1.NoteStreamsRequest
	for path, opened := range streams {
		if n := len(pages); n == 0 || len(pages[n-1].GetStreams()) == OpeningsPage {
			pages = append(pages, &fealtyv1.NoteStreamsRequest{})
		}
		last := pages[len(pages)-1]
		last.Streams = append(last.Streams, &fealtyv1.OpenedStream{Member: path, Run: opened.run,
			From: opened.from})
	}
	m.cfg.Peers.Each(ctx, s, func(ctx context.Context, conns []*mesh.Conn) {
		for _, conn := range conns { // the first address that answers is that coordinator
			if tellPages(ctx, conn, pages) == nil {
				return
			}
		}
	})
}

func tellPages(ctx context.Context, conn *mesh.Conn, pages []*fealtyv1.NoteStreamsRequest) error {
	client := fealtyv1.NewLiveServiceClient(conn)
	for _, page := range pages {
		if _, err := client.NoteStreams(ctx, page); err != nil {
			return err
		}
	}
	return nil
}

// CatchUp has the record of a member know the certificate that it presents, if that is
// of the gap: the record is of before. That it is genuine was verified, and that it is
// not banned too.
func CatchUp(s *authority.State, rec *record.Member, leaf *x509.Certificate, now time.Time) {
	if s.RestoreWindow == nil || leaf == nil || !rec.Held() {
		return
	}
	key, issued := identity.KeyOf(leaf), leaf.NotBefore.Add(pki.Backdate)
	if key == rec.Key || rec.WasKey(key) || issued.Before(s.RestoreWindow.BackupAt.Add(-snapshot.ClockTolerance)) ||
		issued.After(s.RestoredAt()) {
		return
	}
	rec.Rekey(key, leaf.NotAfter, now, record.Stretch)
}

// OlderKey raises the alarm that somebody proved an earlier key of a member.
func (m *Membership) OlderKey(ctx context.Context, kind identity.Kind, name, detail string) {
	path := string(kind) + "/" + name
	a := m.copies.OlderKey(path, identity.FromContext(ctx).Addr, m.cfg.Now())
	m.cloneAlarm(ctx, "an earlier key of a member is in use", detail)
	m.auditAlarm(a, "member.older-key", path)
}

// cloneAlarm tells people that two holders of one identity exist.
func (m *Membership) cloneAlarm(ctx context.Context, what, detail string) {
	m.metrics.clones.Inc()
	m.cfg.Failures.Log(ctx, m.cfg.Log, slog.LevelError, "clone alarm: "+what, slog.String("detail", detail))
}
