//go:build race

package replica

// raceDetector says that the race detector is in this build: it makes the schedules six
// times as long, and can find nothing in one, which is a single goroutine. So a build
// with it runs a hundredth of them, and tools/test.sh runs all of them in another build.
const raceDetector = true
