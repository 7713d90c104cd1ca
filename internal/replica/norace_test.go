//go:build !race

package replica

const raceDetector = false
