package site

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// Listen listens on addr, such as "localhost:8080", and returns the URL to open. On
// localhost it listens on the addresses of both IPv4 and IPv6, if the machine has both.
// Port 0 selects any free port.
func Listen(ctx context.Context, addr string) (_ []net.Listener, url string, err error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, "", fmt.Errorf("the address %q is not of the form host:port, such as localhost:8080", addr)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w: use another address or free this one; localhost:0 selects any free port", err)
		}
	}()
	var config net.ListenConfig
	listen := func(host, port string) (net.Listener, error) {
		return config.Listen(ctx, "tcp", net.JoinHostPort(host, port))
	}
	if host != "localhost" {
		l, err := listen(host, port)
		if err != nil {
			return nil, "", err
		}
		if everywhere(host) {
			host = "localhost"
		}
		return []net.Listener{l}, "http://" + net.JoinHostPort(host, portOf(l)), nil
	}
	var hosts []string
	for _, host := range []string{"127.0.0.1", "::1"} {
		if l, err := listen(host, "0"); err == nil {
			hosts = append(hosts, host)
			_ = l.Close()
		}
	}
	if len(hosts) == 0 {
		return nil, "", errors.New("this machine has neither 127.0.0.1 nor ::1")
	}
	// Listen on both or none: a browser may use either, and the other might belong to
	// another program.
	for try := 1; ; try++ {
		var all []net.Listener
		at := port
		for _, host := range hosts {
			var l net.Listener
			if l, err = listen(host, at); err != nil {
				break
			}
			all, at = append(all, l), portOf(l)
		}
		if err == nil {
			return all, "http://localhost:" + at, nil
		}
		for _, l := range all {
			_ = l.Close()
		}
		if port != "0" || try == 10 { // a port that is free on one address may be taken on the other
			return nil, "", err
		}
	}
}

func portOf(l net.Listener) string { return strconv.Itoa(l.Addr().(*net.TCPAddr).Port) }

// Loopback reports whether only this machine can reach a host of an address.
func Loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && ip.Unmap().IsLoopback()
}

// everywhere reports whether listening on host means listening on all addresses.
func everywhere(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "" || err == nil && ip.Unmap().IsUnspecified()
}
