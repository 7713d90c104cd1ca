package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/internal/agent/fetch"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/node/accept"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/enroll"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/node/verdict"
	"github.com/fealty-io/fealty/internal/pki"
	pausepkg "github.com/fealty-io/fealty/internal/platform/clock"
	"github.com/fealty-io/fealty/internal/proof"
)

// Times of renewal.
const (
	renewSpread  = 0.1              // part of the interval, to either side
	startSpread  = 10 * time.Second // machines that start together do not renew together
	demandSpread = 10 * time.Second // nor do those that are told to
	clockLook    = time.Minute      // a timer does not see a clock that is set, or a machine that slept
	outagePause  = 5 * time.Minute  // before a new key is tried again that could not be recorded, or kept
)

// keepCertified renews until ctx ends. It never gives up: the working credential
// stays in use whatever happens, and the reason of a failure is kept.
func (r *renewal) keepCertified(ctx context.Context) error {
	var (
		pause   pausepkg.Backoff
		refused pausepkg.Seldom
		waiting []chan<- error
		s       = schedule{
			spread:    renewSpread * (2*rand.Float64() - 1),
			unwelcome: !r.contact.Presentable(ctx), // our own bundle does not accept it
		}
		stuck  bool      // the last failure is a lasting one
		done   time.Time // of the last success
		looked time.Time // at a disk that takes nothing

		rotated = r.operatorChanged() // kept until it fires: no change is missed
	)
	s = s.of(r)
	s.start = r.node.Now().Add(s.within(r.node.Now(), pausepkg.UpTo(startSpread), rand.Float64()))
	for {
		s = s.of(r)
		now := r.node.Now()
		if s.start.Sub(now) > startSpread {
			s.start = time.Time{} // the clock was ahead when it was set
		}
		act, at := s.next(now)
		r.node.Status().RenewsAt(at)
		if wait := at.Sub(now); wait > 0 {
			t := time.NewTimer(min(wait, clockLook))
			select {
			case <-ctx.Done():
			case <-t.C:
			case reply := <-r.renewAsk:
				waiting, s.asked = append(waiting, reply), true
			case reason := <-r.renewNow:
				r.log.LogAttrs(ctx, slog.LevelInfo, "a coordinator asks for a renewal", slog.String("reason", reason))
				if s.demanded.IsZero() {
					s.demanded = now.Add(s.within(now, pausepkg.UpTo(demandSpread), rand.Float64()))
				}
			case <-r.rejected:
				// Right after a success it is the coordinator that is behind.
				if done.IsZero() || now.Sub(done).Abs() > pausepkg.Lasting {
					s.unwelcome = true
				}
			case <-rotated:
				// The missing thing may be what a person mended, or a PKI renewed.
				rotated = r.operatorChanged()
				if s.retry.After(now) {
					s.retry = now.Add(pausepkg.UpTo(time.Second))
				}
			case <-r.strange:
				if r.contact.AskForChanges(ctx) {
					s.unwelcome = true
				}
			case <-r.renewNotify:
				if !stuck && s.retry.After(now) {
					s.retry = now.Add(pausepkg.UpTo(time.Second))
				}
			}
			t.Stop()
			if err := ctx.Err(); err != nil {
				return err
			}
			if r.unkept != nil && r.node.Now().Sub(looked).Abs() >= clockLook {
				looked = r.node.Now()
				if _, err := r.nextKey(); err == nil { // which is renewed to at once
					s.retry = time.Time{}
				}
			}
			continue
		}
		err := r.certify(ctx, act)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		for _, reply := range waiting {
			reply <- err
		}
		waiting, s.asked = nil, false
		r.node.Status().Renewed(err)
		r.ended(act.String(), outcome(err))
		s, now = s.of(r), r.node.Now()
		again, _ := errors.AsType[*againError](err)
		switch stuck = err != nil && verdict.Lasting(err); {
		case again != nil:
			pause.Reset()
			refused.Reset()
			// The new certificate makes a new connection, which is no news of what kept the
			// key from being changed.
			done, stuck, looked = now, true, now
			s = s.renewed(s.spread).fail(now, pausepkg.Around(outagePause, 0.2), rand.Float64())
			r.log.LogAttrs(ctx, slog.LevelWarn, "certified, and the key is not changed as it should be",
				slog.Time("svid_not_after", again.until),
				slog.String("code", errcode.CodeOf(err)), slog.String("reason", state.OneLine(again.err)),
				slog.Time("retry", s.retry))
			continue
		case err == nil:
			pause.Reset()
			refused.Reset()
			done = now
			s = s.renewed(renewSpread * (2*rand.Float64() - 1))
			continue
		case stuck:
			s = s.fail(now, refused.Next(), rand.Float64())
			r.log.LogAttrs(ctx, slog.LevelError, "incident: the cluster does not certify this node, which stays up",
				slog.String("action", act.String()),
				slog.String("code", errcode.CodeOf(err)), slog.String("reason", state.OneLine(err)),
				slog.Time("svid_not_after", s.notAfter), slog.Time("retry", s.retry))
		default:
			s = s.fail(now, pause.Next(), rand.Float64())
			r.log.LogAttrs(ctx, slog.LevelWarn, "not certified, the working credential stays",
				slog.String("action", act.String()),
				slog.String("code", errcode.CodeOf(err)), slog.String("reason", state.OneLine(err)),
				slog.Time("svid_not_after", s.notAfter), slog.Time("retry", s.retry))
		}
		if act == renewing && verdict.Unwelcome(err) {
			s.unwelcome = true
		}
		if verdict.StrangeRoot(err) && r.contact.AskForChanges(ctx) {
			s.unwelcome, s.retry = true, time.Time{}
			pause.Reset()
		}
	}
}

// demand has the node renew because a coordinator asks for it.
func (r *renewal) demand(reason string) {
	select {
	case r.renewNow <- reason:
	default: // one is under way
	}
}

// of returns s for the identity that the node holds now.
func (s schedule) of(a *renewal) schedule {
	held := a.node.SVID()
	s.notBefore, s.notAfter = held.Leaf().NotBefore, held.Leaf().NotAfter
	s.every, s.pending = enroll.RenewEvery(a.node.TrustState()), a.next != nil && a.next.Key.ID != held.Key.ID
	return s
}

// outcome is a metric label.
func outcome(err error) string {
	if err == nil {
		return "ok"
	}
	if code := errcode.CodeOf(err); code != "" {
		return code
	}
	return "error"
}

func (r *renewal) certify(ctx context.Context, act action) error {
	if act == rejoining || r.node.Moved() != nil {
		return r.rejoin(ctx)
	}
	return r.renew(ctx)
}

// nextKey returns the key to have certified, which is durable: the one whose
// answer may have been lost, or a new one. If the disk takes none, unkept says so.
// Owned by keepCertified.
func (r *renewal) nextKey() (dir.KeyPair, error) {
	held := r.node.SVID()
	if r.next != nil && r.next.Key.ID != held.Key.ID {
		r.unkept = nil
		return r.next.Key, nil
	}
	key, err := r.newNext(held)
	r.unkept = err
	return key, err
}

// newNext makes the next key durable. Until the certificate in use is on disk, its key
// may be there as the next one alone, so that comes first.
func (r *renewal) newNext(held *dir.SVID) (dir.KeyPair, error) {
	unkept := func(name string, err error) (dir.KeyPair, error) {
		return dir.KeyPair{}, errcode.Wrap(err, errcode.NodeDiskRefuses, "file", r.node.Store().Path(name), "problem",
			err.Error())
	}
	if r.unsaved {
		if err := r.node.Store().WriteSVID(*held); err != nil {
			return unkept(dir.SVIDName, err)
		}
		r.unsaved = false
	}
	key, err := dir.NewKeyPair()
	if err != nil {
		return dir.KeyPair{}, err
	}
	k := state.PendingKey{Key: key, Purpose: dir.PurposeRenew}
	if err := r.node.Store().WriteNext(k); err != nil {
		return unkept(dir.NextName, err)
	}
	r.next = &k
	return key, nil
}

// renew has a new key certified by the identity that the node holds. Where none can be
// recorded, because the coordinators' store is out of reach or full, or kept, because the
// node's own disk takes nothing, it has the recorded key certified again: then the error
// is an [againError].
func (r *renewal) renew(ctx context.Context) error {
	key, err := r.nextKey()
	if err != nil {
		return r.certifiedAgain(err, r.contact.Ask(ctx, r.recertify))
	}
	csr, err := pki.NewCSR(key.Signer())
	if err != nil {
		return err
	}
	// Of a certificate that ends soon not all of the rest goes into hoping for another
	// coordinator's store.
	now := r.node.Now()
	enough := now.Add(r.node.SVID().Leaf().NotAfter.Sub(now) / pausePart)
	var cannot []string // whose store took nothing
	err = r.contact.Ask(ctx, func(ctx context.Context, address string, conn grpc.ClientConnInterface) error {
		if len(cannot) > 0 && r.node.Now().After(enough) {
			return fetch.ErrEnough
		}
		resp, err := fealtyv1.NewAdmissionServiceClient(conn).Renew(ctx,
			&fealtyv1.RenewRequest{Name: r.node.Me().ID.Name(), Csr: csr})
		if err == nil {
			return r.adoptRenewed(ctx, key, resp.GetChain())
		}
		if e, ok := verdict.Explained(err); ok && (errors.Is(e, errcode.StoreUnreachable) ||
			e.Code == errcode.StoreOutcomeUnknown || e.Code == errcode.StoreFull || e.Code == errcode.StoreRefuses) {
			cannot = append(cannot, address)
		}
		return err
	})
	if err == nil {
		return r.certifiedAgain(r.unkept, nil)
	}
	if ctx.Err() != nil {
		return err
	}
	for _, address := range cannot {
		again := r.contact.AskOne(ctx, address, r.recertify)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if again == nil {
			return r.certifiedAgain(err, nil)
		}
		if e, ok := verdict.Of(again); ok {
			return e
		}
		err = errors.Join(err, &verdict.AddressError{Address: address, Err: again})
	}
	return err
}

// againError says why the key was not changed, or is not on disk, although the node is
// certified anew.
type againError struct {
	until time.Time // it is certified
	err   error     // how it went otherwise
}

func (e *againError) Error() string {
	return fmt.Sprintf("%v; the present key is certified until %s", e.err, e.until.UTC().Format(time.RFC3339))
}
func (e *againError) Unwrap() error { return e.err }

// certifiedAgain returns how a renewal ended that could not go as it should because of why, nil
// for nothing, and whose certificate came with failed.
func (r *renewal) certifiedAgain(why, failed error) error {
	switch {
	case failed != nil && why != nil:
		return errors.Join(failed, why)
	case failed != nil:
		return failed
	case why != nil:
		return &againError{until: r.node.SVID().Leaf().NotAfter, err: why}
	}
	return nil
}

// recertify has the key certified again that the node holds. The one under way stays
// under way: it may have been recorded.
func (r *renewal) recertify(ctx context.Context, _ string, conn grpc.ClientConnInterface) error {
	held := r.node.SVID()
	csr, err := pki.NewCSR(held.Key.Signer())
	if err != nil {
		return err
	}
	resp, err := fealtyv1.NewAdmissionServiceClient(conn).Renew(ctx,
		&fealtyv1.RenewRequest{Name: r.node.Me().ID.Name(), Csr: csr, RecordedKey: true})
	if err != nil {
		return err
	}
	return r.node.Renew(ctx, held.Key, resp.GetChain(),
		func(ctx context.Context, s dir.SVID, m *credential.Material) error {
			if !s.Leaf().NotAfter.After(held.Leaf().NotAfter) {
				return nil // what it holds is as good
			}
			return r.present(ctx, s, m)
		})
}

// adoptRenewed verifies a renewed chain in full, and puts it into use.
func (r *renewal) adoptRenewed(ctx context.Context, key dir.KeyPair, ders [][]byte) error {
	return r.node.Renew(ctx, key, ders, r.adopt)
}

// adopt makes an identity durable, then uses it, then forgets that it was under
// way. The caller holds a.activation and verified both.
func (r *renewal) adopt(ctx context.Context, s dir.SVID, m *credential.Material) error {
	if err := r.present(ctx, s, m); err != nil {
		return err
	}
	if r.unsaved {
		return nil // the next key stays on disk: it is the one in use
	}
	r.next = nil
	if err := r.node.Store().Remove(dir.NextName); err != nil {
		// The next start sees that it is the key of the identity.
		r.log.LogAttrs(ctx, slog.LevelWarn, "the key of a finished renewal was not removed", slog.Any("err", err))
	}
	return nil
}

// present makes an identity durable, then uses it, and notes whether the disk took it. The
// caller holds the node's activation and verified both.
func (r *renewal) present(ctx context.Context, s dir.SVID, m *credential.Material) error {
	refused, err := r.node.Present(ctx, s, m)
	r.unsaved = refused != nil
	if refused != nil {
		r.unkept = errcode.Wrap(refused, errcode.NodeDiskRefuses, "file", r.node.Store().Path(dir.SVIDName), "problem",
			refused.Error())
	}
	return err
}

// rejoin gets an identity back by proof of the last certified key, for a node whose
// certificate is not accepted any more.
func (r *renewal) rejoin(ctx context.Context) error {
	held := r.node.SVID().Key
	under := r.next != nil && r.next.Key.ID != held.ID
	key, unkept := r.nextKey()
	if unkept != nil {
		key = held // it has the one certified again that it holds
	}
	err := r.rejoinWith(ctx, held, key, under)
	if unkept == nil && r.operator != nil && errors.Is(err, errcode.RejoinGraceOver) {
		return r.reenrol(ctx, key, err)
	}
	return r.certifiedAgain(r.unkept, err)
}

// rejoinWith asks for key to be certified by proof of the last certified key. The answer
// of a renewal may be lost, and so may that of a coordinator that was asked here before:
// then key, and not held, is the last certified one. So a key that may be certified proves
// first. After it the one before would raise the alarm of a clone.
func (r *renewal) rejoinWith(ctx context.Context, held, key dir.KeyPair, mayBeCertified bool) error {
	by := func(ctx context.Context, address string, k dir.KeyPair) error {
		return r.rejoinAt(ctx, address, proof.NewSVIDProver(r.node.Me().Kind, r.node.Me().ID.Name(), k.Signer()), key)
	}
	return fetch.Somewhere(ctx, r.node.Me().Cluster, r.contact.Addresses(),
		func(ctx context.Context, address string) error {
			if mayBeCertified {
				err := by(ctx, address, key)
				if e, ok := verdict.Explained(err); !ok || e.Code != errcode.JoinUnauthorized {
					return err
				} // that key was never certified
			}
			mayBeCertified = key.ID != held.ID
			return by(ctx, address, held)
		})
}

// rejoinAt asks one coordinator for key to be certified for the member that this node is,
// and for no other.
func (r *renewal) rejoinAt(ctx context.Context, address string, prover proof.Prover, key dir.KeyPair) error {
	ctx, cancel := context.WithTimeout(ctx, enroll.AttemptTimeout)
	defer cancel()
	pin, moved := r.node.Self().Pin, r.node.Moved()
	if moved != nil {
		pin = moved.Root
	}
	h := enroll.Handshake{
		Cluster: r.node.Me().Cluster, Kind: r.node.Me().Kind, Pin: pin, Key: key, Now: r.node.Now, Dial: r.contact.Dial,
		Failed: r.contact.HandshakeFailed,
		Prover: prover, Member: r.node.Me().ID.Name(),
	}
	grant, err := h.Run(ctx, address)
	if err != nil {
		return err
	}
	if moved == nil {
		_ = r.contact.LinksAt(ctx, address) // how the history went on meanwhile; without it, the grant says why
	}
	anew, err := r.node.Rejoin(ctx, grant, accept.Granted{Address: address, Pin: h.Pin, Key: h.Key, Moved: moved},
		r.adoptGranted)
	if anew {
		r.next = nil
	}
	return err
}

// adoptGranted is adopt of what came with a grant. unkept says why the disk did not take
// the snapshots beside it.
func (r *renewal) adoptGranted(ctx context.Context, s dir.SVID, m *credential.Material, unkept error) error {
	if unkept != nil {
		r.unkept = errcode.Wrap(unkept, errcode.NodeDiskRefuses, "file", r.node.Store().Path("snapshots"), "problem",
			unkept.Error())
	}
	return r.adopt(ctx, s, m)
}

// renewal keeps a member certified.
type renewal struct {
	node     *accept.Node
	log      *slog.Logger
	contact  *fetch.Coordinators
	operator *credential.Files            // of an operator's PKI; nil: there are none
	ended    func(action, outcome string) // counts a renewal

	// the key that may be certified without our knowing, or in use and not on disk otherwise; owned by keepCertified
	next *state.PendingKey
	// why the disk took no key, or no certificate, of late; nil: it did; owned by keepCertified
	unkept  error
	unsaved bool // the certificate in use is not on disk, and its key is; owned by keepCertified

	renewAsk    chan chan<- error // a person asks for a renewal
	renewNow    chan string       // a coordinator does
	renewNotify chan struct{}     // something changed that may make a failed one succeed
	rejected    chan struct{}     // a coordinator does not accept our certificate
	strange     chan struct{}     // no coordinator is under a root that we know
}
