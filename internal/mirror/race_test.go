//go:build race

package mirror

// raceDetector says that the race detector is in this build. A tree that is written
// again and again, in a single goroutine, is written less often under it, and
// tools/test.sh runs these tests whole in another build.
const raceDetector = true
