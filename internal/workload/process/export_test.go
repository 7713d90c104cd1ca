package process

// Placed is placed, for tests.
var Placed = placed
