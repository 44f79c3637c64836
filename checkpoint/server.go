package checkpoint

import (
	"log/slog"
	"sync/atomic"

	"github.com/nexuscore/onceq/internal/breaker"
)

// server is what is known of one of the servers of a store: of a cluster or a ring one
// may be dead while runs on the others go on.
type server struct {
	brk      *breaker.Breaker
	logger   *slog.Logger
	troubled atomic.Bool
}

// server returns the server that the client would ask for a key.
func (s *RedisStore) server(key string) *server {
	name := s.run.Server(key)
	return s.servers.Of(name, func() *server {
		one := &server{brk: breaker.New(s.brk), logger: s.cfg.logger}
		if name != "" {
			one.logger = one.logger.With("server", name)
		}
		return one
	})
}

// note logs when a server begins to fail and when it is well again: one line each,
// however many runs meet it and however often the breaker tries.
func (s *server) note(err error) {
	switch {
	case err != nil && s.troubled.CompareAndSwap(false, true):
		s.logger.Warn("onceq: checkpoints pass through, redis does not answer as it should", "err", err)
	case err == nil && s.troubled.Load() && s.troubled.CompareAndSwap(true, false):
		s.logger.Info("onceq: checkpoints are stored again")
	}
}
