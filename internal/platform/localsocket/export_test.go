package localsocket

// BindAt is bindAt, for what a socket is before its mode is set by path.
var BindAt = bindAt
