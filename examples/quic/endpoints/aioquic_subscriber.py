"""A subscriber by aioquic, as it is installed or with null protection of 1-RTT packets.

It prints "ok null" or "ok protected" when it is subscribed, for each stream "stream SHA256" or "reset CODE", and ends with
its input after as many streams as it was told.
"""

import argparse
import asyncio
import hashlib
import ssl
import sys

import aioquic.asyncio.client
from aioquic.asyncio import QuicConnectionProtocol, connect
from aioquic.buffer import Buffer, encode_uint_var
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.crypto import CryptoContext, CryptoError
from aioquic.quic.events import ConnectionTerminated, StreamDataReceived, StreamReset
from aioquic.quic.packet import decode_packet_number
from aioquic.tls import Epoch

NULL_PROTECTION = 0x3F66724E55  # a transport parameter without a value
TAG = bytes(16)


class NullContext(CryptoContext):
    """Neither protects nor checks packets; the tag stays, as zeros."""

    def encrypt_packet(self, plain_header, plain_payload, packet_number):
        return plain_header + plain_payload + TAG

    def decrypt_packet(self, packet, encrypted_offset, expected_packet_number):
        end = encrypted_offset + (packet[0] & 3) + 1
        if packet[0] & 4 or packet[-16:] != TAG:
            raise CryptoError("not a packet with null protection")
        number = int.from_bytes(packet[encrypted_offset:end], "big")
        bits = 8 * (end - encrypted_offset)
        return packet[:end], packet[end:-16], decode_packet_number(number, bits, expected_packet_number), False


class NullConnection(QuicConnection):
    """Asks for null protection, and does without protection if the peer has asked as well."""

    def _serialize_transport_parameters(self):
        return super()._serialize_transport_parameters() + encode_uint_var(NULL_PROTECTION) + encode_uint_var(0)

    def _parse_transport_parameters(self, data, from_session_ticket=False):
        super()._parse_transport_parameters(data, from_session_ticket)
        parameters = Buffer(data=data)
        while not parameters.eof():
            name, size = parameters.pull_uint_var(), parameters.pull_uint_var()
            parameters.pull_bytes(size)
            if name == NULL_PROTECTION:
                pair = self._cryptos[Epoch.ONE_RTT]
                pair.send.__class__ = pair.recv.__class__ = NullContext


class Subscriber(QuicConnectionProtocol):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.answer = asyncio.get_running_loop().create_future()
        self.ended = asyncio.Event()
        self.control, self.said, self.open, self.over = None, b"", {}, 0

    def subscribe(self, feed):
        self.control = self._quic.get_next_available_stream_id()
        self._quic.send_stream_data(self.control, b"subscribe %s\n" % feed.encode(), end_stream=True)
        self.transmit()
        return self.answer

    def quic_event_received(self, event):
        if isinstance(event, StreamDataReceived) and event.stream_id == self.control:
            self.said += event.data
            if event.end_stream:
                self.answer.set_result(self.said.decode().strip())
        elif isinstance(event, StreamDataReceived):
            digest = self.open.setdefault(event.stream_id, hashlib.sha256())
            digest.update(event.data)
            if event.end_stream:
                self.end(event.stream_id, f"stream {digest.hexdigest()}")
        elif isinstance(event, StreamReset):
            self.end(event.stream_id, f"reset {event.error_code}")
        elif isinstance(event, ConnectionTerminated):
            if event.error_code:
                print("closed", event.error_code, event.reason_phrase, flush=True)
            self.ended.set()

    def end(self, stream, what):
        self.open.pop(stream, None)
        print(what, flush=True)
        self.over += 1
        if self.over == args.streams:
            self.ended.set()


async def main():
    configuration = QuicConfiguration(
        is_client=True, alpn_protocols=["fastrelay"], verify_mode=ssl.CERT_NONE, max_data=1 << 24, max_stream_data=1 << 20
    )
    if args.protection == "null":
        aioquic.asyncio.client.QuicConnection = NullConnection
    async with connect(args.host, args.port, configuration=configuration, create_protocol=Subscriber) as client:
        answer = await client.subscribe(args.feed)
        null = isinstance(client._quic._cryptos[Epoch.ONE_RTT].recv, NullContext)
        print(answer, "null" if null else "protected", flush=True)
        await client.ended.wait()
        await asyncio.to_thread(sys.stdin.read)


parser = argparse.ArgumentParser()
parser.add_argument("host")
parser.add_argument("port", type=int)
parser.add_argument("feed")
parser.add_argument("protection", choices=["null", "stock"])
parser.add_argument("streams", type=int)
args = parser.parse_args()
asyncio.run(main())
