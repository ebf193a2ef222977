package conformance

import "github.com/pglimit/pglimit/limiter"

// Matches has keys, and whether an override with a Match is for them. The library and the SQL
// functions answer alike.
var Matches = []struct {
	Match     limiter.Match
	Text, Key string
	Want      bool
}{
	{limiter.MatchPrefix, "bot-", "bot-1", true},
	{limiter.MatchPrefix, "bot-", "bot-", true},
	{limiter.MatchPrefix, "bot-", "bot", false},
	{limiter.MatchPrefix, "bot-", "Bot-1", false},
	{limiter.MatchPrefix, "bot-", "a:bot-1", false},
	{limiter.MatchPrefix, "50%", "50x", false},
	{limiter.MatchPrefix, "*", "bot", false},
	{limiter.MatchPrefix, "é", "été", true},
	{limiter.MatchPattern, "*@spam.example", "a@spam.example", true},
	{limiter.MatchPattern, "*@spam.example", "@spam.example", true},
	{limiter.MatchPattern, "*@spam.example", "a@spam.examples", false},
	{limiter.MatchPattern, "*@spam.example", "a@spamXexample", false},
	{limiter.MatchPattern, "bot-*-x", "bot-1-x-x", true},
	{limiter.MatchPattern, "bot-*-x", "bot-x", false},
	{limiter.MatchPattern, "a?c", "abc", true},
	{limiter.MatchPattern, "a?c", "aéc", true},
	{limiter.MatchPattern, "a?c", "ac", false},
	{limiter.MatchPattern, "a?c", "abbc", false},
	{limiter.MatchPattern, "a_c", "abc", false},
	{limiter.MatchPattern, "a%c", "abc", false},
	{limiter.MatchPattern, `a\*c`, `a\bc`, true},
	{limiter.MatchPattern, `a\*c`, "abc", false},
	{limiter.MatchPattern, "a*a", "a", false},
	{limiter.MatchPattern, "a**", "a", true},
	{limiter.MatchPattern, "*", "a\nb", true},
	{limiter.MatchPattern, "ab", "ab", true},
	{limiter.MatchPattern, "ab", "abc", false},
	{limiter.MatchCIDR, "203.0.113.0/24", "203.0.113.9", true},
	{limiter.MatchCIDR, "203.0.113.0/24", "203.0.114.9", false},
	{limiter.MatchCIDR, "203.0.113.0/24", "alice:203.0.113.9", true},
	{limiter.MatchCIDR, "203.0.113.0/24", "203.0.113.9:alice", false},
	{limiter.MatchCIDR, "203.0.113.0/24", `alice\:203.0.113.9`, false}, // one part
	{limiter.MatchCIDR, "203.0.113.0/24", `alice\\:203.0.113.9`, true},
	{limiter.MatchCIDR, "203.0.113.0/24", "::ffff:203.0.113.9", true},
	{limiter.MatchCIDR, "203.0.113.0/24", "::FFFF:cb00:7109", true},
	{limiter.MatchCIDR, "203.0.113.0/24", `x:\:\:ffff\:203.0.113.9`, true},
	{limiter.MatchCIDR, "203.0.113.0/24", "203.0.113.128/25", true},
	{limiter.MatchCIDR, "203.0.113.0/24", "203.0.113.9/16", false},
	{limiter.MatchCIDR, "203.0.113.0/24", "203.0.113.09", false},
	{limiter.MatchCIDR, "203.0.113.0/24", "203.0.113", false},
	{limiter.MatchCIDR, "203.0.113.0/24", "203.0.113.9/33", false},
	{limiter.MatchCIDR, "203.0.113.0/24", "203.0.113.9/", false},
	{limiter.MatchCIDR, "203.0.113.0/24", "203.0.113.9 ", false},
	{limiter.MatchCIDR, "203.0.113.0/24", "alice", false},
	{limiter.MatchCIDR, "203.0.113.9/32", "203.0.113.9", true},
	{limiter.MatchCIDR, "203.0.113.9/32", "203.0.113.8", false},
	{limiter.MatchCIDR, "0.0.0.0/0", "::1", false},
	{limiter.MatchCIDR, "0.0.0.0/0", "1.2.3.4", true},
	{limiter.MatchCIDR, "::/0", "1.2.3.4", false},
	{limiter.MatchCIDR, "::/0", "::1", true},
	{limiter.MatchCIDR, "2001:db8::/32", "2001:db8:1:2::/64", true},
	{limiter.MatchCIDR, "2001:db8::/32", "2001:DB8::1", true},
	{limiter.MatchCIDR, "2001:db8::/32", "2001:db9::1", false},
	{limiter.MatchCIDR, "2001:db8::/32", `bob:2001\:db8\:\:1`, true},
	{limiter.MatchCIDR, "2001:db8::/32", "bob:2001:db8::1", false},
	{limiter.MatchCIDR, "2001:db8:1:2::/64", "2001:db8::/32", false},
	{limiter.MatchCIDR, "fe80::/10", "fe80::1%eth0", false},
}
