package connect

import (
	"os"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/limiter"
)

// KeySecretEnv names the environment variable with limiter.Config.KeySecret, which
// a command line would show to other users.
const KeySecretEnv = "PGLIMIT_KEY_SECRET"

// KeySecret returns the secret for hashing keys; empty if there is none.
func KeySecret() []byte { return []byte(os.Getenv(KeySecretEnv)) }

// NewLimiter returns a limiter on pool without a deny cache, so that every answer
// comes from the database.
func NewLimiter(pool *pgxpool.Pool) (*limiter.Limiter, error) {
	return NewLimiterWith(pool, &limiter.Config{DisableDenyCache: true})
}

// NewLimiterWith returns a limiter on pool with config. It sets config.KeySecret
// from the environment.
func NewLimiterWith(pool *pgxpool.Pool, config *limiter.Config) (*limiter.Limiter, error) {
	config.KeySecret = KeySecret()
	return limiter.New(pool, config)
}
