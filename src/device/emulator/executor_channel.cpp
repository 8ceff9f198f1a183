#include "device/emulator/executor_channel.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "core/error.h"

namespace flashcore::emulator {
namespace {

constexpr int kPollMs = 20;
// More lines of code than a launch can have touched: sites are numbered in 12 bits.
constexpr std::uint64_t kMaxCountedSites = 1 << 16;

struct Header {
  std::uint32_t kind, number;
  std::uint64_t size;
};

// The scalars of Counters, in one order for both directions.
auto scalars(auto& c) {
  return std::array{&c.ctas,          &c.mma_flops,    &c.mma_instructions, &c.mma_with_copies,
                    &c.copies_at_mma, &c.async_copies, &c.tma_bytes,        &c.tma_stored_bytes,
                    &c.cluster_bytes, &c.ex2,          &c.barrier_waits,    &c.copy_waits,
                    &c.steps};
}

}  // namespace

Channel::Channel(int fd, std::function<void()> patience) : fd_(fd), patience_(std::move(patience)) {}
Channel::~Channel() { close(fd_); }

void Channel::wait(short events) {
  if (!patience_) return;  // the call itself waits
  for (;;) {
    pollfd fd{fd_, events, 0};
    const int ready = poll(&fd, 1, kPollMs);
    // Always asked: whoever sends a byte now and then must not escape it.
    patience_();
    if (ready > 0) return;
  }
}

void Channel::send_bytes(const void* data, std::size_t size) {
  const char* from = static_cast<const char*>(data);
  while (size > 0) {
    wait(POLLOUT);
    // The executor may use write() and no call of sockets.
    const ssize_t n = patience_ ? ::send(fd_, from, size, MSG_NOSIGNAL | MSG_DONTWAIT) : write(fd_, from, size);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n <= 0) throw BrokenChannel("it no longer listens");
    from += n;
    size -= static_cast<std::size_t>(n);
  }
}

void Channel::receive_bytes(void* data, std::size_t size) {
  char* to = static_cast<char*>(data);
  while (size > 0) {
    wait(POLLIN);
    const ssize_t n = patience_ ? recv(fd_, to, size, MSG_DONTWAIT) : read(fd_, to, size);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n <= 0) throw BrokenChannel("it ended without an answer");
    to += n;
    size -= static_cast<std::size_t>(n);
  }
}

void Channel::send(MessageKind kind, std::string_view payload) {
  const Header header{static_cast<std::uint32_t>(kind), sent_++, payload.size()};
  send_bytes(&header, sizeof header);
  send_bytes(payload.data(), payload.size());
}

MessageKind Channel::receive(std::string& payload, std::size_t limit) {
  Header header{};
  receive_bytes(&header, sizeof header);
  if (header.number != received_++) throw BrokenChannel("a message out of turn");
  if (header.size > limit) throw BrokenChannel(fmt::format("a message of {} bytes", header.size));
  payload.resize(header.size);
  receive_bytes(payload.data(), payload.size());
  return static_cast<MessageKind>(header.kind);
}

bool Channel::quiet() const {
  pollfd fd{fd_, POLLIN, 0};
  return poll(&fd, 1, 0) == 0;
}

std::string pack(const LaunchMessage& m) {
  Packer packer;
  packer.put(m.number).put(m.seed).put(m.spec.grid).put(m.spec.block).put(m.spec.cluster).put(m.spec.shared_bytes);
  packer.put(m.spec.kernel);
  packer.put(static_cast<std::uint8_t>(m.spec.programmatic));
  packer.put_text({reinterpret_cast<const char*>(m.spec.params.data()), m.spec.params.size()});
  packer.put(static_cast<std::uint64_t>(m.buffers.size()));
  for (const SharedBuffer& b : m.buffers) {
    packer.put(b.place).put(b.size).put(b.red_zone).put_text(b.label.name).put(b.label.dtype);
    packer.put(static_cast<std::uint8_t>(b.label.layout.has_value()));
    packer.put(b.label.layout.value_or(TensorLayout()));
  }
  return packer.bytes();
}

LaunchMessage unpack_launch(std::string_view bytes) {
  Unpacker unpacker(bytes);
  LaunchMessage m;
  m.number = unpacker.get<std::uint32_t>();
  m.seed = unpacker.get<std::uint64_t>();
  m.spec.grid = unpacker.get<Dim3>();
  m.spec.block = unpacker.get<Dim3>();
  m.spec.cluster = unpacker.get<Dim3>();
  m.spec.shared_bytes = unpacker.get<unsigned>();
  m.spec.kernel = unpacker.get<unsigned>();
  m.spec.programmatic = unpacker.get<std::uint8_t>() != 0;
  const std::string_view params = unpacker.get_text();
  m.spec.params.resize(params.size());
  std::copy_n(reinterpret_cast<const std::byte*>(params.data()), params.size(), m.spec.params.begin());
  m.buffers.resize(unpacker.get<std::uint64_t>());
  for (SharedBuffer& b : m.buffers) {
    b.place = unpacker.get<std::uint64_t>();
    b.size = unpacker.get<std::uint64_t>();
    b.red_zone = unpacker.get<std::uint64_t>();
    b.label.name = std::string(unpacker.get_text());
    b.label.dtype = unpacker.get<DType>();
    const bool has_layout = unpacker.get<std::uint8_t>() != 0;
    const auto layout = unpacker.get<TensorLayout>();
    if (has_layout) b.label.layout = layout;
  }
  return m;
}

std::string pack(const Counters& counters, const std::function<std::uint64_t(const void*)>& offset_of) {
  Packer packer;
  for (const std::uint64_t* value : scalars(counters)) packer.put(*value);
  packer.put(static_cast<std::uint64_t>(counters.sites.size()));
  for (const auto& [address, site] : counters.sites)
    packer.put(offset_of(address))
        .put(site.kind)
        .put(site.bytes)
        .put(site.requests)
        .put(site.lanes)
        .put(site.possible)
        .put(site.units)
        .put(site.least);
  return packer.bytes();
}

Counters unpack_counters(std::string_view bytes) {
  Unpacker unpacker(bytes);
  Counters counters;
  for (std::uint64_t* value : scalars(counters)) *value = unpacker.get<std::uint64_t>();
  const auto sites = unpacker.get<std::uint64_t>();
  if (sites > kMaxCountedSites) throw BrokenChannel("counters of more places than there are");
  for (std::uint64_t i = 0; i < sites; ++i) {
    const auto offset = unpacker.get<std::uint64_t>();
    SiteCounters site;
    const auto kind = unpacker.get<std::uint8_t>();
    site.bytes = unpacker.get<int>();
    site.requests = unpacker.get<std::uint64_t>();
    site.lanes = unpacker.get<std::uint64_t>();
    site.possible = unpacker.get<std::uint64_t>();
    site.units = unpacker.get<std::uint64_t>();
    site.least = unpacker.get<std::uint64_t>();
    site.kind = static_cast<SiteCounters::Kind>(kind);
    if (kind == SiteCounters::kNone || kind > SiteCounters::kOperands ||
        (site.waits() ? site.bytes != 0 : site.bytes < 1 || site.bytes > 128))
      throw BrokenChannel("counters that no instruction has");
    counters.sites[reinterpret_cast<const void*>(offset)].add(site);
  }
  if (!unpacker.empty()) throw BrokenChannel("counters with something behind them");
  return counters;
}

}  // namespace flashcore::emulator
