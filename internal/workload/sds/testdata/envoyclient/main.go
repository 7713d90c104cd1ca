// Envoyclient asks an agent for secrets as Envoy does, with the messages of go-control-plane. It is
// a module of its own, since these messages and those of an agent have the same names, which one
// program cannot have twice.
//
//	envoyclient SOCKET [NAME...]
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
)

const typeURL = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"

func main() {
	if err := run(os.Args[1], os.Args[2:]); err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
}

// run prints a line for each secret of each response, and acknowledges it, until the stream ends.
func run(socket string, names []string) error {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	stream, err := secretv3.NewSecretDiscoveryServiceClient(conn).StreamSecrets(context.Background())
	if err != nil {
		return err
	}
	ask := &discoveryv3.DiscoveryRequest{Node: &corev3.Node{Id: "proxy"}, TypeUrl: typeURL, ResourceNames: names}
	for {
		if err := stream.Send(ask); err != nil {
			return err
		}
		resp, err := stream.Recv()
		if err != nil {
			return err
		}
		for _, any := range resp.GetResources() {
			// Every field that is there must be one of Envoy's.
			var secret tlsv3.Secret
			if err := (proto.UnmarshalOptions{}).Unmarshal(any.GetValue(), &secret); err != nil || any.GetTypeUrl() != typeURL {
				return fmt.Errorf("a resource of type %s: %w", any.GetTypeUrl(), err)
			}
			if n := len(secret.ProtoReflect().GetUnknown()); n > 0 {
				return fmt.Errorf("%d bytes of a secret are unknown to Envoy", n)
			}
			if err := secret.ValidateAll(); err != nil {
				return err
			}
			fmt.Println(describe(&secret))
		}
		fmt.Println("version", resp.GetVersionInfo())
		ask.VersionInfo, ask.ResponseNonce = resp.GetVersionInfo(), resp.GetNonce()
	}
}

// describe says whose a certificate is, once key and chain fit, or how many roots there are.
func describe(s *tlsv3.Secret) string {
	if c := s.GetTlsCertificate(); c != nil {
		pair, err := tls.X509KeyPair(c.GetCertificateChain().GetInlineBytes(), c.GetPrivateKey().GetInlineBytes())
		if err != nil {
			return fmt.Sprintf("%s: %v", s.GetName(), err)
		}
		return fmt.Sprintf("%s: %s, %d certificates, serial %x", s.GetName(), pair.Leaf.URIs[0], len(pair.Certificate), pair.Leaf.SerialNumber)
	}
	roots := 0
	for rest := s.GetValidationContext().GetTrustedCa().GetInlineBytes(); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return fmt.Sprintf("%s: %d roots", s.GetName(), roots)
		}
		if _, err := x509.ParseCertificate(block.Bytes); err == nil {
			roots++
		}
	}
}
