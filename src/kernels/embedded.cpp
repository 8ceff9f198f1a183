#include "kernels/embedded.h"

#include <cstdlib>
#include <filesystem>

#include "core/error.h"
#include "core/files.h"

namespace flashcore {
namespace {

bool is_conformance_source(std::string_view path) { return path.starts_with("conformance/"); }

// Grid, parameters and defaults: part of what a result was measured on, but compiled into this program.
bool is_launch_source(std::string_view path) {
  return path.ends_with("/family.cpp") || path.starts_with("gpu_family.");
}

bool is_device_source(std::string_view path) {
  return !path.starts_with("cpu_fwd/") && !is_cpu_source(path) && !is_conformance_source(path) &&
         !is_launch_source(path) && (path.ends_with(".cuh") || path.ends_with(".h"));
}

// Read by g++ when the program was built, whatever the tree says now.
bool is_host_source(std::string_view path) {
  return is_launch_source(path) || path.starts_with("cpu_fwd/") || is_cpu_source(path) || path.starts_with("core/") ||
         path.ends_with("/config.h") || path.ends_with("/params.h") ||
         (path.starts_with("tile/") && path.ends_with(".h"));
}

SourceMap embedded_sources() {
  SourceMap sources;
  for (const auto* files : {&embedded_device_sources(), &embedded_core_sources()})
    for (const auto& [path, text] : *files) sources.emplace(path, text);
  for (const auto& [path, text] : embedded_cpu_sources()) sources.emplace(source_path(path), text);
  return sources;
}

SourceMap sources_from_tree(const std::filesystem::path& root) {
  const std::filesystem::path kernels = root / "src" / "kernels";
  if (!std::filesystem::is_directory(kernels)) {
    throw_bad_input("FLASHCORE_SOURCE={} has no src/kernels; give the root of a flashcore source tree, or unset it",
                    root.string());
  }
  SourceMap sources = embedded_sources();
  for (auto& [path, text] : sources) {
    // What runs CPU families is compiled in: a tree need not have it.
    const bool is_compiled_in = is_launch_source(path) || embedded_cpu_sources().contains(included_as(path));
    if (!is_compiled_in) text = read_file(root / "src" / included_as(path));
  }
  return sources;
}

const char* tree_of_environment() {
  const char* root = std::getenv("FLASHCORE_SOURCE");
  return root && *root ? root : nullptr;
}

}  // namespace

bool is_cpu_source(std::string_view path) { return embedded_cpu_sources().contains(included_as(path)); }

bool sources_are_built_in() { return tree_of_environment() == nullptr; }

const SourceMap& all_sources() {
  static const SourceMap sources = [] {
    if (const char* root = tree_of_environment()) return sources_from_tree(root);
    return embedded_sources();
  }();
  return sources;
}

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

std::vector<std::string> host_sources_that_differ() {
  std::vector<std::string> differ;
  const char* root = tree_of_environment();
  if (!root) return differ;
  for (const auto& [path, text] : embedded_sources()) {
    const std::filesystem::path file = std::filesystem::path(root) / "src" / included_as(path);
    if (is_host_source(path) && std::filesystem::exists(file) && read_file(file) != text) differ.emplace_back(path);
  }
  return differ;
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

}  // namespace flashcore
