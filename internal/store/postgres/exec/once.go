package exec

import (
	"context"
	"errors"
	"strings"

	"github.com/pglimit/pglimit/db"
)

// ErrOneByOne is AtOnce's error if the connection has no pipeline.
var ErrOneByOne = errors.New("pglimit: this connection sends statements one by one")

// AtOnce makes the calls in one transaction and one round trip, on a connection that
// Runner.Do lends. Statements of one pipeline are one transaction, even without a BEGIN: if
// one fails, the server skips the others and undoes all.
func AtOnce(ctx context.Context, tx db.DBTX, calls []Call) error {
	_, pipelines := tx.(batcher)
	_, begins := tx.(poolTx) // a pipeline has room for its BEGIN
	switch {
	case len(calls) == 1 && !begins:
		return calls[0](tx)
	case !pipelines:
		return ErrOneByOne
	}
	return Together(ctx, tx, calls)
}

// notAll begins the text that a TakeAll of queries/ fails to cast. The message around it
// depends on the server's language.
const notAll = "pglimit: nothing is taken"

// IsNotAll reports whether a TakeAll failed because it could not take all. The server has
// undone its transaction.
func IsNotAll(err error) bool {
	return sqlState(err) == invalidText && strings.Contains(err.Error(), notAll)
}
