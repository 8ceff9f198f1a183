#include "cli/stored.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "cli/common.h"
#include "core/error.h"
#include "core/foreign_text.h"
#include "device/model_keys.h"
#include "kernels/family.h"
#include "lab/campaign/state.h"

namespace flashcore::cli {

namespace {

bool is_of_emulated_campaign(const std::filesystem::path& store) {
  try {
    const auto campaign = load_state(store.parent_path());
    return campaign && campaign->device.starts_with("emulator");
  } catch (const Error&) {
    return false;  // whatever lies there, it says nothing of the store
  }
}

}  // namespace

std::vector<Trial> stored_trials(const std::string& store, const TrialQuery& query) {
  std::error_code error;
  const bool is_there = std::filesystem::exists(store, error);
  if (!is_there && is_of_emulated_campaign(store))
    throw_bad_input(
        "--store {}: there is no such file: the campaign in its folder ran on an emulated GPU, which times nothing, so "
        "that it left no trials; name another store",
        store);
  if (!is_there)
    throw_bad_input("--store {}: there is no such file; run flashcore tune first, or name another store", store);
  std::vector<std::string> damaged;
  std::vector<Trial> trials = Store(store, Store::Access::kRead).query(query, &damaged);
  for (const std::string& which : damaged) print_warning(which + " is damaged and passed over");
  return trials;
}

bool is_gpu_key(std::string_view key) { return !key.starts_with("cpu") && !key.starts_with("emulator"); }

void check_gpu_key(const std::string& key, const std::optional<std::string>& store) {
  if (key.empty()) return;
  std::vector<std::string> known = known_model_keys();
  for (std::string& tuned : tuned_device_keys()) known.push_back(std::move(tuned));
  std::error_code ignored;
  if (store && std::filesystem::exists(*store, ignored))
    for (const Trial& trial : stored_trials(*store, {})) known.push_back(trial.device.key);
  std::erase_if(known, [](const std::string& other) { return !is_gpu_key(other); });
  std::sort(known.begin(), known.end());
  known.erase(std::unique(known.begin(), known.end()), known.end());
  if (std::find(known.begin(), known.end(), key) == known.end())
    throw_bad_input(
        "--key {}: no such GPU is known; known are {} (models, and GPUs of the tuned table{}); give one of them, or "
        "leave --key out",
        excerpt(key), fmt::join(known, ", "), store ? " and the store" : "");
}

bool tell_store_fault(const Store& store) {
  if (store.fault().empty()) return true;
  print_error(store.fault() + " (the trials since then are not stored)");
  return false;
}

}  // namespace flashcore::cli
