// Package enroll gets an identity from a coordinator.
//
// [Join] makes a machine a member, [Login] does the same for a person or a tool. A key is
// durable before it is named to anybody, so that a join whose answer was lost is repeated
// with the same key, and the cluster sees one request. A grant is verified from its
// own bytes under the pinned root before any of it is kept.
//
// A join is kept by one write of package state. A [Handshake] is the exchange itself,
// for members that come back by a proof of another kind.
package enroll
