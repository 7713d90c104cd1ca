// Package docs holds the documentation, which is not Go, and the tests that keep
// it true: what its pages show is run, what they name exists.
package docs
