// Package layers holds the test that keeps imports pointing one way.
//
// The rules are tables in layers_test.go: levels, what a level may import, who
// may import a driver, which names a package may not have. The test reads the
// import clauses of every Go file of the module, whatever its build tags, so
// that a rule holds on every platform. A package without a row fails: it gets
// its level when it is made, not when somebody first trips over it.
package layers
