package modelserver

import (
	"flag"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Flags are command-line settings of a server; see [RegisterFlags].
type Flags struct {
	latency latency
	samples bool
	faults  []planned
}

// RegisterFlags defines on fs, for a program that runs a server of its own:
//
//	-model-latency 20ms         wait before each answer
//	-model-chunk-latency 1ms    wait before each chunk of a streamed answer
//	-model-samples              number the answers to equal requests
//	-model-fail SPEC            may be repeated; see below
//
// SPEC is kind[:argument][@phase[/task]][*n]: "rate_limit:2s*3" (three times 429,
// Retry-After 2), "error:503@planning", "cut:500@implementation/code",
// "truncate:500", "hang", "drop".
func RegisterFlags(fs *flag.FlagSet) *Flags {
	f := &Flags{}
	fs.DurationVar(&f.latency.call, "model-latency", 0, "scripted model: wait before each answer")
	fs.DurationVar(&f.latency.chunk, "model-chunk-latency", 0, "scripted model: wait before each chunk of a streamed answer")
	fs.BoolVar(&f.samples, "model-samples", false, "scripted model: number the answers to equal requests")
	fs.Func("model-fail", "scripted model: fail as told, `kind[:argument][@phase[/task]][*n]`; kinds: "+kindNames(), func(spec string) error {
		p, err := parseFault(spec)
		f.faults = append(f.faults, p)
		return err
	})
	return f
}

// Options returns what the flags say, once they are parsed.
func (f *Flags) Options() []Option {
	opts := []Option{WithLatency(f.latency.call, f.latency.chunk)}
	if f.samples {
		opts = append(opts, WithSamples())
	}
	for _, p := range f.faults {
		opts = append(opts, WithFault(p.n, p.f))
	}
	return opts
}

func parseFault(spec string) (planned, error) {
	p := planned{n: 1}
	rest, times, counted := strings.Cut(spec, "*")
	rest, where, _ := strings.Cut(rest, "@")
	kind, arg, hasArg := strings.Cut(rest, ":")
	p.f.Kind = Kind(kind)
	p.f.Phase, p.f.Task, _ = strings.Cut(where, "/")
	var err error
	if counted {
		if p.n, err = strconv.Atoi(times); err != nil {
			return p, fmt.Errorf("fault %q: %q is no number of times", spec, times)
		}
	}
	switch {
	case !hasArg:
	case p.f.Kind == KindRateLimit:
		p.f.RetryAfter, err = time.ParseDuration(arg)
	case p.f.Kind == KindError:
		p.f.Status, err = strconv.Atoi(arg)
	case p.f.Kind == KindCut || p.f.Kind == KindTruncate:
		p.f.Bytes, err = strconv.Atoi(arg)
	default:
		return p, fmt.Errorf("fault %q: %q takes no argument", spec, kind)
	}
	if err != nil {
		return p, fmt.Errorf("fault %q: argument %q: %w", spec, arg, err)
	}
	return p, p.check()
}
