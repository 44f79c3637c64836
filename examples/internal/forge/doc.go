// Package forge is the work that the examples do: it turns a goal in a person's
// words into a requirements document, a plan, an architecture note, a small Go
// program with tests that were run, and a review, all as files under a directory
// of the run. It asks a model for each part, several times in most phases.
//
// Nothing in it knows of queues or leases. Its seven methods have the form of a
// phase, func(ctx, *State) error, so an orchestrator runs them with checkpoints
// and a test runs them one after the other. Each model call is a memoised step:
// a phase that is started again asks only for what it had not got yet.
//
// What a model says is not trusted: files are written only under the run's
// directory and only by names of one pattern, answers are bounded, and one that
// cannot be used is asked for once more, with the reason. The generated tests are
// run, however, with the rights of this process and a minimal environment; that
// is no sandbox. Use [WithoutTests] where that is too much.
package forge
