package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/fealty-io/fealty/bench/compare/internal/part"
)

// etcdPrefix is where etcd has the records, a key for each.
const etcdPrefix = "config/"

// etcdServer is a server of etcd, the program itself, whose keys are changed by one transaction and watched by a watch each.
// It keeps a change on disk before it tells of it, as a coordinator does.
type etcdServer struct {
	*part.Process
	cmd     *exec.Cmd
	kv      etcdserverpb.KVClient
	conn    *grpc.ClientConn
	version int
}

// startEtcd starts the server at bin, with the records in it, on TLS that demands certificates.
func startEtcd(ctx context.Context, bin, dir string) (_ *etcdServer, target string, err error) {
	client, err := freeAddress()
	if err != nil {
		return nil, "", err
	}
	peer, err := freeAddress()
	if err != nil {
		return nil, "", err
	}
	log, err := os.Create(filepath.Join(dir, "etcd.log"))
	if err != nil {
		return nil, "", err
	}
	defer log.Close()
	// A server believes the CA between root and clients if it is sent along, as Go's TLS does.
	cmd := exec.CommandContext(ctx, bin, "--name=one", "--data-dir="+filepath.Join(dir, "etcd"), "--log-level=warn",
		"--listen-client-urls=https://"+client, "--advertise-client-urls=https://"+client,
		"--listen-peer-urls=http://"+peer, "--initial-advertise-peer-urls=http://"+peer, "--initial-cluster=one=http://"+peer,
		"--client-cert-auth", "--trusted-ca-file="+filepath.Join(dir, part.RootFile), "--cert-file="+filepath.Join(dir, part.ServerFile), "--key-file="+filepath.Join(dir, part.ServerKeyFile))
	cmd.Stdout, cmd.Stderr, cmd.Env = log, log, []string{"HOME=" + dir, "PATH=" + os.Getenv("PATH")}
	if err := cmd.Start(); err != nil {
		return nil, "", err
	}
	s := &etcdServer{Process: part.Of("etcd", cmd), cmd: cmd}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Stop())
		}
	}()
	i, err := part.LoadIssuer(dir)
	if err != nil {
		return nil, "", err
	}
	cert, err := i.Issue("writer")
	if err != nil {
		return nil, "", err
	}
	s.conn, err = grpc.NewClient("passthrough:///"+client, grpc.WithTransportCredentials(credentials.NewTLS(i.ClientTLS(cert))))
	if err != nil {
		return nil, "", err
	}
	s.kv = etcdserverpb.NewKVClient(s.conn)
	starting, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return s, client, s.change(starting, part.Records, grpc.WaitForReady(true))
}

// freeAddress returns an address that nobody listened at a moment ago.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

func (s *etcdServer) change(ctx context.Context, n int, opts ...grpc.CallOption) error {
	s.version++
	tx := new(etcdserverpb.TxnRequest)
	for i := range n {
		name := part.NameOf(i)
		value := fmt.Sprintf(`{"deny":true,"match":"%s","priority":%d,"service":"","to":[],"ttl_seconds":0,"via":[]}`, part.MatchOf(i), s.version)
		tx.Success = append(tx.Success, &etcdserverpb.RequestOp{Request: &etcdserverpb.RequestOp_RequestPut{
			RequestPut: &etcdserverpb.PutRequest{Key: []byte(etcdPrefix + name), Value: []byte(value)}}})
	}
	_, err := s.kv.Txn(ctx, tx, opts...)
	return err
}

// Tell is told nothing that etcd's server could do: it gives back memory when it likes.
func (s *etcdServer) Tell(part.Order) (part.Answer, error) { return part.Answer{}, nil }

// Stop kills the server: nobody needs what it has.
func (s *etcdServer) Stop() error {
	if s.conn != nil {
		s.conn.Close()
	}
	if err := s.cmd.Process.Kill(); err != nil {
		return err
	}
	_ = s.cmd.Wait() // it was killed
	return nil
}

type etcdAgents struct{ part.Certified }

func (a *etcdAgents) Open(ctx context.Context, i int) (func() error, func(), error) {
	conn, err := a.Dial(i)
	if err != nil {
		return nil, nil, err
	}
	end := func() { conn.Close() }
	fail := func(err error) (func() error, func(), error) { end(); return nil, nil, err }
	// All keys that begin with the prefix: up to the first that does not.
	from, until := []byte(etcdPrefix), []byte(etcdPrefix[:len(etcdPrefix)-1]+"0")
	now, err := etcdserverpb.NewKVClient(conn).Range(ctx, &etcdserverpb.RangeRequest{Key: from, RangeEnd: until})
	if err != nil {
		return fail(err)
	}
	stream, err := etcdserverpb.NewWatchClient(conn).Watch(ctx)
	if err != nil {
		return fail(err)
	}
	if err := stream.Send(&etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_CreateRequest{
		CreateRequest: &etcdserverpb.WatchCreateRequest{Key: from, RangeEnd: until, StartRevision: now.GetHeader().GetRevision() + 1}}}); err != nil {
		return fail(err)
	}
	if _, err := stream.Recv(); err != nil { // that the watch was made
		return fail(err)
	}
	return func() error {
		for {
			news, err := stream.Recv()
			if err != nil {
				return err
			}
			if news.GetCanceled() {
				return errors.New("the watch was cancelled: " + news.GetCancelReason())
			}
			if len(news.GetEvents()) > 0 {
				return nil
			}
		}
	}, end, nil
}
