package webtransport

import "strings"

// Fields of HTTP that negotiate a protocol (section 3.3).
const (
	availableProtocols = "WT-Available-Protocols"
	chosenProtocol     = "WT-Protocol"
)

// maxProtocols is how many protocols of a peer are considered.
const maxProtocols = 64

// formatStrings returns a list of strings as a structured field (RFC 9651, section 3.1).
func formatStrings(values ...string) string {
	quoted := make([]string, len(values))
	for i, v := range values {
		quoted[i] = `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(v) + `"`
	}
	return strings.Join(quoted, ", ")
}

// parseStrings returns the strings of a list, without their parameters. It returns none if the field isn't one: such
// a field is ignored (RFC 9651, section 4.2).
func parseStrings(lines []string) []string {
	var all []string
	rest := strings.Trim(strings.Join(lines, ","), " \t")
	for rest != "" && len(all) < maxProtocols {
		value, after, ok := cutString(rest)
		if !ok {
			return nil
		}
		all = append(all, value)
		after, ok = skipParameters(after)
		if !ok {
			return nil
		}
		rest = strings.TrimLeft(after, " \t")
	}
	return all
}

// cutString takes a string off the front of a field.
func cutString(s string) (value, rest string, ok bool) {
	if !strings.HasPrefix(s, `"`) {
		return "", "", false
	}
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			return b.String(), s[i+1:], true
		case c == '\\':
			i++
			if i == len(s) || s[i] != '"' && s[i] != '\\' {
				return "", "", false
			}
			b.WriteByte(s[i])
		case c < 0x20 || c > 0x7e:
			return "", "", false
		default:
			b.WriteByte(c)
		}
	}
	return "", "", false
}

// skipParameters skips what follows a string up to the comma, and the comma. A string among the parameters may have a
// comma in it.
func skipParameters(s string) (rest string, ok bool) {
	for s != "" {
		switch s[0] {
		case ',':
			return s[1:], true
		case '"':
			if _, s, ok = cutString(s); !ok {
				return "", false
			}
		default:
			s = s[1:]
		}
	}
	return "", true
}

// choose returns the first of ours that the peer has as well.
func choose(ours, theirs []string) (string, bool) {
	for _, o := range ours {
		for _, t := range theirs {
			if o == t {
				return o, true
			}
		}
	}
	return "", false
}
