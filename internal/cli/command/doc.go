// Package command is what a command of fealty is made of, for those that stand in packages of
// their own: how it is described, what it is run in, and the words that all commands share.
package command
