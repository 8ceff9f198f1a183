#pragma once
// The machine code of a candidate's hot lines: its source compiled once more with line information, disassembled by
// NVIDIA's nvdisasm, and joined with what the emulator counted of each line. No GPU takes part.

#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "lab/diagnose/counts.h"

namespace flashcore {

// A line of a source as a compiler names it: "kernels/tile/softmax.cuh", 40.
struct SourcePlace {
  std::string file;
  int line = 0;
  bool operator==(const SourcePlace&) const = default;
};

struct SassInstruction {
  std::string kernel;   // symbol
  std::string address;  // in the kernel, as "00b0"
  std::string text;     // "LDG.E R13, desc[UR8][R2.64]"
  // The line that it comes from, then the one that this was inlined into, and so on outwards.
  std::vector<SourcePlace> places;
};
// Of `nvdisasm -gi`. Files are those of this library, from "kernels/" or "core/" on; others keep their whole path.
// Error kBadInput if it holds no instruction with a line.
std::vector<SassInstruction> parse_sass(std::string_view text);

struct HotLine {
  CountedLine counted;  // what the emulator counted there
  std::string source;   // the line's text, trimmed
  std::vector<SassInstruction> instructions;
};

struct SourceSass {
  std::string tool;        // path of nvdisasm
  bool same_code = false;  // as without line information
  std::vector<HotLine> lines;
};

// The `most` lines with the most sectors or bank passes, with their instructions. A line inlined at several places is
// one for each caller. `sources`: by included name.
std::vector<HotLine> hot_lines(const EmulatorCounts& counts, const std::vector<SassInstruction>& instructions,
                               const std::map<std::string, std::string>& sources, std::size_t most = 6);

// `asked` (a path, or a name on PATH); else nvdisasm on PATH, in CUDA_HOME and CUDA_PATH, in a toolkit under
// /usr/local, and in Python's wheels beside the NVRTC that is used or in VIRTUAL_ENV. Empty: none.
std::string find_nvdisasm(const std::string& asked);

// The text of `nvdisasm -gi` of a cubin. Error kEnvironment with what it said if it fails, or was ended by `stop`.
std::string disassemble(const std::string& nvdisasm, const std::string& cubin, const std::function<bool()>& stop = {});

nlohmann::json sass_json(const SourceSass& sass);

}  // namespace flashcore
