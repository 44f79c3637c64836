package app

import (
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/nexuscore/onceq/internal/modelserver"
)

// Config is what flags and the environment say.
type Config struct {
	Role        string        // api, worker or all
	Addr        string        // of the API and the health endpoint; "" for none
	Dir         string        // where the artefacts of runs go
	Concurrency int           // runs at a time
	Timeout     time.Duration // of one attempt
	Queue       string        // of asynq
	Prefix      string        // of our keys in Redis
	MaxCrashes  int           // attempts that may die before a run is a poison pill
	LogLevel    slog.Level
	Model       *modelserver.Flags

	RedisURL      string // REDIS_URL; "" for one in this process
	DatabaseURL   string // DATABASE_URL; "" for a SQLite file in Dir
	OpenAIBaseURL string // OPENAI_BASE_URL; "" for a scripted model in this process
	OpenAIKey     string // OPENAI_API_KEY
	OpenAIModel   string // OPENAI_MODEL
	SlackToken    string // SLACK_BOT_TOKEN, with SLACK_CHANNEL
	SlackChannel  string // SLACK_CHANNEL, an ID
	SlackWebhook  string // SLACK_WEBHOOK_URL
	SlackAPIURL   string // SLACK_API_URL, for tests
}

// Parse reads flags and the environment.
func Parse(name string, args []string) (Config, error) {
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	c := Config{Model: modelserver.RegisterFlags(fs)}
	fs.StringVar(&c.Role, "role", "all", "`api`, worker or all")
	fs.StringVar(&c.Addr, "addr", "127.0.0.1:8080", "listen `address` of the API and of /healthz and /readyz; empty for none")
	fs.StringVar(&c.Dir, "dir", "runs", "`directory` of the runs' files")
	fs.IntVar(&c.Concurrency, "concurrency", 10, "runs at a time")
	fs.DurationVar(&c.Timeout, "timeout", 2*time.Hour, "of one attempt")
	fs.StringVar(&c.Queue, "queue", "default", "asynq `queue`")
	fs.StringVar(&c.Prefix, "prefix", "onceq", "of the keys in Redis; keeps tenants apart")
	fs.IntVar(&c.MaxCrashes, "max-crashes", 5, "attempts of a run that may die before it is given up")
	fs.TextVar(&c.LogLevel, "log-level", slog.LevelInfo, "debug, info, warn or error")
	fs.Usage = func() {
		fmt.Fprintf(fs.Output(), "Usage of %s:\n", name)
		fs.PrintDefaults()
		fmt.Fprint(fs.Output(), `
Environment (with nothing set, everything runs in this process):
  REDIS_URL                       redis://host:6379/0
  DATABASE_URL                    postgres://..., mysql://user:password@tcp(host:3306)/db, or a SQLite file
  OPENAI_BASE_URL, OPENAI_API_KEY, OPENAI_MODEL
  SLACK_BOT_TOKEN, SLACK_CHANNEL  the channel's ID
  SLACK_WEBHOOK_URL               instead of a bot
`)
	}
	if err := fs.Parse(args); err != nil {
		return c, err
	}
	c.environment(os.Getenv)
	return c, c.Validate()
}

func (c *Config) environment(get func(string) string) {
	c.RedisURL, c.DatabaseURL = get("REDIS_URL"), get("DATABASE_URL")
	c.OpenAIBaseURL, c.OpenAIKey, c.OpenAIModel = get("OPENAI_BASE_URL"), get("OPENAI_API_KEY"), get("OPENAI_MODEL")
	c.SlackToken, c.SlackChannel = get("SLACK_BOT_TOKEN"), get("SLACK_CHANNEL")
	c.SlackWebhook, c.SlackAPIURL = get("SLACK_WEBHOOK_URL"), get("SLACK_API_URL")
}

// Validate says which setting cannot be.
func (c *Config) Validate() error {
	switch {
	case c.Role != "api" && c.Role != "worker" && c.Role != "all":
		return fmt.Errorf("-role %q: use api, worker or all", c.Role)
	case c.Role != "all" && c.RedisURL == "":
		return fmt.Errorf("-role %s: set REDIS_URL, since a Redis in this process is no other's", c.Role)
	case c.Role != "all" && c.DatabaseURL == "":
		return fmt.Errorf("-role %s: set DATABASE_URL, since API and worker need the same", c.Role)
	case c.Role == "api" && c.Addr == "":
		return errors.New("-role api: set -addr")
	case c.Concurrency < 1 || c.Concurrency > 1000:
		return fmt.Errorf("-concurrency %d: use 1 to 1000", c.Concurrency)
	case (c.SlackToken == "") != (c.SlackChannel == ""):
		return errors.New("SLACK_BOT_TOKEN and SLACK_CHANNEL go together")
	case c.OpenAIBaseURL == "" && c.OpenAIKey != "" && c.OpenAIModel == "":
		return errors.New("OPENAI_API_KEY is set: set OPENAI_MODEL too")
	}
	return nil
}

func (c *Config) works() bool  { return c.Role != "api" }
func (c *Config) serves() bool { return c.Role != "worker" }
