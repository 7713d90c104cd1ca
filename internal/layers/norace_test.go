//go:build !race

package layers

const raceDetector = false
