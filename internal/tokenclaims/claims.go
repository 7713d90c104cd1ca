// Package tokenclaims says what a JWT-SVID of a cluster claims.
package tokenclaims

import "github.com/go-jose/go-jose/v4/jwt"

// Claims are those of a JWT-SVID: sub, aud, iat and exp (JWT-SVID §3), and one of our own.
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
