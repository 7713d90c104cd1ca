// Package secretv3 has the service of Envoy's API for certificates that change,
// as far as an agent uses them.
package secretv3
