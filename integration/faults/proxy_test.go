package faults

import (
	"bytes"
	"context"
	"encoding/json"
	"net/url"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
)

// network is a toxiproxy between clients and a server. The connections that it closes are
// reset.
type network struct {
	*testing.T
	proxy *toxiproxy.Proxy
}

// toxic is a fault of the connections in one direction: downstream is from the server.
// The attributes are those of toxiproxy's documentation.
type toxic struct {
	Name       string         `json:"name"`
	Type       string         `json:"type"`
	Stream     string         `json:"stream"`
	Toxicity   float64        `json:"toxicity"` // the share of connections
	Attributes map[string]int `json:"attributes"`
}

const (
	upstream   = "upstream"
	downstream = "downstream"
)

// newNetwork starts a proxy to the server at address, which must listen on TCP.
func newNetwork(t *testing.T, address string) *network {
	t.Helper()
	server, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	zerolog.SetGlobalLevel(zerolog.Disabled) // some toxics log to stderr
	api := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	n := &network{T: t, proxy: toxiproxy.NewProxy(api, "network", "127.0.0.1:0", server.Host)}
	if err := n.proxy.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.proxy.Stop)
	// toxiproxy sets linger to 0 on connections that begin while there is a reset_peer,
	// even one that no connection runs. Without that, it closes them in order.
	n.add(toxic{Name: "linger", Type: "reset_peer", Stream: upstream})
	return n
}

// through returns address with the proxy in place of its server.
func (n *network) through(address string) string {
	n.Helper()
	u, err := url.Parse(address)
	if err != nil {
		n.Fatal(err)
	}
	u.Host = n.proxy.Listen
	return u.String()
}

// add puts toxics into all connections, and later ones.
func (n *network) add(toxics ...toxic) {
	n.Helper()
	for _, x := range toxics {
		x.Name = x.name()
		text, err := json.Marshal(x)
		if err != nil {
			n.Fatal(err)
		}
		n.change(func() error {
			_, err := n.proxy.Toxics.AddToxicJson(bytes.NewReader(text))
			return err
		})
	}
}

// remove ends toxics, the last one first: what one has closed has to reach those behind it
// while they are there.
func (n *network) remove(toxics ...toxic) {
	n.Helper()
	for _, x := range slices.Backward(toxics) {
		n.change(func() error { return n.proxy.Toxics.RemoveToxic(context.Background(), x.name()) })
	}
}

func (x toxic) name() string {
	if x.Name != "" {
		return x.Name
	}
	return x.Type + " " + x.Stream
}

// change runs f and fails the test if it hangs: toxiproxy waits for its connections there.
func (n *network) change(f func() error) {
	n.Helper()
	changed := make(chan error, 1)
	go func() { changed <- f() }()
	select {
	case err := <-changed:
		if err != nil {
			n.Fatal(err)
		}
	case <-time.After(time.Minute):
		stacks := make([]byte, 4<<20)
		n.Fatalf("toxiproxy hangs:\n%s", stacks[:runtime.Stack(stacks, true)])
	}
}

// with lets toxics last for d, or until ctx ends.
func (n *network) with(ctx context.Context, d time.Duration, toxics ...toxic) {
	n.Helper()
	n.add(toxics...)
	rest(ctx, d)
	n.remove(toxics...)
}

// rest is how long a fault lasts, or ends.
func rest(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
