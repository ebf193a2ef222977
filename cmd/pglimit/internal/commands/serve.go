package commands

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/ratelimit"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/serve"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/serve/auth"
)

const serveHelp = `Answer requests over HTTP and JSON, and gRPC, until Ctrl-C or SIGTERM. Policies
are those in the database, and those of --policies for other names. All counts
are in the database: any number of servers may run, and a restart forgets nothing.

  --http   POST /v1/allow and the other verbs, /check/{policy} for gateways,
           /openapi.json, which describes them, and /healthz
  --grpc   health and reflection; with --ratelimit-config or --ratelimit-xds Envoy's
           rate limit service. Variables of envoyproxy/ratelimit have its other
           settings, such as CONFIG_GRPC_XDS_NODE_ID
  --admin  /readyz, /healthz, /metrics for Prometheus, and the dashboard

Without --tokens or --tls-client-ca only this machine is served, unless --no-auth
lets everybody in who reaches the addresses. Changed files are used within
seconds. If they are not valid, the last ones stay in use.

If the database is away at the start, /readyz and requests get 503 until it is there.
At the end /readyz answers 503, and each answer ends its connection. After
--drain-delay clients have a third of --drain-timeout to leave their connections;
then the listeners close, and requests get the rest. OTEL_EXPORTER_OTLP_ENDPOINT and similar
variables send traces and metrics. Logs are on stderr, as JSON with --json, and
have no keys.`

func newServe(db *connect.Database, out *cli.Output) *cobra.Command {
	var o serve.Options
	var rate rateFlags
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Answer requests over HTTP and gRPC, for gateways and other languages",
		Long:  serveHelp,
		Example: `  pglimit serve --embedded --http localhost:8080 --policies limits.yaml
  pglimit serve --http :8080 --admin localhost:9090 --tokens tokens --tls-cert crt.pem --tls-key key.pem
  curl --json '{"policy":"login","key":"alice"}' localhost:8080/v1/allow`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := rate.set(&o); err != nil {
				return err
			}
			return runServe(cmd, db, out, o)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.HTTP, "http", "localhost:8080", "`host:port` of HTTP; empty: none; port 0: any free port")
	flags.StringVar(&o.GRPC, "grpc", "", "`host:port` of gRPC; default: none")
	flags.StringVar(&o.Admin, "admin", "", "`host:port` for operators; default: none")
	flags.StringVar(&o.Policies, "policies", "", "`FILE` with policies for names that the database does not have, as of policy import")
	flags.StringVar(&o.Tokens, "tokens", "", "`FILE` with a line of pglimit serve token for each caller")
	flags.BoolVar(&o.NoAuth, "no-auth", false, "let everybody who reaches the addresses count, spend and operate")
	flags.StringVar(&o.TLS.Cert, "tls-cert", "", "`FILE` with the server's certificates, PEM")
	flags.StringVar(&o.TLS.Key, "tls-key", "", "`FILE` with its key, PEM")
	flags.StringVar(&o.TLS.ClientCA, "tls-client-ca", "", "`FILE` with authorities; clients of --http and --grpc then need a certificate of one")
	flags.StringVar(&rate.config, "ratelimit-config", "", "`FILE` or directory with limits of Envoy's rate limit service, as of envoyproxy/ratelimit")
	flags.StringVar(&rate.xds, "ratelimit-xds", "", "`host:port` that sends such limits by xDS")
	flags.BoolVar(&rate.countEach, "ratelimit-count-each", false, "count each descriptor by itself, also of denied requests")
	cmd.MarkFlagsMutuallyExclusive("ratelimit-config", "ratelimit-xds")
	flags.StringSliceVar(&o.TrustedProxies, "trusted-proxies", nil, "`networks` of gateways, for /check by client address, such as 10.0.0.0/8,127.0.0.1")
	flags.StringVar(&o.ProxyHeader, "proxy-header", "", "`header` in which gateways name their clients; default: X-Forwarded-For")
	flags.IntVar(&o.MaxConnections, "max-connections", 16384, "most `connections` at a time")
	cli.DurationVar(flags, &o.Timeout, "timeout", time.Second, "longest `time` of a decision")
	cli.DurationVar(flags, &o.DrainDelay, "drain-delay", 0, "`time` from the end of readiness to that of the listeners")
	cli.DurationVar(flags, &o.DrainTimeout, "drain-timeout", 15*time.Second, "longest `time` for requests in progress at the end")
	flags.StringVar(&o.AccessLog, "access-log", "errors", "log `which` requests: "+strings.Join(serve.AccessLogs, ", "))
	flags.StringVar(&o.Webhook, "webhook", "", "http or https `URL` that gets each event of marks, signed by PGLIMIT_WEBHOOK_SECRET; default: none")
	flags.BoolVar(&o.NoJanitor, "no-janitor", false, "run no janitor: another process does")
	_ = cmd.RegisterFlagCompletionFunc("access-log", cobra.FixedCompletions(serve.AccessLogs, cobra.ShellCompDirectiveNoFileComp))
	cmd.AddCommand(newServeToken(out), newServeHealth(out))
	return cmd
}

// rateFlags set up Envoy's rate limit service.
type rateFlags struct {
	config, xds string
	countEach   bool
}

// set reads the environment of Envoy's service, unless no flag asks for that service.
func (f rateFlags) set(o *serve.Options) error {
	if f.config == "" && f.xds == "" {
		if f.countEach {
			return errors.New("--ratelimit-count-each needs --ratelimit-config or --ratelimit-xds")
		}
		return nil
	}
	env, err := ratelimit.ReadEnv(os.Getenv)
	if err != nil {
		return fmt.Errorf("environment: %w", err)
	}
	if f.config != "" {
		env.ReadFrom(f.config)
	} else {
		env.ConfigType, env.XDSURL = "GRPC_XDS_SOTW", f.xds
	}
	env.CountEach = env.CountEach || f.countEach
	o.RateLimit = &env
	return nil
}

// runServe serves until the command's context ends.
func runServe(cmd *cobra.Command, db *connect.Database, out *cli.Output, o serve.Options) error {
	o.Logger = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
	if out.JSON {
		o.Logger = slog.New(slog.NewJSONHandler(cmd.ErrOrStderr(), nil))
	}
	o.KeySecret, o.Version = connect.KeySecret(), programVersion()
	var err error
	if o.WebhookSecret, err = connect.WebhookSecret(); err != nil {
		return err
	}
	s, err := serve.Prepare(cmd.Context(), o)
	if err != nil {
		return err
	}
	defer s.Close()
	pool, err := db.OpenOrAway(cmd)
	if err != nil {
		return err
	}
	defer pool.Close()
	err = s.Run(cmd.Context(), pool, func() error {
		var text strings.Builder
		for _, name := range []string{"http", "grpc", "admin"} {
			if url := s.URLs[name]; url != "" {
				fmt.Fprintf(&text, "%s: %s\n", name, url)
			}
		}
		return out.Print(cmd, s.URLs, text.String())
	})
	return cli.LimiterError(err)
}

func newServeToken(out *cli.Output) *cobra.Command {
	var scopes string
	cmd := &cobra.Command{
		Use:   "token NAME",
		Short: "Make a token for a caller of serve",
		Long: `Make a token for the caller NAME, and print it with its line for the file of
serve --tokens. The line has only a hash, so give the token to the caller now.
Remove the line to revoke it.

Scopes:
  decide   allow, allow-up-to, allow-all, allow-any, allow-batch, check, usage, and
           /check for gateways
  spend    charge, refund, reservations, attempts and slots
  operate  grant, block, unblock, reset, keys, policies and the dashboard

The caller sends Authorization: Bearer TOKEN, or Pglimit-Token: TOKEN.`,
		Example: `  pglimit serve token web
  pglimit serve token billing --scopes decide,spend --json | jq -r .line >>tokens`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := auth.ParseScope(scopes)
			if err != nil {
				return fmt.Errorf("--scopes: %w", err)
			}
			token := auth.NewToken()
			line, err := auth.Line(args[0], s, token)
			if err != nil {
				return err
			}
			return out.Print(cmd, struct {
				Token string `json:"token"`
				Line  string `json:"line"`
			}{token, line}, "token: "+token+"\nline:  "+line+"\n")
		},
	}
	cmd.Flags().StringVar(&scopes, "scopes", "decide", "what the caller `may` do: decide, spend, operate, separated by commas")
	return cmd
}
