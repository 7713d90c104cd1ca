package admission

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/finding"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/store"
)

// The families of tokens, and of what was admitted by them; see package record.
const (
	TokenPrefix    = "token/"
	TokenUsePrefix = "tokenuse/"
)

// TokenKey returns where the token with the id is recorded.
func TokenKey(id string) string { return TokenPrefix + id }

// TokenUseKey returns where it is recorded that a token admitted a key.
func TokenUseKey(id string, key identity.KeyID) string {
	return TokenUsePrefix + id + "/" + key.String()
}

// Token is what is kept of a join token: its public key, never its secret.
type Token struct {
	ID            string    `json:"id"`
	PublicKey     []byte    `json:"public_key"` // Ed25519
	Entry         string    `json:"entry"`
	Name          string    `json:"name,omitempty"`
	Organizations []string  `json:"organizations,omitempty"` // narrows the entry; nil: all of it
	Uses          uint32    `json:"uses"`
	Used          uint32    `json:"used"`
	CreatedAt     time.Time `json:"created_at"`
	CreatedBy     string    `json:"created_by"`
	ExpiresAt     time.Time `json:"expires_at"`
	Revoked       bool      `json:"revoked,omitempty"`
	Labels        []string  `json:"labels,omitempty"` // of those that it admits, sorted
}

// TokenUse binds one use of a token to the key that it admitted, so that a
// candidate whose grant was lost can ask again, and nobody else can.
type TokenUse struct {
	Member string    `json:"member"` // <kind>/<name>
	At     time.Time `json:"at"`
}

// Bounds and defaults of join tokens.
const (
	defaultTokenTTL = time.Hour
	maxTokenTTL     = 30 * 24 * time.Hour
	maxTokenUses    = 100_000
	maxTokenOrgs    = 256
	maxUsesShown    = 10_000 // of a token, in one answer
)

// tokenServer serves TokenService.
type tokenServer struct {
	fealtyv1.UnimplementedTokenServiceServer
	c *Admission
}

func (t tokenServer) CreateToken(ctx context.Context, req *fealtyv1.CreateTokenRequest) (*fealtyv1.CreateTokenResponse,
	error) {
	c := t.c
	// A token names the root of the head, so the store is asked for that first.
	if _, err := c.cfg.Head.AtHead(ctx); err != nil {
		return nil, err
	}
	var out *fealtyv1.CreateTokenResponse
	err := c.cfg.Head.Transact(ctx, "the token", func(s *authority.State) (err error) {
		out, err = c.createToken(ctx, s, req)
		return err
	})
	return out, err
}

// createToken makes a token under s. The error matches [store.ErrConflict] if it
// is to be decided again.
func (a *Admission) createToken(ctx context.Context, s *authority.State,
	req *fealtyv1.CreateTokenRequest) (*fealtyv1.CreateTokenResponse, error) {
	rec, err := a.newTokenRecord(s, req, record.Actor(ctx))
	if err != nil {
		return nil, err
	}
	token, err := proof.NewJoinToken(nil, proof.JoinToken{Cluster: s.Manifest.Cluster,
		Addresses: a.cfg.Peers.TokenAddresses(ctx, s.Manifest), Pin: s.RootPin, Expires: rec.ExpiresAt})
	if err != nil {
		return nil, fmt.Errorf("make a join token: %w", err)
	}
	rec.ID, rec.PublicKey = token.ID, token.PublicKey()
	if req.GetDryRun() {
		rec.ID = ""
		return &fealtyv1.CreateTokenResponse{Token: a.tokenMessage(s, rec, nil)}, nil
	}
	ch := s.Records.NewChange(s.HeadVersion)
	ch.Put(TokenKey(rec.ID), 0, rec)
	ch.Audit(a.cfg.Now(), record.AuditEntry{Actor: rec.CreatedBy, Action: "token.create", Target: rec.ID,
		Fields: map[string]string{"entry": rec.Entry, "name": rec.Name, "uses": fmt.Sprint(rec.Uses)}})
	if _, err := ch.Commit(ctx); err != nil {
		return nil, a.cfg.Head.CommitError("create the token", err)
	}
	return &fealtyv1.CreateTokenResponse{Token: a.tokenMessage(s, rec, nil), Line: token.Line()}, nil
}

// newTokenRecord checks what is asked for against the manifest in force: a token
// narrows its entry, and never widens it.
func (a *Admission) newTokenRecord(s *authority.State, req *fealtyv1.CreateTokenRequest, by string) (Token,
	error) {
	bad := func(field, why string) error {
		return errcode.New(errcode.TokenRequest, "field", field, "problem", why)
	}
	entry, ok := s.Manifest.EntryByName(req.GetEntry())
	if !ok {
		return Token{}, errcode.New(errcode.NotFound, "what", "entry", "name", req.GetEntry())
	}
	if !entry.AdmitsTokens() {
		return Token{}, bad("entry",
			fmt.Sprintf("entry %s of the manifest does not admit tokens: it has no match token:%s", entry.Name,
				entry.Name))
	}
	ttl, uses := defaultTokenTTL, uint32(1)
	if req.GetTtl() != nil {
		ttl = req.GetTtl().AsDuration()
	}
	if ttl <= 0 || ttl > maxTokenTTL {
		return Token{}, bad("ttl", fmt.Sprintf("%v is not above 0 and at most %v", ttl, maxTokenTTL))
	}
	if req.GetUses() > 0 {
		uses = req.GetUses()
	}
	if uses > maxTokenUses {
		return Token{}, bad("uses", fmt.Sprintf("%d is above %d", uses, maxTokenUses))
	}
	if name := req.GetName(); name != "" {
		id, err := identity.New(s.Manifest.Cluster, entry.Kind, name)
		if err == nil {
			err = nameable(id)
		}
		if err != nil {
			return Token{}, bad("name", err.Error())
		}
		for i := range s.Manifest.Admit {
			// A token narrows its entry; the name of another entry is not in it.
			if e := &s.Manifest.Admit[i]; e.Kind == entry.Kind && e.Name == name && e.Name != entry.Name {
				return Token{}, bad("name", fmt.Sprintf("%s is the name of another entry of the manifest", name))
			}
		}
		if uses != 1 {
			return Token{}, bad("uses", "a token with a name admits one member, so it has one use")
		}
	}
	orgs := req.GetOrganizations()
	if len(orgs) > maxTokenOrgs {
		return Token{}, bad("organizations", fmt.Sprintf("%d are above %d", len(orgs), maxTokenOrgs))
	}
	for _, o := range orgs {
		if !slices.Contains(entry.Organizations, o) {
			return Token{}, bad("organizations",
				fmt.Sprintf("entry %s is not of organization %q: a token narrows its entry, it cannot widen it",
					entry.Name, o))
		}
	}
	now := a.cfg.Now().UTC()
	rec := Token{Entry: entry.Name, Name: req.GetName(), Uses: uses, CreatedAt: now, CreatedBy: by,
		ExpiresAt: now.Add(ttl).Truncate(time.Second)}
	if voids(s, rec) { // it is made in the very second of a restore
		rec.CreatedAt = s.RestoredAt().Add(time.Nanosecond).UTC()
	}
	labels, problem := manifest.SortedLabels(req.GetLabels())
	if problem != "" {
		return Token{}, bad("labels", problem)
	}
	rec.Labels = labels
	if len(orgs) > 0 {
		rec.Organizations = slices.Clone(orgs)
	}
	return rec, nil
}

func (t tokenServer) ListTokens(ctx context.Context, _ *fealtyv1.ListTokensRequest) (*fealtyv1.ListTokensResponse,
	error) {
	s, err := t.c.cfg.Head.Ready()
	if err != nil {
		return nil, err
	}
	recs, altered, err := authority.ListGenuine[Token](ctx, t.c.cfg.Head, s, TokenPrefix)
	if err != nil {
		return nil, t.c.cfg.Head.StoreError("list tokens", err)
	}
	resp := &fealtyv1.ListTokensResponse{}
	for _, key := range altered {
		resp.Altered = record.AddAltered(resp.Altered, key[len(TokenPrefix):])
	}
	for _, r := range recs {
		resp.Tokens = append(resp.Tokens, t.c.tokenMessage(s, r.Value, nil))
	}
	return resp, nil
}

func (t tokenServer) GetToken(ctx context.Context, req *fealtyv1.GetTokenRequest) (*fealtyv1.GetTokenResponse, error) {
	s, err := t.c.cfg.Head.Ready()
	if err != nil {
		return nil, err
	}
	rec, err := t.c.token(ctx, s, req.GetId())
	if err != nil {
		return nil, err
	}
	// None is left out: whoever asks wants to know everybody that it let in.
	uses, err := record.List[TokenUse](ctx, s.Records, TokenUsePrefix+rec.Value.ID+"/")
	if err != nil {
		return nil, t.c.cfg.Head.StoreError("read the uses of a token", err)
	}
	return &fealtyv1.GetTokenResponse{Token: t.c.tokenMessage(s, rec.Value, uses)}, nil
}

func (t tokenServer) RevokeToken(ctx context.Context, req *fealtyv1.RevokeTokenRequest) (*fealtyv1.RevokeTokenResponse,
	error) {
	c := t.c
	var out *fealtyv1.RevokeTokenResponse
	err := c.cfg.Head.Transact(ctx, "token "+req.GetId(), func(s *authority.State) error {
		rec, err := c.token(ctx, s, req.GetId())
		if err != nil {
			return err
		}
		if rec.Value.Revoked || req.GetDryRun() {
			out = &fealtyv1.RevokeTokenResponse{Token: c.tokenMessage(s, rec.Value, nil)}
			return nil
		}
		rec.Value.Revoked = true
		ch := s.Records.NewChange(s.HeadVersion)
		ch.Put(TokenKey(rec.Value.ID), rec.Version, rec.Value)
		ch.Audit(c.cfg.Now(), record.AuditEntry{Actor: record.Actor(ctx), Action: "token.revoke", Target: rec.Value.ID})
		if _, err := ch.Commit(ctx); err != nil {
			return c.cfg.Head.CommitError("revoke the token", err)
		}
		out = &fealtyv1.RevokeTokenResponse{Token: c.tokenMessage(s, rec.Value, nil)}
		return nil
	})
	return out, err
}

// token reads the token called id.
func (a *Admission) token(ctx context.Context, s *authority.State, id string) (record.Versioned[Token], error) {
	if !validTokenID(id) {
		return record.Versioned[Token]{}, errcode.New(errcode.NotFound, "what", "token", "name", id)
	}
	rec, err := record.Get[Token](ctx, s.Records, TokenKey(id))
	if err != nil {
		return rec, a.cfg.Head.StoreError("read the token", err)
	}
	if !rec.Exists() {
		return rec, errcode.New(errcode.NotFound, "what", "token", "name", id)
	}
	return rec, nil
}

func (a *Admission) tokenMessage(s *authority.State, r Token, uses []record.Versioned[TokenUse]) *fealtyv1.Token {
	m := &fealtyv1.Token{
		Id: r.ID, Entry: r.Entry, Name: r.Name, Organizations: r.Organizations,
		Uses: r.Uses, Used: r.Used, CreatedBy: r.CreatedBy, Revoked: r.Revoked, Labels: r.Labels,
		CreatedAt: timestamppb.New(r.CreatedAt), ExpiresAt: timestamppb.New(r.ExpiresAt),
		State: "usable",
	}
	for _, u := range uses[:min(len(uses), maxUsesShown)] {
		m.Admitted = append(m.Admitted, u.Value.Member)
	}
	entry, ok := s.Manifest.EntryByName(r.Entry)
	if ok {
		m.Kind = string(entry.Kind)
	}
	switch {
	case r.Revoked:
		m.State = "revoked"
	case r.Used >= r.Uses:
		m.State = "spent"
	case !a.cfg.Now().Before(r.ExpiresAt):
		m.State = "expired"
	case !ok || !entry.AdmitsTokens():
		m.State = "no entry"
	}
	return m
}

// validTokenID reports whether id can be a token's: what a peer claims becomes
// part of a key in the store.
func validTokenID(id string) bool { return proof.ValidTokenID(id) }

// voids reports whether a token ended with a restore: a backup holds none, so that
// whoever puts an old record back admits nobody by it. The epoch of a restore is the
// time of it, in Unix seconds.
func voids(s *authority.State, t Token) bool {
	return !t.CreatedAt.After(s.RestoredAt())
}

// TokenRetention is for how long a token is kept after its end: long enough to answer
// "expired".
const TokenRetention = 7 * 24 * time.Hour

// Prune removes the tokens that ended long before now. It is the leader's.
func (a *Admission) Prune(ctx context.Context, s *authority.State, now time.Time) error {
	tokens, _, err := authority.ListGenuine[Token](ctx, a.cfg.Head, s, TokenPrefix)
	if err != nil {
		return err
	}
	for _, t := range tokens {
		if now.Sub(t.Value.ExpiresAt) > TokenRetention {
			if err := a.dropToken(ctx, s, t); err != nil {
				return err
			}
		}
	}
	return nil
}

// Findings says which tokens were altered in the store. The error is that of [authority.Head.StoreError].
func (a *Admission) Findings(ctx context.Context, s *authority.State) ([]*fealtyv1.Finding, error) {
	_, altered, err := authority.ListGenuine[Token](ctx, a.cfg.Head, s, TokenPrefix)
	if err != nil {
		return nil, a.cfg.Head.StoreError("list tokens", err)
	}
	return finding.Altered("it admits nobody until it is as it was: create another one if it is waited for", altered), nil
}

// dropToken removes a token and what it admitted under.
func (a *Admission) dropToken(ctx context.Context, s *authority.State, t record.Versioned[Token]) error {
	uses, err := a.cfg.Store.List(ctx, TokenUsePrefix+t.Value.ID+"/")
	if err != nil {
		return err
	}
	// The token goes last: as long as it is there, what is left of it is found.
	all := append(uses.Entries, store.Entry{Key: TokenKey(t.Value.ID), Version: t.Version})
	return a.cfg.Election.Drop(ctx, s, all)
}
