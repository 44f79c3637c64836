package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// claim is one thing that is proven, or not.
type claim struct {
	What    string
	Looked  int      // how many things were looked at
	Against []string // what speaks against it
	Excused map[troubleKind]int
}

func (c *claim) against(format string, args ...any) {
	c.Against = append(c.Against, fmt.Sprintf(format, args...))
}

// unless counts an exception that the crash table allows for a cause, or holds it
// against the claim.
func (c *claim) unless(why troubleKind, format string, args ...any) {
	if why == "" {
		c.against(format, args...)
		return
	}
	if c.Excused == nil {
		c.Excused = map[troubleKind]int{}
	}
	c.Excused[why]++
}

// planned: what the plan's own faults make of a run.
const planned troubleKind = "planned failure"

type proof struct {
	Claims []*claim
	Resume []time.Duration // from a kill to the next attempt, of the runs that the process had
}

func (p *proof) ok() bool {
	return !slices.ContainsFunc(p.Claims, func(c *claim) bool { return len(c.Against) > 0 })
}

// String is the proof on a page.
func (p *proof) String() string {
	var b strings.Builder
	for _, c := range p.Claims {
		verdict := "proven"
		if len(c.Against) > 0 {
			verdict = "FAILED"
		}
		fmt.Fprintf(&b, "%s  %s (%d looked at)%s\n", verdict, c.What, c.Looked, c.excuses())
		for i, a := range c.Against {
			if i == 20 {
				fmt.Fprintf(&b, "        and %d more\n", len(c.Against)-i)
				break
			}
			fmt.Fprintf(&b, "        %s\n", a)
		}
	}
	if n := len(p.Resume); n > 0 {
		fmt.Fprintf(&b, "after a SIGKILL %d runs went on: median %v, slowest %v\n", n, p.Resume[n/2].Round(10*time.Millisecond), p.Resume[n-1].Round(10*time.Millisecond))
	}
	return b.String()
}

func (c *claim) excuses() string {
	var parts []string
	for why, n := range c.Excused {
		parts = append(parts, fmt.Sprintf("%d × %s", n, why))
	}
	if len(parts) == 0 {
		return ""
	}
	slices.Sort(parts)
	return "; as the crash table allows: " + strings.Join(parts, ", ")
}
