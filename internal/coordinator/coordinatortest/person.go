package coordinatortest

import (
	"fmt"
	"strings"

	"filippo.io/age"
)

// Person is an owner of a share of the seed.
type Person struct {
	Name string
	Key  *age.X25519Identity
}

// SeedOf returns the seed section of a manifest, with these people and these keepers, each by name.
func SeedOf(threshold int, people []Person, keepers ...string) string {
	var owners []string
	for _, p := range people {
		owners = append(owners, fmt.Sprintf("{name: %s, recipient: %s}", p.Name, p.Key.Recipient()))
	}
	for _, k := range keepers {
		owners = append(owners, fmt.Sprintf("{name: %s, keeper: \"file:/%s/key\"}", k, k))
	}
	return fmt.Sprintf("seed: {threshold: %d, owners: [%s]}\n", threshold, strings.Join(owners, ", "))
}
