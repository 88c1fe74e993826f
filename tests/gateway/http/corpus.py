"""Requests as they should not come, and as they may: name, bytes, and what becomes of them.

Where the rule is of RFC 9112 or 9110, its section is named; the rest is what smugglers are known to have tried, and
what real clients send.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Read(NamedTuple):
    """A request that is taken."""

    method: bytes
    target: bytes
    body: bytes = b""
    keep_alive: bool = True


class Case(NamedTuple):
    """Bytes of a client, the requests that are read from them, and the status of the error that ends it, if one does.

    `left` is what is being read when all was fed and nothing was wrong.
    """

    data: bytes
    reads: tuple[Read, ...] = ()
    status: int | None = None
    left: str = "idle"


HOST: Final = b"Host: a\r\n"
GET: Final = b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n"
GOT: Final = Read(b"GET", b"/x")


def posted(headers: bytes, body: bytes = b"", *, version: bytes = b"1.1", host: bytes = HOST) -> bytes:
    """Write a request with some headers (each with its line's end) and a body."""
    return b"POST /v1/completions HTTP/" + version + b"\r\n" + host + headers + b"\r\n" + body


def chunked(body: bytes) -> bytes:
    """Write a request with a body in chunks, which is given as it goes over the line."""
    return posted(b"Transfer-Encoding: chunked\r\n", body)


def asked(target: bytes, rest: bytes = b"") -> bytes:
    """Write a request for a target."""
    return b"GET " + target + b" HTTP/1.1\r\n" + HOST + rest + b"\r\n"


def got(body: bytes = b"", *, keep_alive: bool = True) -> Read:
    return Read(b"POST", b"/v1/completions", body, keep_alive)


def bad(data: bytes, status: int = 400) -> Case:
    return Case(data, (), status)


def good(data: bytes, *reads: Read) -> Case:
    return Case(data, reads)


_ONE: Final = b"1\r\nx\r\n0\r\n\r\n"
_H2C: Final = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
_WEBSOCKET: Final = (
    b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)
_TLS_HELLO: Final = bytes.fromhex("16030100f4010000f00303") + bytes(range(200))

_FRAMING: Final = {
    # RFC 9112, 6.1 and 6.3: two lengths of one body are an attack
    "length, then chunked": bad(posted(b"Content-Length: 11\r\nTransfer-Encoding: chunked\r\n", _ONE)),
    "chunked, then length": bad(posted(b"Transfer-Encoding: chunked\r\nContent-Length: 11\r\n", _ONE)),
    "chunked, then length 0": bad(posted(b"Transfer-Encoding: chunked\r\nContent-Length: 0\r\n", _ONE)),
    "two lengths": bad(posted(b"Content-Length: 1\r\nContent-Length: 2\r\n", b"xy")),
    "one length twice": bad(posted(b"Content-Length: 1\r\nContent-Length: 1\r\n", b"x")),
    "a list of lengths": bad(posted(b"Content-Length: 1, 1\r\n", b"x")),
    "a list of different lengths": bad(posted(b"Content-Length: 1, 2\r\n", b"xy")),
    "length with a plus": bad(posted(b"Content-Length: +1\r\n", b"x")),
    "length with a minus": bad(posted(b"Content-Length: -1\r\n", b"x")),
    "length in hexadecimal": bad(posted(b"Content-Length: 0x1\r\n", b"x")),
    "length with a point": bad(posted(b"Content-Length: 1.0\r\n", b"x")),
    "length with an underscore": bad(posted(b"Content-Length: 1_0\r\n", b"x" * 10)),
    "length with a space in it": bad(posted(b"Content-Length: 1 1\r\n", b"x")),
    "length of nothing": bad(posted(b"Content-Length: \r\n")),
    "length of a word": bad(posted(b"Content-Length: one\r\n", b"x")),
    "length beyond 64 bits": bad(posted(b"Content-Length: 18446744073709551617\r\n", b"x")),
    "length in other digits": bad(posted("Content-Length: \u0661\r\n".encode(), b"x")),
    "length of 64 bits": bad(posted(b"Content-Length: 18446744073709551615\r\n", b"x"), 413),
    "length of more than is taken": bad(posted(b"Content-Length: 10001\r\n"), 413),
    "length with zeros": good(posted(b"Content-Length: 0001\r\n", b"x"), got(b"x")),
    "length with very many zeros": good(posted(b"Content-Length: " + b"0" * 5000 + b"1\r\n", b"x"), got(b"x")),
    "length with space round it": good(posted(b"Content-Length:  1 \t \r\n", b"x"), got(b"x")),
    "length 0": good(posted(b"Content-Length: 0\r\n") + GET, got(), GOT),
    "no length": good(posted(b"") + GET, got(), GOT),
    "length without its body": Case(posted(b"Content-Length: 3\r\n", b"ab"), left="body"),
    "what follows the length is the next": good(posted(b"Content-Length: 1\r\n", b"x") + GET, got(b"x"), GOT),
    "the most that is taken": good(posted(b"Content-Length: 10000\r\n", b"x" * 10000), got(b"x" * 10000)),
}

_CODINGS: Final = {
    "chunked": good(chunked(_ONE) + GET, got(b"x"), GOT),
    "chunked in capitals": good(posted(b"TRANSFER-ENCODING: CHUNKED\r\n", _ONE), got(b"x")),
    "chunked twice": bad(posted(b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", _ONE)),
    "chunked, identity in two": bad(posted(b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", _ONE)),
    "identity, chunked in two": bad(
        posted(b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n", _ONE), 501
    ),
    "a list of chunked": bad(posted(b"Transfer-Encoding: chunked, chunked\r\n", _ONE)),
    "gzip, chunked": bad(posted(b"Transfer-Encoding: gzip, chunked\r\n", _ONE), 501),
    "gzip": bad(posted(b"Transfer-Encoding: gzip\r\n", b"x"), 501),
    "identity": bad(posted(b"Transfer-Encoding: identity\r\n", b"x"), 501),
    "chunked with a parameter": bad(posted(b"Transfer-Encoding: chunked;q=1\r\n", _ONE), 501),
    "xchunked": bad(posted(b"Transfer-Encoding: xchunked\r\n", _ONE), 501),
    "chunkedx": bad(posted(b"Transfer-Encoding: chunkedx\r\n", _ONE), 501),
    "quoted": bad(posted(b'Transfer-Encoding: "chunked"\r\n', _ONE), 501),
    "chunked behind a vertical tab": bad(posted(b"Transfer-Encoding: \x0bchunked\r\n", _ONE)),
    "chunked behind a high space": bad(posted(b"Transfer-Encoding: \xa0chunked\r\n", _ONE), 501),
    "no coding": bad(posted(b"Transfer-Encoding: \r\n", _ONE)),
    "chunked for HTTP/1.0": bad(posted(b"Transfer-Encoding: chunked\r\n", _ONE, version=b"1.0"), 501),
    "coding with a space before its colon": bad(posted(b"Transfer-Encoding : chunked\r\n", _ONE)),
    "coding behind a line's fold": bad(posted(b"Transfer-Encoding:\r\n chunked\r\n", _ONE)),
    "coding behind a bare line feed": bad(posted(b"X: y\nTransfer-Encoding: chunked\r\n", _ONE)),
    "coding behind a bare carriage return": bad(posted(b"X: y\rTransfer-Encoding: chunked\r\n", _ONE)),
    "coding with NUL": bad(posted(b"Transfer-Encoding: chunked\0\r\n", _ONE)),
    "coding under another name": good(posted(b"Transfer_Encoding: chunked\r\n") + GET, got(), GOT),
}

_CHUNKS: Final = {
    "chunks": good(chunked(b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"), got(b"abcde")),
    "chunks of one byte": good(chunked(b"1\r\nx\r\n" * 500 + b"0\r\n\r\n"), got(b"x" * 500)),
    "no chunk": good(chunked(b"0\r\n\r\n") + GET, got(), GOT),
    "chunk size in capitals": good(chunked(b"A\r\n0123456789\r\n0\r\n\r\n"), got(b"0123456789")),
    "chunk size with zeros": good(chunked(b"0" * 30 + b"1\r\nx\r\n000\r\n\r\n"), got(b"x")),
    "chunk extension": good(chunked(b'1;a=b;c="d"\r\nx\r\n0;e\r\n\r\n'), got(b"x")),
    "chunk size with a minus": bad(chunked(b"-1\r\nx\r\n0\r\n\r\n")),
    "chunk size with a plus": bad(chunked(b"+1\r\nx\r\n0\r\n\r\n")),
    "chunk size with 0x": bad(chunked(b"0x1\r\nx\r\n0\r\n\r\n")),
    "chunk size with an underscore": bad(chunked(b"1_0\r\nx\r\n0\r\n\r\n")),
    "chunk size with a space before": bad(chunked(b" 1\r\nx\r\n0\r\n\r\n")),
    "chunk size with a space behind": bad(chunked(b"1 \r\nx\r\n0\r\n\r\n")),
    "chunk size of nothing": bad(chunked(b"\r\nx\r\n0\r\n\r\n")),
    "chunk size of a word": bad(chunked(b"one\r\nx\r\n0\r\n\r\n")),
    "chunk size beyond 64 bits": bad(chunked(b"10000000000000001\r\nx\r\n0\r\n\r\n")),
    "chunk size of 64 bits": Case(chunked(b"ffffffffffffffff\r\nx"), left="body"),
    "chunk size with a bare line feed": bad(chunked(b"1\nx\r\n0\r\n\r\n")),
    "chunk size with a bare carriage return": bad(chunked(b"1\rx\r\n0\r\n\r\n")),
    "chunk extension with a line feed": bad(chunked(b"1;a\nb\r\nx\r\n0\r\n\r\n")),
    "chunk extension with a carriage return": bad(chunked(b"1;a\rb\r\nx\r\n0\r\n\r\n")),
    "chunk extension with a line feed in quotes": bad(chunked(b'1;a="\n"\r\nx\r\n0\r\n\r\n')),
    "chunk longer than it says": bad(chunked(b"1\r\nxy\r\n0\r\n\r\n")),
    "chunk with a bare line feed behind": bad(chunked(b"1\r\nx\n0\r\n\r\n")),
    "chunk with a bare carriage return behind": bad(chunked(b"1\r\nx\r0\r\n\r\n")),
    "last chunk without its line": Case(chunked(b"1\r\nx\r\n0\r\n"), left="body"),
    "last chunk with a bare line feed": bad(chunked(b"1\r\nx\r\n0\r\n\n")),
    "headers behind the body": bad(chunked(b"1\r\nx\r\n0\r\nX: y\r\n\r\n")),
    "a length behind the body": bad(chunked(b"1\r\nx\r\n0\r\nContent-Length: 5\r\n\r\n")),
    "an endless header behind the body": bad(chunked(b"1\r\nx\r\n0\r\nX: " + b"y" * 100_000), 431),
    "an endless extension": bad(chunked(b"1;a=" + b"b" * 100_000), 431),
    "chunks of more than is taken": bad(chunked(b"2711\r\n" + b"x" * 10001), 413),
}

_LINES: Final = {
    # RFC 9112, 2.2, 5.1 and 5.2
    "a header folded": bad(posted(b"X: a\r\n b\r\n")),
    "a header folded with a tab": bad(posted(b"X: a\r\n\tb\r\n")),
    "a header with space before it": bad(b"GET / HTTP/1.1\r\n Host: a\r\n\r\n"),
    "a header with a space before its colon": bad(b"GET / HTTP/1.1\r\nHost : a\r\n\r\n"),
    "a header with a tab before its colon": bad(b"GET / HTTP/1.1\r\nHost\t: a\r\n\r\n"),
    "a header without a colon": bad(posted(b"foo\r\n")),
    "a header without a name": bad(posted(b": a\r\n")),
    "a header with a name beyond ASCII": bad(posted(b"X\xff: a\r\n")),
    "a header with brackets in its name": bad(posted(b"X(a): a\r\n")),
    "a header with NUL": bad(posted(b"X: a\0b\r\n")),
    "a header with a control character": bad(posted(b"X: a\x01b\r\n")),
    "a header with DEL": bad(posted(b"X: a\x7fb\r\n")),
    "a header with a byte beyond ASCII": good(posted(b"X: \xff\r\n"), got()),
    "a header with a tab": good(posted(b"X:\ta\tb\t\r\n"), got()),
    "a header without a value": good(posted(b"X:\r\n"), got()),
    "bare line feeds": bad(b"GET / HTTP/1.1\nHost: a\n\n"),
    "a bare line feed at a header": bad(b"GET / HTTP/1.1\r\nHost: a\n\r\n"),
    "a bare line feed at the end": bad(b"GET / HTTP/1.1\r\nHost: a\r\n\n"),
    "a bare carriage return": bad(b"GET / HTTP/1.1\r\nHost: a\rX: y\r\n\r\n"),
    "two carriage returns": bad(b"GET / HTTP/1.1\r\nHost: a\r\r\n\r\n"),
    "line ends before": good(b"\r\n\r\n" + GET, GOT),
    "line ends between": good(GET + b"\r\n" + GET, GOT, GOT),
    "only line ends": good(b"\r\n" * 8),
    "endless line ends": bad(b"\r\n" * 50_000, 431),
}

_STARTS: Final = {
    "HTTP/0.9": bad(b"GET /\r\n\r\n", 505),
    "HTTP/0.9 with a version": bad(b"GET / HTTP/0.9\r\nHost: a\r\n\r\n", 505),
    "HTTP/1.2": bad(b"GET / HTTP/1.2\r\nHost: a\r\n\r\n"),
    "HTTP/2.0": bad(b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505),
    "HTTP/1.10": bad(b"GET / HTTP/1.10\r\nHost: a\r\n\r\n"),
    "http/1.1": bad(b"GET / http/1.1\r\nHost: a\r\n\r\n"),
    "the preface of HTTP/2": bad(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "a hello of TLS": bad(_TLS_HELLO),
    "a hello of SSH": bad(b"SSH-2.0-OpenSSH_9.2\r\n"),
    "a line of a PROXY protocol": bad(b"PROXY TCP4 127.0.0.1 127.0.0.1 1 2\r\n" + GET),
    "a line of SMTP": bad(b"EHLO a\r\n"),
    "an answer": bad(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
    "NULs": bad(bytes(64)),
    "bytes beyond ASCII": bad(b"\xff" * 64),
    "a method in small letters": bad(b"get / HTTP/1.1\r\nHost: a\r\n\r\n"),
    "an unknown method": bad(b"FOO / HTTP/1.1\r\nHost: a\r\n\r\n"),
    "a method with NUL": bad(b"GE\0T / HTTP/1.1\r\nHost: a\r\n\r\n"),
    "something behind the version": bad(b"GET / HTTP/1.1 x\r\nHost: a\r\n\r\n"),
    "a tab in the line": bad(b"GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n"),
    "another method": good(b"DELETE / HTTP/1.1\r\nHost: a\r\n\r\n", Read(b"DELETE", b"/")),
    "HEAD": good(b"HEAD /healthz HTTP/1.1\r\nHost: a\r\n\r\n" + GET, Read(b"HEAD", b"/healthz"), GOT),
    "GET with a body": good(
        b"GET /x HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx" + GET, Read(b"GET", b"/x", b"x"), GOT
    ),
    "HTTP/1.0": good(posted(b"Content-Length: 1\r\n", b"x", version=b"1.0"), got(b"x", keep_alive=False)),
    "HTTP/1.0 without a host": good(b"GET /x HTTP/1.0\r\n\r\n", GOT._replace(keep_alive=False)),
    "HTTP/1.0 that would stay": good(
        b"GET /x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" + GET, GOT._replace(keep_alive=False)
    ),
}

_TARGETS: Final = {
    "a path": good(asked(b"/v1/completions?a=b&c=%20"), Read(b"GET", b"/v1/completions?a=b&c=%20")),
    "an asterisk": bad(b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n"),
    "a whole URL": bad(asked(b"http://a/x")),
    "a whole URL of another host": bad(asked(b"http://b/x")),
    "a whole URL with a user": bad(asked(b"http://a@b/x")),
    "an authority": bad(b"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n" + GET, 501),
    "a tunnel to a path": bad(b"CONNECT /x HTTP/1.1\r\nHost: a\r\n\r\n" + GET, 501),
    "a tunnel with a body": bad(b"CONNECT a:443 HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx", 501),
    "a name": bad(asked(b"x")),
    "no target": bad(b"GET  HTTP/1.1\r\nHost: a\r\n\r\n"),
    "a fragment": bad(asked(b"/x#y")),
    "a space": bad(asked(b"/x y")),
    "a tab": bad(asked(b"/x\ty")),
    "NUL in it": bad(asked(b"/x\0y")),
    "a byte beyond ASCII": bad(asked(b"/\xff")),
    "DEL in it": bad(asked(b"/\x7f")),
    "a carriage return in it": bad(asked(b"/x\ry")),
    "an endless one": bad(b"GET /" + b"x" * 40_000, 431),
    "a long one": bad(asked(b"/" + b"x" * 33_000), 431),
}

_HOSTS: Final = {
    # RFC 9112, 3.2
    "no host": bad(b"GET /x HTTP/1.1\r\n\r\n"),
    "two hosts": bad(asked(b"/x", b"Host: b\r\n")),
    "the host twice": bad(asked(b"/x", HOST)),
    "two hosts of HTTP/1.0": bad(posted(b"Host: b\r\n", version=b"1.0")),
    "a host with a user": bad(posted(b"", host=b"Host: a@b\r\n")),
    "a host with a path": bad(posted(b"", host=b"Host: a/b\r\n")),
    "a host with a space": bad(posted(b"", host=b"Host: a b\r\n")),
    "a host of HTTP/1.0 with a path": bad(posted(b"", host=b"Host: a/b\r\n", version=b"1.0")),
    "a host of no name": good(posted(b"", host=b"Host:\r\n"), got()),
    "a host with a port": good(posted(b"", host=b"Host: gate_way.example:8000\r\n"), got()),
    "a host in brackets": good(posted(b"", host=b"Host: [::1]:8000\r\n"), got()),
}

_HEADS: Final = {
    "100 headers": good(posted(b"X: y\r\n" * 99), got()),
    "101 headers": bad(posted(b"X: y\r\n" * 100), 431),
    "endless headers": bad(b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 5000, 431),
    "a header of 30 KB": good(posted(b"X: " + b"y" * 30_000 + b"\r\n"), got()),
    "a header of 33 KB": bad(posted(b"X: " + b"y" * 33_000 + b"\r\n"), 431),
    "an endless header": bad(b"GET / HTTP/1.1\r\nX: " + b"y" * 100_000, 431),
    "an endless name": bad(b"GET / HTTP/1.1\r\n" + b"x" * 100_000, 431),
    "an endless space": bad(b"GET / HTTP/1.1\r\nX: " + b" " * 100_000, 431),
    "headers of 33 KB": bad(posted(b"".join(b"X%02d: %b\r\n" % (n, b"y" * 500) for n in range(66))), 431),
    "a head in the making": Case(b"GET / HTTP/1.1\r\nHos", left="head"),
    "nothing": good(b""),
}

_EXPECTATIONS: Final = {
    # RFC 9110, 10.1.1
    "a body that waits": Case(posted(b"Expect: 100-continue\r\nContent-Length: 3\r\n"), left="body"),
    "a body that does not wait": good(posted(b"Expect: 100-Continue\r\nContent-Length: 1\r\n", b"x"), got(b"x")),
    "another expectation": bad(posted(b"Expect: 200-ok\r\nContent-Length: 1\r\n", b"x"), 417),
    "two expectations": bad(posted(b"Expect: 100-continue, x\r\nContent-Length: 1\r\n", b"x"), 417),
    "an expectation, and too large": bad(posted(b"Expect: 100-continue\r\nContent-Length: 10001\r\n"), 413),
}

_UPGRADES: Final = {
    # RFC 9110, 7.8: an offer may be left; Java's HttpClient makes one with its first request
    "h2c": good(asked(b"/x", _H2C) + GET, GOT, GOT),
    "h2c with a body": good(posted(_H2C + b"Content-Length: 3\r\n", b"abc") + GET, got(b"abc"), GOT),
    "h2c with a body of nothing": good(posted(_H2C + b"Content-Length: 0\r\n") + GET, got(), GOT),
    "h2c with chunks": good(
        posted(_H2C + b"Transfer-Encoding: chunked\r\n", b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n") + GET, got(b"abc"), GOT
    ),
    "h2c that looks like a request": good(
        posted(_H2C + b"Content-Length: %d\r\n" % len(GET), GET) + GET, got(GET), GOT
    ),
    "h2c with a body that waits": Case(
        posted(_H2C + b"Expect: 100-continue\r\nContent-Length: 3\r\n", b"a"), left="body"
    ),
    "h2c twice": good((posted(_H2C + b"Content-Length: 1\r\n", b"x") + GET) * 2, got(b"x"), GOT, got(b"x"), GOT),
    "h2c and close": good(
        posted(b"Connection: close, Upgrade\r\nUpgrade: h2c\r\nContent-Length: 3\r\n", b"abc") + GET,
        got(b"abc", keep_alive=False),
    ),
    "h2c with bad chunks": bad(posted(_H2C + b"Transfer-Encoding: chunked\r\n", b"-2\r\nab\r\n0\r\n\r\n")),
    "h2c with headers behind": bad(posted(_H2C + b"Transfer-Encoding: chunked\r\n", b"0\r\nX: y\r\n\r\n")),
    "h2c too large": bad(posted(_H2C + b"Content-Length: 10001\r\n"), 413),
    "h2c with two lengths": bad(posted(_H2C + b"Content-Length: 3\r\nContent-Length: 4\r\n", b"abcd")),
    "h2c, and no proper request behind": Case(posted(_H2C + b"Content-Length: 1\r\n", b"x") + b"x", (got(b"x"),), 400),
    "a web socket": good(asked(b"/x", _WEBSOCKET) + GET, GOT, GOT),
    "frames of a web socket": Case(asked(b"/x", _WEBSOCKET) + b"\x81\x05hello", (GOT,), 400),
    "an offer that is not named": good(posted(b"Upgrade: h2c\r\nContent-Length: 1\r\n", b"x") + GET, got(b"x"), GOT),
}

_PIPELINES: Final = {
    "two": good(GET * 2, GOT, GOT),
    "with bodies": good(posted(b"Content-Length: 1\r\n", b"x") + chunked(_ONE) + GET, got(b"x"), got(b"x"), GOT),
    "a hundred": good(GET * 100, *(GOT,) * 100),
    "more than a hundred": Case(GET * 101, (GOT,) * 100, 503),
    "a good one, then a bad one": Case(GET + b"BAD\r\n\r\n", (GOT,), 400),
    "a good one, then two lengths": Case(
        GET + posted(b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n", _ONE), (GOT,), 400
    ),
    "a bad one, then a good one": bad(posted(b"Content-Length: 1, 1\r\n", b"x") + GET),
    "the last one, then another": good(asked(b"/x", b"Connection: close\r\n") + GET, GOT._replace(keep_alive=False)),
    "the last one, then anything": good(
        asked(b"/x", b"Connection: Close\r\n") + b"\0\xffx", GOT._replace(keep_alive=False)
    ),
    "a large body, then the next head": Case(
        posted(b"Content-Length: 9000\r\n", b"x" * 9000) * 6 + b"GET /x HT", (got(b"x" * 9000),) * 6, left="head"
    ),
}

CASES: Final = {
    f"{group}: {name}": case
    for group, cases in {
        "framing": _FRAMING,
        "codings": _CODINGS,
        "chunks": _CHUNKS,
        "lines": _LINES,
        "starts": _STARTS,
        "targets": _TARGETS,
        "hosts": _HOSTS,
        "heads": _HEADS,
        "expectations": _EXPECTATIONS,
        "upgrades": _UPGRADES,
        "pipelines": _PIPELINES,
    }.items()
    for name, case in cases.items()
}
