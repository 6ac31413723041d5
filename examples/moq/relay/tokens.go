package relay

import (
	"fmt"
	"slices"

	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
)

// A Token is an authorization token (§8.9): its type by IANA's registry, 0 if that is agreed elsewhere, and its bytes.
type Token struct {
	Type  uint64
	Value string
}

const (
	maxTokens    = 16 << 10 // bytes of tokens that a session may register: MAX_AUTH_TOKEN_CACHE_SIZE (§9.1.3)
	tokenCharged = 16       // what a token counts beside its value
)

// A tokenCache is what a peer has registered. The session's mutex guards it.
type tokenCache struct {
	byAlias map[uint64]Token
	size    int
}

// resolve returns the tokens of a message, and does what they say with aliases. An error is a [*wire.Error] that ends
// the session, or a [*wire.Rejection] of the message.
func (c *tokenCache) resolve(tokens []wire.Token) (all []Token, err error) {
	for _, t := range tokens {
		one, have := c.byAlias[t.Alias]
		switch t.AliasType {
		case wire.UseValue:
			one = Token{t.Type, t.Value}
		case wire.Register:
			if have {
				return nil, &wire.Error{Code: wire.DuplicateAuthTokenAlias,
					Text: fmt.Sprintf("token alias %d is registered already", t.Alias)}
			}
			one = Token{t.Type, t.Value}
			if c.size+tokenCharged+len(t.Value) > maxTokens {
				return nil, &wire.Error{Code: wire.AuthTokenCacheOverflow,
					Text: fmt.Sprintf("more than %d bytes of tokens are registered", maxTokens)}
			}
			if c.byAlias == nil {
				c.byAlias = map[uint64]Token{}
			}
			c.byAlias[t.Alias] = one
			c.size += tokenCharged + len(t.Value)
		case wire.UseAlias, wire.DeleteAlias:
			if !have {
				// The draft has this code for sessions alone (§12.2, §12.3).
				return nil, &wire.Error{Code: wire.UnknownAuthTokenAlias,
					Text: fmt.Sprintf("no token has the alias %d", t.Alias)}
			}
			if t.AliasType == wire.DeleteAlias {
				delete(c.byAlias, t.Alias)
				c.size -= tokenCharged + len(one.Value)
				continue
			}
		}
		if slices.Contains(all, one) {
			// The rest is registered all the same, as messages refer to it that are on their way.
			err = &wire.Rejection{Code: wire.RequestMalformedToken, Text: "a token is there twice"}
			continue
		}
		all = append(all, one)
	}
	return all, err
}

// setup takes the tokens of SETUP: one that doesn't fit is used once (§9.1.4).
func (c *tokenCache) setup(tokens []wire.Token) ([]Token, error) {
	size := c.size
	tokens = slices.Clone(tokens)
	for i, t := range tokens {
		if t.AliasType == wire.Register {
			if size += tokenCharged + len(t.Value); size > maxTokens {
				tokens[i].AliasType = wire.UseValue
				size -= tokenCharged + len(t.Value)
			}
		}
	}
	return c.resolve(tokens)
}
