package integration

import (
	"bufio"
	"encoding/json"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"
)

// process is a worker of its own.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer
	lines chan string // what it says on standard output
	ended chan struct{}
}

// start starts a worker process and returns when it serves.
func (w *world) start() *process {
	w.t.Helper()
	b, err := json.Marshal(w.set)
	w.must(err)
	exe, err := os.Executable()
	w.must(err)
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), childEnv+"="+string(b))
	cmd.Stderr = &w.log
	stdin, err := cmd.StdinPipe()
	w.must(err)
	stdout, err := cmd.StdoutPipe()
	w.must(err)
	w.must(cmd.Start())
	p := &process{cmd: cmd, stdin: stdin, lines: make(chan string, 10), ended: make(chan struct{})}
	w.mu.Lock()
	w.procs[cmd.Process.Pid] = p
	w.mu.Unlock()
	go func() {
		defer close(p.ended)
		in := bufio.NewScanner(stdout)
		for in.Scan() {
			p.lines <- in.Text()
		}
		_ = cmd.Wait()
	}()
	up := p.line(w)
	if !w.set.NoPresence { // from here on it is known, and missed when it dies
		name := strings.TrimPrefix(up, "up ")
		w.until("a worker is present", func() bool {
			_, err := w.rdb.ZScore(w.t.Context(), "onceq:{leases}:present", name).Result()
			return err == nil
		})
	}
	return p
}

func (p *process) line(w *world) string {
	w.t.Helper()
	select {
	case s := <-p.lines:
		return s
	case <-p.ended:
		w.t.Fatal("a worker ended early")
	case <-time.After(patience):
		w.t.Fatal("a worker says nothing")
	}
	return ""
}

// kill ends the process of a point with SIGKILL: nothing of it runs after that.
func (w *world) kill(p point) verb {
	w.signal(p.PID, syscall.SIGKILL)
	return goOn
}

// signal sends sig to a worker, and waits for its end where it is SIGKILL.
func (w *world) signal(pid int, sig syscall.Signal) {
	w.mu.Lock()
	p := w.procs[pid]
	w.mu.Unlock()
	if p == nil {
		w.t.Errorf("no worker %d to be sent %v", pid, sig)
		return
	}
	_ = p.cmd.Process.Signal(sig)
	if sig == syscall.SIGKILL {
		<-p.ended
	}
}

func (w *world) endAll() {
	w.mu.Lock()
	procs := slices.Collect(maps.Values(w.procs))
	w.mu.Unlock()
	for _, p := range procs {
		_ = p.cmd.Process.Kill()
		<-p.ended
		_ = p.stdin.Close()
	}
}
