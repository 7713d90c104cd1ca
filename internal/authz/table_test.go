package authz

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
)

// service builds a service test.Service with one method for each option, named
// M0, M1 and so on; a nil option is one that was forgotten. Their request has a
// field of each sort.
func service(t *testing.T, options ...*fealtyv1.Authorization) protoreflect.ServiceDescriptor {
	t.Helper()
	field := func(name string, number int32, typ descriptorpb.FieldDescriptorProto_Type, label descriptorpb.FieldDescriptorProto_Label) *descriptorpb.FieldDescriptorProto {
		return &descriptorpb.FieldDescriptorProto{Name: &name, Number: &number, Type: &typ, Label: &label}
	}
	const (
		one  = descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL
		many = descriptorpb.FieldDescriptorProto_LABEL_REPEATED
	)
	nested := field("nested", 4, descriptorpb.FieldDescriptorProto_TYPE_MESSAGE, one)
	nested.TypeName = proto.String(".test.Request")
	file := &descriptorpb.FileDescriptorProto{
		Name:    proto.String("test.proto"),
		Package: proto.String("test"),
		Syntax:  proto.String("proto3"),
		MessageType: []*descriptorpb.DescriptorProto{{
			Name: proto.String("Request"),
			Field: []*descriptorpb.FieldDescriptorProto{
				field("name", 1, descriptorpb.FieldDescriptorProto_TYPE_STRING, one),
				field("raw", 2, descriptorpb.FieldDescriptorProto_TYPE_BYTES, one),
				field("names", 3, descriptorpb.FieldDescriptorProto_TYPE_STRING, many),
				nested,
				field("number", 5, descriptorpb.FieldDescriptorProto_TYPE_UINT64, one),
			},
		}},
		Service: []*descriptorpb.ServiceDescriptorProto{{Name: proto.String("Service")}},
	}
	for i, o := range options {
		m := &descriptorpb.MethodDescriptorProto{
			Name:       proto.String(fmt.Sprintf("M%d", i)),
			InputType:  proto.String(".test.Request"),
			OutputType: proto.String(".test.Request"),
		}
		if o != nil {
			m.Options = &descriptorpb.MethodOptions{}
			proto.SetExtension(m.Options, fealtyv1.E_Authorization, o)
		}
		file.Service[0].Method = append(file.Service[0].Method, m)
	}
	d, err := protodesc.NewFile(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	return d.Services().Get(0)
}

func TestTableOfTheAPI(t *testing.T) {
	services, err := Services(APIServices()...)
	if err != nil {
		t.Fatal(err)
	}
	if len(services) < 7 {
		t.Errorf("found the services %v", APIServices())
	}
	table, err := NewTable(services...)
	if err != nil {
		t.Fatal(err)
	}
	rows := table.Rows()
	methods := 0
	for _, s := range services {
		methods += s.Methods().Len()
	}
	if len(rows) != methods {
		t.Errorf("%d rows for %d methods", len(rows), methods)
	}
	if !slices.IsSortedFunc(rows, func(a, b Rule) int { return strings.Compare(a.Method, b.Method) }) {
		t.Error("rows are not sorted")
	}
	// The set of methods open to strangers grows by decision, not by accident.
	var open []string
	for _, r := range rows {
		if r.Open {
			open = append(open, r.Method)
		}
	}
	if want := []string{
		fealtyv1.AdmissionService_Join_FullMethodName, fealtyv1.ManifestService_FirstSet_FullMethodName, // they prove themselves in the call
		fealtyv1.PeerService_Prepare_FullMethodName, fealtyv1.PeerService_Recover_FullMethodName, // two coordinators prove themselves to each other
		fealtyv1.RecoveryService_Recover_FullMethodName,      // an owner proves it by the share; the coordinator proves itself
		fealtyv1.ReseedService_GetRootChanges_FullMethodName, // public, and signed: for who knows no root any more
		fealtyv1.RestoreService_GetLinks_FullMethodName,      // public, and linked by hashes: for who knows another head
		fealtyv1.RestoreService_PresentTrust_FullMethodName,  // the cluster's own signature is what counts, and it only takes away
		fealtyv1.VerifyService_Verify_FullMethodName,         // the coordinator proves itself, to who has no identity yet
	}; !slices.Equal(open, want) {
		t.Errorf("open to strangers: %v, want %v", open, want)
	}
	renew, ok := table.rule(fealtyv1.AdmissionService_Renew_FullMethodName)
	want := []identity.Kind{identity.Data, identity.Witness, identity.Shard, identity.Operator, identity.Provider} // no session: it ends when it ends
	if !ok || !slices.Equal(renew.Kinds, want) || renew.Bind != "name" || renew.Open || renew.Local || renew.Why == "" {
		t.Errorf("the rule of Renew is %+v", renew)
	}
	for _, r := range rows {
		if len(r.Kinds) > 0 {
			r.Kinds[0] = identity.Workload
		}
	}
	if slices.ContainsFunc(table.Rows(), func(r Rule) bool { return slices.Contains(r.Kinds, identity.Workload) }) {
		t.Error("changing a row changed the table")
	}
}

// Each check refuses what it is for, and nothing else does: the cases are keyed
// by check, and a check without a case fails.
func TestEveryRuleCheckRefuses(t *testing.T) {
	why := "because"
	cases := map[string][]*fealtyv1.Authorization{
		"admits-somebody":     {{Why: why}, {Why: why, Kinds: []string{}}},
		"known-kinds":         {{Why: why, Kinds: []string{"root"}}, {Why: why, Kinds: []string{"admin", ""}}, {Why: why, Kinds: []string{"Admin"}}, {Why: why, Kinds: []string{"*"}}},
		"kinds-once":          {{Why: why, Kinds: []string{"admin", "data", "admin"}}},
		"open-alone":          {{Why: why, Open: true, Kinds: []string{"admin"}}, {Why: why, Open: true, Bind: "name"}, {Why: why, Open: true, Local: true}},
		"consumers-are-local": {{Why: why, Consumers: true, Kinds: []string{"admin"}}},
		"bind-needs-kinds":    {{Why: why, Local: true, Bind: "name"}},
		"bind-is-a-string": {
			{Why: why, Kinds: []string{"data"}, Bind: "nobody"}, {Why: why, Kinds: []string{"data"}, Bind: "raw"}, {Why: why, Kinds: []string{"data"}, Bind: "names"},
			{Why: why, Kinds: []string{"data"}, Bind: "nested"}, {Why: why, Kinds: []string{"data"}, Bind: "number"}, {Why: why, Kinds: []string{"data"}, Bind: "nested.name"},
			{Why: why, Kinds: []string{"data"}, Bind: "Name"},
		},
		"says-why": {{Kinds: []string{"data"}}},
	}
	for _, c := range ruleChecks() {
		if len(cases[c.name]) == 0 {
			t.Errorf("check %s has no refusing case", c.name)
		}
		for i, option := range cases[c.name] {
			d := service(t, option)
			rule, _ := readRule(d.Methods().Get(0))
			for _, other := range ruleChecks() {
				if got := other.check(rule, d.Methods().Get(0).Input()); (got != "") != (other.name == c.name) {
					t.Errorf("%s, case %d: check %s says %q", c.name, i, other.name, got)
				}
			}
			table, err := NewTable(d)
			e, ok := errors.AsType[*TableError](err)
			if !ok || table != nil || !errors.Is(err, ErrTable) || len(e.Problems) != 1 || e.Problems[0].Method != "/test.Service/M0" {
				t.Errorf("%s, case %d: NewTable = %v", c.name, i, err)
			}
		}
	}
}

func TestTableErrorNamesEveryMethod(t *testing.T) {
	good := &fealtyv1.Authorization{Kinds: []string{"data"}, Bind: "name", Why: "because"}
	if table, err := NewTable(service(t, good, good)); err != nil || len(table.Rows()) != 2 {
		t.Fatalf("NewTable = %v", err)
	}
	_, err := NewTable(service(t, nil, good, &fealtyv1.Authorization{}, nil))
	e, ok := errors.AsType[*TableError](err)
	if !ok {
		t.Fatalf("NewTable = %v", err)
	}
	if want := (Problem{"/test.Service/M0", "it has no authorization option"}); e.Problems[0] != want {
		t.Errorf("a forgotten option is told as %+v", e.Problems[0])
	}
	var named []string
	for _, p := range e.Problems {
		if !slices.Contains(named, p.Method) {
			named = append(named, p.Method)
		}
		if !strings.Contains(err.Error(), p.Method) || !strings.Contains(err.Error(), p.Detail) {
			t.Errorf("the text leaves out %+v: %v", p, err)
		}
	}
	if want := []string{"/test.Service/M0", "/test.Service/M2", "/test.Service/M3"}; !slices.Equal(named, want) {
		t.Errorf("named %v, want %v", named, want)
	}
}

// Options that are not read as ours are options that are missing.
func TestUnreadableOptionIsMissing(t *testing.T) {
	s := service(t, &fealtyv1.Authorization{Open: true, Why: "because"})
	options := s.Methods().Get(0).Options().(*descriptorpb.MethodOptions)
	ext := proto.GetExtension(options, fealtyv1.E_Authorization).(*fealtyv1.Authorization)
	raw, err := proto.Marshal(ext)
	if err != nil {
		t.Fatal(err)
	}
	proto.ClearExtension(options, fealtyv1.E_Authorization)
	options.ProtoReflect().SetUnknown(append([]byte{0xea, 0xe0, 0x18, byte(len(raw))}, raw...)) // field 50701, as bytes
	if _, err := NewTable(s); !errors.Is(err, ErrTable) {
		t.Errorf("NewTable = %v", err)
	}
}

func TestTableRefusesAServiceTwice(t *testing.T) {
	s := service(t, &fealtyv1.Authorization{Open: true, Why: "because"})
	if _, err := NewTable(s, s); !errors.Is(err, ErrTable) {
		t.Errorf("NewTable = %v", err)
	}
}

func TestServices(t *testing.T) {
	for _, name := range []string{"fealty.v1.NoSuchService", "", "fealty.v1.Token"} {
		if got, err := Services(name); err == nil {
			t.Errorf("Services(%q) = %v", name, got)
		}
	}
}

func TestCheckServer(t *testing.T) {
	services, err := Services("fealty.v1.TokenService")
	if err != nil {
		t.Fatal(err)
	}
	table, err := NewTable(services...)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	fealtyv1.RegisterTokenServiceServer(server, fealtyv1.UnimplementedTokenServiceServer{})
	if err := table.CheckServer(server); err != nil {
		t.Error(err)
	}
	fealtyv1.RegisterAgentServiceServer(server, fealtyv1.UnimplementedAgentServiceServer{})
	err = table.CheckServer(server)
	e, ok := errors.AsType[*TableError](err)
	if !ok || len(e.Problems) != 1 || e.Problems[0].Method != fealtyv1.AgentService_Connect_FullMethodName {
		t.Errorf("CheckServer = %v", err)
	}
	if err := (*Table)(nil).CheckServer(server); err == nil {
		t.Error("a nil table covers a server")
	}
}
