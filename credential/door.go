package credential

import "github.com/fealty-io/fealty/internal/credentialdoor"

// Joining and proving need more than what is public, and nobody else does; see package credentialdoor.
func init() {
	credentialdoor.ClientTLS = clientTLS
	credentialdoor.NewEphemeral = newEphemeral
	credentialdoor.ProofFiles = func(cfg FilesConfig, accepted bool) (*Files, error) {
		cfg.proof, cfg.accepted = true, accepted
		return NewFiles(cfg)
	}
}
