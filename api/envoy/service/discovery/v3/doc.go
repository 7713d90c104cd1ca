// Package discoveryv3 has the messages of Envoy's API that say requests for resources, and what is answered,
// as far as an agent uses them.
package discoveryv3
