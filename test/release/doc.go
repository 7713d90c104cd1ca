// Package release has the tests of what tools/release.sh makes, as those who install it have it.
package release
