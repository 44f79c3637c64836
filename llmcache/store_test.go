package llmcache_test

import (
	"testing"

	"github.com/nexuscore/onceq/internal/redistest"
	"github.com/nexuscore/onceq/llmcache"
	"github.com/nexuscore/onceq/llmcache/llmcachetest"
)

func TestRedisStore(t *testing.T) {
	t.Parallel()
	server := redistest.Real(t)
	llmcachetest.TestStore(t, func(t *testing.T) llmcache.Store {
		rdb := server.Client()
		if err := rdb.FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		return llmcache.NewRedisStore(rdb)
	})
}

func TestMiniredisStore(t *testing.T) {
	llmcachetest.TestStoreInBubble(t, func(t *testing.T) llmcache.Store {
		_, rdb := redistest.Bubble(t)
		return llmcache.NewRedisStore(rdb)
	})
}

func TestMemoryStore(t *testing.T) {
	llmcachetest.TestStoreInBubble(t, func(*testing.T) llmcache.Store { return llmcache.NewMemoryStore() })
}
