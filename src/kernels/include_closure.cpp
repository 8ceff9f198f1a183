// include_closure() of kernels/embedded.h, apart from the sources that are built in.

#include <set>

#include "kernels/embedded.h"

namespace flashcore {
namespace {

// `path` and every file that it includes, at any depth.
void add_with_includes(const std::string& path, const SourceMap& sources, std::set<std::string>& found) {
  constexpr std::string_view kInclude = "#include \"";
  const auto source = sources.find(path);
  if (source == sources.end() || !found.insert(path).second) return;
  const std::string_view text = source->second;
  for (std::size_t at = text.find(kInclude); at != std::string_view::npos; at = text.find(kInclude, at)) {
    at += kInclude.size();
    add_with_includes(std::string(source_path(text.substr(at, text.find('"', at) - at))), sources, found);
  }
}

}  // namespace

std::vector<std::string> include_closure(const std::string& path, const SourceMap& sources) {
  std::set<std::string> found;
  add_with_includes(path, sources, found);
  return {found.begin(), found.end()};
}

}  // namespace flashcore
