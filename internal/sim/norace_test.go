//go:build !race

package sim_test

// usualSchedules is how many run when nobody says how many. The race detector makes them
// several times as long.
const usualSchedules = 12

// usualReconnects is how often the connections of one machine end.
const usualReconnects = 200
