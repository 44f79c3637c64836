// Package sdktest drives the real LLM SDKs through llmcache's transport, against
// a local server that behaves like their providers. Run it with
//
//	cd llmcache/internal/sdktest && go test -race ./...
//
// It is a module of its own so that the library's go.mod names none of the SDKs;
// the root's `go test ./...` therefore does not reach it.
package sdktest
