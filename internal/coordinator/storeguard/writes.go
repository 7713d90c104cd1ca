package storeguard

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/finding"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/health"
)

// noteWrite takes in how a write ended, and tells of what that changes.
func (g *Guard) noteWrite(err error) {
	switch g.writes.Note(err, g.cfg.Now()) {
	case health.Refuses:
		g.cfg.Log.LogAttrs(context.Background(), slog.LevelError,
			"the store takes no writes: known members are certified again, "+
				"nobody is admitted and nothing is changed until it does",
			slog.String("reason", store.ReasonOf(err).String()), slog.Any("err", err))
	case health.Again:
		g.cfg.Log.LogAttrs(context.Background(), slog.LevelInfo, "the store takes writes again")
	}
}

// Writes returns whether the store takes writes now, and why not, as far as this process
// tried.
func (g *Guard) Writes() health.WriteState { return g.writes.State(g.cfg.Now()) }

// Refusing says in a word and in a sentence that the store takes no writes; both are empty
// if it does. The word is one of [Word].
func (g *Guard) Refusing() (word, reason string) {
	now := g.cfg.Now()
	s := g.writes.State(now)
	switch {
	case s.Reason == 0:
		return "", ""
	case !s.Takes.IsZero():
		return Word(s.Reason), s.Text(now)
	}
	return Word(s.Reason), s.Text(now) + ": known members are certified again, and nothing else is changed"
}

// RefusingFindings says why the store takes no writes; nil if it does.
func (g *Guard) RefusingFindings() []*fealtyv1.Finding {
	s := g.Writes()
	if s.Reason == 0 {
		return nil
	}
	what := "every change since " + s.Since.UTC().Format(time.RFC3339)
	if !s.Takes.IsZero() {
		what = fmt.Sprintf("some changes from %s until %s", s.Since.UTC().Format(time.RFC3339),
			s.Last.UTC().Format(time.RFC3339))
	}
	e := errcode.Of(Refusal(what, &store.RefusedError{Reason: s.Reason}))
	f := &fealtyv1.Finding{
		Code: string(e.Code), Severity: finding.Warning, Summary: e.What + ": " + e.Why, Remedy: e.Do,
	}
	if s.Blocks() {
		f.Severity = finding.Critical
	}
	if s.Said != "" {
		f.Summary += `; in its words: "` + s.Said + `"`
	}
	if !s.Takes.IsZero() {
		f.Summary += "; since " + s.Takes.UTC().Format(time.RFC3339) + " it takes some"
	}
	return []*fealtyv1.Finding{f}
}

// Refusal words that the store refused to do what, if that is known to be why err came, as
// [errcode.StoreFull] or [errcode.StoreRefuses]; nil if not.
func Refusal(what string, err error) error {
	switch reason := store.ReasonOf(err); reason {
	case 0:
		return nil
	case store.NoSpace:
		return errcode.New(errcode.StoreFull, "what", what)
	default:
		return errcode.New(errcode.StoreRefuses, "what", what, "reason", reason.String(), "do", writableAgain[reason])
	}
}

// writableAgain is what makes a store take writes again.
var writableAgain = map[store.Reason]string{
	store.ReadOnly: "if its disk is full make space; otherwise find out who made it read-only and why, " +
		"or name the server that takes writes",
	store.Forbidden: "give the user of the store back what it may write: the coordinator's log says what was refused",
	store.FileGone: "put the file back under its name, with its -wal file; " +
		"or stop the coordinator, and start it with the file that is to count",
	store.DiskFailed: "look at the disk and the system's log; " +
		"move the file to a good disk while the coordinator is stopped",
}

// Word is what readiness calls a store that takes no writes for a reason; empty for none.
func Word(r store.Reason) string { return words[r] }

var words = map[store.Reason]string{
	store.NoSpace:    "full",
	store.ReadOnly:   "read-only",
	store.Forbidden:  "forbidden",
	store.FileGone:   "file-gone",
	store.DiskFailed: "disk-failed",
}
