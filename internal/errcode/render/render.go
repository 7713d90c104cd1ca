// Package render finds the error code and the words for errors of packages that know no codes:
// proofs, stores and connections.
package render

import (
	"errors"
	"io/fs"
	"slices"
	"strings"
	"syscall"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/mesh/pinned"
	"github.com/fealty-io/fealty/internal/node/verdict"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/store/embedded"
	"github.com/fealty-io/fealty/internal/store/engine"
	"github.com/fealty-io/fealty/internal/store/sqlite"
	"github.com/fealty-io/fealty/mesh"
)

// Of returns the one error that explains err best. Those of packages that
// know no codes get theirs here. An error of which nothing is known is told as one of what.
func Of(what string, err error) *errcode.Error {
	if e, ok := errors.AsType[*errcode.Error](err); ok {
		if machine := ofMachine(what, err); machine != nil && guessed(e.Code) {
			return machine
		}
		return e
	}
	if e := ofMachine(what, err); e != nil {
		return e
	}
	if e := Translate(err); e != nil {
		return e
	}
	e := errcode.Of(err)
	switch e.Code {
	// Reasons of mesh for cutting a connection travel as a code's do.
	case errcode.Code(mesh.PeerBanned):
		return errcode.Wrap(err, errcode.CallerBanned)
	case errcode.Code(mesh.CertificateExpired):
		return errcode.Wrap(err, errcode.CallerExpired)
	case errcode.Code(mesh.RootRetired):
		return errcode.Wrap(err, errcode.CallerOutlived)
	case errcode.Internal:
		return errcode.Wrap(err, errcode.Internal, "what", what)
	case errcode.Interrupted:
		return errcode.Wrap(err, errcode.Interrupted, "what", what)
	}
	return e
}

// ofMachine words what is no fault of who was asked or what was named: this process has no room for another file. nil
// if it is none of that.
func ofMachine(what string, err error) *errcode.Error {
	switch {
	case errors.Is(err, syscall.EMFILE):
		return errcode.Wrap(err, errcode.NoFilesLeft, "what", what, "problem", syscall.EMFILE.Error())
	case errors.Is(err, syscall.ENFILE):
		return errcode.Wrap(err, errcode.NoFilesLeft, "what", what, "whose", "this machine", "problem", syscall.ENFILE.Error(), "do",
			"find who has them: lsof; the limit is fs.file-max")
	}
	return nil
}

// guessed reports whether a code is what a failed file or connection is taken for, and no answer of somebody.
func guessed(code errcode.Code) bool {
	e, ok := errcode.Lookup(code)
	return ok && slices.Contains([]errcode.Exit{errcode.ExitFailed, errcode.ExitUsage, errcode.ExitConfig, errcode.ExitUnreachable,
		errcode.ExitNotFound, errcode.ExitUnhealthy}, e.Exit)
}

// Translate gives a code to errors of packages below, or returns nil.
func Translate(err error) *errcode.Error {
	if h, ok := errors.AsType[*mesh.HandshakeError](err); ok {
		return handshake(h)
	}
	if e, ok := errors.AsType[*mesh.EndpointError](err); ok {
		return Unreachable(err, e.Endpoint, e.Err)
	}
	if e, ok := errors.AsType[*proof.TokenFormatError](err); ok {
		if e.Problem == proof.ProblemOtherToken {
			return errcode.Wrap(err, errcode.TokenOtherKind, "wanted", e.Token, "problem", e.Detail, "do", e.Do)
		}
		return errcode.Wrap(err, errcode.TokenMalformed, "problem", e.Detail)
	}
	if e, ok := errors.AsType[*sqlite.LockedError](err); ok {
		return errcode.Wrap(err, errcode.StoreLocked, "path", e.Path, "pid", e.PID)
	}
	if e, ok := errors.AsType[*embedded.LockedError](err); ok {
		return errcode.Wrap(err, errcode.StoreLocked, "path", e.Dir, "pid", e.PID)
	}
	if e, ok := errors.AsType[*embedded.ProgramError](err); ok {
		return errcode.Wrap(err, errcode.StoreProgramMissing, "program", e.Path, "cause", e.Err.Error())
	}
	if e, ok := errors.AsType[*embedded.StartError](err); ok {
		return errcode.Wrap(err, errcode.StoreNotStarted, "dir", e.Dir, "cause", e.Said)
	}
	if e, ok := errors.AsType[*engine.SchemaError](err); ok {
		return errcode.Wrap(err, errcode.StoreNewerSchema, "store", e.Store, "found", e.Found, "known", e.Known)
	}
	if e, ok := errors.AsType[*credential.MaterialError](err); ok {
		return errcode.Wrap(err, errcode.CredentialUnusable, "problem", e.Detail)
	}
	if e, ok := errors.AsType[*manifest.InvalidError](err); ok && len(e.Problems) > 0 {
		return errcode.Wrap(err, errcode.ManifestInvalid, "count", len(e.Problems), "problem", e.Problems[0].Error())
	}
	return nil
}

// handshake gives each reason of a failed handshake its code.
func handshake(h *mesh.HandshakeError) *errcode.Error {
	if other := verdict.OtherCluster(h, h); other != nil {
		return other
	}
	pairs := []any{"endpoint", h.Endpoint}
	if h.Expected != "" {
		pairs = append(pairs, "expected", h.Expected)
	}
	var chain *identity.ChainError
	if errors.As(h, &chain) {
		pairs = append(pairs, "problem", "rule "+chain.Rule+" refused its "+chain.Certificate,
			"not_before", chain.NotBefore, "not_after", chain.NotAfter, "now", chain.Now)
	}
	if pin, ok := errors.AsType[*pinned.Error](h); ok {
		pairs = append(pairs, "problem", pin.Detail)
	}
	if m, ok := errors.AsType[*credential.MismatchError](h); ok {
		pairs = append(pairs, "identity", m.Got.String())
	}
	if san, ok := errors.AsType[*identity.SANError](h); ok {
		pairs = append(pairs, "problem", "its certificate is "+san.Reason)
	}
	code, ok := map[mesh.Reason]errcode.Code{
		mesh.PeerUntrusted:    errcode.PeerUntrusted,
		mesh.IdentityMismatch: errcode.PeerIdentityMismatch,
		mesh.NoIdentity:       errcode.PeerNoIdentity,
		mesh.Expired:          errcode.PeerExpired,
		mesh.ClientRejected:   errcode.PeerRejectedUs,
		mesh.ServerRejected:   errcode.PeerRejectedUs,
	}[h.Reason]
	if !ok {
		code = errcode.PeerProtocol
	}
	return errcode.Wrap(h, code, pairs...)
}

// Unreachable is the error of an endpoint that dial could not reach. A socket of this
// machine needs another remedy than an address does.
func Unreachable(err error, endpoint string, dial error) *errcode.Error {
	if e := ofMachine("the connection to "+endpoint, errors.Join(err, dial)); e != nil {
		return e
	}
	if errcode.Local(dial) && errors.Is(dial, fs.ErrPermission) {
		return errcode.Wrap(err, errcode.SocketForbidden, "endpoint", endpoint)
	}
	pairs := []any{"endpoint", endpoint, "problem", errcode.Network(dial)}
	if errcode.Local(dial) {
		if errors.Is(dial, fs.ErrNotExist) || errors.Is(dial, syscall.ECONNREFUSED) {
			pairs = append(pairs, "do",
				"start the process, or name where it is: --data DIR for an agent, --socket FILE for a coordinator")
		}
	}
	return errcode.Wrap(err, errcode.Unreachable, pairs...)
}

// OverNetwork words the error of a call: what happened to the request counts, and
// a change that was sent and not answered is neither done nor failed.
func OverNetwork(err error, endpoint, method string, sent, changes bool, timeout string) error {
	if e := Translate(err); e != nil && !sent {
		return e
	}
	if _, ok := errcode.FromStatus(err); ok {
		return err // the other side says what happened
	}
	code := status.Code(err)
	lost := code == codes.Unavailable || code == codes.DeadlineExceeded
	switch {
	case !lost:
		return err
	case sent && changes:
		return errcode.Wrap(err, errcode.OutcomeUnknown, "method", method, "endpoint", endpoint,
			"look", lookAfter(method))
	case code == codes.DeadlineExceeded:
		return errcode.Wrap(err, errcode.Unreachable, "endpoint", endpoint,
			"problem", "there was no answer within "+timeout)
	}
	problem := status.Convert(err).Message()
	if _, inner, ok := strings.Cut(problem, "desc = "); ok {
		problem = strings.Trim(inner, `"`)
	}
	return errcode.Wrap(err, errcode.Unreachable, "endpoint", endpoint, "problem", problem)
}

// OfPrivateFile words why a file with a key was not read.
func OfPrivateFile(file string, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errcode.Wrap(err, errcode.FileMissing, "purpose", "key file", "file", file, "cause", "it does not exist")
	case errors.Is(err, durable.ErrExposed):
		return errcode.Wrap(err, errcode.KeyFileUnusable, "file", file,
			"problem", "others can read it, so it counts as known to them")
	}
	return errcode.Wrap(err, errcode.FileMissing, "purpose", "key file", "file", file, "cause", Bare(err).Error())
}

// lookAfter names the command that tells whether a change was made.
func lookAfter(method string) string {
	switch method {
	case "SetManifest", "FirstSet":
		return "fealty manifest history"
	case "CreateToken", "RevokeToken":
		return "fealty token list"
	case "PutConfig", "DeleteConfig":
		return "fealty config list"
	case "Recover":
		return "the same fealty recover command, which is safe to repeat"
	case "LeaveCluster":
		return "fealty status --data DIR"
	}
	return "fealty member list"
}
