package process

// TellFenced is for tests of how often it is told.
var TellFenced = tellFenced
