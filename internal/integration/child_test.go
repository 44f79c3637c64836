package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
)

// child is a worker process with the full stack.
func child(encoded string) int {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	var s settings
	if err := json.Unmarshal([]byte(encoded), &s); err != nil {
		log.Error("settings", "err", err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() { // a test that dies leaves no workers behind
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}()
	at := overHTTP(s.Points)
	hook, err := newScriptHook(at)
	if err != nil {
		log.Error("hook", "err", err)
		return 2
	}
	k, err := newStack(s, at, log, hook)
	if err == nil {
		err = k.work(log)
	}
	if err != nil {
		log.Error("not started", "err", err)
		return 1
	}
	fmt.Println("up", k.guard.Process())
	<-ctx.Done()
	k.close()
	if s.Lingers { // its handlers go on, as in a process that does something else too
		fmt.Println("shut down")
		select {}
	}
	return 0
}
