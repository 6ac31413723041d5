"""What the helper makes of messages, with a clock that stands still. TestHelper runs it."""
import ipaddress, struct, time, unittest
import helper

CLIENT, SERVER, RELAYED, PEER = "192.0.2.2:40000", "192.0.2.1:3478", "203.0.113.1:50000", "203.0.113.2:7000"
ALLOCATED = [(helper.XOR_RELAYED, RELAYED)]


def split(address):
    host, port = address.split(":")
    return ipaddress.ip_address(host).packed, int(port)


def attribute(kind, value):
    if kind in (helper.XOR_PEER, helper.XOR_RELAYED):
        host, port = split(value)
        value = struct.pack("!HHI", 1, port ^ helper.COOKIE >> 16, int.from_bytes(host, "big") ^ helper.COOKIE)
    elif kind == helper.CHANNEL_NUMBER:
        value = struct.pack("!HH", value, 0)
    elif kind == helper.ERROR_CODE:
        value = struct.pack("!HBB", 0, value // 100, value % 100)
    return struct.pack("!HH", kind, len(value)) + value


class Fake:
    """The relay's control socket, the packet socket and the sockets of the host."""

    def __init__(self):
        self.sessions, self.count, self.lost, self.cookies = {}, 0, 0, {RELAYED: 1, SERVER: 2}

    def open(self, fields, lifetime):
        self.count += 1
        self.sessions[self.count] = fields["peer"]
        return self.count

    def refresh(self, sessions, lifetime):
        return []

    def end(self, sessions):
        for session in sessions:
            del self.sessions[session]

    def missed(self):
        lost, self.lost = self.lost, 0
        return lost

    def find(self, where):
        return self.cookies.get(where)


class Messages(unittest.TestCase):
    def setUp(self):
        self.now, self.fake = 0, Fake()
        clock, time.monotonic = time.monotonic, lambda: self.now
        self.addCleanup(setattr, time, "monotonic", clock)
        said, helper.say = helper.say, lambda _: None
        self.addCleanup(setattr, helper, "say", said)
        self.helper = helper.Helper(self.fake, self.fake, self.fake, 15, 600, 300)

    def message(self, kind, transaction, attributes, outgoing):
        body = b"".join(attribute(*a) for a in attributes)
        stun = struct.pack("!HHI12s", kind, len(body), helper.COOKIE, b"%012d" % transaction) + body
        (src, sport), (dst, dport) = map(split, (SERVER, CLIENT) if outgoing else (CLIENT, SERVER))
        ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 28 + len(stun), 0, 0, 64, 17, 0, src, dst)
        self.helper.packet(ip + struct.pack("!HHHH", sport, dport, 8 + len(stun), 0) + stun, outgoing)

    def request(self, kind, transaction=0, attributes=()):
        self.message(kind, transaction, attributes, False)

    def success(self, kind, transaction=0, attributes=()):
        self.message(kind | helper.SUCCESS, transaction, attributes, True)

    def bind(self, transaction=0, number=0x4000, peer=PEER):
        self.request(helper.CHANNEL_BIND, transaction, [(helper.CHANNEL_NUMBER, number), (helper.XOR_PEER, peer)])
        self.success(helper.CHANNEL_BIND, transaction)

    def channel(self):
        self.success(helper.ALLOCATE, 99, ALLOCATED)
        self.bind(98)
        self.has(PEER)

    def has(self, *peers):
        self.assertEqual(list(self.fake.sessions.values()), list(peers))

    def test_unanswered(self):
        """Requests that the server doesn't answer are forgotten, also if one of them is sent again and again."""
        for self.now in range(1000):
            self.request(helper.CHANNEL_BIND, 0)
            self.request(helper.CHANNEL_BIND, 1 + self.now)
        self.assertLess(len(self.helper.asked), 15)

    def test_mismatch(self):
        """437 says that there is no allocation, but not in answer to Allocate: then there is one."""
        self.channel()
        error = [(helper.ERROR_CODE, 437)]
        self.message(helper.ALLOCATE | helper.CLASS, 0, error, True)
        self.message(helper.REFRESH | helper.CLASS, 0, error, False)  # the client says so
        self.has(PEER)
        self.message(helper.REFRESH | helper.CLASS, 0, error, True)
        self.has()

    def test_again(self):
        """An Allocate that is answered again changes nothing. Another one is a new allocation."""
        self.channel()
        self.success(helper.ALLOCATE, 99, ALLOCATED)
        self.has(PEER)
        self.success(helper.ALLOCATE, 97, ALLOCATED)
        self.has()

    def test_given_again(self):
        """A relayed address is one socket's: when it is given again, the allocation before is gone."""
        self.channel()
        self.fake.cookies[RELAYED] = 3
        self.success(helper.ALLOCATE, 99, ALLOCATED)
        self.has()

    def test_no_socket(self):
        """Answers of servers elsewhere, and those whose socket is closed by now, don't count."""
        for where in RELAYED, SERVER:
            cookie = self.fake.cookies.pop(where)
            self.success(helper.ALLOCATE, 99, ALLOCATED)
            self.bind()
            self.has()
            self.fake.cookies[where] = cookie

    def test_ambiguous(self):
        """To which of two requests with one transaction an answer belongs isn't known."""
        self.channel()
        self.request(helper.CHANNEL_BIND, 1, [(helper.CHANNEL_NUMBER, 0x4001), (helper.XOR_PEER, "127.0.0.1:1")])
        self.bind(1, 0x4001, "203.0.113.2:7001")
        self.has(PEER)

    def test_integrity(self):
        """What comes after the integrity is nobody's word."""
        self.channel()
        self.request(helper.CHANNEL_BIND, 1, [(helper.CHANNEL_NUMBER, 0x4001), (helper.INTEGRITY, bytes(20)),
                                              (helper.XOR_PEER, "127.0.0.1:1")])
        self.success(helper.CHANNEL_BIND, 1)
        self.has(PEER)

    def test_missed_request(self):
        """A request that was missed may have the transaction of one that comes soon after."""
        self.channel()
        self.request(helper.CHANNEL_BIND, 1, [(helper.CHANNEL_NUMBER, 0x4001), (helper.XOR_PEER, "203.0.113.2:7001")])
        self.fake.lost = 1
        self.success(helper.CHANNEL_BIND, 1)
        self.now = helper.ANSWERED - 1
        self.bind(2, 0x4002, "203.0.113.2:7002")
        self.has(PEER)
        self.now = helper.ANSWERED
        self.bind(3, 0x4003, "203.0.113.2:7003")
        self.has(PEER, "203.0.113.2:7003")

    def test_permission(self):
        """A CreatePermission makes the permission of a channel shorter, also one that was missed."""
        for missed in False, True:
            self.channel()
            began, self.now = self.now, self.now + 100
            if missed:
                self.helper.look()
                self.now, self.fake.lost = self.now + 50, 1
                self.helper.look()
            else:
                self.request(helper.CREATE_PERMISSION, 1, [(helper.XOR_PEER, PEER)])
                self.success(helper.CREATE_PERMISSION, 1)
            self.now = began + 399
            self.helper.keep(*self.helper.allocations)
            self.has(PEER)
            self.now = began + 400
            self.helper.keep(*self.helper.allocations)
            self.has()
            self.success(helper.REFRESH, 2, [(helper.LIFETIME, bytes(4))])
            self.now += 1000


if __name__ == "__main__":
    unittest.main()
