package llmcache

import (
	"context"
	"errors"

	"github.com/nexuscore/onceq/internal/breaker"
	"github.com/nexuscore/onceq/internal/script"
)

// servers are those of a store: of a cluster or a ring one may be dead while calls
// whose answers are on the others go on.
type servers struct {
	name  func(key string) string // of the server that has a key; nil where there is one
	cfg   breaker.Config
	known script.PerServer[server]
}

type server struct {
	*breaker.Breaker
	writing chan struct{} // has one while a flush of ledgers is under way, see tally
}

func (c *Cache) initServers(store Store) {
	if s, ok := store.(*redisStore); ok {
		c.servers.name = s.run.Server
	}
	c.servers.cfg = breaker.Config{
		Name: "llmcache", Logger: c.logger,
		Trouble: func(err error) bool { return !errors.Is(err, context.Canceled) },
	}
}

// of returns the server that has a key.
func (s *servers) of(key string) *server {
	name := ""
	if s.name != nil {
		name = s.name(key)
	}
	return s.known.Of(name, func() *server {
		cfg := s.cfg
		if name != "" {
			cfg.Logger = cfg.Logger.With("server", name)
		}
		return &server{breaker.New(cfg), make(chan struct{}, 1)}
	})
}

// ask puts a question about a key to the store: bounded, and not at all while the
// server that has it is in trouble.
func (c *Cache) ask(ctx context.Context, key string, fn func(context.Context) error) error {
	return c.servers.of(key).Do(func() error {
		ctx, cancel := context.WithTimeout(ctx, c.timeout)
		defer cancel()
		return fn(ctx)
	})
}
