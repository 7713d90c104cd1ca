package cli

import (
	"testing"

	"github.com/fealty-io/fealty/manifest"
)

// The page of the manifest has a row for each field that is explained, in the same
// order, and for no other.
func TestManifestPageHasEveryField(t *testing.T) {
	fields, shapes := topicNamed(t, "manifest").fields, manifestShapes()
	if len(fields) != len(shapes) {
		t.Errorf("%d fields are explained, and %d have a form", len(fields), len(shapes))
	}
	for i := range min(len(fields), len(shapes)) {
		if fields[i].name != shapes[i].name {
			t.Fatalf("field %d is %s where it is explained, and %s where its form is", i, fields[i].name, shapes[i].name)
		}
	}
}

// What the page shows as a manifest is one.
func TestManifestPageShowsAManifest(t *testing.T) {
	if _, err := manifest.Parse([]byte(manifestExample)); err != nil {
		t.Fatal(err)
	}
}
