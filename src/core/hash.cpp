#include "core/hash.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <cstdint>

#include "core/sha256.h"

namespace flashcore {

std::string hash128(std::string_view bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

Hasher& Hasher::add(std::string_view part) {
  std::uint64_t size = part.size();
  for (int i = 0; i < 8; ++i, size >>= 8) buffer_.push_back(static_cast<char>(size & 0xff));
  buffer_.append(part);
  return *this;
}

std::string Hasher::sha256_hex() const { return sha256(buffer_); }

}  // namespace flashcore
