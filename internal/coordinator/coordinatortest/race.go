//go:build race

package coordinatortest

// RaceDetector says that the race detector is in this build. Tests of many rounds that
// are a single goroutine each do fewer of them under it, and tools/test.sh runs these
// tests whole in another build; so it does with those that are in files without it alone.
const RaceDetector = true
