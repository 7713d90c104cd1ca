//go:build !race

package regress_test

const raceDetector = false
