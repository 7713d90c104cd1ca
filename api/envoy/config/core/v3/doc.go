// Package corev3 has the messages of Envoy's API that say who asks an agent for secrets, and bytes,
// as far as an agent uses them.
package corev3
