#include "kernels/embedded.h"

#include <cstdlib>
#include <filesystem>

#include "core/error.h"
#include "core/files.h"
#include "core/hash.h"

namespace flashcore {
namespace {

bool is_conformance_source(std::string_view path) { return path.starts_with("conformance/"); }

bool is_device_source(std::string_view path) {
  return !path.starts_with("cpu_fwd/") && !is_conformance_source(path) &&
         (path.ends_with(".cuh") || path.ends_with(".h"));
}

SourceMap sources_from_tree(const std::filesystem::path& root) {
  const std::filesystem::path kernels = root / "src" / "kernels";
  if (!std::filesystem::is_directory(kernels)) {
    throw_bad_input("FLASHCORE_SOURCE={} has no src/kernels; give the root of a flashcore source tree, or unset it",
                    root.string());
  }
  SourceMap sources;
  for (const auto& [path, text] : embedded_device_sources())
    sources[std::string(path)] = read_file(kernels / std::string(path));
  return sources;
}

const SourceMap& all_sources() {
  static const SourceMap sources = [] {
    if (const char* root = std::getenv("FLASHCORE_SOURCE"); root && *root) return sources_from_tree(root);
    SourceMap embedded;
    for (const auto& [path, text] : embedded_device_sources()) embedded.emplace(path, text);
    return embedded;
  }();
  return sources;
}

}  // namespace

const SourceMap& device_sources() {
  static const SourceMap sources = [] {
    SourceMap device;
    for (const auto& [path, text] : all_sources()) {
      if (is_device_source(path)) device.emplace(path, text);
    }
    return device;
  }();
  return sources;
}

const SourceMap& conformance_sources() {
  static const SourceMap sources = [] {
    SourceMap some;
    for (const auto& [path, text] : all_sources()) {
      if (is_conformance_source(path) || path.starts_with("ptx/")) some.emplace(path, text);
    }
    return some;
  }();
  return sources;
}

// Everything that says what a result was measured on: device source, the CPU family's source, the tuned table.
std::string source_hash() {
  static const std::string hash = [] {
    Hasher hasher;
    for (const auto& [path, text] : all_sources()) {
      if (!is_conformance_source(path)) hasher.add(path).add(text);
    }
    return hasher.hex();
  }();
  return hash;
}

}  // namespace flashcore
