// Package webhook posts events of marks to a URL, signed by the scheme of Standard Webhooks.
package webhook

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pglimit/pglimit/policies"
)

const (
	answerIn  = 15 * time.Second // for the receiver to answer
	readLimit = 64 << 10         // of its answer, so that the connection can be used again
	minSecret = 24               // bytes
)

// Sender posts events. It is safe for concurrent use.
type Sender struct {
	url    string
	secret []byte
	client *http.Client
	// Deliveries counts the deliveries by result: delivered or failed.
	Deliveries *prometheus.CounterVec
}

// New returns a Sender to an http or https URL without a user. The secret has at least 24 bytes:
// after whsec_ in base64, else as it is.
func New(to, secret string) (*Sender, error) {
	u, err := url.Parse(to)
	switch {
	case err != nil:
		return nil, errors.New("--webhook is no valid URL")
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.Fragment != "":
		return nil, fmt.Errorf("--webhook is %.200q: must be an http or https URL with a host, without a user and a fragment", u.Redacted())
	}
	key := []byte(secret)
	if encoded, ok := strings.CutPrefix(secret, "whsec_"); ok {
		if key, err = base64.StdEncoding.DecodeString(encoded); err != nil {
			return nil, errors.New("PGLIMIT_WEBHOOK_SECRET begins with whsec_: what follows must be base64")
		}
	}
	if len(key) < minSecret {
		return nil, fmt.Errorf("--webhook needs PGLIMIT_WEBHOOK_SECRET, of at least %d bytes; it has %d", minSecret, len(key))
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxResponseHeaderBytes = readLimit
	return &Sender{
		url: to, secret: key,
		client: &http.Client{Timeout: answerIn, Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse // a redirect could name any address
		}},
		Deliveries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pglimit_webhook_deliveries_total", Help: "Deliveries of events by result (delivered, failed).",
		}, []string{"result"}),
	}, nil
}

// Deliver posts an event. It returns an error unless the answer's status is 2xx.
func (s *Sender) Deliver(ctx context.Context, e policies.Event) error {
	err := s.post(ctx, e)
	result := "delivered"
	if err != nil {
		result = "failed"
	}
	s.Deliveries.WithLabelValues(result).Inc()
	return err
}

func (s *Sender) post(ctx context.Context, e policies.Event) error {
	body, err := json.Marshal(struct {
		Type      string         `json:"type"`
		Timestamp time.Time      `json:"timestamp"`
		Data      policies.Event `json:"data"`
	}{"mark.reached", e.At, e})
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	at := strconv.FormatInt(time.Now().Unix(), 10)
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("User-Agent", "pglimit")
	request.Header.Set("Webhook-Id", e.ID)
	request.Header.Set("Webhook-Timestamp", at)
	request.Header.Set("Webhook-Signature", "v1,"+base64.StdEncoding.EncodeToString(s.sign(e.ID, at, body)))
	answer, err := s.client.Do(request)
	if failed, ok := errors.AsType[*url.Error](err); ok {
		return failed.Err // without the URL, which may have a secret in its query
	} else if err != nil {
		return err
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(answer.Body, readLimit)) // the status is the answer
	if answer.StatusCode/100 != 2 {
		return fmt.Errorf("the webhook answered %d", answer.StatusCode)
	}
	return nil
}

// sign returns the signature of an ID, a time and a body.
func (s *Sender) sign(id, at string, body []byte) []byte {
	mac := hmac.New(sha256.New, s.secret)
	_, _ = fmt.Fprintf(mac, "%s.%s.%s", id, at, body)
	return mac.Sum(nil)
}
