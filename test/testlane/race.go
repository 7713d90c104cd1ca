//go:build race

package testlane

const raceDetector = true
