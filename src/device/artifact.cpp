#include "device/artifact.h"

#include <nlohmann/json.hpp>

#include "core/json_number.h"
namespace flashcore {

void to_json(nlohmann::json& json, const Artifact& artifact) {
  json = nlohmann::json{{"symbol", artifact.symbol},
                        {"arch", artifact.arch},
                        {"registers", artifact.registers},
                        {"spill_store_bytes", artifact.spill_store_bytes},
                        {"spill_load_bytes", artifact.spill_load_bytes},
                        {"stack_bytes", artifact.stack_bytes},
                        {"static_shared_bytes", artifact.static_shared_bytes},
                        {"dynamic_shared_bytes", artifact.dynamic_shared_bytes},
                        {"barriers", artifact.barriers},
                        {"threads_per_block", artifact.threads_per_block},
                        {"warnings", artifact.warnings},
                        {"code_hash", artifact.code_hash},
                        {"compiler", artifact.compiler},
                        {"compile_ms", artifact.compile_ms},
                        {"from_cache", artifact.from_cache}};
}

void from_json(const nlohmann::json& json, Artifact& artifact) {
  artifact.cubin.clear();
  json.at("symbol").get_to(artifact.symbol);
  json.at("arch").get_to(artifact.arch);
  get_whole(json, "registers", artifact.registers);
  get_whole(json, "spill_store_bytes", artifact.spill_store_bytes);
  get_whole(json, "spill_load_bytes", artifact.spill_load_bytes);
  get_whole(json, "stack_bytes", artifact.stack_bytes);
  get_whole(json, "static_shared_bytes", artifact.static_shared_bytes);
  get_whole(json, "dynamic_shared_bytes", artifact.dynamic_shared_bytes);
  get_whole(json, "barriers", artifact.barriers);
  get_whole(json, "threads_per_block", artifact.threads_per_block);
  json.at("warnings").get_to(artifact.warnings);
  json.at("code_hash").get_to(artifact.code_hash);
  artifact.compiler = json.value("compiler", "");
  json.at("compile_ms").get_to(artifact.compile_ms);
  json.at("from_cache").get_to(artifact.from_cache);
}

}  // namespace flashcore
