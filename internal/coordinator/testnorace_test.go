//go:build !race

package coordinator_test

const raceDetector = false
