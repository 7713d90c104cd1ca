package keyring_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math/big"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/fealty-io/fealty/internal/keyring"
)

// A field element is a polynomial over GF(2), here the bits of a big integer:
// slow, with branches, and written from the definition.

// products holds what slowProduct says of all pairs, because it is slow.
var products = sync.OnceValue(func() *[256][256]byte {
	var out [256][256]byte
	for a := range out {
		for b := range out[a] {
			out[a][b] = slowProduct(byte(a), byte(b))
		}
	}
	return &out
})

func slowMul(a, b byte) byte { return products()[a][b] }

// slowProduct multiplies polynomials and takes the remainder by x^8+x^4+x^3+x+1.
func slowProduct(a, b byte) byte {
	product, modulus := new(big.Int), big.NewInt(0b1_0001_1011)
	for i := range 8 {
		if b>>i&1 == 1 {
			product.Xor(product, new(big.Int).Lsh(big.NewInt(int64(a)), uint(i)))
		}
	}
	for product.BitLen() > 8 {
		product.Xor(product, new(big.Int).Lsh(modulus, uint(product.BitLen()-9)))
	}
	return byte(product.Int64())
}

func slowInvert(a byte) byte {
	for b := range 256 {
		if slowMul(a, byte(b)) == 1 {
			return byte(b)
		}
	}
	return 0
}

// slowEvaluate sums the powers: coefficients[d]·x^d.
func slowEvaluate(coefficients []byte, x byte) byte {
	var sum byte
	for d, c := range coefficients {
		for range d {
			c = slowMul(c, x)
		}
		sum ^= c
	}
	return sum
}

// slowSolve finds the constant term by Gauss' elimination of the equations
// sum(c[d]·x^d) = y: no interpolation formula.
func slowSolve(xs, ys []byte) (c []byte) {
	n := len(xs)
	rows := make([][]byte, n)
	for i := range rows {
		for d := range n {
			unit := make([]byte, d+1)
			unit[d] = 1
			rows[i] = append(rows[i], slowEvaluate(unit, xs[i]))
		}
		rows[i] = append(rows[i], ys[i])
	}
	for col := range n {
		pivot := col
		for rows[pivot][col] == 0 {
			pivot++
		}
		rows[col], rows[pivot] = rows[pivot], rows[col]
		inv := slowInvert(rows[col][col])
		for k := range rows[col] {
			rows[col][k] = slowMul(rows[col][k], inv)
		}
		for r := range rows {
			if f := rows[r][col]; r != col {
				for k := range rows[r] {
					rows[r][k] ^= slowMul(f, rows[col][k])
				}
			}
		}
	}
	for _, row := range rows {
		c = append(c, row[n])
	}
	return c
}

func TestFieldAgainstItsDefinition(t *testing.T) {
	for a := range 256 {
		for b := range 256 {
			if got, want := keyring.GFMul(byte(a), byte(b)), slowMul(byte(a), byte(b)); got != want {
				t.Fatalf("%#x·%#x = %#x, want %#x", a, b, got, want)
			}
		}
		if got, want := keyring.GFInvert(byte(a)), slowInvert(byte(a)); got != want {
			t.Fatalf("1/%#x = %#x, want %#x", a, got, want)
		}
	}
	if got := keyring.GFMul(0x57, 0x83); got != 0xc1 {
		t.Errorf("0x57·0x83 = %#x, and FIPS 197 §4.2 says 0xc1", got)
	}
}

// TestSplitKnownAnswers pins the shares of fixed polynomials: what owners keep for
// years must combine in every later release.
func TestSplitKnownAnswers(t *testing.T) {
	seed := fixedSeed(t)
	raw := seed.Reveal()
	var higher [][keyring.SeedBytes]byte
	for d := range 2 {
		var c [keyring.SeedBytes]byte
		for b := range c {
			c[b] = byte(0x35*(d+1) + 7*b)
		}
		higher = append(higher, c)
	}
	golden := []string{
		"5e4f3831d2d3ccf5c6d7c0393a5b545d6e5f48412223dcc5d6e7d0c9ca2b246d",
		"d8a57e7789b4df9e6d700bf9ca0c275605f8e3ea79448283f0ad567f4ccae12b",
		"87e845425e611463a2adc0ccfd597c1b7ab5b8bf4e71495e3f509daa9bffda66",
		"2fa3d586e275e3f868bf09b70a9c11c1bc06ebb8c55246dd7b2cacbf0263ee44",
	}
	shares := keyring.SplitWith(seed, 255, higher)
	for i, s := range shares {
		value := s.Reveal()
		for b := range value {
			if want := slowEvaluate([]byte{raw[b], higher[0][b], higher[1][b]}, byte(i+1)); value[b] != want {
				t.Fatalf("byte %d of share %d is %#x, by definition %#x", b, i+1, value[b], want)
			}
		}
		if i < len(golden) && hex.EncodeToString(value) != golden[i] {
			t.Errorf("share %d is %x, want %s", i+1, value, golden[i])
		}
	}
	got, err := keyring.Combine(3, []keyring.Share{shares[254], shares[0], shares[100]})
	if err != nil || !got.Equal(seed) {
		t.Error("three of the shares do not bring the seed back:", err)
	}
}

// Any k of n bring the seed back, in any order, and more than k too.
func TestAnyThresholdOfSharesCombines(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 40).Draw(t, "n")
		if rapid.IntRange(0, 20).Draw(t, "large") == 0 {
			n = keyring.MaxShares
		}
		k := rapid.IntRange(1, n).Draw(t, "k")
		seed := keyring.NewSeed()
		shares, err := keyring.Split(seed, k, n)
		if err != nil || len(shares) != n {
			t.Fatal(len(shares), err)
		}
		for i, s := range shares {
			if s.Index() != i+1 || s.Set() != shares[0].Set() {
				t.Fatalf("share %d has index %d, set %x", i+1, s.Index(), s.Set())
			}
		}
		some := rapid.Permutation(shares).Draw(t, "order")[:rapid.IntRange(k, n).Draw(t, "given")]
		got, err := keyring.Combine(k, some)
		if err != nil || !got.Equal(seed) {
			t.Fatalf("%d of %d shares with threshold %d: %v", len(some), n, k, err)
		}
		if k > 1 {
			if _, err := keyring.Combine(k, some[:k-1]); !errors.Is(err, keyring.ErrTooFewShares) {
				t.Fatalf("one share too few: %v", err)
			}
		}
	})
}

// Fewer than k shares say nothing: for every other seed there is a choice of the
// random coefficients that makes the very same shares, so each seed is as likely
// as it was before. The choice is constructed here.
func TestFewerSharesSayNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 12).Draw(t, "n")
		k := rapid.IntRange(2, n).Draw(t, "k")
		shares, err := keyring.Split(keyring.NewSeed(), k, n)
		if err != nil {
			t.Fatal(err)
		}
		known := rapid.Permutation(shares).Draw(t, "order")[:k-1]
		other := keyring.NewSeed()
		value := other.Reveal()
		xs := []byte{0}
		for _, s := range known {
			xs = append(xs, byte(s.Index()))
		}
		higher := make([][keyring.SeedBytes]byte, k-1)
		for b := range value {
			ys := []byte{value[b]}
			for _, s := range known {
				ys = append(ys, s.Reveal()[b])
			}
			for d, c := range slowSolve(xs, ys)[1:] {
				higher[d][b] = c
			}
		}
		again := keyring.SplitWith(other, n, higher)
		for _, s := range known {
			if !bytes.Equal(again[s.Index()-1].Reveal(), s.Reveal()) {
				t.Fatalf("with threshold %d the shares %v do not fit another seed", k, xs[1:])
			}
		}
		if got, err := keyring.Combine(k, again[:k]); err != nil || !got.Equal(other) {
			t.Fatal("the shares that were constructed do not combine to that seed:", err)
		}
	})
}

// The highest coefficient is 0 as often as anything else, and over many splits a
// share's byte takes all values: a generator that avoids some would tell the seed.
func TestSharesAreUniform(t *testing.T) {
	seed := fixedSeed(t)
	var counts [256]int
	const splits = 2000
	for range splits {
		shares, err := keyring.Split(seed, 2, 1+1)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range shares[0].Reveal() {
			counts[b]++
		}
	}
	// 64,000 draws of 256 values: 250 each, and a deviation of 10 sigma is never seen.
	for value, n := range counts {
		if n < 92 || n > 408 {
			t.Errorf("byte %#x came %d times in %d", value, n, splits*keyring.SeedBytes)
		}
	}
}

// A wrong share gives another seed, and nothing says so: that is what the
// commitments are for.
func TestWrongShareIsNamedByItsCommitment(t *testing.T) {
	const cluster, epoch = "prod.example", 3
	seed := keyring.NewSeed()
	shares, err := keyring.Split(seed, 3, 5)
	if err != nil {
		t.Fatal(err)
	}
	var commitments [][32]byte
	for _, s := range shares {
		commitments = append(commitments, s.Commitment(cluster, epoch))
	}
	value := shares[1].Reveal()
	value[31] ^= 1
	wrong, err := keyring.ShareFrom(2, shares[1].Set(), value)
	if err != nil {
		t.Fatal(err)
	}
	given := []keyring.Share{shares[0], wrong, shares[4]}
	got, err := keyring.Combine(3, given)
	if err != nil || got.Equal(seed) {
		t.Fatalf("with a wrong share: %v, the same seed: %v", err, got.Equal(seed))
	}
	for _, s := range given {
		if good := s.Commitment(cluster, epoch) == commitments[s.Index()-1]; good != (s.Index() != 2) {
			t.Errorf("share %d fits its commitment: %v", s.Index(), good)
		}
	}
	if _, err := keyring.Combine(3, append(given, shares[2])); !errors.Is(err, keyring.ErrInconsistentShares) {
		t.Errorf("four shares of which one is wrong: %v", err)
	}

	// A reshare of the same seed, also with threshold 1, has other commitments.
	first, err := keyring.Split(seed, 1, 2)
	if err != nil {
		t.Fatal(err)
	}
	second, err := keyring.Split(seed, 1, 2)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first[0].Reveal(), seed.Reveal()) || first[0].Commitment(cluster, epoch) == second[0].Commitment(cluster, epoch) {
		t.Error("with threshold 1 a share is not the seed, or an old share passes for a new one")
	}
}

func TestCombineRefuses(t *testing.T) {
	shares := func(k, n int) []keyring.Share {
		s, err := keyring.Split(keyring.NewSeed(), k, n)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	a, b := shares(2, 3), shares(2, 3)
	wiped := shares(2, 3)
	wiped[1].Wipe()
	zeros, err := keyring.ShareFrom(1, a[0].Set(), bytes.Repeat([]byte{1}, 32))
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name      string
		threshold int
		shares    []keyring.Share
		want      error
	}{
		{"none", 1, nil, keyring.ErrTooFewShares},
		{"one of two", 2, a[:1], keyring.ErrTooFewShares},
		{"one twice", 2, []keyring.Share{a[0], a[0]}, keyring.ErrDuplicateShare},
		{"one twice beyond the threshold", 2, []keyring.Share{a[0], a[1], a[0]}, keyring.ErrDuplicateShare},
		{"two sets", 2, []keyring.Share{a[0], b[1]}, keyring.ErrMixedShares},
		{"two sets, one index", 2, []keyring.Share{a[0], b[0]}, keyring.ErrMixedShares},
		{"the zero share", 2, []keyring.Share{a[0], {}}, keyring.ErrNoShare},
		{"a wiped share", 2, wiped[:2], keyring.ErrNoShare},
		{"a foreign value beyond the threshold", 2, []keyring.Share{a[1], a[2], zeros}, keyring.ErrInconsistentShares},
		{"threshold 0", 0, a, nil},
		{"threshold 256", 256, a, nil},
	} {
		seed, err := keyring.Combine(test.threshold, test.shares)
		if err == nil || test.want != nil && !errors.Is(err, test.want) || !seed.IsZero() {
			t.Errorf("%s: %v", test.name, err)
		}
	}
	// Shares of a seed of zeros, which nobody makes, combine to none.
	same, err := keyring.ShareFrom(2, a[0].Set(), bytes.Repeat([]byte{2}, 32))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := keyring.Combine(2, []keyring.Share{zeros, same}); !errors.Is(err, keyring.ErrInconsistentShares) {
		t.Error("a seed of zeros:", err)
	}

	gone := keyring.NewSeed()
	gone.Wipe()
	for name, split := range map[string]func() ([]keyring.Share, error){
		"no seed":         func() ([]keyring.Share, error) { return keyring.Split(keyring.Seed{}, 1, 1) },
		"wiped seed":      func() ([]keyring.Share, error) { return keyring.Split(gone, 1, 1) },
		"threshold 0":     func() ([]keyring.Share, error) { return keyring.Split(keyring.NewSeed(), 0, 3) },
		"threshold > n":   func() ([]keyring.Share, error) { return keyring.Split(keyring.NewSeed(), 4, 3) },
		"too many shares": func() ([]keyring.Share, error) { return keyring.Split(keyring.NewSeed(), 2, 256) },
		"no shares":       func() ([]keyring.Share, error) { return keyring.Split(keyring.NewSeed(), 0, 0) },
	} {
		if s, err := split(); err == nil || s != nil {
			t.Errorf("split: %s", name)
		}
	}
}

func TestShareFrom(t *testing.T) {
	set := [keyring.ShareSetBytes]byte{1}
	value := bytes.Repeat([]byte{7}, 32)
	s, err := keyring.ShareFrom(255, set, value)
	if err != nil {
		t.Fatal(err)
	}
	clear(value)
	if got := s.Reveal(); got[0] != 7 || s.Index() != 255 || s.Set() != set {
		t.Error("the share aliases its source, or is another")
	} else if clear(got); s.Reveal()[0] != 7 {
		t.Error("Reveal gives away the share's own bytes")
	}
	twin := s
	if !s.Equal(twin) || (keyring.Share{}).Equal(keyring.Share{}) {
		t.Error("a share does not equal itself, or none equals none")
	}
	s.Wipe()
	if !twin.IsZero() || s.Equal(twin) {
		t.Error("a copy of a wiped share still holds it")
	}
	keyring.Share{}.Wipe()
	for name, make := range map[string]func() (keyring.Share, error){
		"index 0":   func() (keyring.Share, error) { return keyring.ShareFrom(0, set, bytes.Repeat([]byte{7}, 32)) },
		"index 256": func() (keyring.Share, error) { return keyring.ShareFrom(256, set, bytes.Repeat([]byte{7}, 32)) },
		"short":     func() (keyring.Share, error) { return keyring.ShareFrom(1, set, make([]byte, 31)) },
		"zeros":     func() (keyring.Share, error) { return keyring.ShareFrom(1, set, make([]byte, 32)) },
	} {
		if s, err := make(); err == nil || !s.IsZero() {
			t.Error(name, "is accepted")
		}
	}
}

// TestCommitment pins the commitment and shows that every part counts.
func TestCommitment(t *testing.T) {
	share := func(index int, set byte, value byte) keyring.Share {
		s, err := keyring.ShareFrom(index, [keyring.ShareSetBytes]byte{set}, bytes.Repeat([]byte{value}, 32))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	got := share(1, 2, 3).Commitment("prod.example", 1)
	byHand := sum(append([]byte("\x00\x00\x00\x1afealty/v1/share-commitment\x00\x00\x00\x0cprod.example\x00\x00\x00\x00\x00\x00\x00\x01"+
		"\x02\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01"), bytes.Repeat([]byte{3}, 32)...))
	if !bytes.Equal(got[:], byHand) {
		t.Errorf("got %x, by hand %x", got, byHand)
	}
	for part, other := range map[string][32]byte{
		"cluster": share(1, 2, 3).Commitment("prod.example2", 1),
		"epoch":   share(1, 2, 3).Commitment("prod.example", 2),
		"index":   share(2, 2, 3).Commitment("prod.example", 1),
		"set":     share(1, 3, 3).Commitment("prod.example", 1),
		"value":   share(1, 2, 4).Commitment("prod.example", 1),
	} {
		if other == got {
			t.Errorf("another %s has the same commitment", part)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("a commitment to no share")
		}
	}()
	keyring.Share{}.Commitment("prod.example", 1)
}
