package keyring

// The field is GF(2^8) with the polynomial x^8 + x^4 + x^3 + x + 1 of FIPS 197
// §4.2. Neither branches nor addresses depend on the values, so there are no
// tables: what a machine does with a share is the same for every share.

// gfMul multiplies, by Horner's rule over the bits of b from the highest.
func gfMul(a, b byte) byte {
	var p byte
	for bit := 7; bit >= 0; bit-- {
		p = p<<1 ^ -(p>>7)&0x1b
		p ^= -(b >> bit & 1) & a
	}
	return p
}

// gfInvert returns 1/a as a^254, and 0 for 0.
func gfInvert(a byte) byte {
	r := a
	for range 6 {
		r = gfMul(gfMul(r, r), a) // a^3, a^7, … a^127
	}
	return gfMul(r, r)
}

// gfLagrange returns by how much the value at xs[i] counts in the value at x, for
// the polynomial of the lowest degree through all of xs, which are distinct.
func gfLagrange(xs []byte, i int, x byte) byte {
	num, den := byte(1), byte(1)
	for j, xj := range xs {
		if j != i {
			num = gfMul(num, x^xj)
			den = gfMul(den, xs[i]^xj)
		}
	}
	return gfMul(num, gfInvert(den))
}
