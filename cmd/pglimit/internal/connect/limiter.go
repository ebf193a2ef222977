package connect

import (
	"fmt"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/internal/keys"
	"github.com/pglimit/pglimit/limiter"
)

// KeySecretEnv names the environment variable with limiter.Config.KeySecret, which
// a command line would show to other users.
const KeySecretEnv = "PGLIMIT_KEY_SECRET"

// KeySecret returns the secret for hashing keys; nil if the environment has none.
func KeySecret() []byte {
	if secret, set := os.LookupEnv(KeySecretEnv); set {
		return []byte(secret)
	}
	return nil
}

// checkKeySecret returns an error for a secret that limiter.New would refuse, in the words
// of the environment. It shows the secret's length only.
func checkKeySecret() error {
	secret, set := os.LookupEnv(KeySecretEnv)
	switch {
	case set && secret == "":
		return fmt.Errorf("%s is set but empty: set it to the application's secret, or unset it if the application stores keys as they are", KeySecretEnv)
	case set && len(secret) < keys.MinSecret:
		return fmt.Errorf("%s has %d bytes: a secret has at least %d", KeySecretEnv, len(secret), keys.MinSecret)
	}
	return nil
}

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
