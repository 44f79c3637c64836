package checkpoint

import "github.com/nexuscore/onceq/internal/runkey"

// Keys of a run, all on one Redis Cluster slot:
//
//	<prefix>:{<key>}:lock           the lease; package idempotent writes it
//	<prefix>:{<key>}:ckpt           the snapshot
//	<prefix>:{<key>}:steps:<phase>  hash: step → result, "" → basis

func lockKey(run Ref) string { return runkey.Lock(run.Base) }

func snapshotKey(run Ref) string { return runkey.Checkpoint(run.Base) }

func stepsKey(run Ref, phase string) string { return runkey.Steps(run.Base, phase) }
