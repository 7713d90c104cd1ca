package record

import (
	"context"
	"fmt"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/errcode"
)

// Actor names who calls, for the audit log: a SPIFFE id, "local uid <n>" on the local
// socket, or "setup token" for whoever has no identity yet.
func Actor(ctx context.Context) string {
	p := identity.FromContext(ctx)
	switch {
	case p.Identified():
		return p.ID.String()
	case p.Local != nil:
		return fmt.Sprintf("local uid %d", p.Local.UID)
	}
	return "setup token"
}

// MaxReasonBytes bounds why something is done, as people say it.
const MaxReasonBytes = 256

// CheckReason bounds why something is done, and asks for it if it is required. Its errors
// are [errcode.RequestField].
func CheckReason(reason string, required bool) error {
	switch {
	case len(reason) > MaxReasonBytes:
		return errcode.New(errcode.RequestField, "field", "reason",
			"problem", fmt.Sprintf("it is longer than %d bytes", MaxReasonBytes))
	case reason == "" && required:
		return errcode.New(errcode.RequestField, "field", "reason",
			"problem", "it is empty: say why, for the audit log")
	}
	return nil
}
