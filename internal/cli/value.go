package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/literal"
)

// readValue reads a value of the kind as a person writes it: 3478, 0x4001, true, 00:11:22:33:44:55, 192.0.2.1,
// [2001:db8::1]:3478, 203.0.113.0/24; bytes in hexadecimal, whose number is for the relay to check. A counter takes an
// integer, its first value; a credit its limit; a bucket its rate and its burst, 125000/30000.
func readValue(kind abi.Kind, text string) (any, error) {
	text = strings.TrimSpace(text)
	if kind == abi.KindBytes {
		return literal.AnyBytes(strings.TrimPrefix(text, "0x"))
	}
	return literal.Value(kind, 0, text)
}

// readValues reads the value of a member; as makes a single value what is needed. Values for each level of priority
// stand in a list, 1,2,4; a single one is that of all levels.
func readValues(kind abi.Kind, levels int, text string, as func(v any) any) (any, error) {
	texts := []string{text}
	if levels > 0 {
		if texts = strings.Split(text, ","); len(texts) == 1 {
			texts = slices.Repeat(texts, levels)
		}
		if len(texts) != levels {
			return nil, fmt.Errorf("%d values, where there are %d levels of priority", len(texts), levels)
		}
	}
	var all []any
	for _, text := range texts {
		v, err := readValue(kind, text)
		if err != nil {
			return nil, err
		}
		all = append(all, as(v))
	}
	if levels == 0 {
		return all[0], nil
	}
	return all, nil
}
