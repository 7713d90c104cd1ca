// Package peer keeps what each coordinator publishes about itself in the store, and decides which
// of the others are missing.
//
// A [Record] has a coordinator's addresses, its phase, its head and the state of its keepers. It is
// signed by the enrolment key that it names, and is a hint all the same: see [Record].
//
// [PresenceWatch] decides which of the other coordinators are missed: those that should be there
// and that this one does not hear. It counts what this process heard itself, on a clock that only
// goes forward: what a coordinator wrote about itself, and when by which clock, proves nothing
// here.
package peer

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

	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority/decide"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/store"
)

// Prefix is where each coordinator says what it is and where it is reached.
const Prefix = "replica/"

// Bounds of what is read of a coordinator.
const (
	MaxBytes = 8<<10 + 2*proof.MaxEvidenceBytes // of one record: with certificates, in base64
	MaxAddrs = 8                                // of one coordinator
	// MaxKeepers are told of, so that a record stays small.
	MaxKeepers = 16
	// maxAddrBytes is a host name of the longest with its port.
	maxAddrBytes = 260
	// Max bounds the coordinators that are told of. A manifest that admits
	// more is served by all of them; the first by name are found by their records.
	Max = 64
)

// Record is what a coordinator says of itself. It is a hint and no more: whoever
// can write the store can put an older one back, so it decides nothing but whom to
// dial, what people are shown, and which fields a manifest may have yet. It is no secret either.
type Record struct {
	// Name is that of its entry in the manifest; as read by [Directory] it is what the
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
	Keepers []KeeperView `json:"keepers,omitempty"`
	// Seen is the newest revision that it saw of a store which lost some.
	Seen store.Revision `json:"seen,omitempty"`
	// Stopped says that it was stopped in order: nobody misses it.
	Stopped bool `json:"stopped,omitempty"`
	// Reads are the later fields of manifests that it reads (manifest.LaterFields), and other
	// forms of later releases, by name. A release before this says nothing, and reads none of them.
	Reads []string `json:"reads,omitempty"`

	Version store.Revision    `json:"-"` // of the record, as it was read
	shown   proof.Coordinator // what the record shows; set by Open
}

// EntryIn returns the entry of m that admits who signed the record, with a certificate
// that was in date when the record was made: one that says nothing any more is not
// forgotten for that. A record that is dated back says of itself that it is old.
func (r *Record) EntryIn(m *manifest.Manifest, now time.Time) (manifest.Match, bool) {
	at := r.At
	if at.After(now) {
		at = now
	}
	found, err := r.shown.Match(m, at)
	return found, err == nil
}

// Signed is how a record stands in the store: the exact bytes of a replica,
// and a signature by the key that it names.
type Signed struct {
	Record    json.RawMessage `json:"record"`
	Signature []byte          `json:"signature"`
	// X509 is what the certificate's key signs of the same, for one that has any; a
	// release before this leaves it alone.
	X509 []byte `json:"x509,omitempty"`
}

// Key is the key of the record of who holds an enrolment key.
func Key(key ed25519.PublicKey) (string, error) {
	id, err := identity.KeyOfPublic(key)
	if err != nil {
		return "", err
	}
	return Prefix + id.String(), nil
}

// Open reads a record: it is signed by the key that it names, and stands
// under that key. Nothing else of it is believed.
func Open(e store.Entry) (Record, error) {
	var signed Signed
	var r Record
	if len(e.Value) > MaxBytes {
		return r, fmt.Errorf("it has %d bytes, at most %d are read", len(e.Value), MaxBytes)
	}
	if err := json.Unmarshal(e.Value, &signed); err != nil {
		return r, errors.New("it does not decode")
	}
	if err := json.Unmarshal(signed.Record, &r); err != nil {
		return Record{}, errors.New("it does not decode")
	}
	key, err := proof.ParseKeyClaim(r.Key)
	if err != nil {
		return Record{}, err
	}
	switch at, err := Key(key); {
	case err != nil:
		return Record{}, err
	case at != e.Key:
		return Record{}, errors.New("it stands under another key than the one that it names")
	case !proof.VerifyReplica(key, signed.Record, signed.Signature):
		return Record{}, errors.New("it is not signed by the key that it names")
	}
	r.shown, err = proof.ProvenCoordinator("key:"+r.Key, proof.ReplicaDigest(signed.Record), signed.X509)
	if err != nil {
		return Record{}, err
	}
	return r, r.check()
}

// Sign returns how r is written by who holds key. vouch signs a digest with the
// key of a certificate; what it returns is nil for a coordinator that has none.
func Sign(r Record, key ed25519.PrivateKey, vouch func([64]byte) ([]byte, error)) (store.Write, error) {
	record, err := json.Marshal(r)
	if err != nil {
		return store.Write{}, fmt.Errorf("encode the replica record: %w", err)
	}
	vouched, err := vouch(proof.ReplicaDigest(record))
	if err != nil {
		return store.Write{}, fmt.Errorf("vouch for the replica record: %w", err)
	}
	value, err := json.Marshal(Signed{record, proof.SignReplica(key, record), vouched})
	if err != nil {
		return store.Write{}, fmt.Errorf("encode the replica record: %w", err)
	}
	at, err := Key(key.Public().(ed25519.PublicKey))
	return store.Write{Key: at, Value: value}, err
}

// check refuses what nobody could dial or show.
func (r Record) check() error {
	if len(r.Addresses) > MaxAddrs {
		return fmt.Errorf("it has %d addresses, at most %d are read", len(r.Addresses), MaxAddrs)
	}
	for _, a := range r.Addresses {
		host, port, err := net.SplitHostPort(a)
		unprintable := func(c rune) bool { return c <= ' ' || c > '~' }
		if err != nil || host == "" || port == "" || len(a) > maxAddrBytes || strings.ContainsFunc(a, unprintable) {
			return errors.New("it has an address that is not host:port")
		}
	}
	if !slices.Contains([]string{decide.Ready.String(), decide.Recovery.String()},
		r.Phase) || len(r.Release) > ratelimit.MaxShownBytes {
		return errors.New("it has a field that is not acceptable")
	}
	return checkKeeperViews(r.Keepers)
}

// A Directory reads what coordinators say of themselves.
type Directory struct {
	Store    store.Store
	Failures *ratelimit.LogSampler // of records that are left alone
	Log      *slog.Logger
	Now      func() time.Time
}

// Newest returns what the coordinators that m admits say of themselves, sorted by
// name. Each record is by the holder of its key; see [Record] for what that is
// worth. Of too many it leaves out those that said nothing for longest: the records of the
// dead stay until somebody forgets them, and must not take the places of the living.
func (d *Directory) Newest(ctx context.Context, m *manifest.Manifest) ([]Record, error) {
	all, err := d.All(ctx, m)
	return newest(all), err
}

// newest returns at most Max of all, sorted as they are: those that did
// not stop before those that did, and of these the ones that the store took last. It is
// not the time in the record that counts, which is by a clock of its own.
func newest(all []Record) []Record {
	if len(all) <= Max {
		return all
	}
	byWord := slices.Clone(all)
	slices.SortStableFunc(byWord, func(a, b Record) int {
		switch {
		case a.Stopped == b.Stopped:
			return cmp.Compare(b.Version, a.Version)
		case b.Stopped:
			return -1
		}
		return 1
	})
	left := make(map[string]bool, Max)
	for _, r := range byWord[:Max] {
		left[r.Key] = true
	}
	return slices.DeleteFunc(slices.Clone(all), func(r Record) bool { return !left[r.Key] })
}

// All is Newest without a bound.
func (d *Directory) All(ctx context.Context, m *manifest.Manifest) ([]Record, error) {
	l, err := d.Store.List(ctx, Prefix)
	if err != nil {
		return nil, err
	}
	var out []Record
	for _, e := range l.Entries {
		r, err := Open(e)
		if err != nil {
			d.Failures.Log(ctx, d.Log, slog.LevelWarn, "a replica record is left alone", slog.String("record", e.Key),
				slog.Any("err", err))
			continue
		}
		found, ok := r.EntryIn(m, d.Now())
		if !ok {
			continue // one that was dismissed, or is not admitted yet
		}
		r.Name, r.Version = found.Name, e.Version
		out = append(out, r)
	}
	slices.SortStableFunc(out, func(a, b Record) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Key, b.Key))
	})
	return out, nil
}

// SeenIn returns the newest revision that a coordinator which m admits says that it saw
// of a store, in the record that it signed; 0 if none says so.
func SeenIn(ctx context.Context, st store.Store, m *manifest.Manifest) (store.Revision, error) {
	l, err := st.List(ctx, Prefix)
	if err != nil {
		return 0, err
	}
	var newest store.Revision
	for _, e := range l.Entries {
		r, err := Open(e)
		if err != nil {
			continue
		}
		if _, ok := r.EntryIn(m, time.Now()); ok {
			newest = max(newest, r.Seen)
		}
	}
	return newest, nil
}

// KeeperView is what a keeper is worth on one machine, as its coordinator says.
type KeeperView struct {
	Name string `json:"name"`
	// KeyID names the copy that opens or, if none does, the key that is there; empty: no
	// key that can be used.
	KeyID keyring.KeyID `json:"key_id,omitempty"`
	Opens bool          `json:"opens"` // it opens the seed in force
}

// checkKeeperViews refuses what nobody could show.
func checkKeeperViews(views []KeeperView) error {
	if len(views) > MaxKeepers {
		return fmt.Errorf("it has %d keepers, at most %d are read", len(views), MaxKeepers)
	}
	for _, v := range views {
		if !manifest.IsName(v.Name) || v.KeyID != "" && !v.KeyID.Valid() || v.Opens && v.KeyID == "" {
			return errors.New("it has a keeper that is not acceptable")
		}
	}
	return nil
}

// Pause is how long there is between two records of one coordinator, if nothing changes.
const Pause = time.Minute

// SilentAfter is how long a member or a coordinator may be silent before it is worth a look. A
// connected one is never silent: its stream would have ended.
const SilentAfter = 2 * time.Minute

// Message is r for who asks the coordinator whose enrolment key is own.
func (r *Record) Message(own string) *fealtyv1.Replica {
	msg := &fealtyv1.Replica{
		Name: r.Name, EnrolmentKey: r.Key, Addresses: r.Addresses, Phase: r.Phase, HistoryIndex: r.Index,
		StartedAt: timestamppb.New(r.StartedAt), HeardAt: timestamppb.New(r.At), Release: r.Release,
		Self: r.Key == own, Stopped: r.Stopped,
	}
	if !r.Head.IsZero() {
		msg.Head = bytes.Clone(r.Head[:])
	}
	for _, k := range r.Keepers {
		msg.Keepers = append(msg.Keepers, &fealtyv1.ReplicaKeeper{Name: k.Name, KeyId: string(k.KeyID), Opens: k.Opens})
	}
	return msg
}
