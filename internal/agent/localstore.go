package agent

import (
	"bytes"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/durable"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/snapshot"
)

// Names in the data directory; see the package documentation.
const (
	// SocketName is the file of the local API, unless it is put elsewhere.
	SocketName = "agent.sock"
	// SVIDName is the file with the node's key and certificates, in PEM.
	SVIDName = "identity/svid.pem"

	lockName     = "lock"
	nextName     = "identity/next.key"
	anchorName   = "identity/anchor.json"
	leftName     = "identity/left" // while a node that leaves removes its files
	journalName  = "identity/joined.json"
	marksAName   = "marks.a"
	marksBName   = "marks.b"
	refusalsName = "refusals.json"
	clockName    = "clock.json"
	behindName   = "behind.json"
	degradedName = "degraded.json"
	storeName    = "store.json"
	stateName    = "state.json"
)

// Limits on what is read back, in bytes.
const (
	maxSVIDBytes     = 64 << 10
	maxKeyBytes      = 8 << 10
	maxAnchorBytes   = 64 << 10
	maxMarksBytes    = 2 << 20
	maxRefusalsBytes = 64 << 10
	maxClockBytes    = 4 << 10
	maxBehindBytes   = 4 << 10
	maxStoreBytes    = 4 << 10
	maxStateBytes    = 256 << 10
	maxJournalBytes  = 32 << 20
)

// scopes are all that there are, in the order in which they are verified: the trust
// bundle first, for it has the keys of the others, then what says what the node is,
// and then its companions.
var scopes = [...]snapshot.Scope{
	snapshot.ScopeTrustBundle, snapshot.ScopeNodeBootstrap, snapshot.ScopeNodeRuntime,
	snapshot.ScopeDegradedModePolicy, snapshot.ScopePeerDirectory, snapshot.ScopeQoSPolicy, snapshot.ScopeRoutePolicy,
	snapshot.ScopeServiceAssignment, snapshot.ScopeStorageDirectory,
}

// foundations are the scopes that every node has, and by which the others are judged.
var foundations = scopes[:3]

func known(scope snapshot.Scope) bool { return slices.Contains(scopes[:], scope) }

// orderOf returns the place of a scope in the order of verification; what is unknown
// comes last.
func orderOf(scope string) int {
	if i := slices.Index(scopes[:], snapshot.Scope(scope)); i >= 0 {
		return i
	}
	return len(scopes)
}

// Places of a snapshot.
const (
	active   = "active"
	pending  = "pending"
	previous = "previous"
	refused  = "refused"
)

func snapshotName(scope snapshot.Scope, place string) string {
	return "snapshots/" + string(scope) + "." + place
}

// localStore is the data directory. Who calls its methods sees to it that no two
// write the same file at once.
type localStore struct {
	fs   durable.FS
	dir  string
	flag string // that names dir
	lock io.Closer

	next     string         // name of the file of the pending key
	pin      identity.KeyID // of the root that the marks are of
	sequence uint64         // of the marks that were written last
}

// openStore makes the directory if it is missing, and locks it. One that a newer
// release wrote is left alone: the error is NodeStateNewer.
func openStore(files durable.FS, dir string) (*localStore, error) {
	if dir == "" {
		return nil, explain.New(explain.BadValue, "name", "the data directory", "value", "blank", "want", "a folder of the agent's own")
	}
	s := &localStore{fs: files, dir: dir, next: nextName, flag: "--data"}
	if err := s.checkFormat(); err != nil {
		return nil, err
	}
	return s, s.own("identity", "snapshots", "current")
}

// own makes the directory with its parts, and locks it.
func (s *localStore) own(parts ...string) error {
	for _, sub := range append([]string{""}, parts...) {
		if err := s.fs.MkdirAll(s.path(sub)); err != nil {
			return s.unusable(err)
		}
	}
	lock, err := s.fs.Lock(s.path(lockName))
	if err != nil {
		if held, ok := errors.AsType[*durable.LockedError](err); ok {
			return explain.Wrap(err, explain.NodeLocked, "dir", s.dir, "pid", held.PID)
		}
		return s.unusable(err)
	}
	s.lock = lock
	// What is found there is acted on: a key is certified, a mark is believed. It must
	// not be undone by a power cut because a process before this one died too soon.
	for _, sub := range parts {
		if err := s.fs.Settle(s.path(sub)); err != nil {
			return errors.Join(fmt.Errorf("settle the data directory: %w", err), lock.Close())
		}
	}
	return nil
}

// unusable words why nothing can be kept in the directory.
func (s *localStore) unusable(err error) error {
	cause := err.Error()
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		cause = p.Path + ": " + p.Err.Error()
	}
	return explain.Wrap(err, explain.FolderUnusable, "dir", s.dir, "cause", cause, "flag", s.flag)
}

func (s *localStore) Close() error { return s.lock.Close() }

func (s *localStore) path(name string) string { return filepath.Join(s.dir, filepath.FromSlash(name)) }

// read returns a file, and an error that matches fs.ErrNotExist without one.
func (s *localStore) read(name string, limit int64) ([]byte, error) {
	return s.fs.ReadFile(s.path(name), limit)
}

func (s *localStore) write(name string, data []byte) error {
	if err := s.fs.WriteFile(s.path(name), data); err != nil {
		return fmt.Errorf("write %s: %w", s.path(name), err)
	}
	return nil
}

// remove removes files durably; those that are missing are fine.
func (s *localStore) remove(names ...string) error {
	for _, name := range names {
		if err := s.fs.Remove(s.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove %s: %w", s.path(name), err)
		}
	}
	return nil
}

// writeSealed writes v with a checksum.
func (s *localStore) writeSealed(name string, v any) error {
	data, err := seal(v)
	if err != nil {
		return err
	}
	return s.write(name, data)
}

// corrupt words damage for a person.
func (s *localStore) corrupt(name string, err error) error {
	return explain.Wrap(err, explain.NodeStateCorrupt, "file", s.path(name), "problem", err.Error())
}

// anchor is what the node believes without asking anybody, and who it is.
type anchor struct {
	Cluster string        `json:"cluster"`
	ID      identity.ID   `json:"id"`
	Kind    identity.Kind `json:"kind"`
	// Incarnation is the key that the node enrolled with: the subject of its
	// snapshots, through all renewals.
	Incarnation identity.KeyID `json:"incarnation"`

	Pin           identity.KeyID `json:"pin"`  // of the root's key
	Root          []byte         `json:"root"` // DER
	RootStatement []byte         `json:"root_statement"`

	Addresses []string  `json:"addresses"` // of coordinators, as known when it joined
	Outcome   string    `json:"outcome"`
	JoinedAt  time.Time `json:"joined_at"`
}

// self is an anchor that was verified.
type self struct {
	anchor
	root       *x509.Certificate
	configRoot ed25519.PublicKey
}

// verify checks that the parts of an anchor agree and that its root says what the
// config root key is. It is pure.
func (a anchor) verify(now time.Time) (self, error) {
	root, err := parseCertificate(a.Root)
	switch {
	case err != nil:
		return self{}, fmt.Errorf("%w: the root certificate cannot be read", errDamaged)
	case identity.KeyOf(root) != a.Pin:
		return self{}, fmt.Errorf("%w: the root is not the pinned one", errDamaged)
	case a.ID.IsZero() || a.ID.Cluster() != a.Cluster || a.ID.Kind() != a.Kind || a.Incarnation.IsZero():
		return self{}, fmt.Errorf("%w: it does not name one node", errDamaged)
	}
	signed, err := snapshot.UnmarshalRoot(a.RootStatement)
	if err != nil {
		return self{}, fmt.Errorf("%w: the root statement: %w", errDamaged, err)
	}
	statement, err := snapshot.VerifyRoot(signed, []*x509.Certificate{root}, a.Cluster, now)
	if err != nil {
		return self{}, fmt.Errorf("the root statement: %w", err)
	}
	return self{a, root, statement.ConfigRoot}, nil
}

// trust is what snapshots are verified with.
func (me self) trust(b *beliefs) snapshot.Trust {
	t := snapshot.Trust{Me: me.ID, Incarnation: me.Incarnation, ConfigRoot: me.configRoot}
	if h := b.held[snapshot.ScopeTrustBundle]; h != nil {
		t.Bundle = h.v
	} else {
		t.Bundle = b.stale
	}
	t.Revoked = b.stated()
	if h := b.terms(); h != nil {
		header := h.v.Header()
		t.Roles, t.Organizations = header.Roles, header.OrganizationIDs
	}
	return t
}

// pendingKey is the key of a request that may have been granted without our
// knowing.
type pendingKey struct {
	key     keyPair
	purpose string
}

type pendingFile struct {
	Purpose string `json:"purpose"`
	Key     []byte `json:"key"` // PKCS #8
}

// purposeRenew is that of a key for a renewal or rejoin; the purpose of a join
// names what was joined, so that another join does not take its key.
const purposeRenew = "renew"

// writeNext makes k durable. It comes before any request that names k.
func (s *localStore) writeNext(k pendingKey) error {
	der, err := k.key.pkcs8()
	if err != nil {
		return err
	}
	return s.writeSealed(s.next, pendingFile{k.purpose, der})
}

// readNext returns the key of a request under way, or nil. A damaged one is
// nobody's loss but of a grant: it counts as none, and is reported.
func (s *localStore) readNext() (*pendingKey, error) {
	data, err := s.fs.ReadSecret(s.path(s.next), maxKeyBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, s.corrupt(s.next, err)
	}
	var f pendingFile
	if err := unseal(data, &f); err != nil {
		return nil, s.corrupt(s.next, err)
	}
	key, err := parseKeyPair(f.Key)
	if err != nil {
		return nil, s.corrupt(s.next, err)
	}
	return &pendingKey{key, f.Purpose}, nil
}

// writeSVID makes the node's identity durable.
func (s *localStore) writeSVID(v svid) error {
	data, err := encodeSVID(v)
	if err != nil {
		return err
	}
	return s.write(SVIDName, data)
}

func (s *localStore) readSVID() (svid, error) {
	data, err := s.fs.ReadSecret(s.path(SVIDName), maxSVIDBytes)
	if err != nil {
		return svid{}, s.unusableIdentity(SVIDName, err)
	}
	v, _, err := parseSVID(data)
	if err != nil {
		return svid{}, s.unusableIdentity(SVIDName, err)
	}
	return v, nil
}

// readAnchor returns the verified anchor, or NodeStateCorrupt.
func (s *localStore) readAnchor(now time.Time) (self, error) {
	data, err := s.read(anchorName, maxAnchorBytes)
	var a anchor
	if err == nil {
		err = unseal(data, &a)
	}
	var me self
	if err == nil {
		me, err = a.verify(now)
	}
	if err != nil {
		return self{}, s.unusableIdentity(anchorName, err)
	}
	return me, nil
}

// marksFile is one of two copies of the ledger.
type marksFile struct {
	Sequence uint64         `json:"sequence"` // the copy with the higher one counts
	Root     identity.KeyID `json:"root"`     // marks of another cluster mean nothing
	ledgerFile
}

// ledgerFile is a ledger on disk.
type ledgerFile struct {
	Marks       json.RawMessage  `json:"marks"`
	Unconfirmed []snapshot.Scope `json:"unconfirmed,omitempty"`
	Revocations string           `json:"revocations,omitempty"`
	Trials      []trial          `json:"trials,omitempty"`
	Quarantine  []quarantined    `json:"quarantine,omitempty"`
}

func (l ledger) file() (ledgerFile, error) {
	raw, err := l.marks.Marshal()
	return ledgerFile{raw, l.unconfirmed, l.revocations, l.trials, l.quarantine}, err
}

func (f ledgerFile) ledger() (ledger, error) {
	marks, err := snapshot.ParseMarks(f.Marks)
	return ledger{marks, f.Unconfirmed, f.Revocations, f.Trials, f.Quarantine}, err
}

// writeLedger makes l durable, in both copies. The sequence grows with each attempt,
// so that two different copies never have the same one.
func (s *localStore) writeLedger(l ledger) error {
	file, err := l.file()
	if err != nil {
		return err
	}
	s.sequence++
	data, err := seal(marksFile{s.sequence, s.pin, file})
	if err != nil {
		return err
	}
	for _, name := range []string{marksAName, marksBName} {
		if err := s.write(name, data); err != nil {
			return err
		}
	}
	return nil
}

// readLedger returns the newer copy that is whole, and an error that matches
// errMarksLost if none is. s.pin says of which root.
func (s *localStore) readLedger() (ledger, error) {
	var newest ledger
	var problems []error
	found := false
	for _, name := range []string{marksAName, marksBName} {
		l, sequence, err := s.readLedgerCopy(name)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", name, err))
			continue
		}
		if !found || sequence > s.sequence {
			newest, s.sequence, found = l, sequence, true
		}
	}
	if !found {
		return ledger{}, fmt.Errorf("%w: %w", errMarksLost, errors.Join(problems...))
	}
	return newest, nil
}

// errMarksLost is matched when the node no longer knows what it accepted.
var errMarksLost = errors.New("the marks of what was accepted are lost")

func (s *localStore) readLedgerCopy(name string) (ledger, uint64, error) {
	data, err := s.read(name, maxMarksBytes)
	if err != nil {
		return ledger{}, 0, err
	}
	var f marksFile
	if err := unseal(data, &f); err != nil {
		return ledger{}, 0, err
	}
	if f.Root != s.pin {
		return ledger{}, 0, fmt.Errorf("%w: marks of another cluster", errDamaged)
	}
	l, err := f.ledger()
	return l, f.Sequence, err
}

// place puts what the marks already know into use: previous is what was, active
// what is. It ends the pending state.
func (s *localStore) place(scope snapshot.Scope, raw, old []byte) error {
	if old != nil {
		if err := s.write(snapshotName(scope, previous), old); err != nil {
			return err
		}
	}
	if err := s.write(snapshotName(scope, active), raw); err != nil {
		return err
	}
	return s.remove(snapshotName(scope, pending))
}

// settle makes the active file of scope that of what is in use after a failed trial.
func (s *localStore) settle(scope snapshot.Scope, raw []byte) error {
	if was, err := s.read(snapshotName(scope, active), snapshot.MaxSigned); err == nil && bytes.Equal(was, raw) {
		return nil
	}
	return s.place(scope, raw, nil)
}

// journal is a join, whole: the one write that makes a machine a member.
type journal struct {
	SVID   []byte `json:"svid"` // PEM
	Anchor anchor `json:"anchor"`
	ledgerFile
	Snapshots map[string][]byte `json:"snapshots"` // by scope: exact received bytes
}

// apply spreads a journal over the files that it stands for. Doing it again is
// harmless, which is how an interrupted one is finished.
func (s *localStore) apply(j journal) error {
	s.pin = j.Anchor.Pin
	// The sequence goes on where this cluster's marks are: what was lost or is of
	// another root starts anew.
	s.sequence = 0
	if _, err := s.readLedger(); err != nil && !errors.Is(err, errMarksLost) {
		return err
	}
	known, err := j.ledger()
	if err != nil {
		return err
	}
	if err := s.writeLedger(known); err != nil {
		return err
	}
	for _, scope := range scopes {
		if raw, ok := j.Snapshots[string(scope)]; ok {
			if err := s.place(scope, raw, nil); err != nil {
				return err
			}
		}
	}
	if err := s.write(SVIDName, j.SVID); err != nil {
		return err
	}
	if err := s.writeSealed(anchorName, j.Anchor); err != nil {
		return err
	}
	return s.remove(nextName, journalName)
}

// commitJoin makes a join durable and puts it in place.
func (s *localStore) commitJoin(j journal) error {
	if err := s.writeSealed(journalName, j); err != nil {
		return err
	}
	return s.apply(j)
}

// finishJoin puts a join in place that was interrupted after it was durable, and
// reports whether there was one. A journal that is damaged gives nothing: the join
// is repeated with its key.
func (s *localStore) finishJoin() (finished bool, problem, err error) {
	data, err := s.fs.ReadSecret(s.path(journalName), maxJournalBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil, nil
	}
	var j journal
	if err == nil {
		err = unseal(data, &j)
	}
	if err == nil {
		_, _, err = parseSVID(j.SVID)
	}
	switch {
	case errors.Is(err, errDamaged):
		return false, s.corrupt(journalName, err), s.remove(journalName)
	case err != nil:
		return false, nil, s.corrupt(journalName, err) // it may be readable later: keep it
	}
	return true, nil, s.apply(j)
}

// wipe removes all that makes this machine a member. The anchor goes first: from
// then on it is none, whatever else is left. That it left is noted before, so that an
// identity of which it left a part is not taken for one that lost a file.
func (s *localStore) wipe() error {
	noted := s.write(leftName, []byte("this node left its cluster\n"))
	names := []string{journalName, anchorName, SVIDName, nextName}
	for _, scope := range scopes {
		for _, place := range []string{active, pending, previous, refused} {
			names = append(names, snapshotName(scope, place))
		}
		names = append(names, currentName(scope))
	}
	err := s.remove(append(names, marksAName, marksBName, refusalsName, clockName, behindName, degradedName, stateName, storeName, emergencyAName, emergencyBName)...)
	if err != nil || noted != nil {
		return err // a full disk keeps nobody from leaving
	}
	return s.remove(leftName)
}
