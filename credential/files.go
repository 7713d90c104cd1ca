package credential

import (
	"context"
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fealty-io/fealty/identity"
	internalidentity "github.com/fealty-io/fealty/internal/identity"
	"github.com/fealty-io/fealty/internal/pki/pemfile"
	"github.com/fealty-io/fealty/internal/platform/durable"
)

// FilePaths names the three files of an operator's PKI, in PEM. They are given
// together or not at all: see [FilePaths.Missing].
type FilePaths struct {
	Cert string // the leaf, then its issuers
	Key  string // the leaf's private key
	CA   string // the CA certificates that are believed
}

// IsZero reports whether none is given.
func (p FilePaths) IsZero() bool { return p == FilePaths{} }

// Missing returns which of Cert, Key and CA have to be given too, in this order, if some of
// the three are given and others are not; nil for all and for none. A file that was
// forgotten must not turn checks off without a word.
func (p FilePaths) Missing() []string {
	if p.IsZero() {
		return nil
	}
	var out []string
	for _, f := range []struct{ name, path string }{{"Cert", p.Cert}, {"Key", p.Key}, {"CA", p.CA}} {
		if f.path == "" {
			out = append(out, f.name)
		}
	}
	return out
}

// Limits of the files.
const (
	maxCertFileBytes = 64 << 10
	maxKeyFileBytes  = 32 << 10
	maxCAFileBytes   = 512 << 10
)

// FilesConfig says which files to follow, and what they must hold: the certificate is the
// process's identity in mTLS, without a coordinator. It carries exactly one SPIFFE id, and
// peers are believed by the same CA file ([identity.NewOperatorBundle]).
type FilesConfig struct {
	// Paths are the files. All three are required.
	Paths FilePaths

	// ID is the identity that the certificate must carry. Zero means the one
	// that it carries at first: a process keeps its identity until it is restarted.
	ID identity.ID

	// Now is the clock that dates are compared with. Nil means time.Now.
	Now func() time.Time

	// Log gets one line for each change that is adopted or refused. Nil means
	// slog.Default().
	Log *slog.Logger

	// OnFailure is called once for each change that is refused, so that it can be counted. It
	// must not block. Nil: nothing is called.
	OnFailure func(Reason)

	// Proof: the certificate proves the process to a coordinator, which issues the
	// identity. It needs no SPIFFE id, and ID is left out. No connection is made with the
	// material: [ServerTLS] and [ClientTLS] fail with [ErrNoMaterial].
	Proof bool

	// Accepted says that the files of a Proof were in use before this program was started:
	// at the start it takes what only breaks a rule that came after a release which took
	// it, and [Files.Failure] says so. A change that breaks the rule is refused all the
	// same. Without Proof it changes nothing.
	Accepted bool
}

// Times of [Files].
const (
	// settle is how long after its last change a file is read again although it looks
	// the same: two writes within a tick of the file system's clock leave one time.
	settle = 2 * time.Second
	// retryEvery is how often refused files are judged again although they did not
	// change: a certificate may not have begun yet.
	retryEvery = 10 * time.Second
	// lookEvery is how often Run looks.
	lookEvery = 5 * time.Second
	// readTries bounds how often files are read that change meanwhile.
	readTries = 3
)

// Files is a source over three PEM files, which it follows: each time it is asked it
// looks at their times, sizes and inodes, so that a rewrite in place and a swapped
// symlink (a mounted Kubernetes secret) are both seen. Changed material is
// validated as a whole before it is adopted. A missing file, one that is cut short, a new
// certificate with the old key, or an expired one leave the last good material in
// use (I14), and are looked at again until they are mended.
//
// It starts no goroutine. A program that waits on Changed without asking has
// to let [Files.Run] run.
type Files struct {
	cfg  FilesConfig
	read func(name string, limit int64) ([]byte, error)

	// turn is held by who looks into the files. Nobody waits for it: the others go on
	// with what is in use.
	turn  chan struct{}
	told  string      // what the last refusal that was told was about; guarded by turn
	owner identity.ID // whose the material is; guarded by turn

	seen atomic.Pointer[look]

	mu      sync.Mutex
	changed chan struct{} // closed at the next change; guarded by mu
	failure error         // why the files as they are now are not in use; guarded by mu
}

// look is what was found when the files were last looked into. It is immutable.
type look struct {
	material *Material // last good
	stamps   [3]stamp
	content  [sha256.Size]byte
	again    time.Time // when they are read again although the stamps are the same; zero: never
	newer    error     // what a newer rule refuses in it; only at the start
}

// stamp is what changes with a file. The zero stamp is that of a missing file.
type stamp struct {
	size          int64
	mtime, ctime  int64 // nanoseconds
	device, inode uint64
}

// NewFiles loads the files and returns a source that follows them. It fails with a
// [*MaterialError] unless they hold good material now: at the start there is nothing
// to keep.
func NewFiles(cfg FilesConfig) (*Files, error) {
	if cfg.Paths.IsZero() {
		return nil, errors.New("credential: FilesConfig.Paths is empty: name the files of certificate, key and CA")
	}
	if missing := cfg.Paths.Missing(); len(missing) > 0 {
		return nil, &MaterialError{Reason: Incomplete,
			Detail: "of the files " + strings.Join(missing, " and ") + " are missing; give all three, or none"}
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	f := &Files{cfg: cfg, read: durable.OS().ReadFile, turn: make(chan struct{}, 1), owner: cfg.ID, changed: make(chan struct{})}
	found, err := f.open(nil)
	if err != nil {
		return nil, err
	}
	f.failure = found.newer
	f.owner = found.material.ID()
	f.seen.Store(found)
	return f, nil
}

// Current looks at the files and returns the material to use now. It costs three
// calls of stat while nothing changes, and never fails.
func (f *Files) Current(ctx context.Context) (*Material, error) {
	last := f.seen.Load()
	if f.unchanged(last) {
		return last.material, nil
	}
	select {
	case f.turn <- struct{}{}:
		defer func() { <-f.turn }()
		f.reload(ctx)
	default: // somebody looks already
	}
	return f.seen.Load().material, nil
}

// Changed returns a channel that is closed when a change was adopted.
func (f *Files) Changed() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

// Failure returns why the files as they are now are not in use, a [*MaterialError],
// or nil.
func (f *Files) Failure() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failure
}

// Paths are the files that are followed.
func (f *Files) Paths() FilePaths { return f.cfg.Paths }

// Run looks at the files every few seconds until ctx ends, then returns its error.
func (f *Files) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(lookEvery):
		}
		_, _ = f.Current(ctx) // it never fails
	}
}

func (f *Files) paths() [3]string {
	return [3]string{f.cfg.Paths.Cert, f.cfg.Paths.Key, f.cfg.Paths.CA}
}

// unchanged reports whether there is nothing to look into.
func (f *Files) unchanged(last *look) bool {
	return (last.again.IsZero() || time.Now().Before(last.again)) && f.stamps() == last.stamps
}

func (f *Files) stamps() [3]stamp {
	var out [3]stamp
	for i, p := range f.paths() {
		if info, err := os.Stat(p); err == nil {
			out[i] = stampOf(info)
		}
	}
	return out
}

// reload looks into the files, and adopts what is good. The caller holds turn.
func (f *Files) reload(ctx context.Context) {
	last := f.seen.Load()
	if f.unchanged(last) {
		return // somebody was faster
	}
	next, err := f.open(last)
	if err != nil {
		f.refuse(ctx, last, next, err)
		return
	}
	f.told = ""
	changed := next.material != last.material
	f.mu.Lock()
	f.seen.Store(next)
	f.failure = nil
	if changed {
		close(f.changed)
		f.changed = make(chan struct{})
	}
	f.mu.Unlock()
	if changed {
		f.cfg.Log.LogAttrs(ctx, slog.LevelInfo, "credential files adopted", slog.String("certificate", f.cfg.Paths.Cert), slog.String("material", next.material.String()))
	}
}

// refuse keeps the last good material, and tells why once for each change. next is
// what was found, nil if the files did not keep still.
func (f *Files) refuse(ctx context.Context, last, next *look, err error) {
	reason := reasonOf(err)
	f.mu.Lock()
	f.failure = err
	f.mu.Unlock()
	if next == nil {
		return // they are being written; the next call looks again
	}
	next.material = last.material
	f.seen.Store(next)
	about := string(reason) + string(next.content[:])
	if about == f.told {
		return
	}
	f.told = about
	if f.cfg.OnFailure != nil {
		f.cfg.OnFailure(reason)
	}
	f.cfg.Log.LogAttrs(ctx, slog.LevelWarn, "credential files not adopted, the last good ones stay in use", slog.String("certificate", f.cfg.Paths.Cert),
		slog.String("reason", string(reason)), slog.String("problem", err.Error()), slog.String("material", last.material.String()))
}

func reasonOf(err error) Reason {
	if e, ok := errors.AsType[*MaterialError](err); ok {
		return e.Reason
	}
	return Unreadable
}

// open reads and validates the files. It returns what it found beside an error too,
// without material, so that the same is not judged on each call.
func (f *Files) open(last *look) (*look, error) {
	var raw [3][]byte
	defer func() { clear(raw[1]) }()
	for range readTries {
		before := f.stamps()
		var failed error
		for i, limit := range [3]int64{maxCertFileBytes, maxKeyFileBytes, maxCAFileBytes} {
			clear(raw[i])
			var err error
			if raw[i], err = f.read(f.paths()[i], limit); err != nil && failed == nil {
				failed = unreadable(f.paths()[i], err)
			}
		}
		if f.stamps() != before {
			continue // a mixture of old and new, perhaps
		}
		found := &look{stamps: before, content: contentOf(raw, failed), again: f.settled(before)}
		if failed != nil {
			found.again = sooner(found.again, time.Now().Add(retryEvery))
			return found, failed
		}
		if last != nil && found.content == last.content && f.Failure() == nil {
			found.material = last.material
			return found, nil
		}
		m, newer, err := f.parse(raw, last == nil && f.cfg.Accepted)
		if err != nil {
			found.again = sooner(found.again, time.Now().Add(retryEvery))
			return found, err
		}
		if last != nil && m.Fingerprint() == last.material.Fingerprint() {
			m = last.material // written again, and no different
		}
		if found.material, found.newer = m, newer; newer != nil {
			found.again = sooner(found.again, time.Now().Add(retryEvery))
		}
		return found, nil
	}
	return nil, &MaterialError{Reason: Unreadable, Detail: fmt.Sprintf("%s and its companions change while they are read", f.cfg.Paths.Cert)}
}

// settled returns when files with these stamps have surely been seen as they are:
// zero if that is so already.
func (f *Files) settled(stamps [3]stamp) time.Time {
	now := time.Now()
	for _, s := range stamps {
		newest := time.Unix(0, max(s.mtime, s.ctime))
		if s != (stamp{}) && now.Sub(newest) < settle {
			// At once: until then every call reads them again, and parses only what is new.
			return now
		}
	}
	return time.Time{}
}

func sooner(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// contentOf tells contents apart; of files that cannot be read, the reasons.
func contentOf(raw [3][]byte, failed error) [sha256.Size]byte {
	h := sha256.New()
	for _, b := range raw {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(b))))
		h.Write(b)
	}
	if failed != nil {
		h.Write([]byte(failed.Error()))
	}
	return [sha256.Size]byte(h.Sum(nil))
}

func unreadable(path string, err error) error {
	detail := path + " cannot be read"
	if errors.Is(err, fs.ErrNotExist) {
		detail = path + " is missing"
	}
	return &MaterialError{Reason: Unreadable, Detail: detail, Err: err}
}

// parse validates what the files hold, as a whole. newer is what is wrong with it that was
// accepted before.
func (f *Files) parse(raw [3][]byte, accepted bool) (m *Material, newer, err error) {
	p := f.cfg.Paths
	chain, err := parseCertificates(p.Cert, raw[0], pemfile.Keys)
	if err != nil {
		return nil, nil, err
	}
	roots, err := parseCertificates(p.CA, raw[2], pemfile.Nothing)
	if err != nil {
		return nil, nil, err
	}
	key, err := parseKey(p.Key, raw[1])
	if err != nil {
		return nil, nil, err
	}
	proof := proofConfig{Chain: chain, Key: key, Roots: roots, Now: f.cfg.Now}
	switch {
	case f.cfg.Proof && accepted:
		return acceptedProof(proof)
	case f.cfg.Proof:
		m, err := currentProof(proof)
		return m, nil, err
	}
	id, err := identity.FromCertificate(chain[0])
	if err != nil {
		return nil, nil, &MaterialError{Reason: NoIdentity, Detail: "the certificate in " + p.Cert + " must carry exactly one SPIFFE id", Err: err}
	}
	bundle, err := identity.NewOperatorBundle(id.Cluster(), roots)
	if err != nil {
		return nil, nil, &MaterialError{Reason: Incomplete, Detail: "the CA certificates in " + p.CA + " cannot be used", Err: err}
	}
	m, err = NewMaterial(MaterialConfig{Chain: chain, Key: key, Bundle: bundle, Now: f.cfg.Now})
	if err != nil {
		return nil, nil, err
	}
	if !f.owner.IsZero() && m.ID() != f.owner {
		return nil, nil, &MaterialError{Reason: OtherIdentity, Detail: fmt.Sprintf("the certificate in %s identifies %s, wanted is %s; a process keeps its identity until it is restarted", p.Cert, m.ID(), f.owner)}
	}
	return m, nil, nil
}

// maxPEMBlocks bounds the blocks of a file: certificates, a key and its parameters.
const maxPEMBlocks = internalidentity.MaxOperatorRoots + 2

// parseCertificates reads a file of certificates. The certificate's file may hold its key too.
func parseCertificates(path string, data []byte, beside pemfile.Beside) ([]*x509.Certificate, error) {
	certs, _, err := pemfile.Certificates(data, pemfile.Limits{Bytes: maxCAFileBytes, Blocks: maxPEMBlocks}, beside)
	if err != nil {
		return nil, malformed(path, err)
	}
	if len(certs) > internalidentity.MaxOperatorRoots {
		return nil, malformed(path, fmt.Errorf("it holds %d certificates, and at most %d are read", len(certs), internalidentity.MaxOperatorRoots))
	}
	return certs, nil
}

// parseKey reads the one private key of a file: PKCS #8, or what openssl writes for
// RSA and EC. Errors quote nothing of it.
func parseKey(path string, data []byte) (crypto.Signer, error) {
	key, err := pemfile.PrivateKey(data, pemfile.Limits{Bytes: maxKeyFileBytes, Blocks: maxPEMBlocks})
	if err != nil {
		return nil, malformed(path, err)
	}
	return key, nil
}

// malformed says what is wrong with a file. What it is about is in the text: nothing of the file is in an error that it
// wraps.
func malformed(path string, err error) error {
	return &MaterialError{Reason: Malformed, Detail: path + ": " + err.Error()}
}
