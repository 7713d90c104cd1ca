package recovery

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/proof"
)

// Expect is what an owner knows of the cluster beside the share file. Its zero
// fields expect nothing.
type Expect struct {
	// Pin is the hash of the root key.
	Pin identity.KeyID
	// Manifest is the hash of the manifest that is in force.
	Manifest manifest.Hash
	// Seen is the newest head that the owner's tool saw of the cluster.
	Seen Mark
}

// Options change what [Bring] does.
type Options struct {
	Expect Expect

	// Endpoint names the coordinator in errors.
	Endpoint string

	// DryRun stops it before the share is sent.
	DryRun bool

	// Force has the coordinator not ask its peers once more.
	Force bool

	// Agreed is the ID of the restore that the owner was shown and agreed to.
	Agreed [sha256.Size]byte

	// Now is the clock that the certificate of a coordinator is in date by. Nil means
	// time.Now.
	Now func() time.Time

	// Verified is told what was verified, before anything is sent. Nil: nobody is.
	Verified func(Verified)
}

// Verified is what an owner's tool verified of who asks for the share.
type Verified struct {
	History     *history.Verified
	Coordinator string // the name that the manifest in force gives to who proved the key
	Key         string // the enrolment key, "ed25519:<base64>"
	Attempt     string
	Ends        time.Time // of the attempt, as the coordinator says
	Progress    Progress  // as the coordinator says, before the share was sent
	Restore     *Restore  // for which the share is; nil: the history leads through what was seen
}

// Progress is how far an attempt is.
type Progress struct {
	Brought   []string // owners whose shares are in, sorted
	Missing   []string // the other owners, in the order of the manifest
	Needed    int      // shares
	Recovered bool     // the coordinator is ready
	Epoch     uint64   // authority epoch, once it is
	Head      history.Hash
}

// Bring takes part in a recovery over conn, whose server nobody vouches for yet
// (pinned.Unproven): it verifies who asks for which history, and sends the
// share of file if all of that holds, encrypted to this attempt alone.
//
// It does not notice by itself a history that was rolled back: an older head is
// signed as well as the newest. Expect.Seen and Expect.Manifest are for that.
//
// Neither is what passes in place of what was seen: a restore that the signers signed,
// to which Options.Agreed has to agree. Without that the error is an [*UnagreedError].
//
// Errors, before anything was sent: PeerOtherCluster, RecoveryHistory, HistoryWentBack,
// HistoryForked, RecoveryUnproven, RecoveryUnexpected, ShareNoOwner, ShareOld, ShareWrong of
// package errcode; later and earlier those of the coordinator, and of the
// connection.
func Bring(ctx context.Context, conn grpc.ClientConnInterface, file keyring.ShareFile, opts Options) (Progress, error) {
	// Ending the call on every way out also ends the server's side.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := fealtyv1.NewRecoveryServiceClient(conn).Recover(ctx)
	if err != nil {
		return Progress{}, err
	}
	first, err := stream.Recv()
	cs, ok := proof.ConnectionState(stream.Context())
	if err != nil {
		// One that is ready makes no offer. It shows its own certificate then, and by that a slip in the
		// address is no "the seed is back" for the owner.
		if named := clusterShown(cs); named != "" && named != file.Cluster {
			return Progress{}, errcode.Wrap(err, errcode.PeerOtherCluster, "endpoint", opts.Endpoint, "cluster", named,
				"expected", file.Cluster, "problem", "its certificate names that cluster, and nothing that is known here "+
					"vouches for it; nothing was sent", "do", otherShare(file, named))
		}
		return Progress{}, err
	}
	if !ok {
		return Progress{}, errcode.New(errcode.JoinNoBinding)
	}
	binding, err := proof.Binding(cs)
	if err != nil {
		return Progress{}, errcode.Wrap(err, errcode.JoinNoBinding, "problem", err.Error())
	}
	c := &checks{file: file, opts: opts, binding: binding, offer: first.GetOffer()}
	if err := c.offered(); err != nil {
		return Progress{}, err
	}
	c.history, err = receiveHistory(func() (*fealtyv1.RecoveryHistory, error) {
		msg, err := stream.Recv()
		return msg.GetHistory(), err
	})
	if err != nil {
		if _, ok := errcode.FromStatus(err); ok || !errors.Is(err, errBadHistory) {
			return Progress{}, err
		}
		return Progress{}, c.badHistory(err)
	}
	for _, check := range ownerChecks {
		if err := check.find(c); err != nil {
			return Progress{}, err
		}
	}
	if c.restore != nil && opts.Agreed != c.restore.ID {
		return Progress{}, &UnagreedError{c.restore}
	}
	progress := c.progress(c.offer.GetProgress())
	if opts.Verified != nil {
		opts.Verified(Verified{
			History: c.verified, Coordinator: c.coordinator, Key: c.offer.GetKey(),
			Attempt: shortID(c.offer.GetAttempt()), Ends: c.offer.GetExpiresAt().AsTime(), Progress: progress, Restore: c.restore,
		})
	}
	if opts.DryRun {
		return progress, nil
	}
	sent, err := keyring.SendShare(c.offer.GetRecipient(), keyring.Attempt{
		ID: ID(c.offer.GetAttempt()).String(), Cluster: file.Cluster, Owner: file.Owner,
	}, file.Share)
	if err != nil {
		return progress, errcode.Wrap(err, errcode.RecoveryUnproven, "endpoint", opts.Endpoint, "cluster", file.Cluster, "problem", "its recipient cannot be encrypted to")
	}
	req := &fealtyv1.RecoverRequest{Attempt: c.offer.GetAttempt(), Owner: file.Owner, Share: sent, Force: opts.Force}
	if err := stream.Send(req); err != nil && stream.Context().Err() != nil {
		return progress, err // otherwise the answer says why
	}
	answer, err := stream.Recv()
	if err != nil {
		return progress, err
	}
	return c.progress(answer.GetProgress()), nil
}

// checks is what the owner's checks look at, and what they find.
type checks struct {
	file    keyring.ShareFile
	opts    Options
	binding []byte
	offer   *fealtyv1.RecoveryOffer
	history *history.History

	verified    *history.Verified // set by history
	coordinator string            // set by coordinator
	restore     *Restore          // set by mark; nil: none is needed
}

// Check is one thing that an owner's tool verifies before it sends a share.
type Check struct {
	Name string
	Why  string // what goes wrong without it
}

// offered checks the offer as far as that needs no history, before that is received. Without it a share would be sent to
// another cluster, or for an offer that nobody could have proven.
func (c *checks) offered() error {
	o := c.offer
	switch o.GetCluster() {
	case c.file.Cluster:
	case "":
		return c.unproven(nil, "its offer names no cluster")
	default:
		return c.otherCluster(clip(o.GetCluster()), "it says so itself, and the share of "+c.file.Owner+" is of "+
			c.file.Cluster+"; nothing was sent")
	}
	if len(o.GetAttempt()) != proof.AttemptBytes {
		return c.unproven(nil, "its offer is malformed")
	}
	return nil
}

// ownerChecks are made in order, on the whole history; each may use what those
// before it found.
var ownerChecks = [...]struct {
	Check
	find func(c *checks) error
}{
	{Check{"history", "whoever controls the store could name himself as a coordinator"}, func(c *checks) error {
		v, err := history.Verify(c.history, c.file.TransactionKey)
		if err != nil {
			return c.badHistory(err)
		}
		if v.Manifest().Cluster != c.file.Cluster {
			return c.otherCluster(v.Manifest().Cluster, "its manifest, which the key in the share file signed, says so; "+
				"nothing was sent")
		}
		c.verified = v
		return nil
	}},
	{Check{"coordinator", "somebody in between, or a machine that was dismissed, would be given the share"}, func(c *checks) error {
		head := c.verified.Current().Hash
		t := proof.RecoveryTranscript{
			Cluster: c.file.Cluster, Attempt: c.offer.GetAttempt(), Binding: c.binding,
			Recipient: c.offer.GetRecipient(), Head: head[:],
		}
		selector, err := proof.VerifyRecovery(t, c.offer.GetKey(), c.offer.GetEvidence())
		if err != nil {
			return c.unproven(err, err.Error())
		}
		shown, err := shownBy(t, selector, c.offer.GetX509())
		if err != nil {
			return c.unproven(err, err.Error())
		}
		found, err := shown.Match(c.verified.Manifest(), c.now())
		if err != nil {
			return c.unproven(err, fmt.Sprintf("%v in force at index %d", err, c.verified.Current().Index))
		}
		c.coordinator = found.Name
		return nil
	}},
	{Check{"mark", "a store that was rolled back shows an older head, which is signed as well, and under which others were coordinators"}, (*checks).mark},
	{Check{"root pin", "an owner who knows the cluster by its root key would help another one"}, func(c *checks) error {
		if want, got := c.opts.Expect.Pin, identity.KeyID(c.file.RootPin); !want.IsZero() && want != got {
			return errcode.New(errcode.RecoveryUnexpected, "what", "the root key of the share file", "expected", want, "found", got)
		}
		return nil
	}},
	{Check{"manifest", "a store that was rolled back shows an older policy, under which others were coordinators"}, func(c *checks) error {
		if want, got := c.opts.Expect.Manifest, c.verified.Manifest().Hash(); want != (manifest.Hash{}) && want != got {
			return errcode.New(errcode.RecoveryUnexpected, "what", fmt.Sprintf("the manifest in force at index %d", c.verified.Current().Index), "expected", want, "found", got)
		}
		return nil
	}},
	{Check{"share", "a share that was replaced by a reshare would be sent for nothing"}, func(c *checks) error {
		return NewHead(c.verified.Links(), c.verified.Manifest()).Check(c.file.Owner, c.file.Share)
	}},
}

// shownBy is the coordinator that proved selector over t, with what it showed of a
// certificate.
func shownBy(t interface{ Digest() ([64]byte, error) }, selector string, x509 []byte) (proof.Coordinator, error) {
	said, err := t.Digest()
	if err != nil {
		return proof.Coordinator{}, err
	}
	return proof.ProvenCoordinator(selector, said, x509)
}

func (c *checks) now() time.Time {
	if c.opts.Now != nil {
		return c.opts.Now()
	}
	return time.Now()
}

func (c *checks) unproven(cause error, problem string) error {
	return errcode.Wrap(cause, errcode.RecoveryUnproven, "endpoint", c.opts.Endpoint, "cluster", c.file.Cluster, "problem", problem)
}

// otherCluster words that the coordinator is of the cluster named, and not of that of the share.
func (c *checks) otherCluster(named, problem string) error {
	return errcode.New(errcode.PeerOtherCluster, "endpoint", c.opts.Endpoint, "cluster", named, "expected", c.file.Cluster,
		"problem", problem, "do", otherShare(c.file, named))
}

// otherShare says what an owner does whose share is of another cluster than the coordinator.
func otherShare(file keyring.ShareFile, named string) string {
	return "name a coordinator of " + file.Cluster + " with --coordinator, or bring a share of " + named
}

// clusterShown is the cluster that a server's certificate names, as everybody sees who connects; blank if it
// names nobody. Nothing proves it.
func clusterShown(cs tls.ConnectionState) string {
	if len(cs.PeerCertificates) == 0 {
		return ""
	}
	id, err := identity.FromCertificate(cs.PeerCertificates[0])
	if err != nil {
		return ""
	}
	return id.Cluster()
}

func (c *checks) badHistory(err error) error {
	return errcode.Wrap(err, errcode.RecoveryHistory, "endpoint", c.opts.Endpoint, "problem", strings.TrimPrefix(err.Error(), "history: "))
}

// progress reads what the coordinator says, which nobody vouches for: names that
// the manifest does not know are left out.
func (c *checks) progress(p *fealtyv1.RecoveryProgress) Progress {
	head := NewHead(c.verified.Links(), c.verified.Manifest())
	out := Progress{Needed: head.Threshold, Recovered: p.GetRecovered(), Epoch: p.GetAuthorityEpoch()}
	if len(p.GetHead()) == len(out.Head) {
		out.Head = history.Hash(p.GetHead())
	}
	for _, o := range head.Owners() {
		if slices.Contains(p.GetBrought(), o) {
			out.Brought = append(out.Brought, o)
		} else {
			out.Missing = append(out.Missing, o)
		}
	}
	slices.Sort(out.Brought)
	return out
}

// errBadHistory is matched when the pages of a history are not what they should
// be, before it is replayed.
var errBadHistory = errors.New("the history is not sent as it should be")

// receiveHistory gathers the pages of a history. Its bounds are those of any
// history: whoever sends it may be anybody.
func receiveHistory(recv func() (*fealtyv1.RecoveryHistory, error)) (*history.History, error) {
	h := &history.History{Manifests: make(map[manifest.Hash][]byte)}
	total := 0
	for {
		page, err := recv()
		if err != nil {
			return nil, err
		}
		if page == nil || len(page.GetTransitions()) == 0 && len(page.GetHead()) == 0 {
			return nil, fmt.Errorf("%w: a page holds nothing", errBadHistory)
		}
		for _, t := range page.GetTransitions() {
			h.Links = append(h.Links, t)
			total += len(t)
		}
		for _, m := range page.GetManifests() {
			h.Manifests[sha256.Sum256(m)] = m
			total += len(m)
		}
		if total += len(page.GetHead()); total > history.MaxHistoryBytes || len(h.Links) > history.MaxTransitions {
			return nil, fmt.Errorf("%w: more than %d transitions or %d bytes", errBadHistory, history.MaxTransitions, history.MaxHistoryBytes)
		}
		if len(page.GetHead()) > 0 {
			h.Head = page.GetHead()
			return h, nil
		}
	}
}

// clip returns what is shown of a text from elsewhere.
func clip(s string) string {
	const most = 64
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}
