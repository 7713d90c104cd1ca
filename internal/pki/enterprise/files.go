// Package enterprise lets a process prove itself with a certificate of the operator's own PKI: it
// follows the three files (certificate, key, roots), and explains what is wrong with them.
//
// For a coordinator it decides which certificate is shown beside the enrolment key, and which entry
// of a manifest admits the coordinator by it ([Certificate]).
package enterprise

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/errcode"
)

// Open follows the files that prove a process, and words what is wrong with them:
// TLSFilesIncomplete for some of the three; CredentialMismatch, CredentialExpired,
// CredentialForeign or CredentialUnusable for material that is of no use.
func Open(cfg credential.FilesConfig) (*credential.Files, error) { return Reopen(cfg, false) }

// Reopen is Open of files that, if accepted is set, were in use before this program was started: see
// credential.FilesConfig.Accepted.
func Reopen(cfg credential.FilesConfig, accepted bool) (*credential.Files, error) {
	if missing := MissingFlags(cfg.Paths); len(missing) > 0 {
		return nil, errcode.New(errcode.TLSFilesIncomplete, "missing", strings.Join(missing, " and "))
	}
	cfg.Proof, cfg.Accepted = true, accepted
	f, err := credential.NewFiles(cfg)
	if err != nil {
		return nil, Word(cfg.Paths, err)
	}
	return f, nil
}

// MissingFlags returns the flags of a command that have to be given too, such as --tls-key, if some of the three are
// given and others are not; nil for all and for none.
func MissingFlags(p credential.FilePaths) []string {
	flags := map[string]string{"Cert": "--tls-cert", "Key": "--tls-key", "CA": "--tls-ca"}
	var out []string
	for _, file := range p.Missing() {
		out = append(out, flags[file])
	}
	return out
}

// Word words why files are not used.
func Word(p credential.FilePaths, err error) *errcode.Error {
	material, ok := errors.AsType[*credential.MaterialError](err)
	if !ok {
		return errcode.Wrap(err, errcode.CredentialUnusable, "source", p.Cert+", "+p.Key+" and "+p.CA, "problem", err.Error())
	}
	chain, _ := errors.AsType[*identity.ChainError](err)
	problem := material.Detail
	if chain != nil {
		// Not the error's whole text: what it says to do is about a cluster's own
		// certificates.
		problem = chain.Detail
	}
	switch material.Reason {
	case credential.KeyMismatch:
		return errcode.Wrap(err, errcode.CredentialMismatch, "certificate", p.Cert, "key", p.Key)
	case credential.Expired:
		return errcode.Wrap(err, errcode.CredentialExpired, "certificate", p.Cert, "problem", problem)
	case credential.Untrusted:
		return errcode.Wrap(err, errcode.CredentialForeign, "certificate", p.Cert, "ca", p.CA, "problem", problem)
	}
	if material.Err != nil && chain == nil {
		problem += ": " + material.Err.Error()
	}
	return errcode.Wrap(err, errcode.CredentialUnusable, "source", p.Cert+", "+p.Key+" and "+p.CA, "problem", problem)
}

// maxToldBytes is how much is told of one thing.
const maxToldBytes = 512

func clip(s string) string {
	return strings.ToValidUTF8(s[:min(len(s), maxToldBytes)], "?")
}

// Tell says what is in use of the files, and why they are not as they are now; nil
// without any.
func Tell(ctx context.Context, f *credential.Files) *fealtyv1.OperatorCertificate {
	if f == nil {
		return nil
	}
	m, err := f.Current(ctx)
	if err != nil || len(m.Chain()) == 0 {
		return nil // files never are without material
	}
	leaf := m.Chain()[0]
	out := &fealtyv1.OperatorCertificate{
		File: f.Paths().Cert, Subject: clip(leaf.Subject.String()),
		NotBefore: timestamppb.New(leaf.NotBefore), NotAfter: timestamppb.New(leaf.NotAfter),
	}
	if err := f.Failure(); err != nil {
		out.Reason = string(credential.Unreadable)
		if e, ok := errors.AsType[*credential.MaterialError](err); ok {
			out.Reason = string(e.Reason)
		}
		e := Word(f.Paths(), err)
		out.Problem = clip(fmt.Sprintf("%s: %s (%s)", e.Code, e.What, e.Why))
	}
	return out
}

// NotAfter is when the certificate in use ends, in seconds since 1970.
func NotAfter(f *credential.Files) float64 {
	m, err := f.Current(context.Background())
	if err != nil || len(m.Chain()) == 0 {
		return 0
	}
	return float64(m.Chain()[0].NotAfter.Unix())
}

// NewFailures counts the changes of the files that are refused, by reason.
func NewFailures() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "fealty_credential_reload_failures_total",
		Help: "Changes of certificate, key and CA files that were refused, by reason; the last good ones stay in use.",
	}, []string{"reason"})
}
