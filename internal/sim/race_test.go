//go:build race

package sim_test

const usualSchedules = 2
