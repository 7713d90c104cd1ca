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
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/ca"
	"github.com/fealty-io/fealty/internal/enroll"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/node/accept"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/verdict"
	"github.com/fealty-io/fealty/mesh"
)

// Times of renewal.
const (
	renewSpread  = 0.1              // part of the interval, to either side
	startSpread  = 10 * time.Second // machines that start together do not renew together
	demandSpread = 10 * time.Second // nor do those that are told to
	clockLook    = time.Minute      // a timer does not see a clock that is set, or a machine that slept
	callTimeout  = 15 * time.Second
	leastCall    = 5 * time.Second // of a certificate that ends soon
	outagePause  = 5 * time.Minute // before a new key is tried again that could not be recorded, or kept
)

// keepCertified renews until ctx ends. It never gives up: the working credential
// stays in use whatever happens, and the reason of a failure is kept.
func (a *Agent) keepCertified(ctx context.Context) error {
	var (
		pause   backoff
		refused seldom
		waiting []chan<- error
		s       = schedule{
			spread:    renewSpread * (2*rand.Float64() - 1),
			unwelcome: !a.presentable(ctx), // our own bundle does not accept it
		}
		stuck  bool      // the last failure is a lasting one
		done   time.Time // of the last success
		looked time.Time // at a disk that takes nothing

		rotated = a.operatorChanged() // kept until it fires: no change is missed
	)
	s = s.of(a)
	s.start = a.node.Now().Add(s.within(a.node.Now(), upTo(startSpread), rand.Float64()))
	for {
		s = s.of(a)
		now := a.node.Now()
		if s.start.Sub(now) > startSpread {
			s.start = time.Time{} // the clock was ahead when it was set
		}
		act, at := s.next(now)
		a.node.Status().RenewsAt(at)
		if wait := at.Sub(now); wait > 0 {
			t := time.NewTimer(min(wait, clockLook))
			select {
			case <-ctx.Done():
			case <-t.C:
			case reply := <-a.renewAsk:
				waiting, s.asked = append(waiting, reply), true
			case reason := <-a.renewNow:
				a.log.LogAttrs(ctx, slog.LevelInfo, "a coordinator asks for a renewal", slog.String("reason", reason))
				if s.demanded.IsZero() {
					s.demanded = now.Add(s.within(now, upTo(demandSpread), rand.Float64()))
				}
			case <-a.rejected:
				// Right after a success it is the coordinator that is behind.
				if done.IsZero() || now.Sub(done).Abs() > lastingPause {
					s.unwelcome = true
				}
			case <-rotated:
				// What a person mended, or a PKI renewed, may be what was missing.
				rotated = a.operatorChanged()
				if s.retry.After(now) {
					s.retry = now.Add(upTo(time.Second))
				}
			case <-a.strange:
				if a.askForChanges(ctx) {
					s.unwelcome = true
				}
			case <-a.renewKick:
				if !stuck && s.retry.After(now) {
					s.retry = now.Add(upTo(time.Second))
				}
			}
			t.Stop()
			if err := ctx.Err(); err != nil {
				return err
			}
			if a.unkept != nil && a.node.Now().Sub(looked).Abs() >= clockLook {
				looked = a.node.Now()
				if _, err := a.nextKey(); err == nil { // which is renewed to at once
					s.retry = time.Time{}
				}
			}
			continue
		}
		err := a.certify(ctx, act)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		for _, reply := range waiting {
			reply <- err
		}
		waiting, s.asked = nil, false
		a.node.Status().Renewed(err)
		a.metrics.renewals.WithLabelValues(act.String(), outcome(err)).Inc()
		s, now = s.of(a), a.node.Now()
		again, _ := errors.AsType[*againError](err)
		switch stuck = err != nil && verdict.Lasting(err); {
		case again != nil:
			pause.reset()
			refused.reset()
			// The new certificate makes a new connection, which is no news of what kept the
			// key from being changed.
			done, stuck, looked = now, true, now
			s = s.renewed(s.spread).fail(now, around(outagePause, 0.2), rand.Float64())
			a.log.LogAttrs(ctx, slog.LevelWarn, "certified, and the key is not changed as it should be", slog.Time("svid_not_after", again.until),
				slog.String("code", explain.CodeOf(err)), slog.String("reason", state.OneLine(again.err)), slog.Time("retry", s.retry))
			continue
		case err == nil:
			pause.reset()
			refused.reset()
			done = now
			s = s.renewed(renewSpread * (2*rand.Float64() - 1))
			continue
		case stuck:
			s = s.fail(now, refused.next(), rand.Float64())
			a.log.LogAttrs(ctx, slog.LevelError, "incident: the cluster does not certify this node, which stays up", slog.String("action", act.String()),
				slog.String("code", explain.CodeOf(err)), slog.String("reason", state.OneLine(err)), slog.Time("svid_not_after", s.notAfter), slog.Time("retry", s.retry))
		default:
			s = s.fail(now, pause.next(), rand.Float64())
			a.log.LogAttrs(ctx, slog.LevelWarn, "not certified, the working credential stays", slog.String("action", act.String()),
				slog.String("code", explain.CodeOf(err)), slog.String("reason", state.OneLine(err)), slog.Time("svid_not_after", s.notAfter), slog.Time("retry", s.retry))
		}
		if act == renewing && verdict.Unwelcome(err) {
			s.unwelcome = true
		}
		if strangeRoot(err) && a.askForChanges(ctx) {
			s.unwelcome, s.retry = true, time.Time{}
			pause.reset()
		}
	}
}

// of returns s for the identity that the node holds now.
func (s schedule) of(a *Agent) schedule {
	held := a.node.SVID()
	s.notBefore, s.notAfter = held.Leaf().NotBefore, held.Leaf().NotAfter
	s.every, s.pending = enroll.RenewEvery(a.node.Beliefs()), a.next != nil && a.next.Key.ID != held.Key.ID
	return s
}

// outcome is a metric label.
func outcome(err error) string {
	if err == nil {
		return "ok"
	}
	if code := explain.CodeOf(err); code != "" {
		return code
	}
	return "error"
}

func (a *Agent) certify(ctx context.Context, act action) error {
	if act == rejoining || a.node.Moved() != nil {
		return a.rejoin(ctx)
	}
	return a.renew(ctx)
}

// nextKey returns the key to have certified, which is durable: the one whose
// answer may have been lost, or a new one. If the disk takes none, unkept says so.
// Owned by keepCertified.
func (a *Agent) nextKey() (dir.KeyPair, error) {
	held := a.node.SVID()
	if a.next != nil && a.next.Key.ID != held.Key.ID {
		a.unkept = nil
		return a.next.Key, nil
	}
	key, err := a.newNext(held)
	a.unkept = err
	return key, err
}

// newNext makes the next key durable. Until the certificate in use is on disk, its key
// may be there as the next one alone, so that comes first.
func (a *Agent) newNext(held *dir.SVID) (dir.KeyPair, error) {
	unkept := func(name string, err error) (dir.KeyPair, error) {
		return dir.KeyPair{}, explain.Wrap(err, explain.NodeDiskRefuses, "file", a.node.Store().Path(name), "problem", err.Error())
	}
	if a.unsaved {
		if err := a.node.Store().WriteSVID(*held); err != nil {
			return unkept(dir.SVIDName, err)
		}
		a.unsaved = false
	}
	key, err := dir.NewKeyPair()
	if err != nil {
		return dir.KeyPair{}, err
	}
	k := state.PendingKey{Key: key, Purpose: dir.PurposeRenew}
	if err := a.node.Store().WriteNext(k); err != nil {
		return unkept(dir.NextName, err)
	}
	a.next = &k
	return key, nil
}

// renew has a new key certified by the identity that the node holds. Where none can be
// recorded, because the coordinators' store is out of reach or full, or kept, because the
// node's own disk takes nothing, it has the recorded key certified again: then the error
// is an [againError].
func (a *Agent) renew(ctx context.Context) error {
	key, err := a.nextKey()
	if err != nil {
		return a.certifiedAgain(err, a.ask(ctx, a.recertify))
	}
	csr, err := ca.NewCSR(key.Signer())
	if err != nil {
		return err
	}
	// Of a certificate that ends soon not all of the rest goes into hoping for another
	// coordinator's store.
	now := a.node.Now()
	enough := now.Add(a.node.SVID().Leaf().NotAfter.Sub(now) / pausePart)
	var cannot []string // whose store took nothing
	err = a.ask(ctx, func(ctx context.Context, address string, conn grpc.ClientConnInterface) error {
		if len(cannot) > 0 && a.node.Now().After(enough) {
			return errEnough
		}
		resp, err := fealtyv1.NewAdmissionServiceClient(conn).Renew(ctx, &fealtyv1.RenewRequest{Name: a.node.Me().ID.Name(), Csr: csr})
		if err == nil {
			return a.adoptRenewed(ctx, key, resp.GetChain())
		}
		if e, ok := verdict.Explained(err); ok && (e.Code == explain.StoreUnreachable || e.Code == explain.StoreOutcomeUnknown || e.Code == explain.StoreFull || e.Code == explain.StoreRefuses) {
			cannot = append(cannot, address)
		}
		return err
	})
	if err == nil {
		return a.certifiedAgain(a.unkept, nil)
	}
	if ctx.Err() != nil {
		return err
	}
	for _, address := range cannot {
		again := a.askOne(ctx, address, a.recertify)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if again == nil {
			return a.certifiedAgain(err, nil)
		}
		if e, ok := verdict.Of(again); ok {
			return e
		}
		err = errors.Join(err, &verdict.AddressError{Address: address, Err: again})
	}
	return err
}

// errEnough: the rest of the certificate is too short to ask one more coordinator.
var errEnough = errors.New("it was not asked, since the certificate ends soon")

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
func (a *Agent) certifiedAgain(why, failed error) error {
	switch {
	case failed != nil && why != nil:
		return errors.Join(failed, why)
	case failed != nil:
		return failed
	case why != nil:
		return &againError{until: a.node.SVID().Leaf().NotAfter, err: why}
	}
	return nil
}

// recertify has the key certified again that the node holds. The one under way stays
// under way: it may have been recorded.
func (a *Agent) recertify(ctx context.Context, _ string, conn grpc.ClientConnInterface) error {
	held := a.node.SVID()
	csr, err := ca.NewCSR(held.Key.Signer())
	if err != nil {
		return err
	}
	resp, err := fealtyv1.NewAdmissionServiceClient(conn).Renew(ctx, &fealtyv1.RenewRequest{Name: a.node.Me().ID.Name(), Csr: csr, RecordedKey: true})
	if err != nil {
		return err
	}
	return a.node.Renew(ctx, held.Key, resp.GetChain(), func(ctx context.Context, s dir.SVID, m *credential.Material) error {
		if !s.Leaf().NotAfter.After(held.Leaf().NotAfter) {
			return nil // what it holds is as good
		}
		return a.present(ctx, s, m)
	})
}

// ask calls f with one coordinator after the other, in random order, until one
// call succeeds, is a verdict about us, or refuses our certificate.
func (a *Agent) ask(ctx context.Context, f func(ctx context.Context, address string, conn grpc.ClientConnInterface) error) error {
	var failures []error
	for _, address := range a.addresses() {
		err := a.askOne(ctx, address, f)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		}
		if e, ok := verdict.Of(err); ok {
			return e
		}
		if verdict.Unwelcome(err) {
			return verdict.Word(address, err)
		}
		if errors.Is(err, errEnough) {
			break
		}
		failures = append(failures, &verdict.AddressError{Address: address, Err: err})
	}
	return verdict.Summarize(a.node.Me().Cluster, failures)
}

// askingTime bounds a call to one coordinator: who hangs must not use up what is left of
// the certificate.
func (a *Agent) askingTime() time.Duration {
	if left := a.node.SVID().Leaf().NotAfter.Sub(a.node.Now()); left > 0 {
		return min(callTimeout, max(leastCall, left/2))
	}
	return callTimeout
}

func (a *Agent) askOne(ctx context.Context, address string, f func(ctx context.Context, address string, conn grpc.ClientConnInterface) error) error {
	ctx, cancel := context.WithTimeout(ctx, a.askingTime())
	defer cancel()
	conn, err := mesh.Dial(enroll.Target(address), a.node.Source(), credential.AnyOfKind(identity.Coordinator), a.meshOptions())
	if err != nil {
		return err
	}
	defer conn.Close()
	return f(ctx, address, conn)
}

// adoptRenewed verifies a renewed chain in full, and puts it into use.
func (a *Agent) adoptRenewed(ctx context.Context, key dir.KeyPair, ders [][]byte) error {
	return a.node.Renew(ctx, key, ders, a.adopt)
}

// adopt makes an identity durable, then uses it, then forgets that it was under
// way. The caller holds a.activation and verified both.
func (a *Agent) adopt(ctx context.Context, s dir.SVID, m *credential.Material) error {
	if err := a.present(ctx, s, m); err != nil {
		return err
	}
	if a.unsaved {
		return nil // the next key stays on disk: it is the one in use
	}
	a.next = nil
	if err := a.node.Store().Remove(dir.NextName); err != nil {
		// The next start sees that it is the key of the identity.
		a.log.LogAttrs(ctx, slog.LevelWarn, "the key of a finished renewal was not removed", slog.Any("err", err))
	}
	return nil
}

// present makes an identity durable, then uses it, and notes whether the disk took it. The
// caller holds the node's activation and verified both.
func (a *Agent) present(ctx context.Context, s dir.SVID, m *credential.Material) error {
	refused, err := a.node.Present(ctx, s, m)
	a.unsaved = refused != nil
	if refused != nil {
		a.unkept = explain.Wrap(refused, explain.NodeDiskRefuses, "file", a.node.Store().Path(dir.SVIDName), "problem", refused.Error())
	}
	return err
}

// rejoin gets an identity back by proof of the last certified key, for a node whose
// certificate is not accepted any more.
func (a *Agent) rejoin(ctx context.Context) error {
	held := a.node.SVID().Key
	under := a.next != nil && a.next.Key.ID != held.ID
	key, unkept := a.nextKey()
	if unkept != nil {
		key = held // it has the one certified again that it holds
	}
	err := a.rejoinWith(ctx, held, key, under)
	if unkept == nil && a.operator != nil && errors.Is(err, explain.RejoinGraceOver) {
		return a.reenrol(ctx, key, err)
	}
	return a.certifiedAgain(a.unkept, err)
}

// rejoinWith asks for key to be certified by proof of the last certified key. The answer
// of a renewal may be lost, and so may that of a coordinator that was asked here before:
// then key, and not held, is the last certified one. So a key that may be certified proves
// first. After it the one before would raise the alarm of a clone.
func (a *Agent) rejoinWith(ctx context.Context, held, key dir.KeyPair, mayBeCertified bool) error {
	by := func(ctx context.Context, address string, k dir.KeyPair) error {
		return a.rejoinAt(ctx, address, proof.NewSVIDProver(a.node.Me().Kind, a.node.Me().ID.Name(), k.Signer()), key)
	}
	return somewhere(ctx, a.node.Me().Cluster, a.addresses(), func(ctx context.Context, address string) error {
		if mayBeCertified {
			err := by(ctx, address, key)
			if e, ok := verdict.Explained(err); !ok || e.Code != explain.JoinUnauthorized {
				return err
			} // that key was never certified
		}
		mayBeCertified = key.ID != held.ID
		return by(ctx, address, held)
	})
}

// somewhere calls f with one coordinator of a cluster after the other, until one call
// succeeds or is a verdict about us.
func somewhere(ctx context.Context, cluster string, addresses []string, f func(ctx context.Context, address string) error) error {
	var failures []error
	for _, address := range addresses {
		err := f(ctx, address)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		}
		if e, ok := verdict.Of(err); ok {
			return e
		}
		failures = append(failures, &verdict.AddressError{Address: address, Err: err})
	}
	return verdict.Summarize(cluster, failures)
}

// rejoinAt asks one coordinator for key to be certified for the member that this node is,
// and for no other.
func (a *Agent) rejoinAt(ctx context.Context, address string, prover proof.Prover, key dir.KeyPair) error {
	ctx, cancel := context.WithTimeout(ctx, enroll.AttemptTimeout)
	defer cancel()
	pin, moved := a.node.Self().Pin, a.node.Moved()
	if moved != nil {
		pin = moved.Root
	}
	h := enroll.Handshake{
		Cluster: a.node.Me().Cluster, Kind: a.node.Me().Kind, Pin: pin, Key: key, Now: a.node.Now, Dial: a.dial, Failed: a.handshakeFailed,
		Prover: prover, Member: a.node.Me().ID.Name(),
	}
	grant, err := h.Run(ctx, address)
	if err != nil {
		return err
	}
	if moved == nil {
		_ = a.linksAt(ctx, address) // how the history went on meanwhile; without it, the grant says why
	}
	anew, err := a.node.Rejoin(ctx, grant, accept.Granted{Address: address, Pin: h.Pin, Key: h.Key, Moved: moved}, a.adoptGranted)
	if anew {
		a.next = nil
	}
	return err
}

// adoptGranted is adopt of what came with a grant. unkept says why the disk did not take
// the snapshots beside it.
func (a *Agent) adoptGranted(ctx context.Context, s dir.SVID, m *credential.Material, unkept error) error {
	if unkept != nil {
		a.unkept = explain.Wrap(unkept, explain.NodeDiskRefuses, "file", a.node.Store().Path("snapshots"), "problem", unkept.Error())
	}
	return a.adopt(ctx, s, m)
}
