package attest

// Placed is placed, for tests.
var Placed = placed
