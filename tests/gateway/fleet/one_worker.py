"""A worker in a process of its own: tells what it was given, and answers a request by its limit. Run by `Killable`."""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT, DOCUMENT = int(sys.argv[1]), sys.argv[2].encode()
ANSWERS = {"/server_info": DOCUMENT, "/generate": str(json.loads(DOCUMENT)["max_req_input_len"]).encode()}


class Worker(BaseHTTPRequestHandler):
    """Keeps a silent connection for as long as it lives, as uvicorn does."""

    def do_GET(self) -> None:
        """Answer."""
        body = ANSWERS.get(self.path)
        self.send_response(200 if body is not None else 404)
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Server(ThreadingHTTPServer):
    """Threads end with the process."""

    daemon_threads = True
    request_queue_size = 64


Server(("127.0.0.1", PORT), Worker).serve_forever()
