package dir_test

import (
	"errors"
	"testing"

	"github.com/fealty-io/fealty/internal/node/dir"
)

// A sealed file is read as it was written, or not at all: a change of any byte shows.
func TestSeal(t *testing.T) {
	want := dir.StoreFile{Format: dir.StoreFormat, Release: "v1.2.3"}
	data, err := dir.Seal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got dir.StoreFile
	if err := dir.Unseal(data, &got); err != nil || got != want {
		t.Fatalf("got %+v, %v; want %+v", got, err, want)
	}
	for i := range data {
		for _, damaged := range [][]byte{data[:i], append(append(append([]byte{}, data[:i]...), data[i]^1), data[i+1:]...)} {
			if err := dir.Unseal(damaged, new(dir.StoreFile)); !errors.Is(err, dir.ErrDamaged) {
				t.Fatalf("damaged at byte %d: error %v, want ErrDamaged", i, err)
			}
		}
	}
}

// A key that was handed out is a copy: whatever is done to it changes nothing of the pair.
func TestEncodedKeyIsACopy(t *testing.T) {
	t.Parallel()
	key, err := dir.NewKeyPair()
	if err != nil {
		t.Fatal(err)
	}
	first, err := key.PKCS8()
	if err != nil {
		t.Fatal(err)
	}
	clear(first)
	second, err := key.PKCS8()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := dir.ParseKeyPair(second); err != nil || again.ID != key.ID {
		t.Errorf("%v, %v", again.ID, err)
	}
}
