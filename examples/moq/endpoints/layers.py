"""A publisher and a subscriber of a video in two layers, by aiomoqt: each layer is a track, each second of it a group.

    python layers.py publish URL DRAFT GROUPS
    python layers.py subscribe URL DRAFT TIMEOUT PRIORITY PRIORITY

TIMEOUT is the OBJECT_DELIVERY_TIMEOUT of the enhancement layer in ms, 0 for none; the priorities are the subscriber's, of
the base layer and of the enhancement layer. The subscriber prints, as JSON, the delay of each object in ms.
"""
import asyncio
import json
import struct
import sys
import time

from aiomoqt.client import MOQTClient
from aiomoqt.track import PublishedTrack
from aiomoqt.types import ParamType
from aiomoqt.utils.url import parse_relay_url

FRAMES = 25  # a second
LAYERS = {"base": 5000, "enhancement": 10000}  # bytes of a frame: 1 and 2 Mbit/s
SILENCE = 20  # seconds after which nothing is expected any more, of a relay that says no end


class Layer(PublishedTrack):
    """Frames that begin with the time at which they were due."""

    async def produce(self, out):
        begin, clock = time.monotonic(), time.time()
        for n in range(FRAMES * self.groups):
            await asyncio.sleep(begin + n / FRAMES - time.monotonic())
            payload = struct.pack(">d", clock + n / FRAMES) + bytes(self.object_size - 8)
            await out.write(n // FRAMES, n % FRAMES, payload, group_start=n % FRAMES == 0)


async def publish(session, groups):
    for name, size in LAYERS.items():
        layer = Layer(session, "video", name, object_size=size)
        layer.groups = int(groups)
        layer.attach(session)
    await session.publish_namespace(namespace="video", parameters={}, wait_response=True)
    print("published", flush=True)
    await session.async_closed()


async def subscribe(session, timeout, *priorities):
    delays = {name: [] for name in LAYERS}
    arrived = asyncio.Event()

    async def layer(name, priority):
        def on_object(msg, *_):
            if msg.payload:
                due, = struct.unpack_from(">d", msg.payload)
                delays[name].append(1000 * (time.time() - due))
                arrived.set()

        parameters = {}
        if name == "enhancement" and int(timeout):
            parameters[ParamType.DELIVERY_TIMEOUT] = int(timeout)
        done = asyncio.get_running_loop().create_future()
        ok = await session.subscribe("video", name, priority=int(priority), parameters=parameters, wait_response=True,
                                     on_object=on_object, on_done=done.set_result)
        ended = asyncio.Semaphore(0)  # streams
        session.register_stream_end_handler(ok.track_alias, lambda *_, **__: ended.release())
        for _ in range((await done).stream_count):  # PUBLISH_DONE may come before what the streams have
            await ended.acquire()

    async def silence():
        while True:
            arrived.clear()
            try:
                await asyncio.wait_for(arrived.wait(), SILENCE)
            except TimeoutError:
                return

    layers = asyncio.gather(*(layer(name, p) for name, p in zip(LAYERS, priorities)))
    await asyncio.wait({layers, asyncio.ensure_future(silence())}, return_when=asyncio.FIRST_COMPLETED)
    if layers.done():
        layers.result()  # what was refused
    print(json.dumps(delays))


async def main(role, url, draft, *args):
    at = parse_relay_url(url)
    client = MOQTClient(at.host, at.port, path=at.path, use_quic=at.use_quic, verify_tls=False,
                        supported_drafts=int(draft), congestion_control_algorithm="cubic")
    async with client.connect() as session:
        await session.client_session_init()
        await {"publish": publish, "subscribe": subscribe}[role](session, *args)


asyncio.run(main(*sys.argv[1:]))
