package reference

import (
	"strings"

	"github.com/fealty-io/fealty/internal/authz"
	"github.com/fealty-io/fealty/internal/errcode"
)

// Rules returns the authorization table of all services.
func Rules() ([]authz.Rule, error) {
	services, err := authz.Services(authz.APIServices()...)
	if err != nil {
		return nil, errcode.Wrap(err, errcode.Internal, "what", "the authorization table")
	}
	table, err := authz.NewTable(services...)
	if err != nil {
		return nil, errcode.Wrap(err, errcode.Internal, "what", "the authorization table")
	}
	return table.Rows(), nil
}

// MethodName is the name of the method of a rule, as people read it.
func MethodName(r authz.Rule) string { return strings.TrimPrefix(r.Method, "/fealty.v1.") }

// KindNames are the kinds of members that may call.
func KindNames(r authz.Rule) []string {
	out := make([]string, len(r.Kinds))
	for i, k := range r.Kinds {
		out[i] = string(k)
	}
	return out
}

// Socket says whether it is served on the local socket.
func Socket(r authz.Rule) string {
	switch {
	case r.Consumers:
		return "yes, and to consumers"
	case r.Local:
		return "yes"
	}
	return "-"
}

// Callers says who may call, over the network.
func Callers(r authz.Rule) string {
	switch {
	case r.Open:
		return "anybody"
	case len(r.Kinds) == 0:
		return "nobody"
	}
	return strings.Join(KindNames(r), ", ")
}
