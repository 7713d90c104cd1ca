//go:build !race

package accept_test

const raceDetector = false
