package app

import (
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/nexuscore/onceq/internal/modelserver"
	"github.com/nexuscore/onceq/internal/runkey"
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
	fs.StringVar(&c.Prefix, "prefix", "onceq", "of the keys in Redis; tenants also need queues of their own, see -queue")
	fs.IntVar(&c.MaxCrashes, "max-crashes", 5, "attempts of a run that may die before it is given up")
	fs.TextVar(&c.LogLevel, "log-level", slog.LevelInfo, "debug, info, warn or error")
	fs.Usage = func() {
		fmt.Fprintf(fs.Output(), "Usage of %s:\n", name)
		printFlags(fs)
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
	if fs.NArg() > 0 {
		return c, fmt.Errorf("%q: there are flags and no arguments; -h lists them", fs.Arg(0))
	}
	c.environment(os.Getenv)
	return c, c.Validate()
}

// printFlags leaves out those of the scripted model: they are for tests and demos.
func printFlags(fs *flag.FlagSet) {
	shown := flag.NewFlagSet("", flag.ContinueOnError)
	shown.SetOutput(fs.Output())
	fs.VisitAll(func(f *flag.Flag) {
		if !strings.HasPrefix(f.Name, "model-") {
			shown.Var(f.Value, f.Name, f.Usage)
			shown.Lookup(f.Name).DefValue = f.DefValue // Var takes what it is now
		}
	})
	shown.PrintDefaults()
}

func (c *Config) environment(get func(string) string) {
	c.RedisURL, c.DatabaseURL = get("REDIS_URL"), get("DATABASE_URL")
	c.OpenAIBaseURL, c.OpenAIKey, c.OpenAIModel = get("OPENAI_BASE_URL"), get("OPENAI_API_KEY"), get("OPENAI_MODEL")
	c.SlackToken, c.SlackChannel = get("SLACK_BOT_TOKEN"), get("SLACK_CHANNEL")
	c.SlackWebhook, c.SlackAPIURL = get("SLACK_WEBHOOK_URL"), get("SLACK_API_URL")
}

// Validate says which setting cannot be, before anything is opened or made.
func (c *Config) Validate() error {
	if err := runkey.ValidatePrefix(c.Prefix); err != nil {
		return fmt.Errorf("-prefix: %w", err)
	}
	if _, err := dialect(c.DatabaseURL); err != nil {
		return err
	}
	if c.RedisURL != "" {
		if _, err := ParseRedis(c.RedisURL); err != nil {
			return fmt.Errorf("REDIS_URL: %w", err)
		}
	}
	if u, err := url.Parse(c.OpenAIBaseURL); c.OpenAIBaseURL != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "") {
		return errors.New("OPENAI_BASE_URL: use http://host/path or https://host/path")
	}
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
	case c.Timeout < time.Second:
		return fmt.Errorf("-timeout %v: use 1s or more", c.Timeout)
	case c.Queue == "" || len(c.Queue) > 256:
		return fmt.Errorf("-queue: the name has %d bytes, use 1 to 256", len(c.Queue))
	case c.MaxCrashes < 1 || c.MaxCrashes > 1000:
		return fmt.Errorf("-max-crashes %d: use 1 to 1000", c.MaxCrashes)
	case (c.SlackToken == "") != (c.SlackChannel == ""):
		return errors.New("SLACK_BOT_TOKEN and SLACK_CHANNEL go together")
	case c.OpenAIBaseURL == "" && c.OpenAIKey != "" && c.OpenAIModel == "":
		return errors.New("OPENAI_API_KEY is set: set OPENAI_MODEL too")
	}
	return nil
}

func (c *Config) works() bool  { return c.Role != "api" }
func (c *Config) serves() bool { return c.Role != "worker" }
