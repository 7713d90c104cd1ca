//go:build race

package layers

// raceDetector says that the race detector is in this build. Code that type-checks the whole
// module is left out of it, and tools/test.sh runs that in another build.
const raceDetector = true
