package enroll

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"time"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/snapshot"
)

// LoginName is the file that Login writes: private key, leaf, mesh CA and root in
// PEM, and a block that says which coordinators to ask.
const LoginName = "identity.pem"

const (
	loginNextName = "next.key"
	loginBlock    = "FEALTY LOGIN"
)

// LoginConfig says who logs in, and where the identity goes.
type LoginConfig struct {
	// Dir is the folder for the identity; it is made if it is missing. Required.
	Dir string
	// Proof is what to show. Required.
	Proof Proof
	// Kind is admin or readonly. Blank means readonly.
	Kind identity.Kind

	// FS, Now, Log, Progress and Dial are as in [JoinConfig].
	FS       durable.FS
	Now      func() time.Time
	Log      *slog.Logger
	Progress func(Step)
	Dial     func(ctx context.Context, addr string) (net.Conn, error)
}

// loginFile is the last block of the file.
type loginFile struct {
	Cluster   string   `json:"cluster"`
	Addresses []string `json:"addresses"`
}

// Login gets a person or a tool an identity, by the same exchange as [Join] and
// with its errors, and writes it to LoginName in cfg.Dir. An identity that is there
// is replaced when the new one is durable, and not before.
func Login(ctx context.Context, cfg LoginConfig) (Result, error) {
	if cfg.Kind == "" {
		cfg.Kind = identity.Readonly
	}
	if cfg.Kind != identity.Admin && cfg.Kind != identity.Readonly {
		return Result{}, errcode.New(errcode.BadValue, "name", "the kind", "value", string(cfg.Kind), "want",
			"admin or readonly")
	}
	if cfg.Dir == "" {
		return Result{}, errcode.New(errcode.BadValue, "name", "the identity folder", "value", "blank", "want",
			"a folder of your own")
	}
	j, err := newJoiner(JoinConfig{
		DataDir: cfg.Dir, Proof: cfg.Proof, Kind: cfg.Kind, FS: cfg.FS, Now: cfg.Now, Log: cfg.Log,
		Progress: cfg.Progress, Dial: cfg.Dial,
	})
	if err != nil {
		return Result{}, err
	}
	store := &state.Store{FS: j.FS, Dir: cfg.Dir, Next: loginNextName, Flag: "--identity"}
	if err := store.Own(); err != nil {
		return Result{}, err
	}
	defer store.Close()
	key, err := j.pendingKey(ctx, store, false)
	if err != nil {
		return Result{}, err
	}
	got, address, err := j.pursue(ctx, state.Wanted{Cluster: j.Proof.cluster, Kind: j.Kind, Pin: j.Proof.pin, Key: key})
	if err != nil {
		return Result{}, err
	}
	sealed, err := dir.Seal(loginFile{j.Proof.cluster, j.Proof.addresses})
	if err != nil {
		return Result{}, err
	}
	data, err := dir.EncodeSVID(got.SVID, &pem.Block{Type: loginBlock, Bytes: sealed})
	if err != nil {
		return Result{}, err
	}
	if err := store.Write(LoginName, data); err != nil {
		return Result{}, fmt.Errorf("keep the identity: %w", err)
	}
	if err := store.Remove(loginNextName); err != nil {
		return Result{}, err
	}
	return Result{
		ID: got.Me.ID, Outcome: got.Outcome, NotAfter: got.Material.NotAfter(), Coordinator: address,
		Coordinators: j.Proof.addresses,
	}, nil
}

// LoginIdentity is what [Login] wrote.
type LoginIdentity struct {
	ID        identity.ID
	NotAfter  time.Time
	Addresses []string
	// Source presents the identity, and trusts the coordinators of the root that it
	// came from. It does not change: a login is not renewed.
	Source credential.Source
}

// LoadLogin reads and verifies the identity in folder. Bans are not in it: the servers
// know them. A nil files means the operating system's, a nil now time.Now.
//
// Errors are LoginNeeded of package errcode: there is none, it ended, it can be
// read by others, or it is damaged.
func LoadLogin(files durable.FS, folder string, now func() time.Time) (LoginIdentity, error) {
	if files == nil {
		files = durable.OS()
	}
	if now == nil {
		now = time.Now
	}
	store := &state.Store{FS: files, Dir: folder}
	needed := func(err error, problem string) (LoginIdentity, error) {
		return LoginIdentity{}, errcode.Wrap(err, errcode.LoginNeeded, "dir", folder, "problem", problem)
	}
	data, err := files.ReadSecret(store.Path(LoginName), dir.MaxSVIDBytes)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return LoginIdentity{}, errcode.Wrap(err, errcode.LoginNeeded, "dir", folder)
	case errors.Is(err, durable.ErrExposed):
		return needed(err, "others can read "+store.Path(LoginName)+", so that its key is no secret")
	case err != nil:
		return needed(err, err.Error())
	}
	s, blocks, err := dir.ParseSVID(data, loginBlock)
	var file loginFile
	if err == nil {
		err = dir.Unseal(blocks[0].Bytes, &file)
	}
	if err != nil {
		return needed(err, store.Path(LoginName)+" is "+err.Error())
	}
	root := state.Anchor{Cluster: file.Cluster, Root: s.Chain[2].Raw}
	trust, err := state.Self{Anchor: root, Root: s.Chain[2]}.Alone(s.Chain, snapshot.Revocations{})
	if err != nil {
		return needed(err, err.Error())
	}
	m, err := credential.NewMaterial(credential.MaterialConfig{Chain: s.Chain, Key: s.Key.Signer(), Bundle: trust,
		Now: now})
	if errors.Is(err, identity.ErrExpired) {
		return needed(err, fmt.Sprintf("its certificate is valid from %s to %s, and it is %s here",
			state.Stamp(s.Leaf().NotBefore), state.Stamp(s.Leaf().NotAfter), state.Stamp(now())))
	}
	if err != nil {
		return needed(err, err.Error())
	}
	return LoginIdentity{ID: m.ID(), NotAfter: m.NotAfter(), Addresses: file.Addresses,
		Source: credential.Static(m)}, nil
}
