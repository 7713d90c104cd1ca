//go:build race

package sim_test

const usualSchedules = 2

const usualReconnects = 40
