package health_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/health"
)

var began = time.Date(2026, 5, 4, 10, 58, 0, 0, time.UTC)

func refused(r store.Reason) error {
	return fmt.Errorf("store: commit: %w", &store.RefusedError{Reason: r, Err: errors.New("the cause")})
}

// The report follows the writes: for how long none was taken, since when some are, and
// nothing once none was refused for a while.
func TestRecord(t *testing.T) {
	t.Parallel()
	var r health.WriteRecord
	now := began
	for _, step := range []struct {
		after time.Duration // the step before
		err   error
		news  health.WriteNews
		text  string // afterwards; empty: it takes writes
	}{
		{0, nil, health.Nothing, ""},
		{time.Second, store.ErrConflict, health.Nothing, ""},
		{time.Second, errors.New("no server answers"), health.Nothing, ""},
		{8 * time.Second, refused(store.NoSpace), health.Refuses, "has taken no writes for 0s, because it has no space left"},
		{5 * time.Second, store.ErrConflict, health.Nothing, "has taken no writes for 5s"},
		{5 * time.Second, refused(store.NoSpace), health.Nothing, "has taken no writes for 10s"},
		{10 * time.Second, nil, health.Nothing, "since 10:58:30 UTC the store takes some writes; it refused others until 10:58:20 UTC"},
		{10 * time.Second, nil, health.Nothing, "since 10:58:30 UTC the store takes some"},
		{5 * time.Second, refused(store.NoSpace), health.Nothing, "has taken no writes for 35s"},
		{5 * time.Second, nil, health.Nothing, "since 10:58:50 UTC"},
		{health.WriteSettles - 5*time.Second, nil, health.Nothing, "since 10:58:50 UTC"},
		{time.Second, nil, health.Again, ""},
		{time.Hour, refused(store.FileGone), health.Refuses, "for 0s, because its file was moved"},
		{time.Second, refused(store.DiskFailed), health.Refuses, "for 1s, because its disk fails writes"},
		{time.Second, fmt.Errorf("%w: %w", store.ErrUnknownOutcome, refused(store.DiskFailed)), health.Nothing, "for 2s"},
		{time.Second, nil, health.Nothing, "takes some writes"},
		// Nobody wrote for long: what was refused last is over all the same, and is news again.
		{time.Hour, refused(store.DiskFailed), health.Refuses, "for 0s"},
	} {
		now = now.Add(step.after)
		if got := r.Note(step.err, now); got != step.news {
			t.Errorf("%v: %v at %v: news %v, want %v", step.after, step.err, now, got, step.news)
		}
		got := r.State(now).Text(now)
		if !strings.Contains(got, step.text) || got != "" && step.text == "" {
			t.Errorf("%v at %v: %q, want %q", step.err, now, got, step.text)
		}
	}
}

// Each reason is told in words of its own.
func TestReasons(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, reason := range store.Reasons() {
		err := fmt.Errorf("%w: %w", store.ErrUnknownOutcome, refused(reason))
		if store.ReasonOf(err) != reason || !errors.Is(err, store.ErrRefused) || !errors.Is(err, store.ErrUnknownOutcome) {
			t.Errorf("%v is lost in %v", reason, err)
		}
		if text := reason.String(); seen[text] || strings.Contains(text, "unknown") {
			t.Errorf("reason %d: %q", reason, text)
		}
		seen[reason.String()] = true
	}
	if store.ReasonOf(store.ErrFull) != store.NoSpace || store.ReasonOf(store.ErrConflict) != 0 || store.ReasonOf(nil) != 0 {
		t.Error("what is no refusal has a reason, or a full store none")
	}
}
