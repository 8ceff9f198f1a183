#include "device/artifact.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/json_number.h"
namespace flashcore {
namespace {

nlohmann::json json_of(const KernelFacts& kernel) {
  return {{"symbol", kernel.symbol},
          {"registers", kernel.registers},
          {"spill_store_bytes", kernel.spill_store_bytes},
          {"spill_load_bytes", kernel.spill_load_bytes},
          {"stack_bytes", kernel.stack_bytes},
          {"static_shared_bytes", kernel.static_shared_bytes},
          {"dynamic_shared_bytes", kernel.dynamic_shared_bytes},
          {"barriers", kernel.barriers},
          {"threads_per_block", kernel.threads_per_block}};
}

void read_facts(const nlohmann::json& json, KernelFacts& kernel) {
  json.at("symbol").get_to(kernel.symbol);
  get_whole(json, "registers", kernel.registers);
  get_whole(json, "spill_store_bytes", kernel.spill_store_bytes);
  get_whole(json, "spill_load_bytes", kernel.spill_load_bytes);
  get_whole(json, "stack_bytes", kernel.stack_bytes);
  get_whole(json, "static_shared_bytes", kernel.static_shared_bytes);
  get_whole(json, "dynamic_shared_bytes", kernel.dynamic_shared_bytes);
  get_whole(json, "barriers", kernel.barriers);
  get_whole(json, "threads_per_block", kernel.threads_per_block);
}

}  // namespace

std::string KernelSource::extras() const {
  std::string text;
  for (const KernelEntry& kernel : more_kernels)
    text += fmt::format("{} {} {}\n", kernel.name_expression, kernel.dynamic_shared_bytes, kernel.threads_per_block);
  for (const auto& [path, header] : headers) text += path + "\n" + header;
  return text;
}

SourceMap sources_of(const KernelSource& kernel, const SourceMap& sources) {
  SourceMap all = kernel.headers;
  all.insert(sources.begin(), sources.end());  // keeps the headers
  return all;
}

void to_json(nlohmann::json& json, const Artifact& artifact) {
  json = json_of(artifact);
  json.update({{"arch", artifact.arch},
               {"warnings", artifact.warnings},
               {"code_hash", artifact.code_hash},
               {"compiler", artifact.compiler},
               {"compile_ms", artifact.compile_ms},
               {"from_cache", artifact.from_cache}});
  if (!artifact.kept_variables.empty()) json["kept_variables"] = artifact.kept_variables;
  for (const KernelFacts& kernel : artifact.more_kernels) json["more_kernels"].push_back(json_of(kernel));
}

void from_json(const nlohmann::json& json, Artifact& artifact) {
  artifact.cubin.clear();
  read_facts(json, artifact);
  artifact.more_kernels.clear();
  if (const auto more = json.find("more_kernels"); more != json.end()) {
    for (const nlohmann::json& kernel : *more) read_facts(kernel, artifact.more_kernels.emplace_back());
  }
  json.at("arch").get_to(artifact.arch);
  json.at("warnings").get_to(artifact.warnings);
  artifact.kept_variables = json.value("kept_variables", std::vector<std::string>{});
  json.at("code_hash").get_to(artifact.code_hash);
  artifact.compiler = json.value("compiler", "");
  json.at("compile_ms").get_to(artifact.compile_ms);
  json.at("from_cache").get_to(artifact.from_cache);
}

}  // namespace flashcore
