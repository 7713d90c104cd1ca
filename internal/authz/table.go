package authz

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
)

// Rule says who may call one method: whom one of its parts admits.
type Rule struct {
	// Method is the full name, as gRPC has it: "/fealty.v1.TokenService/GetToken".
	Method string
	// Kinds are those whose identity may call, in the order of identity.Kinds.
	Kinds []identity.Kind
	// Bind names the field of the request, on every message of a stream, that must
	// equal the caller's name. Empty: nothing in the request names the caller.
	Bind string
	// Open admits everybody; the method itself demands a proof, or tells nothing
	// that is not public.
	Open bool
	// Local admits the process's own user and root, on the local socket.
	Local bool
	// Consumers admits, of a local method, also whom the settings name.
	Consumers bool
	// Why is one sentence for people.
	Why string

	request protoreflect.FullName // the message that Bind is a field of
}

// Table holds one rule for each method of a server. It is immutable, and a nil
// Table has no methods.
type Table struct {
	rules map[string]Rule
}

// NewTable reads the authorization option of every method of the services. It
// fails with a [*TableError] that names every method whose option is missing or
// makes no sense: a server with such a method must not start (I3).
func NewTable(services ...protoreflect.ServiceDescriptor) (*Table, error) {
	t := &Table{rules: make(map[string]Rule)}
	var problems []Problem
	for _, s := range services {
		methods := s.Methods()
		for i := range methods.Len() {
			rule, wrong := readRule(methods.Get(i))
			if _, twice := t.rules[rule.Method]; twice {
				wrong = append(wrong, "it is given twice")
			}
			for _, w := range wrong {
				problems = append(problems, Problem{rule.Method, w})
			}
			t.rules[rule.Method] = rule
		}
	}
	if len(problems) > 0 {
		slices.SortStableFunc(problems, func(a, b Problem) int { return cmp.Compare(a.Method, b.Method) })
		return nil, &TableError{problems}
	}
	return t, nil
}

// Services returns the descriptors of services by their full names, such as
// "fealty.v1.TokenService", from what the program is linked with.
func Services(names ...string) ([]protoreflect.ServiceDescriptor, error) {
	services := make([]protoreflect.ServiceDescriptor, 0, len(names))
	for _, name := range names {
		d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
		if err != nil {
			return nil, fmt.Errorf("authz: service %s is not part of this program: %w", name, err)
		}
		s, ok := d.(protoreflect.ServiceDescriptor)
		if !ok {
			return nil, fmt.Errorf("authz: %s is not a service", name)
		}
		services = append(services, s)
	}
	return services, nil
}

// APIServices returns the names of all services of Fealty's API, sorted.
func APIServices() []string {
	var names []string
	protoregistry.GlobalFiles.RangeFilesByPackage(fealtyv1.File_fealty_v1_authorization_proto.Package(), func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			names = append(names, string(f.Services().Get(i).FullName()))
		}
		return true
	})
	slices.Sort(names)
	return names
}

// Rows returns the rules, sorted by method. They are the caller's to change.
func (t *Table) Rows() []Rule {
	if t == nil {
		return nil
	}
	rows := make([]Rule, 0, len(t.rules))
	for _, r := range t.rules {
		r.Kinds = slices.Clone(r.Kinds)
		rows = append(rows, r)
	}
	slices.SortStableFunc(rows, func(a, b Rule) int { return cmp.Compare(a.Method, b.Method) })
	return rows
}

// rule returns the rule of a method, and false if it has none.
func (t *Table) rule(method string) (Rule, bool) {
	if t == nil {
		return Rule{}, false
	}
	r, ok := t.rules[method]
	return r, ok
}

// CheckServer fails with a [*TableError] that names every method that the server
// has and the table has not. Call it after the last service was registered, and
// before the server serves: such a method would be refused to everybody, and
// somebody forgot it.
func (t *Table) CheckServer(server interface {
	GetServiceInfo() map[string]grpc.ServiceInfo
}) error {
	var problems []Problem
	for service, info := range server.GetServiceInfo() {
		for _, m := range info.Methods {
			method := "/" + service + "/" + m.Name
			if _, ok := t.rule(method); !ok {
				problems = append(problems, Problem{method, "it is served, and no rule says to whom"})
			}
		}
	}
	if len(problems) > 0 {
		slices.SortStableFunc(problems, func(a, b Problem) int { return cmp.Compare(a.Method, b.Method) })
		return &TableError{problems}
	}
	return nil
}

// readRule returns the rule of m, and what is wrong with it.
func readRule(m protoreflect.MethodDescriptor) (Rule, []string) {
	rule := Rule{
		Method:  fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name()),
		request: m.Input().FullName(),
	}
	options, ok := m.Options().(*descriptorpb.MethodOptions)
	if !ok || !proto.HasExtension(options, fealtyv1.E_Authorization) {
		return rule, []string{"it has no authorization option"}
	}
	option, ok := proto.GetExtension(options, fealtyv1.E_Authorization).(*fealtyv1.Authorization)
	if !ok {
		return rule, []string{"it has no authorization option"}
	}
	rule.Bind, rule.Open, rule.Local, rule.Consumers, rule.Why = option.GetBind(), option.GetOpen(), option.GetLocal(), option.GetConsumers(), option.GetWhy()
	for _, k := range option.GetKinds() {
		rule.Kinds = append(rule.Kinds, identity.Kind(k))
	}
	slices.SortStableFunc(rule.Kinds, func(a, b identity.Kind) int {
		return cmp.Compare(slices.Index(identity.Kinds(), a), slices.Index(identity.Kinds(), b))
	})
	var wrong []string
	for _, c := range ruleChecks() {
		if w := c.check(rule, m.Input()); w != "" {
			wrong = append(wrong, w)
		}
	}
	return rule, wrong
}

// ruleCheck refuses one way in which an option can make no sense. It returns
// what is wrong, or "".
type ruleCheck struct {
	name  string
	check func(r Rule, request protoreflect.MessageDescriptor) string
}

func ruleChecks() []ruleCheck {
	return []ruleCheck{
		{"admits-somebody", func(r Rule, _ protoreflect.MessageDescriptor) string {
			if len(r.Kinds) == 0 && !r.Open && !r.Local {
				return "its authorization option admits nobody: it needs kinds, open or local"
			}
			return ""
		}},
		{"known-kinds", func(r Rule, _ protoreflect.MessageDescriptor) string {
			for _, k := range r.Kinds {
				if !k.Valid() {
					return fmt.Sprintf("kind %q does not exist", string(k))
				}
			}
			return ""
		}},
		{"kinds-once", func(r Rule, _ protoreflect.MessageDescriptor) string {
			for i, k := range r.Kinds {
				if slices.Contains(r.Kinds[:i], k) {
					return fmt.Sprintf("kind %q is listed twice", string(k))
				}
			}
			return ""
		}},
		// An open method with a list of kinds, or a binding, reads as if these
		// restricted it.
		{"open-alone", func(r Rule, _ protoreflect.MessageDescriptor) string {
			if r.Open && (len(r.Kinds) > 0 || r.Bind != "" || r.Local) {
				return "it is open to everybody, so kinds, bind and local would have no effect"
			}
			return ""
		}},
		{"consumers-are-local", func(r Rule, _ protoreflect.MessageDescriptor) string {
			if r.Consumers && !r.Local {
				return "its consumers are local, and it is not"
			}
			return ""
		}},
		{"bind-needs-kinds", func(r Rule, _ protoreflect.MessageDescriptor) string {
			if r.Bind != "" && len(r.Kinds) == 0 && !r.Open {
				return "it binds a field to a name, and admits nobody who has one"
			}
			return ""
		}},
		{"bind-is-a-string", func(r Rule, request protoreflect.MessageDescriptor) string {
			if r.Bind == "" {
				return ""
			}
			f := request.Fields().ByName(protoreflect.Name(r.Bind))
			switch {
			case f == nil:
				return fmt.Sprintf("it binds field %q, and %s has none of that name", r.Bind, request.FullName())
			case f.Kind() != protoreflect.StringKind || f.Cardinality() == protoreflect.Repeated:
				return fmt.Sprintf("it binds field %q of %s, which is not a single string", r.Bind, request.FullName())
			}
			return ""
		}},
		{"says-why", func(r Rule, _ protoreflect.MessageDescriptor) string {
			if r.Why == "" {
				return "its authorization option does not say why"
			}
			return ""
		}},
	}
}

// ErrTable is matched by every [*TableError].
var ErrTable = errors.New("authorization table")

// Problem is one thing that is wrong with the rule of one method.
type Problem struct {
	Method string
	Detail string
}

// TableError lists all that is wrong with the rules of a server, by method.
type TableError struct {
	Problems []Problem
}

func (e *TableError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "the server must not start, because it is not decided who may call it (%d problems):", len(e.Problems))
	for _, p := range e.Problems {
		fmt.Fprintf(&b, "\n  %s: %s", p.Method, p.Detail)
	}
	b.WriteString("\nmend the authorization options in the .proto files")
	return b.String()
}

// Is makes every TableError match [ErrTable].
func (e *TableError) Is(target error) bool { return target == ErrTable }
