package fence_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fealty-io/fealty/fence"
)

// BenchmarkAdmit measures what the check of a ledger costs with so many pairs of holder and
// resource in it, and the memory that it takes for each. With 1,000,000 of them it waits for
// memory, and what that costs differs from machine to machine. So there are measured in turns
// with it
//
//   - of-a-cache-miss: one load from memory of the same size, where each says where the next
//     one is, so that no processor can begin it before. It can begin a check before the last
//     one is over, so that a check may cost less than a load. How many it has under way differs
//     too: one that has two threads has half the room for each while both run;
//   - of-a-map: a look into a plain map of Go with the same names.
//
// A claim was just read from a request: its name is another copy than that of the ledger, and
// is in the cache. So the claims of a turn are made before the clock runs. When the names came
// from memory, a wait for them was the benchmark's; and when there was one claim, whose name and
// number were set for each check, that copied what was just written, which waits until all
// before it is done.
//
// Of the memory B/pair is all, with the ledger's own copy of the name, and B/pair-beside-keys
// what is left of it without two strings and the bytes of the resource's. The times are medians
// of turns, as others take the processor away in some of them.
func BenchmarkAdmit(b *testing.B) {
	for _, pairs := range []int{1000, 1_000_000} {
		var a *admitting // once for all runs
		b.Run(fmt.Sprintf("pairs=%d", pairs), func(b *testing.B) {
			if a == nil {
				a = newAdmitting(b, pairs)
			}
			a.measure(b)
		})
	}
}

type admitting struct {
	ledger   *fence.Ledger
	claim    fence.Claim // of any resource
	names    []string    // of the resources, as the claims have them
	sequence *fence.Sequence
	plain    map[string]*fence.Mark
	lines    []line  // as large as the ledger
	taken    float64 // bytes that it takes for a pair
}

// line is one of a cache, that leads to another one.
type line struct {
	next uint32
	_    [60]byte
}

func newAdmitting(b *testing.B, pairs int) *admitting {
	b.Helper()
	p := process{holder: "shard-a", epoch: 1, me: incarnation('a')}
	a := &admitting{claim: p.claim("", 0), sequence: fence.SequenceFrom(1), plain: make(map[string]*fence.Mark, pairs)}
	resources := make([]string, pairs)
	for i := range resources {
		resources[i] = fmt.Sprintf("machine-%07d", i)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	a.ledger = fence.NewLedger(fence.LedgerOptions{BelieveEpochs: true})
	claim := a.claim
	for _, r := range resources {
		claim.Resource, claim.Token.Sequence = r, 1
		if err := a.ledger.Admit(claim); err != nil {
			b.Fatal(err)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	a.taken = float64(after.HeapAlloc-before.HeapAlloc) / float64(pairs)
	for _, r := range resources {
		a.names = append(a.names, strings.Clone(r))
		a.plain[strings.Clone(r)] = new(fence.Mark)
	}
	a.lines = make([]line, int(a.taken)*pairs/64)
	order := rand.New(rand.NewPCG(1, 2)).Perm(len(a.lines))
	for i, at := range order {
		a.lines[at].next = uint32(order[(i+1)%len(order)])
	}
	return a
}

func (a *admitting) measure(b *testing.B) {
	const turn = 128 // their names fit into the nearest cache
	var mu sync.Mutex
	var admits, misses, looks []time.Duration // of a turn; guarded by mu
	var goroutines atomic.Uint64
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		claims, bytes := make([]fence.Claim, turn), 0
		random := rand.New(rand.NewPCG(goroutines.Add(1), 3))
		at := uint32(random.IntN(len(a.lines)))
		var admit, miss, look []time.Duration
		for pb.Next() {
			for range turn - 1 {
				pb.Next() // what is left of the last turn is done too
			}
			for i := range claims {
				c := &claims[i]
				*c = a.claim
				c.Token.Sequence, _ = a.sequence.Next()
				c.Resource = a.names[random.IntN(len(a.names))]
				for _, b := range []byte(c.Resource) {
					bytes += int(b)
				}
			}
			began := time.Now()
			for i := range claims {
				c := &claims[i]
				_ = a.ledger.Admit(*c) // another goroutine may have been there with a higher number
			}
			admitted := time.Now()
			for range turn {
				at = a.lines[at].next
			}
			missed := time.Now()
			for i := range claims {
				bytes += int(a.plain[claims[i].Resource].Sequence)
			}
			looked := time.Now()
			admit, miss = append(admit, admitted.Sub(began)), append(miss, missed.Sub(admitted))
			look = append(look, looked.Sub(missed))
		}
		mu.Lock()
		defer mu.Unlock()
		if admits, misses, looks = append(admits, admit...), append(misses, miss...), append(looks, look...); bytes+int(at) < 0 {
			b.Error("never: it has the loops do something")
		}
	})
	b.StopTimer()
	each := func(turns []time.Duration) float64 {
		slices.Sort(turns)
		return float64(turns[len(turns)/2]) / turn
	}
	b.ReportMetric(each(admits)/float64(runtime.GOMAXPROCS(0)), "ns/op") // by all of them together
	b.ReportMetric(each(admits)/each(misses), "of-a-cache-miss")
	b.ReportMetric(each(misses), "ns/cache-miss")
	b.ReportMetric(each(admits)/each(looks), "of-a-map")
	b.ReportMetric(a.taken, "B/pair")
	b.ReportMetric(a.taken-float64(2*16+len(a.names[0])), "B/pair-beside-keys") // they are all as long
}
