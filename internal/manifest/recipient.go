package manifest

import (
	"crypto/ecdh"
	"crypto/mlkem"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math/big"
	"path"
	"slices"
	"strings"

	"github.com/fealty-io/fealty/internal/document"
)

// checkRecipient says what is wrong with an age recipient, as far as its text
// shows: a slip of the pen must not be found when the seed is lost. The second
// result identifies the key, whatever comment follows it.
func checkRecipient(s string) (id string, wrong string) {
	switch {
	case len(s) > maxRecipientBytes:
		return "", fmt.Sprintf("%d bytes, at most %d are allowed", len(s), maxRecipientBytes)
	case strings.HasPrefix(s, "age1"):
		return checkAgeRecipient(s)
	case strings.HasPrefix(s, "ssh-"):
		return checkSSHRecipient(s)
	case strings.HasPrefix(strings.ToUpper(s), "AGE-SECRET-KEY-"), strings.Contains(s, "PRIVATE KEY"):
		return "", "this is a private key, and a manifest is public: replace the key pair"
	}
	return "", "it begins with neither age1 nor ssh-"
}

// checkAgeRecipient checks the Bech32 form (BIP 173, without its limit of 90
// characters, as the age format has it).
func checkAgeRecipient(s string) (id, wrong string) {
	const charset = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
	sep := strings.LastIndexByte(s, '1')
	hrp, data := s[:sep], s[sep+1:]
	if hrp != "age" && hrp != "age1pq" {
		return "", fmt.Sprintf("recipients of type %s are not known", document.Shown(hrp))
	}
	if len(data) < 6+1 {
		return "", "it is cut short"
	}
	polymod := uint32(1)
	step := func(v byte) {
		top := polymod >> 25
		polymod = polymod&0x1ffffff<<5 ^ uint32(v)
		for i, g := range [...]uint32{0x3b6a57b2, 0x26508e6d, 0x1ea119fa, 0x3d4233dd, 0x2a1462b3} {
			if top>>i&1 == 1 {
				polymod ^= g
			}
		}
	}
	for i := range len(hrp) {
		step(hrp[i] >> 5)
	}
	step(0)
	for i := range len(hrp) {
		step(hrp[i] & 31)
	}
	var key []byte
	acc, bits := uint32(0), 0
	for i := range len(data) {
		v := strings.IndexByte(charset, data[i])
		if v < 0 {
			return "", fmt.Sprintf("character %q cannot be in it", data[i])
		}
		step(byte(v))
		if i < len(data)-6 {
			acc, bits = (acc<<5|uint32(v))&0xfff, bits+5
			if bits >= 8 {
				bits -= 8
				key = append(key, byte(acc>>bits))
			}
		}
	}
	if polymod != 1 {
		return "", "its checksum is wrong: a character is missing or mistyped"
	}
	if bits >= 5 || acc&(1<<bits-1) != 0 {
		return "", "it is cut short"
	}
	switch {
	case hrp == "age" && len(key) != 32:
		return "", fmt.Sprintf("it holds %d bytes, an X25519 key has 32", len(key))
	case hrp == "age1pq" && len(key) != mlkem.EncapsulationKeySize768+32:
		return "", fmt.Sprintf("it holds %d bytes, a post-quantum key has %d", len(key),
			mlkem.EncapsulationKeySize768+32)
	case hrp == "age1pq":
		if _, err := mlkem.NewEncapsulationKey768(key[:mlkem.EncapsulationKeySize768]); err != nil {
			return "", "it is no ML-KEM key"
		}
	}
	if !exchanges(key[len(key)-32:]) {
		return "", "nothing can be encrypted to it: it is a point of small order"
	}
	return s, ""
}

// checkSSHRecipient checks an authorized_keys line (RFC 4253 §6.6, RFC 8709 §4)
// of the two types that age encrypts to.
func checkSSHRecipient(s string) (id, wrong string) {
	fields := strings.Fields(s)
	if len(fields) < 2 {
		return "", "the key after its type is missing"
	}
	blob, err := base64.StdEncoding.Strict().DecodeString(fields[1])
	if err != nil {
		return "", "the key is not base64"
	}
	algorithm, rest, ok := sshString(blob)
	if !ok || string(algorithm) != fields[0] {
		return "", "the key is not of the type before it"
	}
	switch fields[0] {
	case "ssh-ed25519":
		point, rest, ok := sshString(rest)
		if !ok || len(rest) != 0 || len(point) != 32 {
			return "", "the key is cut short or too long"
		}
		if !onCurve(point) {
			return "", "it is no key: not a point of the curve, or one of small order"
		}
	case "ssh-rsa":
		exponent, rest, ok1 := sshString(rest)
		modulus, rest, ok2 := sshString(rest)
		if !ok1 || !ok2 || len(rest) != 0 {
			return "", "the key is cut short or too long"
		}
		// Numbers are signed (RFC 4251 §5).
		e, n := new(big.Int).SetBytes(exponent), new(big.Int).SetBytes(modulus)
		switch {
		case len(exponent) == 0 || len(modulus) == 0 || exponent[0]|modulus[0] >= 0x80:
			return "", "its numbers are not positive"
		case n.BitLen() < 2048 || n.BitLen() > 16384:
			return "", fmt.Sprintf("an RSA key needs 2048 to 16384 bits, and this one has %d", n.BitLen())
		case n.Bit(0) == 0 || e.Bit(0) == 0 || e.BitLen() < 2 || e.BitLen() > 24:
			return "", "it is no RSA key: modulus or exponent are even, or the exponent is out of range"
		}
	default:
		return "", fmt.Sprintf("keys of type %s cannot be encrypted to, only ssh-ed25519 and ssh-rsa",
			document.Shown(fields[0]))
	}
	return fields[0] + " " + fields[1], ""
}

// exchanges reports whether an X25519 exchange with u gives a secret, which it does
// not for points of small order (RFC 7748 §6.1).
func exchanges(u []byte) bool {
	public, err := ecdh.X25519().NewPublicKey(u)
	if err != nil {
		return false
	}
	trial, err := ecdh.X25519().NewPrivateKey(make([]byte, 32))
	if err != nil {
		return false
	}
	_, err = trial.ECDH(public)
	return err == nil
}

// onCurve reports whether point is one of Ed25519 (RFC 8032 §5.1.3) and not of
// small order: y is canonical, x^2 = (y^2-1)/(d·y^2+1) is a square, and
// y·(y^2-1)·(d·y^4+2·y^2-1), whose roots have the orders 1, 2, 4 and 8, is not 0.
func onCurve(point []byte) bool {
	one := big.NewInt(1)
	p := new(big.Int).Sub(new(big.Int).Lsh(one, 255), big.NewInt(19))
	le := slices.Clone(point)
	le[31] &= 0x7f // the sign of x
	slices.Reverse(le)
	y := new(big.Int).SetBytes(le)
	if y.Cmp(p) >= 0 {
		return false
	}
	d := new(big.Int).ModInverse(big.NewInt(121666), p)
	d.Mul(d, big.NewInt(-121665)).Mod(d, p)
	yy := new(big.Int).Mul(y, y)
	yy.Mod(yy, p)
	dyy := new(big.Int).Mul(d, yy)
	dyy.Mod(dyy, p)
	numerator := new(big.Int).Sub(yy, one)
	denominator := new(big.Int).Add(dyy, one)
	// A quotient is a square if the product is.
	square := new(big.Int).Mul(numerator, denominator)
	if big.Jacobi(square.Mod(square, p), p) < 0 {
		return false
	}
	order8 := new(big.Int).Mul(dyy, yy)
	order8.Add(order8, yy).Add(order8, yy).Sub(order8, one)
	small := new(big.Int).Mul(y, numerator)
	small.Mul(small, order8)
	return small.Mod(small, p).Sign() != 0
}

func sshString(b []byte) (s, rest []byte, ok bool) {
	if len(b) < 4 {
		return nil, nil, false
	}
	n := binary.BigEndian.Uint32(b)
	if uint64(n) > uint64(len(b)-4) {
		return nil, nil, false
	}
	return b[4 : 4+n], b[4+n:], true
}

// checkKeeper says what is wrong with a keeper such as file:/etc/fealty/seed.key.
func checkKeeper(s string) (wrong string) {
	scheme, name, ok := strings.Cut(s, ":")
	if !ok || scheme != KeeperFile && scheme != KeeperExec {
		return fmt.Sprintf("keeper %s is of no known kind", document.Shown(s))
	}
	if !path.IsAbs(name) || path.Clean(name) != name || name == "/" {
		return fmt.Sprintf("%s is not an absolute, clean path of a file", document.Shown(name))
	}
	if len(name) > 4096 {
		return "the path is longer than 4,096 bytes"
	}
	return ""
}
