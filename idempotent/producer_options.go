package idempotent

import (
	"reflect"
	"time"
	"unicode/utf8"

	"github.com/hibiken/asynq"

	"github.com/nexuscore/onceq/internal/runkey"
	"github.com/nexuscore/onceq/internal/setting"
)

type enqueueOptions struct {
	list  []asynq.Option
	queue string
	delay time.Duration // until it may begin: the record must live that much longer
}

// mostDelay keeps a mistaken time from keeping a record for ever.
const mostDelay = 366 * 24 * time.Hour

// check refuses what would make a run unsafe, and what asynq would refuse, before
// anything is written: what goes wrong after that is the way to Redis.
func (p *Producer) check(key string, t *asynq.Task, opts []asynq.Option) (enqueueOptions, error) {
	o := enqueueOptions{queue: "default"}
	if err := runkey.Validate(key); err != nil {
		return o, setting.Invalidf("%w", err)
	}
	switch {
	case t == nil:
		return o, setting.Invalidf("the task of run %q is nil", key)
	case blank(t.Type()):
		return o, setting.Invalidf("the task of run %q has no type", key)
	case !utf8.ValidString(t.Type()):
		return o, setting.Invalidf("the task of run %q has the type %q, which is not valid UTF-8", key, t.Type())
	case hasOptions(t):
		return o, setting.Invalidf("the task of run %q has options from asynq.NewTask, which cannot be read back: give them to this call", key)
	}
	for name, value := range t.Headers() {
		if !utf8.ValidString(name) || !utf8.ValidString(value) {
			return o, setting.Invalidf("the task of run %q has the header %q: %q, which is not valid UTF-8", key, name, value)
		}
	}
	bounded, retries := false, false
	for _, opt := range opts {
		if opt == nil {
			continue
		}
		if err := refuse(opt); err != nil {
			return o, err
		}
		switch opt.Type() {
		case asynq.QueueOpt:
			o.queue = opt.Value().(string)
		case asynq.TimeoutOpt, asynq.DeadlineOpt:
			bounded = true
		case asynq.MaxRetryOpt:
			retries = true
		case asynq.ProcessInOpt:
			o.delay = max(0, opt.Value().(time.Duration))
		case asynq.ProcessAtOpt:
			o.delay = max(0, time.Until(opt.Value().(time.Time)))
		}
		o.list = append(o.list, opt)
	}
	if o.delay > mostDelay {
		return o, setting.Invalidf("run %q is to begin in %v, at most %v are allowed", key, o.delay, mostDelay)
	}
	if !bounded {
		return o, setting.Invalidf("run %q has neither asynq.Timeout nor asynq.Deadline: asynq would end it after 30 minutes, silently", key)
	}
	if !retries {
		o.list = append(o.list, asynq.MaxRetry(p.g.policy.maxRetry))
	}
	return o, nil
}

func refuse(opt asynq.Option) error {
	switch opt.Type() {
	case asynq.TaskIDOpt:
		return setting.Invalidf("asynq.TaskID: the task ID is made from the run key")
	case asynq.UniqueOpt:
		return setting.Invalidf("asynq.Unique: with a task ID it leaves a lock behind when the enqueue is refused")
	case asynq.GroupOpt:
		return setting.Invalidf("asynq.Group: an aggregated task no longer names its run")
	case asynq.QueueOpt:
		switch name := opt.Value().(string); {
		case blank(name):
			return setting.Invalidf("asynq.Queue: the name is empty")
		case !utf8.ValidString(name):
			return setting.Invalidf("asynq.Queue: %q is not valid UTF-8", name)
		}
	case asynq.MaxRetryOpt:
		if n := opt.Value().(int); n < 1 {
			return setting.Invalidf("asynq.MaxRetry(%d): asynq archives such a task when its worker dies; use 1 or more, and Permanent for errors that must not be retried", n)
		}
	case asynq.TimeoutOpt:
		if d := opt.Value().(time.Duration); d < time.Second {
			return setting.Invalidf("asynq.Timeout(%v): asynq takes less than 1s for 30 minutes", d)
		}
	case asynq.DeadlineOpt:
		if at := opt.Value().(time.Time); !at.After(time.Now()) {
			return setting.Invalidf("asynq.Deadline(%v): it has passed", at.UTC().Format(time.RFC3339))
		}
	}
	return nil
}

// hasOptions: asynq keeps a task's own options private and offers no getter, and
// a task with more headers must be built anew. Dropping them silently would be worse
// than a look at the field's length.
func hasOptions(t *asynq.Task) bool {
	f := reflect.ValueOf(t).Elem().FieldByName("opts")
	return f.IsValid() && f.Kind() == reflect.Slice && f.Len() > 0
}
