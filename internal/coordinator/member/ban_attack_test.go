package member_test

import (
	"crypto/tls"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
)

// A member that is banned while its stream is open: the stream ends with the
// reason, its connection is closed, and neither a new connection nor a TLS ticket
// brings it back.
func TestBanEndsOpenConnections(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	n := f.Member("node-a")
	before := n.Bundle()
	cert := tls.Certificate{PrivateKey: n.Key}
	for _, c := range n.Chain {
		cert.Certificate = append(cert.Certificate, c.Raw)
	}
	tickets := tls.NewLRUClientSessionCache(8)
	cfg := &tls.Config{Certificates: []tls.Certificate{cert}, InsecureSkipVerify: true, MinVersion: tls.VersionTLS13,
		ClientSessionCache: tickets}
	conn, err := grpc.NewClient("passthrough:///"+f.Addr, grpc.WithTransportCredentials(credentials.NewTLS(cfg)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stream, err := coordinatortest.NewClients(conn).Agent.Connect(f.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&fealtyv1.ConnectRequest{Name: "node-a"}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil { // node_bootstrap
		t.Fatal(err)
	}
	ban, err := f.Local().Member.BanMember(f.Context(),
		&fealtyv1.BanMemberRequest{Kind: "data", Name: "node-a", Reason: "stolen"})
	if err != nil {
		t.Fatal(err)
	}
	if ban.GetConnectionsClosed() == 0 {
		t.Error("the ban says that it closed no connection")
	}
	for err == nil {
		_, err = stream.Recv()
	}
	if c := status.Code(err); c != codes.PermissionDenied && c != codes.Unavailable {
		t.Fatalf("the stream ended with %v, want PermissionDenied or a closed connection", err)
	}
	raw, err := tls.Dial("tcp", f.Addr, &tls.Config{Certificates: []tls.Certificate{cert}, InsecureSkipVerify: true,
		MinVersion: tls.VersionTLS13, ClientSessionCache: tickets, NextProtos: []string{"h2"}})
	if err == nil {
		if raw.ConnectionState().DidResume {
			t.Error("a ticket was accepted")
		}
		// In TLS 1.3 a refused client learns of it on its first read.
		if _, err = raw.Read(make([]byte, 1)); err == nil {
			t.Fatal("a banned member was connected again")
		}
		raw.Close()
	}
	n.Believes = before
	if err := n.Renew(false); err == nil {
		t.Fatal("a banned member was renewed")
	}
}
