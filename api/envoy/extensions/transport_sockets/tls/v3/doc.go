// Package tlsv3 has the messages of Envoy's API that say a certificate with its key, or what others are verified by,
// as far as an agent uses them.
package tlsv3
