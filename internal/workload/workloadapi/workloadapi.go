// Package workloadapi serves the SPIFFE Workload API to the processes of a node.
//
// Each gets the identities of the workloads that it is, and nothing that would tell it of others
// (SPIFFE Workload API §4). Streams send anew what was renewed, and end when the caller is a
// workload no more.
package workloadapi

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	pb "github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/fealty-io/fealty/internal/jwtsvid"
	"github.com/fealty-io/fealty/internal/workload/attest"
	"github.com/fealty-io/fealty/internal/workload/tokens"
)

// header must be set to "true" by every caller, so that one who makes a server fetch an address
// of the attacker's choice gets nothing (SPIFFE Workload Endpoint §5.4).
const header = "workload.spiffe.io"

// patience is how long a caller waits for the first certificate of a workload that it is.
const patience = 10 * time.Second

// Server serves the Workload API. Make it with [New].
type Server struct {
	pb.UnimplementedSpiffeWorkloadAPIServer
	callers *attest.Callers
	tokens  *tokens.Tokens
	ended   <-chan struct{} // closed when the agent ends
}

// New returns a Server of callers. Its streams end when ended is closed.
func New(callers *attest.Callers, t *tokens.Tokens, ended <-chan struct{}) *Server {
	return &Server{callers: callers, tokens: t, ended: ended}
}

// Register adds the service to a server whose credentials are the callers'.
func (s *Server) Register(to grpc.ServiceRegistrar) { pb.RegisterSpiffeWorkloadAPIServer(to, s) }

// Demand refuses a call without the header. It is for the interceptors of the server, since the
// standard wants it on every call.
func (s *Server) Demand(ctx context.Context) error {
	md, _ := metadata.FromIncomingContext(ctx)
	if got := md.Get(header); len(got) == 1 && got[0] == "true" {
		return nil
	}
	err := status.Error(codes.InvalidArgument, "security header missing from request: set "+header+" to true")
	s.callers.Refuse(ctx, attest.ReasonHeader, err)
	return err
}

// FetchX509SVID sends the X509-SVIDs of the caller, and again when one of them or the bundle
// changes.
func (s *Server) FetchX509SVID(_ *pb.X509SVIDRequest, stream grpc.ServerStreamingServer[pb.X509SVIDResponse]) error {
	var sent []attest.Identity
	var under *attest.Roots
	source := s.callers.Source()
	// Of whom it was sent, and since when nothing else could be: a change of others costs a thousand
	// streams no look at their certificates.
	var of *attest.Caller
	var since <-chan struct{}
	return s.follow(stream.Context(), nil, func(who *attest.Caller) (send func() error, pending bool, err error) {
		issued, roots := source.Issued(), source.Roots() // before the certificates
		if who == of && issued == since && roots == under {
			return nil, false, nil
		}
		all, pending, err := s.callers.Identities(who)
		if err != nil {
			of = nil
			return nil, pending, err
		}
		if roots == nil {
			of = nil
			return nil, true, errNoBundle
		}
		if slices.Equal(sent, all) && roots == under {
			of, since = who, issued
			return nil, false, nil
		}
		return func() error {
			response, err := x509SVIDs(all, roots)
			if err != nil {
				return err
			}
			sent, under, of, since = all, roots, who, issued
			return stream.Send(response)
		}, false, nil
	})
}

func x509SVIDs(all []attest.Identity, roots *attest.Roots) (*pb.X509SVIDResponse, error) {
	out, bundle := new(pb.X509SVIDResponse), der(roots.Certificates)
	for _, one := range all {
		key, err := one.SVID.Key.PKCS8()
		if err != nil {
			return nil, err
		}
		out.Svids = append(out.Svids, &pb.X509SVID{
			SpiffeId: one.ID.String(), X509SvidKey: key, Bundle: bundle, Hint: one.Service,
			// Without the root, which is what the bundle is for.
			X509Svid: der(one.SVID.Chain[:len(one.SVID.Chain)-1]),
		})
	}
	return out, nil
}

var errNoBundle = status.Error(codes.Unavailable, "the node has no trust bundle that it may use")

// FetchX509Bundles sends the trust bundle of the cluster, and again when it changes.
func (s *Server) FetchX509Bundles(_ *pb.X509BundlesRequest,
	stream grpc.ServerStreamingServer[pb.X509BundlesResponse]) error {
	var sent *attest.Roots
	return s.follow(stream.Context(), nil, func(*attest.Caller) (send func() error, pending bool, err error) {
		roots := s.callers.Source().Roots()
		switch {
		case roots == nil:
			return nil, true, errNoBundle
		case roots == sent:
			return nil, false, nil
		}
		return func() error {
			sent = roots
			return stream.Send(&pb.X509BundlesResponse{
				Bundles: map[string][]byte{"spiffe://" + roots.Cluster: der(roots.Certificates)},
			})
		}, false, nil
	})
}

// follow sends what next returns, at once and after each change of the source or of what more tells
// of, until ctx ends or an error. nil is nothing to send. An error that is pending is waited out for a
// while, as something was sent or is about to be.
//
// The kernel is asked who the caller is before anything is sent, and when something else is registered
// for its user. A change that is about other callers costs this one no question: there may be
// thousands.
func (s *Server) follow(ctx context.Context, more func() <-chan struct{}, next func(*attest.Caller) (send func() error,
	pending bool, err error)) error {
	given := time.NewTimer(patience)
	defer given.Stop()
	source, waiting := s.callers.Source(), true
	var who *attest.Caller
	for {
		changed := source.Changed() // before the source is asked
		var others <-chan struct{}
		if more != nil {
			others = more()
		}
		known := who != nil && who.Stands(source.Set())
		var err error
		if !known {
			if who, err = s.callers.Identify(ctx); err != nil {
				return err
			}
		}
		send, pending, err := next(who)
		if known && send != nil {
			if who, err = s.callers.Identify(ctx); err != nil {
				return err
			}
			send, pending, err = next(who)
		}
		if err != nil && !pending {
			return err
		}
		if send != nil {
			if err := send(); err != nil {
				return err
			}
		}
		if pending && !waiting {
			given.Reset(patience)
		}
		waiting = pending
		var late <-chan time.Time
		if pending {
			late = given.C
		}
		select {
		case <-changed:
		case <-others:
		case <-late:
			s.callers.Refuse(ctx, attest.ReasonPending, err)
			return err
		case <-s.ended:
			return status.Error(codes.Unavailable, "the agent is stopping")
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

// der puts certificates one behind the other, as X509-SVIDs travel.
func der(certs []*x509.Certificate) []byte {
	var out bytes.Buffer
	for _, c := range certs {
		out.Write(c.Raw)
	}
	return out.Bytes()
}

// FetchJWTSVID returns a JWT-SVID for each identity of the caller, or for the one that it asks
// for.
func (s *Server) FetchJWTSVID(ctx context.Context, req *pb.JWTSVIDRequest) (*pb.JWTSVIDResponse, error) {
	if err := jwtsvid.AudienceFault(req.GetAudience()); err != nil {
		return nil, s.badRequest(ctx, err)
	}
	if want := req.GetSpiffeId(); want != "" {
		if err := attest.IDFault(want); err != nil {
			return nil, s.badRequest(ctx, fmt.Errorf("spiffe_id: %w", err))
		}
	}
	who, err := s.callers.Identify(ctx)
	if err != nil {
		return nil, err
	}
	var asks []tokens.Ask
	var hints []string
	for i, id := range who.IDs {
		if want := req.GetSpiffeId(); want == "" || want == id.String() {
			asks, hints = append(asks, tokens.Ask{ID: id, Audience: req.GetAudience()}), append(hints, who.Services[i])
		}
	}
	if len(asks) > maxTokens {
		return nil, s.badRequest(ctx, fmt.Errorf("the caller has %d identities, and tokens are for at most %d "+
			"at a time: ask for one of them", len(asks), maxTokens))
	}
	if len(asks) == 0 {
		// As if there were none: whose else it may be is not for the caller to know.
		s.callers.Refuse(ctx, attest.ReasonUnregistered, errors.New("it asked for an identity that it is not"))
		return nil, status.Error(codes.PermissionDenied, "no identity issued")
	}
	answers, err := s.tokens.Get(ctx, asks)
	if err != nil {
		if ctx.Err() != nil {
			return nil, status.FromContextError(ctx.Err()).Err()
		}
		s.callers.Refuse(ctx, attest.ReasonPending, err)
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	// A coordinator took its time, and the caller may be somebody else by now.
	if who, err = s.callers.Identify(ctx); err != nil {
		return nil, err
	}
	out := new(pb.JWTSVIDResponse)
	for i, a := range answers {
		if !slices.Contains(who.IDs, asks[i].ID) {
			err = fmt.Errorf("%s is not the caller's any more", asks[i].ID)
			continue
		}
		if a.Refusal != "" {
			err = errors.New(a.Refusal)
			continue
		}
		out.Svids = append(out.Svids, &pb.JWTSVID{SpiffeId: asks[i].ID.String(), Svid: a.Token, Hint: hints[i]})
	}
	if len(out.Svids) == 0 {
		s.callers.Refuse(ctx, attest.ReasonPending, err)
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return out, nil
}

// maxTokens bounds the tokens of one answer, as a coordinator signs so many in one call.
const maxTokens = 64

func (s *Server) badRequest(ctx context.Context, err error) error {
	s.callers.Refuse(ctx, attest.ReasonRequest, err)
	return status.Error(codes.InvalidArgument, err.Error())
}

var errNoTokenKey = status.Error(codes.Unavailable, "no key of tokens is known yet: a coordinator is being asked")

// FetchJWTBundles sends the keys that verify JWT-SVIDs of the cluster, and again when they change.
func (s *Server) FetchJWTBundles(_ *pb.JWTBundlesRequest,
	stream grpc.ServerStreamingServer[pb.JWTBundlesResponse]) error {
	var sent *tokens.Keys
	return s.follow(stream.Context(), s.tokens.Changed, func(*attest.Caller) (send func() error, pending bool,
		err error) {
		keys, roots := s.tokens.Keys(), s.callers.Source().Roots()
		switch {
		case keys == nil || roots == nil:
			return nil, true, errNoTokenKey
		case keys == sent:
			return nil, false, nil
		}
		return func() error {
			sent = keys
			return stream.Send(&pb.JWTBundlesResponse{
				Bundles: map[string][]byte{"spiffe://" + roots.Cluster: keys.JWKS},
			})
		}, false, nil
	})
}

// ValidateJWTSVID verifies the JWT-SVID of somebody for the caller, and says whose it is.
func (s *Server) ValidateJWTSVID(ctx context.Context, req *pb.ValidateJWTSVIDRequest) (*pb.ValidateJWTSVIDResponse,
	error) {
	if req.GetAudience() == "" || req.GetSvid() == "" {
		return nil, s.badRequest(ctx, errors.New("a token and one audience must be given"))
	}
	if _, err := s.callers.Identify(ctx); err != nil {
		return nil, err
	}
	id, claims, err := s.tokens.Validate(req.GetSvid(), req.GetAudience())
	if errors.Is(err, tokens.ErrNoKey) {
		s.callers.Refuse(ctx, attest.ReasonPending, err)
		return nil, errNoTokenKey
	}
	if err != nil {
		return nil, s.badRequest(ctx, err)
	}
	out, err := structpb.NewStruct(claims)
	if err != nil {
		return nil, s.badRequest(ctx, err)
	}
	return &pb.ValidateJWTSVIDResponse{SpiffeId: id.String(), Claims: out}, nil
}
