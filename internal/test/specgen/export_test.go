package specgen

import "github.com/fastrelay/fastrelay-gen/spec"

// Judge is the judge of a spec's packets. knows reports whether it can judge what becomes of a packet.
func Judge(s *spec.Spec) (complete func(program string, came, left []byte) string,
	knows func(program string, came []byte) bool) {
	j := newJudge(s)
	return j.complete, func(program string, came []byte) bool {
		_, known := j.readings(program, came)
		return known
	}
}
