// Package tokens gives workloads JWT-SVIDs, and verifies those of others.
//
// Tokens are signed by coordinators, live for minutes, and are kept until half of that is over; in
// an outage they are given until they end. The keys that verify them come from coordinators too,
// and are believed by the trust bundle alone, so that they may lie on the disk.
package tokens

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/jwtbundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/jwtsvid"

	"github.com/fealty-io/fealty/identity"
	internaljwtsvid "github.com/fealty-io/fealty/internal/jwtsvid"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/platform/watch"
	"github.com/fealty-io/fealty/snapshot"
)

const (
	// MaxKept bounds the tokens that are kept.
	MaxKept = 4096
	// MaxTokenBytes bounds a token that is verified.
	MaxTokenBytes = 16 << 10

	keysName     = "token-keys.json"
	maxKeysBytes = 64 << 10

	keysEvery          = time.Hour // a key that a coordinator has not told of yet is noticed when a token has it
	minPause, maxPause = time.Second, time.Minute
	unknownPause       = 10 * time.Second // between questions because of a token with an unknown key
	lifetime           = 5 * time.Minute  // of a token, as coordinators sign it
	least              = 5 * time.Second  // that a token has left when it is given
)

// Ask is a token that is wanted.
type Ask struct {
	ID       identity.ID
	Audience []string
}

// Answer is what became of an Ask.
type Answer struct {
	Token   string
	Expires time.Time
	Refusal string // why not; "": it was signed
}

// Config is what Tokens are made of. All fields are required.
type Config struct {
	// Sign and Statements ask a coordinator; answers are in the order of the asks.
	Sign       func(ctx context.Context, asks []Ask) ([]Answer, error)
	Statements func(ctx context.Context) ([]internaljwtsvid.Statement, error)
	// Trusted are the config signing keys of the trust bundle in use, and Changed returns a
	// channel that is closed when they may be others.
	Trusted func() []snapshot.ConfigKey
	Changed func() <-chan struct{}
	// Banned reports whether an identity or a key is.
	Banned func(identity.ID, identity.KeyID) bool

	Cluster string
	FS      durable.FS
	Dir     string // this process's own
	Now     func() time.Time
	Log     *slog.Logger
}

// Keys verify tokens. They are immutable.
type Keys struct {
	Bundle *jwtbundle.Bundle // nobody may change it
	JWKS   []byte            // the same as a JWK set (RFC 7517)
	ids    []string
}

// Tokens gives and verifies tokens. Make it with [New], and run it with [Tokens.Run].
type Tokens struct {
	cfg     Config
	domain  spiffeid.TrustDomain
	changed watch.Signal // Keys
	look    watch.Signal // somebody showed an unknown key

	mu         sync.Mutex
	statements []internaljwtsvid.Statement // as a coordinator or the disk has them; guarded by mu
	keys       *Keys                       // nil: none are known; guarded by mu
	kept       map[string]Answer           // by id and audience; guarded by mu
	asked      time.Time                   // because of an unknown key; guarded by mu
}

// New returns Tokens with the keys that are on disk.
func New(cfg Config) (*Tokens, error) {
	domain, err := spiffeid.TrustDomainFromString(cfg.Cluster)
	if err != nil {
		return nil, err
	}
	t := &Tokens{cfg: cfg, domain: domain, kept: make(map[string]Answer)}
	raw, err := cfg.FS.ReadFile(filepath.Join(cfg.Dir, keysName), maxKeysBytes)
	if err == nil {
		// A damaged file verifies nothing, and is asked for again.
		_ = json.Unmarshal(raw, &t.statements)
	}
	t.judge()
	return t, nil
}

// Keys returns what verifies tokens now; nil: nothing is known.
func (t *Tokens) Keys() *Keys {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.keys
}

// Changed returns a channel that is closed when Keys returns others.
func (t *Tokens) Changed() <-chan struct{} { return t.changed.Wait() }

// judge decides which of the statements count.
func (t *Tokens) judge() {
	t.mu.Lock()
	defer t.mu.Unlock()
	good, refused := internaljwtsvid.VerifyKeys(t.cfg.Cluster, t.statements, t.cfg.Trusted(), t.cfg.Now())
	for _, err := range refused {
		t.cfg.Log.LogAttrs(context.Background(), slog.LevelDebug, "a key of tokens does not count",
			slog.String("reason", err.Error()))
	}
	ids := make([]string, 0, len(good))
	bundle := jwtbundle.New(t.domain)
	for _, k := range good {
		if err := bundle.AddJWTAuthority(k.ID, k.Public); err == nil {
			ids = append(ids, k.ID)
		}
	}
	slices.Sort(ids)
	if t.keys != nil && slices.Equal(ids, t.keys.ids) || t.keys == nil && len(ids) == 0 {
		return
	}
	jwks, err := bundle.Marshal()
	if err != nil {
		t.cfg.Log.LogAttrs(context.Background(), slog.LevelError, "the keys of tokens cannot be written",
			slog.String("reason", err.Error()))
		return
	}
	t.keys = &Keys{Bundle: bundle, JWKS: jwks, ids: ids}
	t.changed.Notify()
}

// Run keeps the keys up to date until ctx ends, and returns its error then.
func (t *Tokens) Run(ctx context.Context) error {
	due, pause, missing := t.cfg.Now(), minPause, ""
	for {
		changed, look := t.cfg.Changed(), t.look.Wait()
		t.judge()
		now := t.cfg.Now()
		if m := t.missing(); m != missing {
			if missing = m; m != "" {
				due = now // our bundle lists a signer that is new
			}
		}
		if due.Sub(now) > keysEvery {
			due = now // the clock was ahead when it was set
		}
		if !now.Before(due) {
			err := t.fetch(ctx)
			switch now = t.cfg.Now(); {
			case ctx.Err() != nil:
				return ctx.Err()
			case err != nil:
				t.cfg.Log.LogAttrs(ctx, slog.LevelInfo, "the keys of tokens could not be asked for",
					slog.String("reason", err.Error()))
				due, pause = now.Add(pause), min(2*pause, maxPause)
			case t.missing() != "":
				due, pause = now.Add(maxPause), minPause // the coordinator has not heard of it yet
			default:
				due, pause = now.Add(keysEvery), minPause
			}
		}
		if _, err := watch.Wait(ctx, min(due.Sub(now), maxPause), changed, look); err != nil {
			return err
		}
		select {
		case <-look:
			due = t.cfg.Now()
		default:
		}
	}
}

// missing returns the id of a signer that the trust bundle lists and of which no key of tokens is
// known; "": there is none.
func (t *Tokens) missing() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.cfg.Now()
	for _, k := range t.cfg.Trusted() {
		if !k.Revoked && now.Before(k.NotAfter) && !slices.ContainsFunc(t.statements,
			func(s internaljwtsvid.Statement) bool { return s.Signer == k.ID() }) {
			return k.ID()
		}
	}
	return ""
}

// fetch asks a coordinator for the keys.
func (t *Tokens) fetch(ctx context.Context) error {
	statements, err := t.cfg.Statements(ctx)
	if err != nil {
		return err
	}
	if len(statements) > internaljwtsvid.MaxStatements {
		return fmt.Errorf("a coordinator sent %d keys of tokens, at most %d can be", len(statements),
			internaljwtsvid.MaxStatements)
	}
	good, refused := internaljwtsvid.VerifyKeys(t.cfg.Cluster, statements, t.cfg.Trusted(), t.cfg.Now())
	if len(good) == 0 {
		return fmt.Errorf("no key of tokens that a coordinator sent counts by the trust bundle: %w",
			errors.Join(refused...))
	}
	t.mu.Lock()
	t.statements = statements
	t.mu.Unlock()
	t.judge()
	raw, err := json.Marshal(statements)
	if err == nil {
		err = errors.Join(t.cfg.FS.MkdirAll(t.cfg.Dir), t.cfg.FS.WriteFile(filepath.Join(t.cfg.Dir, keysName), raw))
	}
	if err != nil {
		t.cfg.Log.LogAttrs(ctx, slog.LevelWarn, "the keys of tokens are not on disk, and are asked for again "+
			"after a restart", slog.String("reason", err.Error()))
	}
	return nil
}

// nameOf quotes, as an audience may have any character.
func nameOf(a Ask) string { return fmt.Sprintf("%s %q", a.ID, a.Audience) }

// Get returns tokens, in the order of the asks. Kept ones are given while more than half of their
// life is left, or a coordinator cannot be asked; none is given that is about to end.
func (t *Tokens) Get(ctx context.Context, asks []Ask) ([]Answer, error) {
	out := make([]Answer, len(asks))
	var want []Ask
	var at []int
	now := t.cfg.Now()
	t.mu.Lock()
	for i, a := range asks {
		kept, ok := t.kept[nameOf(a)]
		// One that has more left than there can be is of a clock that was set back since.
		if left := kept.Expires.Sub(now); ok && left > lifetime/2 && left <= lifetime {
			out[i] = kept
			continue
		}
		want, at = append(want, a), append(at, i)
	}
	t.mu.Unlock()
	if len(want) == 0 {
		return out, nil
	}
	answers, err := t.cfg.Sign(ctx, want)
	if err == nil && len(answers) != len(want) {
		err = fmt.Errorf("a coordinator answered %d of %d asks: it may be of another release", len(answers), len(want))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now = t.cfg.Now()
	for n, i := range at {
		if err != nil {
			kept, ok := t.kept[nameOf(want[n])]
			if left := kept.Expires.Sub(now); !ok || left < least || left > lifetime {
				return nil, fmt.Errorf("no token for %s: %w", want[n].ID, err)
			}
			out[i] = kept
			continue
		}
		a := answers[n]
		switch {
		case a.Refusal != "":
		case a.Token == "" || len(a.Token) > MaxTokenBytes:
			a = Answer{Refusal: fmt.Sprintf("a coordinator answered with a token of %d bytes, want 1 to %d",
				len(a.Token), MaxTokenBytes)}
		default:
			// None is given for longer, whatever a coordinator says and by whatever clock.
			if last := now.Add(lifetime); a.Expires.After(last) {
				a.Expires = last
			}
			t.keep(nameOf(want[n]), a, now)
		}
		out[i] = a
	}
	return out, nil
}

// keep remembers a token. The caller has mu.
func (t *Tokens) keep(name string, a Answer, now time.Time) {
	if len(t.kept) >= MaxKept {
		for n, old := range t.kept {
			if !now.Before(old.Expires) {
				delete(t.kept, n)
			}
		}
	}
	if len(t.kept) >= MaxKept {
		clear(t.kept) // they are asked for again
	}
	t.kept[name] = a
}

// ErrNoKey is the error of [Tokens.Validate] before a coordinator told of a key: it says nothing of the token.
var ErrNoKey = errors.New("no key of tokens is known yet: a coordinator is being asked")

// compact refuses what is not the one compact form of a token: three parts in base64url without padding,
// line breaks or other characters (RFC 7515, sections 2 and 7.1), and without bits after the last byte (RFC 4648,
// section 3.5). The decoder of the library skips line breaks and such bits, and whoever counts, caches or
// blocks tokens by their text would see several where there is one.
func compact(token string) error {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return fmt.Errorf("the token has %d parts, want three with a dot between them (RFC 7515, section 7.1)", len(parts))
	}
	for i, part := range parts {
		if _, err := base64.RawURLEncoding.Strict().DecodeString(part); err != nil || strings.ContainsAny(part, "\r\n") {
			return fmt.Errorf("part %d of the token is not base64url without padding and line breaks (RFC 7515, section 2)", i+1)
		}
	}
	return nil
}

// Validate verifies a token that is to be for audience, and returns whose it is, and all of its
// claims. The voucher must not be banned. [ErrNoKey]: it cannot be verified yet.
func (t *Tokens) Validate(token, audience string) (identity.ID, map[string]any, error) {
	if len(token) > MaxTokenBytes {
		return identity.ID{}, nil, fmt.Errorf("the token has %d bytes, at most %d are read", len(token), MaxTokenBytes)
	}
	if err := compact(token); err != nil {
		return identity.ID{}, nil, err
	}
	keys := t.Keys()
	if keys == nil {
		return identity.ID{}, nil, ErrNoKey
	}
	svid, err := jwtsvid.ParseAndValidate(token, keys.Bundle, []string{audience})
	if err != nil {
		t.unknown()
		return identity.ID{}, nil, err
	}
	id, err := identity.Parse(svid.ID.String())
	if err != nil {
		return identity.ID{}, nil, err
	}
	member, key, err := memberOf(svid.Claims)
	switch {
	case err != nil:
		return identity.ID{}, nil, fmt.Errorf("the token names no member that vouches for it: %w", err)
	case id.Kind() != identity.Workload:
		return identity.ID{}, nil, fmt.Errorf("%s is no workload", id)
	case t.cfg.Banned(id, identity.KeyID{}):
		return identity.ID{}, nil, fmt.Errorf("%s is banned", id)
	case t.cfg.Banned(member, key):
		return identity.ID{}, nil, fmt.Errorf("%s, which vouches for the token, is banned", member)
	case !t.cfg.Now().Before(svid.Expiry):
		return identity.ID{}, nil, errors.New("the token has ended") // by our clock, which cannot be set back
	}
	return id, svid.Claims, nil
}

// memberOf returns the member that vouches for a token, and the key that it asked with.
func memberOf(claims map[string]any) (identity.ID, identity.KeyID, error) {
	id, _ := claims[internaljwtsvid.Member].(string)
	key, _ := claims[internaljwtsvid.MemberKey].(string)
	member, err := identity.Parse(id)
	if err != nil {
		return identity.ID{}, identity.KeyID{}, err
	}
	k, err := identity.ParseKeyID(key)
	return member, k, err
}

// unknown has Run look for another key, unless it just did.
func (t *Tokens) unknown() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := t.cfg.Now(); now.Sub(t.asked).Abs() >= unknownPause {
		t.asked = now
		t.look.Notify()
	}
}
