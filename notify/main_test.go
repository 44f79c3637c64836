package notify

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if dsn := os.Getenv(childDSN); dsn != "" {
		child(dsn, os.Getenv(childSlack))
		return
	}
	goleak.VerifyTestMain(m)
}
