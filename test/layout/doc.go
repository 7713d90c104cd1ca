// Package layout tests where code may stand: which package imports which, that no secret leaves the packages that are
// made for it, that no hot path dials a coordinator, and which names the public packages promise.
//
// The rules about imports are the tables of layers_test.go. They are read from the import clauses of every Go file of
// the module, whatever its build tags, so that a rule holds on every platform. secrets_test.go says who may handle a
// seed. names_test.go compares the names of public packages with docs/reference/api.txt, and examples_test.go holds
// that an example uses each of them. repeat_test.go holds that tests go by their code, their lane and their seed alone, and
// corpora_test.go that inputs kept for fuzz targets are small.
package layout
