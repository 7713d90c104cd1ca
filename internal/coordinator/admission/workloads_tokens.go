package admission

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/cryptosigner"
	"github.com/go-jose/go-jose/v4/jwt"
	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/jwtsvid"
)

// TokenTTL is how long a JWT-SVID lives. It cannot be taken back, so it is short.
const TokenTTL = 5 * time.Minute

// SignTokens signs JWT-SVIDs of workloads of the caller.
func (r server) SignTokens(ctx context.Context, req *fealtyv1.SignTokensRequest) (*fealtyv1.SignTokensResponse, error) {
	w, peer := r.w, identity.FromContext(ctx)
	if _, err := w.cfg.Head.Ready(); err != nil {
		return nil, err
	}
	if err := bounded(len(req.GetTokens()), "tokens"); err != nil {
		return nil, err
	}
	v, err := w.vouching(ctx, peer)
	if err != nil {
		return nil, err
	}
	view := w.cfg.Bundle.View()
	if view == nil {
		return nil, errcode.New(errcode.StatementUnsigned)
	}
	key, kid, err := view.TokenSigner(v.state.Bundle, w.cfg.Now())
	switch {
	case err != nil:
		return nil, err
	case key == nil:
		return nil, errcode.New(errcode.StatementUnsigned)
	}
	signer, err := signerOf(key, kid)
	if err != nil {
		return nil, err
	}
	out := new(fealtyv1.SignTokensResponse)
	for _, one := range req.GetTokens() {
		token, until, err := w.token(v, peer, one, signer)
		if err != nil {
			w.refused(ctx, peer, "token", one.GetWorkload(), err)
			out.Tokens = append(out.Tokens, &fealtyv1.SignedToken{Refusal: err.Error()})
			continue
		}
		w.outcomes.WithLabelValues("token", "given").Inc()
		out.Tokens = append(out.Tokens, &fealtyv1.SignedToken{Token: token, ExpiresAt: timestamppb.New(until)})
	}
	return out, nil
}

// TokenKeys returns the keys that verify JWT-SVIDs.
func (r server) TokenKeys(ctx context.Context, _ *fealtyv1.TokenKeysRequest) (*fealtyv1.TokenKeysResponse, error) {
	w := r.w
	s, err := w.cfg.Head.Ready()
	if err != nil {
		return nil, err
	}
	if _, err := w.cfg.Asking.Allow(ctx); err != nil {
		return nil, err
	}
	view := w.cfg.Bundle.View()
	if view == nil {
		return nil, errcode.New(errcode.StatementUnsigned)
	}
	keys, err := view.TokenKeys(s.Bundle)
	if err != nil {
		return nil, err
	}
	out := new(fealtyv1.TokenKeysResponse)
	for _, k := range keys {
		out.Keys = append(out.Keys, &fealtyv1.TokenKey{Key: k.Key, Signer: k.Signer, Signature: k.Signature})
	}
	return out, nil
}

// signerOf signs by ES256, which every verifier of JWT-SVIDs has to know (JWT-SVID §2.1).
func signerOf(key crypto.Signer, kid string) (jose.Signer, error) {
	return jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: cryptosigner.Opaque(key),
		KeyID: kid}},
		new(jose.SignerOptions).WithType("JWT"))
}

func (w *Workloads) token(v *vouching, peer identity.Peer, one *fealtyv1.TokenRequest, signer jose.Signer) (string,
	time.Time, error) {
	r, ok := v.registered[one.GetWorkload()]
	if !ok {
		return "", time.Time{}, errUnassigned
	}
	if err := jwtsvid.AudienceFault(one.GetAudience()); err != nil {
		return "", time.Time{}, err
	}
	if w.cfg.Bundle.Bans(r.ID, identity.KeyID{}) {
		return "", time.Time{}, errors.New("the workload is banned")
	}
	now := w.cfg.Now()
	until := now.Add(min(TokenTTL, r.TTL)).Truncate(time.Second)
	text, err := jwt.Signed(signer).Claims(jwtsvid.Claims{
		Claims: jwt.Claims{
			Issuer:  v.state.Manifest.TokenIssuer, // left out where it is empty
			Subject: r.ID.String(), Audience: jwt.Audience(one.GetAudience()), IssuedAt: jwt.NewNumericDate(now),
			Expiry: jwt.NewNumericDate(until),
		},
		Member: peer.ID.String(), MemberKey: peer.Key.String(),
	}).Serialize()
	if err != nil {
		return "", time.Time{}, fmt.Errorf("sign a token: %w", err)
	}
	return text, until, nil
}
