package enterprise

import (
	"context"
	"time"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/internal/platform/reload"
)

// Part has files read again when somebody says so. They are followed all the same: what changed is told since it was
// asked last.
func Part(f *credential.Files) reload.Part {
	return PartOf("the certificate in "+f.Paths().Cert, f, f.Failure)
}

// PartOf is Part of a source that looks at its files when it is asked, or looked before. failure says why the files as
// they are now are not in use.
func PartOf(name string, source credential.Source, failure func() error) reload.Part {
	var known [32]byte
	if m, err := source.Current(context.Background()); err == nil {
		known = m.Fingerprint()
	}
	return reload.Part{Name: name, Read: func(ctx context.Context) (string, error) {
		m, err := source.Current(ctx)
		if err != nil {
			return "", err
		}
		if err := failure(); err != nil {
			return "", err
		}
		if m.Fingerprint() == known {
			return "", nil
		}
		known = m.Fingerprint()
		if len(m.Chain()) == 0 {
			return "another one is in use", nil
		}
		return "another one is in use, which ends at " + m.Chain()[0].NotAfter.UTC().Format(time.RFC3339), nil
	}}
}
