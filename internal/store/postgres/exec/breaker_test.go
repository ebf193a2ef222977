package exec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// TestAnswered: which errors count as an answer of the server.
func TestAnswered(t *testing.T) {
	for code, want := range map[string]bool{
		"57P01": false, "57P02": false, "57P03": false, "57P05": false, "53300": false,
		"57014": true, "42P01": true, "40001": true, "53200": true, "28P01": true, "3D000": true,
	} {
		if err := fmt.Errorf("request: %w", &pgconn.PgError{Code: code}); answered(err) != want {
			t.Errorf("SQLSTATE %s: got %v", code, !want)
		}
	}
	for _, err := range []error{io.ErrUnexpectedEOF, context.DeadlineExceeded, errors.New("closed pool")} {
		if answered(err) {
			t.Errorf("%v counted as an answer", err)
		}
	}
	if !answered(nil) {
		t.Error("a nil error did not count as an answer")
	}
}
