package redistest_test

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/nexuscore/onceq/internal/redistest"
)

func TestBubbleTakesPipelines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, rdb := redistest.Bubble(t)
		pipe := rdb.Pipeline()
		for i := range 1000 {
			pipe.Set(t.Context(), fmt.Sprint(i), i, 0)
		}
		if _, err := pipe.Exec(t.Context()); err != nil {
			t.Fatalf("Exec: %v", err)
		}
		if n := rdb.DBSize(t.Context()).Val(); n != 1000 {
			t.Errorf("%d keys, want 1000", n)
		}
	})
}
