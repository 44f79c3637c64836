package idempotent

import (
	_ "embed"
	"fmt"

	"github.com/redis/go-redis/v9"
)

var (
	//go:embed begin.lua
	beginLua string
	//go:embed extend.lua
	extendLua string
	//go:embed finish.lua
	finishLua string
	//go:embed abandon.lua
	abandonLua string
	//go:embed reserve.lua
	reserveLua string
	//go:embed release.lua
	releaseLua string
	//go:embed rerun.lua
	rerunLua string
	//go:embed tell.lua
	tellLua string

	beginScript   = redis.NewScript(beginLua)
	extendScript  = redis.NewScript(extendLua)
	finishScript  = redis.NewScript(finishLua)
	abandonScript = redis.NewScript(abandonLua)
	reserveScript = redis.NewScript(reserveLua)
	releaseScript = redis.NewScript(releaseLua)
	rerunScript   = redis.NewScript(rerunLua)
	tellScript    = redis.NewScript(tellLua)
)

// errNoAnswer is a reply that no script of ours gives.
var errNoAnswer = fmt.Errorf("%w: unexpected reply", ErrUnavailable)

// reply reads the array a script returned. Every getter gives a zero value for
// what is not there: a script and its reader are one program.
type reply []any

func (r reply) str(i int) string {
	if i < len(r) {
		if s, ok := r[i].(string); ok {
			return s
		}
	}
	return ""
}

func (r reply) num(i int) int64 {
	if i < len(r) {
		switch v := r[i].(type) {
		case int64:
			return v
		case string:
			return atoi(v)
		}
	}
	return 0
}

// bytes is nil when the script returned none.
func (r reply) bytes(i int) []byte {
	if i < len(r) {
		if s, ok := r[i].(string); ok {
			return []byte(s)
		}
	}
	return nil
}
