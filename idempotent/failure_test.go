package idempotent_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/nexuscore/onceq/idempotent"
)

// asynq stores what an error says as UTF-8 or not at all: a task whose error is not
// would stay active, be recovered and delivered again for ever.
func TestErrorsThatAsynqCannotStore(t *testing.T) {
	for name, says := range map[string]string{
		"not UTF-8":                   "the model said \xff\xfe",
		"cut in the middle of a rune": "the model said " + "日本語"[:4],
		"long":                        "x" + strings.Repeat("ü", 600),
		"very long":                   strings.Repeat("<html>", 100_000),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				boom := errors.New(says)
				h := func(_ context.Context, t *asynq.Task) error {
					if string(t.Payload()) == "once more" {
						return boom
					}
					return idempotent.Permanent(boom)
				}
				w.serve(w.guard, h)
				if err := w.enqueue("k", "x"); err != nil {
					t.Fatal(err)
				}
				if err := w.enqueue("again", "once more", asynq.MaxRetry(1)); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				second := asynq.NewTaskWithHeaders(taskType, []byte("x"), map[string]string{"onceq-key": "k"})
				if _, err := w.client.Enqueue(second, asynq.TaskID("second")); err != nil {
					t.Fatal(err)
				}
				time.Sleep(5 * time.Minute)
				if got := w.tasks(); !slices.Equal(got, []string{"again archived", "k archived", "second archived"}) {
					t.Errorf("tasks %v, want all in the archive", got)
				}
				info, err := w.insp.GetTaskInfo("default", "k")
				if err != nil || !strings.HasPrefix(info.LastErr, says[:10]) || len(info.LastErr) > 4100 {
					t.Errorf("asynq was told %d bytes, %.40q, %v", len(info.LastErr), info.LastErr, err)
				}
			})
		})
	}
}

// What asynq reads of an error changes, what a host can ask of it does not.
func TestErrorsStayWhatTheyAre(t *testing.T) {
	w := newWorldGuard(t)
	boom := fmt.Errorf("\xff: %w", context.DeadlineExceeded)
	err := direct(t.Context(), w, "k", func(context.Context, *asynq.Task) error { return idempotent.Permanent(boom) })
	if !errors.Is(err, boom) || !errors.Is(err, asynq.SkipRetry) || err.Error() != "\uFFFD: context deadline exceeded" {
		t.Errorf("%q; is boom: %v; is SkipRetry: %v", err, errors.Is(err, boom), errors.Is(err, asynq.SkipRetry))
	}
}

// The handler succeeded on the last try, and Redis does not take the outcome: the task
// is delivered again, it does not go to the archive.
func TestSuccessThatCannotBeRecordedIsNotArchived(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := w.withFaults()
		_, finishes := script(t, "finish.lua")
		w.rdb.AddHook(deaf{script: "extend.lua", on: "{k}"}) // nor can the lease be proven for long
		var n counter
		w.serve(w.guard, func(context.Context, *asynq.Task) error {
			if n.add() == 1 {
				return errors.New("uses the only retry")
			}
			if n.get() == 2 {
				f.on(func(cmd redis.Cmder, send func() error) error {
					if finishes(cmd) {
						return errCut
					}
					return send()
				})
			}
			return nil
		})
		if err := w.enqueue("k", "x", asynq.MaxRetry(1)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(40 * time.Second)
		if got := w.tasks(); !slices.Equal(got, []string{"k~r" + strconv.FormatInt(w.lookup("k").Token, 10) + " retry"}) && n.get() == 2 {
			t.Errorf("tasks %v, want another delivery", got)
		}
		f.off()
		time.Sleep(2 * time.Minute)
		if r := w.lookup("k"); r.State != idempotent.StateSucceeded {
			t.Errorf("%+v after %d executions, want succeeded; tasks %v", r, n.get(), w.tasks())
		}
	})
}
