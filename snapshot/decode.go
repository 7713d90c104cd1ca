package snapshot

import "fmt"

// Decode reads content of a scope, as it was signed, into a value of that scope's type: a [*NodeRuntime] for
// [ScopeNodeRuntime], a [*RoutePolicy] for [ScopeRoutePolicy]. What is there of into is overwritten.
//
// It checks form and bounds, and vouches for nothing: who signed the content, and whether it counts now, is for
// [Verify] to say. It fails for content that is not in canonical form, and where into is of another scope.
func Decode(scope Scope, content []byte, into Content) error {
	if into.scope() != scope {
		return fmt.Errorf("snapshot: decode content of %s into %T, which is that of %s", scope, into, into.scope())
	}
	if _, err := decode(string(content), into); err != nil {
		return fmt.Errorf("snapshot: decode content of %s: %w", scope, err)
	}
	return nil
}
