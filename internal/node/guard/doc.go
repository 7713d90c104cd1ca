// Package guard decides what a node, and a service on it, may still do while its records get old:
// degraded mode.
//
// It decides and does nothing else, and nothing outlives its bound (I15). The age of the records
// counts, not whether somebody can be reached: a node that gets new records from a mirror is not
// degraded, and one that holds a stream to a coordinator which has nothing new to say is.
package guard
