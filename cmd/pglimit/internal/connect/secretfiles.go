package connect

import (
	"bytes"
	"fmt"
	"os"
)

// ReadSecretFiles sets DATABASE_URL and PGLIMIT_KEY_SECRET from the files that DATABASE_URL_FILE
// and PGLIMIT_KEY_SECRET_FILE name, without a line break at their end. Containers and systemd hand
// secrets over as files, so that a listing of the environment does not show them. Call it before
// anything reads these variables.
func ReadSecretFiles() error {
	for _, name := range []string{databaseEnv, KeySecretEnv} {
		path := os.Getenv(name + "_FILE")
		if path == "" {
			continue
		}
		if _, set := os.LookupEnv(name); set {
			return fmt.Errorf("%s and %s_FILE are both set: unset one of them", name, name)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("%s_FILE: %w", name, err)
		}
		text = bytes.TrimRight(text, "\r\n")
		if len(text) == 0 || bytes.ContainsAny(text, "\x00\n") {
			return fmt.Errorf("%s_FILE is %s: it must have one line with the value of %s", name, path, name)
		}
		if err := os.Setenv(name, string(text)); err != nil {
			return err
		}
	}
	return nil
}
