package histories

import (
	"fmt"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// input is one command on a run's lease.
type input struct {
	lock  string // the run, by its lock's key
	name  string // begin, extend, save, step, finish, abandon; expire, evict
	owner string
	arg   string // save: the snapshot; finish: the outcome; abandon: not "0" makes a begin that comes late void
	id    int    // of the command; expire: of the one whose TTL passes
}

// output is what Redis answered.
type output struct {
	unknown bool   // no answer: it was done or it was not
	kind    string // begin: begun, held, succeeded, failed, or over for an owner that has ended
	token   int64  // begin
	snap    string // begin
	yes     bool   // all others
}

// register is what Redis is supposed to be: one holder at most, a token that only
// grows, the last snapshot, and how the last attempt ended.
type register struct {
	holder string
	ttlOf  int // the command that set the TTL last
	token  int64
	fuzzy  bool // an unanswered begin took a token above it
	state  string
	owner  string // of the last attempt
	snap   string
	void   string // owners whose begin may no longer take effect
}

// next lists what the register may be after in was answered with out; none when
// no correct lease answers so.
func (r register) next(in input, out output) []register {
	mine := r.holder == in.owner
	done := r
	switch in.name {
	case "begin":
		return r.begin(in, out)
	case "expire":
		if r.holder != "" && r.ttlOf == in.id {
			r.holder = ""
		}
		return []register{r}
	case "evict":
		done.holder = ""
		if out.yes != (r.holder != "") {
			return nil
		}
		return []register{done}
	case "extend", "step":
		done.ttlOf = in.id
	case "save":
		done.ttlOf, done.snap = in.id, in.arg
	case "abandon", "finish":
		done.holder, done.state = "", "retrying"
		if in.name == "finish" {
			done.state = in.arg
		}
		if done.state == "succeeded" {
			done.snap = ""
		}
		if !mine && r.owner == in.owner && r.state == done.state {
			mine, done = true, r // its first command did it
		}
		if !mine && in.name == "abandon" && in.arg != "0" {
			return r.voided(in, out)
		}
	default:
		panic(fmt.Sprintf("no command %q", in.name))
	}
	switch {
	case out.unknown && mine:
		return []register{done, r}
	case out.unknown:
		return []register{r}
	case out.yes != mine:
		return nil
	case mine:
		return []register{done}
	}
	return []register{r}
}

func (r register) voided(in input, out output) []register {
	done := r
	if !strings.Contains(r.void, in.owner) {
		done.void += in.owner + " "
	}
	switch {
	case out.unknown:
		return []register{done, r}
	case out.yes:
		return nil
	}
	return []register{done}
}

func (r register) begin(in input, out output) []register {
	var kind string
	switch {
	case r.holder != in.owner && (r.owner == in.owner || strings.Contains(r.void, in.owner)):
		if out.unknown || out.kind == "over" {
			return []register{r}
		}
		return nil
	case r.holder != "" && r.holder != in.owner:
		kind = "held"
	case r.holder == "" && (r.state == "succeeded" || r.state == "failed"):
		kind = r.state
	default:
		kind = "begun"
	}
	done := r
	done.holder, done.owner, done.state, done.ttlOf = in.owner, in.owner, "running", in.id
	if out.unknown {
		if kind != "begun" {
			return []register{r}
		}
		done.fuzzy = done.fuzzy || r.holder == ""
		return []register{done, r}
	}
	if out.kind != kind {
		return nil
	}
	if kind != "begun" || r.holder == in.owner { // the token there is
		if out.token != r.token && !r.fuzzy || out.token < r.token {
			return nil
		}
	} else if out.token <= r.token {
		return nil
	}
	if kind != "begun" {
		r.token, r.fuzzy = out.token, false
		return []register{r}
	}
	if out.snap != r.snap {
		return nil
	}
	done.token, done.fuzzy = out.token, false
	return []register{done}
}

func (i input) String() string {
	if i.name == "expire" {
		return fmt.Sprintf("TTL of #%d passes", i.id)
	}
	return fmt.Sprintf("#%d %s(%.6s %s)", i.id, i.name, i.owner, i.arg)
}

func (o output) String() string {
	switch {
	case o.unknown:
		return "?"
	case o.kind != "":
		return fmt.Sprintf("%s %d %q", o.kind, o.token, o.snap)
	}
	return fmt.Sprint(o.yes)
}

// model checks each run by itself.
var model = (&porcupine.NondeterministicModel{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		runs := map[string][]porcupine.Operation{}
		for _, op := range history {
			lock := op.Input.(input).lock
			runs[lock] = append(runs[lock], op)
		}
		var parts [][]porcupine.Operation
		for _, ops := range runs {
			parts = append(parts, ops)
		}
		return parts
	},
	Init: func() []any { return []any{register{}} },
	Step: func(state, in, out any) []any {
		var states []any
		for _, s := range state.(register).next(in.(input), out.(output)) {
			states = append(states, s)
		}
		return states
	},
	Equal: func(a, b any) bool { return a.(register) == b.(register) },
	DescribeOperation: func(in, out any) string {
		return fmt.Sprintf("%v -> %v", in.(input), out.(output))
	},
	DescribeState: func(s any) string { return fmt.Sprintf("%+v", s) },
}).ToModel()

// slack covers that Redis counts milliseconds, by a clock that is not ours.
const slack = 10 * time.Millisecond

// withExpiry adds the moments at which leases expire. They are operations of
// nobody: that of a command which was sent at c and answered at r falls between
// c+TTL and r+TTL. A lease that ends early, or lives on, has no place for it.
func withExpiry(ops []recorded) []porcupine.Operation {
	history := make([]porcupine.Operation, 0, 2*len(ops))
	for i, op := range ops {
		history = append(history, op.Operation)
		in := op.Input.(input)
		if op.ttl == 0 || !op.Output.(output).mayHaveDone() || extended(ops[i+1:], op) {
			continue
		}
		expiry := porcupine.Operation{
			ClientId: 0, Input: input{lock: in.lock, name: "expire", id: in.id}, Output: output{},
			Call: op.Call + int64(op.ttl-slack), Return: never,
		}
		if !op.Output.(output).unknown {
			expiry.Return = op.Return + int64(op.ttl+slack)
		}
		history = append(history, expiry)
	}
	return history
}

func (o output) mayHaveDone() bool {
	return o.unknown || o.yes || o.kind == "begun"
}

// extended reports whether a later command of the same owner surely replaced op's
// TTL before it could pass. It only saves the checker work.
func extended(later []recorded, op recorded) bool {
	in := op.Input.(input)
	for _, l := range later {
		n, out := l.Input.(input), l.Output.(output)
		if n.lock == in.lock && n.owner == in.owner && l.ttl > 0 && out.mayHaveDone() && !out.unknown &&
			l.Call > op.Return && l.Return < op.Call+int64(op.ttl-slack) {
			return true
		}
	}
	return false
}
