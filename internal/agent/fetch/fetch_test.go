package fetch_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/agent/fetch"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/platform/clock"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/snapshot"
)

// shelf is a source in memory.
type shelf struct {
	name    string
	news    []fetch.Notice
	content func(ctx context.Context) (io.Reader, error)
	asked   int // how often for a content
	closed  int
}

func (s *shelf) Name() string { return s.name }

func (s *shelf) From() state.Origin { return state.ByCoordinator }

func (s *shelf) News(context.Context, []*fealtyv1.HeldSnapshot) ([]fetch.Notice, error) {
	return s.news, nil
}

func (s *shelf) Content(ctx context.Context, _ snapshot.Scope, _ snapshot.Digest, _ int) (io.ReadCloser, error) {
	s.asked++
	if s.content == nil {
		return nil, errors.New("not here")
	}
	r, err := s.content(ctx)
	if err != nil {
		return nil, err
	}
	return io.NopCloser(r), nil
}

func (s *shelf) Close() error { s.closed++; return nil }

// holding has a source give these bytes.
func holding(b []byte) func(context.Context) (io.Reader, error) {
	return func(context.Context) (io.Reader, error) { return bytes.NewReader(b), nil }
}

// drip gives piece after each pause, for ever.
type drip struct {
	ctx   context.Context
	piece []byte
	pause time.Duration
}

func (d *drip) Read(b []byte) (int, error) {
	if err := clock.Sleep(d.ctx, d.pause, nil); err != nil {
		return 0, err
	}
	return copy(b, d.piece), nil
}

func dripping(pause time.Duration, piece []byte) func(context.Context) (io.Reader, error) {
	return func(ctx context.Context) (io.Reader, error) { return &drip{ctx, piece, pause}, nil }
}

// The faults of a source that gives no content are told apart, and end in time.
func TestFetchIsExact(t *testing.T) {
	content := bytes.Repeat([]byte("0123456789abcdef"), 100<<10/16)
	other := bytes.Clone(content)
	other[50<<10] ^= 1
	broken := errors.New("the connection broke")
	for _, c := range []struct {
		name   string
		source func(context.Context) (io.Reader, error)
		want   fetch.FetchReason
		within time.Duration
	}{
		{"exact", holding(content), "", 0},
		{"as slow as allowed", func(ctx context.Context) (io.Reader, error) {
			return &slowly{ctx, bytes.NewReader(content), ratelimit.TransferRate * 11 / 10}, nil
		}, "", ratelimit.TransferTime(int64(len(content)))},
		{"one byte short", holding(content[:len(content)-1]), fetch.FetchTruncated, 0},
		{"nothing", holding(nil), fetch.FetchTruncated, 0},
		{"broken off", func(context.Context) (io.Reader, error) {
			return io.MultiReader(bytes.NewReader(content[:1000]), iotest.ErrReader(broken)), nil
		}, fetch.FetchTruncated, 0},
		{"broken at once", func(context.Context) (io.Reader, error) { return iotest.ErrReader(broken), nil },
			fetch.FetchUnavailable, 0},
		{"one byte more", holding(append(bytes.Clone(content), 0)), fetch.FetchOversized, 0},
		{"endless", dripping(0, content), fetch.FetchOversized, 0},
		{"altered", holding(other), fetch.FetchAltered, 0},
		{"a byte a second", dripping(time.Second, []byte{1}), fetch.FetchSlow, ratelimit.Window},
		{"empty reads", dripping(time.Millisecond, nil), fetch.FetchSlow, ratelimit.Window},
		{"fast at first, then silent", func(ctx context.Context) (io.Reader, error) {
			return io.MultiReader(bytes.NewReader(content[:90<<10]), &drip{ctx, []byte{1}, time.Hour}), nil
		}, fetch.FetchSlow, 2 * ratelimit.Window},
		{"never opens", func(ctx context.Context) (io.Reader, error) { <-ctx.Done(); return nil, ctx.Err() },
			fetch.FetchSlow, ratelimit.TransferTime(int64(len(content)))},
		{"not there", nil, fetch.FetchUnavailable, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				got, err := fetch.Fetch(t.Context(), &shelf{name: "shelf", content: c.source},
					snapshot.ScopePeerDirectory, snapshot.DigestOf(content), len(content))
				if took := time.Since(began); took > c.within {
					t.Errorf("it took %v, want %v at most", took, c.within)
				}
				if c.want == "" {
					if err != nil || !bytes.Equal(got, content) {
						t.Fatalf("%d bytes, %v", len(got), err)
					}
					return
				}
				e, ok := errors.AsType[*fetch.FetchError](err)
				if !ok || e.Reason != c.want || e.Source != "shelf" || got != nil {
					t.Fatalf("%d bytes, %v, want the reason %s", len(got), err, c.want)
				}
			})
		})
	}
}

// slowly gives what r has at rate bytes in a second.
type slowly struct {
	ctx  context.Context
	r    io.Reader
	rate int
}

func (s *slowly) Read(b []byte) (int, error) {
	n, err := s.r.Read(b)
	if slept := clock.Sleep(s.ctx, time.Duration(n)*time.Second/time.Duration(s.rate), nil); slept != nil {
		return n, slept
	}
	return n, err
}

// A fetch that its caller gives up says so, and blames nobody.
func TestFetchIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := fetch.Fetch(ctx, &shelf{name: "shelf", content: dripping(time.Minute, []byte{1})},
			snapshot.ScopePeerDirectory, snapshot.Digest{}, 10)
		if e, ok := errors.AsType[*fetch.FetchError](err); !ok || e.Reason != fetch.FetchUnavailable ||
			!errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
	})
}

// The whole of a scope is asked for at once, then ever more rarely, and again at once
// after something newer of it was in use.
func TestResyncIsAskedForRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &fetch.Resyncs{Now: time.Now}
		if got := r.Due(); len(got) != 0 {
			t.Fatalf("due from the start: %v", got)
		}
		asked := 0
		for began := time.Now(); time.Since(began) < 24*time.Hour; time.Sleep(10 * time.Second) {
			r.Want(snapshot.ScopeRoutePolicy) // a patch that does not fit, every time
			if got := r.Due(); len(got) > 0 {
				asked++
			}
		}
		if asked < 24 || asked > 30 {
			t.Errorf("asked %d times in a day", asked)
		}
		r.Done(snapshot.ScopeRoutePolicy)
		if got := r.Due(); len(got) != 0 {
			t.Errorf("due after it was done: %v", got)
		}
		r.Want(snapshot.ScopeRoutePolicy)
		if got := r.Due(); len(got) != 1 || got[0] != "route_policy" {
			t.Errorf("due: %v", got)
		}
	})
}
