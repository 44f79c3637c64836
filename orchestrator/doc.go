// Package orchestrator arranges the four other packages into what a team
// deploys: one table of runs, one handler that works on them, one dispatcher
// that takes them in.
//
//	runs, err := orchestrator.NewRuns(db, outbox)                // the table; outbox may be nil
//	guard, err := idempotent.New(rdb, idempotent.WithOnFailed(runs.OnFailed))
//	producer, err := idempotent.NewProducer(guard, client)
//
//	handler, err := orchestrator.NewHandler(runs, snapshots, orchestrator.Orchestration[State]{
//		Start:  func(r orchestrator.Run) (State, error) { return State{Goal: r.Requirement}, nil },
//		Phases: orchestrator.Phases(team), // your PhaseRunner[State], or your own list of phases
//	})
//	mux.Use(guard.Middleware)
//	mux.Handle(runs.TaskType(), handler)
//
//	dispatcher, err := orchestrator.NewDispatcher(runs, producer)
//	sweeper, err := orchestrator.NewSweeper(dispatcher)
//	go sweeper.Run(ctx)
//	http.ListenAndServe(addr, dispatcher.HTTP())
//
// [Runs] comes first because everything else needs it and it needs only the
// database: the guard calls its OnFailed, the handler and the dispatcher are
// made from it. A process that only takes runs in has no handler, one that only
// works on them no dispatcher.
//
// # The table is the truth
//
// Redis forgets: a retention ends, a server is flushed. A run whose row says
// SUCCESS is skipped whatever Redis says, and one whose row says that it is
// unfinished is dispatched again by the [Sweeper] when Redis knows nothing of
// it. SUCCESS and FAILED are written before Redis is told, in one transaction
// with the notification, so that a worker that dies in between leaves a row
// that says what was done.
//
// Each attempt writes its fencing token into the row when it begins, by one
// conditional UPDATE; each later write of that attempt names the token. An
// attempt that was overtaken changes nothing and learns it by a [*StaleError].
//
// # What is repeated when a worker dies
//
// Inside a phase: that phase. After the last phase and before the row says
// SUCCESS: the write of the row and no phase. After the row says SUCCESS:
// nothing, the next delivery is skipped.
package orchestrator
