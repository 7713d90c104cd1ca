//go:build race

package history_test

// raceDetector says that the race detector is in this build. Courses of calls that a single
// goroutine makes, one within another, are fewer under it, and tools/test.sh runs them whole
// in another build.
const raceDetector = true
