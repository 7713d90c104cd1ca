package durable

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"sync"

	"github.com/fealty-io/fealty/fence"
	files "github.com/fealty-io/fealty/internal/platform/durable"
)

// The names of the files in a receiver's directory.
const (
	ledgerFile = "ledger"
	ledgerLock = "ledger.lock"
)

const (
	// maxQueued bounds the calls that wait for the disk.
	maxQueued = 1 << 16

	// slack is how much larger than twice what is live a ledger's file may be, in bytes.
	slack = 1 << 20
)

// mendLedgerWith is what people do about a ledger that is missing or damaged.
const mendLedgerWith = "do not make, cut or delete the file by hand, as a receiver that forgot obeys a zombie; " +
	"have the authority begin a new authority epoch, assign every domain and grant every holder anew under it, " +
	"and open the directory with MendLedger and that epoch"

var (
	// ErrBroken is matched once something could not be saved: what the file holds is not
	// known, and nothing is admitted until [Ledger.Rewrite] or [OpenLedger] wrote it anew.
	ErrBroken = errors.New("ledger is broken")

	// ErrOtherCluster is matched when a ledger is of another cluster than its options say.
	ErrOtherCluster = errors.New("ledger of another cluster")
)

// Ledger is [fence.Ledger] on disk: it is the [fence.Marks] of a receiver that is started
// again. It may be used by several goroutines, and starts none.
//
// Admit, Promise and Forget return nil once what they changed is on disk, and it shows in
// memory no earlier. Calls that wait at the same time share one sync: the first of them
// makes it for all. A call whose context ends meanwhile is over, and what it asked for may
// come all the same.
//
// The file grows with every attempt, and is written anew when it is larger than twice what
// it has to hold and 1 MiB; calls that come just then wait for that.
type Ledger struct {
	disk   files.FS
	name   string
	lock   io.Closer
	memory *fence.Ledger // what is on disk
	header ledgerHeader
	queue  int   // maxQueued; a test has fewer
	slack  int64 // slack; a test has less

	// turn holds a value while somebody writes for all who wait. No mutex is held over I/O.
	turn   chan struct{}
	log    files.File // nil while broken; used by the one with the turn, as all down to mu
	frames *frames
	size   int64 // of the file
	live   int64 // of its changes, if it was written anew
	batch  batch

	rewriting rewriting

	requests sync.Pool // of *request, whose channels are empty

	mu      sync.Mutex
	waiting []*request   // guarded by mu
	led     bool         // guarded by mu; somebody makes a batch, or was told to
	broken  error        // guarded by mu; why nothing is saved
	status  LedgerStatus // guarded by mu
}

// rewriting says when the file is written anew.
type rewriting struct {
	failed error // what came of the last try
	next   int64 // the size at which the next is made, at least
}

// LedgerStatus is for metrics and alarms.
type LedgerStatus struct {
	Size int64 // bytes of the file
	Live int64 // bytes of it that are needed: written anew it would have no more

	// Since is the lowest authority epoch whose statements count; 0 if the ledger was never
	// mended.
	Since uint64

	// Broken is why nothing is admitted, and matches [ErrBroken]; nil if all is well.
	Broken error

	// Rewriting is why the file could not be written anew when it had grown; nil if it could.
	// The ledger goes on, with a file that grows.
	Rewriting error
}

// LedgerOptions say how strict a ledger is, on disk as in memory.
type LedgerOptions = fence.LedgerOptions

// EnrolLedger begins with a receiver that has obeyed nobody yet: it happens once, when the
// receiver is made. With a file there it is an error that matches [ErrEnrolled], also when
// that was interrupted; [OpenLedger] goes on from there. A directory that does not exist is
// made, with mode 0700. Otherwise it is as OpenLedger.
func EnrolLedger(dir string, o LedgerOptions) (*Ledger, error) {
	return openLedger(files.OS(), dir, o, opening{enrol: true})
}

// OpenLedger returns the ledger in a directory that exists, and holds it until
// [Ledger.Close] or the end of the process. Nobody else writes to the directory. The file is
// written anew, so that nothing goes on from what a crash left half done.
//
// The errors match [ErrLocked], [ErrMissing], [ErrCorrupt] or [ErrOtherCluster], are those
// of the disk, or say that options are laxer than a ledger that was mended allows. After any
// of them the file is as it was, or holds the same.
func OpenLedger(dir string, o LedgerOptions) (*Ledger, error) {
	return openLedger(files.OS(), dir, o, opening{})
}

// MendLedger opens a ledger whose file is missing, is damaged, or is an older copy than
// what the receiver has admitted since. Nothing that was signed before the authority epoch
// since counts any more: a holder is refused until it comes with a grant of since or later,
// and a domain until an assignment of since or later is promised. So since is an authority
// epoch that began after the receiver was stopped, and under which the authority assigns
// every domain and grants every holder anew, above all earlier numbers.
//
// It is somebody's decision, and never a start's of its own: what was admitted under since
// would be forgotten with the next file. Of a whole file the domains of resources are kept,
// and the marks, which are none too high. Resources that the file does not know may have been
// in a domain, so that RequireDomain is needed from now on: otherwise anybody could act on
// them as on those of no domain. BelieveEpochs is refused from now on, as nothing would tell
// the earlier processes apart. A whole file that was mended since already is opened as by
// [OpenLedger].
func MendLedger(dir string, o LedgerOptions, since uint64) (*Ledger, error) {
	return openLedger(files.OS(), dir, o, opening{mend: true, since: since})
}

// opening is what is known of a ledger from elsewhere than its file.
type opening struct {
	enrol bool   // there is none yet
	mend  bool   // it is missing, damaged or old
	since uint64 // with mend
}

func openLedger(disk files.FS, dir string, o LedgerOptions, how opening) (_ *Ledger, err error) {
	if how.enrol {
		if err := disk.MkdirAll(dir); err != nil {
			return nil, fmt.Errorf("fence: enrol in %s: %w", dir, err)
		}
	}
	lock, err := disk.Lock(filepath.Join(dir, ledgerLock))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("fence: there is no directory %s: name the one in which this receiver was enrolled, or call "+
			"EnrolLedger if it never was: %w", dir, err)
	}
	if err != nil {
		return nil, fmt.Errorf("fence: open the ledger in %s: %w", dir, err)
	}
	l := &Ledger{disk: disk, name: filepath.Join(dir, ledgerFile), lock: lock, queue: maxQueued, slack: slack,
		turn: make(chan struct{}, 1)}
	defer func() {
		if err != nil {
			err = errors.Join(err, lock.Close())
		}
	}()
	l.header, l.memory, err = l.load(o)
	switch {
	case how.enrol && !errors.Is(err, ErrMissing):
		return nil, errors.Join(fmt.Errorf("fence: enrol in %s: %w", l.name, ErrEnrolled), err)
	case how.enrol:
		l.header, err = ledgerHeader{cluster: o.Cluster}, nil
	case how.mend:
		err = l.mend(o, how.since, err)
	}
	switch {
	case err != nil:
		return nil, err
	case l.header.since != 0 && o.BelieveEpochs:
		return nil, fmt.Errorf("fence: %s was mended, and BelieveEpochs would admit the processes of before: "+
			"open it without, and have every holder granted", l.name)
	case l.header.since != 0 && !o.RequireDomain:
		return nil, fmt.Errorf("fence: %s was mended, and nobody knows which resources were in a domain: "+
			"open it with RequireDomain, so that none passes for one of no domain", l.name)
	}
	// Always written anew: what was read may be in the system's memory alone, if the earlier
	// process died after a sync that failed.
	if err := l.rewrite(); err != nil {
		return nil, fmt.Errorf("fence: write %s: make the directory writable, with room, and start again: %w", l.name, err)
	}
	l.note()
	return l, nil
}

// load reads the file.
func (l *Ledger) load(o LedgerOptions) (ledgerHeader, *fence.Ledger, error) {
	memory := fence.NewLedger(o)
	file, err := l.disk.OpenLog(l.name)
	if errors.Is(err, fs.ErrNotExist) {
		return ledgerHeader{}, memory, fmt.Errorf("fence: %s is missing: %s: %w", l.name, mendLedgerWith, ErrMissing)
	}
	if err != nil {
		return ledgerHeader{}, memory, fmt.Errorf("fence: read %s: %w", l.name, err)
	}
	defer file.Close()
	h, err := readLedger(file, memory)
	if d, ok := errors.AsType[*damage](err); ok {
		return h, memory, fmt.Errorf("fence: %s is %w, %w: %s", l.name, ErrCorrupt, d, mendLedgerWith)
	}
	if err != nil {
		return h, memory, fmt.Errorf("fence: read %s: %w", l.name, err)
	}
	if h.cluster != o.Cluster {
		return h, memory, fmt.Errorf("fence: %s is of cluster %q, and is opened for %q: "+
			"a receiver that moves to another cluster gets a new directory: %w", l.name, h.cluster, o.Cluster, ErrOtherCluster)
	}
	return h, memory, nil
}

// mend makes of what was loaded what is left of it since a new authority epoch.
func (l *Ledger) mend(o LedgerOptions, since uint64, loaded error) error {
	lost := errors.Is(loaded, ErrMissing) || errors.Is(loaded, ErrCorrupt)
	switch {
	case loaded != nil && !lost:
		return loaded // one that was not read may be whole
	case loaded == nil && since == l.header.since && since != 0:
		return nil
	case since <= l.header.since:
		return fmt.Errorf("fence: mend %s: authority epoch %d is none that began after it was mended since %d: "+
			"have the authority begin a new one: %w", l.name, since, l.header.since, errors.Join(ErrSuperseded, loaded))
	case o.BelieveEpochs, o.Cluster == "":
		return fmt.Errorf("fence: mend %s: without grants nothing tells the processes of before: set Cluster, and "+
			"not BelieveEpochs; without an authority stop every sender, start each under an epoch above all that it had, "+
			"and enrol the receiver in an empty directory", l.name)
	case !o.RequireDomain:
		return errors.Join(fmt.Errorf("fence: mend %s: nobody knows any more which resources are in a domain: "+
			"set RequireDomain, so that none passes for one of no domain", l.name), loaded)
	}
	left := fence.NewLedger(o)
	if !lost {
		for c := range l.memory.All() {
			// Promises and processes are closed until they come again: those that are remembered
			// may be older than others that were obeyed.
			if c.Mark.Sequence != 0 {
				left.Set(fence.Change{Pair: c.Pair, Mark: c.Mark, Domain: c.Domain})
			}
		}
	}
	l.memory, l.header = left, ledgerHeader{cluster: o.Cluster, since: since}
	return nil
}

// Check is [fence.Ledger.Check].
func (l *Ledger) Check(c fence.Claim) error {
	_, err := l.check(&c)
	return err
}

// check decides. A grant from before the ledger was mended counts as none.
func (l *Ledger) check(c *fence.Claim) (fence.Change, error) {
	if grant, ok := c.Grant.Get(); ok && grant.AuthorityEpoch < l.header.since {
		c.Grant = fence.Verified[fence.Grant]{}
	}
	return l.memory.Check(*c)
}

// Admit is [fence.Ledger.Admit], and the mark is on disk when it returns nil.
//
// Errors: a [*fence.RefusedError], which changed nothing; one that matches [ErrBroken],
// [fence.ErrBusy] if too many calls wait for the disk, [fs.ErrClosed] after Close, or the
// context's, and the attempt is not made; its token may be used up.
func (l *Ledger) Admit(ctx context.Context, c fence.Claim) error {
	r := l.newRequest()
	r.kind, r.claim = recordPair, c
	return l.save(ctx, r)
}

// Promise is [fence.Ledger.Promise], and it is on disk when it returns nil. Other errors
// than a [*fence.PromiseError] are those of Admit, and the promise may be made or not.
func (l *Ledger) Promise(ctx context.Context, a fence.Verified[fence.Assignment]) error {
	r := l.newRequest()
	r.kind, r.promise = recordPromise, a
	return l.save(ctx, r)
}

// Forget is [fence.Ledger.Forget], and the resource is forgotten on disk when it returns
// nil. Its errors are those of Admit, and it may be forgotten or not.
func (l *Ledger) Forget(ctx context.Context, resource string) error {
	r := l.newRequest()
	r.kind, r.forget = recordForget, resource
	return l.save(ctx, r)
}

// DomainOf is [fence.Ledger.DomainOf].
func (l *Ledger) DomainOf(resource string) string { return l.memory.DomainOf(resource) }

// Mark is [fence.Ledger.Mark], of what is on disk.
func (l *Ledger) Mark(p fence.Pair) fence.Mark { return l.memory.Mark(p) }

// Promised is [fence.Ledger.Promised], of what is on disk.
func (l *Ledger) Promised(domain string) fence.Assigned { return l.memory.Promised(domain) }

// ProcessOf is [fence.Ledger.ProcessOf], of what is on disk.
func (l *Ledger) ProcessOf(holder string) fence.Process { return l.memory.ProcessOf(holder) }

// Status returns how the ledger is.
func (l *Ledger) Status() LedgerStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.status
	s.Broken = l.broken
	return s
}

// Rewrite writes the file anew, with all that was acknowledged and nothing else. A ledger
// that is broken goes on after it returned nil: somebody has made room on the disk, or
// mounted another one.
func (l *Ledger) Rewrite(ctx context.Context) error {
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-l.turn }()
	l.mu.Lock()
	broken := l.broken
	l.mu.Unlock()
	if errors.Is(broken, fs.ErrClosed) {
		return broken
	}
	err := l.rewrite()
	if err != nil && (broken != nil || errors.Is(err, files.ErrUnknownOutcome)) {
		return l.fail(err)
	}
	l.rewriting.failed = err
	l.note()
	if err != nil {
		return fmt.Errorf("fence: write %s anew: it is as it was, and goes on: %w", l.name, err)
	}
	l.mu.Lock()
	l.broken = nil
	l.mu.Unlock()
	return nil
}

// Close gives the directory back, once nothing is being saved. Calls that wait, and
// those that come later, get an error that matches [fs.ErrClosed].
func (l *Ledger) Close() error {
	l.turn <- struct{}{}
	defer func() { <-l.turn }()
	l.mu.Lock()
	waiting := l.waiting
	l.waiting, l.broken = nil, fmt.Errorf("fence: %s: %w", l.name, fs.ErrClosed)
	closed := l.broken
	l.mu.Unlock()
	for _, r := range waiting {
		r.done <- closed
	}
	var err error
	if l.log != nil {
		err = l.log.Close()
		l.log = nil
	}
	return errors.Join(err, l.lock.Close())
}
