package cli

import (
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/fastrelay/fastrelay-gen/internal/literal"
	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// readValue reads a value of the kind as a person writes it: 3478, 0x4001, true, 00:11:22:33:44:55, 192.0.2.1,
// [2001:db8::1]:3478, 203.0.113.0/24; bytes in hexadecimal. A counter takes an integer, its
// first value; a credit its limit; a bucket its rate and its burst, 125000/30000.
func readValue(kind abi.Kind, text string) (any, error) {
	text = strings.TrimSpace(text)
	var v any
	var err error
	what := ""
	switch kind {
	case abi.KindUint, abi.KindCounter, abi.KindCredit:
		v, err = strconv.ParseUint(text, 0, 64)
		what = "an integer such as 3478 or 0x4001"
	case abi.KindBool:
		v, err = strconv.ParseBool(text)
		what = "true or false"
	case abi.KindBytes:
		v, err = hex.DecodeString(strings.TrimPrefix(text, "0x"))
		what = "bytes in hexadecimal"
	case abi.KindMAC:
		v, err = literal.Mac(text)
		what = "a link-layer address such as 00:11:22:33:44:55"
	case abi.KindAddr, abi.KindNextHop:
		v, err = literal.Addr(text)
		what = "an address such as 192.0.2.1 or 2001:db8::1"
	case abi.KindEndpoint:
		v, err = literal.Endpoint(text)
		what = "an address and a port such as 192.0.2.1:3478 or [2001:db8::1]:3478"
	case abi.KindPrefix:
		v, err = literal.Prefix(text)
		what = "a prefix such as 203.0.113.0/24"
	case abi.KindBucket:
		v, err = parseRate(text)
		what = "a rate in units a second and a burst, such as 125000/30000"
	default:
		return nil, fmt.Errorf("can't be given a value")
	}
	if err != nil {
		return nil, fmt.Errorf("%q is not %s", text, what)
	}
	return v, nil
}

// readValues reads the value of a member. Those for each level of priority stand in a list, 1,2,4; a single one is that
// of all levels.
func readValues(m member, text string) (any, error) {
	if m.levels == 0 {
		return readValue(m.kind, text)
	}
	texts := strings.Split(text, ",")
	if len(texts) == 1 {
		texts = slices.Repeat(texts, m.levels)
	}
	if len(texts) != m.levels {
		return nil, fmt.Errorf("%d values, where there are %d levels of priority", len(texts), m.levels)
	}
	var all []any
	for _, text := range texts {
		v, err := readValue(m.kind, text)
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, nil
}

func parseRate(text string) (runtime.Rate, error) {
	perSecond, burst, _ := strings.Cut(text, "/")
	var r runtime.Rate
	var err1, err2 error
	r.PerSecond, err1 = strconv.ParseUint(perSecond, 0, 64)
	r.Burst, err2 = strconv.ParseUint(burst, 0, 64)
	return r, errors.Join(err1, err2)
}
