package story

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/big"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/dev/cluster"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/proof"
)

func relay(ctx context.Context, c *cluster.Cluster) (string, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return "", err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	c.Means().Note("", "a relay in this process, between the machine and the coordinator")
	between := &middle{seed: c.Address()}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, MinVersion: tls.VersionTLS13})))
	fealtyv1.RegisterAdmissionServiceServer(server, between)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }() // ends with Stop, and is waited for
	defer func() { server.Stop(); <-served }()

	tok, err := c.Token(ctx, &fealtyv1.CreateTokenRequest{Entry: cluster.PoolEntry})
	if err != nil {
		return "", err
	}
	seen, err := refusal(ctx, c, errcode.TokenUnknown, func() error {
		victim, err := c.Candidate(ctx)
		if err != nil {
			return err
		}
		_, err = carelessJoin(ctx, victim, l.Addr().String(), identity.Data, proof.NewTokenProver(tok))
		return err
	})
	if err != nil {
		return "", err
	}
	if between.forwarded.Load() != 1 {
		return "", fmt.Errorf("the relay passed on %d proofs", between.forwarded.Load())
	}
	// The proof was good: over one session it admits.
	honest, err := c.Candidate(ctx)
	if err != nil {
		return "", err
	}
	if _, err := honest.Join(ctx, identity.Data, proof.NewTokenProver(tok)); err != nil {
		return "", fmt.Errorf("the same token without the relay: %w", err)
	}
	return seen + "; without the relay the same token admits", nil
}

// carelessJoin joins at addr, whoever answers there.
func carelessJoin(ctx context.Context, n *cluster.Candidate, addr string, kind identity.Kind, p proof.Prover) (*fealtyv1.JoinGrant, error) {
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(careless()))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return n.JoinOver(ctx, conn, kind, p)
}

// careless are credentials that believe anybody: the part of the attacker, and of
// a victim that forgot to check.
func careless() credentials.TransportCredentials {
	return credentials.NewTLS(&tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13})
}

// middle is a man in the middle: it has a session with the candidate and one with
// the seed, and passes on what they say.
type middle struct {
	fealtyv1.UnimplementedAdmissionServiceServer
	seed      string
	forwarded atomic.Int64 // proofs passed on
}

func (r *middle) Join(victim fealtyv1.AdmissionService_JoinServer) error {
	conn, err := grpc.NewClient("passthrough:///"+r.seed, grpc.WithTransportCredentials(careless()))
	if err != nil {
		return err
	}
	defer conn.Close()
	seed, err := fealtyv1.NewAdmissionServiceClient(conn).Join(victim.Context())
	if err != nil {
		return err
	}
	challenge, err := seed.Recv()
	if err != nil {
		return err
	}
	if err := victim.Send(challenge); err != nil {
		return err
	}
	req, err := victim.Recv()
	if err != nil {
		return err
	}
	r.forwarded.Add(1)
	if err := seed.Send(req); err != nil {
		return err
	}
	grant, err := seed.Recv()
	if err != nil {
		return err
	}
	return victim.Send(grant)
}
