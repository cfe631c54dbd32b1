"""What an unauthorised client gets from the ports of Spark's processes, in Spark's own protocol."""

from __future__ import annotations

import socket
import struct

from tests.parts.open_ports import listening

#: Frame types of Spark's protocol: a request, and its two kinds of answers.
_REQUEST, _ANSWERS = 3, (4, 5)


def stranger_gets(port: int, command: bytes = b"a command of nobody") -> str:
    """The answer of a Spark port to a command without the secret; empty if the port speaks another protocol."""
    body = struct.pack(">qi", 7, len(command)) + command
    with socket.create_connection(("127.0.0.1", port), timeout=3) as line:
        line.sendall(struct.pack(">qb", 9 + len(body), _REQUEST) + body)
        answer = b""
        try:
            while len(answer) < 400 and (more := line.recv(4096)):
                answer += more
        except TimeoutError:
            return ""
    if len(answer) < 9 or answer[8] not in _ANSWERS:
        return ""
    return answer[21:].split(b"\n", 1)[0].decode("utf-8", "replace")


def transports(pid: int) -> dict[int, str]:
    """The answer of each of a process's Spark ports to an unauthorised client, by port."""
    return {port: said for port in listening([pid]) if (said := stranger_gets(port))}
