package coordinator

import (
	"context"
	"encoding/hex"
	"maps"
	"sync"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/finding"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/watch"
	"github.com/fealty-io/fealty/mesh"
)

// How a copy of a member is found: by the key that it presents, if the member renewed
// since, and by the process that it runs, which takes turns with the member's own
// (package copies).

const (
	// newKeySettles is for how long after a new key was seen in use a stream or a poll may
	// still begin under the one before: it was on its way.
	newKeySettles = 30 * time.Second
	// openingsPause is how long streams are gathered before the others are told of them,
	// maxOpenings how many are, and openingsPage how many one message names.
	openingsPause = 100 * time.Millisecond
	maxOpenings   = 1 << 14
	openingsPage  = 1000
	runDigits     = 32
)

// presents judges the key that a member presents, as its renewal does: an earlier one is
// used by another machine. Where the record cannot be read nobody is refused: an outage
// finds nothing out.
func (c *Membership) presents(ctx context.Context, peer identity.Peer) error {
	rec, ok := c.members.Find(string(peer.ID.Kind()) + "/" + peer.ID.Name())
	if !ok || !rec.Held() {
		return nil // of no member, or of one that is to be replaced: others say so
	}
	now, age := c.cfg.Now(), rec.Age(peer.Key)
	if age == record.KeyUnknown {
		// It may be newer than what this coordinator has heard of, or of a restore's gap.
		s, err := c.cfg.Head.Ready()
		if err != nil {
			return err
		}
		asking, cancel := c.cfg.Head.Patience(ctx)
		defer cancel()
		stored, err := record.Get[record.Member](asking, s.Records, record.MemberKey(peer.ID.Kind(), peer.ID.Name()))
		if err != nil || !stored.Exists() || !stored.Value.Held() {
			return nil
		}
		rec = stored.Value
		catchUp(s, &rec, peer.Leaf, now)
		age = rec.Age(peer.Key)
	}
	switch age {
	case record.KeyRecorded:
		c.live.Uses(peer.ID, peer.Key, now)
		return nil
	case record.KeyBefore:
		if used, ok := c.live.UsedFor(peer.ID, rec.Key, now); !ok || used < newKeySettles {
			return nil
		}
	}
	err := explain.New(explain.RenewOlderKey, "identity", peer.ID.String(), "key", peer.Key.String()[:16])
	c.olderKey(ctx, peer.ID.Kind(), peer.ID.Name(), err.Error())
	return err
}

// runOf returns run if it names a process as members do, else "".
func runOf(run string) string {
	if _, err := hex.DecodeString(run); err != nil || len(run) != runDigits {
		return ""
	}
	return run
}

// streamOpened notes a stream that a member opened here.
func (c *Membership) streamOpened(ctx context.Context, path, run string) {
	if run == "" {
		return
	}
	if c.copies.Opened(path, run, c.cfg.Now()) {
		c.cloneAlarm(ctx, "two processes take the place of each other", path)
	}
	c.openings.add(path, run)
}

// copyFindings says whom two processes run as. Every coordinator hears of the streams.
func (c *Membership) copyFindings() []*fealtyv1.Finding {
	members, at := c.copies.Alarms(c.cfg.Now())
	return alarmFindings(explain.MemberCopied, members, at)
}

// olderKeyFindings says of whom an earlier key was presented here.
func (c *Membership) olderKeyFindings() []*fealtyv1.Finding {
	members, at := c.copies.OlderKeys(c.cfg.Now())
	return alarmFindings(explain.MemberOlderKey, members, at)
}

func alarmFindings(code explain.Code, members []string, at map[string]time.Time) []*fealtyv1.Finding {
	var all []finding.Case
	for _, m := range members {
		all = append(all, finding.Case{Member: m, Value: at[m].UTC().Format(time.RFC3339)})
	}
	return finding.Fold(code, "at", all)
}

// openings are streams that were opened here, of which the others are not told yet.
type openings struct {
	mu      sync.Mutex
	streams map[string]string // the newest process of each member; guarded by mu
	more    watch.Signal
}

// add notes a stream. What does not fit is not told: a copy is found a little later.
func (o *openings) add(path, run string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.streams == nil {
		o.streams = make(map[string]string)
	}
	if _, there := o.streams[path]; there || len(o.streams) < maxOpenings {
		o.streams[path] = run
		o.more.Notify()
	}
}

func (o *openings) take() map[string]string {
	o.mu.Lock()
	defer o.mu.Unlock()
	taken := maps.Clone(o.streams)
	clear(o.streams)
	return taken
}

// followOpenings tells the other coordinators of streams, until ctx ends.
func (c *Membership) followOpenings(ctx context.Context) error {
	for {
		more := c.openings.more.Wait()
		if taken := c.openings.take(); len(taken) > 0 {
			c.tellOpenings(ctx, taken)
		} else if err := watch.Event(ctx, more); err != nil {
			return err
		}
		if err := watch.Sleep(ctx, openingsPause); err != nil {
			return err
		}
	}
}

// tellOpenings tells every other coordinator that is heard. Who does not listen now finds
// out by the next stream.
func (c *Membership) tellOpenings(ctx context.Context, streams map[string]string) {
	s, err := c.cfg.Head.Ready()
	if err != nil {
		return
	}
	var pages []*fealtyv1.NoteStreamsRequest
	for path, run := range streams {
		if n := len(pages); n == 0 || len(pages[n-1].GetStreams()) == openingsPage {
			pages = append(pages, &fealtyv1.NoteStreamsRequest{})
		}
		last := pages[len(pages)-1]
		last.Streams = append(last.Streams, &fealtyv1.OpenedStream{Member: path, Run: run})
	}
	c.withOthers(ctx, s, func(ctx context.Context, conns []*mesh.Conn) {
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

// NoteStreams has streams here give way to newer ones elsewhere.
func (l liveServer) NoteStreams(_ context.Context, req *fealtyv1.NoteStreamsRequest) (*fealtyv1.NoteStreamsResponse,
	error) {
	c := l.c
	s, err := c.cfg.Head.Ready()
	if err != nil {
		return nil, err
	}
	if n := len(req.GetStreams()); n > openingsPage {
		return nil, explain.New(explain.RequestField, "field", "streams", "problem", "it names more than 1,000 streams")
	}
	for _, o := range req.GetStreams() {
		rec, ok := c.members.Find(o.GetMember())
		run := runOf(o.GetRun())
		if !ok || run == "" {
			continue
		}
		if id, err := identity.New(s.Manifest.Cluster, rec.Kind, rec.Name); err == nil {
			c.copies.Opened(o.GetMember(), run, c.cfg.Now()) // who serves it raises the alarm
			c.live.OpenedElsewhere(id, run)
		}
	}
	return &fealtyv1.NoteStreamsResponse{}, nil
}
