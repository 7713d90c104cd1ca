package store_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/fealty-io/fealty/internal/store"
)

func TestTxValidate(t *testing.T) {
	key := strings.Repeat("k", store.MaxKeyBytes)
	puts := func(n, bytes int) (list []store.Write) {
		for i := range n {
			list = append(list, store.Write{Key: fmt.Sprintf("%08d", i), Value: make([]byte, bytes)})
		}
		return list
	}
	var none, limit, badKey = error(nil), new(*store.LimitError), new(*store.KeyError)
	for _, c := range []struct {
		name string
		tx   store.Tx
		want any // nil, store.ErrInvalid, or the type to be found
	}{
		{"one put", store.Tx{Put: puts(1, 0)}, none},
		{"one delete", store.Tx{Delete: []string{"a"}}, none},
		{"with all", store.Tx{ID: "id", If: []store.Condition{{Key: "a"}, {Key: "b", Version: 1}}, Put: []store.Write{{Key: "a"}}, Delete: []string{"b"}}, none},
		{"longest key", store.Tx{Put: []store.Write{{Key: key}}}, none},
		{"longest ID", store.Tx{ID: key, Delete: []string{"a"}}, none},
		{"longest value", store.Tx{Put: puts(1, store.MaxValueBytes)}, none},
		{"most operations", store.Tx{Put: puts(store.MaxTxOps, 0)}, none},
		{"most bytes", store.Tx{Put: puts(8, store.MaxTxBytes/8-8)}, none},

		{"nothing", store.Tx{}, store.ErrInvalid},
		{"ID alone", store.Tx{ID: "id"}, store.ErrInvalid},
		{"condition alone", store.Tx{If: []store.Condition{{Key: "a"}}}, store.ErrInvalid},
		{"two conditions on a key", store.Tx{If: []store.Condition{{Key: "a"}, {Key: "b"}, {Key: "a", Version: 2}}, Delete: []string{"a"}}, store.ErrInvalid},
		{"two puts of a key", store.Tx{Put: []store.Write{{Key: "a"}, {Key: "b"}, {Key: "a"}}}, store.ErrInvalid},
		{"two deletes of a key", store.Tx{Delete: []string{"a", "b", "a"}}, store.ErrInvalid},
		{"put and delete of a key", store.Tx{Put: []store.Write{{Key: "a"}}, Delete: []string{"a"}}, store.ErrInvalid},
		{"key too long", store.Tx{Put: []store.Write{{Key: key + "k"}}}, badKey},
		{"empty put key", store.Tx{Put: []store.Write{{}}}, badKey},
		{"empty delete key", store.Tx{Delete: []string{""}}, badKey},
		{"empty condition key", store.Tx{If: []store.Condition{{}}, Delete: []string{"a"}}, badKey},
		{"binary put key", store.Tx{Put: []store.Write{{Key: "a\xff"}}}, badKey},
		{"binary delete key", store.Tx{Delete: []string{"a\x00"}}, badKey},
		{"binary condition key", store.Tx{If: []store.Condition{{Key: "\n"}}, Delete: []string{"a"}}, badKey},
		{"binary ID", store.Tx{ID: "\x7f", Delete: []string{"a"}}, badKey},
		{"ID too long", store.Tx{ID: key + "k", Delete: []string{"a"}}, badKey},
		{"value too long", store.Tx{Put: puts(1, store.MaxValueBytes+1)}, limit},
		{"too many puts", store.Tx{Put: puts(store.MaxTxOps+1, 0)}, limit},
		{"too many with deletes", store.Tx{Put: puts(store.MaxTxOps, 0), Delete: []string{"a"}}, limit},
		{"too many with conditions", store.Tx{Put: puts(store.MaxTxOps, 0), If: []store.Condition{{Key: "a"}}}, limit},
		{"too many bytes", store.Tx{Put: append(puts(8, store.MaxTxBytes/8-8), store.Write{Key: "a"})}, limit},
		{"too many bytes with a delete", store.Tx{Put: puts(8, store.MaxTxBytes/8-8), Delete: []string{"a"}}, limit},
		{"too many bytes with a condition", store.Tx{Put: puts(8, store.MaxTxBytes/8-8), If: []store.Condition{{Key: "a"}}}, limit},
	} {
		err := c.tx.Validate()
		switch want := c.want.(type) {
		case nil:
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
		case error:
			if !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", c.name, err, want)
			}
		default:
			if !errors.As(err, want) || !errors.Is(err, store.ErrInvalid) {
				t.Errorf("%s: %v, want a %T", c.name, err, want)
			}
		}
	}
}

func TestCheckKey(t *testing.T) {
	for b := range 256 {
		want := b >= 0x20 && b <= 0x7e
		for _, key := range []string{string([]byte{byte(b)}), "a" + string([]byte{byte(b)}), string([]byte{byte(b)}) + "a"} {
			if err := store.CheckKey(key); (err == nil) != want {
				t.Errorf("CheckKey(%q) = %v", key, err)
			}
			if err := store.CheckPrefix(key); (err == nil) != want {
				t.Errorf("CheckPrefix(%q) = %v", key, err)
			}
		}
	}
	if err := store.CheckPrefix(""); err != nil {
		t.Errorf("empty prefix: %v", err)
	}
}

// TestDigest: two Tx have one digest if and only if they do the same.
func TestDigest(t *testing.T) {
	word := rapid.SampledFrom([]string{"a", "b", "ab", "aa", ""})
	drawTx := func(t *rapid.T, label string) store.Tx {
		var tx store.Tx
		for range rapid.IntRange(0, 2).Draw(t, label+" if") {
			tx.If = append(tx.If, store.Condition{Key: word.Draw(t, "key"), Version: store.Revision(rapid.IntRange(0, 2).Draw(t, "version"))})
		}
		for range rapid.IntRange(0, 2).Draw(t, label+" put") {
			tx.Put = append(tx.Put, store.Write{Key: word.Draw(t, "key"), Value: []byte(word.Draw(t, "value"))})
		}
		for range rapid.IntRange(0, 2).Draw(t, label+" delete") {
			tx.Delete = append(tx.Delete, word.Draw(t, "key"))
		}
		return tx
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawTx(t, "a"), drawTx(t, "b")
		same := fmt.Sprintf("%q", []any{a.If, a.Put, a.Delete}) == fmt.Sprintf("%q", []any{b.If, b.Put, b.Delete})
		if got := a.Digest() == b.Digest(); got != same {
			t.Fatalf("equal digests: %v, of %+v and %+v", got, a, b)
		}
		a.ID = "id"
		if a.Digest() != a.Clone().Digest() {
			t.Fatal("a clone has another digest")
		}
	})
}

func TestClone(t *testing.T) {
	tx := store.Tx{ID: "id", If: []store.Condition{{Key: "c", Version: 1}}, Put: []store.Write{{Key: "p", Value: []byte("v")}}, Delete: []string{"d"}}
	digest := tx.Digest()
	c := tx.Clone()
	c.If[0].Key, c.Put[0].Key, c.Put[0].Value[0], c.Delete[0] = "x", "x", 'x', "x"
	if tx.Digest() != digest {
		t.Fatalf("changing a clone changed %+v", tx)
	}
	if tx.Size() != 4 {
		t.Fatalf("Size = %d, want 4", tx.Size())
	}
}

func TestPrefixEnd(t *testing.T) {
	text := rapid.StringMatching(`[ -~]{0,6}`)
	rapid.Check(t, func(t *rapid.T) {
		prefix, key := text.Draw(t, "prefix"), text.Draw(t, "key")
		if rapid.Bool().Draw(t, "inside") {
			key = prefix + key
		}
		if got := key >= prefix && key < store.PrefixEnd(prefix); got != strings.HasPrefix(key, prefix) {
			t.Fatalf("%q in the range of %q: %v", key, prefix, got)
		}
	})
}
