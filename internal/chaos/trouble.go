package main

import "time"

// trouble is something that went wrong, from when to when.
type trouble struct {
	Kind    troubleKind
	Process string // whose; "" everybody's
	From    time.Time
	Until   time.Time
	Detail  string
}

type troubleKind string

const (
	killed   troubleKind = "killed"
	stopped  troubleKind = "SIGTERM"
	frozen   troubleKind = "frozen"
	starved  troubleKind = "got no time"
	passing  troubleKind = "cache passed through"
	redisOut troubleKind = "Redis out"
	slackOut troubleKind = "Slack down"
)

// Aftermath is how long a trouble can show after it is over, by the library's own
// bounds: a question to Redis is given up after a second, an outage that ate a
// lease shows when the lease ends.
const aftermath = time.Second

// cause finds what went wrong for a process between two moments; "" for nothing.
// Redis' own troubles count for redisAfter longer.
func cause(list []trouble, process string, from, to time.Time, redisAfter time.Duration) troubleKind {
	found := troubleKind("")
	for _, t := range list {
		after, known := aftermath, rank[t.Kind] > 0
		if t.Kind == redisOut {
			after = redisAfter
		}
		if known && (found == "" || rank[t.Kind] < rank[found]) && t.hits(process, from, to, after) {
			found = t.Kind
		}
	}
	return found
}

// rank orders causes by how sure they are the one. Others explain nothing but
// themselves.
var rank = map[troubleKind]int{killed: 1, frozen: 2, stopped: 3, redisOut: 4, starved: 5}

func (t trouble) hits(process string, from, to time.Time, after time.Duration) bool {
	return (t.Process == "" || t.Process == process) && !t.From.After(to) && !t.Until.Add(after).Before(from)
}

// passed reports whether the LLM cache of a process let a call of that moment pass.
func passed(list []trouble, process string, at time.Time) bool {
	for _, t := range list {
		if t.Kind == passing && t.hits(process, at, at, aftermath) {
			return true
		}
	}
	return false
}

// told turns what workers told of themselves into troubles.
func told(entries []entry, end time.Time) []trouble {
	var list []trouble
	open := map[string]time.Time{}
	for _, e := range entries {
		switch e.Kind {
		case stalled:
			list = append(list, trouble{Kind: starved, Process: e.Process, From: e.At.Add(-time.Duration(e.MS) * time.Millisecond), Until: e.At})
		case opened:
			if _, ok := open[e.Process]; !ok {
				open[e.Process] = e.At
			}
		case closed:
			if from, ok := open[e.Process]; ok {
				list = append(list, trouble{Kind: passing, Process: e.Process, From: from, Until: e.At})
				delete(open, e.Process)
			}
		}
	}
	for p, from := range open {
		list = append(list, trouble{Kind: passing, Process: p, From: from, Until: end})
	}
	return list
}
