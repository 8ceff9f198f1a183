// flashcore mcp: the laboratory's tools for agents, over the Model Context Protocol on stdin and stdout.

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <condition_variable>
#include <deque>
#include <iostream>
#include <mutex>
#include <thread>

#include "cli/common.h"
#include "cli/mcp_protocol.h"
#include "cli/mcp_tools.h"
#include "cli/verbs.h"
#include "core/error.h"
#include "core/foreign_text.h"

namespace flashcore::cli {

namespace {

using nlohmann::json;
using namespace mcp;

// A patch is at most 1 MiB of text, which JSON may write as six times as much.
constexpr std::size_t kMaxMessage = std::size_t{8} << 20;
constexpr std::size_t kMaxWaiting = 16;
constexpr double kProgressSeconds = 5;
// What a client leaves unread; and how long it is waited for at the end.
constexpr std::size_t kMaxUnread = std::size_t{64} << 20;
constexpr int kPollMilliseconds = 200, kLastWordsMilliseconds = 5000;
constexpr const char* kInstructions =
    "flashcore: attention kernels for NVIDIA GPUs and the laboratory that judges them. `problems` and `source` show "
    "what "
    "there is, `explain` what dispatch picks, `submit` judges a config or a patch of a kernel's source by every gate. "
    "A verdict \"failed\" is a judgement with reasons, not an error.";

// One JSON document a line; nothing else of this program writes there. A client that does not read keeps nobody
// waiting: a thread of its own writes what a pipe takes, and what has waited too long or become too much ends the
// server.
class Output {
 public:
  Output() : thread_([this] { write_messages(); }) {}
  ~Output() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  void send(const json& message) {
    const std::string line = message.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
    {
      const std::lock_guard lock(mutex_);
      if (pending_.size() + line.size() > kMaxUnread) closed_ = true;
      else pending_ += line;
    }
    changed_.notify_all();
  }
  bool closed() const { return closed_; }

 private:
  void write_messages() {
    for (;;) {
      std::string text;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return ended_ || !pending_.empty(); });
        if (pending_.empty()) return;
        text.swap(pending_);
      }
      write_all(text);
      if (closed_) return;
    }
  }
  void write_all(std::string_view text) {
    for (int silent = 0; !text.empty() && !closed_;) {
      pollfd output{STDOUT_FILENO, POLLOUT, 0};
      if (poll(&output, 1, kPollMilliseconds) <= 0) {
        silent += kPollMilliseconds;
        if (ended_ && (interrupted() || silent >= kLastWordsMilliseconds)) closed_ = true;
        continue;
      }
      // So much a pipe takes at once when it takes any.
      const ssize_t size = output.revents != POLLOUT  // closed
                               ? 0
                               : write(STDOUT_FILENO, text.data(), std::min<std::size_t>(text.size(), PIPE_BUF));
      if (size < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (size <= 0) closed_ = true;
      else text.remove_prefix(static_cast<std::size_t>(size));
      silent = 0;
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::string pending_;
  std::atomic<bool> closed_{false}, ended_{false};
  std::thread thread_;
};

// Tool calls one after another: two at once would disturb each other's times.
class CallQueue {
 public:
  explicit CallQueue(Output& output) : output_(output), thread_([this] { serve(); }) {}
  ~CallQueue() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
      waiting_.clear();
    }
    changed_.notify_all();
    thread_.join();
  }
  CallQueue(const CallQueue&) = delete;
  CallQueue& operator=(const CallQueue&) = delete;

  struct Call {
    json id, arguments, progress_token;
    std::string tool;
  };
  // False if too many wait already.
  bool add(Call call) {
    {
      const std::lock_guard lock(mutex_);
      if (waiting_.size() >= kMaxWaiting) return false;
      waiting_.push_back(std::move(call));
    }
    changed_.notify_all();
    return true;
  }
  bool knows(const json& id) {
    const std::lock_guard lock(mutex_);
    return running_ == id || std::any_of(waiting_.begin(), waiting_.end(), [&](const Call& c) { return c.id == id; });
  }
  // No answer follows.
  void cancel(const json& id) {
    const std::lock_guard lock(mutex_);
    if (running_ == id) cancelled_ = true;
    std::erase_if(waiting_, [&](const Call& c) { return c.id == id; });
  }

 private:
  void serve() {
    for (;;) {
      Call call;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return ended_ || !waiting_.empty(); });
        if (ended_) return;
        call = std::move(waiting_.front());
        waiting_.pop_front();
        running_ = call.id;
        cancelled_ = false;
      }
      const ToolAnswer answer = call_tool(call.tool, call.arguments, control_of(call));
      const std::lock_guard lock(mutex_);
      running_ = nullptr;
      if (!cancelled_ && !ended_) output_.send(result_response(call.id, result_of(answer)));
    }
  }

  CallControl control_of(const Call& call) {
    auto told = std::make_shared<double>(0);
    return {[this] { return cancelled_ || ended_; },
            [this, told, token = call.progress_token](double seconds) {
              if (token.is_null() || seconds - *told < kProgressSeconds) return;
              *told = seconds;
              output_.send(
                  {{"jsonrpc", "2.0"},
                   {"method", "notifications/progress"},
                   {"params",
                    {{"progressToken", token}, {"progress", seconds}, {"message", fmt::format("{:.0f} s", seconds)}}}});
            }};
  }

  static json result_of(const ToolAnswer& answer) {
    json content = json::array({{{"type", "text"}, {"text", answer.text}}});
    json result = {{"isError", answer.is_error}};
    if (!answer.structured.empty()) {
      // For clients that know no structured content.
      content.push_back(
          {{"type", "text"}, {"text", answer.structured.dump(-1, ' ', false, json::error_handler_t::replace)}});
      result["structuredContent"] = answer.structured;
    }
    result["content"] = std::move(content);
    return result;
  }

  Output& output_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Call> waiting_;
  json running_;  // the id; null: none
  std::atomic<bool> cancelled_{false}, ended_{false};
  std::thread thread_;
};

class Server {
 public:
  void take(const std::string& line) {
    try {
      const Message message = parse_message(line);
      if (message.kind == Message::Kind::kNotification) notice(message);
      if (message.kind == Message::Kind::kRequest) answer(message);
    } catch (const ProtocolError& error) {
      output_.send(error_response(error));
    }
  }
  void refuse_long_message() {
    output_.send(error_response(
        {nullptr, kInvalidRequest, fmt::format("a message of more than {} bytes; it was not read", kMaxMessage)}));
  }
  bool closed() const { return output_.closed(); }

 private:
  void notice(const Message& message) {
    if (message.method == "notifications/cancelled" && message.params.contains("requestId"))
      calls_.cancel(message.params["requestId"]);
  }

  void answer(const Message& request) {
    const auto reply = [&](json result) { output_.send(result_response(request.id, std::move(result))); };
    if (request.method == "ping") return reply(json::object());
    if (request.method == "initialize") return reply(initialize(request));
    const bool known = request.method == "tools/list" || request.method == "tools/call";
    if (!known)
      throw ProtocolError{request.id, kNoSuchMethod,
                          fmt::format("no method '{}'; there are initialize, ping, tools/list and tools/call",
                                      excerpt(request.method, 60))};
    if (!initialized_) throw ProtocolError{request.id, kInvalidRequest, "initialize comes first"};
    if (request.method == "tools/list") {
      if (request.params.contains("cursor"))
        throw ProtocolError{request.id, kInvalidParams, "there is one page, and no cursor leads to another"};
      return reply({{"tools", tool_list()}});
    }
    call(request);
  }

  json initialize(const Message& request) {
    if (initialized_) throw ProtocolError{request.id, kInvalidRequest, "it is initialized already"};
    const json version = request.params.value("protocolVersion", json());
    if (!version.is_string())
      throw ProtocolError{request.id, kInvalidParams, "'protocolVersion' is missing or no text"};
    initialized_ = true;
    return {{"protocolVersion", negotiated_version(version.get<std::string>())},
            {"capabilities", {{"tools", {{"listChanged", false}}}}},
            {"serverInfo", {{"name", "flashcore"}, {"title", "flashcore"}, {"version", FLASHCORE_VERSION}}},
            {"instructions", kInstructions}};
  }

  void call(const Message& request) {
    const json name = request.params.value("name", json());
    if (!name.is_string()) throw ProtocolError{request.id, kInvalidParams, "'name' is missing or no text"};
    const std::string tool = name.get<std::string>();
    if (!is_tool(tool))
      throw ProtocolError{request.id, kInvalidParams, fmt::format("Unknown tool: {}", excerpt(tool, 60))};
    json arguments = request.params.value("arguments", json::object());
    if (!arguments.is_object()) throw ProtocolError{request.id, kInvalidParams, "'arguments' is not an object"};
    if (calls_.knows(request.id))
      throw ProtocolError{request.id, kInvalidRequest, "a request with this id is not answered yet"};
    json token;
    if (const auto meta = request.params.find("_meta"); meta != request.params.end() && meta->is_object())
      token = meta->value("progressToken", json());
    if (!calls_.add({request.id, std::move(arguments), token, tool}))
      throw ProtocolError{request.id, kInvalidRequest,
                          fmt::format("{} calls wait already; wait for an answer or cancel one", kMaxWaiting)};
  }

  Output output_;
  CallQueue calls_{output_};
  bool initialized_ = false;
};

// Until the client closes its end, our output is closed, or a signal comes.
void read_messages(Server& server) {
  std::string pending;
  bool skipping = false;
  std::vector<char> piece(std::size_t{64} << 10);
  while (!interrupted() && !server.closed()) {
    pollfd input{STDIN_FILENO, POLLIN, 0};
    if (poll(&input, 1, 200) <= 0) continue;
    const ssize_t size = read(STDIN_FILENO, piece.data(), piece.size());
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) {
      if (!skipping && pending.find_first_not_of(" \t\r") != std::string::npos) server.take(pending);
      return;
    }
    std::string_view got(piece.data(), static_cast<std::size_t>(size));
    while (!got.empty()) {
      const std::size_t end = got.find('\n');
      const std::string_view part = got.substr(0, end);
      if (!skipping) pending += part;
      if (pending.size() > kMaxMessage) {
        server.refuse_long_message();
        skipping = true;
        pending.clear();
      }
      if (end == std::string_view::npos) break;
      if (!skipping && pending.find_first_not_of(" \t\r") != std::string::npos) server.take(pending);
      skipping = false;
      pending.clear();
      got.remove_prefix(end + 1);
    }
  }
}

}  // namespace

Run add_mcp(CLI::App& app) {
  auto tools = std::make_shared<bool>(false);
  app.add_flag("--tools", *tools, "print the tools and their schemas as JSON, and end");
  add_examples(app, {"mcp --tools"});
  return [tools] {
    if (*tools) {
      std::cout << tool_list().dump(2) << "\n";
      return static_cast<int>(kDone);
    }
    watch_interrupts();
    // Who tries it by hand sees nothing otherwise: a protocol's output is no place for advice.
    if (isatty(STDIN_FILENO))
      print_error(
          "mcp reads messages of the Model Context Protocol from standard input, one JSON document a line, and a "
          "program is to write them (docs/agents.md); `flashcore mcp --tools` prints the tools, Ctrl-D ends it");
    Server server;
    read_messages(server);
    return unless_interrupted(kDone);
  };
}

}  // namespace flashcore::cli
