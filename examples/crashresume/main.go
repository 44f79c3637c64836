// Crashresume shows what happens to a run whose worker is killed. It holds the
// broker, the database, a scripted model and a fake Slack, starts a worker as a
// child process, submits one run twice at the same moment, kills the worker with
// SIGKILL in the middle of a phase, starts another, and tells what happened: all
// counted from outside, not by the worker's own word.
//
//	go run ./examples/crashresume [-redis URL] [-kill-phase 5] [-kills 1] [-json]
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

// phases are those of the orchestration, in order.
var phases = []string{"context", "requirements", "planning", "architecture", "implementation", "testing", "review"}

type settings struct {
	redis     string
	killPhase int
	kills     int
	json      bool
	dir       string
	timeout   time.Duration
}

func main() {
	if os.Getenv(childEnv) != "" {
		os.Exit(child(os.Args[1:]))
	}
	s, err := parse(os.Args[1:])
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		fmt.Fprintln(os.Stderr, "crashresume:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if !run(ctx, s) {
		os.Exit(1)
	}
}

func parse(args []string) (settings, error) {
	fs := flag.NewFlagSet("crashresume", flag.ContinueOnError)
	var s settings
	fs.StringVar(&s.redis, "redis", "", "`URL` of a real Redis instead of one in this process")
	fs.IntVar(&s.killPhase, "kill-phase", 5, "kill the worker in the middle of this phase, 1 to 7; 0 never")
	fs.IntVar(&s.kills, "kills", 1, "how many workers to kill there, one after the other")
	fs.BoolVar(&s.json, "json", false, "print the summary as one JSON object on the last line")
	fs.StringVar(&s.dir, "dir", "", "`directory` for files and logs; a temporary one without")
	fs.DurationVar(&s.timeout, "timeout", 5*time.Minute, "give up after")
	if err := fs.Parse(args); err != nil {
		return s, err
	}
	switch {
	case fs.NArg() > 0:
		return s, fmt.Errorf("%q: there are flags and no arguments; -h lists them", fs.Arg(0))
	case s.killPhase < 0 || s.killPhase > len(phases):
		return s, fmt.Errorf("-kill-phase %d: use 0 to %d", s.killPhase, len(phases))
	case s.kills < 0 || s.kills > 100:
		return s, fmt.Errorf("-kills %d: use 0 to 100", s.kills)
	case s.kills > 0 && s.killPhase == 0:
		s.kills = 0
	}
	return s, nil
}

// run reports whether nothing was doubled or lost.
func run(ctx context.Context, s settings) bool {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	if s.dir == "" {
		dir, err := os.MkdirTemp("", "crashresume-")
		if err != nil {
			fmt.Fprintln(os.Stderr, "crashresume:", err)
			return false
		}
		s.dir = dir
	}
	sup, err := newSupervisor(ctx, s, newStory(os.Stdout))
	var sum summary
	if err != nil { // nothing has happened that could be summed up
		fmt.Fprintln(os.Stderr, "crashresume:", err)
		sum.fail("%v", err)
	} else {
		defer sup.close()
		sum = sup.summarise(sup.perform(ctx))
		sum.print(os.Stdout)
		fmt.Printf("\nfiles: %s   logs: %s\n", s.dir, filepath.Join(s.dir, "worker-*.log"))
	}
	if s.json {
		b, _ := json.Marshal(sum) // plain fields: cannot fail
		fmt.Printf("%s\n", b)
	}
	return sum.OK
}
