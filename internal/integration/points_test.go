package integration

import (
	"bytes"
	"context"
	"crypto/sha1"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/redis/go-redis/v9"
	"gorm.io/gorm"
)

// point is a place in a worker's work. A worker announces it and waits for what to
// do: so a test stops a process exactly there.
//
//	phase planning, step s1, end planning      in the handler
//	before begin, after begin                  the same for save, step, finish, abandon, ack
//	before SUCCESS, inside SUCCESS             the row's UPDATE, in its transaction
//	before sent, inside sent                   that of a notification
type point struct {
	PID     int
	What    string
	Run     string // run key; "" where it is not known
	Attempt int
	N       int // the how manyth of that kind; set by who receives it
}

type announce func(point) verb

// verb is what a worker is to do at a point.
type verb string

const (
	goOn        verb = ""
	failNow     verb = "fail"
	failForGood verb = "fail for good"
	panicNow    verb = "panic"
	drop        verb = "drop" // a command of Redis: it is not sent
)

// overHTTP announces the points of a child.
func overHTTP(url string) announce {
	client := &http.Client{} // without a timeout: a point may be held for long
	return func(p point) verb {
		p.PID = os.Getpid()
		b, _ := json.Marshal(p) // plain fields: cannot fail
		res, err := client.Post(url, "application/json", bytes.NewReader(b))
		if err != nil {
			return goOn // the test is over
		}
		defer func() { _ = res.Body.Close() }()
		v, _ := io.ReadAll(res.Body)
		return verb(v)
	}
}

// scriptHook announces the scripts that a client runs.
type scriptHook struct {
	at    announce
	names map[string]string // of scripts, by hash
}

// watched are the scripts whose points are announced. An acknowledgement is asynq's.
var watched = []string{"idempotent/begin", "idempotent/finish", "idempotent/abandon", "checkpoint/save", "checkpoint/step"}

// scripts reads the scripts of a package, by name.
func scripts(pkg string) (map[string]string, error) {
	files, err := filepath.Glob(filepath.Join("../..", pkg, "*.lua"))
	if err != nil {
		return nil, err
	}
	m := map[string]string{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		m[strings.TrimSuffix(filepath.Base(f), ".lua")] = string(b)
	}
	return m, nil
}

func newScriptHook(at announce) (*scriptHook, error) {
	h := &scriptHook{at: at, names: map[string]string{}}
	for _, w := range watched {
		pkg, name := filepath.Split(w)
		all, err := scripts(pkg)
		if err != nil {
			return nil, err
		}
		if all[name] == "" {
			return nil, fmt.Errorf("there is no script %s any more", w)
		}
		h.names[hash(all[name])] = name
	}
	return h, nil
}

func hash(script string) string {
	sum := sha1.Sum([]byte(script))
	return hex.EncodeToString(sum[:])
}

func (h *scriptHook) name(cmd redis.Cmder) string {
	args := cmd.Args()
	if len(args) < 4 {
		return ""
	}
	switch cmd.Name() {
	case "evalsha":
		if name := h.names[fmt.Sprint(args[1])]; name != "" {
			return name
		}
	case "eval":
		if name := h.names[hash(fmt.Sprint(args[1]))]; name != "" {
			return name
		}
	default:
		return ""
	}
	if len(args) > 6 && strings.HasSuffix(fmt.Sprint(args[3]), ":active") && strings.Contains(fmt.Sprint(args[6]), ":processed:") {
		return "ack" // asynq's "done"
	}
	return ""
}

func (h *scriptHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *scriptHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		name := h.name(cmd)
		if name == "" {
			return next(ctx, cmd)
		}
		if h.at(point{What: "before " + name}) == drop {
			cmd.SetErr(io.EOF)
			return io.EOF
		}
		// What was held is sent all the same, like a packet that comes late: then only
		// Redis itself is left to refuse it.
		err := next(context.WithoutCancel(ctx), cmd)
		if err == nil || err == redis.Nil {
			h.at(point{What: "after " + name})
		}
		return err
	}
}

func (h *scriptHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, c := range cmds {
			if name := h.name(c); name != "" {
				h.at(point{What: "before " + name})
			}
		}
		err := next(ctx, cmds)
		for _, c := range cmds {
			if name := h.name(c); name != "" && (c.Err() == nil || c.Err() == redis.Nil) {
				h.at(point{What: "after " + name})
			}
		}
		return err
	}
}

// announceWrites announces the writes of a status: before each, and after it while
// its transaction is still open.
func announceWrites(db *gorm.DB, at announce) {
	on := func(when string) func(*gorm.DB) {
		return func(tx *gorm.DB) {
			set, _ := tx.Statement.Dest.(map[string]any)
			switch s := fmt.Sprint(set["status"]); s {
			case "SUCCESS", "sending", "sent":
				at(point{What: when + s})
			}
		}
	}
	_ = db.Callback().Update().Before("gorm:update").Register("test:before", on("before "))
	_ = db.Callback().Update().After("gorm:update").Register("test:inside", on("inside "))
}
