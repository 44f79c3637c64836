// Package llmcache pays for an LLM call once.
//
// A [Cache] keeps answers in Redis. Inside a run of package idempotent they
// belong to the run: the attempt after a crash gets, phase by phase, the answers
// the earlier one paid for, and three samples of one prompt stay three samples.
// Elsewhere, or under [Scope]([SharedScope]), all runs of a tenant share them for
// a day. Identical calls that meet, in one process or in several, are made once.
//
// [Do] is for one call; [Cache.Transport] for HTTP clients serves every SDK. Both
// share one store, and one [Ledger] of what was paid, saved and wasted. [Budget]
// stops a run before the call that would exceed it.
//
// The cache never stands in the way: when Redis is in trouble, calls go to their
// provider, each question to Redis is bounded (1 s), and a breaker stops asking
// for a minute. ONCEQ_LLM_CACHE=0 (or false, off) turns it off.
//
// It differs from a cache in front of a provider (a proxy, or a provider's own
// prompt cache) in that it knows the run: what is replayed is what this run was
// told at this place. It does not promise exactly one paid call: a process that
// dies after the provider answered and before the answer was stored leaves a call
// that may have been paid, and the ledger says so.
package llmcache
