// Package jwtsvid says what a JWT-SVID of a cluster claims.
package jwtsvid

import (
	"fmt"
	"slices"

	"github.com/go-jose/go-jose/v4/jwt"
)

// Limits of whom a token is for.
const (
	MaxAudience      = 16
	MaxAudienceBytes = 256 // of one
)

// AudienceFault says why a token cannot be for audience; nil: it can. Agents refuse by it before
// they ask, and coordinators before they sign.
func AudienceFault(audience []string) error {
	if len(audience) == 0 || len(audience) > MaxAudience {
		return fmt.Errorf("a token is for 1 to %d audiences, and not for %d", MaxAudience, len(audience))
	}
	for i, a := range audience {
		if a == "" || len(a) > MaxAudienceBytes || slices.Contains(audience[:i], a) {
			return fmt.Errorf("an audience has 1 to %d bytes, and stands there once", MaxAudienceBytes)
		}
	}
	return nil
}

// Claims are those of a JWT-SVID: sub, aud, iat and exp (JWT-SVID §3), iss if the manifest names an
// issuer, and two of our own.
type Claims struct {
	jwt.Claims
	// Member is the id of the member that vouches for the subject, and MemberKey the key that it
	// asked with: the token counts for nothing once one of the two is banned.
	Member    string `json:"vouched_by"`
	MemberKey string `json:"vouched_by_key"`
}

// The names of our own claims.
const (
	Member    = "vouched_by"
	MemberKey = "vouched_by_key"
)
