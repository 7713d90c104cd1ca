// Package sds serves the certificates of a node's processes to Envoy, by its Secret Discovery
// Service, version 3.
//
// A proxy is a process like any other: it gets the identities of the workloads that it is. It asks
// for them by name, see [NameDefault] and [NameRoots], and is told of every change.
package sds

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	corev3 "github.com/fealty-io/fealty/api/envoy/config/core/v3"
	tlsv3 "github.com/fealty-io/fealty/api/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/fealty-io/fealty/api/envoy/service/discovery/v3"
	secretv3 "github.com/fealty-io/fealty/api/envoy/service/secret/v3"
	"github.com/fealty-io/fealty/internal/workload/attest"
)

// Names that a proxy asks by. The id of a workload names its certificate, and spiffe://<cluster>
// the roots; these two spare a configuration the names.
const (
	NameDefault = "default" // the certificate of the caller's first identity
	NameRoots   = "ROOTCA"  // the roots of the cluster
)

// typeURL is of the only resources there are.
const typeURL = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"

// Limits of a request.
const (
	MaxNames     = 128
	MaxNameBytes = 2048
)

// Server serves SDS. Make it with [New].
type Server struct {
	secretv3.UnimplementedSecretDiscoveryServiceServer
	callers *attest.Callers
	ended   <-chan struct{} // closed when the agent ends
	log     *slog.Logger
}

// New returns a Server of callers. Its streams end when ended is closed.
func New(callers *attest.Callers, ended <-chan struct{}, log *slog.Logger) *Server {
	return &Server{callers: callers, ended: ended, log: log}
}

// Register adds the service to a server whose credentials are the callers'.
func (s *Server) Register(to grpc.ServiceRegistrar) {
	secretv3.RegisterSecretDiscoveryServiceServer(to, s)
}

// FetchSecrets returns what is asked for as it is now.
func (s *Server) FetchSecrets(ctx context.Context, req *discoveryv3.DiscoveryRequest) (
	*discoveryv3.DiscoveryResponse, error) {
	if err := s.check(ctx, req); err != nil {
		return nil, err
	}
	_, all, err := s.answer(ctx, req.GetResourceNames(), s.callers.Source().Roots())
	return all, err
}

// StreamSecrets returns what is asked for last, and again when it changes.
func (s *Server) StreamSecrets(
	stream grpc.BidiStreamingServer[discoveryv3.DiscoveryRequest, discoveryv3.DiscoveryResponse]) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel() // ends the reader
	requests, ended := make(chan *discoveryv3.DiscoveryRequest), make(chan struct{})
	go func() {
		for {
			req, err := stream.Recv()
			if err != nil {
				close(ended)
				return
			}
			select {
			case requests <- req:
			case <-ctx.Done():
				return
			}
		}
	}()
	var asked bool
	var names []string
	var sent *discoveryv3.DiscoveryResponse
	source := s.callers.Source()
	// Of whom the last answer was, and since when no other could be for that caller: a change of others
	// costs a thousand proxies no look.
	var of *attest.Caller
	var since <-chan struct{}
	var under *attest.Roots
	for {
		changed := source.Changed() // before the source is asked
		issued, roots := source.Issued(), source.Roots()
		if known := of != nil && of.Stands(source.Set()) && issued == since && roots == under; asked && !known {
			who, next, err := s.answer(ctx, names, roots)
			of, since, under = who, issued, roots
			switch {
			case status.Code(err) == codes.Unavailable:
				// Nothing is certified yet: the proxy waits for it as for any secret.
				of = nil
			case err != nil:
				return err
			case sent == nil || sent.GetVersionInfo() != next.GetVersionInfo():
				if err := stream.Send(next); err != nil {
					return err
				}
				sent = next
			}
		}
		select {
		case req := <-requests:
			if err := s.check(ctx, req); err != nil {
				return err
			}
			if sent != nil && req.GetResponseNonce() != sent.GetNonce() {
				continue // an answer to what was sent before, which another took the place of
			}
			if e := req.GetErrorDetail(); e != nil {
				s.log.LogAttrs(ctx, slog.LevelWarn, "a proxy could not use what it was sent",
					slog.String("node", clip(req.GetNode().GetId())), slog.String("reason", clip(e.GetMessage())))
			}
			if !asked || !slices.Equal(names, req.GetResourceNames()) {
				asked, names, sent, of = true, req.GetResourceNames(), nil, nil
			}
		case <-ended:
			return nil // the proxy has nothing more to say, or is gone
		case <-changed:
		case <-s.ended:
			return status.Error(codes.Unavailable, "the agent is stopping")
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

func clip(s string) string { return s[:min(len(s), 256)] }

// check refuses what is no request for secrets.
func (s *Server) check(ctx context.Context, req *discoveryv3.DiscoveryRequest) error {
	err := func() error {
		if t := req.GetTypeUrl(); t != "" && t != typeURL {
			return fmt.Errorf("resources of type %.128q are not served: ask for %s", t, typeURL)
		}
		if n := len(req.GetResourceNames()); n > MaxNames {
			return fmt.Errorf("%d names, at most %d are allowed", n, MaxNames)
		}
		for _, name := range req.GetResourceNames() {
			if len(name) > MaxNameBytes {
				return fmt.Errorf("a name of %d bytes, at most %d are allowed", len(name), MaxNameBytes)
			}
			if strings.HasPrefix(name, "spiffe://") {
				if err := attest.IDFault(name); err != nil {
					return fmt.Errorf("a name: %w", err)
				}
			}
		}
		return nil
	}()
	if err != nil {
		s.callers.Refuse(ctx, attest.ReasonRequest, err)
		return status.Error(codes.InvalidArgument, err.Error())
	}
	return nil
}

// answer returns the secrets with these names that the caller may have; without names, all. Its
// version is that of their content. A name that is none of the caller's is left out: whose it is
// is not for the caller to know.
func (s *Server) answer(ctx context.Context, names []string, roots *attest.Roots) (*attest.Caller,
	*discoveryv3.DiscoveryResponse, error) {
	who, err := s.callers.Identify(ctx)
	if err != nil {
		return nil, nil, err
	}
	all, _, err := s.callers.Identities(who)
	if err != nil {
		return nil, nil, err
	}
	if roots == nil {
		return nil, nil, status.Error(codes.Unavailable, "the node has no trust bundle that it may use")
	}
	out := &discoveryv3.DiscoveryResponse{TypeUrl: typeURL, Nonce: rand.Text()}
	version := sha256.New()
	add := func(secret *tlsv3.Secret) error {
		raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(secret)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(raw)
		version.Write(sum[:])
		out.Resources = append(out.Resources, &anypb.Any{TypeUrl: typeURL, Value: raw})
		return nil
	}
	domain := "spiffe://" + roots.Cluster
	wanted := func(name string) bool { return len(names) == 0 || slices.Contains(names, name) }
	for i, one := range all {
		called := []string{one.ID.String()}
		if i == 0 && slices.Contains(names, NameDefault) {
			called = append(called, NameDefault)
		}
		for _, name := range called {
			if !wanted(name) {
				continue
			}
			secret, err := certificate(name, one)
			if err == nil {
				err = add(secret)
			}
			if err != nil {
				return nil, nil, fmt.Errorf("write the certificate of %s: %w", one.ID, err)
			}
		}
	}
	for _, name := range []string{domain, NameRoots} {
		if !wanted(name) || len(names) == 0 && name == NameRoots {
			continue
		}
		if err := add(&tlsv3.Secret{Name: name, Type: &tlsv3.Secret_ValidationContext{
			ValidationContext: &tlsv3.CertificateValidationContext{TrustedCa: inline(certificates(roots.Certificates))},
		}}); err != nil {
			return nil, nil, err
		}
	}
	out.VersionInfo = hex.EncodeToString(version.Sum(nil)[:16])
	return who, out, nil
}

func certificate(name string, one attest.Identity) (*tlsv3.Secret, error) {
	key, err := one.SVID.Key.PKCS8()
	if err != nil {
		return nil, err
	}
	return &tlsv3.Secret{Name: name, Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
		// Without the root, which the other side has.
		CertificateChain: inline(certificates(one.SVID.Chain[:len(one.SVID.Chain)-1])),
		PrivateKey:       inline(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})),
	}}}, nil
}

func inline(b []byte) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: b}}
}

func certificates(certs []*x509.Certificate) []byte {
	var out bytes.Buffer
	for _, c := range certs {
		_ = pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}) // a buffer takes all
	}
	return out.Bytes()
}

// Serves reports whether a method is one of SDS, which demands no header of its callers.
func Serves(method string) bool {
	return strings.HasPrefix(method, "/"+secretv3.SecretDiscoveryService_ServiceDesc.ServiceName+"/")
}
