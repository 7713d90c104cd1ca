// Package pause gives the pauses between tries, so that a fleet that lost its coordinators
// does not come back as one.
package pause
