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
// The zero value believes no header: the client is whoever is connected. Behind
// proxies, say which to believe, by Hops or by Proxies; then their header is read
// from the right, where they append to it, and what the client itself has sent never
// counts. An entry that is no address, or that is missing, gives the nearest
// address known before it, in the end the connection's.
//
// A key is an address, such as "192.0.2.7", or a network, such as
// "2001:db8:1:2::/64". IPv4 addresses mapped into IPv6 are IPv4, and zones are left
// out.
type Address struct {
	// Hops is how many proxies every request passes through: the client is the
	// Hops-th entry from the right. 1 is what the proxy nearest to this server
	// saw. For servers that are reached through those proxies alone: who reaches
	// them otherwise can pass for anyone. 0, the default, counts none.
	Hops int
	// Proxies are the networks of trusted proxies, instead of Hops: a header is
	// read only if the connection comes from one of them, and the client is the
	// first from the right that is none of them; if all are, the leftmost of 64.
	Proxies []netip.Prefix
	// Header is the one that the proxies append to: "" is X-Forwarded-For;
	// Forwarded is read as RFC 7239 has it; any other, such as X-Real-Ip, as
	// X-Forwarded-For is. Proxies hand on what clients send in one that they do not
	// write themselves. No other header is looked at. It is for use with Hops or
	// Proxies.
	Header string
	// IPv4Bits and IPv6Bits are how many bits of an address tell clients apart. 0
	// is 32, the whole address, and 64, for a household or a rented server has so
	// many IPv6 addresses as to never use one twice. At most 32 and 128.
	IPv4Bits, IPv6Bits int
}

// maxEntries bounds what is read of a header.
const maxEntries = 64

// Validate returns nil if Key can find addresses by a, else a
// limiter.ErrInvalid that names the field. Key validates by itself.
func (a Address) Validate() error {
	bad := func(field, value, reason string) error {
		return fmt.Errorf("%w: Address.%s %s: %s", limiter.ErrInvalid, field, value, reason)
	}
	switch {
	case a.Hops < 0 || a.Hops > maxEntries:
		return bad("Hops", strconv.Itoa(a.Hops), "must be from 0 to "+strconv.Itoa(maxEntries))
	case a.Hops > 0 && len(a.Proxies) > 0:
		return bad("Hops", strconv.Itoa(a.Hops), "is for use without Proxies: choose one of them")
	case a.Header != "" && a.Hops == 0 && len(a.Proxies) == 0:
		return bad("Header", strconv.Quote(a.Header), "is for use with Hops or Proxies, which say whom to believe")
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

// Key is the client's address. A request whose connection has none, as over a Unix
// socket, and that no header says more of, is ErrNoKey.
func (a Address) Key(r *http.Request) (string, error) {
	if err := a.Validate(); err != nil {
		return "", err
	}
	client, ok := a.client(r)
	if !ok {
		return "", ErrNoKey
	}
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

func (a Address) trusts(addr netip.Addr) bool {
	return slices.ContainsFunc(a.Proxies, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// maxNode is more than the longest address takes, with brackets, zone, port and
// quotes.
const maxNode = 128

// parseNode reads an address with or without port, brackets and quotes.
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

// forwarded reads the entries of a header that proxies append to, from the right,
// so that what they have appended is read the same whatever stands left of it.
type forwarded struct {
	lines []string // not begun yet
	line  string
	open  bool // line has another entry
	pairs bool // entries are those of RFC 7239
}

func newForwarded(h http.Header, name string) forwarded {
	if name == "" {
		name = "X-Forwarded-For"
	}
	name = http.CanonicalHeaderKey(name)
	return forwarded{lines: h[name], pairs: name == "Forwarded"}
}

// next is the next entry's address as it is written, and whether there was an
// entry. Empty ones count: nothing that a client can send moves the others.
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

// forPair is the value of the one "for" of an entry such as for=192.0.2.60;proto=http.
// It is empty where there is none, or more than one.
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

// lastUnquoted is the index of the last separator that is not in a quoted string,
// or -1. It reads from the right: quotes that do not match at the left, where the
// client writes, change nothing of what is right of them.
func lastUnquoted(s string, separator byte) int {
	for i := len(s) - 1; i >= 0; i-- {
		switch s[i] {
		case separator:
			return i
		case '"': // it ends a quoted string: on to where that begins
			for i--; i >= 0 && (s[i] != '"' || i > 0 && s[i-1] == '\\'); i-- { // only escaped ones are within
			}
		}
	}
	return -1
}
