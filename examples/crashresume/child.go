package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/nexuscore/onceq/examples/internal/app"
)

// childEnv makes this program a worker: the same that examples/worker is.
const childEnv = "CRASHRESUME_WORKER"

func child(args []string) int {
	c, err := app.Parse("crashresume worker", args)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: c.LogLevel}))
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	ctx, orphaned := context.WithCancel(ctx)
	go func() { // a supervisor that dies must not leave workers behind
		_, _ = io.Copy(io.Discard, os.Stdin)
		orphaned()
	}()
	a, err := app.Start(ctx, c, log)
	if err != nil {
		log.Error("not started", "err", err)
		return 1
	}
	select {
	case <-ctx.Done():
	case err = <-a.Failed():
		log.Error("ended", "err", err)
	}
	a.Shutdown()
	if err != nil {
		return 1
	}
	return 0
}

// process is a worker that the supervisor started.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer
	log   *os.File
	ended chan struct{}
}

func startProcess(logFile string, env, args []string) (*process, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	log, err := os.Create(logFile)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(exe, args...)
	cmd.Env = append(append(os.Environ(), env...), childEnv+"=1")
	cmd.Stdout, cmd.Stderr = log, log
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		_ = log.Close()
		return nil, err
	}
	p := &process{cmd: cmd, stdin: stdin, log: log, ended: make(chan struct{})}
	go func() {
		_ = cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// kill is SIGKILL: nothing of the process runs after it.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
	p.closeFiles()
}

// stop asks the process to end, and insists after a while.
func (p *process) stop() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
		p.closeFiles()
		return nil
	case <-time.After(20 * time.Second):
		p.kill()
		return errors.New("the worker did not end when asked to")
	}
}

func (p *process) closeFiles() {
	_ = p.stdin.Close()
	_ = p.log.Close()
}
