package policies

import (
	"maps"
	"net/netip"
	"slices"
	"sort"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pglimit/pglimit/limiter"
)

// add adds to r what an override decides that has not ended. Of several blocks the longest counts.
func add(r *limiter.Ruling, e *effect) {
	switch {
	case e.unlimited:
		r.Unlimited = true
	case !e.blocked:
	case !r.Blocked:
		r.Blocked, r.Until = true, e.until()
	case e.untilUs == 0 || !r.Until.IsZero() && e.until().After(r.Until):
		r.Until = e.until()
	}
}

// until returns the end of an override; zero for none.
func (e *effect) until() (at time.Time) {
	if e.untilUs != 0 {
		at = time.UnixMicro(e.untilUs)
	}
	return at
}

// rule names an override with a Match.
type rule struct {
	match Match
	text  string
}

// ruleSet is the overrides of a policy that have a Match. It does not change once it is
// compiled. The function pglimit._ruled decides alike.
type ruleSet struct {
	rows     map[rule]effect
	prefixes prefixes // of keys
	networks prefixes // of addresses, as binary digits
	patterns []pattern
}

// all returns the rows, also of nil.
func (s *ruleSet) all() map[rule]effect {
	if s == nil {
		return nil
	}
	return s.rows
}

// clone returns a copy that is not compiled; of nil, nil.
func (s *ruleSet) clone() *ruleSet {
	if s == nil {
		return nil
	}
	return &ruleSet{rows: maps.Clone(s.rows)}
}

func (s *ruleSet) compile() {
	if s == nil || len(s.prefixes)+len(s.networks)+len(s.patterns) > 0 {
		return
	}
	for r, e := range s.rows {
		switch r.match {
		case MatchPrefix:
			s.prefixes = append(s.prefixes, prefix{text: r.text, effect: e})
		case MatchCIDR:
			network, _ := netip.ParsePrefix(r.text)
			s.networks = append(s.networks, prefix{text: digits(network), effect: e})
		default:
			s.patterns = append(s.patterns, pattern{r.text, r.text[strings.LastIndexAny(r.text, "*?")+1:], e})
		}
	}
	s.prefixes.link()
	s.networks.link()
}

// ruling returns what the rules decide about a key: one that lets it pass comes before those
// that block it.
func (s *ruleSet) ruling(key string, now func() time.Time) (r limiter.Ruling) {
	s.prefixes.add(&r, key, now)
	for i := range s.patterns {
		if p := &s.patterns[i]; strings.HasSuffix(key, p.tail) && glob(p.text, key) && !p.effect.ended(now) {
			add(&r, &p.effect)
		}
	}
	if len(s.networks) > 0 {
		if network, ok := addressOf(key); ok {
			s.networks.add(&r, digits(network), now)
		}
	}
	return r
}

// concerns reports whether an override that has key, or a Match, applies to key at a time.
func (o *Override) concerns(key string, at time.Time) bool {
	e, now := o.effect(), func() time.Time { return at }
	if o.Match == "" {
		return !e.ended(now)
	}
	s := ruleSet{rows: map[rule]effect{{o.Match, o.Key}: e}}
	s.compile()
	r := s.ruling(key, now)
	return r.Unlimited || r.Blocked
}

// before reports whether o decides before p about a key that both concern: see Override.
func (o *Override) before(p *Override) bool {
	rank := func(o *Override) int {
		switch {
		case !o.Unlimited && !o.Blocked:
			return 3
		case o.Match == "":
			return 0
		case o.Unlimited:
			return 1
		}
		return 2
	}
	if a, b := rank(o), rank(p); a != b || a != 2 {
		return a < b
	}
	return o.Until.IsZero() || !p.Until.IsZero() && o.Until.After(p.Until) // the longest block
}

// pattern is a text with * and ?. All keys that match it end with tail.
type pattern struct {
	text, tail string
	effect     effect
}

// prefixes are texts in order, each with the longest other one that it begins with.
type prefixes []prefix

type prefix struct {
	text   string
	effect effect
	longer int // the index of that one; -1: none
}

func (all prefixes) link() {
	slices.SortFunc(all, func(a, b prefix) int { return strings.Compare(a.text, b.text) })
	for i := range all {
		all[i].longer = all.of(all[i].text, i-1)
	}
}

// of returns the index of the longest prefix of text among those up to i, which are not above
// text; -1 for none.
func (all prefixes) of(text string, i int) int {
	for i >= 0 && !strings.HasPrefix(text, all[i].text) {
		i = all[i].longer
	}
	return i
}

// add adds to r what the prefixes of text decide.
func (all prefixes) add(r *limiter.Ruling, text string, now func() time.Time) {
	i := all.of(text, sort.Search(len(all), func(i int) bool { return all[i].text > text })-1)
	for ; i >= 0; i = all[i].longer {
		if e := &all[i].effect; !e.ended(now) {
			add(r, e)
		}
	}
}

// digits returns the family of a network and the binary digits of its prefix. One network is
// in another if its digits begin with those of the other.
func digits(network netip.Prefix) string {
	bytes := network.Addr().As16()
	address, family := bytes[:], byte('6')
	if network.Addr().Is4() {
		address, family = bytes[12:], '4'
	}
	text := make([]byte, 1, 1+128)
	text[0] = family
	for i := range network.Bits() {
		text = append(text, '0'+address[i/8]>>(7-i%8)&1)
	}
	return string(text)
}

// addressOf returns the address or the network that a key is, or that is its last part.
func addressOf(key string) (network netip.Prefix, ok bool) {
	if network, ok = parseAddress(key); ok {
		return network, ok
	}
	last := 0
	for i := 0; i < len(key); i++ {
		switch key[i] {
		case '\\':
			i++
		case ':':
			last = i + 1
		}
	}
	return parseAddress(strings.ReplaceAll(key[last:], `\:`, ":"))
}

// parseAddress parses an address, or a network. An IPv4 address that is mapped into IPv6 is
// IPv4.
func parseAddress(text string) (network netip.Prefix, ok bool) {
	if strings.Trim(text, "0123456789abcdefABCDEF.:/") != "" { // the usual case needs no error
		return network, false
	}
	if strings.IndexByte(text, '/') >= 0 {
		network, err := netip.ParsePrefix(text)
		return network, err == nil
	}
	address, err := netip.ParseAddr(text)
	address = address.Unmap()
	return netip.PrefixFrom(address, address.BitLen()), err == nil
}

// badNetwork returns why text is not a network, or nothing.
func badNetwork(text string) (reason string) {
	const help = "must be a network such as 203.0.113.0/24 or 2001:db8::/32"
	network, err := netip.ParsePrefix(text)
	switch {
	case err != nil, network.Addr().Is4In6(), text != strings.ToLower(text):
		return help
	case network != network.Masked():
		return help + "; this address is in " + network.Masked().String()
	}
	return ""
}

// glob reports whether a pattern matches a whole text: * is any characters, and ? is any one.
// What is between two * is looked for once, so a step is for a byte, and for a ? at each byte.
func glob(pattern, text string) bool {
	part, pattern, star := strings.Cut(pattern, "*")
	text, ok := begins(text, part)
	for ok && star {
		if part, pattern, star = strings.Cut(pattern, "*"); star {
			text, ok = find(text, part)
			continue
		}
		for range utf8.RuneCountInString(text) - utf8.RuneCountInString(part) { // the last part is at the end
			text = text[width(text):]
		}
		text, ok = begins(text, part)
	}
	return ok && text == ""
}

// begins returns what follows the part of a pattern, without *, that text begins with.
func begins(text, part string) (after string, ok bool) {
	for {
		piece, more, one := strings.Cut(part, "?")
		if text, ok = strings.CutPrefix(text, piece); !ok || !one {
			return text, ok
		}
		if text == "" {
			return "", false
		}
		part, text = more, text[width(text):]
	}
}

// find returns what follows the first place in text of a part of a pattern.
func find(text, part string) (after string, ok bool) {
	piece, _, _ := strings.Cut(part, "?")
	for {
		at := strings.Index(text, piece)
		if at < 0 {
			return "", false
		}
		if after, ok = begins(text[at:], part); ok || text[at:] == "" {
			return after, ok
		}
		text = text[at+width(text[at:]):]
	}
}

// width returns the length of a text's first character in bytes.
func width(text string) int {
	_, n := utf8.DecodeRuneInString(text)
	return n
}
