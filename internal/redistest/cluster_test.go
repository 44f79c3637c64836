package redistest_test

import (
	"fmt"
	"testing"

	"github.com/nexuscore/onceq/internal/redistest"
)

func TestClusterSpreadsKeys(t *testing.T) {
	c := redistest.Cluster(t)
	rdb := c.Client()
	for i := range 50 {
		key := fmt.Sprint("k", i)
		if err := rdb.Set(t.Context(), key, i, 0).Err(); err != nil {
			t.Fatal(err)
		}
		if got := c.NodeOf(key).Client().Get(t.Context(), key).Val(); got != fmt.Sprint(i) {
			t.Fatalf("%s is %q on its node, want %d", key, got, i)
		}
	}
	for i, n := range c.Nodes {
		if got := n.Client().DBSize(t.Context()).Val(); got == 0 {
			t.Errorf("node %d has no key", i)
		}
	}
}
