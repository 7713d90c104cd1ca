// What tests outside of the package reach for, and no program does.
package owner

import (
	"context"

	"github.com/fealty-io/fealty/internal/platform/ratelimit"
)

const VerifyBurst = verifyBurst

// Places are those of callers that verify.
func (v *Verification) Places() *ratelimit.Limiter { return v.verifiers }

// SetLimits exchanges the limits of callers that verify.
func (v *Verification) SetLimits(alter func(*ratelimit.Limits)) {
	limits := v.verifiers.Limits()
	alter(&limits)
	v.verifiers = ratelimit.New(limits)
}

func (v *Verification) Show(ctx context.Context) (*shown, error) { return v.showHistory(ctx) }

func (v *Verification) Shown() *shown { return v.shown }
