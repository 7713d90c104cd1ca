package member // the id that a line stands for is sent, and not shown

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/proof"
)

// The whole line of a token stands for its id, and is neither sent nor shown.
func TestTokenArg(t *testing.T) {
	token, err := proof.NewJoinToken(nil, proof.JoinToken{Cluster: "c.example", Addresses: []string{"c1:7443"}, Pin: identity.KeyID{1}, Expires: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	for _, in := range []string{token.ID, token.Line()} {
		if got, err := tokenArg(in); err != nil || got != token.ID {
			t.Errorf("tokenArg(%q) = %q, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "x", token.Line() + "x", "members/data/abcdef", "ABCDEFGHIJKLMNOP"} {
		_, err := tokenArg(in)
		if !errors.Is(err, errcode.BadValue) || strings.Contains(err.Error(), token.Line()[8:]) {
			t.Errorf("tokenArg(%q): %v", in, err)
		}
	}
}
