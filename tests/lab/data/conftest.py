"""An empty home for data sets, and a web server on the loopback interface."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """No test reads or writes the data of the machine it runs on."""
    monkeypatch.setenv("SECATEURS_DATA", str(tmp_path / "home"))
    return tmp_path / "home"


class Web:
    """Pages by path, and a log of what was asked for."""

    def __init__(self) -> None:
        self.pages: dict[str, bytes] = {}
        self.cut: set[str] = set()
        """Paths whose answers end before their announced length."""
        self.asked: list[str] = []
        self.address = ""


@pytest.fixture
def web():
    site = Web()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            site.asked.append(self.path)
            body = site.pages.get(self.path)
            if body is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) // 2] if self.path in site.cut else body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    site.address = f"http://127.0.0.1:{server.server_port}/"
    yield site
    server.shutdown()
    server.server_close()
    thread.join()
