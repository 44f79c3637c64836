package histories

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/redis/go-redis/v9"
)

const never = math.MaxInt64

// command says where a script has what the model wants to know, as indices of ARGV.
type command struct {
	name   string
	file   string
	ttl    int // 0 for none
	arg    int
	source string // what Redis is sent
}

func commands(t *testing.T, broken map[string]func(string) string) map[string]command {
	t.Helper()
	bySHA := map[string]command{}
	for _, c := range []command{
		{name: "begin", file: "idempotent/begin.lua", ttl: 2},
		{name: "extend", file: "idempotent/extend.lua", ttl: 2},
		{name: "finish", file: "idempotent/finish.lua", arg: 2},
		{name: "abandon", file: "idempotent/abandon.lua", arg: 8},
		{name: "save", file: "checkpoint/save.lua", ttl: 4, arg: 2},
		{name: "step", file: "checkpoint/step.lua", ttl: 6},
	} {
		b, err := os.ReadFile(filepath.Join("..", "..", c.file))
		if err != nil {
			t.Fatal(err)
		}
		c.source = string(b)
		sha := redis.NewScript(c.source).Hash()
		if change := broken[c.name]; change != nil {
			c.source = change(c.source)
			if redis.NewScript(c.source).Hash() == sha {
				t.Fatalf("%s is not broken by the change for it", c.file)
			}
		}
		bySHA[sha] = c
	}
	return bySHA
}

type recorded struct {
	porcupine.Operation
	ttl time.Duration
}

// recorder keeps what was sent to Redis and what it answered.
type recorder struct {
	commands map[string]command // by SHA of the library's own script
	start    time.Time

	mu  sync.Mutex // guards the fields below
	ops []recorded
	ids int
}

func (r *recorder) now() int64 { return time.Since(r.start).Nanoseconds() }

// sent is a command that may still be on its way.
type sent struct {
	input
	ttl  time.Duration
	call int64
}

func (r *recorder) begin(in input, ttl time.Duration) sent {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ids++
	in.id = r.ids
	return sent{in, ttl, r.now()}
}

func (r *recorder) end(client int, s sent, out output) {
	r.mu.Lock()
	defer r.mu.Unlock()
	op := recorded{porcupine.Operation{ClientId: client, Input: s.input, Output: out, Call: s.call, Return: r.now()}, s.ttl}
	if out.unknown {
		op.Return = never
	}
	r.ops = append(r.ops, op)
}

// recognise reads a call of one of the lease's scripts, and replaces the script
// where this history is about a broken one.
func (r *recorder) recognise(cmd redis.Cmder) (in input, ttl time.Duration, ok bool) {
	args := cmd.Args()
	if len(args) < 3 {
		return in, 0, false
	}
	text, _ := args[1].(string)
	switch strings.ToLower(fmt.Sprint(args[0])) {
	case "eval":
		text = redis.NewScript(text).Hash()
	case "evalsha":
	default:
		return in, 0, false
	}
	c, ok := r.commands[text]
	if !ok {
		return in, 0, false
	}
	args[0], args[1] = "eval", c.source
	keys, _ := strconv.Atoi(fmt.Sprint(args[2]))
	argv := func(i int) string { return fmt.Sprint(plain(args[2+keys+i])) }
	in = input{lock: fmt.Sprint(args[3]), name: c.name, owner: argv(1)}
	if c.arg > 0 {
		in.arg = argv(c.arg)
	}
	if c.ttl > 0 {
		ms, _ := strconv.Atoi(argv(c.ttl))
		ttl = time.Duration(ms) * time.Millisecond
	}
	return in, ttl, true
}

func plain(v any) any {
	if b, ok := v.([]byte); ok {
		return string(b)
	}
	return v
}

func answer(in input, cmd redis.Cmder) output {
	v, err := cmd.(*redis.Cmd).Result()
	if err != nil || v == nil { // nil: the connection failed before there was a reply
		return output{unknown: true}
	}
	if in.name != "begin" {
		return output{yes: v == int64(1)}
	}
	reply := v.([]any)
	out := output{kind: reply[0].(string)}
	if out.kind == "over" {
		return out
	}
	token := reply[1]
	if out.kind == "held" {
		token = reply[3]
	}
	out.token, _ = strconv.ParseInt(fmt.Sprint(token), 10, 64)
	if out.kind == "begun" {
		out.snap, _ = reply[5].(string)
	}
	return out
}

// link is what lies between one process and Redis. It loses replies and commands,
// sends commands twice, and holds them back for longer than a lease lives.
type link struct {
	*recorder
	client int

	mu      sync.Mutex // guards the fields below
	rng     *rand.Rand
	frozen  time.Time // nothing leaves before
	passing int
	cut     bool
	idle    chan struct{} // closed when cut and nothing passes
}

type fault int

const (
	fine fault = iota
	lost       // done, and nobody hears of it
	dropped
	doubled
)

// plan decides what happens to the next command, or pipeline of them.
func (l *link) plan(ttl time.Duration) (f fault, hold time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch n := l.rng.IntN(100); {
	case n < 2:
		f = lost
	case n < 3:
		f = dropped
	case n < 7:
		f = doubled
	case n < 10:
		hold = time.Duration(l.rng.Int64N(int64(ttl * 3 / 2)))
	}
	return f, max(hold, time.Until(l.frozen))
}

func (l *link) freeze(d time.Duration) {
	l.mu.Lock()
	l.frozen = time.Now().Add(d)
	l.mu.Unlock()
}

func (l *link) enter() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		return false
	}
	l.passing++
	return true
}

func (l *link) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.passing--; l.cut && l.passing == 0 {
		close(l.idle)
	}
}

// close lets nothing more pass, and waits for what does: callers may have given it up,
// and what it did is part of the history.
func (l *link) close() {
	l.mu.Lock()
	l.cut, l.idle = true, make(chan struct{})
	if l.passing == 0 {
		close(l.idle)
	}
	l.mu.Unlock()
	<-l.idle
}

func (l *link) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (l *link) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return l.pass([]redis.Cmder{cmd}, func() error { return next(ctx, cmd) })
	}
}

func (l *link) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return l.pass(cmds, func() error { return next(ctx, cmds) })
	}
}

func (l *link) pass(cmds []redis.Cmder, send func() error) error {
	ours := false
	inputs := make([]input, len(cmds))
	ttls := make([]time.Duration, len(cmds))
	for i, cmd := range cmds {
		var ok bool
		inputs[i], ttls[i], ok = l.recognise(cmd)
		ours = ours || ok
	}
	if !ours {
		return send()
	}
	if !l.enter() {
		for _, cmd := range cmds {
			cmd.SetErr(io.ErrUnexpectedEOF)
		}
		return io.ErrUnexpectedEOF
	}
	defer l.leave()
	f, hold := l.plan(leaseTTL)
	time.Sleep(hold) // deaf to contexts, as a frozen process is
	if f == doubled {
		_ = l.once(cmds, inputs, ttls, fine, send)
	}
	return l.once(cmds, inputs, ttls, f, send)
}

func (l *link) once(cmds []redis.Cmder, inputs []input, ttls []time.Duration, f fault, send func() error) error {
	flying := make([]sent, len(cmds))
	for i, in := range inputs {
		if in.name != "" {
			flying[i] = l.begin(in, ttls[i])
		}
	}
	var err error
	if f != dropped {
		for _, cmd := range cmds {
			cmd.SetErr(nil)
			if c, ok := cmd.(*redis.Cmd); ok {
				c.SetVal(nil) // that of the first, where it is sent twice
			}
		}
		err = send()
	}
	if f == dropped || f == lost {
		err = io.ErrUnexpectedEOF
		for _, cmd := range cmds {
			cmd.SetErr(err)
		}
	}
	for i, cmd := range cmds {
		if inputs[i].name != "" {
			l.end(l.client, flying[i], answer(inputs[i], cmd))
		}
	}
	return err
}
