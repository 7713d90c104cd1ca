// Package layers holds the tests that keep imports pointing one way, packages
// within their bounds, and secrets with those who need them.
//
// The rules are tables in layers_test.go: levels, what a level may import, who
// may import a driver, which names a package may not have. The test reads the
// import clauses of every Go file of the module, whatever its build tags, so
// that a rule holds on every platform. A package without a row fails: it gets
// its level when it is made, not when somebody first trips over it.
//
// The bounds are in rooms_test.go, with the packages that are above them today. In
// secrets_test.go stands who may handle a seed, and what else reaches one today. Both
// lists only shrink.
//
// The names that public packages promise are compared with docs/reference/api.txt in
// names_test.go, and counted. Each of them is in an example that runs: examples_test.go
// lists the exceptions.
package layers
