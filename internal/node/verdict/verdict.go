// Package verdict classifies the answer of a coordinator, or the lack of one: whether it is final,
// whether the member is refused, and what to tell a person.
package verdict

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/mesh/pinned"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/mesh"
)

// AddressError says how one coordinator could not be used.
type AddressError struct {
	Address string
	Err     error
}

func (e *AddressError) Error() string { return e.Address + ": " + e.Err.Error() }

// Unwrap returns the failure.
func (e *AddressError) Unwrap() error { return e.Err }

// verdicts are the answers that are about us: every coordinator would give the
// same, so that the first one ends the search. The lasting ones stay until a
// person does something; they are incidents, and asked again seldom.
var verdicts = map[errcode.Code]struct{ Lasting bool }{
	errcode.CallerBanned:      {true},
	errcode.CallerMismatch:    {true},
	errcode.CallerNoIdentity:  {true},
	errcode.Denied:            {true},
	errcode.JoinWrongCluster:  {true},
	errcode.JoinUnauthorized:  {true},
	errcode.JoinKindMismatch:  {true},
	errcode.JoinBanned:        {true},
	errcode.JoinBadCSR:        {true},
	errcode.JoinEntryFull:     {true},
	errcode.JoinNameTaken:     {true},
	errcode.JoinClone:         {true},
	errcode.JoinNoBinding:     {true},
	errcode.ProofOtherSession: {true},
	errcode.ProofUnknownType:  {true},

	errcode.JoinCertificateForeign: {true},
	errcode.JoinCertificateExpired: {true},
	errcode.JoinCertificateUnfit:   {true},
	errcode.JoinOtherMember:        {true},

	errcode.RenewEntryGone:    {true},
	errcode.RejoinGraceOver:   {true},
	errcode.RenewOlderKey:     {true},
	errcode.StreamReplaced:    {true},
	errcode.TokenUnknown:      {true},
	errcode.TokenSpent:        {true},
	errcode.TokenExpired:      {true},
	errcode.TokenForeign:      {true},
	errcode.TokenRevoked:      {true},
	errcode.MemberOwnsDomains: {false},
}

// Explained returns the error that a coordinator gave a code, or that we did.
// Handshake errors and cut connections travel in the same kind of detail: the
// former are none, the latter get the code that says the same.
func Explained(err error) (*errcode.Error, bool) {
	if e, ok := errors.AsType[*errcode.Error](err); ok {
		return e, true
	}
	if IsHandshake(err) {
		return nil, false
	}
	e, ok := errcode.FromStatus(err)
	if !ok {
		return nil, false
	}
	switch mesh.Reason(e.Code) {
	case mesh.PeerBanned:
		return errcode.Wrap(err, errcode.CallerBanned, "identity", "this node"), true
	case mesh.CertificateExpired:
		return errcode.Wrap(err, errcode.CallerExpired, "identity", "this node"), true
	case mesh.RootRetired:
		return errcode.Wrap(err, errcode.CallerOutlived, "identity", "this node"), true
	}
	return e, true
}

// Of returns what a coordinator decided about us, if err is that.
func Of(err error) (*errcode.Error, bool) {
	e, ok := Explained(err)
	if !ok {
		return nil, false
	}
	_, ok = verdicts[e.Code]
	return e, ok
}

// Lasting reports whether err will not go away by asking again soon.
func Lasting(err error) bool {
	e, ok := Explained(err)
	return ok && verdicts[e.Code].Lasting
}

// Unwelcome reports whether err says that our certificate is not accepted, be it
// expired, banned, or of an authority that is not known any more.
func Unwelcome(err error) bool {
	if h, ok := errors.AsType[*mesh.HandshakeError](err); ok {
		return h.Reason == mesh.ClientRejected
	}
	if e, ok := Explained(err); ok {
		switch e.Code {
		case errcode.CallerBanned, errcode.CallerExpired, errcode.CallerOutlived, errcode.Unauthenticated,
			errcode.PeerRejectedUs:
			return true
		}
		return false
	}
	return status.Code(err) == codes.Unauthenticated
}

// Word turns what a coordinator at address caused into the error to show.
func Word(address string, err error) *errcode.Error {
	if e, ok := Explained(err); ok {
		return e
	}
	if h, ok := errors.AsType[*mesh.HandshakeError](err); ok {
		return wordHandshake(h, err)
	}
	if n, ok := errors.AsType[*mesh.EndpointError](err); ok {
		return errcode.Wrap(err, errcode.Unreachable, "endpoint", n.Endpoint, "problem", errcode.Network(n.Err))
	}
	e := errcode.Of(err)
	if e.Code == errcode.Unreachable && e.Fields["endpoint"] == "" {
		return errcode.Wrap(err, errcode.Unreachable, "endpoint", address, "problem", e.Fields["problem"])
	}
	return e
}

func wordHandshake(h *mesh.HandshakeError, err error) *errcode.Error {
	chain, _ := errors.AsType[*identity.ChainError](h)
	problem := h.Error()
	if chain != nil {
		problem = chain.Error()
	}
	switch h.Reason {
	case mesh.IdentityMismatch:
		got := "something else"
		if m, ok := errors.AsType[*credential.MismatchError](h); ok {
			got = m.Got.String()
		}
		return errcode.Wrap(err, errcode.PeerIdentityMismatch, "endpoint", h.Endpoint, "expected", h.Expected,
			"identity", got)
	case mesh.NoIdentity:
		if other := OtherCluster(h, err); other != nil {
			return other
		}
		return errcode.Wrap(err, errcode.PeerNoIdentity, "endpoint", h.Endpoint, "problem", problem)
	case mesh.Expired:
		if chain == nil {
			return errcode.Wrap(err, errcode.PeerExpired, "endpoint", h.Endpoint)
		}
		return errcode.Wrap(err, errcode.PeerExpired, "endpoint", h.Endpoint, "not_before",
			state.Stamp(chain.NotBefore), "not_after", state.Stamp(chain.NotAfter), "now", state.Stamp(chain.Now))
	case mesh.ClientRejected:
		return errcode.Wrap(err, errcode.PeerRejectedUs, "endpoint", h.Endpoint)
	case mesh.Protocol:
		return errcode.Wrap(err, errcode.PeerProtocol, "endpoint", h.Endpoint)
	}
	if other := OtherCluster(h, err); other != nil {
		return other
	}
	if pin, ok := errors.AsType[*pinned.Error](h); ok {
		return errcode.Wrap(err, errcode.PeerUntrusted, "endpoint", h.Endpoint, "problem",
			pin.Detail+"; expected was "+h.Expected, "do", "compare that with the root pin in fealty status of "+
				"the cluster that is meant; if the pin is right, somebody else answers there: do not go on")
	}
	return errcode.Wrap(err, errcode.PeerUntrusted, "endpoint", h.Endpoint, "problem", problem)
}

// OtherCluster words a handshake, of which err came, that failed because the other side is of another cluster
// than is meant; nil if that is not so. A name that nothing vouches for is told as such.
func OtherCluster(h *mesh.HandshakeError, err error) *errcode.Error {
	const unproven = "its certificate names that cluster, and nothing that is known here vouches for it"
	word := func(presented, wanted, problem string) *errcode.Error {
		if presented == "" {
			return nil
		}
		return errcode.Wrap(err, errcode.PeerOtherCluster, "endpoint", h.Endpoint, "cluster", presented, "expected", wanted,
			"problem", problem)
	}
	if pin, ok := errors.AsType[*pinned.Error](h); ok {
		return word(pin.Cluster, pin.Pin.Cluster(), unproven+": "+pin.Detail)
	}
	if san, ok := errors.AsType[*identity.SANError](h); ok && san.Cluster != "" {
		presented, _ := identity.Parse(san.URI)
		return word(presented.Cluster(), san.Cluster, "the root that vouches for its certificate is one that is trusted here")
	}
	chain, ok := errors.AsType[*identity.ChainError](h)
	switch {
	case !ok || !errors.Is(chain, identity.ErrUntrusted):
		return nil
	case chain.Rule == "mesh-ca-accepted": // which comes after the signatures
		return word(chain.Presented, chain.Cluster, "the root that vouches for its certificate is the one that is meant, so "+
			"that the name of the cluster is wrong")
	}
	return word(chain.Presented, chain.Cluster, unproven)
}

// Summarize words the failures of all addresses as the one that says most: first
// what a coordinator or we found out about the request, then a handshake, then
// the network. All of them stay in its chain. Where nobody was reached, the values of
// pairs are added.
func Summarize(cluster string, failures []error, pairs ...any) error {
	if len(failures) == 0 {
		return errcode.New(errcode.NodeNoCoordinator, "cluster", cluster, "tried", "no address, since none is known,")
	}
	all := errors.Join(failures...)
	rank := func(err error) int {
		switch {
		case IsWorded(err), local(err):
			return 0
		case IsHandshake(err):
			return 1
		}
		return 2
	}
	best := failures[0]
	for _, f := range failures[1:] {
		if rank(f) < rank(best) {
			best = f
		}
	}
	address := ""
	if at, ok := errors.AsType[*AddressError](best); ok {
		address = at.Address
	}
	e := Word(address, best)
	if rank(best) < 2 {
		return errcode.Wrap(all, e.Code, fieldPairs(e.Fields)...)
	}
	var tried []string
	for _, f := range failures {
		if at, ok := errors.AsType[*AddressError](f); ok && len(tried) < 8 {
			tried = append(tried, at.Address)
		}
	}
	last := failures[len(failures)-1]
	return errcode.Wrap(all, errcode.NodeNoCoordinator, append(pairs, "cluster", cluster, "tried",
		strings.Join(tried, ", "), "problem", Word(address, last).Why)...)
}

// local reports whether err came of this process, before anything of it was sent: what comes of a call is a
// status, and what comes of a connection has a type.
func local(err error) bool {
	if _, ok := errors.AsType[*mesh.EndpointError](err); ok || IsHandshake(err) {
		return false
	}
	_, ok := status.FromError(err)
	return !ok && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded)
}

// IsHandshake reports whether err is of a handshake.
func IsHandshake(err error) bool {
	_, ok := errors.AsType[*mesh.HandshakeError](err)
	return ok
}

// IsWorded reports whether err has a code.
func IsWorded(err error) bool {
	_, ok := Explained(err)
	return ok
}

func fieldPairs(fields map[string]string) []any {
	var out []any
	for k, v := range fields {
		out = append(out, k, v)
	}
	return out
}

// StrangeRoot reports whether err says that a coordinator is under a root that the
// node does not know.
func StrangeRoot(err error) bool {
	if errors.Is(err, pinned.ErrMismatch) {
		return true
	}
	h, ok := errors.AsType[*mesh.HandshakeError](err)
	return ok && h.Reason == mesh.PeerUntrusted
}
