package keyring_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/internal/keyring"
)

// mapping is what the kernel says of the memory around an address: its access, its
// flags, and the access of its neighbours.
type mapping struct {
	access, before, after string
	flags                 []string
}

func mappingOf(t *testing.T, address uintptr) mapping {
	t.Helper()
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	var out mapping
	var last, lastEnd = "", uintptr(0)
	inside, end := false, uintptr(0)
	for line := range strings.Lines(string(smaps)) {
		var from, to uintptr
		var access string
		if n, _ := fmt.Sscanf(line, "%x-%x %s", &from, &to, &access); n == 3 {
			if end != 0 && from == end {
				out.after = access
			}
			inside = from <= address && address < to
			if inside {
				out.access, end = access, to
				if lastEnd == from {
					out.before = last
				}
			}
			last, lastEnd = access, to
		} else if flags, ok := strings.CutPrefix(line, "VmFlags:"); ok && inside {
			out.flags = strings.Fields(flags)
		}
	}
	if out.access == "" {
		t.Fatalf("%#x is mapped nowhere", address)
	}
	return out
}

func TestSecretsLieOnLockedPages(t *testing.T) {
	seed := keyring.NewSeed()
	again, err := keyring.SeedFrom(seed.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	keys := derive(t, seed, fixedSalt())
	shares, err := keyring.Split(seed, 2, 2)
	if err != nil {
		t.Fatal(err)
	}
	combined, err := keyring.Combine(2, shares)
	if err != nil {
		t.Fatal(err)
	}
	if m := keyring.LockedMemory(); m.Problem != nil || m.Locked < os.Getpagesize() || m.Unlocked != 0 || m.Heap != 0 {
		t.Fatalf("memory for secrets: %+v", m)
	}
	for name, address := range map[string]uintptr{
		"new seed": keyring.SeedAddress(seed), "read seed": keyring.SeedAddress(again), "combined seed": keyring.SeedAddress(combined),
		"keys": keyring.KeysAddress(keys), "share": keyring.ShareAddress(shares[1]),
	} {
		m := mappingOf(t, address)
		for flag, means := range map[string]string{"lo": "locked", "dd": "kept out of core dumps", "wf": "wiped in children"} {
			if !slices.Contains(m.flags, flag) {
				t.Errorf("the page of the %s is not %s: %v", name, means, m.flags)
			}
		}
		if m.access != "rw-p" || m.before != "---p" || m.after != "---p" {
			t.Errorf("the page of the %s is %s between %q and %q", name, m.access, m.before, m.after)
		}
	}
	runtime.KeepAlive([]any{seed, again, keys, shares, combined})
}

// A wiped secret is zeros for whoever still has it, whatever comes after it; and
// places of secrets that nobody has come back.
func TestLockedPlacesComeBackEmpty(t *testing.T) {
	wiped := keyring.NewSeed()
	wiped.Wipe()
	before := keyring.LockedMemory().Locked
	for i := range 20_000 {
		s, err := keyring.SeedFrom(bytes.Repeat([]byte{0xee}, 32))
		if err != nil {
			t.Fatal(err)
		}
		if i%1000 == 0 {
			runtime.GC()
			if !wiped.IsZero() || !bytes.Equal(wiped.Reveal(), make([]byte, 32)) {
				t.Fatal("a wiped seed shows another secret")
			}
		}
		if got := s.Reveal(); got[0] != 0xee || got[31] != 0xee {
			t.Fatal("a seed lost its bytes while it was in use")
		}
	}
	// 20,000 places are 156 pages. Without any coming back there would be so many.
	if grew := (keyring.LockedMemory().Locked - before) / os.Getpagesize(); grew > 100 {
		t.Errorf("%d more pages", grew)
	}
	if m := keyring.LockedMemory(); m.Problem != nil {
		t.Error(m.Problem)
	}
}

// Where pages cannot be locked, or had, it goes on and says so.
func TestLockedMemoryFallsBack(t *testing.T) {
	refuses := errors.New("no pages here")
	asked := 0
	secrets, m := keyring.TakeLocked(3, func() ([]byte, error) { asked++; return nil, refuses })
	if asked != 1 || m.Heap != 3 || m.Locked+m.Unlocked != 0 || !errors.Is(m.Problem, refuses) {
		t.Errorf("without pages: asked %d times, %+v", asked, m)
	}
	for i, s := range secrets {
		if len(s) != 32 || !bytes.Equal(s, make([]byte, 32)) || i > 0 && &s[0] == &secrets[0][0] {
			t.Errorf("secret %d has no place of its own", i)
		}
	}
	secrets, m = keyring.TakeLocked(5, func() ([]byte, error) { return make([]byte, 64), refuses })
	if m.Heap != 0 || m.Locked != 0 || m.Unlocked != 3*64 || !errors.Is(m.Problem, refuses) {
		t.Errorf("with unlocked pages: %+v", m)
	}
	for i, s := range secrets {
		if cap(s) != 32 {
			t.Errorf("secret %d can grow into the next one", i)
		}
	}
}
