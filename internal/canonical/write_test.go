package canonical_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/fealty-io/fealty/internal/canonical"
)

// Bytes that were written are nobody else's memory, however many write at once, and however large it is.
func TestWriteSharesNothing(t *testing.T) {
	t.Parallel()
	var all sync.WaitGroup
	for n := range 8 {
		all.Go(func() {
			var have [][]byte
			var want []string
			for i := range 50 {
				text := strings.Repeat(fmt.Sprintf("%d-%d ", n, i), 1+i*i*i%5000)
				if i == 20 {
					text = strings.Repeat(text, 5<<20/len(text)) // more than is kept
				}
				out, c := canonical.Write(func(c *canonical.Codec) { c.Text(&text, 8<<20) })
				if c.Err() != nil || len(c.Out()) != len(out) {
					t.Errorf("%v, %d bytes of %d", c.Err(), len(c.Out()), len(out))
				}
				have, want = append(have, out), append(want, `"`+text+`"`)
			}
			for i := range have {
				if string(have[i]) != want[i] {
					t.Errorf("what %d wrote as the %dth was written over", n, i)
				}
			}
		})
	}
	all.Wait()
}
