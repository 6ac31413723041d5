#!/usr/bin/env python3
"""Moves the channel data of a TURN server (plain UDP) into the kernel.

coturn's log, its command line and its Redis messages don't have the numbers of channels. So this helper reads what
clients and server say to each other from a packet socket, and opens and closes sessions of the relay of examples/turn
by its control socket. It needs CAP_NET_RAW, and the relay's user. Without it, all packets pass to the server.
"""
import argparse, ctypes, errno, functools, http.client, ipaddress, json, select, signal, socket, struct, sys, time

COOKIE = 0x2112A442
ALLOCATE, REFRESH, CHANNEL_BIND = 0x0003, 0x0004, 0x0009  # requests; RFC 8656 §18
SUCCESS = 0x0100                                          # in the type of an answer
CHANNEL_NUMBER, LIFETIME, XOR_PEER, XOR_RELAYED = 0x000C, 0x000D, 0x0012, 0x0016

# What the kernel gives to the packet socket: UDP over IPv4 or IPv6 that has STUN's magic cookie, so no channel data.
FILTER = [
    (0x30, 0, 0, 0), (0x54, 0, 0, 0xF0), (0x15, 0, 5, 0x40),                    # version 4:
    (0x30, 0, 0, 9), (0x15, 0, 9, 17), (0xB1, 0, 0, 0), (0x40, 0, 0, 12), (0x15, 5, 6, COOKIE),
    (0x15, 0, 5, 0x60), (0x30, 0, 0, 6), (0x15, 0, 3, 17), (0x20, 0, 0, 52), (0x15, 0, 1, COOKIE),  # version 6
    (0x06, 0, 0, 65535), (0x06, 0, 0, 0),                                       # take it, or don't
]

say = functools.partial(print, file=sys.stderr, flush=True)


def packet_socket(interface):
    s = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0003))  # ETH_P_ALL: also what leaves
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *i) for i in FILTER))
    s.setsockopt(socket.SOL_SOCKET, 26, struct.pack("HL", len(FILTER), ctypes.addressof(code)))  # SO_ATTACH_FILTER
    s.bind((interface, 0x0003))
    return s


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
    """Returns the attributes of a STUN message, those with addresses as text."""
    length, transaction, out, at = struct.unpack_from("!H", message, 2)[0], message[4:20], {}, 20
    while at + 4 <= min(20 + length, len(message)):
        kind, size = struct.unpack_from("!HH", message, at)
        value = message[at + 4:at + 4 + size]
        if len(value) == size and kind in (XOR_PEER, XOR_RELAYED) and size in (8, 20):
            port = struct.unpack_from("!H", value, 2)[0] ^ (COOKIE >> 16)
            out[kind] = endpoint(bytes(a ^ b for a, b in zip(value[4:], transaction)), port)
        elif kind in (CHANNEL_NUMBER, LIFETIME) and size == len(value) == 4:
            out[kind] = struct.unpack_from("!H" if kind == CHANNEL_NUMBER else "!I", value)[0]
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
            self.ask("DELETE", f"/v1/sessions/channel/{answer['other']}")
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


class Helper:
    def __init__(self, relay, port, channel_lifetime, hold):
        self.relay, self.port, self.channel_lifetime, self.hold = relay, port, channel_lifetime, hold
        self.pending = {}      # (client, server, transaction): (until, type, attributes of the request)
        self.allocations = {}  # (client, server): [ends, relayed address, {number: [ends, peer, session]}]

    def packet(self, packet, outgoing):
        if not (parts := datagram(packet)):
            return
        src, dst, message = parts
        kind, transaction = struct.unpack_from("!H", message)[0], message[8:20]
        if not outgoing and kind in (ALLOCATE, REFRESH, CHANNEL_BIND) and dst.endswith(f":{self.port}"):
            self.pending.pop((src, dst, transaction), None)  # the oldest one stays the first
            self.pending[src, dst, transaction] = time.monotonic() + 10, kind, attributes(message)
        elif outgoing and kind & SUCCESS and src.endswith(f":{self.port}"):
            _, asked, request = self.pending.pop((dst, src, transaction), (0, 0, {}))
            if asked and kind == asked | SUCCESS:
                self.success(asked, (dst, src), request, attributes(message))
        while self.pending and next(iter(self.pending.values()))[0] < time.monotonic():
            del self.pending[next(iter(self.pending))]

    def success(self, asked, key, request, answer):
        now = time.monotonic()
        if asked == ALLOCATE and XOR_RELAYED in answer:
            self.drop(key)
            self.allocations[key] = [now + answer.get(LIFETIME, 600), answer[XOR_RELAYED], {}]
        elif key not in self.allocations:
            return  # it is older than this helper
        elif asked == REFRESH:
            self.allocations[key][0] = now + answer.get(LIFETIME, 600)
        elif asked == CHANNEL_BIND and CHANNEL_NUMBER in request and XOR_PEER in request:
            ends, relayed, channels = self.allocations[key]
            number, peer = request[CHANNEL_NUMBER], request[XOR_PEER]
            if number in channels and channels[number][1] != peer:  # the server has ended that one a moment ago
                self.end(key, number, channels.pop(number))
            channel = channels.setdefault(number, [0, peer, None])
            channel[0] = now + self.channel_lifetime
            left = min(ends - now, self.channel_lifetime, self.hold)
            if not channel[2] or self.relay.refresh([channel[2]], left):
                fields = {"client": key[0], "server": key[1], "number": number, "relayed": relayed, "peer": peer}
                channel[2] = self.relay.open(fields, left)
        self.keep(key)

    def keep(self, *keys):
        """Closes what has ended, and refreshes the rest: sessions of a helper that was killed end by themselves."""
        now, sessions = time.monotonic(), {}
        for key in keys:
            ends, _, channels = self.allocations[key]
            for number, channel in list(channels.items()):
                left = min(min(ends, channel[0]) - now, self.hold)
                if left <= 0:
                    self.end(key, number, channels.pop(number))
                elif channel[2]:
                    sessions.setdefault(left, {})[channel[2]] = channel
            if ends <= now:
                self.drop(key)
        for left, those in sessions.items():
            for over in self.relay.refresh(list(those), left):
                those[over][2] = None  # an operator has closed it: the client's next ChannelBind opens it again

    def drop(self, key):
        for number, channel in self.allocations.pop(key, (0, 0, {}))[2].items():
            self.end(key, number, channel)

    def end(self, key, number, channel):
        say(f"channel {number:#x} of {key[0]} has ended")
        if channel[2]:
            self.relay.ask("DELETE", f"/v1/sessions/channel/{channel[2]}")


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--interface", required=True, help="where clients' packets come from")
    p.add_argument("--socket", required=True, help="the control socket of the relay")
    p.add_argument("--port", type=int, default=3478, help="of the TURN server")
    p.add_argument("--channel-lifetime", type=float, default=600, help="seconds, as the server has it")
    p.add_argument("--hold", type=float, default=15, help="seconds until sessions of a killed helper end")
    args = p.parse_args()
    # Signals wake select up, and do nothing else: an exception that is raised in a finalizer is lost, and the signal with it.
    ends, wake = socket.socketpair()
    wake.setblocking(False)
    signal.set_wakeup_fd(wake.fileno())
    for number in signal.SIGTERM, signal.SIGINT:
        signal.signal(number, lambda *_: None)
    packets, relay = packet_socket(args.interface), Relay("relay")
    relay.path = args.socket
    helper, look = Helper(relay, args.port, args.channel_lifetime, args.hold), 0
    say("ready")
    try:
        while ends not in (ready := select.select([packets, ends], [], [], helper.hold / 4)[0]):
            if ready:
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
                helper.keep(*helper.allocations)
    finally:
        for key in list(helper.allocations):
            helper.drop(key)


if __name__ == "__main__":
    main()
