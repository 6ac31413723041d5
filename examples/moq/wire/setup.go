package wire

import (
	"net/url"
	"slices"
	"strings"
)

// The types of SETUP's options (§9.1, §16.4).
const (
	optionPath                  = 0x01
	optionToken                 = 0x03
	optionMaxAuthTokenCacheSize = 0x04
	optionAuthority             = 0x05
	optionMaxFilterRanges       = 0x06
	optionImplementation        = 0x07
	optionMaxRequestUpdates     = 0x08
)

var (
	options18 = []uint64{optionPath, optionToken, optionMaxAuthTokenCacheSize, optionAuthority, optionImplementation}
	options22 = append([]uint64{optionMaxFilterRanges, optionMaxRequestUpdates}, options18...)
)

func (d Draft) hasOption(t uint64) bool {
	if d == Draft18 {
		return slices.Contains(options18, t)
	}
	return slices.Contains(options22, t)
}

// Check returns the violation of a SETUP that depends on its sender and on the transport (§9.1.1, §9.1.2, §9.1.4).
// That a server doesn't have the path or the authority is the server's to find.
func (m *Setup) Check(fromServer, webTransport bool) error {
	switch noURI := fromServer || webTransport; {
	case m.Path.Present && noURI:
		return &Error{InvalidPath, "SETUP has a path, from a server or over WebTransport"}
	case m.Authority.Present && noURI:
		return &Error{InvalidAuthority, "SETUP has an authority, from a server or over WebTransport"}
	case m.Path.Present && !validPath(m.Path.Value):
		return &Error{MalformedPath, "SETUP has a path that isn't one of a URI"}
	case m.Authority.Present && !validAuthority(m.Authority.Value):
		return &Error{MalformedAuthority, "SETUP has an authority that isn't one of a URI"}
	}
	for _, t := range m.Tokens {
		if !fromServer && (t.AliasType == DeleteAlias || t.AliasType == UseAlias) {
			return violation("SETUP has a token's alias, and none is registered yet")
		}
	}
	return nil
}

func validPath(path string) bool {
	u, err := url.Parse("moqt://host" + path)
	return err == nil && u.Host == "host" && u.Fragment == "" && !strings.HasSuffix(path, "#")
}

func validAuthority(authority string) bool {
	u, err := url.Parse("moqt://" + authority)
	return err == nil && u.Host != "" && u.Path == "" && u.RawQuery == "" && !strings.ContainsAny(authority, "?#/")
}

// SETUP's only field is its options, which are key-value pairs (§9.1).
func (m *Setup) parse(p *parser) {
	var last Optional[uint64]
	var lastUnknown uint64
	for o, err := range Properties(p.rest()).All() {
		switch {
		case err == errCut:
			p.fail("ends within an option")
			return
		case err != nil:
			p.err = err
			return
		case !p.draft.hasOption(o.Type):
			m.Unknown = m.Unknown.with(lastUnknown, o)
			lastUnknown = o.Type
			continue
		case o.Type != optionToken && last == Some(o.Type):
			p.fail("has the option %#x twice", o.Type)
			return
		}
		if last = Some(o.Type); !m.set(o) {
			p.failWith(KeyValueFormattingError, "has an authorization token that can't be decoded")
		}
	}
}

// set reports whether the option's value could be decoded.
func (m *Setup) set(o Property) bool {
	switch o.Type {
	case optionPath:
		m.Path = Some(string(o.Bytes))
	case optionAuthority:
		m.Authority = Some(string(o.Bytes))
	case optionImplementation:
		m.Implementation = string(o.Bytes)
	case optionMaxAuthTokenCacheSize:
		m.MaxAuthTokenCacheSize = o.Value
	case optionMaxFilterRanges:
		m.MaxFilterRanges = o.Value
	case optionMaxRequestUpdates:
		m.MaxRequestUpdates = o.Value
	case optionToken:
		m.Tokens = append(m.Tokens, Token{})
		return m.Tokens[len(m.Tokens)-1].decode(o.Bytes)
	}
	return true
}

func (m *Setup) append(w *writer) {
	var options []Property
	text := func(t uint64, v string, present bool) {
		if present {
			options = append(options, Property{Type: t, Bytes: []byte(v)})
		}
	}
	number := func(t, v uint64) {
		if v != 0 {
			options = append(options, Property{Type: t, Value: v})
		}
	}
	text(optionPath, m.Path.Value, m.Path.Present)
	text(optionAuthority, m.Authority.Value, m.Authority.Present)
	text(optionImplementation, m.Implementation, m.Implementation != "")
	number(optionMaxAuthTokenCacheSize, m.MaxAuthTokenCacheSize)
	number(optionMaxFilterRanges, m.MaxFilterRanges)
	number(optionMaxRequestUpdates, m.MaxRequestUpdates)
	for i := range m.Tokens {
		options = append(options, Property{Type: optionToken, Bytes: m.Tokens[i].encode(nil, w.fail)})
	}
	for _, o := range options {
		if !w.draft.hasOption(o.Type) {
			w.fail("has no option %#x", o.Type)
		}
	}
	for o, err := range m.Unknown.All() {
		if err != nil || w.draft.hasOption(o.Type) {
			w.fail("has an unknown option %#x that is wrong or known: %v", o.Type, err)
			return
		}
		options = append(options, o)
	}
	b, err := NewProperties(options...)
	if err != nil {
		w.fail("has an option that is too long: %v", err)
	}
	w.b = append(w.b, b...)
}
