// Package provider has the bounds of the protocol of providers, and the name of the sender for a provider without TLS.
package provider

import "errors"

// The bounds.
const (
	MaxName      = 128     // of a machine's id, a profile, a domain or a tenant, in bytes
	MaxOperation = 128     // of an operation's id, in bytes
	MaxLastError = 1024    // of a machine's last error, in bytes
	MaxMachines  = 100_000 // of one provider
	MaxPage      = 1000    // entries of one page of a list
)

// InsecureHolder is what an insecure server takes every caller for: the holder that grants and assignments name.
const InsecureHolder = "insecure"

// ErrNotLoopback is matched when an insecure server would be reached from elsewhere.
var ErrNotLoopback = errors.New("without TLS it is served on a loopback address alone")
