//go:build linux

package coordinator_test
