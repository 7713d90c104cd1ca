// Package conformance holds a live provider to the contract of api/fealty/v1/provider.proto,
// in whatever language it is written: each case is a rule, and a provider that breaks it is
// told which.
//
// The cases act as a shard whose process is started again and again, with tokens that no
// honest one would send. They act on speculative machines alone, and leave them speculative:
// the provider must have some that nobody else uses, and a shard identity must be given that
// no shard has, as its lives end here.
package conformance
