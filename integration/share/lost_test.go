package share

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/limiter"
)

// TestShareAKilledConnection: if the server ends a session in the middle of a transaction, all
// its requests get an error, and none is sent again.
func TestShareAKilledConnection(t *testing.T) {
	t.Parallel()
	url := bed.NewDatabase(t)
	c, pool := newCrowd(t, url, limiter.Config{}), bed.Connect(t, url)
	bed.Exec(t, pool, `CREATE FUNCTION sleeps() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(60); RETURN NEW; END $$`)
	bed.Exec(t, pool, `CREATE TRIGGER sleeps BEFORE INSERT ON pglimit_token_bucket FOR EACH ROW WHEN (NEW.key = 'sleeps') EXECUTE FUNCTION sleeps()`)
	go bed.Eventually(t, "a statement sleeps", func(ctx context.Context) (found bool, err error) {
		err = pool.QueryRow(ctx, `SELECT coalesce(bool_or(pg_terminate_backend(pid)), false) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event = 'PgSleep'`).Scan(&found)
		return found, err
	})
	errs := c.behind(charges(t, c.Limiter, bucket, "first", "a", "sleeps", "z")...)
	for i, err := range errs {
		if (i > 0) != errors.Is(err, limiter.ErrUnavailable) || i == 0 && err != nil {
			t.Errorf("request %d: %v", i, err)
		}
	}
	c.sent.expect(t, 1, 3)
	expectLevels(t, c.Limiter, map[string]float64{"first": 1, "a": 0, "sleeps": 0, "z": 0})
}

// TestShareALostAnswer: if the answer to a transaction that was committed is lost, all its
// requests get an error, and each was counted once.
func TestShareALostAnswer(t *testing.T) {
	t.Parallel()
	url := bed.NewDatabase(t)
	var loses atomic.Bool
	c := newCrowd(t, url, limiter.Config{}, func(cfg *pgxpool.Config) {
		dial := cfg.ConnConfig.DialFunc
		cfg.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dial(ctx, network, address)
			return &losing{conn, &loses}, err
		}
	})
	c.sent.together = func() { loses.Store(true) }
	errs := c.behind(charges(t, c.Limiter, bucket, "first", "a", "b", "b")...)
	for i, err := range errs {
		if (i > 0) != errors.Is(err, limiter.ErrUnavailable) || i == 0 && err != nil {
			t.Errorf("request %d: %v", i, err)
		}
	}
	c.sent.expect(t, 1, 3)
	expectLevels(t, c.Limiter, map[string]float64{"first": 1, "a": 1, "b": 2})
}

// losing is a connection that loses what arrives next. The server sends the answers of a
// transaction when it has committed.
type losing struct {
	net.Conn
	loses *atomic.Bool
}

func (l *losing) Read(p []byte) (int, error) {
	n, err := l.Conn.Read(p)
	if err == nil && l.loses.Swap(false) {
		_ = l.Close()
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}
