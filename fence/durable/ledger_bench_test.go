package durable_test

import (
	"bytes"
	"fmt"
	"io"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/fence/durable"
	files "github.com/fealty-io/fealty/internal/durable"
)

// BenchmarkLedger measures attempts that are admitted and on disk, with so many senders
// that each send the next one when the last was answered. The most that a group commit
// allows is one attempt of each sender with every sync. How fast those are is measured in
// turns with it, by frames of that size, so that the ratio says little of the machine.
func BenchmarkLedger(b *testing.B) {
	for _, senders := range []int{1, 16, 128, 1024} {
		b.Run(fmt.Sprintf("senders=%d", senders), func(b *testing.B) {
			dir := b.TempDir()
			raw, err := files.OS().WriteLog(filepath.Join(dir, "raw"), func(io.Writer) error { return nil })
			if err != nil {
				b.Fatal(err)
			}
			defer raw.Close()
			disk := &countingDisk{FS: files.OS()}
			l, err := durable.EnrolLedgerOn(disk, dir, lenient)
			if err != nil {
				b.Fatal(err)
			}
			defer l.Close()
			p := life("s1", 0, 1)
			claims := make([]fence.Claim, senders)
			for i := range claims {
				claims[i] = p.claim(fmt.Sprintf("machine-%05d", i), 1)
				if i == 0 {
					err = l.Admit(b.Context(), claims[0])
				}
			}
			if err != nil {
				b.Fatal(err)
			}
			disk.syncs.Store(0)
			const turn = 50 // syncs
			frame := bytes.Repeat([]byte("x"), 64+61*senders)
			var rawTime time.Duration
			rawSyncs, admitted := 0, 0
			b.ResetTimer()
			for admitted < b.N {
				b.StopTimer()
				began := time.Now()
				for range turn {
					if _, err = raw.Write(frame); err == nil {
						err = raw.Sync()
					}
					if err != nil {
						b.Fatal(err)
					}
				}
				rawTime += time.Since(began)
				rawSyncs += turn
				b.StartTimer()
				each := max(1, min(turn*senders, b.N-admitted)/senders)
				var wait sync.WaitGroup
				for i := range claims {
					c := &claims[i]
					wait.Go(func() {
						for range each {
							c.Token.Sequence++
							if err := l.Admit(b.Context(), *c); err != nil {
								b.Error(err)
							}
						}
					})
				}
				wait.Wait()
				admitted += each * senders
			}
			b.StopTimer()
			admits, rate := float64(admitted)/b.Elapsed().Seconds(), float64(rawSyncs)/rawTime.Seconds()
			b.ReportMetric(rate, "raw-syncs/s")
			b.ReportMetric(admits, "admits/s")
			b.ReportMetric(float64(admitted)/float64(disk.syncs.Load()), "admits/sync")
			b.ReportMetric(admits/(rate*float64(senders)), "of-group-commit")
		})
	}
}

// countingDisk counts the syncs of a log.
type countingDisk struct {
	files.FS
	syncs atomic.Int64
}

type countedFile struct {
	files.File
	disk *countingDisk
}

func (d *countingDisk) WriteLog(name string, fill func(io.Writer) error) (files.File, error) {
	f, err := d.FS.WriteLog(name, fill)
	return &countedFile{f, d}, err
}

func (f *countedFile) Sync() error {
	f.disk.syncs.Add(1)
	return f.File.Sync()
}

// BenchmarkLedgerRewrite measures the pause while the file of 1,000,000 pairs is written
// anew, and how long a start with it takes.
func BenchmarkLedgerRewrite(b *testing.B) {
	const pairs = 1_000_000
	dir := b.TempDir()
	l, err := durable.EnrolLedger(dir, lenient)
	if err != nil {
		b.Fatal(err)
	}
	p := life("s1", 0, 1)
	for i := range pairs {
		c := p.claim(fmt.Sprintf("machine-%07d", i), uint64(i+1))
		durable.Memory(l).Set(fence.Change{Pair: fence.Pair{Holder: c.Holder, Resource: c.Resource},
			Mark:    fence.Mark{Epoch: c.Token.Epoch, Sequence: c.Token.Sequence, Digest: c.Token.Digest},
			Process: fence.Process{Epoch: c.Token.Epoch, Incarnation: c.Token.Incarnation}})
	}
	b.ResetTimer()
	for range b.N {
		if err := l.Rewrite(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	size := l.Status().Size
	if err := l.Close(); err != nil {
		b.Fatal(err)
	}
	began := time.Now()
	if l, err = durable.OpenLedger(dir, lenient); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(time.Since(began).Seconds()*1000, "start-ms")
	b.ReportMetric(float64(size)/pairs, "B/pair-on-disk")
	if err := l.Close(); err != nil {
		b.Fatal(err)
	}
}
