package nodetest

import (
	"context"
	"errors"
	"io"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/snapshot"
)

// restores serves what nodes ask when they do not know a head.
type restores struct {
	fealtyv1.UnimplementedRestoreServiceServer
	f *Fleet
}

func (r restores) GetLinks(_ *fealtyv1.GetLinksRequest, stream fealtyv1.RestoreService_GetLinksServer) error {
	r.f.Mu.Lock()
	links := r.f.Links()
	if r.f.Faults.Ignorant > 0 {
		r.f.Faults.Ignorant--
		links = links[:1]
	}
	r.f.Mu.Unlock()
	return stream.Send(&fealtyv1.GetLinksResponse{Links: links})
}

func (r restores) PresentTrust(stream fealtyv1.RestoreService_PresentTrustServer) error {
	r.f.Mu.Lock()
	ignorant := r.f.Faults.Ignorant > 0
	r.f.Faults.Ignorant--
	r.f.Mu.Unlock()
	if err := stream.Send(&fealtyv1.PresentTrustResponse{Restored: !ignorant}); err != nil || ignorant {
		return err
	}
	m, err := stream.Recv()
	if err != nil {
		return err
	}
	r.f.Do(func() { r.f.Seen.Shown = append(r.f.Seen.Shown, m.GetBundle().GetEnvelope()) })
	return stream.Send(&fealtyv1.PresentTrustResponse{Restored: true, Taken: 1})
}

// News is s as a stream brings it.
func News(s *fealtyv1.SignedSnapshot) *fealtyv1.ConnectResponse {
	return &fealtyv1.ConnectResponse{News: &fealtyv1.ConnectResponse_Snapshot{Snapshot: s}}
}

// delivery is the fleet's AgentService.
type delivery struct {
	fealtyv1.UnimplementedAgentServiceServer
	f *Fleet
}

func (s delivery) Connect(stream fealtyv1.AgentService_ConnectServer) error {
	f := s.f
	peer := identity.FromContext(stream.Context())
	hello, err := stream.Recv()
	if err != nil {
		return err
	}
	gone := make(chan error, 1)
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	f.Do(func() {
		f.Seen.Reports = append(f.Seen.Reports, hello)
		f.Seen.Hellos++
		f.streams[f.Seen.Hellos] = cancel
	})
	go func() {
		for {
			r, err := stream.Recv()
			if err != nil {
				gone <- err
				return
			}
			f.Do(func() { f.Seen.Reports = append(f.Seen.Reports, r) })
		}
	}()
	held := make(map[string]*fealtyv1.HeldSnapshot)
	for _, h := range hello.GetHeld() {
		held[h.GetScope()] = h
	}
	var sentVersion, sentExtra uint64
	if h := held[string(snapshot.ScopeTrustBundle)]; h != nil && h.GetAuthorityEpoch() == 1 {
		sentVersion = h.GetConfigVersion()
	}
	needBoot := held[string(snapshot.ScopeNodeBootstrap)] == nil
	for {
		f.Mu.Lock()
		changed := f.changed
		var out []*fealtyv1.ConnectResponse
		if sentVersion != f.Version {
			out = append(out, News(f.TrustBundle()))
			sentVersion = f.Version
		}
		if m := f.Members[string(peer.ID.Kind())+"/"+peer.ID.Name()]; needBoot && m != nil {
			out = append(out, News(f.Bootstrap(m)))
			needBoot = false
		}
		out = append(out, f.Extra[min(sentExtra, uint64(len(f.Extra))):]...)
		sentExtra = uint64(len(f.Extra))
		f.Mu.Unlock()
		for _, m := range out {
			if err := stream.Send(m); err != nil {
				return err
			}
		}
		f.Mu.Lock()
		brief := f.Faults.Brief
		f.Mu.Unlock()
		if brief {
			_ = stream.Send(&fealtyv1.ConnectResponse{})
			return status.Error(codes.Unavailable, "that is all")
		}
		select {
		case <-ctx.Done():
			return status.Error(codes.Unavailable, "this coordinator stops")
		case err := <-gone:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		case <-changed:
		}
	}
}

// snapshots is the fleet's SnapshotService.
type snapshots struct {
	fealtyv1.UnimplementedSnapshotServiceServer
	f *Fleet
}

func (s snapshots) Poll(req *fealtyv1.PollRequest, stream fealtyv1.SnapshotService_PollServer) error {
	var out []*fealtyv1.SignedSnapshot
	s.f.Do(func() {
		s.f.Seen.Polls++
		if s.f.Poll != nil {
			out = s.f.Poll(req)
		}
	})
	for _, m := range out {
		if err := stream.Send(&fealtyv1.PollResponse{News: &fealtyv1.PollResponse_Snapshot{Snapshot: m}}); err != nil {
			return err
		}
	}
	return nil
}

func (s snapshots) GetContent(req *fealtyv1.GetContentRequest, stream fealtyv1.SnapshotService_GetContentServer) error {
	var pull func(snapshot.Digest, fealtyv1.SnapshotService_GetContentServer) error
	s.f.Do(func() { s.f.Seen.Pulls++; pull = s.f.Pull })
	if pull == nil {
		return errcode.New(errcode.NotFound, "what", "content", "name", "")
	}
	return pull(snapshot.Digest(req.GetContentHash()), stream)
}

// Serves has the fleet give content to who asks for it.
func Serves(content []byte) func(snapshot.Digest, fealtyv1.SnapshotService_GetContentServer) error {
	return func(hash snapshot.Digest, stream fealtyv1.SnapshotService_GetContentServer) error {
		if hash != snapshot.DigestOf(content) {
			return errcode.New(errcode.NotFound, "what", "content", "name", hash.String())
		}
		for chunk := range slices.Chunk(content, 16<<10) {
			if err := stream.Send(&fealtyv1.GetContentResponse{Chunk: chunk}); err != nil {
				return err
			}
		}
		return nil
	}
}
