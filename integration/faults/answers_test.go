package faults

import (
	"context"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/limiter"
)

// answerFaults lose answers only: the server has run each statement.
var answerFaults = overBoth(fault{name: "answers lost", do: loseAnswers, causes: []error{limiter.ErrUnavailable}})

// loseAnswers resets connections on which an answer has arrived, before a caller reads it.
// A session that is terminated ends before its statement is committed or after its answer
// was sent; here the statement is committed, and nobody knows.
func loseAnswers(_ context.Context, t *testing.T, s *scene) {
	s.loses.Store(true)
	defer s.loses.Store(false)
	s.let(testworld.Size(time.Second, 8*time.Second))
	t.Logf("%d answers were lost", s.lostAnswers.Load())
}

// losing is the number of reads of which one loses its answer.
const losing = 20

// lossy is a connection that loses answers while loses is set.
type lossy struct {
	net.Conn
	loses *atomic.Bool
	lost  *atomic.Int64
}

func (c lossy) Read(into []byte) (int, error) {
	n, err := c.Conn.Read(into)
	if n > 0 && c.loses.Load() && rand.IntN(losing) == 0 {
		c.lost.Add(1)
		_ = c.Conn.Close() // what was read is lost anyway
		return 0, syscall.ECONNRESET
	}
	return n, err
}

// dialer dials the load's connections.
type dialer struct {
	*testworld.Dialer
	s *scene
}

func (d dialer) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := d.Dialer.Dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return lossy{conn, &d.s.loses, &d.s.lostAnswers}, nil
}
