package durable

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
)

// ErrDamaged is matched where a file is not what was written.
var ErrDamaged = errors.New("its checksum is another one")

// Encode returns v as a file. head is what the file is called, in words that end before the sum,
// such as "plan, form 1: ".
func Encode(head string, v any) ([]byte, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", v, err)
	}
	body = append(body, '\n')
	return append([]byte(head+sumOf(body)+"\n"), body...), nil
}

// Decode reads into v what [Encode] returned with this head. An error matches [ErrDamaged], or is
// that of JSON which v cannot hold: another release wrote it.
func Decode(head string, text []byte, v any) error {
	line, body, _ := bytes.Cut(text, []byte("\n"))
	if string(line) != head+sumOf(body) {
		return ErrDamaged
	}
	return json.Unmarshal(body, v)
}

func sumOf(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}
