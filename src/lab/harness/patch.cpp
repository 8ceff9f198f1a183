#include "lab/harness/patch.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/files.h"
#include "core/foreign_text.h"
#include "core/hash.h"
#include "core/yaml_reader.h"
#include "kernels/derived_family.h"
#include "kernels/embedded.h"
#include "lab/harness/device_code.h"
#include "lab/record/checks.h"
#include "lab/record/wrong_on_purpose.h"

namespace flashcore {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kPatchFile = "patch.yaml";
// A kernel is some tens of kilobytes.
constexpr std::size_t kMaxFiles = 256, kMaxBytes = 4 << 20;

bool g_trust_code = false;

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

void check_sources(const Patch& patch, const SourceMap& overlay, const SourceMap& known) {
  for (const auto& [path, text] : overlay) {
    const auto original = device_sources().find(path);
    const std::string before = original == device_sources().end() ? "" : original->second;
    if (text == before) continue;
    const auto refusal = refuse_device_code(path, text, before, known);
    if (!refusal || !is_on(Check::kDeviceCode)) continue;
    // Who trusts the code all the same would time a launch that need not compute.
    throw RefusedSource(fmt::format(
        "patch {} is refused: {}; {}", patch.name, refusal->why,
        refusal->keeps_state
            ? "no time of such a kernel is true (docs/security.md)"
            : "a patch brings device code only (docs/security.md). If you have read it and want it compiled all the "
              "same, give --trust-code"));
  }
}

// The files of a patch as the compiler gets them: whole ones, then the replacements in them or in the library's.
SourceMap overlay_of(const Patch& patch) {
  SourceMap overlay = patch.files;
  for (const auto& [path, text] : overlay) {
    if (fs::path(path).lexically_normal().generic_string() != path || path.find("..") != std::string::npos)
      throw RefusedSource(fmt::format(
          "patch {} brings the path {}; give one that goes straight down, as tile/softmax.cuh", patch.name, path));
  }
  for (const Patch::Replacement& r : patch.replace) {
    if (!overlay.contains(r.file)) {
      const auto found = device_sources().find(r.file);
      if (found == device_sources().end())
        throw RefusedSource(fmt::format("patch {} changes {}, which is no device source; paths are as {}/kernel.cuh",
                                        patch.name, r.file, patch.family));
      overlay.insert(*found);
    }
    std::string& text = overlay.at(r.file);
    if (const std::size_t times = r.from.empty() ? 0 : count_of(text, r.from); times != 1)
      throw_bad_input(
          "patch {}: the text to replace occurs {} times in {}, not once; adapt it to the source as it is: {}",
          patch.name, times, r.file, r.from);
    text.replace(text.find(r.from), r.from.size(), r.to);
  }
  SourceMap known = overlay;
  known.insert(device_sources().begin(), device_sources().end());
  const std::vector<std::string> included = include_closure(patch.family + "/kernel.cuh", known);
  const auto is_included = [&](const auto& file) {
    return std::find(included.begin(), included.end(), file.first) != included.end();
  };
  for (const auto& file : overlay) {
    const std::string& path = file.first;
    // In the family's folder or in tile/: nothing of the host has such a path.
    const bool may_be_new = path.starts_with(patch.family + "/") || (path.starts_with("tile/") && is_included(file));
    if (!device_sources().contains(path) && !may_be_new)
      throw RefusedSource(
          fmt::format("patch {} brings {}, which no kernel includes; give kernel.cuh, a path as tile/softmax.cuh, or a "
                      "new one in tile/ that a file of the patch includes",
                      patch.name, path));
  }
  if (!patch.trusted) check_sources(patch, overlay, known);
  // It would be judged as the kernel without it.
  if (!overlay.empty() && patch.extend.empty() && std::none_of(overlay.begin(), overlay.end(), is_included))
    throw_bad_input("patch {} changes nothing of {}: its kernel does not include {}", patch.name, patch.family,
                    overlay.begin()->first);
  return overlay;
}

ConfigSpace extended(const ConfigSpace& base, const Patch& patch) {
  std::vector<Field> fields = base.fields();
  for (const auto& [name, values] : patch.extend) {
    const auto field =
        std::find_if(fields.begin(), fields.end(), [&wanted = name](const Field& f) { return f.name == wanted; });
    if (field == fields.end())
      throw_bad_input("patch {} extends '{}', which is no config field of {}", patch.name, name, patch.family);
    field->values.insert(field->values.end(), values.begin(), values.end());
    std::sort(field->values.begin(), field->values.end());
    field->values.erase(std::unique(field->values.begin(), field->values.end()), field->values.end());
  }
  return ConfigSpace(std::move(fields));
}

class PatchedFamily final : public DerivedFamily {
 public:
  PatchedFamily(const Patch& patch, const Family& base)
      : DerivedFamily(base), patch_(patch), overlay_(overlay_of(patch)), space_(extended(base.space(), patch)) {}

  std::string name() const override { return patch_.family_name(); }
  std::string description() const override { return base().description() + ", patched: " + patch_.name; }
  const ConfigSpace& space() const override { return space_; }
  const SourceMap* source_overlay() const override { return &overlay_; }
  bool is_foreign() const override { return !patch_.trusted; }
  const Patch& patch() const { return patch_; }

 private:
  Patch patch_;
  SourceMap overlay_;
  ConfigSpace space_;
};

// The registry's family of that name; null if there is none.
const Family* find_family(std::string_view name) {
  for (const Family* family : all_families())
    if (family->name() == name) return family;
  return nullptr;
}

}  // namespace

bool Patch::operator==(const Patch& other) const { return json(*this) == json(other); }

const Patch* patch_of(const std::vector<Patch>& patches, std::string_view candidate) {
  const std::string_view family = candidate.substr(0, candidate.find(':'));
  const auto found =
      std::find_if(patches.begin(), patches.end(), [&](const Patch& p) { return p.family_name() == family; });
  return found == patches.end() ? nullptr : &*found;
}

void to_json(json& j, const Patch& p) {
  json replace = json::array();
  for (const auto& r : p.replace) replace.push_back({{"file", r.file}, {"from", r.from}, {"to", r.to}});
  j = {{"name", p.name},     {"family", p.family}, {"files", p.files},
       {"replace", replace}, {"extend", p.extend}, {"trusted", p.trusted}};
}

void from_json(const json& j, Patch& p) {
  j.at("name").get_to(p.name);
  j.at("family").get_to(p.family);
  p.files = j.value("files", SourceMap());
  p.extend = j.value("extend", decltype(p.extend)());
  p.trusted = j.value("trusted", false);
  p.replace.clear();
  for (const auto& r : j.value("replace", json::array()))
    p.replace.push_back(
        {r.at("file").get<std::string>(), r.at("from").get<std::string>(), r.at("to").get<std::string>()});
}

void trust_code() { g_trust_code = true; }
bool is_code_trusted() { return g_trust_code; }

std::vector<Patch::Replacement> read_replacements(const YamlReader& reader, const YAML::Node& map,
                                                  const std::string& key) {
  constexpr std::string_view kWhat = "a replacement";
  std::vector<Patch::Replacement> replacements;
  for (const YAML::Node& item : reader.items(map, key, key, "{file, from, to}")) {
    reader.check_keys(item, kWhat, {"file", "from", "to"});
    replacements.push_back(
        {reader.text(item, "file", kWhat), reader.text(item, "from", kWhat), reader.source_text(item, "to")});
  }
  return replacements;
}

void parse_patch_yaml(std::string_view text, const std::string& origin, Patch& patch) {
  const YamlReader reader(origin);
  const YAML::Node root = reader.parse(text);
  reader.check_keys(root, "a patch", {"replace", "extend"});
  if (root["replace"]) patch.replace = read_replacements(reader, root, "replace");
  for (Patch::Replacement& r : patch.replace) r.file = patch.full_path(r.file);
  if (const YAML::Node extend = root["extend"]) {
    if (!extend.IsMap()) reader.fail(extend, "extend is not 'field: [values]'");
    for (const auto& entry : extend) {
      const std::string field = entry.first.IsScalar() ? entry.first.Scalar() : "";
      if (!entry.second.IsSequence()) reader.fail(entry.second, "extend is not 'field: [values]'");
      const auto [values, is_new] = patch.extend.try_emplace(field);
      if (!is_new) reader.fail(entry.first, fmt::format("extend names '{}' twice; give it once", excerpt(field)));
      for (const YAML::Node& value : entry.second) {
        const std::int64_t number = reader.whole_of(value, "a value of " + excerpt(field));
        if (number < 0 || number > std::numeric_limits<int>::max())
          reader.fail(value, fmt::format("{} is no value of a config field; use 0 to 2147483647", number));
        values->second.push_back(static_cast<int>(number));
      }
    }
  }
}

std::string read_patch_file(const fs::path& path, std::size_t max_bytes) {
  const int fd = open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0)
    throw_bad_input("{} cannot be read: {}; a patch holds plain files only", path.string(), std::strerror(errno));
  const auto closer =
      std::unique_ptr<const int, void (*)(const int*)>(&fd, [](const int* open_fd) { close(*open_fd); });
  struct stat what {};
  if (fstat(fd, &what) != 0 || !S_ISREG(what.st_mode))
    throw_bad_input("{} is no plain file; a patch holds plain files only", path.string());
  std::string text;
  std::array<char, 1 << 16> piece;
  for (ssize_t size = 0; (size = read(fd, piece.data(), piece.size())) != 0;) {
    if (size < 0) throw_bad_input("{} cannot be read: {}", path.string(), std::strerror(errno));
    text.append(piece.data(), static_cast<std::size_t>(size));
    if (text.size() > max_bytes)
      throw_bad_input("{} has more than {} bytes; a patch is a few sources", path.string(), max_bytes);
  }
  return text;
}

Patch load_patch(const fs::path& folder, const std::string& family, const std::string& name) {
  if (!fs::is_directory(folder))
    throw_bad_input("the patch folder {} does not exist; it holds kernel.cuh, or {} with 'replace' or 'extend'",
                    folder.string(), kPatchFile);
  if (name.starts_with(kWrongPrefix))
    throw_bad_input(
        "the patch folder {} is called '{}': names that begin with {} are of variants that are wrong on "
        "purpose; rename it",
        folder.string(), name, kWrongPrefix);
  Patch patch;
  patch.name = name;
  patch.family = family;
  patch.trusted = g_trust_code;
  std::size_t files = 0;
  std::uintmax_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string path = entry.path().lexically_relative(folder).generic_string();
    if (entry.is_symlink() || !(entry.is_regular_file() || entry.is_directory()))
      throw_bad_input(
          "{} in the patch folder {} is a link or no file; a patch holds plain files only, so copy it there", path,
          folder.string());
    if (entry.is_directory()) continue;
    if (++files > kMaxFiles || (bytes += entry.file_size()) > kMaxBytes)
      throw_bad_input("the patch folder {} holds more than {} files or {} MB; a patch is a few sources",
                      folder.string(), kMaxFiles, kMaxBytes >> 20);
    if (path == kPatchFile || path.ends_with(".md")) continue;
    if (!patch.files.emplace(patch.full_path(path), read_patch_file(entry.path(), kMaxBytes)).second)
      throw_bad_input("the patch folder {} holds kernel.cuh and {}/kernel.cuh, which are one source; keep one of them",
                      folder.string(), family);
  }
  if (const fs::path file = folder / kPatchFile; fs::exists(file))
    parse_patch_yaml(read_patch_file(file, kMaxBytes), file.string(), patch);
  if (patch.files.empty() && patch.replace.empty() && patch.extend.empty())
    throw_bad_input("the patch folder {} changes nothing; give kernel.cuh, or {} with 'replace' or 'extend'",
                    folder.string(), kPatchFile);
  return patch;
}

std::unique_ptr<Family> make_patched_family(const Patch& patch) {
  const bool word = !patch.name.empty() && std::all_of(patch.name.begin(), patch.name.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_';
  });
  if (!word) throw_bad_input("'{}' is no name for a patch; use letters, digits and '_'", patch.name);
  const Family& base = family_by_name(patch.family);
  if (base.kind() == DeviceKind::kCpu)
    throw_bad_input("{} is built into the program and cannot be patched; patch a GPU family", patch.family);
  return std::make_unique<PatchedFamily>(patch, base);
}

PatchScope::PatchScope(const std::vector<Patch>& patches) {
  for (const Patch& patch : patches) {
    if (const Family* known = find_family(patch.family_name())) {
      const auto* patched = dynamic_cast<const PatchedFamily*>(known);
      if (!patched || !(patched->patch() == patch))
        throw_bad_input("two different patches are called {}; give one of them another name", patch.family_name());
      continue;
    }
    families_.push_back(std::make_unique<ScopedFamily>(make_patched_family(patch)));
  }
}

}  // namespace flashcore
