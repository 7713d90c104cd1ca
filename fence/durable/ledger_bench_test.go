package durable_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/fence/durable"
	files "github.com/fealty-io/fealty/internal/platform/durable"
)

// BenchmarkLedger measures attempts that are admitted and on disk, with so many senders
// that each send the next one when the last was answered. Two other things are measured
// in turns with it, so that the ratios say little of the machine:
//
//   - of-group-commit: of what a plain group commit does ([plainLog]) for as many senders that
//     each wait for a record of the same length. It decides and remembers nothing, makes no
//     checksum, and its senders cannot give up, so that the ratio is what all that costs.
//   - of-syncs: of as many attempts as there are senders with each of the syncs that a loop
//     makes of one frame of that size, over and over. No group commit gets there: the loop has
//     no senders, so that nobody is told, woken and waited for between two syncs.
func BenchmarkLedger(b *testing.B) {
	for _, senders := range []int{1, 16, 128, 1024} {
		b.Run(fmt.Sprintf("senders=%d", senders), func(b *testing.B) { benchmarkLedger(b, senders) })
	}
}

func benchmarkLedger(b *testing.B, senders int) {
	dir := b.TempDir()
	opened := func(name string) files.File {
		f, err := files.OS().WriteLog(filepath.Join(dir, name), func(io.Writer) error { return nil })
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { f.Close() })
		return f
	}
	raw, plain := opened("raw"), &plainLog{file: opened("plain")}
	disk := &countingDisk{FS: files.OS()}
	l, err := durable.EnrolLedgerOn(disk, dir, lenient)
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	p := life("s1", 0, 1)
	claims, waits := make([]fence.Claim, senders), make([]chan error, senders)
	contexts := make([]context.Context, senders) // of its own, as that of a request is
	for i := range claims {
		claims[i], waits[i] = p.claim(fmt.Sprintf("machine-%05d", i), 1), make(chan error, 1)
		ctx, cancel := context.WithCancel(b.Context())
		defer cancel()
		contexts[i] = ctx
	}
	if err = l.Admit(b.Context(), claims[0]); err != nil { // the process is known from here on
		b.Fatal(err)
	}
	record := bytes.Repeat([]byte("x"), 61) // as long as that of one of these attempts
	frame := bytes.Repeat([]byte("x"), besideRecords+len(record)*senders)
	var raws, plains, admits []time.Duration // of each round
	together := func(each int, call func(i int) error) time.Duration {
		began := time.Now()
		var wait sync.WaitGroup
		for i := range senders {
			wait.Go(func() {
				for range each {
					if err := call(i); err != nil {
						b.Error(err)
					}
				}
			})
		}
		wait.Wait()
		return time.Since(began)
	}
	const each = 20 // attempts of each sender in a round
	syncs, done := int64(0), 0
	b.ResetTimer()
	for ; done < b.N && !b.Failed(); done += each * senders {
		b.StopTimer()
		began := time.Now()
		for range each {
			if _, err = raw.Write(frame); err == nil {
				err = raw.Sync()
			}
			if err != nil {
				b.Fatal(err)
			}
		}
		raws = append(raws, time.Since(began))
		plains = append(plains, together(each, func(i int) error { return plain.save(record, waits[i]) }))
		before := disk.syncs.Load()
		b.StartTimer()
		admits = append(admits, together(each, func(i int) error {
			claims[i].Token.Sequence++
			return l.Admit(contexts[i], claims[i])
		}))
		syncs += disk.syncs.Load() - before
	}
	b.StopTimer()
	// Medians over the rounds, as what else the machine and its disk did in some of them says
	// nothing; and of a ratio in each round, as what they did for longer was done to both.
	median := func(of func(round int) float64) float64 {
		values := make([]float64, len(admits))
		for i := range values {
			values[i] = of(i)
		}
		slices.Sort(values)
		return values[len(values)/2]
	}
	attempts := float64(each * senders)
	b.ReportMetric(float64(b.Elapsed())/float64(done), "ns/op")
	b.ReportMetric(each/median(func(i int) float64 { return raws[i].Seconds() }), "raw-syncs/s")
	b.ReportMetric(attempts/median(func(i int) float64 { return admits[i].Seconds() }), "admits/s")
	b.ReportMetric(float64(done)/float64(syncs), "admits/sync")
	b.ReportMetric(float64(done)/float64(plain.syncs), "plain/sync")
	b.ReportMetric(median(func(i int) float64 { return float64(plains[i]) / float64(admits[i]) }), "of-group-commit")
	b.ReportMetric(median(func(i int) float64 { return float64(raws[i]) / float64(admits[i]) }), "of-syncs")
}

// besideRecords are the bytes that a frame has beside its records.
const besideRecords = 57

// plainLog is a group commit and nothing else: a sender that comes while nobody writes does it
// for all that wait, and each is told when the record of its own was synced.
type plainLog struct {
	file files.File

	mu             sync.Mutex
	led            bool // guarded by mu, as all here
	frame, spare   []byte
	waiting, taken []chan error
	syncs          int64
}

// errNext tells one that waits to write for all.
var errNext = errors.New("write")

func (p *plainLog) save(record []byte, told chan error) error {
	p.mu.Lock()
	p.frame, p.waiting = append(p.frame, record...), append(p.waiting, told)
	lead := !p.led
	p.led = true
	p.mu.Unlock()
	for {
		if lead {
			p.commit()
		}
		if err := <-told; !errors.Is(err, errNext) {
			return err
		}
		lead = true
	}
}

func (p *plainLog) commit() {
	p.gather()
	p.mu.Lock()
	frame, taken := append(p.frame, make([]byte, besideRecords)...), p.waiting
	p.frame, p.waiting = p.spare[:0], p.taken[:0]
	p.mu.Unlock()
	_, err := p.file.Write(frame)
	if err == nil {
		err = p.file.Sync()
	}
	p.syncs++
	for _, told := range taken {
		told <- err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.spare, p.taken = frame, taken
	if p.led = len(p.waiting) > 0; p.led {
		p.waiting[0] <- errNext
	}
}

// gather lets those come who were told just now: without it every second sync would be of a
// few records.
func (p *plainLog) gather() {
	for before, alone := 0, 0; alone < 4; alone++ {
		runtime.Gosched()
		p.mu.Lock()
		n := len(p.waiting)
		p.mu.Unlock()
		if n > before {
			before, alone = n, 0
		}
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
