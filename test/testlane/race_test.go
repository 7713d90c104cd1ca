//go:build race

package testlane_test

const underDetector = true
