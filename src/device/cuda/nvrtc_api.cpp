#include "core/error.h"
#include "device/cuda/cuda_api.h"
#include "device/cuda/dynamic_library.h"
#include "device/cuda/load_symbols.h"

namespace flashcore::cuda {
namespace {

struct Loaded {
  NvrtcApi api;
  bool present = false;
  std::string why;
  std::vector<std::string> passed_over;
};

Loaded load() {
  Loaded loaded;
  std::vector<PassedOver> passed_over;
  const auto library = DynamicLibrary::open_first(nvrtc_candidates(default_places(), &passed_over), &loaded.why);
  for (const auto& [path, why] : passed_over) loaded.passed_over.push_back(fmt::format("{}: {}", path, why));
  if (!library) {
    for (const std::string& found : loaded.passed_over) loaded.why += "; not taken: " + found;
    return loaded;
  }
  NvrtcApi& api = loaded.api;
  api.path = library->path();
  SymbolLoader loader(*library);
  loader.need("nvrtcVersion", api.version);
  loader.need("nvrtcGetNumSupportedArchs", api.num_supported_archs);
  loader.need("nvrtcGetSupportedArchs", api.supported_archs);
  loader.need("nvrtcCreateProgram", api.create_program);
  loader.need("nvrtcDestroyProgram", api.destroy_program);
  loader.need("nvrtcCompileProgram", api.compile_program);
  loader.need("nvrtcGetCUBINSize", api.cubin_size);
  loader.need("nvrtcGetCUBIN", api.cubin);
  loader.need("nvrtcGetPTXSize", api.ptx_size);
  loader.need("nvrtcGetPTX", api.ptx);
  loader.need("nvrtcGetProgramLogSize", api.log_size);
  loader.need("nvrtcGetProgramLog", api.log);
  loader.need("nvrtcAddNameExpression", api.add_name_expression);
  loader.need("nvrtcGetLoweredName", api.lowered_name);
  loader.need("nvrtcGetErrorString", api.error_string);
  loaded.why = loader.missing();
  loaded.present = loaded.why.empty();
  return loaded;
}

const Loaded& loaded() {
  static const Loaded once = load();
  return once;
}

}  // namespace

const NvrtcApi* nvrtc_api(std::string* why) {
  if (why) *why = loaded().why;
  return loaded().present ? &loaded().api : nullptr;
}

std::vector<std::string> nvrtc_passed_over() { return loaded().passed_over; }

}  // namespace flashcore::cuda
