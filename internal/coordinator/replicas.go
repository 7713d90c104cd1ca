package coordinator

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/flowcontrol"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/watch"
	"github.com/fealty-io/fealty/manifest"
)

// replicaPrefix is where each coordinator says what it is and where it is reached.
const replicaPrefix = "replica/"

// Bounds and times of replica records.
const (
	replicaPause     = time.Minute                      // between two records of one coordinator, if nothing changes
	replicaRetention = 7 * 24 * time.Hour               // after the last one, of a coordinator that stopped
	leaveTime        = 2 * time.Second                  // to say that it stops
	maxReplicaBytes  = 8<<10 + 2*proof.MaxEvidenceBytes // with certificates, in base64
	maxReplicaAddrs  = 8
	// maxReplicaAddrBytes is a host name of the longest with its port.
	maxReplicaAddrBytes = 260
	// maxReplicas bounds the coordinators that are told of. A manifest that admits
	// more is served by all of them; the first by name are found by their records.
	maxReplicas = 64
)

// replica is what a coordinator says of itself. It is a hint and no more: whoever
// can write the store can put an older one back, so it decides nothing but whom to
// dial, what people are shown, and which fields a manifest may have yet. It is no secret either.
type replica struct {
	// Name is that of its entry in the manifest; as read by replicas it is what the
	// manifest says.
	Name      string       `json:"name,omitempty"`
	Key       string       `json:"key"` // its enrolment key, "ed25519:<base64>"
	Addresses []string     `json:"addresses"`
	Phase     string       `json:"phase"`
	Index     uint64       `json:"index,omitempty"` // of the head that it is ready at
	Head      history.Hash `json:"head,omitzero"`
	StartedAt time.Time    `json:"started_at"`
	At        time.Time    `json:"at"` // by its own clock
	Release   string       `json:"release,omitempty"`
	// Keepers says what the keepers of its machine are worth to it. A release before
	// this says nothing, and leaves it alone when it reads.
	Keepers []keeperView `json:"keepers,omitempty"`
	// Seen is the newest revision that it saw of a store which lost some.
	Seen store.Revision `json:"seen,omitempty"`
	// Stopped says that it was stopped in order: nobody misses it.
	Stopped bool `json:"stopped,omitempty"`
	// Reads are the later fields of manifests that it reads (manifest.LaterFields). A
	// release before this says nothing, and reads none of them.
	Reads []string `json:"reads,omitempty"`

	version store.Revision    // of the record, as it was read
	shown   proof.Coordinator // what the record shows; set by openReplica
}

// entryIn returns the entry of m that admits who signed the record, with a certificate
// that was in date when the record was made: one that says nothing any more is not
// forgotten for that. A record that is dated back says of itself that it is old.
func (r *replica) entryIn(m *manifest.Manifest, now time.Time) (manifest.Match, bool) {
	at := r.At
	if at.After(now) {
		at = now
	}
	found, err := r.shown.Match(m, at)
	return found, err == nil
}

// signedReplica is how a record stands in the store: the exact bytes of a replica,
// and a signature by the key that it names.
type signedReplica struct {
	Record    json.RawMessage `json:"record"`
	Signature []byte          `json:"signature"`
	// X509 is what the certificate's key signs of the same, for one that has any; a
	// release before this leaves it alone.
	X509 []byte `json:"x509,omitempty"`
}

// replicaKey is the key of the record of who holds an enrolment key.
func replicaKey(key ed25519.PublicKey) (string, error) {
	id, err := identity.KeyOfPublic(key)
	if err != nil {
		return "", err
	}
	return replicaPrefix + id.String(), nil
}

// openReplica reads a record: it is signed by the key that it names, and stands
// under that key. Nothing else of it is believed.
func openReplica(e store.Entry) (replica, error) {
	var signed signedReplica
	var r replica
	if len(e.Value) > maxReplicaBytes {
		return r, fmt.Errorf("it has %d bytes, at most %d are read", len(e.Value), maxReplicaBytes)
	}
	if err := json.Unmarshal(e.Value, &signed); err != nil {
		return r, errors.New("it does not decode")
	}
	if err := json.Unmarshal(signed.Record, &r); err != nil {
		return replica{}, errors.New("it does not decode")
	}
	key, err := proof.ParseKeyClaim(r.Key)
	if err != nil {
		return replica{}, err
	}
	switch at, err := replicaKey(key); {
	case err != nil:
		return replica{}, err
	case at != e.Key:
		return replica{}, errors.New("it stands under another key than the one that it names")
	case !proof.VerifyReplica(key, signed.Record, signed.Signature):
		return replica{}, errors.New("it is not signed by the key that it names")
	}
	if r.shown, err = proof.ProvenCoordinator("key:"+r.Key, proof.ReplicaDigest(signed.Record), signed.X509); err != nil {
		return replica{}, err
	}
	return r, r.check()
}

// check refuses what nobody could dial or show.
func (r replica) check() error {
	if len(r.Addresses) > maxReplicaAddrs {
		return fmt.Errorf("it has %d addresses, at most %d are read", len(r.Addresses), maxReplicaAddrs)
	}
	for _, a := range r.Addresses {
		host, port, err := net.SplitHostPort(a)
		if err != nil || host == "" || port == "" || len(a) > maxReplicaAddrBytes || strings.ContainsFunc(a, func(c rune) bool { return c <= ' ' || c > '~' }) {
			return errors.New("it has an address that is not host:port")
		}
	}
	if !slices.Contains([]string{authority.Ready.String(), authority.Recovery.String()},
		r.Phase) || len(r.Release) > flowcontrol.MaxShownBytes {
		return errors.New("it has a field that is not acceptable")
	}
	return checkKeeperViews(r.Keepers)
}

// replicas returns what the coordinators that m admits say of themselves, sorted by
// name. Each record is by the holder of its key; see [replica] for what that is
// worth. Of too many it leaves out those that said nothing for longest: the records of the
// dead stay until somebody forgets them, and must not take the places of the living.
func (c *Head) replicas(ctx context.Context, m *manifest.Manifest) ([]replica, error) {
	all, err := c.allReplicas(ctx, m)
	return newestReplicas(all), err
}

// newestReplicas returns at most maxReplicas of all, sorted as they are: those that did
// not stop before those that did, and of these the ones that the store took last. It is
// not the time in the record that counts, which is by a clock of its own.
func newestReplicas(all []replica) []replica {
	if len(all) <= maxReplicas {
		return all
	}
	byWord := slices.Clone(all)
	slices.SortFunc(byWord, func(a, b replica) int {
		switch {
		case a.Stopped == b.Stopped:
			return cmp.Compare(b.version, a.version)
		case b.Stopped:
			return -1
		}
		return 1
	})
	left := make(map[string]bool, maxReplicas)
	for _, r := range byWord[:maxReplicas] {
		left[r.Key] = true
	}
	return slices.DeleteFunc(slices.Clone(all), func(r replica) bool { return !left[r.Key] })
}

// allReplicas is replicas without a bound.
func (c *Head) allReplicas(ctx context.Context, m *manifest.Manifest) ([]replica, error) {
	l, err := c.cfg.Store.List(ctx, replicaPrefix)
	if err != nil {
		return nil, err
	}
	var out []replica
	for _, e := range l.Entries {
		r, err := openReplica(e)
		if err != nil {
			c.cfg.Failures.Log(ctx, c.cfg.Log, slog.LevelWarn, "a replica record is left alone", slog.String("record", e.Key),
				slog.Any("err", err))
			continue
		}
		found, ok := r.entryIn(m, c.cfg.Now())
		if !ok {
			continue // one that was dismissed, or is not admitted yet
		}
		r.Name, r.version = found.Name, e.Version
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b replica) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Key, b.Key))
	})
	return out, nil
}

// SeenIn returns the newest revision that a coordinator which m admits says that it saw
// of a store, in the record that it signed; 0 if none says so.
func SeenIn(ctx context.Context, st store.Store, m *manifest.Manifest) (store.Revision, error) {
	l, err := st.List(ctx, replicaPrefix)
	if err != nil {
		return 0, err
	}
	var newest store.Revision
	for _, e := range l.Entries {
		r, err := openReplica(e)
		if err != nil {
			continue
		}
		if _, ok := r.entryIn(m, time.Now()); ok {
			newest = max(newest, r.Seen)
		}
	}
	return newest, nil
}

// followReplica writes this coordinator's record at once, when its state changes,
// and each minute, until ctx ends. If that is because stop did, it writes that it was
// stopped in order.
func (c *PeerRecovery) followReplica(ctx, stop context.Context) error {
	defer func() {
		if stop.Err() == nil {
			return // it fails, or starts again
		}
		leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTime)
		defer cancel()
		if err := c.announce(leaving, true); err != nil {
			c.cfg.Log.LogAttrs(leaving, slog.LevelWarn, "the others were not told that this coordinator stops: they will miss it", slog.Any("err", err))
		}
	}()
	for {
		changed, keepers := c.cfg.Head.Changed(), c.cfg.Authority.cfg.Keepers.keepersChanged.Wait()
		lost, certificate := c.cfg.StoreGuard.Changed(), c.cfg.Self.certificateChanged.Wait()
		if err := c.announce(ctx, false); err != nil {
			return err
		}
		if _, err := watch.Wait(ctx, replicaPause, changed, keepers, certificate, lost); err != nil {
			return err
		}
	}
}

// announce writes this coordinator's record. Without a manifest there is nothing to
// be a replica of, and nothing is written.
//
// It is conditional on no head: who is in recovery mode has none, and is who others
// look for.
func (c *PeerRecovery) announce(ctx context.Context, stopped bool) error {
	s := c.cfg.Head.State()
	if s.Phase == authority.Uninitialized {
		return nil
	}
	addrs := c.cfg.Addresses
	r := replica{
		Key: c.cfg.Self.enrolmentKey(), Addresses: addrs[:min(len(addrs), maxReplicaAddrs)], Phase: s.Phase.String(),
		StartedAt: c.cfg.StartedAt.UTC(), At: c.cfg.Now().UTC(), Release: flowcontrol.Clip(c.cfg.Release,
			flowcontrol.MaxShownBytes), Stopped: stopped,
		Reads: c.cfg.Authority.cfg.Reads,
	}
	if s.Phase == authority.Ready {
		r.Index, r.Head, r.Keepers = s.Head.Index, s.Head.Hash, c.cfg.Authority.cfg.Keepers.told(s)
	}
	if c.cfg.StoreGuard.Lost() != nil {
		r.Seen = store.Revision(min(c.cfg.StoreGuard.Revision(), uint64(store.MaxRevision)))
	}
	if last := s.Ready(); last != nil {
		if found, err := c.cfg.Self.admits(last.Manifest); err == nil {
			r.Name = found.Name
		}
	}
	record, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode the replica record: %w", err)
	}
	vouch, err := c.cfg.Self.vouch(proof.ReplicaDigest(record))
	if err != nil {
		return fmt.Errorf("vouch for the replica record: %w", err)
	}
	value, err := json.Marshal(signedReplica{record, proof.SignReplica(c.cfg.Self.Key(), record), vouch})
	if err != nil {
		return fmt.Errorf("encode the replica record: %w", err)
	}
	key, err := replicaKey(c.cfg.Self.Key().Public().(ed25519.PublicKey))
	if err != nil {
		return err
	}
	if err := c.cfg.Faults.Hit("replica.announce"); err != nil {
		return err
	}
	// Nobody else writes it but who prunes. Of two writes of our own, the later is the
	// later in the store too: there is one loop.
	if _, err := c.cfg.Store.Commit(ctx, store.Tx{ID: store.NewTxID(), Put: []store.Write{{Key: key, Value: value}}}); err != nil {
		return fmt.Errorf("write the replica record: %w", err)
	}
	return nil
}

// dropReplicas removes the records of coordinators that the manifest does not admit, or
// that were stopped a week ago. One that died is missed until somebody forgets it.
func (c *PeerRecovery) dropReplicas(ctx context.Context, s *authority.State, now time.Time) error {
	l, err := c.cfg.Store.List(ctx, replicaPrefix)
	if err != nil {
		return err
	}
	var over []store.Entry
	for _, e := range l.Entries {
		r, err := openReplica(e)
		if err == nil {
			_, ok := r.entryIn(s.Manifest, now)
			if ok && (!r.Stopped || now.Sub(r.At) <= replicaRetention) {
				continue
			}
		}
		over = append(over, e)
	}
	return c.cfg.Election.dropEntries(ctx, s, over)
}

// replicaMessages says what coordinators there are, as far as anybody can tell: in
// recovery mode by the manifest that the store claims, which is what a person who
// looks then wants to know. It is left out rather than fail the status.
func (c *PeerRecovery) replicaMessages(ctx context.Context, s *authority.State) []*fealtyv1.Replica {
	var m *manifest.Manifest
	if last := s.Ready(); last != nil {
		m = last.Manifest
	} else if _, _, claimed, err := c.cfg.Head.claimedHistory(ctx); err == nil {
		m = claimed
	} else {
		return nil
	}
	all, err := c.cfg.Head.replicas(ctx, m)
	if err != nil {
		c.cfg.Failures.Log(ctx, c.cfg.Log, slog.LevelWarn, "the replica records were not read", slog.Any("err", err))
		return nil
	}
	out := make([]*fealtyv1.Replica, 0, len(all))
	for _, r := range all {
		msg := c.replicaMessage(r)
		if silent, expected := c.cfg.Silence(r.Key); expected && s.Phase == authority.Ready {
			msg.UnheardFor = durationpb.New(silent)
		}
		out = append(out, msg)
	}
	return out
}

// replicaMessage is what r says of itself.
func (c *PeerRecovery) replicaMessage(r replica) *fealtyv1.Replica {
	msg := &fealtyv1.Replica{
		Name: r.Name, EnrolmentKey: r.Key, Addresses: r.Addresses, Phase: r.Phase, HistoryIndex: r.Index,
		StartedAt: timestamppb.New(r.StartedAt), HeardAt: timestamppb.New(r.At), Release: r.Release,
		Self: r.Key == c.cfg.Self.enrolmentKey(), Stopped: r.Stopped,
	}
	if !r.Head.IsZero() {
		msg.Head = bytes.Clone(r.Head[:])
	}
	for _, k := range r.Keepers {
		msg.Keepers = append(msg.Keepers, &fealtyv1.ReplicaKeeper{Name: k.Name, KeyId: string(k.KeyID), Opens: k.Opens})
	}
	return msg
}
