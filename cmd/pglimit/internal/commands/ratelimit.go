package commands

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/ratelimit"
	"github.com/pglimit/pglimit/janitor"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

// ratelimitName is the name under which the program answers in place of envoyproxy/ratelimit.
const ratelimitName = "ratelimit"

// arguments returns the command line of a program that was started as args.
func arguments(args []string) []string {
	if strings.TrimSuffix(filepath.Base(args[0]), ".exe") == ratelimitName {
		return append([]string{ratelimitName}, args[1:]...)
	}
	return args[1:]
}

func newRatelimit(db *connect.Database) *cobra.Command {
	return &cobra.Command{
		Use:   ratelimitName,
		Short: "Answer Envoy's rate limit service as envoyproxy/ratelimit does, by its environment",
		Long: `Answer Envoy's rate limit service, with the environment, configuration, ports, health
checks and metric names of envoyproxy/ratelimit, until SIGTERM. The counts are in the
database that DATABASE_URL names, where pglimit migrate up has run. A program with the
name ratelimit does this without a subcommand, so that it can replace the other's image.`,
		Example: `  RUNTIME_ROOT=/data RUNTIME_SUBDIRECTORY=ratelimit pglimit ratelimit
  ln -s pglimit ratelimit && CONFIG_TYPE=GRPC_XDS_SOTW ./ratelimit`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			env, err := ratelimit.ReadEnv(os.Getenv)
			if err != nil {
				return err
			}
			logger, err := envLogger(cmd, env)
			if err != nil {
				return err
			}
			for _, name := range ratelimit.Unused {
				if value := os.Getenv(name); value != "" && !strings.EqualFold(value, "false") {
					logger.Warn("pglimit does not use this variable", "variable", name)
				}
			}
			return runRatelimit(cmd, db, env, logger)
		},
	}
}

// envLogger returns a logger as the environment wants it.
func envLogger(cmd *cobra.Command, env ratelimit.Env) (*slog.Logger, error) {
	level := slog.LevelWarn
	switch name := strings.ToLower(env.LogLevel); name {
	case "trace", "debug":
		level = slog.LevelDebug
	case "warning", "warn":
	case "fatal", "panic", "error":
		level = slog.LevelError
	case "info":
		level = slog.LevelInfo
	default:
		return nil, fmt.Errorf("LOG_LEVEL is %.80q: must be debug, info, warn or error", env.LogLevel)
	}
	options := &slog.HandlerOptions{Level: level}
	if strings.EqualFold(env.LogFormat, "json") {
		return slog.New(slog.NewJSONHandler(cmd.ErrOrStderr(), options)), nil
	}
	return slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), options)), nil
}

// collectAt is the GOGC of the program, unless the environment has one. Proxies have few
// connections, so that the heap is small, and would be collected many times a second.
const collectAt = 400

// runRatelimit answers until the command's context ends.
func runRatelimit(cmd *cobra.Command, db *connect.Database, env ratelimit.Env, logger *slog.Logger) error {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(collectAt)
	}
	pool, err := db.OpenOrAway(cmd)
	if err != nil {
		return err
	}
	defer pool.Close()
	j, err := janitor.New(pool, &janitor.Config{Logger: logger})
	if err != nil {
		return err
	}
	var end []func() error
	defer func() {
		for _, f := range slices.Backward(end) {
			_ = f() // it is nil
		}
	}()
	return ratelimit.Run(cmd.Context(), env, func(ctx context.Context, waits func()) (ratelimit.Limiter, error) {
		var live *policies.Policies
		err := connect.Await(ctx, logger, waits, func() (err error) {
			live, err = policies.Open(ctx, pool, &policies.Config{KeySecret: connect.KeySecret(), Program: ratelimitName, Logger: logger})
			return err
		})
		if err != nil {
			return nil, cli.LimiterError(err)
		}
		end = append(end, live.Close)
		l, err := limiter.New(pool, &limiter.Config{KeySecret: connect.KeySecret(), Policies: live, Timeout: env.Timeout, Logger: logger})
		if err != nil {
			return nil, err
		}
		background, stop := context.WithCancel(context.WithoutCancel(ctx))
		swept := make(chan struct{})
		go func() { defer close(swept); _ = j.Run(background) }() // its error is that of background
		end = append(end, l.Close, func() error { stop(); <-swept; return nil })
		return l, nil
	}, logger)
}
