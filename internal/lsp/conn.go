package lsp

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/textproto"
	"strconv"
	"strings"
	"sync"
)

// maxMessage is how long a message may be: a document of the largest size that a spec may have, with every byte
// escaped.
const maxMessage = 8 << 20

// message is a request, a notification or a response of JSON-RPC 2.0.
type message struct {
	Version string           `json:"jsonrpc"`
	ID      *json.RawMessage `json:"id,omitempty"`
	Method  string           `json:"method,omitempty"`
	Params  json.RawMessage  `json:"params,omitempty"`
	Result  json.RawMessage  `json:"result,omitempty"`
	Error   *rpcError        `json:"error,omitempty"`
}

type rpcError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

func (e *rpcError) Error() string { return e.Message }

// Codes of errors, of JSON-RPC and LSP.
const (
	parseError     = -32700
	invalidRequest = -32600
	unknownMethod  = -32601
	invalidParams  = -32602
	notInitialised = -32002
)

// conn reads and writes messages.
type conn struct {
	in   *bufio.Reader
	lock sync.Mutex
	out  io.Writer
}

// errFraming is returned if the stream isn't LSP, so that no message can be found in it any more.
var errFraming = errors.New("this is not the language server protocol: a message begins with Content-Length")

// read reads a message. An *rpcError is about this message alone.
func (c *conn) read() (*message, error) {
	length := -1
	for first := true; ; first = false {
		line, err := readLine(c.in)
		if err != nil {
			if errors.Is(err, io.EOF) && !first {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
		if line == "" && !first {
			break
		}
		name, value, ok := strings.Cut(line, ":")
		if !ok {
			return nil, errFraming
		}
		if textproto.CanonicalMIMEHeaderKey(name) == "Content-Length" {
			if length, err = strconv.Atoi(strings.TrimSpace(value)); err != nil || length < 0 {
				return nil, errFraming
			}
		}
	}
	if length < 0 {
		return nil, errFraming
	}
	if length > maxMessage {
		if _, err := io.CopyN(io.Discard, c.in, int64(length)); err != nil {
			return nil, err
		}
		return nil, &rpcError{invalidRequest, fmt.Sprintf("a message of %d bytes; %d are the most", length, maxMessage)}
	}
	text := make([]byte, length)
	if _, err := io.ReadFull(c.in, text); err != nil {
		return nil, io.ErrUnexpectedEOF
	}
	var m message
	if err := json.Unmarshal(text, &m); err != nil {
		return nil, &rpcError{parseError, "a message that isn't JSON: " + err.Error()}
	}
	return &m, nil
}

// readLine reads a line of a header, which is short.
func readLine(r *bufio.Reader) (string, error) {
	line, err := r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return "", errFraming
	}
	if err != nil && len(line) > 0 {
		return "", io.ErrUnexpectedEOF
	}
	return strings.TrimRight(string(line), "\r\n"), err
}

func (c *conn) write(m *message) error {
	m.Version = "2.0"
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	c.lock.Lock()
	defer c.lock.Unlock()
	_, err = fmt.Fprintf(c.out, "Content-Length: %d\r\n\r\n%s", len(text), text)
	return err
}

func (c *conn) notify(method string, params any) error {
	text, err := json.Marshal(params)
	if err != nil {
		return err
	}
	return c.write(&message{Method: method, Params: text})
}

// null is an ID, or a result, that is there and says nothing.
var null = json.RawMessage("null")

func (c *conn) reply(id *json.RawMessage, result any, failed *rpcError) error {
	m := &message{ID: id, Error: failed}
	if id == nil {
		m.ID = &null
	}
	if failed == nil {
		text, err := json.Marshal(result)
		if err != nil {
			return err
		}
		m.Result = text
	}
	return c.write(m)
}
