// Package fealtyv1 is the API of Fealty, version 1, as generated from the protos
// beside it. Every RPC carries the option fealty.v1.authorization, which says who
// may call it: package authz reads it, and a server with an RPC that has none
// refuses to start.
package fealtyv1
