package script

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/nexuscore/onceq/internal/lease"
)

// LookAround asks a cluster client to learn anew which node has which slots, when one
// did not answer. By itself it does so when a node redirects it, which a dead one
// cannot, and once a minute: leases do not live that long. The client does it in the
// background, and not more often than a few times a second. It is for commands that
// do not go through the runner.
func (r *Runner) LookAround(ctx context.Context, err error) {
	if cluster, ok := r.rdb.(interface{ ReloadState(context.Context) }); ok && noReply(err) {
		cluster.ReloadState(ctx)
	}
}

// noReply reports whether err is about the way to Redis, not from it.
func noReply(err error) bool {
	var reply redis.Error
	return err != nil && !errors.As(err, &reply)
}

// classify makes one answer of every error: cannot tell. An error reply is no other, for
// a script may have written before it failed, and what is wrong (memory, a failover, an
// ACL) is often put right while the run waits. The reply stays visible.
func classify(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", lease.ErrUnavailable, err)
}

func result(cmd *redis.Cmd) (any, error) {
	v, err := cmd.Result()
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	return v, classify(err)
}
