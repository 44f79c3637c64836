// Worker is what a team would deploy: an API that takes runs in and a worker that
// does them, in one process (-role all) or apart (-role api, -role worker). With
// nothing set it needs nothing: Redis, the database and a scripted model run
// inside.
//
//	go run ./examples/worker
//	curl -s localhost:8080/runs -d '{"requirement":"a CLI that counts words in files"}'
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/nexuscore/onceq/examples/internal/app"
)

func main() {
	c, err := app.Parse("worker", os.Args[1:])
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		fmt.Fprintln(os.Stderr, "worker:", err)
		os.Exit(2)
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: c.LogLevel}))
	if err := run(c, log); err != nil {
		log.Error("worker ended", "err", err)
		os.Exit(1)
	}
}

func run(c app.Config, log *slog.Logger) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	a, err := app.Start(ctx, c, log)
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		log.Info("shutting down; a run under way would be handed over")
	case err = <-a.Failed():
	}
	stop() // a second signal ends it at once
	a.Shutdown()
	return err
}
