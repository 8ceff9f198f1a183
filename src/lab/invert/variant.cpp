#include "lab/invert/variant.h"

#include <algorithm>
#include <array>

#include "core/error.h"
#include "kernels/tile/tile_order.h"
#include "lab/invert/embedded_variants.h"
#include "lab/invert/overlay.h"
#include "lab/record/wrong_on_purpose.h"

namespace flashcore {
namespace {

using Names = std::vector<std::string_view>;

// What hands out tiles and lists of blocks must go on doing so.
const Names kBookkeeping = {"tile/scheduler.cuh", "tile/list_blocks.cuh", "tile/ragged_tiles.cuh"};

// --- other configs --------------------------------------------------------------------------------------------------
std::optional<std::size_t> field_index(const ConfigSpace& space, std::string_view name) {
  for (std::size_t i = 0; i < space.fields().size(); ++i)
    if (space.fields()[i].name == name) return i;
  return std::nullopt;
}

std::vector<std::size_t> those_of(const ConfigSpace& space, const Names& names) {
  std::vector<std::size_t> found;
  for (const std::string_view name : names)
    if (const auto at = field_index(space, name)) found.push_back(*at);
  return found;
}

// The valid config with the least score; among equals the one nearest to the plain one.
template <class Score>
std::optional<ConfigValues> least(const Candidate& plain, const Problem& problem, const DeviceLimits& limits,
                                  const Score& score) {
  const ConfigSpace& space = plain.family->space();
  std::optional<ConfigValues> best;
  std::pair<double, int> least;
  for (std::uint64_t i = 0; i < space.size(); ++i) {
    ConfigValues config = space.at(i);
    int changes = 0;
    for (std::size_t field = 0; field < config.size(); ++field) changes += config[field] != plain.config[field];
    const std::pair<double, int> now = {score(config), changes};
    if (best && now >= least) continue;
    if (plain.family->why_invalid(config, problem, limits)) continue;
    best = std::move(config), least = now;
  }
  return best;
}

PlantedVariant with_config(const Candidate& plain, const std::optional<ConfigValues>& config, std::string why_same) {
  if (!config || *config == plain.config) return {.candidate = "", .patch = {}, .why_not = std::move(why_same)};
  return {.candidate = Candidate{plain.family, *config}.print(), .patch = {}, .why_not = ""};
}

PlantedVariant tiny_blocks(const Candidate& plain, const Problem& problem, const DeviceLimits& limits) {
  const auto fields =
      those_of(plain.family->space(), {"block_m", "block_n", "num_consumers", "row_groups", "row_blocks"});
  if (fields.empty()) return {.candidate = "", .patch = {}, .why_not = "its config has no size of a block"};
  return with_config(plain,
                     least(plain, problem, limits,
                           [&](const ConfigValues& config) {
                             double size = 1;
                             for (const std::size_t field : fields) size *= config[field];
                             return size;
                           }),
                     "its blocks are the smallest already");
}

PlantedVariant one_stage(const Candidate& plain, const Problem& problem, const DeviceLimits& limits) {
  const auto fields = those_of(plain.family->space(), {"num_stages", "q_stages", "v_stages", "num_slots"});
  if (fields.empty()) return {.candidate = "", .patch = {}, .why_not = "its config has no number of stages"};
  return with_config(plain,
                     least(plain, problem, limits,
                           [&](const ConfigValues& config) {
                             double stages = 0;
                             for (const std::size_t field : fields) stages += config[field];
                             return stages;
                           }),
                     "it has the fewest stages that its config allows already");
}

// --- other source ---------------------------------------------------------------------------------------------------
// Each edits the overlay and returns why it could not, or "". `text` is of the planted functions.
using Plant = std::string (*)(Overlay&, std::string& text);

std::string planted_or(int places, const char* why_not) { return places > 0 ? "" : why_not; }

std::string no_exponentials(Overlay& overlay, std::string&) {
  return planted_or(overlay.plant("ex2"), "its source has no exponentials");
}

std::string quarter_multiplies(Overlay& overlay, std::string&) {
  return planted_or(overlay.plant("wgmma_ss_x4") + overlay.plant("wgmma_rs_x4") + overlay.keep_quarter(),
                    "it does not multiply on tensor cores by an accumulator's tiles or in steps");
}

// By coordinates where TMA loads; else by the address of the tile's rows, of which the first tile of the head has as
// many. A predicate asks for the row's true number, so a row that does not exist is not read.
std::string one_tile_loads(Overlay& overlay, std::string&) {
  int places = overlay.plant("tma_load_4d") + overlay.plant("tma_load_4d_multicast");
  places +=
      overlay.replace("tile/shared_tile.cuh", "source + (first_row + row) * row_stride", "source + row * row_stride");
  places += overlay.replace("sm80_short_fwd/kernel.cuh", "tile.head_kv, first_key + 8 * n, member",
                            "tile.head_kv, group + 8 * n, member");
  places += overlay.replace("sm80_short_fwd/kernel.cuh", "tile.head_kv, first_key + 8 * n + i, group",
                            "tile.head_kv, 2 * member + 8 * n + i, group");
  for (const std::string of : {"x + first_key * context.params.k", "y + first_key * context.params.v"})
    places += overlay.replace("sm80_decode_fwd/loader.cuh", "words." + of + "_units.row", "words." + of.substr(0, 1));
  for (const std::string of : {"k", "v"})
    places += overlay.replace("sm80_decode_fwd/loader.cuh", "pages[i] * context.params." + of + "_units.batch + ",
                              "0 * pages[i] + ");
  places += overlay.replace("ref_fwd/kernel.cuh", "int page = 0, in_page = key;", "int page = 0, in_page = key % 64;");
  return planted_or(places, "none of its loads of tiles is known");
}

std::string no_stores(Overlay& overlay, std::string&) {
  int places = 0;
  for (const char* name : {"st_global_f32", "st_global_u16", "st_global_u8", "st_global_u32", "st_global_v4",
                           "tma_store_4d", "bulk_store"})
    places += overlay.plant(name, kBookkeeping);
  // The last part of a tile leaves the counter of its parts as the next launch wants it. Without that no part of a
  // later launch is the last, and nobody merges: the variant would leave out more than stores. And the step that merges
  // parts reads how many there are.
  constexpr std::pair<const char*, const char*> kKept[] = {
      {"sm80_wide_fwd/finish.cuh", "st_global_u32(counter, 0)"},
      {"sm80_decode_fwd/merge.cuh", "st_global_u32(counter, 0)"},
      {"sm90_wide_fwd/finish.cuh", "st_global_u32(parts.count("},
  };
  for (const auto& [file, store] : kKept)
    places -= overlay.replace(file, std::string("planted::") + store, std::string("ptx::") + store);
  return planted_or(places, "its source has no stores");
}

// The pieces of a row in another order: first those of even number, so that no two lanes of a warp read one sector.
std::string apart(const std::string& chunk) {
  return fmt::format("{0} % (kChunks / 2) * 2 + {0} / (kChunks / 2)", "(" + chunk + ")");
}

// A lane takes another row instead of the next piece of its row, or a piece of its load at a time.
std::string strided_loads(Overlay& overlay, std::string&) {
  int places = overlay.replace("tile/shared_tile.cuh", "row = thread / kChunks, chunk = thread % kChunks",
                               "row = thread % kRowStep, chunk = " + apart("thread / kRowStep"));
  places += overlay.replace("tile/shared_tile.cuh", "row = index / kChunks, chunk = index % kChunks",
                            "row = index % kRows, chunk = " + apart("index / kRows"));
  places += overlay.replace("sm80_decode_fwd/pieces.cuh", "unsigned thread() { return ptx::tid_x(); }",
                            "unsigned thread() {\n"
                            "    constexpr unsigned kRows = threads_per_block(C) / kChunks;\n"
                            "    const unsigned own = ptx::tid_x();\n"
                            "    return kOneChunk ? own % kRows * kChunks + own / kRows : own;\n"
                            "  }");
  places += overlay.plant("ld_global_v4");
  if (overlay.has("load_any<")) places += overlay.plant("ld_global_u16");
  return planted_or(places, "its tiles come by TMA, in whole boxes");
}

// A TMA load is waited for by the thread that issues it.
std::string no_staging(Overlay& overlay, std::string&) {
  int places = overlay.plant("cp_async_16") + overlay.wait_for_slots();
  for (const std::string ring : {"k", "v"}) {
    const std::string loaded = fmt::format("at.{}_full(at.key_group, stage(i))", ring);
    const std::string load = loaded + ",\n                         block_at(i) * kBlockN, tile.head_kv, tile.batch);";
    places += overlay.replace("sm90_short_fwd/kernel.cuh", load,
                              fmt::format("{} ptx::mbarrier_wait({}, i / C.num_stages % 2);", load, loaded));
  }
  // Of pages all warps that load wait, after they have said how much comes.
  for (const std::string bytes : {"bytes", "keys.bytes_of_warp(v_tile_bytes(C, T), at.warp, loading_warps(T))"}) {
    const std::string expect = fmt::format("ptx::mbarrier_arrive_expect_tx(full, {});", bytes);
    places += overlay.replace("sm90_short_fwd/kernel.cuh", expect,
                              expect + "\n    ptx::mbarrier_wait(full, i / C.num_stages % 2);");
  }
  return planted_or(places, "it copies nothing ahead");
}

std::string extra_barriers(Overlay& overlay, std::string& text) {
  const auto [first, count] = overlay.free_barriers();
  text = fmt::format("#define FC_FREE_BARRIER {}\n#define FC_FREE_BARRIERS {}\n", first, count) + text;
  return planted_or(
      overlay.plant("bar_sync", kBookkeeping) + overlay.plant("shfl_bfly") + overlay.plant("wgmma_commit"),
      "its threads do not meet");
}

std::string divergence(Overlay& overlay, std::string&) {
  int places = 0;
  for (const char* name : {"ex2", "cp_async_16", "ld_global_v4", "ld_global_u16", "ld_global_u8", "ld_shared_v4"})
    places += overlay.plant(name);
  return planted_or(places, "its source has nothing that lanes could do one after the other");
}

// The widest accumulators of a warpgroup do not compile with less (ptxas C7602).
constexpr int kFewRegisters = 64, kFewRegistersOfWarpgroup = 112;

std::string forced_spills(Overlay& overlay, std::string& text) {
  text =
      fmt::format("#define FC_REGISTERS {}\n", overlay.has("wgmma_commit") ? kFewRegistersOfWarpgroup : kFewRegisters) +
      text;
  overlay.plant("setmaxnreg_inc"), overlay.plant("setmaxnreg_dec");
  int places = 0;
  for (const Family* family : all_families())
    places += overlay.replace(family->name() + "/kernel.cuh", "\nFC_KERNEL(", "\nFC_PLANTED_KERNEL(");
  return planted_or(places, "its kernel says no launch bounds");
}

std::string waited_multiplies(Overlay& overlay, std::string&) {
  return planted_or(overlay.plant("wgmma_commit"), "its multiplies are synchronous (mma.sync), or none");
}

std::string serial_grid(Overlay& overlay, std::string&) {
  return planted_or(overlay.plant("ctaid_x") + overlay.plant("nctaid_x"), "its CTAs do not ask which they are");
}

struct Planting {
  std::string_view name;
  Plant plant;
};
constexpr std::array kPlantings = {
    Planting{"no_exponentials", no_exponentials}, Planting{"quarter_multiplies", quarter_multiplies},
    Planting{"one_tile_loads", one_tile_loads},   Planting{"no_stores", no_stores},
    Planting{"strided_loads", strided_loads},     Planting{"no_staging", no_staging},
    Planting{"extra_barriers", extra_barriers},   Planting{"divergence", divergence},
    Planting{"forced_spills", forced_spills},     Planting{"waited_multiplies", waited_multiplies},
    Planting{"serial_grid", serial_grid},
};

PlantedVariant planted(const Variant& variant, const Candidate& plain, const Problem& problem,
                       const DeviceLimits& limits) {
  if (plain.family->kind() == DeviceKind::kCpu)
    return {.candidate = "",
            .patch = {},
            .why_not = fmt::format("{} is compiled into the program, and this variant changes a kernel's source; those "
                                   "that are configs of it are measured",
                                   plain.family->name())};
  Overlay overlay(plain.family->name(), plain.family->source(plain.config, problem, limits).file);
  std::string text(embedded_variants().at(std::string(variant.name) + ".cuh"));
  const auto planting =
      std::find_if(kPlantings.begin(), kPlantings.end(), [&](const Planting& one) { return one.name == variant.name; });
  if (planting == kPlantings.end()) throw_internal("nothing is planted for {}", variant.name);
  if (std::string why_not = planting->plant(overlay, text); !why_not.empty())
    return {.candidate = "", .patch = {}, .why_not = std::move(why_not)};
  Patch patch;
  patch.name = (variant.wrong_on_purpose ? std::string(kWrongPrefix) : "slow_") + std::string(variant.name);
  patch.family = plain.family->name();
  patch.files = overlay.files(text);
  patch.trusted = true;
  const std::string candidate = patch.family_name() + ":" + plain.family->space().print(plain.config);
  return {.candidate = candidate, .patch = std::move(patch), .why_not = ""};
}

// A quarter of the CTAs, of a kernel whose CTAs take tile after tile; on a CPU one thread.
PlantedVariant serial(const Variant& variant, const Candidate& plain, const Problem& problem,
                      const DeviceLimits& limits) {
  const ConfigSpace& space = plain.family->space();
  if (const auto threads = field_index(space, "threads"); threads && plain.family->kind() == DeviceKind::kCpu)
    return with_config(
        plain,
        least(plain, problem, limits, [&](const ConfigValues& config) { return config[*threads] == 1 ? 0.0 : 1.0; }),
        "it runs on one thread already");
  const auto persistent = field_index(space, "persistent"), scheduler = field_index(space, "scheduler");
  if (!persistent && !scheduler)
    return {.candidate = "", .patch = {}, .why_not = "each of its CTAs computes one tile, so none can do another's"};
  if (const auto cluster = field_index(space, "cluster"); cluster && plain.config[*cluster] != 1)
    return {.candidate = "", .patch = {}, .why_not = "its CTAs work in clusters, of which none may be missing"};
  // Planted in another config, it would be raced against a kernel that differs by more than the variant.
  const std::size_t field = persistent ? *persistent : *scheduler;
  const int wanted = persistent ? 1 : static_cast<int>(tile::Scheduler::kFixedStride);
  if (plain.config[field] != wanted)
    return {.candidate = "",
            .patch = {},
            .why_not = fmt::format("with {0}={1} none of its CTAs takes over another's tiles; give it with {0}={2}",
                                   space.fields()[field].name, plain.config[field], wanted)};
  return planted(variant, plain, problem, limits);
}

}  // namespace

const std::vector<Variant>& variants() {
  using enum VariantKind;
  static const std::vector<Variant> all = {
      {"no_exponentials", kLeaveOneOut, "without exponentials", "exponentials",
       "each exponential were one logic operation", "ex2", true},
      {"quarter_multiplies", kLeaveOneOut, "with a quarter of its multiplies", "multiplies",
       "multiplies cost a quarter", "mma_instructions", true},
      {"one_tile_loads", kLeaveOneOut, "with every load from one tile", "loads from memory", "every load were of L2",
       "", true},
      {"no_stores", kLeaveOneOut, "without stores", "stores", "stores cost nothing",
       "global_store.bytes+tma_stored_bytes", true},
      {"strided_loads", kPathology, "with strided loads", "", "", "global_load.excess", false},
      {"no_staging", kPathology, "with copies that are waited for where they are issued", "", "",
       "copies_in_flight_per_mma", false},
      {"extra_barriers", kPathology, "with extra barriers", "", "", "barrier_waits", false},
      {"divergence", kPathology, "with odd lanes after even ones", "", "", "global_load.requests+shared_load.requests",
       false},
      {"forced_spills", kPathology, "with few registers a thread", "", "", "", false, true},
      {"waited_multiplies", kPathology, "with multiplies that are waited for where they are issued", "", "", "", false},
      {"tiny_blocks", kPathology, "with the smallest blocks", "", "", "global_load.bytes+tma_bytes", false},
      {"one_stage", kPathology, "with the fewest stages", "", "", "copies_in_flight_per_mma", false},
      {"serial_grid", kPathology, "with a quarter of its CTAs", "", "", "", false, false, "on one thread"},
  };
  return all;
}

const Variant& variant_by_name(std::string_view name) {
  std::string known;
  for (const Variant& variant : variants()) {
    if (variant.name == name) return variant;
    known += (known.empty() ? "" : ", ") + std::string(variant.name);
  }
  throw_bad_input("'{}' is no variant; give some of: {}", name, known);
}

PlantedVariant plant(const Variant& variant, const Candidate& plain, const Problem& problem,
                     const DeviceLimits& limits) {
  if (variant.name == "tiny_blocks") return tiny_blocks(plain, problem, limits);
  if (variant.name == "one_stage") return one_stage(plain, problem, limits);
  if (variant.name == "serial_grid") return serial(variant, plain, problem, limits);
  return planted(variant, plain, problem, limits);
}

}  // namespace flashcore
