package httplimit

import (
	"errors"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/pglimit/pglimit/limiter"
)

// from returns a request from remote with header lines such as "Name: value".
func from(remote string, lines ...string) *http.Request {
	r := &http.Request{RemoteAddr: remote, Header: http.Header{}}
	for _, line := range lines {
		name, value, _ := strings.Cut(line, ": ")
		r.Header.Add(name, value)
	}
	return r
}

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

func TestAddress(t *testing.T) {
	const proxy = "10.0.0.1:4711"
	xff := func(values ...string) *http.Request {
		r := from(proxy)
		r.Header["X-Forwarded-For"] = values
		return r
	}
	fwd := func(values ...string) *http.Request {
		r := from(proxy)
		r.Header["Forwarded"] = values
		return r
	}
	hops := func(n int) Address { return Address{Hops: n} }
	trusted := Address{Proxies: prefixes("10.0.0.0/8", "2001:db8:ffff::/48")}
	rfc := Address{Hops: 1, Header: "forwarded"}
	rfcTrusted := Address{Proxies: trusted.Proxies, Header: "Forwarded"}
	for _, c := range []struct {
		name string
		a    Address
		r    *http.Request
		want string // "": ErrNoKey
	}{
		{"the connection", Address{}, from("192.0.2.7:4711"), "192.0.2.7"},
		{"without a port", Address{}, from("192.0.2.7"), "192.0.2.7"},
		{"/64", Address{}, from("[2001:db8:1:2:3:4:5:6]:4711"), "2001:db8:1:2::/64"},
		{"/48", Address{IPv6Bits: 48}, from("[2001:db8:1:2:3:4:5:6]:4711"), "2001:db8:1::/48"},
		{"/128", Address{IPv6Bits: 128}, from("[2001:db8::6]:4711"), "2001:db8::6"},
		{"/24", Address{IPv4Bits: 24}, from("192.0.2.7:4711"), "192.0.2.0/24"},
		{"/32", Address{IPv4Bits: 32, IPv6Bits: 1}, from("192.0.2.7:4711"), "192.0.2.7"},
		{"NAT64", Address{}, from("[64:ff9b::c000:207]:4711"), "192.0.2.7"},
		{"NAT64, /24", Address{IPv4Bits: 24}, from("[64:ff9b::192.0.2.7]:4711"), "192.0.2.0/24"},
		{"NAT64, /128", Address{IPv6Bits: 128}, from("[64:ff9b::192.0.2.7]:4711"), "192.0.2.7"},
		{"NAT64, one hop", hops(1), xff("64:ff9b::192.0.2.7"), "192.0.2.7"},
		{"NAT64, next to the prefix", Address{}, from("[64:ff9b:0:0:0:1:c000:207]:4711"), "64:ff9b::/64"},
		{"NAT64, a network's prefix", Address{}, from("[64:ff9b:1::c000:207]:4711"), "64:ff9b:1::/64"},
		{"NAT64, a client is no proxy", trusted, from("[64:ff9b::10.0.0.1]:1", "X-Forwarded-For: 192.0.2.7"), "10.0.0.1"},
		{"6to4", Address{}, from("[2002:c000:207::1]:4711"), "2002:c000:207::/64"},
		{"unix socket", Address{}, from("@"), ""},
		{"unix socket, a header", Address{}, from("@", "X-Forwarded-For: 192.0.2.7"), ""},
		{"no header is trusted", Address{}, from("203.0.113.9:1", "X-Forwarded-For: 192.0.2.7", "Forwarded: for=192.0.2.7"), "203.0.113.9"},

		{"one hop", hops(1), xff("192.0.2.7"), "192.0.2.7"},
		{"fewer entries than hops", hops(3), xff("192.0.2.7, 10.0.0.2"), "192.0.2.7"},
		{"no entry", hops(2), from(proxy), "10.0.0.1"},
		{"the other header", hops(1), from(proxy, "Forwarded: for=192.0.2.7"), "10.0.0.1"},
		{"an entry that is not an address", hops(2), xff("198.51.100.1, unknown, 10.0.0.2"), "10.0.0.2"},
		{"an entry without address between", hops(2), xff("192.0.2.7, unix:"), "192.0.2.7"},
		{"empty entries count", hops(2), xff("198.51.100.1, 192.0.2.7,, 10.0.0.2"), "10.0.0.2"},
		{"an empty line counts", hops(1), xff("198.51.100.1", ""), "10.0.0.1"},
		{"behind a unix socket", hops(1), from("@", "X-Forwarded-For: 198.51.100.1, 192.0.2.7"), "192.0.2.7"},
		{"behind a unix socket, nothing", hops(1), from("@", "X-Forwarded-For: unknown"), ""},
		{"a long zone", hops(1), xff("fe80::1%" + strings.Repeat("z", 1<<20)), "10.0.0.1"},
		{"another header", Address{Hops: 1, Header: "x-real-ip"}, from(proxy, "X-Real-Ip: 192.0.2.7", "X-Forwarded-For: 198.51.100.1"), "192.0.2.7"},

		{"trusted", trusted, xff("198.51.100.1, 192.0.2.7, 10.9.9.9, 2001:db8:ffff::1"), "192.0.2.7"},
		{"the connection is not trusted", trusted, from("203.0.113.9:1", "X-Forwarded-For: 192.0.2.7"), "203.0.113.9"},
		{"a unix socket is not trusted", trusted, from("@", "X-Forwarded-For: 192.0.2.7"), ""},
		{"a mapped proxy", trusted, from("[::ffff:10.0.0.1]:1", "X-Forwarded-For: 192.0.2.7, ::ffff:10.0.0.2"), "192.0.2.7"},
		{"all trusted", trusted, xff("10.0.0.4, 10.0.0.3"), "10.0.0.4"},
		{"no header", trusted, from(proxy), "10.0.0.1"},
		{"an invalid entry ends the search", trusted, xff("192.0.2.7, unknown, 10.0.0.3"), "10.0.0.3"},
		{"an empty entry ends the search", trusted, xff("192.0.2.7,, 10.0.0.3"), "10.0.0.3"},
		{"at most 64 entries", trusted, xff(strings.Repeat("192.0.2.7,", 1000) + strings.Repeat("10.0.0.4,", 64) + "10.0.0.3"), "10.0.0.4"},

		{"RFC 7239", rfc, fwd(`for=192.0.2.7;proto=http;by=203.0.113.43`), "192.0.2.7"},
		{"RFC 7239, IPv6", rfc, fwd(`for=198.51.100.1, For="[2001:db8:cafe::17]:4711"`), "2001:db8:cafe::/64"},
		{"RFC 7239, last pair", rfc, fwd(`proto=https; host="a,b;for=x\"\\" ; FOR = "192.0.2.7:80"`), "192.0.2.7"},
		{"RFC 7239, obfuscated", rfc, fwd(`for=192.0.2.7, for=_hidden`), "10.0.0.1"},
		{"RFC 7239, unknown", rfc, fwd(`for=192.0.2.7, for="unknown:80"`), "10.0.0.1"},
		{"RFC 7239, no for", rfc, fwd(`for=192.0.2.7, proto=http`), "10.0.0.1"},
		{"RFC 7239, all in quotes", rfc, fwd(`"for=192.0.2.7"`), "10.0.0.1"},
		{"RFC 7239, as X-Forwarded-For", rfc, fwd(`192.0.2.7`), "10.0.0.1"},
		{"RFC 7239, trusted", rfcTrusted, fwd(`for=198.51.100.1, for=192.0.2.7, for=10.0.0.3;by="[2001:db8:ffff::1]"`), "192.0.2.7"},
	} {
		got, err := c.a.Key(c.r)
		if c.want == "" {
			if !errors.Is(err, ErrNoKey) {
				t.Errorf("%s: got %q, %v", c.name, got, err)
			}
		} else if got != c.want || err != nil {
			t.Errorf("%s: got %q, %v, want %q", c.name, got, err, c.want)
		}
	}
}

func TestAddressValidate(t *testing.T) {
	for want, a := range map[string]Address{
		`Address.Hops -1: must be from 0 to 64`:                                                    {Hops: -1},
		`Address.Hops 65: must be from 0 to 64`:                                                    {Hops: 65},
		`Address.Hops 1: cannot be combined with Proxies: set one of them`:                         {Hops: 1, Proxies: prefixes("10.0.0.0/8")},
		`Address.Header "Forwarded": needs Hops or Proxies, which select the trusted proxies`:      {Header: "Forwarded"},
		`Address.IPv4Bits 33: must be from 1 to 32, or 0 for 32`:                                   {IPv4Bits: 33},
		`Address.IPv6Bits -1: must be from 1 to 128, or 0 for 64`:                                  {IPv6Bits: -1},
		`Address.Proxies[1] invalid Prefix: must be a network such as 10.0.0.0/8 or fd00::/8`:      {Proxies: append(prefixes("10.0.0.0/8"), netip.Prefix{})},
		`Address.Proxies[0] ::ffff:10.0.0.0/104: must be a network such as 10.0.0.0/8 or fd00::/8`: {Proxies: prefixes("::ffff:10.0.0.0/104")},
	} {
		err := a.Validate()
		if !errors.Is(err, limiter.ErrInvalid) || err.Error() != "pglimit: invalid: "+want {
			t.Errorf("got %v, want %s", err, want)
		}
		if key, again := a.Key(from("192.0.2.7:1")); again == nil || again.Error() != err.Error() || key != "" {
			t.Errorf("Key: got %q, %v, want the error of Validate", key, again)
		}
	}
	for _, a := range []Address{{}, {Hops: 64, IPv4Bits: 32, IPv6Bits: 128}, {Proxies: prefixes("0.0.0.0/0", "::/0"), Header: "Forwarded"}} {
		if err := a.Validate(); err != nil {
			t.Errorf("%+v: %v", a, err)
		}
	}
}

// fuzz checks that the client is the address that the proxy appended, whatever the client
// sends and in however many lines.
func fuzz(f *testing.F, header string, appended ...string) {
	for _, sent := range []string{"", ",", "198.51.100.1", "for=198.51.100.1", `for="198.51.100.1`, `for="\`, `for="x\", for="`, `"`, `\"`, `;`, `for=";`, ",,,", "\x00", `";for="`} {
		f.Add(sent, "", true)
		f.Add("for=10.0.0.9, "+sent, sent, false)
	}
	f.Fuzz(func(t *testing.T, first, last string, line bool) {
		for _, by := range appended {
			r := from("10.0.0.1:1")
			switch {
			case line:
				r.Header[header] = []string{first, last, by}
			case last == "": // to the proxy an empty header and none are the same
				r.Header[header] = []string{first, by}
			default:
				r.Header[header] = []string{first, last + ", " + by}
			}
			for _, a := range []Address{{Hops: 1, Header: header}, {Proxies: prefixes("10.0.0.0/8"), Header: header}} {
				if key, err := a.Key(r); key != "192.0.2.7" || err != nil {
					t.Errorf("%q: %q, %v", r.Header, key, err)
				}
			}
			if header == "Forwarded" { // an entry with two clients has none
				r := from("10.0.0.1:1")
				r.Header[header] = []string{first, by + ";FOR=198.51.100.2"}
				if key, err := (Address{Hops: 1, Header: header}).Key(r); key != "10.0.0.1" || err != nil {
					t.Errorf("%q: %q, %v", r.Header, key, err)
				}
			}
			// With more hops, or with every address trusted: no panic, and a key.
			for _, a := range []Address{{Hops: 5, Header: header}, {Proxies: prefixes("0.0.0.0/0", "::/0"), Header: header}} {
				if key, err := a.Key(r); key == "" || err != nil {
					t.Errorf("%q: %q, %v", r.Header, key, err)
				}
			}
		}
	})
}

// FuzzXForwardedFor: no header that a client sends changes what a proxy appended to X-Forwarded-For.
func FuzzXForwardedFor(f *testing.F) {
	fuzz(f, "X-Forwarded-For", "192.0.2.7", "192.0.2.7:4711", "::ffff:192.0.2.7", `"192.0.2.7"`)
}

// FuzzForwarded: no header that a client sends changes what a proxy appended to Forwarded.
func FuzzForwarded(f *testing.F) {
	fuzz(f, "Forwarded", "for=192.0.2.7", `For="192.0.2.7:4711"`, `for=192.0.2.7;by=10.0.0.1;host="a\"b\\";proto=https`,
		`host="\\\", for=198.51.100.1";for="[::ffff:192.0.2.7]"`)
}
