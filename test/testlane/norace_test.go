//go:build !race

package testlane_test

const underDetector = false
