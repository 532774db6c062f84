"""A link to a server on loopback that damages bytes, stands still, or is cut."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from urllib.parse import urlsplit


class BadLink:
    """Forwards connections to a URL's server."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None and parts.port is not None
        self._to = parts.hostname, parts.port
        self._listens = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listens.getsockname()[1]}"
        self.damages = 0
        """So many answers of more than `damages_beyond` bytes have a wrong byte."""
        self.damages_beyond = 1000
        self.damaged = 0
        self._flows = threading.Event()
        self._flows.set()
        self._is_cut = self._closed = False
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def stands_still(self, still: bool) -> None:
        """Nothing passes; connections stay."""
        if still:
            self._flows.clear()
        else:
            self._flows.set()

    def cut(self, cut: bool) -> None:
        """Connections end, and none is made."""
        self._is_cut = cut
        if cut:
            self._drop()

    def _drop(self) -> None:
        held, self._open = self._open, []
        for one in held:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listens.accept()
            except OSError:
                return
            if self._is_cut or self._closed:
                near.close()
                continue
            try:
                far = socket.create_connection(self._to, 5)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            self._open += [near, far]
            for pair in ((near, far, False), (far, near, True)):
                threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, source: socket.socket, to: socket.socket, answers: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 20):
                self._flows.wait()
                if answers and self.damages and len(data) > self.damages_beyond:
                    self.damages -= 1
                    self.damaged += 1
                    raw = bytearray(data)
                    raw[-100] ^= 1  # among the last block's bytes, before its digest
                    data = bytes(raw)
                to.sendall(data)
        for one in (source, to):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._closed = True
        self._listens.shutdown(socket.SHUT_RDWR)  # wakes the one that accepts
        self._listens.close()
        self._flows.set()
        self._drop()
