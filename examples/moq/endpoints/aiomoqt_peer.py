"""A publisher and a subscriber of MoQ Transport made of aiomoqt, with the commands and the output of peer/src/main.rs:

aiomoqt_peer.py URL DRAFT publish NAMESPACE TRACK [FIRST] [datagrams]
aiomoqt_peer.py URL DRAFT subscribe NAMESPACE TRACK COUNT next
"""

import asyncio
import hashlib
import logging
import sys

from aiomoqt.agent import AgentError, AgentSession, SubscribeSpec, TrackRef
from aiomoqt.client import MOQTClient
from aiomoqt.delivery import StreamMapping
from aiomoqt.track import PublishedTrack
from aiomoqt.types import MOQTRequestError
from aiomoqt.utils.logger import set_log_level
from aiomoqt.utils.url import parse_relay_url


def say(*words):
    print(*words, flush=True)


def show(group, subgroup, number, payload):
    say(group, "-" if subgroup is None else subgroup, number, hashlib.sha256(payload).hexdigest())


def bytes_of(track, group, number, size):
    """Bytes that are those of one object only."""
    block = hashlib.sha256(f"{track} {group} {number}".encode()).digest()
    out = bytearray()
    while len(out) < size:
        out += block
        block = hashlib.sha256(block).digest()
    return bytes(out[:size])


class Track(PublishedTrack):
    """A track whose groups are asked for: OBJECTS BYTES, and done."""

    def __init__(self, *args, asked, first, **kwargs):
        super().__init__(*args, **kwargs)
        self.asked, self.group = asked, first
        self.announced = asyncio.Event()

    async def produce(self, out):
        await self.announced.wait()  # a SUBSCRIBE may overtake the answer to PUBLISH_NAMESPACE
        say("subscribed")
        while (line := await self.asked.get()) != "done":
            count, size = map(int, line.split())
            for number in range(count):
                payload = bytes_of(self.fqtn, self.group, number, size)
                await out.write(self.group, number, payload, group_start=number == 0)
                show(self.group, None if self.mapping == StreamMapping.DATAGRAM else 0, number, payload)
            self.group += 1


async def publish(session, namespace, name, first="0", kind=""):
    asked = asyncio.Queue()
    track = Track(session, namespace, name, asked=asked, first=int(first))
    if kind == "datagrams":
        track.mapping = StreamMapping.DATAGRAM
    await track.publish(announce_namespace=True, publish_track=False)
    say("ok")
    track.announced.set()
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    while line := await reader.readline():
        await asked.put(line.decode().strip())


async def subscribe(agent, track, *_):
    reader = await agent.reader(SubscribeSpec(track, buffer=65536))  # from the next object on
    say("ok")
    while not reader.done or reader.buffered:
        for o in await reader.read():
            show(o.group, o.subgroup, o.object_id, o.payload)
    done = reader.publish_done
    say(f"done {done['status_code']:#x} {done['stream_count']} {reader.ended}")


async def run(url, draft, command, namespace, name, *more):
    set_log_level(logging.WARNING)
    relay = parse_relay_url(url)
    client = MOQTClient(relay.host, relay.port, path=relay.path, use_quic=relay.use_quic, verify_tls=False,
                        supported_drafts=int(draft))
    async with client.connect() as session:
        await session.client_session_init()
        if command == "publish":
            await publish(session, namespace, name, *more)
            return
        try:
            async with AgentSession(session) as agent:
                await subscribe(agent, TrackRef(namespace, name), *more)
        except (AgentError, MOQTRequestError) as refused:
            say("error", refused)


asyncio.run(run(*sys.argv[1:]))
