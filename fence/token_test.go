package fence_test

import (
	"errors"
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/fealty-io/fealty/fence"
	internalsigned "github.com/fealty-io/fealty/internal/signed"
)

func TestEpoch(t *testing.T) {
	if e := fence.NewEpoch(2, 17); e.Grant() != 2 || e.Life() != 17 || e.String() != "2.17" {
		t.Errorf("%v: grant %d, life %d", e, e.Grant(), e.Life())
	}
	if fence.NewEpoch(2, 1) <= fence.NewEpoch(1, math.MaxUint32) {
		t.Error("the last life of a grant comes after the first of the next")
	}
	if next, err := fence.NewEpoch(1, math.MaxUint32-1).Next(); err != nil || next != fence.NewEpoch(1,
		math.MaxUint32) {
		t.Errorf("the last life: %v, %v", next, err)
	}
	if next, err := fence.NewEpoch(1, math.MaxUint32).Next(); !errors.Is(err, fence.ErrExhausted) {
		t.Errorf("a life after the last: %v, %v", next, err)
	}
}

// A sequence gives nothing twice, begins with 1, and ends at its end.
func TestSequence(t *testing.T) {
	var s fence.Sequence
	var mu sync.Mutex
	seen := make(map[uint64]bool)
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			last := uint64(0)
			for range 1000 {
				n, err := s.Next()
				if err != nil || n <= last {
					t.Errorf("%d after %d: %v", n, last, err)
				}
				last = n
				mu.Lock()
				seen[n] = true
				mu.Unlock()
			}
		})
	}
	wait.Wait()
	if len(seen) != 8000 || !seen[1] || !seen[8000] {
		t.Errorf("%d numbers", len(seen))
	}
	end := fence.SequenceFrom(math.MaxUint64 - 1)
	if n, err := end.Next(); err != nil || n != math.MaxUint64 {
		t.Errorf("the last: %d, %v", n, err)
	}
	for range 2 {
		if n, err := end.Next(); !errors.Is(err, fence.ErrExhausted) {
			t.Errorf("after the last: %d, %v", n, err)
		}
	}
}

const (
	someIncarnation = "61000000000000000000000000000000"
	someDigest      = "00112233445566778899aabbccddeeff"
)

func TestParseToken(t *testing.T) {
	tail := ":" + someIncarnation + ":" + someDigest
	for _, text := range []string{
		"v1:0:1:1" + tail,
		"v1:18446744073709551615:18446744073709551615:18446744073709551615" + tail,
		"v1:9007199254740993:4294967297:9223372036854775809" + tail, // above what a float64 holds
	} {
		token, err := fence.ParseToken(text)
		if err != nil || token.String() != text {
			t.Errorf("%s: %v, %v", text, token, err)
		}
	}
	for name, text := range map[string]string{
		"nothing":             "",
		"another version":     "v2:0:1:1" + tail,
		"a part missing":      "v1:0:1" + tail,
		"a part more":         "v1:0:1:1:1" + tail,
		"a negative number":   "v1:0:1:-1" + tail,
		"a sign":              "v1:0:1:+1" + tail,
		"a leading zero":      "v1:0:1:01" + tail,
		"an empty number":     "v1:0::1" + tail,
		"a number too large":  "v1:0:1:18446744073709551616" + tail,
		"a fraction":          "v1:0:1:1.0" + tail,
		"an underscore":       "v1:0:1:1_0" + tail,
		"a blank":             "v1:0:1: 1" + tail,
		"epoch 0":             "v1:0:0:1" + tail,
		"life 0 of a grant":   "v1:0:4294967296:1" + tail,
		"sequence 0":          "v1:0:1:0" + tail,
		"no incarnation":      "v1:0:1:1:" + strings.Repeat("0", 32) + ":" + someDigest,
		"a short incarnation": "v1:0:1:1:" + someIncarnation[1:] + ":" + someDigest,
		"upper case":          "v1:0:1:1:" + someIncarnation + ":" + strings.ToUpper(someDigest),
		"no hex":              "v1:0:1:1:" + someIncarnation + ":" + strings.Repeat("g", 32),
		"something after it":  "v1:0:1:1" + tail + "\n",
		"much":                "v1:0:1:1" + tail + strings.Repeat(":", 1<<20),
	} {
		if token, err := fence.ParseToken(text); !errors.Is(err, fence.ErrMalformed) || token != (fence.Token{}) {
			t.Errorf("%s: %v, %v", name, token, err)
		}
	}
}

func TestParseLineage(t *testing.T) {
	other := strings.Replace(someIncarnation, "61", "62", 1)
	most := make(fence.Lineage, internalsigned.MaxLineage)
	for i := range most {
		most[i] = incarnation(byte(i + 1))
	}
	for _, text := range []string{"", someIncarnation, someIncarnation + "." + other, most.String()} {
		l, err := fence.ParseLineage(text)
		if err != nil || l.String() != text {
			t.Errorf("%q: %v, %v", text, l, err)
		}
	}
	for name, text := range map[string]string{
		"a dot":           ".",
		"a dot at an end": someIncarnation + ".",
		"an empty one":    someIncarnation + ".." + other,
		"one twice":       someIncarnation + "." + other + "." + someIncarnation,
		"zero":            strings.Repeat("0", 32),
		"too many":        append(most, incarnation('z')).String(),
		"another form":    someIncarnation + "," + other,
	} {
		if l, err := fence.ParseLineage(text); !errors.Is(err, fence.ErrMalformed) || l != nil {
			t.Errorf("%s: %v, %v", name, l, err)
		}
	}
}

// A text that is read is the only one of its value, and is within its bound.
func FuzzParseToken(f *testing.F) {
	f.Add("v1:0:1:1:" + someIncarnation + ":" + someDigest)
	f.Add("v1:18446744073709551615:9007199254740993:1:" + someIncarnation + ":" + someDigest)
	f.Fuzz(func(t *testing.T, text string) {
		token, err := fence.ParseToken(text)
		if err == nil && (token.String() != text || len(text) > fence.MaxTokenText) {
			t.Errorf("%q reads as %v", text, token)
		}
	})
}

func FuzzParseLineage(f *testing.F) {
	f.Add(someIncarnation)
	f.Fuzz(func(t *testing.T, text string) {
		l, err := fence.ParseLineage(text)
		if err == nil && (l.String() != text || len(l) > internalsigned.MaxLineage) {
			t.Errorf("%q reads as %v", text, l)
		}
	})
}

func TestTerm(t *testing.T) {
	var term fence.Term
	for i, step := range []struct {
		term, mark int64
		stale      bool
	}{
		{0, 0, true}, {-1, 0, true}, {math.MinInt64, 0, true}, {3, 3, false}, {3, 3, false}, {2, 3, true}, {5, 5,
			false}, {3, 5, true},
		{math.MaxInt64, math.MaxInt64, false}, {5, math.MaxInt64, true},
	} {
		err := term.Check(step.term)
		if stale := errors.Is(err, fence.ErrStaleTerm); stale != step.stale || !stale && err != nil {
			t.Errorf("step %d: term %d: %v", i, step.term, err)
		}
		if e, ok := errors.AsType[*fence.StaleTermError](err); ok && (e.Got != step.term || e.Mark != step.mark) {
			t.Errorf("step %d: %v", i, err)
		}
		if term.Mark() != step.mark {
			t.Errorf("step %d: mark %d, want %d", i, term.Mark(), step.mark)
		}
	}
}

// A sender that was fenced sends nothing more, whatever comes back after it.
func TestFencedIsTheEnd(t *testing.T) {
	if _, err := fence.NewSender(fence.Life{Incarnation: incarnation('a')}); !errors.Is(err, fence.ErrMalformed) {
		t.Errorf("no epoch: %v", err)
	}
	if _, err := fence.NewSender(fence.Life{Epoch: 1}); !errors.Is(err, fence.ErrMalformed) {
		t.Errorf("no incarnation: %v", err)
	}
	s := must(fence.NewSender(fence.Life{Epoch: 3, Incarnation: incarnation('a')}))
	one, two := must(s.Next(7, []byte("one"))), must(s.Next(7, []byte("two")))
	if one.Sequence != 1 || two.Sequence != 2 || one.Epoch != 3 || one.Ownership != 7 || one.Digest == two.Digest {
		t.Errorf("%v, %v", one, two)
	}
	other := errors.New("other")
	for _, err := range []error{nil, other, &fence.RefusedError{Reason: fence.ReasonDuplicate},
		&fence.RefusedError{Reason: fence.ReasonUngranted}} {
		if got := s.Heard(err); got != err || s.Err() != nil {
			t.Errorf("after %v: %v, %v", err, got, s.Err())
		}
	}
	select {
	case <-s.Fenced():
		t.Error("fenced, and nobody fenced it")
	default:
	}
	for _, err := range []error{&fence.RefusedError{Reason: fence.ReasonStale},
		&fence.RefusedError{Reason: fence.ReasonClone}, nil} {
		if got := s.Heard(err); got != err {
			t.Errorf("Heard(%v) = %v", err, got)
		}
		if _, err := s.Next(7, nil); !errors.Is(err, fence.ErrFenced) {
			t.Errorf("a token after it: %v", err)
		}
	}
	<-s.Fenced()
	if r, ok := errors.AsType[*fence.RefusedError](s.Err()); !ok || r.Reason != fence.ReasonStale {
		t.Errorf("what fenced it: %v", s.Err())
	}
}
