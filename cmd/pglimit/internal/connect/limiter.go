package connect

import (
	"os"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/limiter"
)

// KeySecretEnv names the variable with limiter.Config.KeySecret: a secret does
// not belong on a command line.
const KeySecretEnv = "PGLIMIT_KEY_SECRET"

// KeySecret returns the secret that keys are hashed with, empty for none.
func KeySecret() []byte { return []byte(os.Getenv(KeySecretEnv)) }

// NewLimiter returns a limiter over pool that caches no denials: every answer
// comes from the database.
func NewLimiter(pool *pgxpool.Pool) (*limiter.Limiter, error) {
	return NewLimiterWith(pool, &limiter.Config{DisableDenyCache: true})
}

// NewLimiterWith returns a limiter over pool with config and the key secret of
// the environment.
func NewLimiterWith(pool *pgxpool.Pool, config *limiter.Config) (*limiter.Limiter, error) {
	config.KeySecret = KeySecret()
	return limiter.New(pool, config)
}
