package keyring

import "time"

// Doors for tests outside of the package.
var (
	GFMul          = gfMul
	GFInvert       = gfInvert
	ParseShareFile = parseShareFile
	ParseSent      = parseSent
	EncryptTo      = encryptTo
	ParseRecipient = parseRecipient
	DecryptWith    = decryptWith
)

// Payload is what SealShare encrypts.
func Payload(f ShareFile) []byte { return f.encode() }

const MaxSharePayload = maxSharePayload

// SplitWith splits with the given coefficients of x, x^2 and so on.
func SplitWith(seed Seed, n int, higher [][SeedBytes]byte) []Share {
	return evaluate(append([][SeedBytes]byte{[SeedBytes]byte(seed.Reveal())}, higher...), n)
}

// ExecKeeperOf is an [ExecKeeper] with less patience.
func ExecKeeperOf(name string, timeout time.Duration) *ExecKeeper {
	return &ExecKeeper{name: name, timeout: timeout}
}
