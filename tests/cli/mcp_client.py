"""A client of `flashcore mcp`: one JSON document a line, requests by id, notifications kept."""

import json
import os
import select
import subprocess
import time

from support import BINARY

VERSION = "2025-11-25"


class Client:
    def __init__(self, folder, environment):
        self.process = subprocess.Popen([BINARY, "mcp"], cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.pending, self.lines, self.notifications, self.next_id = b"", [], [], 0

    def send_raw(self, data):
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def send(self, document):
        self.send_raw(json.dumps(document).encode() + b"\n")

    def request(self, method, params=None, identity=None):
        """Sends, and returns the id."""
        self.next_id += 1
        identity = self.next_id if identity is None else identity
        message = {"jsonrpc": "2.0", "id": identity, "method": method}
        if params is not None:
            message["params"] = params
        self.send(message)
        return identity

    def notify(self, method, params=None):
        self.send({"jsonrpc": "2.0", "method": method, **({"params": params} if params is not None else {})})

    def read(self, timeout=120):
        """The next message that is no notification; None at the end of the stream or after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while True:
            while b"\n" in self.pending:
                line, self.pending = self.pending.split(b"\n", 1)
                message = json.loads(line)  # nothing but protocol on stdout
                assert message["jsonrpc"] == "2.0", message
                if "method" not in message:
                    return message
                self.notifications.append(message)
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                return None
            piece = os.read(self.process.stdout.fileno(), 1 << 16)
            if not piece:
                return None
            self.pending += piece

    def ask(self, method, params=None, timeout=120):
        identity = self.request(method, params)
        answer = self.read(timeout)
        assert answer is not None and answer["id"] == identity, answer
        return answer

    def initialize(self, version=VERSION):
        answer = self.ask("initialize", {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}})
        self.notify("notifications/initialized")
        return answer["result"]

    def call(self, tool, arguments=None, timeout=240):
        """The result of tools/call."""
        return self.ask("tools/call", {"name": tool, **({"arguments": arguments} if arguments is not None else {})}, timeout)["result"]

    def close(self):
        try:
            self.process.stdin.close()
        except BrokenPipeError:  # it has ended with input unread
            pass
        try:
            code = self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self.process.stdout.close()
        self.process.stderr.close()
        return code
