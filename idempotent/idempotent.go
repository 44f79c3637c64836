package idempotent

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/nexuscore/onceq/internal/runkey"
	"github.com/nexuscore/onceq/internal/script"
	"github.com/nexuscore/onceq/internal/setting"
)

// Guard gives runs their leases and records their outcomes. One guard serves a
// process: its Middleware wraps handlers, its ServerConfig sets the server's retry
// policy, its heartbeat extends every lease of the process in one pipelined call.
//
// A guard is safe for concurrent use. It needs no closing: its heartbeat runs
// while attempts do and not otherwise. It never closes the Redis client.
type Guard struct {
	config
	rdb       redis.UniversalClient
	run       *script.Runner
	process   string
	indexed   bool // leases are indexed by the scripts that take them
	heart     heart
	client    *asynq.Client    // for deliveries that replace one
	inspector *asynq.Inspector // names the state of a task that is in the way
}

// New returns a guard on the Redis that asynq uses. It asks Redis once, for at
// most a second, whether its eviction policy can drop leases, and warns if so; a
// Redis that does not answer is no error here.
//
// The error wraps ErrInvalid and names the option, its value and what is allowed.
func New(rdb redis.UniversalClient, opts ...Option) (*Guard, error) {
	if setting.IsNil(rdb) {
		return nil, setting.Invalidf("New: the Redis client is nil")
	}
	g := &Guard{config: defaults(), rdb: rdb, run: script.NewRunner(rdb)}
	if err := setting.Apply(&g.config, opts); err != nil {
		return nil, err
	}
	if err := g.validate(); err != nil {
		return nil, err
	}
	g.process = newProcess(g.processLabel)
	g.indexed = !g.run.Sharded()
	g.heart.init(g)
	g.client = asynq.NewClientFromRedisClient(rdb)
	g.inspector = asynq.NewInspectorFromRedisClient(rdb)
	g.warnOfEviction()
	return g, nil
}

func newProcess(label string) string {
	if label == "" {
		host, _ := os.Hostname() // only a label
		label = host + "-" + strconv.Itoa(os.Getpid())
	}
	// Scripts make keys of it, so nothing in it may separate parts of a key.
	return strings.ReplaceAll(runkey.Escape(label), "%", "_") + "-" + randomID(4)
}

func randomID(bytes int) string {
	b := make([]byte, bytes)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// warnOfEviction warns when Redis may evict leases: users have lost some to volatile-*
// and allkeys-* policies.
func (g *Guard) warnOfEviction() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second) // New has no context, and a constructor must not hang
	defer cancel()
	got := make(chan string, 1)
	go func() { got <- g.rdb.Info(ctx, "memory").Val() }()
	var info string
	select {
	case info = <-got:
	case <-ctx.Done():
	}
	_, policy, ok := strings.Cut(info, "maxmemory_policy:")
	if !ok {
		return
	}
	policy, _, _ = strings.Cut(policy, "\r\n")
	if policy != "noeviction" {
		g.logger.Warn("onceq: this Redis may evict leases when memory is short; set maxmemory-policy to noeviction",
			"policy", policy)
	}
}

// Process is what this process is called in answers and logs.
func (g *Guard) Process() string { return g.process }

func (g *Guard) base(key string) string { return runkey.Base(g.prefix, key) }

func (g *Guard) log(key string) *slog.Logger { return g.logger.With("run", key) }
