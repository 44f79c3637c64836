package checkpoint

import (
	"os"
	"testing"

	"github.com/nexuscore/onceq/internal/redistest"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		child()
		return
	}
	redistest.Main(m)
}
