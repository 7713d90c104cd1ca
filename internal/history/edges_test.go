package history_test

import (
	"bytes"
	"crypto"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/store/storetest"
)

// A restore stands for what was seen by the word of the signers of then, not by that of
// those whom a backup names.
func TestCheckMarkBy(t *testing.T) {
	k := newTesters(t)
	c := newChain(t, k, base)
	first := c.verified()
	more := base
	more.nodes = 1
	c.add(history.KindSet, more)
	seen := c.verified()
	restored := &chain{t: t, k: k, links: c.links[:1:1], manifests: c.manifests[:1:1]}
	r := first.Restore(time.Unix(history.RestoreFloor+7, 0), history.Hash{1})
	restored.fill(r, base, true)
	restored.links, restored.manifests = append(restored.links, r), append(restored.manifests, c.manifests[0])
	after := restored.verified()

	same, others := seen.Manifest().Signers, newTesters(t).manifest(t, base).Signers
	if ok, err := after.CheckMarkBy(seen.Mark(), same); !ok || err != nil {
		t.Errorf("restored by the signers of then: %v, %v", ok, err)
	}
	if ok, err := after.CheckMarkBy(seen.Mark(), others); ok || !errors.Is(err, history.ErrFork) {
		t.Errorf("restored by others than the signers of then: %v, %v", ok, err)
	}
	if ok, err := after.CheckMarkBy(first.Mark(), others); !ok || err != nil {
		t.Errorf("a restore after what was seen: %v, %v", ok, err)
	}
	if ok, err := first.CheckMarkBy(seen.Mark(), same); ok || !errors.Is(err, history.ErrRollback) {
		t.Errorf("went back: %v, %v", ok, err)
	}
}

// A signature file with something behind its signature, or with more space than any has,
// is none.
func TestSignatureFileIsOneForm(t *testing.T) {
	next, _, signer, _ := signedChange(t)
	file, err := history.SignChange(history.KindReshare, next, history.Hash{7}, signer)
	if err != nil {
		t.Fatal(err)
	}
	raw := file.Encode()
	at := bytes.Index(raw, []byte(`"signature":"`)) + len(`"signature":"`)
	end := at + bytes.IndexByte(raw[at:], '"')
	for name, spoiled := range map[string][]byte{
		"something behind the base64": append(append(bytes.Clone(raw[:end]), '*'), raw[end:]...),
		"a line break in the base64":  append(append(bytes.Clone(raw[:at+4]), `\n`...), raw[at+4:]...),
		"padding twice":               append(append(bytes.Clone(raw[:end]), "=="...), raw[end:]...),
		"too much space":              bytes.Replace(raw, []byte(`{`), []byte("{"+strings.Repeat(" ", history.MaxSignatureFileBytes)), 1),
	} {
		if got, err := history.DecodeSignatureFile(spoiled); !errors.Is(err, history.ErrEncoding) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// A reason is shown on terminals: nothing in it may move what is around it.
func TestReasonIsPlain(t *testing.T) {
	k := newTesters(t)
	tr := *newChain(t, k, base).last()
	for reason, ok := range map[string]bool{
		"a plain one": true, "näbe ж": true, "no-break\u00a0space": true,
		"line\nend": false, "delete\x7f": false, "last control \u009f": false, "\u2028": false, "\u202e": false,
	} {
		tr.Reason = reason
		raw, err := tr.Encode()
		if ok != (err == nil) {
			t.Errorf("%q: %v", reason, err)
			continue
		}
		if _, err := history.Decode(raw); ok && err != nil {
			t.Errorf("%q does not come back: %v", reason, err)
		}
	}
}

// failingSigner has the key and cannot sign.
type failingSigner struct{ crypto.Signer }

func (failingSigner) Sign(io.Reader, []byte, crypto.SignerOpts) ([]byte, error) {
	return nil, errors.New("the token is not plugged in")
}

// Without its signature no head is written.
func TestAppendWithoutASignature(t *testing.T) {
	kv := storetest.NewMemory(0).Open()
	k := newTesters(t)
	l, v := founded(t, kv, k)
	more := base
	more.nodes = 1
	tr, m := candidate(t, k, v, history.KindSet, more, "unsigned head")
	if next, err := l.Append(t.Context(), v, tr, m, failingSigner{k.transaction}); err == nil {
		t.Errorf("a head that nobody signed is at index %d", next.Current().Index)
	}
	if now := load(t, l, k); now.Mark() != v.Mark() {
		t.Errorf("the head moved to index %d", now.Current().Index)
	}
}
