package script

import (
	"context"
	"sync"

	"github.com/redis/go-redis/v9"
)

// PerServer keeps one T for each server that was ever asked: of a cluster or a ring one
// may be dead while the others answer. The zero value is empty; it is safe for concurrent
// use.
type PerServer[T any] struct{ known sync.Map }

// Of returns what is kept for the server of that name. fresh makes it; when several ask at
// once, what one of them made is everybody's.
func (p *PerServer[T]) Of(name string, fresh func() *T) *T {
	if one, ok := p.known.Load(name); ok {
		return one.(*T)
	}
	one, _ := p.known.LoadOrStore(name, fresh())
	return one.(*T)
}

// Len is for how many servers something is kept.
func (p *PerServer[T]) Len() (n int) {
	p.known.Range(func(any, any) bool { n++; return true })
	return n
}

// servers returns what says which of a client's servers has a key, without asking any
// of them; nil for a client with one. "" means that the client does not know yet.
func servers(rdb redis.UniversalClient) func(key string) string {
	known, cancel := context.WithCancel(context.Background())
	cancel() // a client that would have to ask first gives up
	var find func(key string) (*redis.Client, error)
	switch c := rdb.(type) {
	case interface {
		MasterForKey(context.Context, string) (*redis.Client, error)
	}:
		find = func(key string) (*redis.Client, error) { return c.MasterForKey(known, key) }
	case interface {
		GetShardClientForKey(string) (*redis.Client, error)
	}:
		find = c.GetShardClientForKey
	default:
		return nil
	}
	return func(key string) string {
		server, err := find(key)
		if err != nil {
			return ""
		}
		return server.Options().Addr
	}
}
