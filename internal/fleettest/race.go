//go:build race

package fleettest

// RaceDetector says that the race detector is in this build. Tests that do one thing
// again and again in a single goroutine, with each byte damaged or the power cut at each
// call, do it less often under it: one that finds a race finds it in the first rounds.
// tools/test.sh runs these tests whole in another build.
const RaceDetector = true
