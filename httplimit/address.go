package httplimit

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/pglimit/pglimit/limiter"
)

// Address finds the client's address. Its method Key is the Key:
//
//	httplimit.Each(httplimit.Address{Hops: 1}.Key, perClient)
//
// The zero value trusts no header: the client is the connection's remote address. Behind
// proxies, set Hops or Proxies. Then Address reads the header from the right, where
// proxies append, and entries that the client sent never count. If an entry is missing
// or not an address, the key is the last address read before it, or else the
// connection's.
//
// A key is an address, such as "192.0.2.7", or a network, such as "2001:db8:1:2::/64".
// IPv4 addresses mapped into IPv6 are IPv4, and so are those behind a NAT64 with the
// well-known prefix, 64:ff9b::/96. Without that all IPv4 clients that such a translator
// forwards would share the limit of one /64. Zones are removed.
type Address struct {
	// Hops is the number of proxies that every request passes through: the client
	// is the Hops-th entry from the right. With 1 it is the address that the nearest
	// proxy saw. Use it only if the server is reachable through these proxies alone:
	// otherwise clients can forge their address. Range: 0 to 64. Default: 0, no proxy.
	Hops int
	// Proxies are the networks of trusted proxies, instead of Hops. The header is
	// read only if the connection comes from one of them. The client is the first
	// entry from the right that is in none of them. If all entries are, the client
	// is the leftmost of the last 64. Default: none.
	Proxies []netip.Prefix
	// Header is the header field that the proxies append to. Forwarded is parsed by
	// RFC 7239; any other, such as X-Real-Ip, like X-Forwarded-For. No other field is
	// read. Name one that the proxies write themselves: otherwise they may forward
	// what clients send. It needs Hops or Proxies. Default: X-Forwarded-For.
	Header string
	// IPv4Bits and IPv6Bits are the lengths of the network prefixes that are counted
	// as one client. A household or a rented server has a whole IPv6 /64 and can use
	// each address once. Ranges: 1 to 32, 1 to 128. Defaults: 32 and 64.
	IPv4Bits, IPv6Bits int
}

// maxEntries is the maximum number of header entries read.
const maxEntries = 64

// Validate returns nil if a is valid, or a limiter.ErrInvalid that names the field, its
// value and the range. Key calls Validate.
func (a Address) Validate() error {
	bad := func(field, value, reason string) error {
		return fmt.Errorf("%w: Address.%s %s: %s", limiter.ErrInvalid, field, value, reason)
	}
	switch {
	case a.Hops < 0 || a.Hops > maxEntries:
		return bad("Hops", strconv.Itoa(a.Hops), "must be from 0 to "+strconv.Itoa(maxEntries))
	case a.Hops > 0 && len(a.Proxies) > 0:
		return bad("Hops", strconv.Itoa(a.Hops), "cannot be combined with Proxies: set one of them")
	case a.Header != "" && a.Hops == 0 && len(a.Proxies) == 0:
		return bad("Header", strconv.Quote(a.Header), "needs Hops or Proxies, which select the trusted proxies")
	case a.IPv4Bits < 0 || a.IPv4Bits > 32:
		return bad("IPv4Bits", strconv.Itoa(a.IPv4Bits), "must be from 1 to 32, or 0 for 32")
	case a.IPv6Bits < 0 || a.IPv6Bits > 128:
		return bad("IPv6Bits", strconv.Itoa(a.IPv6Bits), "must be from 1 to 128, or 0 for 64")
	}
	for i, p := range a.Proxies {
		if !p.IsValid() || p.Addr().Is4In6() {
			return bad(fmt.Sprintf("Proxies[%d]", i), p.String(), "must be a network such as 10.0.0.0/8 or fd00::/8")
		}
	}
	return nil
}

// Key returns the client's address or network. It returns ErrNoKey if neither the
// connection, such as a Unix socket, nor the header has an address.
func (a Address) Key(r *http.Request) (string, error) {
	if err := a.Validate(); err != nil {
		return "", err
	}
	client, ok := a.client(r)
	if !ok {
		return "", ErrNoKey
	}
	client = translated(client)
	bits := a.IPv4Bits
	if client.Is6() {
		if bits = a.IPv6Bits; bits == 0 {
			bits = 64
		}
	}
	if bits == 0 || bits == client.BitLen() {
		return client.String(), nil
	}
	network, err := client.Prefix(bits)
	return network.String(), err
}

func (a Address) client(r *http.Request) (netip.Addr, bool) {
	client, ok := parseNode(r.RemoteAddr)
	if a.Hops == 0 && !(ok && a.trusts(client)) {
		return client, ok
	}
	entries := newForwarded(r.Header, a.Header)
	for n := 1; n <= maxEntries; n++ {
		entry, more := entries.next()
		if !more {
			break
		}
		addr, isAddr := parseNode(entry)
		if isAddr {
			client, ok = addr, true
		}
		if n == a.Hops || a.Hops == 0 && !(isAddr && a.trusts(addr)) {
			break
		}
	}
	return client, ok
}

// nat64 is the well-known prefix of RFC 6052. The IPv4 address is in the last 32 bits.
// Under other prefixes, such as 64:ff9b:1::/48 of RFC 8215, a network chooses its place.
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// translated returns the IPv4 address of a client behind a NAT64, and any other as it is.
// Proxies are compared before: a client in 64:ff9b::10.0.0.0/104 is not in 10.0.0.0/8.
func translated(client netip.Addr) netip.Addr {
	if b := client.As16(); nat64.Contains(client) {
		return netip.AddrFrom4([4]byte(b[12:]))
	}
	return client
}

func (a Address) trusts(addr netip.Addr) bool {
	return slices.ContainsFunc(a.Proxies, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// maxNode is longer than any address with brackets, zone, port and quotes.
const maxNode = 128

// parseNode parses an address with or without port, brackets and quotes.
func parseNode(s string) (netip.Addr, bool) {
	if len(s) > maxNode {
		return netip.Addr{}, false
	}
	if len(s) >= 2 && s[0] == '"' && s[len(s)-1] == '"' {
		s = s[1 : len(s)-1]
	}
	host, port, isV6 := s, "", false
	if inner, found := strings.CutPrefix(s, "["); found {
		if host, port, isV6 = strings.Cut(inner, "]"); !isV6 || port != "" && port[0] != ':' {
			return netip.Addr{}, false
		}
	} else if strings.Count(s, ":") == 1 {
		host, _, _ = strings.Cut(s, ":")
	}
	addr, err := netip.ParseAddr(host)
	if err != nil || isV6 && !addr.Is6() {
		return netip.Addr{}, false
	}
	return addr.Unmap().WithZone(""), true
}

// forwarded reads the entries of a header from the right, where proxies append, so that
// the client's part on the left cannot change how the proxies' entries are read.
type forwarded struct {
	lines []string // not begun yet
	line  string
	open  bool // line has another entry
	pairs bool // entries follow RFC 7239
}

func newForwarded(h http.Header, name string) forwarded {
	if name == "" {
		name = "X-Forwarded-For"
	}
	name = http.CanonicalHeaderKey(name)
	return forwarded{lines: h[name], pairs: name == "Forwarded"}
}

// next returns the next entry's address as written, and whether there was an entry.
// Empty entries count, so that a client cannot shift the others.
func (f *forwarded) next() (entry string, ok bool) {
	if !f.open {
		if len(f.lines) == 0 {
			return "", false
		}
		f.line, f.lines = f.lines[len(f.lines)-1], f.lines[:len(f.lines)-1]
	}
	separator := strings.LastIndexByte(f.line, ',')
	if f.pairs {
		separator = lastUnquoted(f.line, ',')
	}
	entry, f.open = strings.Trim(f.line[separator+1:], " \t"), separator >= 0
	if f.open {
		f.line = f.line[:separator]
	}
	if f.pairs {
		entry = forPair(entry)
	}
	return entry, true
}

// forPair returns the value of "for" in an entry such as for=192.0.2.60;proto=http, or ""
// if there is none or more than one.
func forPair(entry string) (node string) {
	for separator := len(entry); separator >= 0; {
		rest := entry[:separator]
		separator = lastUnquoted(rest, ';')
		name, value, _ := strings.Cut(rest[separator+1:], "=")
		if strings.EqualFold(strings.Trim(name, " \t"), "for") {
			if node != "" {
				return ""
			}
			node = strings.Trim(value, " \t")
		}
	}
	return node
}

// lastUnquoted returns the index of the last separator outside quoted strings, or -1. It
// reads from the right, so that an unmatched quote from the client, on the left, does not
// change the rest.
func lastUnquoted(s string, separator byte) int {
	for i := len(s) - 1; i >= 0; i-- {
		switch s[i] {
		case separator:
			return i
		case '"': // the end of a quoted string: skip to its begin
			for i--; i >= 0 && (s[i] != '"' || i > 0 && s[i-1] == '\\'); i-- { // the string contains only escaped quotes
			}
		}
	}
	return -1
}
