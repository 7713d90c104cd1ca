package chaos_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fealty-io/fealty/test/chaos"
)

// A writer asks the cluster, as people do, and keeps what it was told.
type writer struct {
	f    *fleet
	name string
	r    *rand.Rand
	n    int

	joined []string // its members
	banned []string
}

// values are never written twice.
var values atomic.Int64

// note keeps a write that ended now, and reports whether it was acknowledged.
func (w *writer) note(key, value string, call time.Time, status int, said string) bool {
	o := chaos.Refused
	switch status {
	case 0:
		o = chaos.Acknowledged
	case unknownStatus:
		o = chaos.Unknown
	}
	w.f.mu.Lock()
	defer w.f.mu.Unlock()
	w.f.writes = append(w.f.writes, chaos.Write{Key: key, Value: value, Call: call, Return: time.Now(), Outcome: o, Said: said})
	return o == chaos.Acknowledged
}

// write makes a write by a command.
func (w *writer) write(ctx context.Context, at *process, key, value string, args ...string) (out string, ok bool) {
	call := time.Now()
	out, status, said := w.f.ask(ctx, append(args, "--socket", w.f.socket(at), "--timeout", "6s")...)
	return out, w.note(key, value, call, status, at.m.name+": "+said)
}

func (w *writer) token(ctx context.Context, at *process, name string) (string, bool) {
	return w.write(ctx, at, "token/"+name, there, "token", "create", "--entry", "nodes", "--name", name)
}

// join has a machine join with a folder of it. A join that failed may have happened all
// the same, unless it was denied: then nobody knows that who asked.
func (w *writer) join(ctx context.Context, m *machine, token, data, name string) bool {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	cmd := m.command(ctx, w.f.exe, "join", "--token-file", "-", "--data", data)
	cmd.Stdin = strings.NewReader(token)
	call := time.Now()
	_, status, said := run(cmd)
	const denied = 5
	if status != 0 && status != denied {
		status = unknownStatus
	}
	return w.note("member/"+name, there, call, status, said)
}

// run writes until the context ends. Each write is by another coordinator.
func (w *writer) run(ctx context.Context) {
	for ctx.Err() == nil {
		w.n++
		at := w.f.coords[w.r.IntN(len(w.f.coords))]
		// A command under way runs to its end: one that is cut off is one of unknown outcome.
		w.one(context.WithoutCancel(ctx), at)
		select {
		case <-time.After(time.Duration(100+w.r.IntN(500)) * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

func (w *writer) one(ctx context.Context, at *process) {
	switch d := w.r.IntN(10); {
	case d < 3:
		name := fmt.Sprintf("%s-%d", w.name, w.n)
		token, ok := w.token(ctx, at, name)
		if ok && w.join(ctx, &machine{dir: w.f.dir}, token, filepath.Join(w.f.dir, "joined", name), name) {
			w.joined = append(w.joined, name)
		}
	case d < 5 && (len(w.joined) > 1 || len(w.joined) > 0 && w.f.banLast.Load()):
		name := w.joined[0]
		if _, ok := w.write(ctx, at, "ban/"+name, there, "member", "ban", "data/"+name, "--reason", "chaos", "--yes"); ok {
			w.joined, w.banned = w.joined[1:], append(w.banned, name)
		}
	case d < 6 && len(w.banned) > 4:
		name := w.banned[0]
		if _, ok := w.write(ctx, at, "ban/"+name, "", "member", "unban", "data/"+name); ok {
			w.banned = w.banned[1:]
		}
	case d < 8:
		w.config(ctx, at)
	case w.name == "w1": // two at once would refuse one another, most of the time
		w.set(ctx, at)
	}
}

func (w *writer) config(ctx context.Context, at *process) {
	name, value := fmt.Sprintf("q-%d", w.r.IntN(8)), fmt.Sprint(values.Add(1))
	file := filepath.Join(w.f.dir, w.name+".yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, "kind: qos\nname: %s\nmin_kbps: %s\n", name, value), 0o600); err != nil {
		panic(err) // there is nothing to go on with
	}
	w.write(ctx, at, "config/"+name, value, "config", "put", "-f", file)
}

// set sets a manifest in which only a number is another.
func (w *writer) set(ctx context.Context, at *process) {
	if !w.f.setting.TryLock() {
		return
	}
	defer w.f.setting.Unlock()
	w.setNow(ctx, at)
}

// setNow is set by whoever holds the turn.
func (w *writer) setNow(ctx context.Context, at *process) (acknowledged bool) {
	text, status, _ := w.f.ask(ctx, "manifest", "get", "--socket", w.f.socket(at), "--timeout", "6s")
	if status != 0 {
		return false
	}
	value := fmt.Sprint(1000 + values.Add(1))
	file := filepath.Join(w.f.dir, "set.yaml")
	if err := os.WriteFile(file, []byte(graceLine.ReplaceAllString(text, "rejoin_grace: "+value+"m")), 0o600); err != nil {
		panic(err) // there is nothing to go on with
	}
	call := time.Now()
	_, status, said := w.f.ask(ctx, "manifest", "set", file, "--sign-with", filepath.Join(w.f.dir, "alice.key"), "--reason", "set/"+value,
		"--socket", w.f.socket(at), "--timeout", "6s")
	said = at.m.name + ": " + said
	w.note("set/"+value, there, call, status, said)
	w.note("manifest", value, call, status, said)
	return status == 0
}
