package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// seat is a place for a worker: one process at a time, many in a soak.
type seat struct {
	n    int
	spec workerSpec
	logs string

	mu      sync.Mutex // held while something is done to the process
	process *process
	started int
}

// process is a worker that was started.
type process struct {
	name  string
	cmd   *exec.Cmd
	stdin io.Closer
	log   *os.File
	ended chan struct{}
}

// start starts a process unless one runs.
func (s *seat) start() (*process, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.process; p != nil && !p.over() {
		return p, nil
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	s.started++
	spec := s.spec
	spec.Name = fmt.Sprintf("w%d.%d", s.n, s.started)
	env, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(s.logs, spec.Name+".log"))
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), workerEnv+"="+string(env))
	cmd.Stdout, cmd.Stderr = log, log
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		_ = log.Close()
		return nil, err
	}
	p := &process{name: spec.Name, cmd: cmd, stdin: stdin, log: log, ended: make(chan struct{})}
	go func() {
		_ = cmd.Wait()
		close(p.ended)
	}()
	s.process = p
	return p, nil
}

// during does something to the process; it reports false when something else is
// being done to it, or there is none.
func (s *seat) during(f func(*process)) bool {
	if !s.mu.TryLock() {
		return false
	}
	defer s.mu.Unlock()
	if s.process == nil || s.process.over() {
		return false
	}
	f(s.process)
	return true
}

func (s *seat) kill() {
	s.during(func(p *process) { p.kill() })
}

func (p *process) over() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

func (p *process) signal(sig syscall.Signal) { _ = p.cmd.Process.Signal(sig) }

// kill is SIGKILL: nothing of the process runs after it.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.ended
	p.closeFiles()
}

// stopWithin bounds a shutdown: asynq's wait and the lease's grace twice over, and
// a machine that is slow.
const stopWithin = 40 * time.Second

// stop is SIGTERM.
func (p *process) stop() error {
	p.signal(syscall.SIGTERM)
	select {
	case <-p.ended:
		p.closeFiles()
		if code := p.cmd.ProcessState.ExitCode(); code != 0 {
			return fmt.Errorf("exit code %d", code)
		}
		return nil
	case <-time.After(stopWithin):
		p.signal(syscall.SIGQUIT) // its log then says where it hangs
		<-p.ended
		p.closeFiles()
		return errors.New("did not end when asked to")
	}
}

func (p *process) closeFiles() {
	_ = p.stdin.Close()
	_ = p.log.Close()
}
