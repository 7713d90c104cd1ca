package manifest

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"path"
	"strings"
)

// Keeper schemes that this build knows.
const (
	KeeperFile = "file"
	KeeperExec = "exec"
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
		return "", fmt.Sprintf("recipients of type %s are not known", shown(hrp))
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
	for i := range len(data) {
		v := strings.IndexByte(charset, data[i])
		if v < 0 {
			return "", fmt.Sprintf("character %q cannot be in it", data[i])
		}
		step(byte(v))
	}
	if polymod != 1 {
		return "", "its checksum is wrong: a character is missing or mistyped"
	}
	if bytes := (len(data) - 6) * 5 / 8; hrp == "age" && bytes != 32 {
		return "", fmt.Sprintf("it holds %d bytes, an X25519 key has 32", bytes)
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
	case "ssh-rsa":
		_, rest, ok1 := sshString(rest)
		modulus, rest, ok2 := sshString(rest)
		if !ok1 || !ok2 || len(rest) != 0 {
			return "", "the key is cut short or too long"
		}
		if len(modulus) < 256 {
			return "", "an RSA key needs at least 2048 bits"
		}
	default:
		return "", fmt.Sprintf("keys of type %s cannot be encrypted to, only ssh-ed25519 and ssh-rsa", shown(fields[0]))
	}
	return fields[0] + " " + fields[1], ""
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
		return fmt.Sprintf("keeper %s is of no known kind", shown(s))
	}
	if !path.IsAbs(name) || path.Clean(name) != name || name == "/" {
		return fmt.Sprintf("%s is not an absolute, clean path of a file", shown(name))
	}
	if len(name) > 4096 {
		return "the path is longer than 4,096 bytes"
	}
	return ""
}
