package commands

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/webpage"
)

// healthURLs are what serve health asks by default: serve's --admin, with TLS or without, and the
// port of ratelimit, as the image has them.
var healthURLs = []string{"https://localhost:9090/readyz", "http://localhost:9090/readyz", "http://localhost:8080/healthcheck"}

// health is the answer of serve health.
type health struct {
	Ready  bool   `json:"ready"`
	URL    string `json:"url"`
	Status int    `json:"status,omitempty"` // 0: no answer
	Error  string `json:"error,omitempty"`
}

func newServeHealth(out *cli.Output) *cobra.Command {
	timeout := 3 * time.Second
	cmd := &cobra.Command{
		Use:   "health [URL...]",
		Short: "Ask whether a server is ready, as a container's health check",
		Long: `Ask whether a server is ready. The first URL where a server answers decides. Exit code
0: it answered 200; 1: it answered otherwise, or nothing answered. Certificates of
this machine are not verified.

Without a URL it asks serve --admin :9090 at https or http://localhost:9090/readyz, and
then ratelimit at http://localhost:8080/healthcheck.`,
		Example: `  pglimit serve health
  pglimit serve health https://localhost:8443/healthz && echo ready`,
		RunE: func(cmd *cobra.Command, urls []string) error {
			if len(urls) == 0 {
				urls = healthURLs
			}
			for _, text := range urls {
				if u, err := url.Parse(text); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
					return fmt.Errorf("%.200q is no URL of a server: must be such as %s", text, healthURLs[1])
				}
			}
			if timeout <= 0 {
				return fmt.Errorf("--timeout is %v: must be more than 0", timeout)
			}
			ctx, stop := context.WithTimeout(cmd.Context(), timeout)
			defer stop()
			var answer health
			for _, text := range urls {
				if answer = askHealth(ctx, text); answer.Status != 0 {
					break
				}
			}
			if cmd.Context().Err() != nil {
				return cmd.Context().Err()
			}
			line := fmt.Sprintf("ready: %s\n", answer.URL)
			if !answer.Ready {
				line = fmt.Sprintf("not ready: %s: %s\n", answer.URL, answer.Error)
			}
			err := out.Print(cmd, answer, line)
			if err == nil && !answer.Ready {
				err = cli.ErrDenied
			}
			return err
		},
	}
	cli.DurationVar(cmd.Flags(), &timeout, "timeout", timeout, "longest `time` for all answers")
	return cmd
}

// askHealth asks the server at address.
func askHealth(ctx context.Context, address string) health {
	answer := health{URL: address}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		answer.Error = err.Error()
		return answer
	}
	transport := &http.Transport{DisableKeepAlives: true}
	if webpage.Loopback(r.URL.Hostname()) {
		transport.TLSClientConfig = &tls.Config{InsecureSkipVerify: true}
	}
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	response, err := client.Do(r)
	if err != nil {
		var failed *url.Error
		if errors.As(err, &failed) {
			err = failed.Err
		}
		answer.Error = strings.TrimSpace(err.Error())
		return answer
	}
	_ = response.Body.Close()
	answer.Status, answer.Ready = response.StatusCode, response.StatusCode == http.StatusOK
	if !answer.Ready {
		answer.Error = response.Status
	}
	return answer
}
