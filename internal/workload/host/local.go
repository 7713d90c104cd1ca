package host

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/workload"
	"github.com/fealty-io/fealty/internal/workload/attest"
)

// LocalService is the full name of the service for operators of the machine.
const LocalService = "fealty.v1.LocalWorkloadService"

// RegisterLocal adds the service for operators of the machine to a server that lets in nobody
// else.
func (h *Host) RegisterLocal(to grpc.ServiceRegistrar) {
	fealtyv1.RegisterLocalWorkloadServiceServer(to, local{h: h})
}

type local struct {
	fealtyv1.UnimplementedLocalWorkloadServiceServer
	h *Host
}

// ListWorkloads returns what is registered on the node, and how it stands.
func (l local) ListWorkloads(context.Context, *fealtyv1.ListWorkloadsRequest) (*fealtyv1.ListWorkloadsResponse, error) {
	h := l.h
	out := &fealtyv1.ListWorkloadsResponse{Socket: h.cfg.Socket}
	if faults := h.faults.Load(); faults != nil {
		for _, f := range *faults {
			out.Faults = append(out.Faults, &fealtyv1.WorkloadFault{Service: f.Service, Problem: f.Problem})
		}
	}
	set := h.set.Load()
	if set == nil {
		return out, nil
	}
	states := make(map[string]*fealtyv1.RegisteredWorkload)
	for _, s := range h.issuer.States() {
		w := new(fealtyv1.RegisteredWorkload)
		if !s.NotAfter.IsZero() {
			w.NotAfter = timestamppb.New(s.NotAfter)
		}
		if s.Err != nil {
			w.Problem = s.Err.Error()
		}
		states[s.Registration.ID.String()] = w
	}
	for _, r := range set.Registrations {
		w := &fealtyv1.RegisteredWorkload{SpiffeId: r.ID.String(), Service: r.Service}
		if s := states[w.SpiffeId]; s != nil {
			w.NotAfter, w.Problem = s.NotAfter, s.Problem
		}
		for _, p := range r.Settings("", 0) {
			w.Selectors = append(w.Selectors, p.Name[len(workload.Prefix):]+"="+p.Value)
		}
		out.Workloads = append(out.Workloads, w)
	}
	return out, nil
}

// CheckWorkload says what a process would get, and why not.
func (l local) CheckWorkload(ctx context.Context, req *fealtyv1.CheckWorkloadRequest) (*fealtyv1.CheckWorkloadResponse,
	error) {
	if req.GetPid() <= 0 {
		return nil, errcode.New(errcode.RequestField, "field", "pid", "problem", "it is no number of a process")
	}
	f, err := l.h.callers.Look(ctx, req.GetPid())
	switch {
	case errors.Is(err, attest.ErrGone), errors.Is(err, attest.ErrOther):
		return nil, errcode.New(errcode.RequestField, "field", "pid", "problem",
			fmt.Sprintf("process %d: %v", req.GetPid(), errors.Unwrap(err)))
	case err != nil:
		return nil, err
	}
	out := &fealtyv1.CheckWorkloadResponse{Pid: f.PID, Uid: f.UID, Gid: f.GID, Path: f.Path, Sha256: f.SHA256,
		Unit: f.Unit, Container: f.Container}
	for _, name := range slices.Sorted(maps.Keys(f.Unread)) {
		out.Unread = append(out.Unread, name+": "+f.Unread[name])
	}
	if set := l.h.set.Load(); set != nil {
		for _, r := range set.Registrations {
			out.Fits = append(out.Fits, &fealtyv1.WorkloadFit{SpiffeId: r.ID.String(), Service: r.Service,
				Mismatch: r.Mismatch(f)})
		}
	}
	return out, nil
}
