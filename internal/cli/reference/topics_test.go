package reference_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/cli/reference"
)

// Every field that a manifest may have is explained. Their names are those that
// its decoder reads.
func TestManifestFieldsAreExplained(t *testing.T) {
	src, err := os.ReadFile("../../manifest/decode.go")
	if err != nil {
		t.Fatal(err)
	}
	var last []string
	for _, f := range topicNamed(t, "manifest").Fields {
		last = append(last, f.Name[strings.LastIndexByte(f.Name, '.')+1:])
	}
	found := regexp.MustCompile(`part\{Name: "(\w+)"`).FindAllStringSubmatch(string(src), -1)
	if len(found) < 20 {
		t.Fatalf("the decoder names %d fields: it is written in another way now", len(found))
	}
	for _, m := range found {
		if !slices.Contains(last, m[1]) {
			t.Errorf("manifest field %s is not explained", m[1])
		}
	}
	for _, name := range last {
		if !strings.Contains(string(src), `part{Name: "`+name+`"`) {
			t.Errorf("manifest field %s is explained and does not exist", name)
		}
	}
}

func TestMessageFieldsAreExplained(t *testing.T) {
	for word, m := range map[string]proto.Message{"member": &fealtyv1.Member{}, "token": &fealtyv1.Token{}, "finding": &fealtyv1.Finding{}} {
		var want, got []string
		fields := m.ProtoReflect().Descriptor().Fields()
		for i := range fields.Len() {
			want = append(want, string(fields.Get(i).Name()))
		}
		for _, f := range topicNamed(t, word).Fields {
			got = append(got, f.Name)
		}
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(want, got) {
			t.Errorf("%s: explained are %v, and there are %v", word, got, want)
		}
	}
}

func topicNamed(t *testing.T, name string) reference.Topic {
	t.Helper()
	for _, x := range reference.Topics() {
		if x.Name == name {
			return x
		}
	}
	t.Fatalf("no topic %s", name)
	return reference.Topic{}
}
