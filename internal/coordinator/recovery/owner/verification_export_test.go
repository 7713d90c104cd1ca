// Inside the package: what its tests reach for has no other door.
package owner

import (
	"context"

	"github.com/fealty-io/fealty/internal/platform/flowcontrol"
)

const VerifyBurst = verifyBurst

// Places are those of callers that verify.
func (v *Verification) Places() *flowcontrol.Limiter { return v.verifiers }

// SetLimits exchanges the limits of callers that verify.
func (v *Verification) SetLimits(alter func(*flowcontrol.Limits)) {
	limits := v.verifiers.Limits()
	alter(&limits)
	v.verifiers = flowcontrol.New(limits)
}

func (v *Verification) Show(ctx context.Context) (*shown, error) { return v.showHistory(ctx) }

func (v *Verification) Shown() *shown { return v.shown }
