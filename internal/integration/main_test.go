package integration

import (
	"context"
	"flag"
	"os"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/nexuscore/onceq/internal/redistest"
)

// childEnv makes the test binary a worker process, with these settings.
const childEnv = "ONCEQ_INTEGRATION_CHILD"

func TestMain(m *testing.M) {
	if s := os.Getenv(childEnv); s != "" {
		os.Exit(child(s))
	}
	redis.SetLogger(noLog{}) // servers are taken down on purpose
	flag.Parse()
	parallel := "8" // tests mostly wait: for a TTL, a scan, a restart
	flag.Visit(func(f *flag.Flag) {
		if f.Name == "test.parallel" {
			parallel = f.Value.String()
		}
	})
	if err := flag.Set("test.parallel", parallel); err != nil {
		panic(err)
	}
	redistest.Main(m)
}

type noLog struct{}

func (noLog) Printf(context.Context, string, ...any) {}
