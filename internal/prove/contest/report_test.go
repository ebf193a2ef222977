package contest

import (
	"testing"
	"time"
)

func TestP99(t *testing.T) {
	t.Parallel()
	all := []time.Duration{}
	if got := p99(all); got != 0 {
		t.Errorf("of nothing: %v", got)
	}
	for i := 200; i > 0; i-- {
		all = append(all, time.Duration(i))
	}
	if got := p99(all); got != 198 {
		t.Errorf("of 1 to 200: %v", got)
	}
	if got := p99(all[:1]); got != 1 {
		t.Errorf("of one: %v", got)
	}
}
