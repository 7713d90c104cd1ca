package state

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
	"strings"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/guard"
	"github.com/fealty-io/fealty/internal/platform/durable"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

// Scopes are all that there are, in the order in which they are verified: the trust
// bundle first, for it has the keys of the others, then what says what the node is,
// and then its companions.
var Scopes = [...]snapshot.Scope{
	snapshot.ScopeTrustBundle, snapshot.ScopeNodeBootstrap, snapshot.ScopeNodeRuntime,
	snapshot.ScopeDegradedModePolicy, snapshot.ScopePeerDirectory, snapshot.ScopeQoSPolicy, snapshot.ScopeRoutePolicy,
	snapshot.ScopeServiceAssignment, snapshot.ScopeStorageDirectory,
}

// Foundations are the scopes that every node has, and by which the others are judged.
var Foundations = Scopes[:3]

// Known reports whether scope is one of Scopes.
func Known(scope snapshot.Scope) bool { return slices.Contains(Scopes[:], scope) }

// OrderOf returns the place of a scope in the order of verification; what is unknown
// comes last.
func OrderOf(scope string) int {
	if i := slices.Index(Scopes[:], snapshot.Scope(scope)); i >= 0 {
		return i
	}
	return len(Scopes)
}

// Store is the data directory. The caller of its methods sees to it that no two
// write the same file at once.
type Store struct {
	FS   durable.FS
	Dir  string
	Flag string // that names dir
	lock io.Closer

	Next     string         // name of the file of the pending key
	Pin      identity.KeyID // of the root that the marks are of
	Sequence uint64         // of the marks that were written last
}

// OpenStore makes the directory if it is missing, and locks it. One that a newer
// release wrote is left alone: the error is NodeStateNewer.
func OpenStore(files durable.FS, folder string) (*Store, error) {
	if folder == "" {
		return nil, errcode.New(errcode.BadValue, "name", "the data directory", "value", "blank", "want",
			"a folder of the agent's own")
	}
	s := &Store{FS: files, Dir: folder, Next: dir.NextName, Flag: "--data"}
	if err := s.checkFormat(); err != nil {
		return nil, err
	}
	return s, s.Own("identity", "snapshots", "current")
}

// Own makes the directory with its parts, and locks it.
func (s *Store) Own(parts ...string) error {
	for _, sub := range append([]string{""}, parts...) {
		if err := s.FS.MkdirAll(s.Path(sub)); err != nil {
			return s.unusable(err)
		}
	}
	lock, err := s.FS.Lock(s.Path(dir.LockName))
	if err != nil {
		if held, ok := errors.AsType[*durable.LockedError](err); ok {
			return errcode.Wrap(err, errcode.NodeLocked, "dir", s.Dir, "pid", held.PID)
		}
		return s.unusable(err)
	}
	s.lock = lock
	// The content found there is acted on: a key is certified, a mark is believed. It must
	// not be undone by a power cut because a process before this one died too soon.
	for _, sub := range parts {
		if err := s.FS.Settle(s.Path(sub)); err != nil {
			return errors.Join(fmt.Errorf("settle the data directory: %w", err), lock.Close())
		}
	}
	return nil
}

// Joined reports whether there may be an identity in folder, so that a mistyped folder
// is not made.
func Joined(files durable.FS, folder string) bool {
	s := &Store{FS: files, Dir: folder}
	for _, name := range []string{dir.AnchorName, dir.JournalName} {
		if _, err := s.Read(name, dir.MaxJournalBytes); !errors.Is(err, fs.ErrNotExist) {
			return true
		}
	}
	return false
}

// unusable words why nothing can be kept in the directory.
func (s *Store) unusable(err error) error {
	cause := err.Error()
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		cause = p.Path + ": " + p.Err.Error()
	}
	return errcode.Wrap(err, errcode.FolderUnusable, "dir", s.Dir, "cause", cause, "flag", s.Flag)
}

// Close gives the folder back.
func (s *Store) Close() error { return s.lock.Close() }

// Path is where the file of a name in the folder is.
func (s *Store) Path(name string) string { return filepath.Join(s.Dir, filepath.FromSlash(name)) }

// Read returns a file, and an error that matches fs.ErrNotExist without one.
func (s *Store) Read(name string, limit int64) ([]byte, error) {
	return s.FS.ReadFile(s.Path(name), limit)
}

// Write replaces a file durably, whole or not at all.
func (s *Store) Write(name string, data []byte) error {
	if err := s.FS.WriteFile(s.Path(name), data); err != nil {
		return fmt.Errorf("write %s: %w", s.Path(name), err)
	}
	return nil
}

// Remove removes files durably; those that are missing are fine.
func (s *Store) Remove(names ...string) error {
	for _, name := range names {
		if err := s.FS.Remove(s.Path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove %s: %w", s.Path(name), err)
		}
	}
	return nil
}

// WriteSealed writes v with a checksum.
func (s *Store) WriteSealed(name string, v any) error {
	data, err := dir.Seal(v)
	if err != nil {
		return err
	}
	return s.Write(name, data)
}

// Corrupt words damage for a person.
func (s *Store) Corrupt(name string, err error) error {
	return errcode.Wrap(err, errcode.NodeStateCorrupt, "file", s.Path(name), "problem", err.Error())
}

// Anchor is what the node believes without asking anybody, and who it is.
type Anchor struct {
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

// Self is an anchor that was verified.
type Self struct {
	Anchor
	Root       *x509.Certificate
	ConfigRoot ed25519.PublicKey
}

// Verify checks that the parts of an anchor agree and that its root says what the
// config root key is. It is pure.
func (a Anchor) Verify(now time.Time) (Self, error) {
	root, err := dir.ParseCertificate(a.Root)
	switch {
	case err != nil:
		return Self{}, fmt.Errorf("%w: the root certificate cannot be read", dir.ErrDamaged)
	case identity.KeyOf(root) != a.Pin:
		return Self{}, fmt.Errorf("%w: the root is not the pinned one", dir.ErrDamaged)
	case a.ID.IsZero() || a.ID.Cluster() != a.Cluster || a.ID.Kind() != a.Kind || a.Incarnation.IsZero():
		return Self{}, fmt.Errorf("%w: it does not name one node", dir.ErrDamaged)
	}
	configRoot, err := snapshot.VerifyRoot(a.RootStatement, []*x509.Certificate{root}, a.Cluster, now)
	switch {
	case errors.Is(err, snapshot.ErrMalformed):
		return Self{}, fmt.Errorf("%w: the root statement: %w", dir.ErrDamaged, err)
	case err != nil:
		return Self{}, fmt.Errorf("the root statement: %w", err)
	}
	return Self{a, root, configRoot}, nil
}

// Trust is what snapshots are verified with.
func (me Self) Trust(b *TrustState) snapshot.Trust {
	t := snapshot.Trust{Me: me.ID, Incarnation: me.Incarnation, ConfigRoot: me.ConfigRoot}
	if h := b.Active[snapshot.ScopeTrustBundle]; h != nil {
		t.Bundle = h.Verified
	} else {
		t.Bundle = b.Stale
	}
	t.Revoked = b.Stated()
	if h := b.Terms(); h != nil {
		header := h.Verified.Header()
		t.Roles, t.Organizations = header.Roles, header.OrganizationIDs
	}
	return t
}

// PendingKey is the key of a request that may have been granted without our
// knowing.
type PendingKey struct {
	Key     dir.KeyPair
	Purpose string
}

// WriteNext makes k durable. It comes before any request that names k.
func (s *Store) WriteNext(k PendingKey) error {
	der, err := k.Key.PKCS8()
	if err != nil {
		return err
	}
	return s.WriteSealed(s.Next, dir.PendingFile{Purpose: k.Purpose, Key: der})
}

// ReadNext returns the key of a request under way, or nil. A damaged one is
// nobody's loss but of a grant: it counts as none, and is reported.
func (s *Store) ReadNext() (*PendingKey, error) {
	data, err := s.FS.ReadSecret(s.Path(s.Next), dir.MaxKeyBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, s.Corrupt(s.Next, err)
	}
	var f dir.PendingFile
	if err := dir.Unseal(data, &f); err != nil {
		return nil, s.Corrupt(s.Next, err)
	}
	key, err := dir.ParseKeyPair(f.Key)
	if err != nil {
		return nil, s.Corrupt(s.Next, err)
	}
	return &PendingKey{key, f.Purpose}, nil
}

// WriteSVID makes the node's identity durable.
func (s *Store) WriteSVID(v dir.SVID) error {
	data, err := dir.EncodeSVID(v)
	if err != nil {
		return err
	}
	return s.Write(dir.SVIDName, data)
}

func (s *Store) readSVID() (dir.SVID, error) {
	data, err := s.FS.ReadSecret(s.Path(dir.SVIDName), dir.MaxSVIDBytes)
	if err != nil {
		return dir.SVID{}, s.unusableIdentity(dir.SVIDName, err)
	}
	v, _, err := dir.ParseSVID(data)
	if err != nil {
		return dir.SVID{}, s.unusableIdentity(dir.SVIDName, err)
	}
	return v, nil
}

// readAnchor returns the verified anchor, or NodeStateCorrupt.
func (s *Store) readAnchor(now time.Time) (Self, error) {
	data, err := s.Read(dir.AnchorName, dir.MaxAnchorBytes)
	var a Anchor
	if err == nil {
		err = dir.Unseal(data, &a)
	}
	var me Self
	if err == nil {
		me, err = a.Verify(now)
	}
	if err != nil {
		return Self{}, s.unusableIdentity(dir.AnchorName, err)
	}
	return me, nil
}

// marksFile is one of two copies of the ledger.
type marksFile struct {
	Sequence uint64         `json:"sequence"` // the copy with the higher one counts
	Root     identity.KeyID `json:"root"`     // marks of another cluster mean nothing
	LedgerFile
}

// LedgerFile is a ledger on disk.
type LedgerFile struct {
	Marks       json.RawMessage  `json:"marks"`
	Unconfirmed []snapshot.Scope `json:"unconfirmed,omitempty"`
	Revocations string           `json:"revocations,omitempty"`
	Trials      []trial          `json:"trials,omitempty"`
	Quarantine  []quarantined    `json:"quarantine,omitempty"`
}

// File is l for disk.
func (l Ledger) File() (LedgerFile, error) {
	raw, err := l.Marks.Marshal()
	return LedgerFile{raw, l.unconfirmed, l.revocations, l.Trials, l.Quarantine}, err
}

func (f LedgerFile) ledger() (Ledger, error) {
	marks, err := snapshot.ParseMarks(f.Marks)
	return Ledger{marks, f.Unconfirmed, f.Revocations, f.Trials, f.Quarantine}, err
}

// WriteLedger makes l durable, in both copies. The sequence grows with each attempt,
// so that two different copies never have the same one.
func (s *Store) WriteLedger(l Ledger) error {
	file, err := l.File()
	if err != nil {
		return err
	}
	s.Sequence++
	data, err := dir.Seal(marksFile{s.Sequence, s.Pin, file})
	if err != nil {
		return err
	}
	for _, name := range []string{dir.MarksAName, dir.MarksBName} {
		if err := s.Write(name, data); err != nil {
			return err
		}
	}
	return nil
}

// ReadLedger returns the newer copy that is whole, and an error that matches
// errMarksLost if none is. s.pin says of which root.
func (s *Store) ReadLedger() (Ledger, error) {
	var newest Ledger
	var problems []error
	found := false
	for _, name := range []string{dir.MarksAName, dir.MarksBName} {
		l, sequence, err := s.readLedgerCopy(name)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", name, err))
			continue
		}
		if !found || sequence > s.Sequence {
			newest, s.Sequence, found = l, sequence, true
		}
	}
	if !found {
		return Ledger{}, fmt.Errorf("%w: %w", errMarksLost, errors.Join(problems...))
	}
	return newest, nil
}

// errMarksLost is matched when the node no longer knows what it accepted.
var errMarksLost = errors.New("the marks of what was accepted are lost")

func (s *Store) readLedgerCopy(name string) (Ledger, uint64, error) {
	data, err := s.Read(name, dir.MaxMarksBytes)
	if err != nil {
		return Ledger{}, 0, err
	}
	var f marksFile
	if err := dir.Unseal(data, &f); err != nil {
		return Ledger{}, 0, err
	}
	if f.Root != s.Pin {
		return Ledger{}, 0, fmt.Errorf("%w: marks of another cluster", dir.ErrDamaged)
	}
	l, err := f.ledger()
	return l, f.Sequence, err
}

// Place puts what the marks already know into use: previous is what was, active
// what is. It ends the pending state.
func (s *Store) Place(scope snapshot.Scope, raw, old []byte) error {
	if old != nil {
		if err := s.Write(dir.SnapshotName(scope, dir.Previous), old); err != nil {
			return err
		}
	}
	if err := s.Write(dir.SnapshotName(scope, dir.Active), raw); err != nil {
		return err
	}
	return s.Remove(dir.SnapshotName(scope, dir.Pending))
}

// Settle makes the active file of scope that of what is in use after a failed trial.
func (s *Store) Settle(scope snapshot.Scope, raw []byte) error {
	if was, err := s.Read(dir.SnapshotName(scope, dir.Active), internalsnapshot.MaxSigned); err == nil &&
		bytes.Equal(was, raw) {
		return nil
	}
	return s.Place(scope, raw, nil)
}

// Journal is a join, whole: the one write that makes a machine a member.
type Journal struct {
	SVID   []byte `json:"svid"` // PEM
	Anchor Anchor `json:"anchor"`
	LedgerFile
	Snapshots map[string][]byte `json:"snapshots"` // by scope: exact received bytes
}

// apply spreads a journal over the files that it stands for. Doing it again is
// harmless, which is how an interrupted one is finished.
func (s *Store) apply(j Journal) error {
	s.Pin = j.Anchor.Pin
	// The sequence goes on where this cluster's marks are: what was lost or is of
	// another root starts anew.
	s.Sequence = 0
	if _, err := s.ReadLedger(); err != nil && !errors.Is(err, errMarksLost) {
		return err
	}
	known, err := j.ledger()
	if err != nil {
		return err
	}
	if err := s.WriteLedger(known); err != nil {
		return err
	}
	for _, scope := range Scopes {
		if raw, ok := j.Snapshots[string(scope)]; ok {
			if err := s.Place(scope, raw, nil); err != nil {
				return err
			}
		}
	}
	if err := s.Write(dir.SVIDName, j.SVID); err != nil {
		return err
	}
	if err := s.WriteSealed(dir.AnchorName, j.Anchor); err != nil {
		return err
	}
	return s.Remove(dir.NextName, dir.JournalName)
}

// CommitJoin makes a join durable and puts it in place.
func (s *Store) CommitJoin(j Journal) error {
	if err := s.WriteSealed(dir.JournalName, j); err != nil {
		return err
	}
	return s.apply(j)
}

// finishJoin puts a join in place that was interrupted after it was durable, and
// reports whether there was one. A journal that is damaged gives nothing: the join
// is repeated with its key.
func (s *Store) finishJoin() (finished bool, problem, err error) {
	data, err := s.FS.ReadSecret(s.Path(dir.JournalName), dir.MaxJournalBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil, nil
	}
	var j Journal
	if err == nil {
		err = dir.Unseal(data, &j)
	}
	if err == nil {
		_, _, err = dir.ParseSVID(j.SVID)
	}
	switch {
	case errors.Is(err, dir.ErrDamaged):
		return false, s.Corrupt(dir.JournalName, err), s.Remove(dir.JournalName)
	case err != nil:
		return false, nil, s.Corrupt(dir.JournalName, err) // it may be readable later: keep it
	}
	return true, nil, s.apply(j)
}

// Wipe removes all that makes this machine a member. The anchor goes first: from
// then on it is none, whatever else is left. That it left is noted before, so that an
// identity of which it left a part is not taken for one that lost a file.
func (s *Store) Wipe() error {
	noted := s.Write(dir.LeftName, []byte("this node left its cluster\n"))
	names := []string{dir.JournalName, dir.AnchorName, dir.SVIDName, dir.NextName}
	for _, scope := range Scopes {
		for _, place := range []string{dir.Active, dir.Pending, dir.Previous, dir.Refused} {
			names = append(names, dir.SnapshotName(scope, place))
		}
		names = append(names, dir.CurrentName(scope))
	}
	workloads, err := s.FS.ReadDir(s.Path(dir.WorkloadsName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, name := range workloads {
		names = append(names, dir.WorkloadsName+"/"+name)
	}
	err = s.Remove(append(names, dir.MarksAName, dir.MarksBName, dir.RefusalsName, dir.ClockName, dir.BehindName,
		dir.DegradedName, dir.StateName, dir.StoreName, dir.EmergencyAName, dir.EmergencyBName)...)
	if err != nil || noted != nil {
		return err // a full disk keeps nobody from leaving
	}
	return s.Remove(dir.LeftName)
}

// maxDegradedBytes bounds the file.
const maxDegradedBytes = 64 << 10

// ReadPeriods returns what is on disk, and what is wrong with it.
func (s *Store) ReadPeriods() ([]guard.Period, error) {
	data, err := s.Read(dir.DegradedName, maxDegradedBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var kept []guard.Period
	if err == nil {
		err = dir.Unseal(data, &kept)
	}
	if err != nil {
		return nil, s.Corrupt(dir.DegradedName, err)
	}
	return kept, nil
}

// unusableIdentity words why a part of the node's identity is of no use, and what mends
// it: a file that was put back, a mode, or another key under the same name.
func (s *Store) unusableIdentity(name string, err error) error {
	problem := err.Error()
	who := s.memberOnDisk()
	again := fmt.Sprintf("have an admin run fealty member replace %s and "+
		"fealty token create --entry ENTRY --name %s, then fealty join --token-file FILE --data %s",
		who, afterSlash(who), s.Dir)
	do := "put it back from a copy, or " + again
	switch {
	case errors.Is(err, durable.ErrExposed):
		do = "if nobody else can have read it: chmod 600 " + s.Path(name) + "; else " + again
	case errors.Is(err, fs.ErrNotExist):
		problem = "it is missing, and the rest of the identity is there"
	}
	return errcode.Wrap(err, errcode.NodeStateCorrupt, "file", s.Path(name), "problem", problem, "do", do)
}

// memberOnDisk returns KIND/NAME of the node by whichever part of its identity can be
// read. It is for words alone: nothing of it is verified.
func (s *Store) memberOnDisk() string {
	if data, err := s.Read(dir.AnchorName, dir.MaxAnchorBytes); err == nil {
		var a Anchor
		if err := dir.Unseal(data, &a); err == nil {
			return string(a.ID.Kind()) + "/" + a.ID.Name()
		}
	}
	if data, err := s.FS.ReadSecret(s.Path(dir.SVIDName), dir.MaxSVIDBytes); err == nil {
		if v, _, err := dir.ParseSVID(data); err == nil && len(v.Leaf().URIs) == 1 {
			if id, err := identity.Parse(v.Leaf().URIs[0].String()); err == nil {
				return string(id.Kind()) + "/" + id.Name()
			}
		}
	}
	return "KIND/NAME"
}

func afterSlash(path string) string {
	_, name, _ := strings.Cut(path, "/")
	return name
}

// NotJoined says that dir holds no identity, or that it lost the file which says of
// which cluster.
func (s *Store) NotJoined() error {
	_, leaving := s.Read(dir.LeftName, dir.MaxAnchorBytes)
	if _, err := s.Read(dir.SVIDName, dir.MaxSVIDBytes); err == nil && errors.Is(leaving, fs.ErrNotExist) {
		return s.unusableIdentity(dir.AnchorName, fs.ErrNotExist)
	}
	return errcode.New(errcode.NodeNotJoined, "dir", s.Dir)
}
