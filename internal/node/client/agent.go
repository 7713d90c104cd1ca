// Package client is for a program on a member: it reads identity and trust from the agent's folder, and calls
// coordinators with them.
//
// The agent joins, renews and verifies; a program on the same machine reads what the agent keeps,
// and follows it ([Agent]). The last good state stays in use while a newer one cannot be read, or
// is of another member (I14). [Link] calls whichever coordinator answers.
package client

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/identity"
	internalidentity "github.com/fealty-io/fealty/internal/identity"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/platform/durable"
)

const (
	// lookEvery is how often [Agent.Run] looks. A ban takes effect at every end within 5 seconds:
	// the agent has to hear of it in that time too.
	lookEvery = 2 * time.Second
	maxSVID   = 64 << 10 // bytes
	maxCerts  = 8
)

// Config says which agent it is.
type Config struct {
	// Dir is the agent's folder. Required. Its files are for its own user, so that the program
	// runs as that user.
	Dir string
	// Files is how the folder is read. Nil: the file system.
	Files durable.FS
	// Now is the clock of dates. Nil: time.Now.
	Now func() time.Time
	// Log is told of each change that is refused, once. Required.
	Log *slog.Logger
	// OnFailure is told of each change that is refused, once. It must not block. Nil: nobody is.
	OnFailure func(credential.Reason)
}

// Agent is the agent of a member, as a program beside it sees it. It may be used by several
// goroutines. It is current as of the last look: [Agent.Run] has to run.
type Agent struct {
	cfg    Config
	source *credential.Issued
	id     identity.ID

	looking sync.Mutex
	told    string            // the last refusal that was told; guarded by looking
	digest  [sha256.Size]byte // of what was read last; guarded by looking
	version [2]uint64         // of the trust bundle in use: authority epoch, version; guarded by looking

	mu           sync.Mutex
	failure      error           // why what the folder holds is not in use; guarded by mu
	authority    fence.Authority // guarded by mu
	coordinators []string        // guarded by mu
}

// Open reads the folder. It fails unless the agent has an identity now: errors of the agent's
// package for a folder that never joined or cannot be read, and a [*credential.MaterialError]
// for an identity that is of no use.
func Open(cfg Config) (*Agent, error) {
	if cfg.Files == nil {
		cfg.Files = durable.OS()
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	a := &Agent{cfg: cfg}
	found, err := a.read()
	if err != nil {
		return nil, err
	}
	a.id, a.digest, a.version = found.material.ID(), found.digest, found.version
	a.source = credential.NewIssued(found.material)
	a.authority, a.coordinators = found.authority, found.coordinators
	return a, nil
}

// ID is the member's identity, which stays the same until it leaves.
func (a *Agent) ID() identity.ID { return a.id }

// Source is the member's identity, as the agent renews it.
func (a *Agent) Source() credential.Source { return a.source }

// Authority is whose statements count, by the trust bundle that the agent has in use: what
// it returns follows the bundle, and trusts no key that the newest one revokes.
func (a *Agent) Authority() fence.Authority {
	return fence.Authority{Cluster: a.id.Cluster(), Key: func(id string) (ed25519.PublicKey, bool) {
		a.mu.Lock()
		key := a.authority.Key
		a.mu.Unlock()
		return key(id)
	}}
}

// Coordinators are the addresses that the member was told, as host:port.
func (a *Agent) Coordinators() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.coordinators)
}

// Run looks again every two seconds until ctx ends, and returns its error.
func (a *Agent) Run(ctx context.Context) error {
	every := time.NewTicker(lookEvery)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-every.C:
			a.Look()
		}
	}
}

// Failure returns why what the folder holds is not in use, or nil: a [*credential.MaterialError]
// where it is the certificate.
func (a *Agent) Failure() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.failure
}

// Look looks at the folder now.
func (a *Agent) Look() {
	a.looking.Lock()
	defer a.looking.Unlock()
	found, err := a.read()
	same := err == nil && found.digest == a.digest && found.version == a.version
	if err == nil && !same {
		err = a.adopt(found)
	}
	a.mu.Lock()
	a.failure = err
	a.mu.Unlock()
	if same {
		a.told = ""
		return
	}
	if err == nil {
		a.digest, a.told = found.digest, ""
		return
	}
	if text := err.Error(); text != a.told {
		a.told = text
		a.cfg.Log.Warn("what the agent keeps is not taken over, and what was read before stays in use",
			"dir", a.cfg.Dir, "err", err)
		if bad, ok := errors.AsType[*credential.MaterialError](err); ok && a.cfg.OnFailure != nil {
			a.cfg.OnFailure(bad.Reason)
		}
	}
}

// adopt puts what was found into use. The trust of the member comes first: a ban must take
// effect also when the identity is of no use any more.
func (a *Agent) adopt(found look) error {
	if found.bundle.Cluster() != a.id.Cluster() {
		return fmt.Errorf("the agent in %s is of cluster %s now, and this program of %s: start it again", a.cfg.Dir,
			found.bundle.Cluster(), a.id)
	}
	if slices.Compare(found.version[:], a.version[:]) < 0 {
		return fmt.Errorf("the trust bundle that can be read in %s is older than the one in use, and may trust again "+
			"whom that one bans: let the agent reach a coordinator, and start this program again if its member "+
			"joined anew", a.cfg.Dir)
	}
	a.version = found.version
	a.mu.Lock()
	a.authority, a.coordinators = found.authority, found.coordinators
	a.mu.Unlock()
	if err := a.source.Trust(found.bundle); err != nil {
		return err
	}
	if found.problem != nil {
		return found.problem
	}
	return a.source.Adopt(found.material)
}

// look is what was found in the folder.
type look struct {
	material     *credential.Material
	problem      error // why there is no material; never set by the first look
	bundle       *identity.Bundle
	authority    fence.Authority
	coordinators []string
	digest       [sha256.Size]byte
	version      [2]uint64 // of the trust bundle: authority epoch, version
}

// read reads the folder. Without a material the error is that of it, but for later looks.
func (a *Agent) read() (look, error) {
	out, err := state.ReadTrustView(a.cfg.Files, a.cfg.Dir, a.cfg.Now())
	if err != nil {
		return look{}, err
	}
	if out.Trust.Bundle == nil {
		return look{}, fmt.Errorf("the agent in %s has no trust bundle in use: it has to reach a coordinator first",
			a.cfg.Dir)
	}
	trusted, _ := out.Trust.Bundle.TrustBundle()
	revoked := out.Trust.Revoked
	found := look{authority: trusted.FenceAuthorityWith(revoked, a.cfg.Now)}
	if found.bundle, err = trusted.IdentityWith(revoked); err != nil {
		return look{}, err
	}
	sum := sha256.New()
	digest := out.Trust.Bundle.HeaderDigest()
	sum.Write(digest[:])
	fmt.Fprint(sum, revoked)
	header := out.Trust.Bundle.Header()
	found.version = [2]uint64{header.AuthorityEpoch, header.ConfigVersion}
	found.coordinators = out.Coordinators
	fmt.Fprint(sum, found.coordinators)
	text, err := a.cfg.Files.ReadSecret(filepath.Join(a.cfg.Dir, filepath.FromSlash(dir.SVIDName)), maxSVID)
	if err != nil {
		err = &credential.MaterialError{Reason: credential.Unreadable, Detail: "the certificate of the agent in " +
			a.cfg.Dir + " cannot be read", Err: err}
	} else {
		sum.Write(text)
		found.material, err = material(text, found.bundle, a.cfg.Now)
	}
	if err == nil && found.material.ID() != out.Trust.Me {
		err = &credential.MaterialError{Reason: credential.OtherIdentity, Detail: fmt.Sprintf(
			"the certificate in %s is of %s, and the agent is %s", a.cfg.Dir, found.material.ID(), out.Trust.Me)}
	}
	sum.Sum(found.digest[:0])
	if err != nil && a.source == nil {
		return look{}, err
	}
	found.problem = err
	return found, nil
}

// material reads the key and the chain that the agent keeps.
func material(text []byte, bundle *identity.Bundle, now func() time.Time) (*credential.Material, error) {
	damaged := func(problem string) (*credential.Material, error) {
		return nil, &credential.MaterialError{Reason: credential.Malformed,
			Detail: dir.SVIDName + " of the agent " + problem}
	}
	var key crypto.Signer
	var chain []*x509.Certificate
	for rest := text; len(bytes.TrimSpace(rest)) > 0; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return damaged("is no PEM file")
		}
		switch block.Type {
		case "PRIVATE KEY":
			parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
			signer, ok := parsed.(crypto.Signer)
			if err != nil || !ok || key != nil {
				return damaged("has no private key, or two")
			}
			key = signer
		case "CERTIFICATE":
			if len(block.Bytes) > internalidentity.MaxCertificateBytes || len(chain) == maxCerts {
				return damaged("has more certificates than a chain")
			}
			c, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				return damaged("has a certificate that cannot be read")
			}
			chain = append(chain, c)
		}
	}
	if key == nil || len(chain) == 0 {
		return damaged("has no private key, or no certificate")
	}
	return credential.NewMaterial(credential.MaterialConfig{Chain: chain, Key: key, Bundle: bundle, Now: now})
}
