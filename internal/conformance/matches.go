package conformance

import "github.com/pglimit/pglimit/policies"

// Matches has keys, and whether an override with a Match is for them. The library and the SQL
// functions answer alike.
var Matches = []struct {
	Match     policies.Match
	Text, Key string
	Want      bool
}{
	{policies.MatchPrefix, "bot-", "bot-1", true},
	{policies.MatchPrefix, "bot-", "bot-", true},
	{policies.MatchPrefix, "bot-", "bot", false},
	{policies.MatchPrefix, "bot-", "Bot-1", false},
	{policies.MatchPrefix, "bot-", "a:bot-1", false},
	{policies.MatchPrefix, "50%", "50x", false},
	{policies.MatchPrefix, "*", "bot", false},
	{policies.MatchPrefix, "é", "été", true},
	{policies.MatchPattern, "*@spam.example", "a@spam.example", true},
	{policies.MatchPattern, "*@spam.example", "@spam.example", true},
	{policies.MatchPattern, "*@spam.example", "a@spam.examples", false},
	{policies.MatchPattern, "*@spam.example", "a@spamXexample", false},
	{policies.MatchPattern, "bot-*-x", "bot-1-x-x", true},
	{policies.MatchPattern, "bot-*-x", "bot-x", false},
	{policies.MatchPattern, "a?c", "abc", true},
	{policies.MatchPattern, "a?c", "aéc", true},
	{policies.MatchPattern, "a?c", "ac", false},
	{policies.MatchPattern, "a?c", "abbc", false},
	{policies.MatchPattern, "a_c", "abc", false},
	{policies.MatchPattern, "a%c", "abc", false},
	{policies.MatchPattern, `a\*c`, `a\bc`, true},
	{policies.MatchPattern, `a\*c`, "abc", false},
	{policies.MatchPattern, "a*a", "a", false},
	{policies.MatchPattern, "a**", "a", true},
	{policies.MatchPattern, "*", "a\nb", true},
	{policies.MatchPattern, "ab", "ab", true},
	{policies.MatchPattern, "ab", "abc", false},
	{policies.MatchCIDR, "203.0.113.0/24", "203.0.113.9", true},
	{policies.MatchCIDR, "203.0.113.0/24", "203.0.114.9", false},
	{policies.MatchCIDR, "203.0.113.0/24", "alice:203.0.113.9", true},
	{policies.MatchCIDR, "203.0.113.0/24", "203.0.113.9:alice", false},
	{policies.MatchCIDR, "203.0.113.0/24", `alice\:203.0.113.9`, false}, // one part
	{policies.MatchCIDR, "203.0.113.0/24", `alice\\:203.0.113.9`, true},
	{policies.MatchCIDR, "203.0.113.0/24", "::ffff:203.0.113.9", true},
	{policies.MatchCIDR, "203.0.113.0/24", "::FFFF:cb00:7109", true},
	{policies.MatchCIDR, "203.0.113.0/24", `x:\:\:ffff\:203.0.113.9`, true},
	{policies.MatchCIDR, "203.0.113.0/24", "203.0.113.128/25", true},
	{policies.MatchCIDR, "203.0.113.0/24", "203.0.113.9/16", false},
	{policies.MatchCIDR, "203.0.113.0/24", "203.0.113.09", false},
	{policies.MatchCIDR, "203.0.113.0/24", "203.0.113", false},
	{policies.MatchCIDR, "203.0.113.0/24", "203.0.113.9/33", false},
	{policies.MatchCIDR, "203.0.113.0/24", "203.0.113.9/", false},
	{policies.MatchCIDR, "203.0.113.0/24", "203.0.113.9 ", false},
	{policies.MatchCIDR, "203.0.113.0/24", "alice", false},
	{policies.MatchCIDR, "203.0.113.9/32", "203.0.113.9", true},
	{policies.MatchCIDR, "203.0.113.9/32", "203.0.113.8", false},
	{policies.MatchCIDR, "0.0.0.0/0", "::1", false},
	{policies.MatchCIDR, "0.0.0.0/0", "1.2.3.4", true},
	{policies.MatchCIDR, "::/0", "1.2.3.4", false},
	{policies.MatchCIDR, "::/0", "::1", true},
	{policies.MatchCIDR, "2001:db8::/32", "2001:db8:1:2::/64", true},
	{policies.MatchCIDR, "2001:db8::/32", "2001:DB8::1", true},
	{policies.MatchCIDR, "2001:db8::/32", "2001:db9::1", false},
	{policies.MatchCIDR, "2001:db8::/32", `bob:2001\:db8\:\:1`, true},
	{policies.MatchCIDR, "2001:db8::/32", "bob:2001:db8::1", false},
	{policies.MatchCIDR, "2001:db8:1:2::/64", "2001:db8::/32", false},
	{policies.MatchCIDR, "fe80::/10", "fe80::1%eth0", false},
}
