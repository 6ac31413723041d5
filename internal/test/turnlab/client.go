package turnlab

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/pion/stun/v4"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// User and Password are the credentials of a server under test, Realm its realm.
const (
	User     = "user"
	Password = "secret"
	Realm    = "fastrelay"
)

// Client is a TURN client that a test controls: it sends nothing by itself, refreshes nothing and chooses no channel
// numbers. It is not safe for concurrent use.
type Client struct {
	Conn    *net.UDPConn // connected to the server
	Relayed netip.AddrPort

	buf          [64 << 10]byte
	realm, nonce []byte
	queue        [][]byte // channel data that came while an answer was awaited
	copies       int      // how many times the last request was sent
}

// Requests and their answers (RFC 8656 §17, RFC 8489 §6.3.1).
const (
	retransmit = 250 * time.Millisecond
	patience   = 3 * time.Second
)

// ChannelNumber is a channel's number.
const ChannelNumber = 0x4001

// Dial makes a client on a host.
func Dial(host *testnet.Host, local netip.Addr, server netip.AddrPort) (*Client, error) {
	c := &Client{}
	return c, host.Do(func() (err error) {
		from := net.UDPAddrFromAddrPort(netip.AddrPortFrom(local, 0))
		c.Conn, err = net.DialUDP("udp", from, net.UDPAddrFromAddrPort(server))
		if err != nil {
			return err
		}
		// Room for answers that come after much unread channel data.
		return c.Conn.SetReadBuffer(4 << 20)
	})
}

// Close ends the client; the server is not notified.
func (c *Client) Close() error { return c.Conn.Close() }

// Addr is the client's transport address, as the server sees it.
func (c *Client) Addr() netip.AddrPort { return c.Conn.LocalAddr().(*net.UDPAddr).AddrPort() }

// Fd returns a descriptor of the client's socket for blocking reads. The caller closes it.
func (c *Client) Fd() (int, error) {
	file, err := c.Conn.File()
	if err != nil {
		return -1, err
	}
	defer file.Close()
	fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	return fd, unix.SetNonblock(fd, false)
}

// raw is a STUN attribute.
type raw struct {
	kind  stun.AttrType
	value []byte
}

func (r raw) AddTo(m *stun.Message) error {
	m.Add(r.kind, r.value)
	return nil
}

type xorAddr struct {
	kind stun.AttrType
	addr netip.AddrPort
}

func (x xorAddr) AddTo(m *stun.Message) error {
	return stun.XORMappedAddress{IP: x.addr.Addr().AsSlice(), Port: int(x.addr.Port())}.AddToAs(m, x.kind)
}

func lifetime(d time.Duration) raw {
	return raw{stun.AttrLifetime, binary.BigEndian.AppendUint32(nil, uint32(d/time.Second))}
}

// Allocate asks for a relayed transport address of a family, 4 or 6 (REQUESTED-ADDRESS-FAMILY, RFC 8656 §18.6).
func (c *Client) Allocate(family int) error {
	wire := byte(1)
	if family == 6 {
		wire = 2
	}
	answer, err := c.request(stun.MethodAllocate,
		raw{stun.AttrRequestedTransport, []byte{17, 0, 0, 0}},
		raw{stun.AttrRequestedAddressFamily, []byte{wire, 0, 0, 0}})
	if err != nil {
		return err
	}
	var relayed stun.XORMappedAddress
	if err := relayed.GetFromAs(answer, stun.AttrXORRelayedAddress); err != nil {
		return err
	}
	addr, _ := netip.AddrFromSlice(relayed.IP)
	c.Relayed = netip.AddrPortFrom(addr.Unmap(), uint16(relayed.Port))
	return nil
}

// Refresh asks for a new lifetime of the allocation; 0 ends it.
func (c *Client) Refresh(d time.Duration) error {
	_, err := c.request(stun.MethodRefresh, lifetime(d))
	return err
}

// Bind binds a channel to a peer, or refreshes it.
func (c *Client) Bind(number uint16, peer netip.AddrPort) error {
	_, err := c.request(stun.MethodChannelBind,
		raw{stun.AttrChannelNumber, binary.BigEndian.AppendUint32(nil, uint32(number)<<16)},
		xorAddr{stun.AttrXORPeerAddress, peer})
	return err
}

// Open allocates and binds one channel.
func (c *Client) Open(number uint16, peer netip.AddrPort) error {
	family := 4
	if peer.Addr().Is6() {
		family = 6
	}
	if err := c.Allocate(family); err != nil {
		return fmt.Errorf("allocate: %w", err)
	}
	if err := c.Bind(number, peer); err != nil {
		return fmt.Errorf("bind channel %#x: %w", number, err)
	}
	return nil
}

// ChannelData is a ChannelData message (RFC 8656 §12.4) without padding, as it is over UDP.
func ChannelData(number uint16, payload []byte) []byte {
	m := binary.BigEndian.AppendUint16(nil, number)
	m = binary.BigEndian.AppendUint16(m, uint16(len(payload)))
	return append(m, payload...)
}

// Send sends a payload on a channel.
func (c *Client) Send(number uint16, payload []byte) error {
	_, err := c.Conn.Write(ChannelData(number, payload))
	return err
}

// Receive waits for channel data. The error is a timeout if nothing came.
func (c *Client) Receive(patience time.Duration) (number uint16, payload []byte, err error) {
	m, err := c.receive(patience)
	if err != nil {
		return 0, nil, err
	}
	length := int(binary.BigEndian.Uint16(m[2:]))
	if len(m) < 4+length || len(m) > (4+length+3)&^3 {
		return 0, nil, fmt.Errorf("channel data of %d bytes says that it has %d", len(m)-4, length)
	}
	return binary.BigEndian.Uint16(m), m[4 : 4+length], nil
}

func (c *Client) receive(patience time.Duration) ([]byte, error) {
	if len(c.queue) > 0 {
		m := c.queue[0]
		c.queue = c.queue[1:]
		return m, nil
	}
	deadline := time.Now().Add(patience)
	for {
		m, err := c.read(deadline)
		if err != nil {
			return nil, err
		}
		if isChannelData(m) {
			return m, nil
		}
	}
}

func isChannelData(m []byte) bool { return len(m) >= 4 && m[0]>>4 == 4 }

func (c *Client) read(deadline time.Time) ([]byte, error) {
	if err := c.Conn.SetReadDeadline(deadline); err != nil {
		return nil, err
	}
	n, err := c.Conn.Read(c.buf[:])
	return bytes.Clone(c.buf[:n]), err
}

// request makes a transaction with the long-term credentials, and repeats it if the server asks for (other)
// credentials.
func (c *Client) request(method stun.Method, attributes ...stun.Setter) (*stun.Message, error) {
	for try := 0; ; try++ {
		setters := append([]stun.Setter{stun.NewType(method, stun.ClassRequest), stun.TransactionID}, attributes...)
		if c.nonce != nil {
			setters = append(setters,
				stun.NewUsername(User), stun.NewRealm(string(c.realm)), stun.NewNonce(string(c.nonce)),
				stun.NewLongTermIntegrity(User, string(c.realm), Password))
		}
		request, err := stun.Build(append(setters, stun.Fingerprint)...)
		if err != nil {
			return nil, err
		}
		answer, err := c.transact(request)
		if err != nil {
			return nil, fmt.Errorf("%v: %w", method, err)
		}
		if answer.Type.Class == stun.ClassSuccessResponse {
			return answer, nil
		}
		var code stun.ErrorCodeAttribute
		if err := code.GetFrom(answer); err != nil {
			return nil, err
		}
		if try == 2 || code.Code != stun.CodeUnauthorized && code.Code != stun.CodeStaleNonce {
			return nil, &RequestError{Method: method.String(), Code: int(code.Code), Reason: string(code.Reason)}
		}
		if c.nonce, err = answer.Get(stun.AttrNonce); err != nil {
			return nil, err
		}
		if realm, err := answer.Get(stun.AttrRealm); err == nil {
			c.realm = realm
		}
	}
}

// RequestError is a request that the server refused.
type RequestError struct {
	Method string
	Code   int
	Reason string
}

func (e *RequestError) Error() string { return fmt.Sprintf("%s: %d %s", e.Method, e.Code, e.Reason) }

// transact sends a request until it is answered.
func (c *Client) transact(request *stun.Message) (*stun.Message, error) {
	limit := time.Now().Add(patience)
	for c.copies = 0; time.Now().Before(limit); {
		c.copies++
		if _, err := c.Conn.Write(request.Raw); err != nil {
			return nil, err
		}
		again := time.Now().Add(retransmit)
		for {
			m, err := c.read(again)
			var timeout net.Error
			if errors.As(err, &timeout) && timeout.Timeout() {
				break
			}
			if err != nil {
				return nil, err
			}
			if isChannelData(m) {
				c.queue = append(c.queue, m)
				continue
			}
			answer := &stun.Message{Raw: m}
			if answer.Decode() == nil && answer.TransactionID == request.TransactionID {
				return answer, nil
			}
		}
	}
	return nil, errors.New("the server does not answer")
}

// Settle waits until the server has had, and has answered, all copies of requests that were sent to it: one that was
// sent once comes behind them.
func (c *Client) Settle() error {
	for c.copies > 1 {
		ask, err := stun.Build(stun.TransactionID, stun.BindingRequest, stun.Fingerprint)
		if err != nil {
			return err
		}
		if _, err := c.transact(ask); err != nil {
			return err
		}
	}
	return nil
}

// Payload makes n random bytes.
func Payload(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return b
}
