// Package breaker decides when a layer that can live without Redis stops
// asking it for a while.
package breaker

import (
	"context"
	"log/slog"
	"time"

	"github.com/sony/gobreaker/v2"
)

// Breaker opens after consecutive failures and asks again after a pause. It is
// safe for concurrent use.
type Breaker struct {
	cb *gobreaker.CircuitBreaker[struct{}]
}

// Config of a breaker; the zero value of a field means its default.
type Config struct {
	Name     string        // the layer, as its log lines call it
	Failures uint32        // consecutive failures that open it; 3
	Open     time.Duration // how long it stays open; 60 s
	Logger   *slog.Logger  // one line per transition; slog.Default()
	// Trouble says which errors count; nil counts all. An answer from Redis such
	// as "lost" is no trouble.
	Trouble func(error) bool
}

// New returns a closed breaker.
func New(c Config) *Breaker {
	if c.Failures == 0 {
		c.Failures = 3
	}
	if c.Open == 0 {
		c.Open = time.Minute
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return &Breaker{gobreaker.NewCircuitBreaker[struct{}](gobreaker.Settings{
		Name:        c.Name,
		MaxRequests: 1,
		Timeout:     c.Open,
		ReadyToTrip: func(n gobreaker.Counts) bool { return n.ConsecutiveFailures >= c.Failures },
		IsSuccessful: func(err error) bool {
			return err == nil || c.Trouble != nil && !c.Trouble(err)
		},
		OnStateChange: func(name string, from, to gobreaker.State) {
			level := slog.LevelInfo
			if to == gobreaker.StateOpen {
				level = slog.LevelWarn
			}
			c.Logger.Log(context.Background(), level, "onceq: breaker changed", // a transition belongs to no caller
				"layer", name, "from", from.String(), "to", to.String(), "open_for", c.Open)
		},
	})}
}

// Do calls fn unless the breaker is open; then it returns ErrOpen.
func (b *Breaker) Do(fn func() error) error {
	_, err := b.cb.Execute(func() (struct{}, error) { return struct{}{}, fn() })
	if err == gobreaker.ErrTooManyRequests {
		return ErrOpen
	}
	return err
}

// ErrOpen is returned without a call while the breaker is open.
var ErrOpen = gobreaker.ErrOpenState
