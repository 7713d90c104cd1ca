//go:build !race

package publication_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/publication"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/snapshot"
)

// A generation takes as much as one transaction of the store does: what is left goes
// with the next, and a content that no store takes is cut.
func TestMuchContent(t *testing.T) {
	d := coordinatortest.Tenants(t)
	b := publication.NewPublisher()
	coordinatortest.MustPublish(d, b)
	// No form of a secret begins with this letter: a name is then looked through in no time.
	long := strings.Repeat("z", 55)
	addresses := make([]string, 60)
	for i := range addresses {
		addresses[i] = fmt.Sprintf("%q", fmt.Sprintf("h%d-%s.%s.%s.example:1", i, long, long, long))
	}
	for i := range 2 {
		var records []string
		for j := range 200 {
			records = append(records,
				fmt.Sprintf("kind: peer\nname: zig-%d-%d\nmember: data/both\naddresses: [%s]\nclass: bootstrap", i, j,
					strings.Join(addresses, ", ")))
		}
		coordinatortest.MustPut(d, strings.Join(records, "\n---\n"))
	}
	most := 0
	d.Store.Intercept(func(tx store.Tx) {
		for _, w := range tx.Put {
			most = max(most, len(w.Value))
		}
	})
	p := coordinatortest.MustPublish(d, b)
	if most < store.CutBytes/4 || most > store.CutBytes/2 {
		t.Errorf("a value of %d bytes was written", most)
	}
	raw := p.Contents[coordinatortest.Given(t, d, p, "acme")[snapshot.ScopePeerDirectory].ContentHash.String()]
	if len(raw) < store.MaxValueBytes*9/10 || len(raw) > store.MaxValueBytes {
		t.Fatalf("%d bytes", len(raw))
	}
	if f := coordinatortest.FindingsAt(d, t, errcode.ConfigNotGiven); len(f) != 1 || !strings.Contains(f[0].GetSummary(), "too large") {
		t.Fatalf("findings %v", f)
	}
	coordinatortest.WantWholeAt(d, t, p)
	// The next one has it as its base.
	coordinatortest.MustPut(d, "kind: peer\nname: zig-0-0\nmember: data/both\naddresses: [\"h:1\"]\nclass: bootstrap")
	coordinatortest.WantWholeAt(d, t, coordinatortest.MustPublish(d, b))
}
