package manifest_test

import (
	"fmt"
	"testing"

	"filippo.io/age"
)

func TestRecipientsOfAgeAreTaken(t *testing.T) {
	hybrid, err := age.GenerateHybridIdentity()
	if err != nil {
		t.Fatal(err)
	}
	for _, recipient := range []string{newRecipient(t), hybrid.Recipient().String(),
		"ssh-ed25519 " + sshBlob("ssh-ed25519", 32) + " alice@laptop", "ssh-rsa " + sshBlob("ssh-rsa", 3, 257)} {
		d := newDoc(t)
		d.seed = fmt.Sprintf("seed: {threshold: 1, owners: [{name: a, recipient: %q}]}\n", recipient)
		mustParse(t, d.String())
	}
}
