package keyring

import (
	"runtime"
	"time"
	"unsafe"
)

// What tests outside of the package reach for.
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

// SeedAddress is where the bytes of a seed lie.
func SeedAddress(s Seed) uintptr { return uintptr(unsafe.Pointer(&s.secret().b[0])) }

// ShareAddress is where the value of a share lies.
func ShareAddress(s Share) uintptr { return uintptr(unsafe.Pointer(&s.held().value.b[0])) }

// KeysAddress is where the key lies from which others derive.
func KeysAddress(k Keys) uintptr { return uintptr(unsafe.Pointer(&k.held().prk.b[0])) }

// TakeLocked takes n secrets of an arena of its own, whose pages mapPage makes.
func TakeLocked(n int, mapPage func() ([]byte, error)) (secrets [][]byte, m Memory) {
	a := &arena{mapPage: mapPage}
	var held []*locked
	for range n {
		held = append(held, a.take())
		secrets = append(secrets, held[len(held)-1].b)
	}
	m = a.memory
	runtime.KeepAlive(held)
	return secrets, m
}
