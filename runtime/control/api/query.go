package api

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// CheckQuery returns a [*Problem] if a URL has a parameter that isn't among those that are known, or one several
// times. A name with an asterisk (event*) may come several times.
func CheckQuery(u *url.URL, known ...string) error {
	bad := func(name, format string, args ...any) error {
		return &Problem{Status: http.StatusBadRequest, Code: CodeBadRequest, Field: name,
			Detail: fmt.Sprintf(format, args...), Fix: "GET /v1/openapi.json has all parameters"}
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return bad("", "the parameters can't be read: %v", err)
	}
	for _, name := range slices.Sorted(maps.Keys(query)) {
		switch {
		case slices.Contains(known, name+"*"):
		case !slices.Contains(known, name):
			if len(known) == 0 {
				return bad(name, "%s takes no parameter, and has %q", u.Path, name)
			}
			return bad(name, "%s has no parameter %q; there are %s", u.Path, name, strings.Join(known, ", "))
		case len(query[name]) > 1:
			return bad(name, "the parameter %q is given twice", name)
		}
	}
	return nil
}
