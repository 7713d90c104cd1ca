// Package command defines what a command of fealty is: its name and help, its flags and arguments,
// and the terms that all commands share.
package command
