package prove

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/internal/pooler"
)

// ErrReadOnly is in the error for a server that refuses to write.
var ErrReadOnly = errors.New("nothing was tested")

// readWrite returns an ErrReadOnly if the server refuses to write. It names the server, the
// reason and the next step.
func readWrite(ctx context.Context, pool *pgxpool.Pool) error {
	var standby bool
	var readOnly, setBy string
	err := pool.QueryRow(ctx, `SELECT pg_is_in_recovery(), setting, source
		FROM pg_settings WHERE name = 'default_transaction_read_only'`, pooler.Mode(pool)).Scan(&standby, &readOnly, &setBy)
	if err != nil {
		return fmt.Errorf("ask whether the server is read-only: %w", err)
	}
	to := pool.Config().ConnConfig
	return judgeReadOnly(fmt.Sprintf("database %s on %s", to.Database, net.JoinHostPort(to.Host, strconv.Itoa(int(to.Port)))), standby, readOnly == "on", setBy)
}

func judgeReadOnly(server string, standby, readOnly bool, setBy string) error {
	switch {
	case standby:
		return fmt.Errorf("%w: %s is read-only, because the server is a standby: connect to the primary "+
			"(several hosts and target_session_attrs=read-write in the URL find it)", ErrReadOnly, server)
	case readOnly:
		return fmt.Errorf("%w: %s is read-only, because default_transaction_read_only is on (set by: %s): turn it off, or add "+
			"options=-cdefault_transaction_read_only%%3Doff to the URL", ErrReadOnly, server, setBy)
	}
	return nil
}
