//go:build !race

package coordinatortest

// RaceDetector says that the race detector is in this build; see race.go.
const RaceDetector = false
