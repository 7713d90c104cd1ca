package agent

import (
	"context"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
)

// ApplyNodeEmergency takes a statement of the signers.
func (n nodeServer) ApplyNodeEmergency(ctx context.Context,
	req *fealtyv1.ApplyNodeEmergencyRequest) (*fealtyv1.ApplyNodeEmergencyResponse, error) {
	return n.a.node.ApplyEmergency(ctx, req.GetStatement(), req.GetDryRun())
}
