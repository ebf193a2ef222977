package pglimittest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/internal/localpg"
)

// envURL is the environment variable with the URL of the user's server.
const envURL = "PGLIMIT_TEST_DATABASE_URL"

// userServer is an existing server: a shared one, or the one that
// PGLIMIT_TEST_DATABASE_URL names.
type userServer struct {
	address string
	config  *pgx.ConnConfig
}

func startURL(address string) (*userServer, error) {
	config, err := pgx.ParseConfig(address)
	if err != nil {
		return nil, err // pgx leaves the password out
	}
	return &userServer{address, config}, nil
}

func (u *userServer) URL() string                 { return u.address }
func (u *userServer) Close(context.Context) error { return nil }

func (u *userServer) Describe() string {
	address := net.JoinHostPort(u.config.Host, strconv.Itoa(int(u.config.Port)))
	return fmt.Sprintf("the server at %s, database %s", address, u.config.Database)
}

// lasting is the ending of a server that is not StartOwn's.
type lasting struct{}

var errLasting = errors.New("only a server of StartOwn can be stopped and started")

func (lasting) Stop(context.Context) error    { return errLasting }
func (lasting) Kill(context.Context) error    { return errLasting }
func (lasting) Restart(context.Context) error { return errLasting }

// localServer is a server started from programs on this machine.
type localServer struct{ *localpg.Server }

func startLocal(ctx context.Context, settings map[string]string, overTCP bool) (localServer, error) {
	s, err := localpg.Start(ctx, localpg.Options{Settings: settings, TCP: overTCP})
	if err != nil {
		return localServer{}, err
	}
	return localServer{s}, nil
}

func (l localServer) Kill(context.Context) error  { return l.Server.Kill() }
func (l localServer) Close(context.Context) error { return l.Server.Close() }
func (l localServer) Describe() string            { return "local server of " + l.BinDir() }
