// Package guard is the guard of degraded mode: what a node, and a service on it, may do
// while what it holds gets old. It decides and does nothing else, and nothing outlives
// its bound (I15). Whether somebody can be reached plays no part in how old that is: a
// node that gets new records from a mirror is not degraded, and one that holds a stream
// to a coordinator which has nothing new to say is.
package guard
