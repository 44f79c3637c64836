package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/alicebob/miniredis/v2"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/redis/go-redis/v9"
	"gorm.io/driver/mysql"
	"gorm.io/driver/postgres"
	"gorm.io/driver/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/nexuscore/onceq/internal/modelserver"
	"github.com/nexuscore/onceq/notify"
)

// cleanup runs what was deferred, the last first.
type cleanup []func()

func (c *cleanup) add(f func()) { *c = append(*c, f) }

func (c *cleanup) run() {
	for i := len(*c) - 1; i >= 0; i-- {
		(*c)[i]()
	}
}

// openRedis connects, or starts a Redis in this process: then its contents end
// with it, and the sweeper dispatches what the table still calls unfinished.
func openRedis(ctx context.Context, c Config, log *slog.Logger, done *cleanup) (redis.UniversalClient, error) {
	address := c.RedisURL
	if address == "" {
		m := miniredis.NewMiniRedis()
		m.ClockTTL(true) // without it no lease would ever expire
		if err := m.Start(); err != nil {
			return nil, fmt.Errorf("embedded Redis: %w", err)
		}
		done.add(m.Close)
		address = "redis://" + m.Addr()
		log.Info("no REDIS_URL: Redis runs in this process and forgets everything with it")
	}
	opt, err := ParseRedis(address)
	if err != nil {
		return nil, fmt.Errorf("REDIS_URL: %w", err)
	}
	opt.ContextTimeoutEnabled = true // see docs/operations.md
	rdb := redis.NewClient(opt)
	done.add(func() { _ = rdb.Close() })
	if err := rdb.Ping(ctx).Err(); err != nil {
		return nil, fmt.Errorf("REDIS_URL: no answer from %s: %w", opt.Addr, err)
	}
	return rdb, nil
}

// ParseRedis reads a REDIS_URL. Its error does not repeat what may be a password.
func ParseRedis(address string) (*redis.Options, error) {
	opt, err := redis.ParseURL(address)
	if _, ok := errors.AsType[*url.Error](err); ok {
		err = errors.New("it is no URL; use redis://user:password@host:6379/0, with what is special in a password written as %XX")
	}
	return opt, err
}

// dialect reads a DATABASE_URL and opens nothing.
func dialect(address string) (gorm.Dialector, error) {
	scheme, rest, found := strings.Cut(address, "://")
	switch {
	case !found:
		// WAL and immediate transactions: without them concurrent writers get
		// "database is locked".
		return sqlite.Open("file:" + address + "?_journal_mode=WAL&_txlock=immediate&_busy_timeout=10000"), nil
	case scheme == "postgres" || scheme == "postgresql":
		return postgres.Open(address), nil
	case scheme == "mysql":
		return mysql.Open(rest), nil
	}
	return nil, fmt.Errorf("DATABASE_URL: %q is not known; use postgres://, mysql://, or the path of a SQLite file without any", scheme+"://")
}

// OpenDatabase opens a DATABASE_URL.
func OpenDatabase(address string) (*gorm.DB, error) {
	d, err := dialect(address)
	if err != nil {
		return nil, err
	}
	db, err := gorm.Open(d, &gorm.Config{Logger: logger.Discard})
	if err != nil {
		return nil, fmt.Errorf("DATABASE_URL: %w", err)
	}
	return db, nil
}

func openDatabase(c Config, log *slog.Logger, done *cleanup) (*gorm.DB, error) {
	address := c.DatabaseURL
	if address == "" {
		if err := os.MkdirAll(c.Dir, 0o755); err != nil {
			return nil, fmt.Errorf("-dir: %w", err)
		}
		address = filepath.Join(c.Dir, "onceq.db")
		log.Info("no DATABASE_URL: SQLite", "file", address)
	}
	db, err := OpenDatabase(address)
	if err != nil {
		return nil, err
	}
	pool, err := db.DB()
	if err != nil {
		return nil, fmt.Errorf("DATABASE_URL: %w", err)
	}
	done.add(func() { _ = pool.Close() })
	return db, nil
}

// endpoint is where LLM calls go.
type endpoint struct {
	options []option.RequestOption
	model   string
}

// openModel names the endpoint, or starts a scripted one in this process.
func openModel(c Config, log *slog.Logger, done *cleanup) (endpoint, error) {
	e := endpoint{model: c.OpenAIModel}
	base := c.OpenAIBaseURL
	if base == "" && c.OpenAIKey == "" {
		var opts []modelserver.Option
		if c.Model != nil {
			opts = c.Model.Options()
		}
		s, err := modelserver.Start("127.0.0.1:0", opts...)
		if err != nil {
			return e, fmt.Errorf("scripted model: %w", err)
		}
		done.add(func() { _ = s.Close() })
		base = s.BaseURL()
		log.Info("no OPENAI_BASE_URL: answers come from a script in this process, not from a model")
	}
	if base != "" {
		e.options = append(e.options, option.WithBaseURL(base))
	}
	e.model = cmp.Or(e.model, modelserver.Model)
	e.options = append(e.options, option.WithAPIKey(cmp.Or(c.OpenAIKey, "none")))
	return e, nil
}

func (e endpoint) client(opts ...option.RequestOption) openai.Client {
	return openai.NewClient(append(e.options, opts...)...)
}

// destinations are where people are told.
func destinations(ctx context.Context, c Config, log *slog.Logger) ([]notify.Destination, error) {
	switch {
	case c.SlackToken != "":
		var opts []notify.DestinationOption
		if c.SlackAPIURL != "" {
			opts = append(opts, notify.WithAPIURL(c.SlackAPIURL))
		}
		s, err := notify.NewSlack(c.SlackToken, c.SlackChannel, opts...)
		if err != nil {
			return nil, errors.Join(errors.New("SLACK_BOT_TOKEN, SLACK_CHANNEL"), err)
		}
		if err := s.Check(ctx); err != nil {
			log.Warn("Slack: messages may not be found again after a lost reply", "err", err)
		}
		return []notify.Destination{s}, nil
	case c.SlackWebhook != "":
		w, err := notify.NewSlackWebhook(c.SlackWebhook)
		if err != nil {
			return nil, errors.Join(errors.New("SLACK_WEBHOOK_URL"), err)
		}
		return []notify.Destination{w}, nil
	}
	return []notify.Destination{notify.Log("log", log)}, nil
}
