package sdktest

import (
	"net/http"
	"testing"
)

// TestProvider checks the server itself: each SDK understands what it is told,
// in any pieces, and each answer differs from the one before.
func TestProvider(t *testing.T) {
	for _, c := range clients {
		t.Run(c.name, func(t *testing.T) {
			p := serve(t, func(n int, _ *http.Request, _ []byte) reply {
				return reply{media: c.media, body: c.answer(1 + n/3), cut: -1, piece: []int{0, 1, 7}[n%3], gzip: n%3 == 1}
			})
			hc := &http.Client{Transport: newPlain(t)}
			seen := map[string]int{}
			for range 6 {
				got, err := c.ask(t.Context(), hc, p.URL)
				if err != nil {
					t.Fatal(err)
				}
				seen[got]++
			}
			if len(seen) != 3 || p.count() != 6 {
				t.Errorf("%d different answers of %d calls: %v", len(seen), p.count(), seen)
			}
		})
	}
}
