package owner_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/recovery/owner"
	"github.com/fealty-io/fealty/internal/keyring/recovery"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/test/wait"
)

// Strangers who verify, and take the history no further than they have to, hold up
// nobody who verifies; and they lose their places.
func TestStrangersHoldUpNobodyWhoVerifies(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	for i := range 4 { // more than one page
		long := string(f.Manifest("")) + strings.Repeat(fmt.Sprintf("#%d%s\n", i, strings.Repeat("x", 997)), 1000)
		if err := f.Set([]byte(long)); err != nil {
			t.Fatal(err)
		}
	}
	f.C.Parts().Shown.Verification.SetLimits(func(l *ratelimit.Limits) { l.Patience = 10 * time.Second }) // also for the data owner, on a busy machine
	want := recovery.Expected{Manifest: f.State().Manifest}
	var held []fealtyv1.VerifyService_VerifyClient
	for i := range 8 {
		client := fealtyv1.NewVerifyServiceClient(coordinatortest.StrangerFrom(f, i))
		for range owner.MaxVerificationsPerSource {
			stream, err := client.Verify(f.Context(), &fealtyv1.VerifyRequest{Nonce: make([]byte, proof.NonceBytes)})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := stream.Recv(); err != nil { // the claim; the history stays where it is
				t.Fatal(err)
			}
			held = append(held, stream)
		}
	}
	_, err := coordinatortest.VerifyAt(t, f.Addr, want)
	coordinatortest.WantOnly(t, "a data owner among strangers", err, "")
	v := f.C.Parts().Shown.Verification.Places()
	wait.Until(t, fmt.Sprintf("none of %d streams that take nothing holds its place", len(held)),
		func() bool { return v.InUse() == 0 })
}
