package shard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/dev/process"
	"github.com/fealty-io/fealty/internal/errcode"
)

// Machines that the tenant wants of one shard and the next: one that comes back finds another
// number than it knows, and so tries to change something.
const (
	wantsFew  = 3
	wantsMany = 5
)

// work has the tenant want machines, and waits until they work.
func (f *Fleet) work(ctx context.Context) error {
	s, err := f.Session(ctx, f.shards[First])
	if err != nil {
		return err
	}
	next := wantsFew
	if f.wanted == wantsFew {
		next = wantsMany
	}
	if err := s.Wants(ctx, next); err != nil {
		return err
	}
	f.wanted = next
	_, err = f.Has(ctx, next)
	return err
}

// zombie stops the shard where it stands, starts its successor, and has the tenant want another
// number of machines of that. With dry nothing is done. It returns what was done, and what to
// watch.
func (f *Fleet) zombie(ctx context.Context, dry bool) (did string, watch []string, err error) {
	old := f.shards[First]
	next := wantsFew
	if f.wanted == wantsFew {
		next = wantsMany
	}
	did = fmt.Sprintf("stopped %s (pid %d) with SIGSTOP, and started its successor, which works: the tenant wants %d "+
		"machines of it, and wanted %d before", old.Name, old.PID(), next, f.wanted)
	watch = []string{
		fmt.Sprintf("cat %s: which processes the machines are", filepath.Join(f.cfg.Dir, laptop, "machines", "*")),
		"fealty dev heal: it is woken, believes that it is in charge, and is refused",
	}
	if dry {
		return did, watch, nil
	}
	if err := old.Pause(); err != nil {
		return "", nil, err
	}
	f.stopped = append(f.stopped, old)
	for len(f.stopped) > maxStopped {
		f.stopped[0].End()
		f.stopped = f.stopped[1:]
	}
	if _, err := f.Succeed(ctx, First); err != nil {
		return "", nil, err
	}
	return did, watch, f.work(ctx)
}

// wake wakes the shards that were stopped, and waits until they were fenced. With dry nothing is
// done. It returns what was done of each, and what to watch.
func (f *Fleet) wake(ctx context.Context, dry bool) (did, watch []string, err error) {
	asleep := slices.DeleteFunc(slices.Clone(f.stopped), func(p *process.Program) bool { return !p.Paused() })
	if len(asleep) == 0 {
		return nil, nil, nil
	}
	before, err := f.Working()
	if err != nil {
		return nil, nil, err
	}
	for _, p := range asleep {
		did = append(did, fmt.Sprintf("%s goes on, as a zombie", p.Name))
		if dry {
			continue
		}
		told, _, err := f.Incidents(ctx)
		if err == nil {
			err = p.Wake()
		}
		if err != nil {
			return nil, nil, err
		}
		err = f.cfg.Await(ctx, p.Name+" to be fenced, and to tell of it", func(ctx context.Context) (bool, error) {
			m, err := process.Scrape(ctx, p.Metrics)
			if err != nil || m["fealty_shard_fenced"] != 1 {
				return false, err
			}
			now, found, err := f.Incidents(ctx)
			return now > told && found, err
		})
		if err == nil {
			err = f.Unchanged(before)
		}
		if err != nil {
			return nil, nil, err
		}
	}
	if !dry {
		did = append(did, fmt.Sprintf("it was refused, and the machines are the same processes %v",
			before.PIDs()))
	}
	return did, []string{
		fmt.Sprintf("fealty status: %s, the incident", errcode.ShardFenced),
		"fealty audit list --action shard.fenced: one entry for each zombie",
		fmt.Sprintf("tail %s: what it says of it itself", asleep[0].Log),
	}, nil
}

// describe says what runs, for a person.
func (f *Fleet) describe() (lines [][2]string) {
	return [][2]string{
		{"provider", fmt.Sprintf("%s, whose machines are processes of this machine", laptop)},
		{"shard", fmt.Sprintf("%s owns domain %s; the %d machines of tenant %s work in it", First, Domain, f.wanted,
			tenant)},
	}
}

// Incidents counts the entries of the audit log that tell that a process of the first shard was
// fenced, and reports whether status says so.
func (f *Fleet) Incidents(ctx context.Context) (entries int, found bool, err error) {
	path := string(identity.Shard) + "/" + First
	err = f.cfg.Admin(func(conn *grpc.ClientConn) error {
		st, err := fealtyv1.NewStatusServiceClient(conn).GetStatus(ctx, &fealtyv1.GetStatusRequest{})
		if err != nil {
			return err
		}
		for _, n := range st.GetFindings() {
			found = found || n.GetCode() == string(errcode.ShardFenced) && strings.Contains(n.GetSummary(), path)
		}
		log, err := fealtyv1.NewAuditServiceClient(conn).GetAudit(ctx, &fealtyv1.GetAuditRequest{Member: path,
			Action: "shard.fenced"})
		for err == nil {
			var part *fealtyv1.GetAuditResponse
			if part, err = log.Recv(); part.GetEntry() != nil {
				entries++
			}
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return err
	})
	return entries, found, err
}
