package host

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fealty-io/fealty/identity"
	internalidentity "github.com/fealty-io/fealty/internal/identity"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/pki"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/platform/watch"
	"github.com/fealty-io/fealty/internal/workload"
)

const (
	// MaxBatch is how many workloads are asked about in one call.
	MaxBatch = 64
	// Pauses before a workload is asked about again, if the call failed, and if it was refused.
	minPause, maxPause       = time.Second, time.Minute
	minRefusal, maxRefusal   = 5 * time.Second, 5 * time.Minute
	clockLook                = time.Minute // a timer does not see a clock that is set, or a machine that slept
	suffix                   = ".pem"
	renewFrom, renewFraction = 0.4, 0.2 // a certificate is renewed at 40% to 60% of its life
)

// Ask is a key that is to be certified for a workload.
type Ask struct {
	Registration workload.Registration
	CSR          []byte // PKCS #10, DER
}

// Answer is what became of an Ask.
type Answer struct {
	Chain   [][]byte // leaf, mesh CA, root, as DER; nil if refused
	Refusal string   // why
}

// IssuerConfig is what an Issuer is made of. All fields are required.
type IssuerConfig struct {
	// FS and Dir are where keys and certificates lie, one file for each workload. The
	// directory is this process's own.
	FS  durable.FS
	Dir string
	// Certify asks a coordinator. Answers are in the order of the asks.
	Certify func(ctx context.Context, asks []Ask) ([]Answer, error)
	// Verify reports whether a chain is trusted now, and says of whom it is.
	Verify func(chain []*x509.Certificate) (identity.Verified, error)
	Now    func() time.Time
	Log    *slog.Logger
}

// Issuer keeps workloads certified. Make it with [NewIssuer], and run it with [Issuer.Run].
type Issuer struct {
	cfg     IssuerConfig
	changed watch.Signal // what [Issuer.SVID] returns
	look    watch.Signal // what is registered

	mu       sync.Mutex
	held     map[identity.ID]*entry // those that are registered; guarded by mu
	rechecks int                    // counts calls of Recheck; guarded by mu
	// unswept: files may be there of workloads that are not in held. Not before the first
	// Register: until then nobody knows which are.
	unswept    bool // guarded by mu
	registered bool // Register was called; guarded by mu

	problem string // of the disk, "": none; owned by Run
}

// entry is one workload. Guarded by Issuer.mu.
type entry struct {
	registration workload.Registration
	svid         *dir.SVID // nil: none yet
	unsaved      bool      // svid is not on disk
	given        bool      // svid was in date at the last look
	retry        time.Time // when it is asked about again; zero: at once
	pause        time.Duration
	err          error // why the last attempt failed; nil: it did not
}

// NewIssuer returns an Issuer that holds nothing.
func NewIssuer(cfg IssuerConfig) *Issuer {
	return &Issuer{cfg: cfg, held: make(map[identity.ID]*entry)}
}

// Register says which workloads there are. Of one id that is registered twice the shortest life
// counts. Certificates on disk of those that are new are read at once; one that is registered no
// more is given to nobody from now on. One goroutine calls it.
func (i *Issuer) Register(registrations []workload.Registration) {
	want := make(map[identity.ID]workload.Registration, len(registrations))
	for _, r := range registrations {
		if have, ok := want[r.ID]; ok {
			r.TTL = min(r.TTL, have.TTL)
		}
		want[r.ID] = r
	}
	read := make(map[identity.ID]*dir.SVID)
	for id := range want {
		if !i.holds(id) {
			read[id] = i.read(id) // not under the mutex: nobody waits for the disk
		}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	others := false
	for id := range i.held {
		if _, ok := want[id]; !ok {
			delete(i.held, id)
			i.unswept, others = true, true
		}
	}
	look := others || !i.registered // for nothing else Run has to do more
	if !i.registered {
		i.registered, i.unswept = true, true
	}
	for id, r := range want {
		e := i.held[id]
		if e == nil {
			e, others, look = &entry{svid: read[id]}, true, true
			i.held[id] = e
		}
		look = look || e.registration.TTL != r.TTL
		e.registration = r
	}
	if look {
		i.look.Notify()
	}
	if others {
		i.changed.Notify()
	}
}

func (i *Issuer) holds(id identity.ID) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.held[id] != nil
}

// Changed returns a channel that is closed when [Issuer.SVID] may return something else than now.
func (i *Issuer) Changed() <-chan struct{} { return i.changed.Wait() }

// NoneError says that a registered workload has no certificate.
type NoneError struct {
	ID  identity.ID
	Err error // why not; nil: it was not asked for yet
}

func (e *NoneError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("%s has no certificate yet: a coordinator is being asked", e.ID)
	}
	return fmt.Sprintf("%s has no certificate yet: %v", e.ID, e.Err)
}

// Unwrap returns why.
func (e *NoneError) Unwrap() error { return e.Err }

// SVID returns what certifies a workload now, which is in date. The error is a [*NoneError].
func (i *Issuer) SVID(id identity.ID) (*dir.SVID, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	e := i.held[id]
	if e == nil {
		return nil, &NoneError{id, errors.New("it is not registered")}
	}
	if e.svid == nil {
		return nil, &NoneError{id, e.err}
	}
	given := i.inDate(e.svid)
	if given != e.given {
		// It ended, or the clock was set: others are told before Run sees it, and Run, which may not.
		e.given = given
		i.changed.Notify()
		i.look.Notify()
	}
	if !given {
		return nil, &NoneError{id, e.err}
	}
	return e.svid, nil
}

// IssuerState is how one workload stands.
type IssuerState struct {
	Registration workload.Registration
	NotAfter     time.Time // of its certificate; zero: it has none
	Err          error     // why the last attempt at another one failed
}

// States returns how all stand, sorted by id.
func (i *Issuer) States() []IssuerState {
	i.mu.Lock()
	defer i.mu.Unlock()
	var out []IssuerState
	for _, e := range i.held {
		s := IssuerState{Registration: e.registration, Err: e.err}
		if e.svid != nil && i.inDate(e.svid) {
			s.NotAfter = e.svid.Leaf().NotAfter
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b IssuerState) int { return a.Registration.ID.Compare(b.Registration.ID) })
	return out
}

func (i *Issuer) inDate(s *dir.SVID) bool { return inDateAt(s, i.cfg.Now()) }

func inDateAt(s *dir.SVID, now time.Time) bool {
	return !now.Before(s.Leaf().NotBefore) && now.Before(s.Leaf().NotAfter)
}

// Recheck drops what is not trusted any more, and has Run ask for everything that failed once
// more. Call it when another bundle is trusted.
func (i *Issuer) Recheck() {
	i.mu.Lock()
	i.rechecks++ // before the look: one that comes into use after it is asked about again
	held := make(map[identity.ID]*dir.SVID, len(i.held))
	for id, e := range i.held {
		held[id] = e.svid
	}
	i.mu.Unlock()
	bad := make(map[identity.ID]error)
	for id, svid := range held {
		if svid != nil {
			if err := i.check(id, svid); err != nil {
				bad[id] = err
			}
		}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	for id, e := range i.held {
		e.retry, e.pause = time.Time{}, 0
		if err := bad[id]; err != nil && e.svid == held[id] {
			e.svid, e.err = nil, err
			i.changed.Notify()
		}
	}
	i.look.Notify()
}

// Run certifies until ctx ends, and returns its error then.
func (i *Issuer) Run(ctx context.Context) error {
	for {
		changed := i.look.Wait()
		due, next := i.due()
		if len(due) > 0 {
			i.certify(ctx, due)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			continue
		}
		// After all that are due: nobody waits for the disk.
		i.sweep()
		i.save()
		if _, err := watch.Wait(ctx, min(next, clockLook), changed); err != nil {
			return err
		}
	}
}

// due returns those to ask about now, the most urgent first, and how long there are none else.
func (i *Issuer) due() (due []workload.Registration, next time.Duration) {
	i.mu.Lock()
	defer i.mu.Unlock()
	now := i.cfg.Now()
	next = clockLook
	turned := false
	type urgent struct {
		workload.Registration
		until time.Time
	}
	var all []urgent
	for id, e := range i.held {
		// One that is out of date is kept: if it is the clock that is wrong, it counts again
		// once that is right.
		given := e.svid != nil && inDateAt(e.svid, now)
		if given != e.given {
			e.given, turned = given, true
		}
		at, until := time.Time{}, time.Time{}
		if given {
			at, until = renewAt(id, e.svid.Leaf(), e.registration.TTL), e.svid.Leaf().NotAfter
		}
		if e.retry.Sub(now) > maxRefusal {
			e.retry = time.Time{} // the clock was ahead when it was set
		}
		if e.retry.After(at) {
			at = e.retry
		}
		if given {
			next = min(next, until.Sub(now)) // callers are told of its end
		}
		if at.After(now) {
			next = min(next, at.Sub(now))
			continue
		}
		all = append(all, urgent{e.registration, until})
	}
	if turned {
		i.changed.Notify()
	}
	slices.SortFunc(all, func(a, b urgent) int { return cmp.Or(a.until.Compare(b.until), a.ID.Compare(b.ID)) })
	for _, u := range all[:min(len(all), MaxBatch)] {
		due = append(due, u.Registration)
	}
	return due, next
}

// renewAt is when a certificate is renewed: between renewFrom of its life and renewFraction of it
// later, each workload at its own point, so that not all come together. A life that was cut by
// its issuer's end, or is longer than is wanted now, is renewed by what is wanted. Life begins
// when a certificate is made: a short one would else be renewed at once, again and again.
func renewAt(id identity.ID, leaf *x509.Certificate, ttl time.Duration) time.Time {
	made := leaf.NotBefore.Add(internalidentity.Backdate)
	life := max(min(leaf.NotAfter.Sub(made), ttl), 0)
	h := fnv.New32a()
	h.Write([]byte(id.String()))
	part := renewFrom + renewFraction*float64(h.Sum32())/(1<<32)
	return made.Add(time.Duration(part * float64(life)))
}

// certify asks about all of due at once.
func (i *Issuer) certify(ctx context.Context, due []workload.Registration) {
	asks, keys := make([]Ask, 0, len(due)), make([]dir.KeyPair, 0, len(due))
	for _, r := range due {
		key, err := dir.NewKeyPair()
		if err == nil {
			var csr []byte
			if csr, err = pki.NewCSR(key.Signer()); err == nil {
				asks, keys = append(asks, Ask{r, csr}), append(keys, key)
				continue
			}
		}
		i.failed(r.ID, err, minPause, maxPause)
	}
	if len(asks) == 0 {
		return
	}
	answers, err := i.cfg.Certify(ctx, asks)
	i.mu.Lock()
	rechecks := i.rechecks
	i.mu.Unlock()
	if err == nil && len(answers) != len(asks) {
		err = fmt.Errorf("a coordinator answered %d of %d asks: it may be of another release", len(answers), len(asks))
	}
	if ctx.Err() != nil {
		return
	}
	certified := 0
	for n, ask := range asks {
		id := ask.Registration.ID
		switch {
		case err != nil:
			i.failed(id, err, minPause, maxPause)
		case answers[n].Refusal != "":
			i.failed(id, errors.New(answers[n].Refusal), minRefusal, maxRefusal)
		default:
			svid, err := i.accept(id, keys[n], answers[n].Chain)
			if err != nil {
				i.failed(id, err, minRefusal, maxRefusal)
				continue
			}
			if i.succeeded(id, svid, rechecks) {
				certified++
			}
		}
	}
	if certified > 0 {
		i.changed.Notify()
	}
	if err != nil {
		i.cfg.Log.LogAttrs(ctx, slog.LevelWarn, "workloads are not certified, their certificates stay",
			slog.Int("workloads", len(asks)), slog.String("reason", err.Error()))
	}
}

// accept checks what a coordinator sent: it is for this key and this workload, trusted and in date.
func (i *Issuer) accept(id identity.ID, key dir.KeyPair, chain [][]byte) (*dir.SVID, error) {
	if len(chain) != dir.SVIDCertificates {
		return nil, fmt.Errorf("the answer has %d certificates, want %d", len(chain), dir.SVIDCertificates)
	}
	svid := &dir.SVID{Key: key}
	for _, der := range chain {
		c, err := dir.ParseCertificate(der)
		if err != nil {
			return nil, fmt.Errorf("a certificate of the answer cannot be read: %w", err)
		}
		svid.Chain = append(svid.Chain, c)
	}
	return svid, i.check(id, svid)
}

func (i *Issuer) check(id identity.ID, svid *dir.SVID) error {
	v, err := i.cfg.Verify(svid.Chain)
	switch {
	case err != nil:
		return fmt.Errorf("its certificate is not accepted: %w", err)
	case v.ID != id:
		return fmt.Errorf("its certificate is of %v, want %v", v.ID, id)
	case v.Key != svid.Key.ID:
		return errors.New("its certificate is for another key")
	case !i.inDate(svid):
		return errors.New("its certificate is out of date: check the clock")
	}
	return nil
}

// succeeded puts svid into use, unless another bundle came after the rechecks before it was
// checked: the workload is asked about again then. It reports whether it did.
func (i *Issuer) succeeded(id identity.ID, svid *dir.SVID, rechecks int) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	e := i.held[id]
	if e == nil || rechecks != i.rechecks {
		return false
	}
	// A coordinator is not asked without a pause, whatever the certificate says of its life.
	e.svid, e.unsaved, e.given, e.retry, e.pause, e.err = svid, true, true, i.cfg.Now().Add(minPause), 0, nil
	return true
}

func (i *Issuer) failed(id identity.ID, err error, least, most time.Duration) {
	i.mu.Lock()
	defer i.mu.Unlock()
	e := i.held[id]
	if e == nil {
		return
	}
	if e.err == nil || e.err.Error() != err.Error() {
		i.cfg.Log.LogAttrs(context.Background(), slog.LevelWarn, "a workload is not certified",
			slog.String("workload", id.String()), slog.String("reason", err.Error()))
	}
	e.err = err
	e.pause = min(max(2*e.pause, least), most)
	e.retry = i.cfg.Now().Add(e.pause)
}

// nameOf is the file of a workload.
func nameOf(id identity.ID) string {
	sum := sha256.Sum256([]byte(id.String()))
	return hex.EncodeToString(sum[:]) + suffix
}

// read returns what is on disk of a workload, if it still counts.
func (i *Issuer) read(id identity.ID) *dir.SVID {
	raw, err := i.cfg.FS.ReadSecret(filepath.Join(i.cfg.Dir, nameOf(id)), dir.MaxSVIDBytes)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			i.cfg.Log.LogAttrs(context.Background(), slog.LevelWarn,
				"the certificate of a workload cannot be read, another one is asked for",
				slog.String("workload", id.String()), slog.String("reason", err.Error()))
		}
		return nil
	}
	svid, _, err := dir.ParseSVID(raw)
	if err == nil {
		err = i.check(id, &svid)
	}
	if err != nil {
		i.cfg.Log.LogAttrs(context.Background(), slog.LevelInfo,
			"the certificate of a workload on disk does not count, another one is asked for",
			slog.String("workload", id.String()), slog.String("reason", err.Error()))
		return nil
	}
	return &svid
}

// save writes what is not on disk yet. A disk that fails is tried again at the next look, and
// costs a question to a coordinator if the process ends before.
func (i *Issuer) save() {
	type unsaved struct {
		id   identity.ID
		svid *dir.SVID
	}
	i.mu.Lock()
	var all []unsaved
	for id, e := range i.held {
		if e.unsaved && e.svid != nil {
			all = append(all, unsaved{id, e.svid})
			e.unsaved = false
		}
	}
	i.mu.Unlock()
	if len(all) == 0 {
		return
	}
	first := i.cfg.FS.MkdirAll(i.cfg.Dir)
	var failed []unsaved
	for _, u := range all {
		raw, err := dir.EncodeSVID(*u.svid)
		if err == nil {
			err = i.cfg.FS.WriteFile(filepath.Join(i.cfg.Dir, nameOf(u.id)), raw)
		}
		if err != nil { // those of others are written all the same
			failed, first = append(failed, u), cmp.Or(first, err)
		}
	}
	problem := ""
	if len(failed) > 0 {
		problem = first.Error()
	}
	i.mu.Lock()
	for _, u := range failed {
		if e := i.held[u.id]; e != nil && e.svid == u.svid {
			e.unsaved = true
		}
	}
	i.mu.Unlock()
	if problem != "" && problem != i.problem {
		i.cfg.Log.LogAttrs(context.Background(), slog.LevelWarn,
			"certificates of workloads are not on disk, and are asked for again after a restart",
			slog.Int("workloads", len(failed)), slog.String("reason", problem))
	}
	i.problem = problem
}

// sweep removes the files of workloads that nobody registers.
func (i *Issuer) sweep() {
	known := make(map[string]bool)
	i.mu.Lock()
	unswept := i.unswept
	i.unswept = false
	if unswept {
		for id := range i.held {
			known[nameOf(id)] = true
		}
	}
	i.mu.Unlock()
	if !unswept {
		return
	}
	names, err := i.cfg.FS.ReadDir(i.cfg.Dir)
	if err != nil {
		return // none were written, or none can be removed
	}
	for _, name := range names {
		if !known[name] && strings.HasSuffix(name, suffix) {
			// A file that stays has a key whose certificate ends by itself.
			_ = i.cfg.FS.Remove(filepath.Join(i.cfg.Dir, name))
		}
	}
}
