//go:build race

package ownership_test

const raceDetector = true
