package jwtsvid

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/go-jose/go-jose/v4"

	"github.com/fealty-io/fealty/internal/platform/durable"
)

// Where the documents are, below the issuer.
const (
	ConfigurationPath = "/.well-known/openid-configuration"
	KeysPath          = "/.well-known/jwks.json"
)

// The media types of the documents (OpenID Connect Discovery 1.0 §4.2, RFC 7517 §8.5.2).
const (
	ConfigurationType = "application/json"
	KeysType          = "application/jwk-set+json"
)

// Documents are what verifiers ask for. They are immutable.
type Documents struct {
	Configuration []byte
	Keys          []byte
}

// configuration says what an issuer does (OpenID Connect Discovery 1.0 §3). Nobody logs in at a
// cluster, so there are no endpoints for that, and tokens are ID tokens in form alone.
type configuration struct {
	Issuer        string   `json:"issuer"`
	KeysURI       string   `json:"jwks_uri"`
	ResponseTypes []string `json:"response_types_supported"`
	SubjectTypes  []string `json:"subject_types_supported"`
	Algorithms    []string `json:"id_token_signing_alg_values_supported"`
	Claims        []string `json:"claims_supported"`
}

// NewDocuments returns the documents of an issuer, as a manifest names it, whose tokens keys verify.
func NewDocuments(issuer string, keys []Key) (Documents, error) {
	config, err := json.MarshalIndent(configuration{
		Issuer: issuer, KeysURI: issuer + KeysPath, ResponseTypes: []string{"id_token"},
		SubjectTypes: []string{"public"}, Algorithms: []string{string(jose.ES256)},
		Claims: []string{"iss", "sub", "aud", "iat", "exp"},
	}, "", "  ")
	if err != nil {
		return Documents{}, fmt.Errorf("encode what an issuer does: %w", err)
	}
	set := jose.JSONWebKeySet{Keys: []jose.JSONWebKey{}} // an empty list, and not null
	for _, k := range keys {
		set.Keys = append(set.Keys, jose.JSONWebKey{Key: k.Public, KeyID: k.ID, Algorithm: string(jose.ES256),
			Use: "sig"})
	}
	jwks, err := json.MarshalIndent(set, "", "  ")
	if err != nil {
		return Documents{}, fmt.Errorf("encode the keys of an issuer: %w", err)
	}
	return Documents{Configuration: append(config, '\n'), Keys: append(jwks, '\n')}, nil
}

// Write writes the documents below dir, which a web server has as the issuer's URL, and returns
// their names. Each file takes the place of the one before as a whole. The keys come first, so that
// nobody is led to keys that are not there.
func (d Documents) Write(fs durable.FS, dir string) ([]string, error) {
	var names []string
	for _, file := range []struct {
		path string
		data []byte
	}{{KeysPath, d.Keys}, {ConfigurationPath, d.Configuration}} {
		name := filepath.Join(dir, filepath.FromSlash(strings.TrimPrefix(file.path, "/")))
		if err := fs.MkdirAll(filepath.Dir(name)); err != nil {
			return nil, err
		}
		if err := fs.WriteFile(name, file.data); err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, nil
}
