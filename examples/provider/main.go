// Command provider is a provider whose machines are entries of a file. Where it only notes that
// something was done, a real one calls a cloud. Try it with go run ./examples/provider -dir DIR.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"maps"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"github.com/fealty-io/fealty/fence/durable"
	"github.com/fealty-io/fealty/provider"
)

// after is where a machine gets to from the states that it is only on the way through.
var after = map[provider.State]provider.State{provider.Creating: provider.Idle, provider.Draining: provider.Idle,
	provider.Configuring: provider.Configured, provider.Deleting: provider.Speculative}

type order = provider.Order

// shelf keeps machines in a file. It implements provider.Machines.
type shelf struct {
	file     string
	work     sync.WaitGroup
	mu       sync.Mutex
	machines map[string]provider.Machine // guarded by mu
}

// open reads the file, if there is one, and finishes what was under way when the program ended.
func open(file string) (*shelf, error) {
	s := &shelf{file: file, machines: make(map[string]provider.Machine)}
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		for _, id := range []string{"small-1", "small-2", "small-3", "small-4"} {
			s.machines[id] = provider.Machine{ID: id, Profile: "small", State: provider.Speculative, PricePerHour: 0.05}
		}
	} else if err = errors.Join(err, json.Unmarshal(text, &s.machines)); err != nil {
		return nil, fmt.Errorf("read %s, which is left as it is: %w", file, err)
	}
	for id := range s.machines {
		s.finish(id)
	}
	return s, nil
}

func (s *shelf) Get(_ context.Context, id string) (provider.Machine, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, ok := s.machines[id]
	if !ok {
		return m, fmt.Errorf("machine %q is not on this shelf: %w", id, provider.ErrNotFound)
	}
	return m, nil
}

func (s *shelf) List(context.Context) ([]provider.Machine, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.machines)), nil
}

func (s *shelf) Create(_ context.Context, o order) error    { return s.do(o, provider.Creating) }
func (s *shelf) Configure(_ context.Context, o order) error { return s.do(o, provider.Configuring) }
func (s *shelf) Drain(_ context.Context, o order) error     { return s.do(o, provider.Draining) }
func (s *shelf) Delete(_ context.Context, o order) error    { return s.do(o, provider.Deleting) }

// do keeps what an order asks for, and has it done in the background.
func (s *shelf) do(o order, through provider.State) error {
	err := s.change(o.Machine, func(m *provider.Machine) {
		m.State, m.Operation = through, o.Operation
		m.Tenant, m.Priority = cmp.Or(o.Tenant, m.Tenant), cmp.Or(o.Priority, m.Priority)
	})
	if err == nil {
		s.work.Go(func() { s.finish(o.Machine) }) // here it would be done
	}
	return err
}

func (s *shelf) finish(id string) {
	if err := s.change(id, func(m *provider.Machine) {
		if m.State = cmp.Or(after[m.State], m.State); m.State != provider.Configured {
			m.Tenant, m.Priority = "", 0
		}
	}); err != nil {
		log.Printf("machine %s stays where it is until the next start: %v", id, err)
	}
}

// change changes a machine once the file has it. An error leaves it as it was.
func (s *shelf) change(id string, f func(*provider.Machine)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := maps.Clone(s.machines)
	m := next[id]
	f(&m)
	next[id] = m
	text, _ := json.Marshal(next) // never fails: strings and numbers. Where power cuts count, sync the file.
	if err := os.WriteFile(s.file+".new", text, 0o600); err != nil {
		return fmt.Errorf("%w: %w", provider.ErrUnavailable, err)
	} else if err = os.Rename(s.file+".new", s.file); err != nil {
		return fmt.Errorf("%w: %w", provider.ErrUnavailable, err)
	}
	s.machines = next
	return nil
}

func run(ctx context.Context, dir string, l net.Listener) error {
	file, begin := filepath.Join(dir, "machines.json"), durable.OpenLedger
	if _, err := os.Stat(file); errors.Is(err, os.ErrNotExist) {
		begin = durable.EnrolLedger // there never were machines, and so no marks
	}
	marks, err := begin(dir, durable.LedgerOptions{BelieveEpochs: true})
	if err != nil {
		return err
	}
	defer marks.Close()
	s, err := open(file)
	if err != nil {
		return err
	}
	defer s.work.Wait()
	log.Printf("serving on %s", l.Addr()) // in production: with a Source, of a certificate, and not Insecure
	return provider.Serve(ctx, l, provider.Config{Machines: s, Marks: marks, Insecure: true})
}

func main() {
	dir, listen := flag.String("dir", ".", "an existing folder"), flag.String("listen", "127.0.0.1:7460", "host:port")
	flag.Parse()
	ctx, _ := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	l, err := net.Listen("tcp", *listen)
	if err == nil {
		err = run(ctx, *dir, l)
	}
	if err != nil {
		log.Fatal(err)
	}
}
