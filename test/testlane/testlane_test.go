package testlane_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/test/testlane"
)

// A test of either lane, and of the nightly lane alone, which the tests below run in processes of
// their own.
func TestInner(t *testing.T) {
	if os.Getenv("FEALTY_TEST_INNER") == "" {
		t.Skip("the tests of this package run this")
	}
	t.Logf("rounds %d, first seed %d, second seed %d", testlane.Rounds(3, 70), testlane.Seed(t), testlane.Seed(t))
	t.Logf("they are enough: %v", testlane.Enough(t))
	t.Run("at night", func(t *testing.T) {
		testlane.Nightly(t)
		t.Log("the night has come")
	})
}

// inner runs the test above, and returns what it printed and what it wrote down as held back.
func inner(t *testing.T, env ...string) (printed, held string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "held")
	cmd := exec.Command(os.Args[0], "-test.v", "-test.run", "^TestInner$")
	cmd.Env = append(os.Environ(), append([]string{"FEALTY_TEST_INNER=1", "FEALTY_LANE=", "FEALTY_SEED=", "FEALTY_HELD=" + file}, env...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	noted, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(out), string(noted)
}

func TestQuickLane(t *testing.T) {
	printed, held := inner(t)
	if held != "./test/testlane TestInner/at_night\n" {
		t.Errorf("held back: %q", held)
	}
	for _, want := range []string{"rounds 3, first seed 1, second seed 1", "they are enough: true", "SKIP: TestInner/at_night",
		"make nightly IN=./test/testlane TEST='TestInner/at_night'", "make nightly IN=./test/testlane TEST='TestInner' SEED=1"} {
		if !strings.Contains(printed, want) {
			t.Errorf("%q is not in:\n%s", want, printed)
		}
	}
	if strings.Contains(printed, "the night has come") {
		t.Errorf("a nightly test ran:\n%s", printed)
	}
}

func TestNightlyLane(t *testing.T) {
	printed, held := inner(t, "FEALTY_LANE=nightly", "FEALTY_SEED=42")
	if held != "" {
		t.Errorf("held back: %q", held)
	}
	for _, want := range []string{"first seed 42, second seed 42", "the night has come"} {
		if !strings.Contains(printed, want) {
			t.Errorf("%q is not in:\n%s", want, printed)
		}
	}
	full, enough := strings.Contains(printed, "rounds 70,"), strings.Contains(printed, "they are enough: true")
	if full == underDetector || enough == underDetector {
		t.Errorf("under the race detector: %v; full rounds: %v; enough: %v", underDetector, full, enough)
	}
}

// Few rounds that somebody begins with another seed are not enough.
func TestEnough(t *testing.T) {
	if printed, _ := inner(t, "FEALTY_SEED=42"); !strings.Contains(printed, "they are enough: false") {
		t.Error(printed)
	}
}

// Two nights are not the same, and each says what it began with.
func TestSeedOfANight(t *testing.T) {
	seed := func() string {
		printed, _ := inner(t, "FEALTY_LANE=nightly")
		_, rest, _ := strings.Cut(printed, "first seed ")
		seed, rest, found := strings.Cut(rest, ", second seed ")
		if again, _, _ := strings.Cut(rest, "\n"); !found || seed != again {
			t.Fatalf("no seed, or two, in:\n%s", printed)
		}
		return seed
	}
	if first := seed(); first == seed() {
		t.Errorf("two nights begin with %s", first)
	}
}
