// Package sim tests whole coordinators in virtual time, under random schedules of faults.
//
// The coordinators are a fleet of package coordinatortest in memory: those of the product, with a
// folder each, TLS between them and one store, everything that a program has but its sockets and its
// disk, so that time is virtual. A schedule is a bounded series of operations and faults that a
// number decides. After it the test compares what the coordinators show with what they
// acknowledged.
//
// Code that only decides is driven by the million in its own package (internal/coordinator/authority/decide,
// internal/store/health); the code that acts on those decisions runs here.
package sim
