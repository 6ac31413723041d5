package specgen_test

import (
	"regexp"
	"testing"

	"github.com/fastrelay/fastrelay-gen/gen/expr"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/test/specgen"
)

// TestWords wants every type and every function of the language in random specs: what they don't say is not compared.
func TestWords(t *testing.T) {
	missing := map[string]*regexp.Regexp{}
	for _, w := range ir.Words() {
		missing["type "+w] = regexp.MustCompile(`"` + w + `"`)
	}
	for _, f := range expr.Functions() {
		missing["function "+f] = regexp.MustCompile(`\b` + f + `\(`)
	}
	missing["IP as it comes"] = regexp.MustCompile(`"ip_any"`)
	missing["IPv4 as it comes"] = regexp.MustCompile(`"ipv4_any"`)
	missing["checksum that is left out"] = regexp.MustCompile(`checksum: 0\b`)
	missing["checksum that is computed"] = regexp.MustCompile(`checksum: "computed"`)
	missing["checksum of 0 that is accepted"] = regexp.MustCompile(`zero_checksum: true`)
	missing["checksum that is verified before a rule learns"] = regexp.MustCompile(`\{learn: .*, verified: "`)
	missing["row that ends with a session"] = regexp.MustCompile(`\{learn: .*, with: "`)
	missing["kernel's route"] = regexp.MustCompile(`\{send: via: "route"\}`)
	missing["action blank"] = regexp.MustCompile(`\{blank: "`)
	missing["drop of what a credit refuses"] = regexp.MustCompile(`else: \{drop: "over_`)
	missing["program that runs without a lease"] = regexp.MustCompile(`when: "lapsed"`)
	missing["type with a value for each level of priority"] = regexp.MustCompile(`: "\w+\[priority\]"`)
	missing["value for the packet's level"] = regexp.MustCompile(`\.\w+\[priority\]`)
	missing["part of an endpoint for a level"] = regexp.MustCompile(`\]\.(addr|port)\b`)
	missing["headers among which rows choose"] = regexp.MustCompile(`\], by: "lookup"\}`)
	missing["program that runs at XDP, too"] = regexp.MustCompile(`hook: \["xdp", "tc/ingress"\]`)
	missing["program that runs at XDP alone"] = regexp.MustCompile(`hook: "xdp"`)
	missing["hook without a packet"] = regexp.MustCompile(`hook: "tcp/congestion"`)
	missing["index of a level"] = regexp.MustCompile(`\[\(.*\) % \d\]`)
	missing["session with two rows in one table"] =
		regexp.MustCompile(`(?s)rows: \{\s+"?\w+"?: \[\{key: .*\}, \{key: `)
	missing["session with a counter"] = regexp.MustCompile(`fields: \{[^}]*"counter"`)
	missing["session with a credit"] = regexp.MustCompile(`fields: \{[^}]*"credit"`)
	missing["session with a bucket for each level of priority"] =
		regexp.MustCompile(`fields: \{[^}]*"bucket\[priority\]"`)
	missing["value with the name of a field"] = regexp.MustCompile(`\{let: \{(src_port|dst|type)\b`)
	for seed := uint64(0); seed < 1000 && len(missing) > 0; seed++ {
		text := specgen.Generate(seed)
		for what, re := range missing {
			if re.Match(text) {
				delete(missing, what)
			}
		}
	}
	for what := range missing {
		t.Errorf("no random spec has the %s", what)
	}
}
