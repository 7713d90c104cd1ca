package status

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/member/live"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/mesh"
)

// Live returns what the others hear of the member at path, as they said when they were asked
// last; nil if nothing.
func (p *Peers) Live(path string) *fealtyv1.Live {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.live[path]
}

// AllLive returns what the others hear of members, by path, as they said when they were asked last. It is not to be changed.
func (p *Peers) AllLive() map[string]*fealtyv1.Live {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.live // which the next answers take the place of, whole
}

// Unanswered returns the coordinators that did not say what they hear, sorted, and whether
// nobody could tell which there are.
func (p *Peers) Unanswered() (silent []peer.Record, lost bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.silent, p.lost
}

// lose notes that nobody could say which others there are.
func (p *Peers) lose() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.at, p.live, p.lost = time.Time{}, nil, true
}

func (p *Peers) fresh() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.at.IsZero() && time.Since(p.at) < Fresh
}

// Hear asks the other coordinators what they hear of members, unless they just said. One that
// does not answer in time is left out, and one that is gone is not waited for.
func (p *Peers) Hear(ctx context.Context, s *authority.State) {
	if p.fresh() {
		return
	}
	select {
	case p.asking <- struct{}{}:
		defer func() { <-p.asking }()
	case <-ctx.Done():
		return
	}
	if p.fresh() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	all, conns, err := p.connect(ctx, s)
	if err != nil {
		p.lose()
		return
	}
	answers := make([]map[string]*fealtyv1.Live, len(all))
	var asked sync.WaitGroup
	for i := range all {
		if !p.presence.Gone(all[i].Key, p.cfg.Elapsed()) {
			asked.Go(func() { answers[i] = askAny(ctx, conns[i]) })
		}
	}
	asked.Wait()
	heard, silent := make(map[string]*fealtyv1.Live), []peer.Record(nil)
	for i, answer := range answers {
		if answer == nil {
			silent = append(silent, all[i])
		} else {
			p.presence.Heard(all[i].Key, p.cfg.Elapsed())
		}
		for path, l := range answer {
			heard[path] = live.Newer(l, heard[path])
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.at, p.live, p.silent, p.lost = time.Now(), heard, silent, false
}

// askAny asks one coordinator what it hears. Nil: it does not say.
func askAny(ctx context.Context, conns []*mesh.Conn) map[string]*fealtyv1.Live {
	heard, err := firstAnswer(ctx, conns, func(ctx context.Context, conn *mesh.Conn) (map[string]*fealtyv1.Live,
		error) {
		return askLive(ctx, conn, "")
	})
	if err != nil {
		return nil
	}
	return heard
}

// askLive asks one coordinator what it hears: of one member, or of all.
func askLive(ctx context.Context, conn *mesh.Conn, member string) (map[string]*fealtyv1.Live, error) {
	stream, err := fealtyv1.NewLiveServiceClient(conn).ListLive(ctx, &fealtyv1.ListLiveRequest{Member: member})
	if err != nil {
		return nil, err
	}
	out := make(map[string]*fealtyv1.Live)
	for range maxLivePages {
		page, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		for _, m := range page.GetMembers() {
			out[m.GetMember()] = m.GetLive()
		}
	}
	return nil, fmt.Errorf("more than %d messages", maxLivePages)
}

// Whole returns what the others hear of the member at path, with what only who asks for one member is told: known is what
// they said last, without that.
func (p *Peers) Whole(ctx context.Context, path string, known *fealtyv1.Live) *fealtyv1.Live {
	conns := p.connections()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	best := known
	var asked sync.WaitGroup
	answers := make(chan map[string]*fealtyv1.Live, len(conns))
	for _, conn := range conns {
		asked.Go(func() {
			if heard, err := askLive(ctx, conn, path); err == nil {
				answers <- heard
			}
		})
	}
	asked.Wait()
	close(answers)
	for heard := range answers {
		best = live.Newer(heard[path], best)
	}
	return best
}

// MayHear names the coordinators to which a member may be connected without saying so here:
// they do not answer, and did a short while ago. It reports true if nobody could say which
// others there are.
func (p *Peers) MayHear() (names []string, lost bool) {
	silent, lost := p.Unanswered()
	for _, r := range silent {
		if since, expected := p.Silent(r.Key); expected && since < peer.SilentAfter {
			names = append(names, r.Name)
		}
	}
	return names, lost
}

// AllAnswered reports whether everybody answered that may hear a member, when they were asked
// last, and this coordinator has listened for long enough to know.
func (p *Peers) AllAnswered() bool {
	silent, lost := p.Unanswered()
	return !lost && len(silent) == 0 && p.presence.Settled(p.cfg.Elapsed())
}
