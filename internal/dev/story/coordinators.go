package story

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/dev/cluster"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/snapshot"
)

// leaderKey is where the store says who leads: every write of a leader is conditional
// on it, and its version is the term.
const leaderKey = "leader/term"

func leaderKilled(ctx context.Context, c *cluster.Cluster) (string, error) {
	old, term, err := c.Leader(ctx)
	if err != nil {
		return "", err
	}
	if err := c.KillCoordinator(old); err != nil {
		return "", err
	}
	began := time.Now()
	next, nextTerm, err := c.Leader(ctx)
	if err != nil {
		return "", err
	}
	took := time.Since(began)
	if next == old || nextTerm <= term {
		return "", fmt.Errorf("%s leads under term %d, after %s under term %d", next, nextTerm, old, term)
	}
	// It leads: what only a leader writes is written.
	if err := c.PutConfig(ctx, routeText(103)); err != nil {
		return "", err
	}
	if err := awaitContent(ctx, c, snapshot.ScopeRoutePolicy, `"priority":103`, "node-a", "node-b"); err != nil {
		return "", err
	}
	wrote := time.Since(began)
	if err := c.StartCoordinator(ctx, old); err != nil {
		return "", err
	}
	if err := c.AwaitReady(ctx); err != nil {
		return "", err
	}
	// On a busy machine a lease may run out at any time: then somebody leads in a later term.
	again, now, err := c.Leader(ctx)
	if err != nil || now < nextTerm || now == nextTerm && again != next {
		return "", fmt.Errorf("after %s came back %s leads under term %d (%w)", old, again, now, err)
	}
	then := old + " came back and follows"
	if now != nextTerm {
		then = fmt.Sprintf("%s came back, and %s leads in term %d", old, again, now)
	}
	return fmt.Sprintf("%s was killed in term %d; %s leads in term %d after %d ms, and the nodes use what it published after %d ms; %s",
		old, term, next, nextTerm, took.Milliseconds(), wrote.Milliseconds(), then), nil
}

func lateWrite(ctx context.Context, c *cluster.Cluster) (string, error) {
	old, term, err := c.Leader(ctx)
	if err != nil {
		return "", err
	}
	// The leader's next publication is held back on its way to the store.
	c.Means().Note("", "a commit held back in process, and handed to the store later")
	held, err := c.HoldCommit(old, func(tx store.Tx) bool {
		return slices.ContainsFunc(tx.Put, func(p store.Write) bool { return strings.HasPrefix(p.Key, "publication/") }) &&
			slices.ContainsFunc(tx.If, func(i store.Condition) bool { return i.Key == leaderKey })
	})
	if err != nil {
		return "", err
	}
	if err := c.PutConfig(ctx, routeText(104)); err != nil {
		return "", err
	}
	var late store.Tx
	waiting, cancel := context.WithTimeout(ctx, cluster.AwaitLimit)
	defer cancel()
	select {
	case late = <-held:
	case <-waiting.Done():
		return "", fmt.Errorf("%s publishes nothing: %w", old, waiting.Err())
	}
	if err := c.KillCoordinator(old); err != nil {
		return "", err
	}
	next, nextTerm, err := c.Leader(ctx)
	if err != nil {
		return "", err
	}
	// The change is published: by the successor.
	if err := awaitContent(ctx, c, snapshot.ScopeRoutePolicy, `"priority":104`, "node-a", "node-b"); err != nil {
		return "", err
	}
	before, err := c.Store().List(ctx, "publication/")
	if err != nil {
		return "", err
	}
	// Now what was held back arrives: as it was sent, and as one that depends on nothing
	// but that its sender leads.
	alone := late
	alone.ID, alone.If = "", slices.DeleteFunc(slices.Clone(late.If), func(i store.Condition) bool { return i.Key != leaderKey })
	for _, tx := range []store.Tx{late, alone} {
		_, err := c.Store().Commit(ctx, tx)
		conflict, ok := errors.AsType[*store.ConflictError](err)
		if !ok {
			return "", fmt.Errorf("the write of %s, which led in term %d, arrived in term %d: %v", old, term, nextTerm, err)
		}
		if len(tx.If) == 1 && (conflict.Key != leaderKey || uint64(conflict.Want) != term) {
			return "", fmt.Errorf("it failed for %s at %d", conflict.Key, conflict.Want)
		}
	}
	// The successor may have published more meanwhile; nothing became what the late one wrote.
	after, err := c.Store().List(ctx, "publication/")
	if err != nil {
		return "", err
	}
	for _, w := range late.Put {
		is := func(e store.Entry) bool { return e.Key == w.Key && bytes.Equal(e.Value, w.Value) }
		if slices.ContainsFunc(after.Entries, is) && !slices.ContainsFunc(before.Entries, is) {
			return "", fmt.Errorf("%s is what the late one wrote", w.Key)
		}
	}
	if err := c.StartCoordinator(ctx, old); err != nil {
		return "", err
	}
	if err := c.AwaitReady(ctx); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s was killed with a write under way; %s leads in term %d, and published it; the late one fails in the store: %s is not at %d any more", old, next, nextTerm, leaderKey, term), nil
}

func peerRecovery(ctx context.Context, c *cluster.Cluster) (string, error) {
	names := c.CoordinatorNames()
	name := names[len(names)-1]
	before, err := c.StatusOf(ctx, name)
	if err != nil {
		return "", err
	}
	if err := c.KillCoordinator(name); err != nil {
		return "", err
	}
	// Nothing is left of it but the key that the manifest admits, and the keeper is out
	// of its reach.
	if err := emptyReplica(c, name); err != nil {
		return "", err
	}
	keeper := c.KeeperFile()
	c.Means().Note("", "the keeper's file moved away")
	if err := os.Rename(keeper, keeper+".away"); err != nil {
		return "", err
	}
	last, err := c.Store().List(ctx, "audit/")
	if err != nil {
		return "", err
	}
	began := time.Now()
	err = c.StartCoordinator(ctx, name)
	if err == nil {
		err = c.AwaitReady(ctx, name)
	}
	took := time.Since(began)
	if err := errors.Join(err, os.Rename(keeper+".away", keeper)); err != nil {
		return "", err
	}
	after, err := c.StatusOf(ctx, name)
	if err != nil {
		return "", err
	}
	if !bytes.Equal(before.GetHead(), after.GetHead()) || !bytes.Equal(before.GetMeshCaKey(), after.GetMeshCaKey()) || before.GetAuthorityEpoch() != after.GetAuthorityEpoch() {
		return "", fmt.Errorf("the head or the mesh CA key is another one: epoch %d, was %d", after.GetAuthorityEpoch(), before.GetAuthorityEpoch())
	}
	// The giver wrote that down before it gave, and the taker after.
	id := "spiffe://" + c.ID() + "/coordinator/" + name
	var given, received *auditEntry
	err = c.Await(ctx, "the hand-over to be in the audit log", func(ctx context.Context) (bool, error) {
		l, err := c.Store().List(ctx, "audit/")
		if err != nil {
			return false, err
		}
		for _, e := range l.Entries {
			if e.Version <= last.Revision {
				continue
			}
			var entry auditEntry
			if err := json.Unmarshal(e.Value, &entry); err != nil {
				return false, err
			}
			switch {
			case entry.Action == "seed.given" && entry.Fields["to"] == name:
				given = &entry
			case entry.Action == "seed.received" && entry.Fields["via"] == "peer" && entry.Actor == id:
				received = &entry
			}
		}
		return given != nil && received != nil, fmt.Errorf("given: %v, received: %v", given, received)
	})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s lost all but its enrolment key, and is ready again after %d ms: %s gave it the seed and the mesh CA key of the head, epoch %d as before; the audit log says so twice",
		name, took.Milliseconds(), received.Fields["from"], after.GetAuthorityEpoch()), nil
}

// auditEntry is what the store holds of one.
type auditEntry struct {
	Actor  string            `json:"actor"`
	Action string            `json:"action"`
	Fields map[string]string `json:"fields"`
}

// emptyReplica removes everything from the folder of a coordinator that does not run,
// but its enrolment key and its address.
func emptyReplica(c *cluster.Cluster, name string) error {
	folder := c.CoordinatorDir(name)
	l, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	c.Means().Note(name, "emptied of its files but its key")
	for _, e := range l {
		if e.Name() == "enrolment.key" || e.Name() == cluster.AddressFile {
			continue
		}
		if err := os.RemoveAll(filepath.Join(folder, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// meshWatch notes which mesh CA stands behind what coordinators and members present.
type meshWatch struct {
	keys  map[string]map[identity.KeyID]bool // by the name of the mesh CA, which holds its epoch
	looks int
}

// look connects to every coordinator that runs as a stranger would, and asks every
// member for the certificate that it presents.
func (w *meshWatch) look(ctx context.Context, c *cluster.Cluster, members []string) error {
	w.looks++
	for _, name := range c.RunningCoordinators() {
		addr, err := c.AddressOf(name)
		if err != nil {
			return err
		}
		d := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}}}
		conn, err := d.DialContext(ctx, "tcp", addr)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		w.note(conn.(*tls.Conn).ConnectionState().PeerCertificates)
		conn.Close()
	}
	for _, name := range members {
		m, err := c.Material(ctx, name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		w.note(m.Chain())
	}
	return nil
}

// note takes a chain of leaf, mesh CA and root; a coordinator that is not ready has none.
func (w *meshWatch) note(chain []*x509.Certificate) {
	if len(chain) < 2 {
		return
	}
	name := chain[1].Subject.CommonName
	if w.keys[name] == nil {
		w.keys[name] = make(map[identity.KeyID]bool)
	}
	w.keys[name][identity.KeyOf(chain[1])] = true
}

func meshEpoch(ctx context.Context, c *cluster.Cluster) (string, error) {
	members := []string{"node-a", "node-b", "node-c"}
	before, err := c.Status(ctx)
	if err != nil {
		return "", err
	}
	w := &meshWatch{keys: make(map[string]map[identity.KeyID]bool)}
	watched, watch := make(chan error, 1), make(chan struct{})
	go func() { // ends when watch is closed, and is waited for
		for {
			asked := time.Now()
			if err := w.look(ctx, c, members); err != nil {
				watched <- err
				return
			}
			select {
			case <-time.After(max(50*time.Millisecond, cluster.UntilNext(asked))):
			case <-watch:
				watched <- nil
				return
			}
		}
	}()
	// The second set is of the very same manifest.
	err = setTrustMesh(ctx, c)
	if err == nil {
		err = setTrustMesh(ctx, c)
	}
	var now *fealtyv1.GetStatusResponse
	if err == nil {
		err = c.AwaitReady(ctx)
	}
	if err == nil {
		now, err = c.Status(ctx)
	}
	if err == nil {
		err = c.Await(ctx, "every coordinator and member to present the newest mesh CA", func(ctx context.Context) (bool, error) {
			for _, name := range c.CoordinatorNames() {
				st, err := c.StatusOf(ctx, name)
				if err != nil || st.GetPhase() != "ready" || !bytes.Equal(st.GetMeshCaKey(), now.GetMeshCaKey()) || st.GetAuthorityEpoch() != now.GetAuthorityEpoch() {
					return false, fmt.Errorf("%s is %s at epoch %d with mesh CA %x (%w)", name, st.GetPhase(), st.GetAuthorityEpoch(), st.GetMeshCaKey(), err)
				}
			}
			for _, name := range members {
				m, err := c.Material(ctx, name)
				if err != nil {
					return false, err
				}
				if chain := m.Chain(); len(chain) < 2 || identity.KeyOf(chain[1]) != identity.KeyID(now.GetMeshCaKey()) {
					return false, fmt.Errorf("%s was not renewed yet", name)
				}
			}
			return true, nil
		})
	}
	close(watch)
	if err := errors.Join(err, <-watched); err != nil {
		return "", err
	}
	if now.GetAuthorityEpoch() != before.GetAuthorityEpoch()+2 {
		return "", fmt.Errorf("epoch %d, after %d and two sets", now.GetAuthorityEpoch(), before.GetAuthorityEpoch())
	}
	for name, keys := range w.keys {
		if len(keys) != 1 {
			return "", fmt.Errorf("%d keys were presented as %s", len(keys), name)
		}
	}
	if len(w.keys) < 2 {
		return "", fmt.Errorf("%d mesh CAs were seen in all: nothing was compared", len(w.keys))
	}
	if err := c.AwaitConnected(ctx, members...); err != nil {
		return "", err
	}
	return fmt.Sprintf("two sets, the second of the same manifest: epochs %d to %d; in %d looks at three coordinators and three members one key each stood behind %d mesh CAs; members renewed by themselves",
		before.GetAuthorityEpoch(), now.GetAuthorityEpoch(), w.looks, len(w.keys)), nil
}

// setTrustMesh sets the manifest as it is, with a new mesh CA key at every set.
func setTrustMesh(ctx context.Context, c *cluster.Cluster) error {
	text, err := c.Manifest()
	if err != nil {
		return err
	}
	if trust := []byte("\ntrust: mesh\n"); !bytes.Contains(text, trust) {
		text = append(text, trust...)
	}
	return c.SetManifest(ctx, text, "a new mesh CA key for every manifest")
}

func restart(ctx context.Context, c *cluster.Cluster) (string, error) {
	before, err := c.Status(ctx)
	if err != nil {
		return "", err
	}
	if err := c.StopCoordinators(); err != nil {
		return "", err
	}
	if err := c.StartCoordinators(ctx); err != nil {
		return "", err
	}
	if err := c.AwaitReady(ctx); err != nil {
		return "", err
	}
	after, err := c.Status(ctx)
	if err != nil {
		return "", err
	}
	switch {
	case after.GetPhase() != "ready":
		return "", fmt.Errorf("the coordinator is %s: %s", after.GetPhase(), after.GetPhaseReason())
	case after.GetClusterId() != before.GetClusterId() || !bytes.Equal(after.GetRootPin(), before.GetRootPin()):
		return "", fmt.Errorf("it is another cluster: %s", after.GetClusterId())
	case after.GetAuthorityEpoch() != before.GetAuthorityEpoch() || !bytes.Equal(after.GetHead(), before.GetHead()):
		return "", fmt.Errorf("the epoch moved from %d to %d", before.GetAuthorityEpoch(), after.GetAuthorityEpoch())
	case len(after.GetMembers()) != len(before.GetMembers()):
		return "", fmt.Errorf("%d members, before %d", len(after.GetMembers()), len(before.GetMembers()))
	}
	if err := c.AwaitConnected(ctx, "node-a", "node-b", "node-c"); err != nil {
		return "", err
	}
	return fmt.Sprintf("cluster %s, epoch %d, same root and head; three members are back", after.GetClusterId(), after.GetAuthorityEpoch()), nil
}
