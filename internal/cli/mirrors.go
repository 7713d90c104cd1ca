package cli

import (
	"crypto/x509"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/fealty-io/fealty/internal/agent"
	"github.com/fealty-io/fealty/internal/command"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/mirror"
)

// checkMirror says what is wrong with the place of a mirror, or "".
func checkMirror(text string) string {
	if isURL(text) {
		if problem := mirror.CheckURL(text); problem != "" {
			return command.ShownArg(text) + ": " + problem
		}
		return ""
	}
	if text == "" {
		return "one of them is blank"
	}
	return ""
}

// isURL tells a URL from a path, and a mistyped URL too.
func isURL(text string) bool { return strings.Contains(text, "://") }

// mirrors returns the mirrors that the settings name, and what opens others, which
// are at https URLs alone: who compiles config names no files of this machine.
func (c *CLI) mirrors(cfg *config) (named []mirror.Source, open func(string) (mirror.Source, error), err error) {
	places, v := cfg.list("snapshot_source"), cfg.find("snapshot_source")
	bad := func(value, problem, want string) error {
		return explain.New(explain.BadValue, "name", v.from, "value", value, "problem", problem, "want", want)
	}
	if len(places) > agent.MaxMirrors {
		return nil, nil, bad(fmt.Sprintf("%d mirrors", len(places)), "they are too many to be asked in one round", fmt.Sprintf("%d at most", agent.MaxMirrors))
	}
	ca, err := c.mirrorCA(cfg)
	if err != nil {
		return nil, nil, err
	}
	for _, place := range places {
		source, err := openMirror(cfg, place, ca)
		if err != nil {
			return nil, nil, bad(command.ShownArg(place), err.Error(), "https://HOST/PATH or a folder")
		}
		named = append(named, source)
	}
	return named, func(url string) (mirror.Source, error) { return mirror.NewHTTPS(mirror.HTTPSConfig{URL: url, CA: ca}) }, nil
}

// openMirror returns the mirror at a place that was checked.
func openMirror(cfg *config, place string, ca *x509.CertPool) (mirror.Source, error) {
	if isURL(place) {
		return mirror.NewHTTPS(mirror.HTTPSConfig{URL: place, CA: ca})
	}
	path, err := filepath.Abs(cfg.within(place))
	if err != nil {
		return nil, err
	}
	return mirror.NewDir(path)
}

// mirrorCA returns the roots for servers of mirrors; nil for those of the system.
func (c *CLI) mirrorCA(cfg *config) (*x509.CertPool, error) {
	file := cfg.text("snapshot_ca")
	if file == "" {
		return nil, nil
	}
	certs, err := c.readCerts(cfg, file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	for _, cert := range certs.certs {
		pool.AddCert(cert)
	}
	return pool, nil
}
