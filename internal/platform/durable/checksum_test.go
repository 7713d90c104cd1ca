package durable_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"testing"

	"github.com/fealty-io/fealty/internal/platform/durable"
)

const head = "numbers, form 1: "

// The form is written here once more: files of earlier releases have it.
func TestForm(t *testing.T) {
	t.Parallel()
	text, err := durable.Encode(head, []int{1, 2})
	if want := fmt.Sprintf("%s%x\n[1,2]\n", head, sha256.Sum256([]byte("[1,2]\n"))); err != nil || string(text) != want {
		t.Errorf("%q, %v; want %q", text, err, want)
	}
	var got []int
	if err := durable.Decode(head, text, &got); err != nil || len(got) != 2 || got[1] != 2 {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := durable.Encode(head, func() {}); err == nil {
		t.Error("a function is written")
	}
	if err := durable.Decode(head, text, &struct{}{}); err == nil || errors.Is(err, durable.ErrDamaged) {
		t.Errorf("whole, and of something else: %v", err)
	}
}

// Any byte that is changed or cut off shows, and so does another name.
func TestDamaged(t *testing.T) {
	t.Parallel()
	text, err := durable.Encode(head, []int{1, 2})
	if err != nil {
		t.Fatal(err)
	}
	damaged := func(what string, head string, text []byte) {
		t.Helper()
		var got []int
		if err := durable.Decode(head, text, &got); !errors.Is(err, durable.ErrDamaged) || got != nil {
			t.Errorf("%s: %v, %v", what, got, err)
		}
	}
	damaged("another name", "numbers, form 2: ", text)
	for i := range text {
		flipped := append([]byte(nil), text...)
		flipped[i] ^= 1
		damaged(fmt.Sprint("byte ", i), head, flipped)
		damaged(fmt.Sprint("cut at ", i), head, text[:i])
	}
	damaged("one more", head, append(text[:len(text):len(text)], ' '))
}
