// Package serve runs the limiter as a server: HTTP and JSON, gRPC, and an address for operators.
//
//   - options.go, listen.go, tls.go, files.go: what it needs before it starts
//   - serve.go: the run, and the graceful stop
//   - grpc.go, admin.go, telemetry.go: interfaces and what they measure
//   - auth: tokens; httpapi: the routes of HTTP
//
// It counts nothing in memory: all counts are in the database.
package serve

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/ratelimit"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/webpage"
	"github.com/pglimit/pglimit/httplimit"
)

// Options are what a command line chooses.
type Options struct {
	// HTTP, GRPC and Admin are addresses such as localhost:8080; empty: none. One of HTTP and
	// GRPC is required.
	HTTP, GRPC, Admin string
	// Policies is a file with policies for names that the database does not have. Default: none.
	Policies string
	// Tokens is a file with the tokens of callers. Default: none.
	Tokens string
	// NoAuth lets everybody who reaches the addresses use them. Default: false; without Tokens
	// and TLS.ClientCA only addresses of this machine are possible.
	NoAuth bool
	TLS    TLSFiles
	// TrustedProxies are the networks of gateways, whose header ProxyHeader names their clients.
	TrustedProxies []string
	ProxyHeader    string // default: X-Forwarded-For
	// MaxConnections bounds the connections of all addresses.
	MaxConnections int
	// DrainDelay is the time between the end of readiness and the wait for connections to end.
	// DrainTimeout is the longest wait for requests after that, a third of it for idle connections.
	DrainDelay, DrainTimeout time.Duration
	// Timeout is the limiter's.
	Timeout time.Duration
	// AccessLog is errors, all or none.
	AccessLog string
	// NoJanitor runs no janitor.
	NoJanitor bool

	// RateLimit sets up Envoy's rate limit service over gRPC, but for its addresses and TLS. Nil:
	// without.
	RateLimit *ratelimit.Env
	// Webhook is the http or https URL that gets the events of marks. Default: none.
	Webhook string
	// WebhookSecret signs them: see webhook.New.
	WebhookSecret string
	// KeySecret is the limiter's. Default: nil.
	KeySecret []byte
	// Version is the program's, and Database describes the database, for the dashboard.
	Version string
	Logger  *slog.Logger
}

// AccessLogs are the values of Options.AccessLog.
var AccessLogs = []string{"errors", "all", "none"}

// check returns an error for the first option that is not valid, and the address of the
// clients of gateways.
func (o *Options) check() (a httplimit.Address, err error) {
	switch {
	case o.HTTP == "" && o.GRPC == "":
		return a, errors.New("--http and --grpc are both empty: give at least one of them an address, such as localhost:8080")
	case o.RateLimit != nil && o.GRPC == "":
		return a, errors.New("--ratelimit-config and --ratelimit-xds need --grpc, an address for Envoy")
	case !slices.Contains(AccessLogs, o.AccessLog):
		return a, fmt.Errorf("--access-log is %.40q: must be one of %q", o.AccessLog, AccessLogs)
	case o.MaxConnections < 1:
		return a, fmt.Errorf("--max-connections is %d: must be at least 1", o.MaxConnections)
	case o.DrainDelay < 0 || o.DrainDelay > time.Hour:
		return a, fmt.Errorf("--drain-delay is %v: must be from 0 to 1h", o.DrainDelay)
	case o.DrainTimeout < time.Millisecond || o.DrainTimeout > time.Hour:
		return a, fmt.Errorf("--drain-timeout is %v: must be from 1ms to 1h", o.DrainTimeout)
	case o.Timeout < time.Millisecond || o.Timeout > time.Minute:
		return a, fmt.Errorf("--timeout is %v: must be from 1ms to 1m", o.Timeout)
	case o.NoAuth && (o.Tokens != "" || o.TLS.ClientCA != ""):
		return a, errors.New("--no-auth contradicts --tokens and --tls-client-ca: leave it out")
	case o.ProxyHeader != "" && len(o.TrustedProxies) == 0:
		return a, fmt.Errorf("--proxy-header is %.80q, and needs --trusted-proxies, which may send it", o.ProxyHeader)
	}
	if err := o.TLS.check(); err != nil {
		return a, err
	}
	for _, f := range []struct{ flag, address string }{{"--http", o.HTTP}, {"--grpc", o.GRPC}} {
		host, _, err := net.SplitHostPort(f.address)
		if err == nil && !webpage.Loopback(host) && o.open() && !o.NoAuth {
			return a, fmt.Errorf("%s is %s, which other machines reach: require tokens by --tokens or certificates by --tls-client-ca, or let everybody count and spend by --no-auth", f.flag, f.address)
		}
	}
	a.Header = o.ProxyHeader
	for _, text := range o.TrustedProxies {
		network, err := netip.ParsePrefix(text)
		if one, isAddress := netip.ParseAddr(text); err != nil && isAddress == nil {
			network, err = netip.PrefixFrom(one, one.BitLen()), nil
		}
		if err != nil {
			return a, fmt.Errorf("--trusted-proxies has %.80q: must be networks such as 10.0.0.0/8", text)
		}
		a.Proxies = append(a.Proxies, network)
	}
	return a, a.Validate()
}

// open reports whether callers need neither a token nor a certificate.
func (o *Options) open() bool { return o.Tokens == "" && o.TLS.ClientCA == "" }
