package llmcache

import "github.com/redis/go-redis/v9"

// NewRedisStore is the store that New makes.
func NewRedisStore(rdb redis.UniversalClient) Store { return newRedisStore(rdb) }
