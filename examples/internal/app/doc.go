// Package app is the program that examples/worker runs, and that
// examples/crashresume kills: an API that takes runs in, a worker that does them,
// or both in one process.
//
// It shows the library whole. [Start] is worth reading from top to bottom: it is
// everything a host has to wire.
package app
