"""flashcore mcp as an agent's program speaks to it: the protocol, the tools, and bad input of every kind."""

import json
import os
import signal
import subprocess
import threading
import time
import unittest

from mcp_client import VERSION, Client
from support import BAD_USAGE, BINARY, DONE, CliTest

TINY = "b1_h1_s16_d16_fp32"
TOOLS = {"check", "profile", "invert", "submit", "explain", "problems", "source"}
PARSE_ERROR, INVALID_REQUEST, NO_SUCH_METHOD, INVALID_PARAMS = -32700, -32600, -32601, -32602


class McpTest(CliTest):
    def client(self, initialized=True):
        client = Client(self.folder, self.environment)
        self.addCleanup(client.close)
        if initialized:
            client.initialize()
        return client

    def expect_code(self, client, code, words=()):
        answer = client.read()
        self.assertIsNotNone(answer, "no answer")
        self.assertEqual(answer.get("error", {}).get("code"), code, answer)
        for word in words:
            self.assertIn(word, answer["error"]["message"])
        return answer


class ProtocolTest(McpTest):
    def test_versions_are_negotiated(self):
        for asked, agreed in ((VERSION, VERSION), ("2025-06-18", "2025-06-18"), ("2024-11-05", "2024-11-05"), ("2099-01-01", VERSION), ("", VERSION)):
            client = self.client(initialized=False)
            result = client.initialize(asked)
            self.assertEqual(result["protocolVersion"], agreed)
            self.assertEqual(result["serverInfo"]["name"], "flashcore")
            self.assertIn("tools", result["capabilities"])
            client.close()

    def test_it_lists_its_tools_as_mcp_tools_prints_them(self):
        listed = self.client().ask("tools/list")["result"]["tools"]
        self.assertEqual({tool["name"] for tool in listed}, TOOLS)
        for tool in listed:
            self.assertEqual(tool["inputSchema"]["type"], "object")
            self.assertFalse(tool["inputSchema"]["additionalProperties"])
            self.assertTrue(tool["description"])
        self.assertEqual(json.loads(self.expect(DONE, "mcp", "--tools").stdout), listed)

    def test_descriptions_say_what_comes_back_in_which_unit_and_which_errors(self):
        tools = {tool["name"]: tool for tool in self.client().ask("tools/list")["result"]["tools"]}
        for name, tool in tools.items():
            self.assertIn("Error:", tool["description"], name)
            self.assertRegex(tool["description"], "`|Returns", name)
        for name in ("explain", "profile", "submit"):
            self.assertIn("microseconds", tools[name]["description"])
        self.assertIn("[batch, heads_q, seqlen_q, head_dim]", tools["problems"]["description"])
        configs = [tool["inputSchema"]["properties"]["config"] for tool in tools.values() if "config" in tool["inputSchema"]["properties"]]
        self.assertEqual(len(configs), 4)
        self.assertTrue(all(config == configs[0] and config["type"] == "object" for config in configs))

    def test_the_end_of_input_ends_it(self):
        client = self.client()
        self.assertEqual(client.close(), DONE)

    def test_a_signal_ends_it(self):
        client = self.client()
        client.process.send_signal(signal.SIGTERM)
        self.assertIsNone(client.read(timeout=30))
        self.assertEqual(client.process.wait(timeout=30), 2)

    def test_a_signal_or_a_closed_output_ends_the_child_of_a_call(self):
        def children(client):
            with open("/proc/%d/task/%d/children" % (client.process.pid, client.process.pid), encoding="ascii") as file:
                found = file.read().split()
            # Of every thread: calls run in one of their own.
            for task in os.listdir("/proc/%d/task" % client.process.pid):
                with open("/proc/%d/task/%s/children" % (client.process.pid, task), encoding="ascii") as file:
                    found += file.read().split()
            return set(found)

        for close in (lambda client: client.process.send_signal(signal.SIGINT), lambda client: client.process.stdout.close()):
            client = self.client()
            client.request("tools/call", {"name": "check", "arguments": {"suite": "conformance", "device": "cpu"}})
            deadline = time.monotonic() + 60
            while not children(client) and time.monotonic() < deadline:
                time.sleep(0.05)
            running = children(client)
            self.assertTrue(running, "the call has a child")
            close(client)
            try:  # an answer has to be tried before a closed output shows
                for _ in range(3):
                    client.request("ping")
                    time.sleep(0.3)
            except BrokenPipeError:
                pass
            client.process.wait(timeout=30)
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline and any(os.path.exists("/proc/%s" % pid) for pid in running):
                time.sleep(0.1)
            self.assertFalse([pid for pid in running if os.path.exists("/proc/%s" % pid)], "it outlives the server")

    def test_by_hand_it_says_what_it_reads(self):
        import pty
        leader, follower = pty.openpty()
        try:
            process = subprocess.Popen([BINARY, "mcp"], cwd=self.folder, env=self.environment, stdin=follower, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            os.close(follower)
            os.write(leader, b"hello\n")
            answer = json.loads(process.stdout.readline())
            os.write(leader, b"\x04")  # Ctrl-D
            errors = process.communicate(timeout=30)[1].decode()
        finally:
            os.close(leader)
        self.assertEqual(answer["error"]["code"], PARSE_ERROR)
        self.assertEqual(process.returncode, DONE)
        self.assertIn("mcp --tools", errors)
        self.expect_error(BAD_USAGE, ["mcp"], "mcp", "surplus")

    def test_a_ping_is_answered_before_initialize_and_while_a_tool_runs(self):
        client = self.client(initialized=False)
        self.assertEqual(client.ask("ping")["result"], {})
        client.initialize()
        slow = client.request("tools/call", {"name": "check", "arguments": {"suite": "conformance", "device": "cpu"}})
        self.assertEqual(client.ask("ping")["result"], {})
        client.notify("notifications/cancelled", {"requestId": slow})

    def test_what_is_no_message_gets_the_standards_code(self):
        client = self.client()
        for line, code in (
            (b"nonsense", PARSE_ERROR), (b'{"jsonrpc": "2.0", "id": 1', PARSE_ERROR), (b'{"id": "\xff"}', PARSE_ERROR),
            (b"[" * 5000, PARSE_ERROR), (b'{"id": 1, "id": 2}', PARSE_ERROR), (b'{"jsonrpc": "2.0", "id": NaN}', PARSE_ERROR),
            (b"[]", INVALID_REQUEST), (b'[{"jsonrpc": "2.0", "id": 1, "method": "ping"}]', INVALID_REQUEST), (b"7", INVALID_REQUEST),
            (b'"ping"', INVALID_REQUEST), (b"null", INVALID_REQUEST), (b"{}", INVALID_REQUEST),
            (b'{"jsonrpc": "1.0", "id": 1, "method": "ping"}', INVALID_REQUEST), (b'{"id": 1, "method": "ping"}', INVALID_REQUEST),
            (b'{"jsonrpc": "2.0", "id": null, "method": "ping"}', INVALID_REQUEST),
            (b'{"jsonrpc": "2.0", "id": 1.5, "method": "ping"}', INVALID_REQUEST),
            (b'{"jsonrpc": "2.0", "id": {"a": 1}, "method": "ping"}', INVALID_REQUEST),
            (b'{"jsonrpc": "2.0", "id": 1}', INVALID_REQUEST), (b'{"jsonrpc": "2.0", "id": 1, "method": 5}', INVALID_REQUEST),
            (b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": [1]}', INVALID_PARAMS),
            (b'{"jsonrpc": "2.0", "id": 1, "method": "resources/list"}', NO_SUCH_METHOD),
            (b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"cursor": "x"}}', INVALID_PARAMS),
            (b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call"}', INVALID_PARAMS),
            (b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": 3}}', INVALID_PARAMS),
            (b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "rm"}}', INVALID_PARAMS),
            (b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "check", "arguments": []}}', INVALID_PARAMS),
            (b'{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-11-25"}}', INVALID_REQUEST),
        ):  # fmt: skip
            with self.subTest(line[:80]):
                client.send_raw(line + b"\n")
                self.expect_code(client, code)
        self.assertEqual(client.ask("ping")["result"], {}, "it serves on")

    def test_tools_wait_for_initialize(self):
        client = self.client(initialized=False)
        client.request("tools/list")
        self.expect_code(client, INVALID_REQUEST, ["initialize comes first"])
        client.request("initialize", {"capabilities": {}})
        self.expect_code(client, INVALID_PARAMS, ["protocolVersion"])
        client.initialize()

    def test_notifications_and_responses_are_never_answered(self):
        client = self.client()
        client.notify("notifications/anything", {"x": 1})
        client.notify("tools/call", {"name": "check"})
        client.notify("notifications/cancelled", {"requestId": 12345})
        client.send({"jsonrpc": "2.0", "id": 9, "result": {}})
        client.send_raw(b"\n  \n")
        client.send_raw(b'{"jsonrpc": "2.0", "method": "notifications/anything", "params": [1]}\n')
        self.assertEqual(client.ask("ping")["result"], {})

    def test_a_client_that_does_not_read_keeps_nobody_waiting(self):
        client = self.client()
        count = 5000  # more than both pipes hold
        pings = b"".join(b'{"jsonrpc": "2.0", "id": %d, "method": "ping"}\n' % i for i in range(count))
        sender = threading.Thread(target=client.send_raw, args=(pings,), daemon=True)
        sender.start()
        sender.join(timeout=60)
        self.assertFalse(sender.is_alive(), "it reads no more while nobody reads its answers")
        for i in range(count):
            self.assertEqual(client.read()["id"], i)
        sender = threading.Thread(target=client.send_raw, args=(pings,), daemon=True)
        sender.start()
        sender.join(timeout=60)
        client.process.send_signal(signal.SIGTERM)
        self.assertEqual(client.process.wait(timeout=30), 2)

    def test_a_client_that_leaves_64_mib_unread_is_left(self):
        client = self.client()
        size = len(json.dumps(client.ask("tools/list")))
        limit, count = 64 << 20, 0

        def ask_on():
            nonlocal count
            try:
                while count * size < 4 * limit:
                    client.send_raw(b'{"jsonrpc": "2.0", "id": %d, "method": "tools/list"}\n' % count)
                    count += 1
            except OSError:
                pass  # it has ended

        sender = threading.Thread(target=ask_on, daemon=True)
        sender.start()
        client.process.wait(timeout=100)
        sender.join(timeout=30)
        self.assertGreater(count * size, 0.8 * limit, "it ended before that much was unread")
        self.assertLess(count * size, 2 * limit)

    def test_unread_answers_do_not_outlive_the_input(self):
        client = self.client()
        client.send_raw(b"".join(b'{"jsonrpc": "2.0", "id": %d, "method": "ping"}\n' % i for i in range(5000)))
        client.process.stdin.close()
        client.process.wait(timeout=30)

    def test_a_last_message_without_a_newline_is_served(self):
        client = self.client()
        client.send_raw(b'{"jsonrpc": "2.0", "id": "last", "method": "ping"}')
        client.process.stdin.close()
        self.assertEqual(client.read(timeout=30)["id"], "last")

    def test_a_huge_message_is_refused_and_the_next_one_served(self):
        client = self.client()
        client.send_raw(b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"x": "' + b"x" * (9 << 20) + b'"}}\n')
        self.expect_code(client, INVALID_REQUEST, ["a message of more than"])
        self.assertEqual(client.ask("ping")["result"], {})

    def test_a_message_may_have_8_mib_and_no_byte_more(self):
        client = self.client()
        frame = b'{"jsonrpc": "2.0", "id": %d, "method": "ping", "params": {"x": "%s"}}'
        fill = (8 << 20) - len(frame % (1, b""))
        client.send_raw(frame % (1, b"x" * fill) + b"\n")
        self.assertEqual(client.read(), {"jsonrpc": "2.0", "id": 1, "result": {}})
        client.send_raw(frame % (2, b"x" * (fill + 1)) + b"\n")
        self.expect_code(client, INVALID_REQUEST, ["a message of more than %d bytes" % (8 << 20)])
        self.assertEqual(client.ask("ping")["result"], {})

    def test_64_mib_without_a_newline_are_one_error_and_are_not_kept(self):
        client = self.client()

        def resident():
            with open("/proc/%d/status" % client.process.pid, encoding="ascii") as file:
                return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) << 10

        before = resident()
        for _ in range(65):
            client.send_raw(b"x" * (1 << 20))
        self.expect_code(client, INVALID_REQUEST, ["a message of more than"])
        client.send_raw(b"\n")
        self.assertEqual(client.ask("ping")["result"], {}, "one error, and then the next message")
        self.assertLess(resident() - before, 40 << 20, "what was refused is not kept")
        # Nor does it end in the middle of one.
        client.send_raw(b"x" * (9 << 20))
        self.expect_code(client, INVALID_REQUEST)
        self.assertEqual(client.close(), DONE)

    def test_a_cancelled_call_ends_its_child_and_is_not_answered(self):
        client = self.client()
        slow = client.request("tools/call", {"name": "check", "arguments": {"suite": "conformance", "device": "cpu"}})
        queued = client.request("tools/call", {"name": "problems"})
        time.sleep(1)
        client.notify("notifications/cancelled", {"requestId": queued})
        client.notify("notifications/cancelled", {"requestId": slow})
        begin = time.monotonic()
        answer = client.ask("tools/call", {"name": "problems"})
        self.assertIn("suites", answer["result"]["structuredContent"])
        self.assertLess(time.monotonic() - begin, 60)

    def test_an_id_in_use_and_too_many_calls_are_refused(self):
        client = self.client()
        slow = {"name": "check", "arguments": {"suite": "conformance", "device": "cpu"}}
        client.request("tools/call", slow, identity="a")
        client.request("tools/call", slow, identity="a")
        self.expect_code(client, INVALID_REQUEST, ["not answered yet"])
        ids = [client.request("tools/call", slow) for _ in range(20)]
        self.expect_code(client, INVALID_REQUEST, ["calls wait already"])
        for identity in ["a", *ids]:
            client.notify("notifications/cancelled", {"requestId": identity})

    def test_progress_is_told_to_who_asks_for_it(self):
        client = self.client()
        slow = client.request("tools/call", {"name": "check", "arguments": {"suite": "conformance", "device": "emulator"}, "_meta": {"progressToken": "t"}})
        self.assertIsNone(client.read(timeout=8))
        client.notify("notifications/cancelled", {"requestId": slow})
        self.assertEqual(client.notifications[0]["method"], "notifications/progress")
        self.assertEqual(client.notifications[0]["params"]["progressToken"], "t")


class ToolsTest(McpTest):
    def expect_tool_error(self, client, tool, arguments, words):
        result = client.call(tool, arguments)
        self.assertTrue(result["isError"], result)
        for word in words:
            self.assertIn(word, result["content"][0]["text"])

    def test_bad_arguments_are_errors_that_an_agent_can_act_on(self):
        client = self.client()
        for tool, arguments, words in (
            ("check", {}, ["give a problem or a suite"]),
            ("check", {"problem": 5}, ["arguments.problem is of type number, not string"]),
            ("check", {"problem": "no_such"}, ["no_such"]),
            ("check", {"problem": TINY, "colour": "red"}, ["'colour'", "allowed are"]),
            ("check", {"problem": "x" * 5000}, ["at most 4096"]),
            ("check", {"problem": "\x1b[2J"}, ["control character"]),
            ("check", {"problem": TINY, "device": "--help"}, ["'--help' is not a device"]),
            ("check", {"suite": "/etc/passwd"}, ["no suite that ships"]),
            ("check", {"problem": TINY, "timeout_seconds": 0}, ["the least is 1"]),
            ("check", {"problem": TINY, "config": {"block_m": 32}}, ["family"]),
            ("check", {"problem": TINY, "family": "cpu_fwd", "config": "block_m=32"}, ["arguments.config", "not object"]),
            ("check", {"problem": TINY, "family": "cpu_fwd", "config": {"block_m": 7}}, ["block_m"]),
            ("check", {"problem": TINY, "family": "cpu_fwd", "config": {"no_such": 7}}, ["no_such"]),
            ("explain", {}, ["has no 'problem', which is required"]),
            ("explain", {"problem": TINY, "arch": "sm_1"}, ["sm_1"]),
            ("problems", {"suite": "../x"}, ["no suite that ships"]),
            ("problems", {"suite": "quick", "problem": TINY}, ["not both"]),
            ("problems", {"problem": "--json"}, ["--json"]),
            ("source", {"family": "no_such_family"}, ["no_such_family"]),
            ("source", {"family": "cpu_fwd"}, ["no device source"]),
            ("source", {"file": "../../etc/passwd"}, ["no device source"]),
            ("submit", {"problem": TINY}, ["has no 'family'"]),
            ("submit", {"problem": TINY, "family": "ref_fwd", "replace": [{"file": "kernel.cuh"}]}, ["arguments.replace[0] has no 'from'"]),
            ("submit", {"problem": TINY, "family": "ref_fwd", "files": {"kernel.cuh": "x" * (2 << 20)}}, ["at most 1048576"]),
            ("submit", {"problem": TINY, "family": "ref_fwd", "config": {"num_warps": 1.5}}, ["not integer"]),
            ("submit", {"problem": "bad id", "family": "ref_fwd"}, ["bad id"]),
        ):  # fmt: skip
            with self.subTest(tool=tool, arguments=str(arguments)[:80]):
                self.expect_tool_error(client, tool, arguments, words)
        self.assertEqual(os.listdir(self.folder), [] if not os.path.exists(self.path("cache")) else ["cache"], "no file was left")

    def test_errors_name_arguments_and_no_flags(self):
        client = self.client()
        for tool, arguments, words in (
            ("check", {"problem": "b1_h2", "device": "cpu"}, "b1_h2"),
            ("check", {"problem": TINY, "device": "cuda"}, "(device cpu"),
            ("submit", {"problem": TINY, "family": "ref_fwd", "device": "cpu"}, "judge it with device emulator"),
        ):
            with self.subTest(arguments):
                text = client.call(tool, arguments)["content"][0]["text"]
                self.assertIn(words, text)
                self.assertNotRegex(text, r"--\w|flashcore problem")

    def test_a_deadline_ends_a_call(self):
        begin = time.monotonic()
        self.expect_tool_error(self.client(), "check", {"suite": "conformance", "device": "cpu", "timeout_seconds": 1}, ["still running after 1 s"])
        self.assertLess(time.monotonic() - begin, 60)

    def test_profile_and_invert_answer(self):
        client = self.client()
        for tool in ("profile", "invert"):
            result = client.call(tool, {"problem": "b1_h1_s16_d16_fp16", "family": "ref_fwd", "device": "emulator", "timeout_seconds": 200})
            self.assertFalse(result["isError"], result["content"][0]["text"])
            self.assertIn("result", result["structuredContent"])

    def test_problems_source_and_explain(self):
        client = self.client()
        self.assertIn("canonical", client.call("problems")["structuredContent"]["suites"])
        problems = client.call("problems", {"suite": "canonical"})["structuredContent"]["problems"]
        self.assertIn("mission", [p["name"] for p in problems])
        told = client.call("problems", {"problem": TINY})
        for words in ("problem: " + TINY, "head_dim: 16", "flops: "):
            self.assertIn(words, told["content"][0]["text"])
        described = told["structuredContent"]["result"]
        self.assertEqual(described["results"][0]["problem"], TINY)
        families = {f["name"]: f for f in client.call("source")["structuredContent"]["families"]}
        self.assertTrue(families["sm80_fwd"]["patchable"])
        self.assertFalse(families["cpu_fwd"]["patchable"])
        listed = client.call("source", {"family": "sm80_fwd"})["structuredContent"]
        self.assertIn("sm80_fwd/kernel.cuh", [f["file"] for f in listed["files"]])
        self.assertIn("tile/softmax.cuh", listed["includes"])
        text, offset = "", 0
        while offset is not None:
            part = client.call("source", {"file": "sm80_fwd/kernel.cuh", "offset": offset})["structuredContent"]
            text, offset = text + part["text"], part.get("next_offset")
        self.assertEqual(len(text.encode()), part["bytes"])
        self.assertIn("FC_KERNEL", text)
        explained = client.call("explain", {"problem": "mission", "arch": "sm_90", "key": "h200"})
        self.assertFalse(explained["isError"], explained["content"][0]["text"])

    def test_check_judges_and_its_json_text_is_its_structured_content(self):
        result = self.client().call("check", {"problem": TINY, "device": "cpu"})
        self.assertFalse(result["isError"])
        self.assertEqual(result["structuredContent"]["verdict"], "passed")
        self.assertEqual(result["structuredContent"]["result"]["passed"], 1)
        pinned = self.client().call("check", {"problem": TINY, "device": "cpu", "family": "cpu_fwd", "config": {"block_m": 96, "block_n": 128}})
        self.assertEqual(pinned["structuredContent"]["result"]["passed"], 1, pinned)
        self.assertEqual(json.loads(result["content"][1]["text"]), result["structuredContent"])

    def test_submit_tells_each_gates_verdict(self):
        client = self.client()
        given = {"problem": "b1_h1_s16_d16_fp16", "family": "ref_fwd", "device": "emulator", "name": "shift"}
        comment = [{"file": "kernel.cuh", "from": "#pragma once", "to": "#pragma once  // an honest change"}]
        result = client.call("submit", {**given, "replace": comment, "comment": {"why": ["any", 1]}})
        self.assertFalse(result["isError"], result)
        self.assertEqual(result["structuredContent"]["verdict"], "passed", result["content"][0]["text"])
        self.assertIn("correctness: passed", result["content"][0]["text"])
        gates = {g["gate"]: g["status"] for g in result["structuredContent"]["result"]["results"][0]["gates"]}
        self.assertEqual(gates["correctness"], "passed")
        cheat = [{"file": "kernel.cuh", "from": "#pragma once", "to": "#pragma once\nnamespace flashcore { static int calls; }"}]
        result = client.call("submit", {**given, "name": "cheat", "replace": cheat})
        self.assertFalse(result["isError"], result["content"][0]["text"])
        self.assertEqual(result["structuredContent"]["verdict"], "failed")
        self.assertEqual(result["structuredContent"]["result"]["results"][0]["stopped_by"]["check"], "device_code")

    def test_a_patch_that_the_emulator_does_not_run_is_not_judged(self):
        wrong = [{"file": "ptx/math.cuh", "from": "ex2.approx.ftz.f32 %0", "to": "sin.approx.ftz.f32 %0"}]
        result = self.client().call("submit", {"problem": "b1_h1_s16_d64_fp16", "family": "sm80_fwd", "device": "emulator", "replace": wrong})
        self.assertFalse(result["isError"], result)
        self.assertEqual((result["structuredContent"]["verdict"], result["structuredContent"]["exit_code"]), ("not_judged", 2))
        self.assertIn("the changed code never ran", result["content"][0]["text"])

    def test_a_wrong_variable_of_the_environment_is_an_error_and_no_verdict(self):
        self.environment["FLASHCORE_SANDBOX"] = "zzz"
        comment = [{"file": "kernel.cuh", "from": "#pragma once", "to": "#pragma once  // an honest change"}]
        result = self.client().call("submit", {"problem": "b1_h1_s16_d16_fp16", "family": "ref_fwd", "device": "emulator", "replace": comment})
        self.assertTrue(result["isError"], result)
        self.assertIn("FLASHCORE_SANDBOX is 'zzz'", result["content"][0]["text"])

    def test_a_patch_outside_of_its_family_says_so(self):
        outside = [{"file": "tile/softmax.cuh", "from": "#pragma once", "to": "#pragma once  // changed"}]
        result = self.client().call("submit", {"problem": "b1_h1_s16_d16_fp16", "family": "ref_fwd", "device": "emulator", "replace": outside})
        self.assertIn("tile/softmax.cuh lies outside of ref_fwd/: only ref_fwd+", result["content"][0]["text"])


if __name__ == "__main__":
    unittest.main()
