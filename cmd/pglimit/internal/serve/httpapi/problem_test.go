package httpapi

import (
	"strings"
	"testing"

	"github.com/pglimit/pglimit/internal/store"
)

// TestProblemOfFull: a block of a key that gets no row says so, not that the server is busy.
func TestProblemOfFull(t *testing.T) {
	t.Parallel()
	p := problemOf(&store.FullError{Policy: "login", MaxKeys: 9})
	if p.Status != 503 || p.Code != "overloaded" || p.Field != "key" || !strings.Contains(p.Detail, `policy "login" has rows for all of its 9 keys`) {
		t.Errorf("got %+v", *p)
	}
}
