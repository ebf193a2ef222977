package connect

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"sync"
)

// maxSecret is the most bytes of a file with a secret.
const maxSecret = 64 << 10

// secrets has what the environment's secret files had at their first use.
var secrets = sync.OnceValues(readSecretFiles)

// lookup returns a variable of the environment, or else what the file has that NAME_FILE names. A
// file that cannot be read counts as not set: open returns its error. Containers and systemd hand
// secrets over as files, which neither a listing of the environment nor a child process shows.
func lookup(name string) (value string, set bool) {
	if files, _ := secrets(); files[name] != "" {
		return files[name], true
	}
	return os.LookupEnv(name)
}

// WebhookSecretEnv is the variable with the secret that serve signs events with.
const WebhookSecretEnv = "PGLIMIT_WEBHOOK_SECRET"

// WebhookSecret returns that secret; empty if the environment has none.
func WebhookSecret() (string, error) {
	if _, err := secrets(); err != nil {
		return "", err
	}
	secret, _ := lookup(WebhookSecretEnv)
	return secret, nil
}

// readSecretFiles returns the values of the variables with secrets that are in files, without the line break at their end.
func readSecretFiles() (map[string]string, error) {
	values := map[string]string{}
	for _, name := range []string{databaseEnv, KeySecretEnv, WebhookSecretEnv} {
		path := os.Getenv(name + "_FILE")
		if path == "" {
			continue
		}
		if os.Getenv(name) != "" {
			return nil, fmt.Errorf("%s and %s_FILE are both set: unset one of them", name, name)
		}
		file, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("%s_FILE: %w", name, err)
		}
		text, err := io.ReadAll(io.LimitReader(file, maxSecret+1))
		_ = file.Close() // it was only read
		if err != nil {
			return nil, fmt.Errorf("%s_FILE: %w", name, err)
		}
		text = bytes.TrimSuffix(bytes.TrimSuffix(text, []byte("\n")), []byte("\r"))
		if len(text) == 0 || len(text) > maxSecret || bytes.ContainsAny(text, "\x00\r\n") {
			return nil, fmt.Errorf("%s_FILE is %s: it must have one line, of at most %d bytes, with the value of %s", name, path, maxSecret, name)
		}
		values[name] = string(text)
	}
	return values, nil
}
