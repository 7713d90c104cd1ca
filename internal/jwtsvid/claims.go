// Package jwtsvid defines the tokens (JWT-SVIDs) of a cluster: what they claim, which keys verify
// them, and the discovery documents for outsiders.
//
// Each config signing key has a P-256 key beside it that signs JWT-SVIDs, as that standard takes no
// Ed25519 key, and vouches for it in a [Statement]. So a token's key is believed as long as the
// trust bundle lists its config signing key, and is revoked with it. See
// docs/explanation/workloads.md.
//
// Who verifies tokens by OpenID Connect knows the issuer that tokens name, and nothing of trust
// bundles: below its URL are a document that says where the keys are (OpenID Connect Discovery 1.0
// §4), and the keys, as a JWK set (RFC 7517 §5). Both are public, and are believed since they came
// by HTTPS from the issuer's host, whoever serves them: a coordinator, or a web server that has
// them as files ([Documents]).
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
