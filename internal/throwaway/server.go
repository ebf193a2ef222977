package throwaway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/internal/localpg"
)

// userServer is a server that was there before: the one PGLIMIT_TEST_DATABASE_URL
// names, or a shared one.
type userServer struct {
	address string
	config  *pgx.ConnConfig
}

func startURL(address string) (backend, error) {
	config, err := pgx.ParseConfig(address)
	if err != nil {
		return nil, err // pgx leaves the password out
	}
	return &userServer{address, config}, nil
}

var errNotOurs = errors.New("a server that is shared or of " + envURL + " is not ours to stop or start: tests that do so need StartOwn")

func (u *userServer) url() string                   { return u.address }
func (u *userServer) stop(context.Context) error    { return errNotOurs }
func (u *userServer) kill(context.Context) error    { return errNotOurs }
func (u *userServer) restart(context.Context) error { return errNotOurs }
func (u *userServer) close(context.Context) error   { return nil }

func (u *userServer) describe() string {
	address := net.JoinHostPort(u.config.Host, strconv.Itoa(int(u.config.Port)))
	return fmt.Sprintf("the server at %s, database %s", address, u.config.Database)
}

// localServer is a server started from programs on this machine.
type localServer struct{ *localpg.Server }

func startLocal(ctx context.Context, settings map[string]string) (backend, error) {
	s, err := localpg.Start(ctx, localpg.Options{Settings: settings})
	if err != nil {
		return nil, err
	}
	return localServer{s}, nil
}

func (l localServer) url() string                       { return l.URL() }
func (l localServer) stop(ctx context.Context) error    { return l.Stop(ctx) }
func (l localServer) kill(context.Context) error        { return l.Kill() }
func (l localServer) restart(ctx context.Context) error { return l.Restart(ctx) }
func (l localServer) close(context.Context) error       { return l.Close() }
func (l localServer) describe() string                  { return "local server of " + l.BinDir() }
