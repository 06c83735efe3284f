"""A browser's side: a websocket that collects what ComfyUI sends to one client."""
import asyncio
import contextlib
import json
import struct
import threading
import time
import uuid

import aiohttp

ENDS = ("execution_success", "execution_error", "execution_interrupted")


class Client:
    """`messages` are the (type, data) pairs received so far, previews left out. A sentence that a node shows of itself
    while it runs is a pair ("text", {"node", "text"})."""

    SENTENCE = 3  # the number of this kind among the messages that are not JSON

    def __init__(self, server):
        self.server, self.id, self.messages = server, uuid.uuid4().hex, []
        self._arrived = threading.Condition()

    def queue(self, graph, **extra_data):
        """The prompt id of `graph`, queued as this client's."""
        return self.server.queue(graph, client_id=self.id, extra_data=extra_data)

    def of(self, prompt_id):
        """The messages about one prompt."""
        return [(kind, data) for kind, data in list(self.messages) if data.get("prompt_id") == prompt_id]

    def until(self, found, seconds=60):
        """Wait until `found(type, data)` is true of a message, and return that message's data."""
        end, seen = time.monotonic() + seconds, 0
        with self._arrived:
            while True:
                for kind, data in self.messages[seen:]:
                    if found(kind, data):
                        return data
                seen = len(self.messages)
                if not self._arrived.wait(max(0, end - time.monotonic())) and time.monotonic() >= end:
                    raise AssertionError(f"not heard within {seconds} s; last: {self.messages[-5:]}\n"
                                         f"{self.server.log[-3000:]}")

    def end(self, prompt_id, seconds=120):
        """Wait for the prompt's end; (type, data) of the message that told it."""
        kinds = []

        def found(kind, data):
            if kind in ENDS and data.get("prompt_id") == prompt_id:
                kinds.append(kind)
            return bool(kinds)

        data = self.until(found, seconds)
        return kinds[0], data

    def _hear(self, message):
        if message.type == aiohttp.WSMsgType.TEXT:
            parsed = json.loads(message.data)
            pair = parsed["type"], parsed.get("data") or {}
        elif message.type == aiohttp.WSMsgType.BINARY and struct.unpack_from(">I", message.data) == (self.SENTENCE,):
            length, = struct.unpack_from(">I", message.data, 4)
            named, text = message.data[8 : 8 + length], message.data[8 + length :]
            pair = "text", {"node": named.decode(), "text": text.decode()}
        else:
            return
        with self._arrived:
            self.messages.append(pair)
            self._arrived.notify_all()


@contextlib.contextmanager
def connected(server):
    """A `Client`, connected until the block ends."""
    client = Client(server)
    ready, loop, closing = threading.Event(), asyncio.new_event_loop(), asyncio.Event()

    async def listen():
        url = f"ws://127.0.0.1:{server.port}/ws?clientId={client.id}"
        async with aiohttp.ClientSession() as session, session.ws_connect(url, max_msg_size=0) as socket:
            ready.set()
            hearing = asyncio.create_task(hear(socket))
            await closing.wait()
            hearing.cancel()

    async def hear(socket):
        async for message in socket:
            client._hear(message)

    thread = threading.Thread(target=loop.run_until_complete, args=(listen(),), daemon=True)
    thread.start()
    try:
        assert ready.wait(30), f"no websocket\n{server.log[-3000:]}"
        yield client
    finally:
        loop.call_soon_threadsafe(closing.set)
        thread.join(10)
        loop.close()
