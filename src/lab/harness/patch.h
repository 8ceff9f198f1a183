#pragma once
// Patch: a kernel family whose device source was changed by somebody else than the library: an experiment's arm, a
// proposer's kernel, a planted fault. It delivers device code only; launch geometry, shared memory, streams and clock
// stay the base family's. It goes through the same gates under the name "<family>+<patch>".

#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/error.h"
#include "device/compiler.h"
#include "kernels/family.h"
#include "kernels/registry.h"

namespace YAML {
class Node;
}

namespace flashcore {

class YamlReader;

// A patch that brings, or changes, something else than device code: what the check device_code catches.
class RefusedSource : public Error {
 public:
  explicit RefusedSource(const std::string& message) : Error(ErrorKind::kBadInput, message) {}
};

struct Patch {
  struct Replacement {
    std::string file;  // as full_path() gives it: "sm80_fwd/kernel.cuh", "tile/softmax.cuh"
    std::string from;  // occurs there exactly once
    std::string to;
  };
  std::string name;    // letters, digits, '_'
  std::string family;  // what it is based on
  SourceMap files;     // whole files, in place of those with the same path
  std::vector<Replacement> replace;
  std::map<std::string, std::vector<int>> extend;  // further allowed values of config fields
  // Our own, or the user has said --trust-code: not checked, not confined.
  bool trusted = false;

  std::string family_name() const { return family + "+" + name; }
  // As included, without "kernels/", of a path that somebody wrote: "kernel.cuh" is the family's own.
  std::string full_path(const std::string& path) const { return path == "kernel.cuh" ? family + "/" + path : path; }
  bool operator==(const Patch&) const;
};
// The one that `candidate`, a text, is made from; null if it is none of them.
const Patch* patch_of(const std::vector<Patch>& patches, std::string_view candidate);
void to_json(nlohmann::json& json, const Patch& patch);
void from_json(const nlohmann::json& json, Patch& patch);

// Patches loaded from now on are trusted: the user has said --trust-code. For the whole process, before the first.
void trust_code();
bool is_code_trusted();

// A folder that holds kernel.cuh (in place of the family's), further files under their paths (tile/..., <family>/...),
// and patch.yaml with `replace` (list of file, from, to) and `extend` (field: [values]); at least one of them.
// Only plain files, and no links: a folder shows what lies in it and nothing of the machine. Error kBadInput naming
// what is wrong.
Patch load_patch(const std::filesystem::path& folder, const std::string& family, const std::string& name);
// One file of it. Its owner may exchange it meanwhile: no link is followed, no pipe is waited for, and no more than
// `max_bytes` is read. Error kBadInput.
std::string read_patch_file(const std::filesystem::path& path, std::size_t max_bytes);
// The value of `key`: a list of {file, from, to}. Error kBadInput with file and line.
std::vector<Patch::Replacement> read_replacements(const YamlReader& reader, const YAML::Node& map,
                                                  const std::string& key);
// The text of a patch.yaml, into `patch`.
void parse_patch_yaml(std::string_view text, const std::string& origin, Patch& patch);

// The family as patched. Error kBadInput: an unknown base or one without device source, a file or a text that is not
// there, a field that the config does not have; and, unless the patch is trusted, a source that is not device code
// alone (lab/harness/device_code.h).
std::unique_ptr<Family> make_patched_family(const Patch& patch);

// Puts patches into the registry while it lives; those already there stay as they are. Not thread-safe, like
// ScopedFamily. Error kBadInput if another patch has the name already.
class PatchScope {
 public:
  explicit PatchScope(const std::vector<Patch>& patches);

 private:
  std::vector<std::unique_ptr<ScopedFamily>> families_;
};

}  // namespace flashcore
