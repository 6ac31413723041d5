#!/usr/bin/env python3
"""Moves the channel data of a TURN server (plain UDP) into the kernel.

coturn's log, its command line and its Redis messages don't have the numbers of channels. So this helper reads what
clients and server say to each other from a packet socket, and opens and closes sessions of the relay of examples/turn
by its control socket. It needs CAP_NET_RAW, and the relay's user. Without it, all packets pass to the server.

An allocation is open as long as its relayed socket is: the kernel gives each socket a number (cookie) that no other one
has before or after it, and says when a socket is closed. So sessions end with the server's process, and with
allocations whose end the helper has missed.
"""
import argparse, ctypes, errno, functools, http.client, ipaddress, json, select, signal, socket, struct, sys, time

COOKIE = 0x2112A442
ALLOCATE, REFRESH, CREATE_PERMISSION, CHANNEL_BIND = 0x0003, 0x0004, 0x0008, 0x0009  # requests; RFC 8656 §18
SUCCESS, CLASS = 0x0100, 0x0110                                                      # in the type of an answer
INTEGRITY, INTEGRITY_SHA256, ERROR_CODE, CHANNEL_NUMBER, LIFETIME = 0x0008, 0x001C, 0x0009, 0x000C, 0x000D
XOR_PEER, XOR_RELAYED, MOBILITY_TICKET = 0x0012, 0x0016, 0x8030
ANSWERED = 10  # seconds within which the server answers a request

say = functools.partial(print, file=sys.stderr, flush=True)


def stun_filter(port):
    """What the kernel gives to the packet socket: requests to the port and answers from it, of these methods."""
    code, labels = [
        (0x30, 0), (0x54, 0xF0), (0x15, 0x40, "ipv4", 0), (0x15, 0x60, 0, "drop"),
        (0x30, 6), (0x15, 17, 0, "drop"), (0x01, 40), (0x05, "udp"),
        "ipv4", (0x30, 9), (0x15, 17, 0, "drop"), (0x28, 6), (0x45, 0x3FFF, "drop", 0), (0xB1, 0),  # no fragments
        "udp", (0x28, 0xFFFFF004), (0x15, socket.PACKET_OUTGOING, "out", 0), (0x15, socket.PACKET_HOST, 0, "drop"),
        (0x48, 2), (0x05, "port"),
        "out", (0x48, 0),
        "port", (0x15, port, 0, "drop"), (0x40, 12), (0x15, COOKIE, 0, "drop"),
        (0x48, 8), (0x54, 0xFFFF & ~CLASS), (0x15, ALLOCATE, "take", 0), (0x15, REFRESH, "take", 0),
        (0x15, CREATE_PERMISSION, "take", 0), (0x15, CHANNEL_BIND, 0, "drop"),
        "take", (0x06, 65535),
        "drop", (0x06, 0),
    ], {}
    out = []
    for line in code:
        if isinstance(line, str):
            labels[line] = len(out)
        else:
            out.append(line)

    def distance(to, at):
        return labels[to] - at - 1 if isinstance(to, str) else to
    return [(op, *[distance(to, at) for to in jumps or (0, 0)], distance(k, at))
            for at, (op, k, *jumps) in enumerate(out)]


def room(s, size):
    """Gives a socket a buffer; with CAP_NET_ADMIN, one that is larger than net.core.rmem_max, too."""
    try:
        s.setsockopt(socket.SOL_SOCKET, 33, size)  # SO_RCVBUFFORCE
    except PermissionError:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)


class Packets(socket.socket):
    def __init__(self, interface, port, size):
        super().__init__(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
        room(self, size)
        code = stun_filter(port)
        text = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *i) for i in code))
        self.setsockopt(socket.SOL_SOCKET, 26, struct.pack("HL", len(code), ctypes.addressof(text)))  # SO_ATTACH_FILTER
        self.bind((interface, 0x0003))  # ETH_P_ALL: also what leaves

    def missed(self):
        """Returns how many packets found no room since it was asked last."""
        return struct.unpack("II", self.getsockopt(263, 6, 8))[1]  # PACKET_STATISTICS


class Sockets:
    """The UDP sockets of this host."""

    def __init__(self, size):
        self.closed, self.asked = (socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) for _ in range(2))
        room(self.closed, size)
        self.closed.bind((0, 1 << 1 | 1 << 3))  # SKNLGRP_INET_UDP_DESTROY, SKNLGRP_INET6_UDP_DESTROY
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            s.bind(("127.0.0.1", 0))
            if not self.find(endpoint(b"\x7f\0\0\1", s.getsockname()[1])):
                sys.exit("the kernel doesn't show its UDP sockets: it needs the module udp_diag (CONFIG_INET_UDP_DIAG)")

    def find(self, where):
        """Returns the cookie of the socket that is bound to this address, or nothing."""
        host, _, port = where.rpartition(":")
        address = ipaddress.ip_address(host.strip("[]"))
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        end = struct.pack("!16s", address.packed)
        # The kernel has its two ends the other way round here: both are the same, and the remote one doesn't matter.
        self.asked.send(struct.pack("=IHHII", 72, 20, 1, 0, 0) + struct.pack("=BBBxI", family, 17, 0, 0xFFFFFFFF)
                        + struct.pack("!HH", int(port), int(port)) + end + end + struct.pack("=I8s", 0, b"\xff" * 8))
        found, cookie = self.parse(self.asked.recv(65535))
        return cookie if found == where else None

    @staticmethod
    def parse(message):
        if struct.unpack_from("=H", message, 4)[0] != 20 or len(message) < 68:  # SOCK_DIAG_BY_FAMILY
            return None, None
        size = 4 if message[16] == socket.AF_INET else 16
        return endpoint(message[24:24 + size], struct.unpack_from("!H", message, 20)[0]), message[60:68]

    def ended(self):
        """Yields address and cookie of sockets that were closed. OSError: there were too many."""
        while True:
            try:
                yield self.parse(self.closed.recv(65535, socket.MSG_DONTWAIT))
            except BlockingIOError:
                return


def datagram(packet):
    """Returns source, destination and payload of a UDP datagram, or nothing."""
    if packet[0] >> 4 == 4:
        at, src, dst = 4 * (packet[0] & 15), packet[12:16], packet[16:20]
    else:
        at, src, dst = 40, packet[8:24], packet[24:40]
    if len(packet) < at + 28:
        return None
    sport, dport = struct.unpack_from("!HH", packet, at)
    return endpoint(src, sport), endpoint(dst, dport), packet[at + 8:]


def endpoint(address, port):
    a = ipaddress.ip_address(address)
    return f"{a}:{port}" if a.version == 4 else f"[{a}]:{port}"


def attributes(message):
    """Returns the attributes that a server reads, each with its values; those with addresses as text."""
    length, transaction, out, at = struct.unpack_from("!H", message, 2)[0], message[4:20], {}, 20
    while at + 4 <= min(20 + length, len(message)):
        kind, size = struct.unpack_from("!HH", message, at)
        value = message[at + 4:at + 4 + size]
        if kind in (INTEGRITY, INTEGRITY_SHA256):
            break  # nobody vouches for what follows
        if len(value) == size and kind in (XOR_PEER, XOR_RELAYED) and size in (8, 20):
            port = struct.unpack_from("!H", value, 2)[0] ^ (COOKIE >> 16)
            value = endpoint(bytes(a ^ b for a, b in zip(value[4:], transaction)), port)
        elif kind in (CHANNEL_NUMBER, LIFETIME) and size == len(value) == 4:
            value = struct.unpack_from("!H" if kind == CHANNEL_NUMBER else "!I", value)[0]
        elif kind == ERROR_CODE and len(value) >= 4:
            value = value[2] * 100 + value[3]
        out.setdefault(kind, []).append(value)
        at += 4 + (size + 3 & ~3)
    return out


class Relay(http.client.HTTPConnection):
    """The relay's control socket."""

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(10)
        self.sock.connect(self.path)

    def ask(self, method, path, body=None):
        for again in (True, False):
            try:
                self.request(method, path, body and json.dumps(body), {"Content-Type": "application/json"})
                answer = self.getresponse()
                return answer.status, json.loads(answer.read() or "{}")
            except (OSError, http.client.HTTPException) as e:
                self.close()  # the relay was restarted, and the next attempt connects anew
                if not again:
                    say(f"the relay can't be asked: {e}")
        return 0, {}

    def open(self, fields, lifetime):
        path = f"/v1/sessions/channel?lifetime={lifetime}"
        status, answer = self.ask("POST", path, fields)
        if status == 409 and answer.get("other"):  # a channel of before that ended unnoticed
            self.end([answer["other"]])
            status, answer = self.ask("POST", path, fields)
        if status != 201:
            say(f"channel {fields['number']:#x} of {fields['client']} stays with the server: {answer.get('detail')}")
            return None
        say(f"channel {fields['number']:#x}: {fields['client']} to {fields['peer']} by {fields['relayed']}")
        return answer["id"]

    def refresh(self, sessions, lifetime):
        """Has sessions end after some seconds, unless they are refreshed again. Returns those that have ended."""
        body = {"ids": sessions, "lifetime_seconds": lifetime}
        return self.ask("POST", "/v1/refresh/channel", body)[1].get("over", [])

    def end(self, sessions):
        if sessions and self.ask("POST", "/v1/close/channel", {"ids": sessions})[0] not in (0, 200):
            for session in sessions:  # all but those that are over
                self.ask("DELETE", f"/v1/sessions/channel/{session}")

    def of_port(self, port):
        """Returns the sessions of a server's port."""
        out, after = [], ""
        while after is not None:
            page = self.ask("GET", f"/v1/sessions/channel?limit=1000&after={after}")[1]
            out += [s["id"] for s in page.get("items", []) if s["fields"]["server"].endswith(f":{port}")]
            after = page.get("next")
        return out


class Channel:
    def __init__(self, number, peer):
        self.number, self.peer, self.host = number, peer, peer.rpartition(":")[0]
        self.ends, self.session = 0, None


class Allocation:
    def __init__(self, transaction, relayed, cookie):
        self.transaction, self.relayed, self.cookie, self.ends = transaction, relayed, cookie, 0
        self.channels = {}     # number: Channel
        self.permissions = {}  # a peer's address: until when; without one, the server ends its channels


class Helper:
    def __init__(self, relay, packets, sockets, hold, channel_lifetime, permission_lifetime):
        self.relay, self.packets, self.sockets, self.hold = relay, packets, sockets, hold
        self.channel_lifetime, self.permission_lifetime = channel_lifetime, permission_lifetime
        self.asked = {}        # (client, server, transaction): (until, request; nothing if it isn't known for sure)
        self.allocations = {}  # (client, server): Allocation
        self.holders = {}      # relayed address: key of the allocation
        self.whole = time.monotonic()  # until when no packet was missed
        self.known = 0                 # from when on requests are taken

    def packet(self, packet, outgoing):
        if not (parts := datagram(packet)):
            return
        src, dst, message = parts
        kind, transaction, now = struct.unpack_from("!H", message)[0], message[8:20], time.monotonic()
        if outgoing and kind & SUCCESS:
            self.answer(kind & ~CLASS, kind & CLASS == SUCCESS, (dst, src), transaction, attributes(message))
        elif not outgoing and kind in (CREATE_PERMISSION, CHANNEL_BIND) and now >= self.known:
            # To which of two requests with one transaction an answer belongs can't be known. So requests that were
            # answered are kept as well.
            _, before = self.asked.pop((src, dst, transaction), (0, message))  # the oldest one stays the first
            self.asked[src, dst, transaction] = now + ANSWERED, message if before == message else None
        while self.asked and next(iter(self.asked.values()))[0] < now:
            del self.asked[next(iter(self.asked))]

    def answer(self, method, success, key, transaction, answer):
        self.look()
        until, request = self.asked.get((*key, transaction), (0, None))
        if not success:
            if until:
                self.asked[(*key, transaction)] = until, None
            if method != ALLOCATE and 437 in answer.get(ERROR_CODE, []):  # Allocation Mismatch: there is none
                self.drop(key)
            return
        if method == ALLOCATE:
            self.allocate(key, transaction, answer)
        if not (a := self.allocations.get(key)):
            return  # it stays with the server, or is older than this helper
        if method in (ALLOCATE, REFRESH):
            a.ends = time.monotonic() + answer.get(LIFETIME, [600])[0]
            self.keep(key)
        elif request:
            request = attributes(request)
            self.permit(key, a, method, request.get(XOR_PEER, []), request.get(CHANNEL_NUMBER, []))

    def allocate(self, key, transaction, answer):
        relayed, cookie = answer.get(XOR_RELAYED, []), None
        if len(relayed) == 1 and MOBILITY_TICKET not in answer:  # others have two addresses, or several clients'
            cookie = self.sockets.find(relayed[0])
        a = self.allocations.get(key)
        if a and (a.transaction, [a.relayed]) == (transaction, relayed):
            return  # the request was sent again
        self.drop(key, *[self.holders[r] for r in relayed if r in self.holders])
        # If an answer was missed, the socket may be another client's by now. A router sees other servers' answers, too.
        if self.look() and cookie and self.sockets.find(key[1]):
            self.allocations[key], self.holders[relayed[0]] = Allocation(transaction, relayed[0], cookie), key
            say(f"{key[0]} has {relayed[0]}")
        else:
            say(f"{key[0]} with {', '.join(relayed)} stays with the server")

    def permit(self, key, a, method, peers, numbers):
        now = time.monotonic()
        lifetime = self.permission_lifetime if method == CREATE_PERMISSION else self.channel_lifetime
        for peer in peers:
            a.permissions[peer.rpartition(":")[0]] = now + lifetime
        channel = None
        if method == CHANNEL_BIND and len(peers) == len(numbers) == 1:
            channel = a.channels.get(numbers[0])
            if not channel or channel.peer != peers[0]:
                if channel:
                    self.end((key, channel))  # the server has ended it a moment ago
                channel = a.channels[numbers[0]] = Channel(numbers[0], peers[0])
            channel.ends = now + lifetime
        self.keep(key)
        if channel and not channel.session and key in self.allocations:
            fields = {"client": key[0], "server": key[1], "number": channel.number, "relayed": a.relayed,
                      "peer": channel.peer}
            channel.session = self.relay.open(fields, min(a.ends - now, lifetime, self.hold))

    def look(self):
        """Reports whether no packet was missed since the last look."""
        now, missed = time.monotonic(), self.packets.missed()
        if not missed:
            self.whole = now
            return True
        say(f"{missed} messages were missed: what is bound within {ANSWERED} seconds stays with the server")
        self.asked, self.known = {}, now + ANSWERED  # a missed request may have the transaction of one that comes now
        for a in self.allocations.values():          # a missed CreatePermission may have made permissions shorter
            for host, ends in a.permissions.items():
                a.permissions[host] = min(ends, self.whole + self.permission_lifetime)
        self.keep(*self.allocations)
        return False

    def closed(self):
        """Drops allocations whose socket was closed, by the server or with it."""
        try:
            ended = [(self.holders.get(where), cookie) for where, cookie in self.sockets.ended()]
        except OSError:  # more than there was room for
            self.keep(*self.allocations)
        else:
            self.drop(*[key for key, cookie in ended if key and self.allocations[key].cookie == cookie])

    def keep(self, *keys):
        """Closes what has ended, and refreshes the rest: sessions of a helper that was killed end by themselves."""
        now, sessions, over, ended = time.monotonic(), {}, [], []
        for key in keys:
            a = self.allocations[key]
            if a.ends <= now or self.sockets.find(a.relayed) != a.cookie:
                over.append(key)
                continue
            for channel in list(a.channels.values()):
                left = min(a.ends, channel.ends, a.permissions[channel.host]) - now
                if left <= 0:
                    ended.append((key, a.channels.pop(channel.number)))
                elif channel.session:
                    sessions.setdefault(min(left, self.hold), {})[channel.session] = channel
        self.end(*ended)
        self.drop(*over)
        for left, those in sessions.items():
            for session in self.relay.refresh(list(those), left):
                those[session].session = None  # an operator has closed it: the client's next ChannelBind opens it again

    def drop(self, *keys):
        ended = []
        for key in keys:
            if a := self.allocations.pop(key, None):
                del self.holders[a.relayed]
                ended += [(key, channel) for channel in a.channels.values()]
        self.end(*ended)

    def end(self, *channels):
        self.relay.end([channel.session for _, channel in channels if channel.session])
        for key, channel in channels:
            say(f"channel {channel.number:#x} of {key[0]} has ended")


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--interface", required=True, help="where clients' packets come from")
    p.add_argument("--socket", required=True, help="the control socket of the relay")
    p.add_argument("--port", type=int, default=3478, help="of the TURN server")
    p.add_argument("--channel-lifetime", type=float, default=600, help="seconds, as the server has it")
    p.add_argument("--permission-lifetime", type=float, default=300, help="seconds, as the server has it")
    p.add_argument("--hold", type=float, default=15, help="seconds until sessions of a killed helper end")
    p.add_argument("--buffer", type=int, default=32 << 20, help="bytes for messages that wait to be read")
    args = p.parse_args()
    # Signals wake select up, and do nothing else: an exception that is raised in a finalizer is lost, and the signal
    # with it.
    ends, wake = socket.socketpair()
    wake.setblocking(False)
    signal.set_wakeup_fd(wake.fileno())
    for number in signal.SIGTERM, signal.SIGINT:
        signal.signal(number, lambda *_: None)
    sockets, packets, relay = Sockets(args.buffer), Packets(args.interface, args.port, args.buffer), Relay("relay")
    relay.path = args.socket
    relay.end(relay.of_port(args.port))  # a helper that was killed left them: the server may have ended their channels
    helper = Helper(relay, packets, sockets, args.hold, args.channel_lifetime, args.permission_lifetime)
    look = 0
    say("ready")
    try:
        while ends not in (ready := select.select([packets, sockets.closed, ends], [], [], helper.hold / 4)[0]):
            if sockets.closed in ready:
                helper.closed()
            if packets in ready:
                try:
                    data, source = packets.recvfrom(65535)
                    helper.packet(data, source[2] == socket.PACKET_OUTGOING)
                except OSError as e:
                    if e.errno != errno.ENETDOWN:  # the socket goes on when the interface is up again
                        raise
            if time.monotonic() >= look:
                look = time.monotonic() + helper.hold / 4
                if not packets.getsockname()[0]:
                    sys.exit(f"{args.interface} is gone")
                helper.look()
                helper.keep(*helper.allocations)
    finally:
        helper.drop(*list(helper.allocations))


if __name__ == "__main__":
    main()
