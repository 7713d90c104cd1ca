//go:build !race

package fleettest

const RaceDetector = false
