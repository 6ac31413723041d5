"""A QUIC endpoint by aioquic, as it is installed: an echo server, or a client that wants its own bytes back.

Both sides change to a new connection ID of the other one after every `change` bytes that they receive.
"""

import argparse
import asyncio
import hashlib
import os
import sys

from aioquic.asyncio import QuicConnectionProtocol, connect, serve
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import StreamDataReceived


class Endpoint(QuicConnectionProtocol):
    change = 0
    received = 0
    changes = 0

    def quic_event_received(self, event):
        if isinstance(event, StreamDataReceived):
            self.received += len(event.data)
            if self.change and self.received // self.change > self.changes:
                self.changes += 1
                self.change_connection_id()
        super().quic_event_received(event)


async def echo(reader, writer):
    while data := await reader.read(1 << 16):
        writer.write(data)
    writer.write_eof()


def on_stream(reader, writer):
    asyncio.get_running_loop().create_task(echo(reader, writer))


async def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("side", choices=["server", "client"])
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("--certificates", required=True, help="folder with ca.pem, cert.pem and key.pem")
    parser.add_argument("--id", type=int, default=8, help="length of this side's connection IDs")
    parser.add_argument(
        "--bytes", default="1048576", help="portions, as 5,10: before each but the first, the client awaits a line of input"
    )
    parser.add_argument("--change", type=int, default=0)
    args = parser.parse_args()
    Endpoint.change = args.change

    configuration = QuicConfiguration(
        is_client=args.side == "client",
        alpn_protocols=["echo"],
        connection_id_length=args.id,
        server_name="target",
    )
    if args.side == "server":
        configuration.load_cert_chain(args.certificates + "/cert.pem", args.certificates + "/key.pem")
        await serve(
            args.host, args.port, configuration=configuration, create_protocol=Endpoint, stream_handler=on_stream
        )
        print("listening", flush=True)
        await asyncio.Future()

    configuration.load_verify_locations(args.certificates + "/ca.pem")
    async with connect(args.host, args.port, configuration=configuration, create_protocol=Endpoint) as client:
        reader, writer = await client.create_stream()
        sent, got = hashlib.sha256(), hashlib.sha256()

        async def receive():
            size = 0
            while data := await reader.read(1 << 16):
                got.update(data)
                size += len(data)
                print(size, flush=True)

        loop = asyncio.get_running_loop()
        receiving = loop.create_task(receive())
        for i, left in enumerate(map(int, args.bytes.split(","))):
            if i > 0:
                await loop.run_in_executor(None, sys.stdin.readline)
            while left:
                data = os.urandom(min(left, 1 << 14))
                left -= len(data)
                sent.update(data)
                writer.write(data)
                await asyncio.sleep(0)
        writer.write_eof()
        await receiving
        print("right" if sent.digest() == got.digest() else "wrong", client.changes, flush=True)


asyncio.run(main())
