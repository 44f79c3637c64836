// Package wire knows how LLM providers speak HTTP: which requests can be
// answered from a cache, what of a request changes its answer, and whether an
// answer is a complete success. It does no I/O and keeps nothing.
//
// [Recognise] judges a request, [Call.Fields] writes what its key is made of,
// and a [Scanner] watches an answer while it passes and never alters it. Both
// sides are open: a host's [Provider] adds requests, its [Judge] adds answers.
//
// When in doubt the package says no. A call that is needlessly passed through
// costs money once more; an answer that is wrongly stored is wrong for as long
// as it lives.
package wire
