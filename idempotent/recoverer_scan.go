package idempotent

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/nexuscore/onceq/internal/runkey"
	"github.com/nexuscore/onceq/internal/script"
)

var (
	//go:embed recover_scan.lua
	scanLua string
	//go:embed recover_judge.lua
	judgeLua string
	//go:embed recover_index.lua
	indexLua string

	scanScript  = redis.NewScript(scanLua)
	judgeScript = redis.NewScript(judgeLua)
	indexScript = redis.NewScript(indexLua)
)

const (
	// goneFor is how far apart the two looks are that find a process gone.
	goneFor = 2 * time.Second
	// claimFor is how long a recoverer has for a run before another tries.
	claimFor = 3 * time.Second
)

// entry is a place in the index that fell due.
type entry struct {
	process string // whose lease it was; "" for a run that waits
	dead    bool   // that process is
	member  string // the run key, escaped
	score   string
}

type sight struct {
	presence string
	due      time.Duration // negative: nothing
	entries  []entry
}

func (r *Recoverer) scan(ctx context.Context) (sight, error) {
	g := r.g
	ctx, cancel := context.WithTimeout(ctx, g.opTimeout)
	defer cancel()
	mode := presenceOff
	if r.presence != nil {
		mode = r.presence.mode()
	}
	v, err := g.run.Run(ctx, scanScript, []string{processesKey(g.prefix), presentKey(g.prefix), waitingKey(g.prefix)},
		processLeasesKey(g.prefix, ""), aliveChannel(g.prefix, ""), g.process, mode, r.batch, ms(g.retention), ms(goneFor))
	if err != nil {
		return sight{}, err
	}
	list, _ := v.([]any)
	f := reply(list)
	if len(f) < 2 {
		return sight{}, fmt.Errorf("scan: %w %v", errNoAnswer, v)
	}
	s := sight{presence: f.str(0), due: time.Duration(f.num(1)) * time.Millisecond}
	for i := 2; i+3 < len(f); i += 4 {
		s.entries = append(s.entries, entry{process: f.str(i), dead: f.str(i+1) == "1", member: f.str(i + 2), score: f.str(i + 3)})
	}
	return s, nil
}

// move says where an entry belongs after it was looked at.
type move struct {
	entry
	to      string // a process, "" for runs that wait, nowhere
	in      time.Duration
	claimed bool // by us: others may have moved it to the end of our claim meanwhile
}

const nowhere = "-" // no process is called so: their names end in random digits

// tend judges the runs behind the entries, helps those that need it, and puts each
// entry where it belongs. An entry is moved last: whoever dies before leaves it to
// the next look.
func (r *Recoverer) tend(ctx context.Context, entries []entry) {
	if len(entries) == 0 {
		return
	}
	g := r.g
	calls := make([]script.Call, 0, len(entries))
	keys := make([]string, 0, len(entries))
	moves := make([]move, 0, len(entries))
	kept := entries[:0]
	for _, e := range entries {
		key, err := runkey.Unescape(e.member)
		if err != nil { // nobody of ours wrote it
			moves = append(moves, move{entry: e, to: nowhere})
			continue
		}
		dead := ""
		if e.dead {
			dead = e.process
		}
		base := g.base(key)
		keys, kept = append(keys, key), append(kept, e)
		calls = append(calls, script.Call{
			Script: judgeScript, Keys: []string{runkey.Lock(base), recordKey(base)},
			Args: []any{dead, r.id, ms(claimFor), ms(g.ttl)},
		})
	}
	judging, cancel := context.WithTimeout(ctx, g.opTimeout)
	results := g.run.RunAll(judging, calls)
	cancel()
	var unknown error
	unjudged, silent := 0, map[string]bool{} // queues of which asynq's keys do not answer
	for i, res := range results {
		if ctx.Err() != nil {
			return
		}
		if res.Err != nil { // moved all the same: it must not keep its place before those that can be judged
			unknown = res.Err
			unjudged++
			moves = append(moves, move{entry: kept[i], in: r.interval})
			continue
		}
		list, _ := res.Value.([]any)
		moves = append(moves, r.act(ctx, keys[i], kept[i], reply(list), silent))
	}
	if unjudged > 0 {
		g.logger.Warn("onceq: orphaned runs not judged, they are looked at again", "runs", unjudged, "in", r.interval, "err", unknown)
	}
	r.put(ctx, moves)
}

// act follows a judgement and returns where the run's entry belongs now.
func (r *Recoverer) act(ctx context.Context, key string, e entry, f reply, silent map[string]bool) move {
	switch f.str(0) {
	case "settled":
		return move{entry: e, to: nowhere}
	case "held": // a step may have extended the lease past its entry, or the run went on elsewhere
		if f.str(1) == "" {
			return move{entry: e, in: lookAgain}
		}
		return move{entry: e, to: f.str(1), in: time.Duration(f.num(2)) * time.Millisecond}
	case "resting":
		return move{entry: e, in: time.Duration(f.num(1))*time.Millisecond + lookAfter}
	case "claimed":
		return move{entry: e, in: time.Duration(f.num(1)) * time.Millisecond}
	}
	o := newOrphan(key, e, f)
	if silent[o.queue] { // each question would take its time, and other queues answer
		return move{entry: e, in: r.interval, claimed: true}
	}
	in, err := r.help(ctx, o)
	switch {
	case err != nil:
		silent[o.queue] = errors.Is(err, context.DeadlineExceeded)
		r.g.log(key).Warn("onceq: orphaned run not delivered again, it is tried once more", "token", o.token, "queue", o.queue,
			"in", r.interval, "err", err)
		return move{entry: e, in: r.interval, claimed: true}
	case in == 0:
		return move{entry: e, to: nowhere}
	}
	return move{entry: e, in: in, claimed: true}
}

func (r *Recoverer) put(ctx context.Context, moves []move) {
	if len(moves) == 0 {
		return
	}
	g := r.g
	args := []any{processLeasesKey(g.prefix, ""), ms(g.retention)}
	for _, m := range moves {
		slack := int64(0)
		if m.claimed {
			slack = ms(claimFor)
		}
		args = append(args, m.process, m.member, m.score, m.to, ms(m.in), slack)
	}
	ctx, cancel := context.WithTimeout(ctx, g.opTimeout)
	defer cancel()
	if _, err := g.run.Run(ctx, indexScript, []string{waitingKey(g.prefix), processesKey(g.prefix)}, args...); err != nil {
		g.logger.Warn("onceq: index of leases not updated, the same runs are looked at again", "err", err)
	}
}
