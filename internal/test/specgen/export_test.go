package specgen

import (
	"slices"

	"github.com/fastrelay/fastrelay-gen/spec"
)

// Judge is the judge of a spec's packets. knows reports whether it can judge what becomes of a packet.
func Judge(s *spec.Spec) (complete func(program string, came, left []byte) string,
	knows func(program string, came []byte) bool) {
	j := newJudge(s)
	return j.complete, func(program string, came []byte) bool {
		_, known := j.readings(program, came)
		return known
	}
}

// What an IPv4 header inside of another IP header has that stacks don't take elsewhere.
const (
	OptionsInside  = "options inside"
	FragmentInside = "a fragment inside"
)

// Inside returns what says which of these a packet has, as it came.
func Inside(s *spec.Spec) func(program string, came []byte) []string {
	j := newJudge(s)
	return func(program string, came []byte) (out []string) {
		paths, _ := j.readings(program, came)
		for _, path := range paths {
			i := slices.IndexFunc(path, func(l layer) bool { return l.h.Name.Value == "ipv4_any" })
			if i < 0 || !slices.ContainsFunc(path[:i], layer.isIP) {
				continue
			}
			spans, _ := j.headers.Parse(came, headersOf(path), places(path))
			get := func(field string) uint64 { return spans[i].Place(field).Get(came).Int }
			if get("ihl") > 5 {
				out = append(out, OptionsInside)
			}
			if get("mf") > 0 || get("fragment_offset") > 0 {
				out = append(out, FragmentInside)
			}
		}
		return out
	}
}
