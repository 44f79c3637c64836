// Package checkpointtest helps to test programs that use package checkpoint:
// [RoundTrip] finds state that does not survive being stored, and [TestStore]
// checks that a checkpoint.Store keeps its contract.
package checkpointtest
