package redistest

import (
	"context"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

func TestLeaks(t *testing.T) {
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() { <-stop; close(ended) }()
	if err := leaks(); err == nil || !strings.Contains(err.Error(), "TestLeaks") {
		t.Errorf("leaks() = %v, want the goroutine of this test", err)
	}
	close(stop)
	<-ended
	// A client that dials a dead server to the end of its life.
	addr, err := freeAddr()
	if err != nil {
		t.Fatal(err)
	}
	c := redis.NewClient(&redis.Options{Addr: addr, PoolSize: 1, MaxRetries: -1, DialerRetries: 1})
	for range 3 {
		_ = c.Ping(context.WithoutCancel(t.Context())).Err()
	}
	_ = c.Close()
	if err := leaks(); err != nil {
		t.Errorf("leaks() = %v after the client was closed, want none", err)
	}
}
