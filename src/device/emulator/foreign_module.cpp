#include "device/emulator/foreign_module.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/process_end.h"
#include "core/scratch_folder.h"
#include "device/sandbox/sandbox.h"

namespace flashcore::emulator {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMaxReport = 64 << 10, kMaxCounters = 8 << 20, kMaxLines = 1 << 16;
// Distinct places that one kernel may ask the lines of: sites are numbered in 12 bits.
constexpr std::size_t kMaxPlaces = 8192;
constexpr double kLineSeconds = 60;

std::string& executor_program() {
  static std::string path = "/proc/self/exe";
  return path;
}

// A report goes to terminals, JSON and pages: plain ASCII without control codes.
std::string plain_text(std::string text) {
  for (char& c : text) {
    const auto code = static_cast<unsigned char>(c);
    if ((code < 0x20 && c != '\n') || code >= 0x7f) c = '?';
  }
  return text;
}

}  // namespace

void use_executor_program(std::string path) { executor_program() = std::move(path); }

struct ForeignModule::Impl {
  std::string image;
  int threads_per_block = 0;
  ForeignLimits limits;
  SourceLines lines{[this](const std::vector<std::uint64_t>& offsets) { return addr2line(offsets); }};
  std::optional<ScratchFolder> folder;  // made when the first line is asked for

  pid_t pid = -1;
  std::unique_ptr<Channel> channel;
  Clock::time_point deadline, next_look;
  bool loading = false;
  std::size_t buffer_bytes = 0;

  ~Impl() { end(); }

  // Foreign debug information is foreign input, so this tool is confined as well.
  std::string addr2line(const std::vector<std::uint64_t>& offsets) {
    if (!folder) folder.emplace().write("kernel.so", image);
    std::vector<std::string> command = addr2line_command("kernel.so");
    for (const std::uint64_t offset : offsets) command.push_back(fmt::format("{:#x}", offset));
    const ProgramResult tool = sandbox::run_tool(command, folder->path().string(), kLineSeconds);
    return tool.started && tool.exit_code == 0 ? tool.output : std::string();
  }

  void start() {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
      throw_environment("no socket for the process that runs others' kernels: {}", strerror(errno));
    channel = std::make_unique<Channel>(ends[0], [this] { watch(); });
    const char* means = sandbox::means() == sandbox::Means::kLandlock ? "landlock" : "namespaces";
    try {
      pid = sandbox::start_executor(executor_program(), {"execute-kernel", means}, ends[1]);
    } catch (...) {
      close(ends[1]);
      channel.reset();
      throw;
    }
    close(ends[1]);
    channel->send(MessageKind::kLoad, Packer().put(threads_per_block).put_text(image).bytes());
    expect(MessageKind::kLoaded);
  }

  // Whatever the executor has in mind, it has no more time for it.
  std::optional<int> end() {
    channel.reset();
    return pid < 0 ? std::nullopt : kill_and_wait(std::exchange(pid, -1));
  }

  // Called while the executor keeps us waiting.
  void watch() {
    const auto now = Clock::now();
    if (now > deadline)
      throw BrokenChannel(loading ? fmt::format("its code was not loaded after {:.0f} s", limits.load_seconds)
                                  : fmt::format("no answer after {:.0f} s", limits.seconds));
    if (pid < 0 || now < next_look) return;
    next_look = now + std::chrono::milliseconds(20);
    std::ifstream status(fmt::format("/proc/{}/status", pid));
    for (std::string word, line; status >> word; std::getline(status, line)) {
      if (word != "VmRSS:" && word != "Threads:") continue;
      std::size_t value = 0;
      status >> value;
      if (word == "VmRSS:" && value > (limits.memory_bytes + buffer_bytes) / 1024)
        throw BrokenChannel(fmt::format("it took {} MB of memory", value / 1024));
      if (word == "Threads:" && value > static_cast<std::size_t>(limits.threads))
        throw BrokenChannel(fmt::format("it started {} threads", value));
    }
  }

  // Waits for that answer, and for nothing else but questions about lines.
  std::string expect(MessageKind wanted) {
    for (std::string payload;;) {
      const MessageKind kind = channel->receive(payload, std::max({kMaxReport, kMaxCounters, kMaxLines}));
      if (kind == wanted) return payload;
      if (kind == MessageKind::kFault) throw DeviceFault(plain_text(payload.substr(0, kMaxReport)));
      if (kind != MessageKind::kLines) throw BrokenChannel("an answer to something else");
      answer_lines(payload);
    }
  }

  void answer_lines(const std::string& payload) {
    Unpacker unpacker(payload);
    std::vector<std::uint64_t> offsets;
    while (!unpacker.empty()) offsets.push_back(unpacker.get<std::uint64_t>());
    asked_places += offsets.size();
    if (asked_places > kMaxPlaces) throw BrokenChannel("questions about more lines than there are");
    channel->send(MessageKind::kLinesAnswer, addr2line(offsets));
  }
  std::size_t asked_places = 0;

  static Clock::time_point deadline_in(double seconds) {
    return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }

  Counters launch(const LaunchSpec& spec, const GlobalMemory& memory, std::uint32_t number, std::uint64_t seed) {
    const auto buffers = buffers_of(spec, memory);
    try {
      // What a static object does while it is loaded has less time than a kernel.
      loading = pid < 0;
      deadline = deadline_in(loading ? limits.load_seconds : limits.seconds);
      if (loading) start();
      else kill(pid, SIGCONT);
      loading = false;
      deadline = deadline_in(limits.seconds);
      if (!channel->quiet()) throw BrokenChannel("words that nobody asked for");
      Counters counters = exchange(spec, buffers, number, seed);
      // Frozen until the next launch: threads that it left behind do no work.
      kill(pid, SIGSTOP);
      return counters;
    } catch (const BrokenChannel& e) {
      const std::string what = e.what();
      // How it ended is worth more than that it ended.
      const std::optional<int> status = end_and_get_status();
      const bool forbidden = status && WIFSIGNALED(*status) && WTERMSIG(*status) == SIGSYS;
      throw DeviceFault(fmt::format("the process that ran the kernel was given up: {}; it {}{}", what,
                                    describe_end(status),
                                    forbidden ? ": it made a system call that no kernel needs" : ""));
    } catch (...) {
      end();
      throw;
    }
  }

  // A process that ends by itself is given a moment to do so.
  std::optional<int> end_and_get_status() {
    std::optional<int> status;
    const auto moment = std::min(deadline, Clock::now() + std::chrono::milliseconds(100));
    if (pid < 0 || !wait_until(pid, moment, status)) return end();
    pid = -1;
    channel.reset();
    return status;
  }

  Counters exchange(const LaunchSpec& spec, const std::vector<std::shared_ptr<Allocation>>& buffers,
                    std::uint32_t number, std::uint64_t seed) {
    LaunchMessage message;
    message.spec = spec;
    message.number = number;
    message.seed = seed;
    for (const auto& buffer : buffers)
      message.buffers.push_back(
          {reinterpret_cast<std::uintptr_t>(buffer->place()), buffer->size(), buffer->red_zone(), buffer->label});
    channel->send(MessageKind::kLaunch, pack(message));
    for (const auto& buffer : buffers) channel->send_bytes(buffer->place(), buffer->placed_bytes());
    const Counters counters = unpack_counters(expect(MessageKind::kDone));
    for (const auto& buffer : buffers) channel->receive_bytes(buffer->place(), buffer->placed_bytes());
    return counters;
  }

  // Those that the parameters point into: every pointer is a word of theirs, those of encoded tensor maps too.
  std::vector<std::shared_ptr<Allocation>> buffers_of(const LaunchSpec& spec, const GlobalMemory& memory) {
    std::vector<std::shared_ptr<Allocation>> used;
    buffer_bytes = 0;
    for (const auto& buffer : memory.all()) {
      const auto begin = reinterpret_cast<std::uintptr_t>(buffer->data());
      bool found = false;
      for (std::size_t at = 0; at + sizeof(std::uintptr_t) <= spec.params.size(); at += sizeof(std::uintptr_t)) {
        std::uintptr_t word = 0;
        std::memcpy(&word, spec.params.data() + at, sizeof word);
        found |= word >= begin && word < begin + std::max<std::size_t>(buffer->size(), 1);
      }
      if (!found) continue;
      used.push_back(buffer);
      buffer_bytes += buffer->placed_bytes();
    }
    return used;
  }
};

ForeignModule::ForeignModule(const Artifact& artifact, const ForeignLimits& limits) : impl_(std::make_unique<Impl>()) {
  sandbox::require("the kernel " + artifact.symbol);
  impl_->image = artifact.cubin;
  impl_->threads_per_block = artifact.threads_per_block;
  impl_->limits = limits;
}

ForeignModule::~ForeignModule() = default;

Counters ForeignModule::launch(const LaunchSpec& spec, const GlobalMemory& memory, std::uint32_t number,
                               std::uint64_t seed) const {
  return impl_->launch(spec, memory, number, seed);
}

int ForeignModule::executor_pid() const { return impl_->pid; }

CallLines ForeignModule::lines_of(const void* offset) const {
  CallLines lines = impl_->lines.of(reinterpret_cast<std::uint64_t>(offset));
  for (std::string& line : lines) line = plain_text(line);
  return lines;
}

void ForeignModule::prepare_lines(const Counters& counters) const {
  std::vector<std::uint64_t> offsets;
  for (const auto& [offset, site] : counters.sites) offsets.push_back(reinterpret_cast<std::uint64_t>(offset));
  if (offsets.size() + impl_->lines.known() > kMaxPlaces) return;
  impl_->lines.prepare(offsets);
}

}  // namespace flashcore::emulator
