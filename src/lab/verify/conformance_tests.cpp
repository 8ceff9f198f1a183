// The list of micro-tests, with what may differ between the emulator and the hardware.

#include <fmt/format.h>

#include "kernels/conformance/params.h"
#include "lab/verify/conformance.h"

namespace flashcore {

namespace {

using namespace conformance;

ConformanceTest of_hopper(std::string name, const char* file, std::string type, const char* functions, int words) {
  return {std::move(name), file, std::move(type), functions, words, true};
}

void add_copies(std::vector<ConformanceTest>& all) {
  all.push_back(of_hopper("votes", "collectives", "Votes", "vote_all vote_ballot shfl_up shfl_down", 10 * kThreads));
  all.push_back(of_hopper("elect", "collectives", "Elect", "elect", kThreads));
  all.push_back(of_hopper("globaltimer", "collectives", "Timer", "globaltimer", kThreads));
  all.push_back(of_hopper("time_stamps", "timeline", "TimeStamps", "Tracks", 512));
  all.push_back(of_hopper("tile_loads", "collectives", "TileLoads",
                          "ldmatrix_x1 ldmatrix_x1_trans ldmatrix_x2 ldmatrix_x2_trans", 6 * kThreads));
  all.push_back(of_hopper("tile_stores", "collectives", "TileStores",
                          "stmatrix_x1 stmatrix_x1_trans stmatrix_x2 stmatrix_x2_trans stmatrix_x4_trans", 2560));
  all.push_back(of_hopper("atomic_sums", "collectives", "AtomicSums",
                          "atomic_add_global_f32 atomic_add_shared_u32 atomic_add_shared_f32", 4 + 3 * kThreads));
  all.push_back(of_hopper("atomic_max", "collectives", "AtomicMax", "atomic_max_global", 4 + 2 * kThreads));
  all.push_back(of_hopper("vector_load", "device_memory", "VectorLoad", "ld_global_v4", 4 * kThreads));
  all.push_back(of_hopper("atomic_order", "device_memory", "AtomicOrder", "atomic_add_global_acq_rel bits_of_float",
                          4 + kThreads + 4 * kThreads));  // a multiple of 16 bytes
  all.back().grid.x = 4;
  all.back().ulps = 0.5;  // one NaN is as good as another: the sums are a plain addition's
  all.push_back(of_hopper("bulk", "bulk", "Bulk", "bulk_load bulk_store bulk_wait", 524));
  all.push_back(of_hopper("multicast", "bulk", "Multicast", "tma_load_4d_multicast", kClusterCtas * 4096));
  all.back().grid.x = all.back().cluster = kClusterCtas;
  all.push_back(of_hopper("distributed_shared", "bulk", "DistributedShared",
                          "ld_cluster_u32 ld_cluster_f32 st_cluster_u32 st_cluster_v4 mbarrier_arrive_cluster "
                          "mbarrier_arrive_cluster_relaxed",
                          kClusterCtas * 8 * kThreads));
  all.back().grid.x = all.back().cluster = kClusterCtas;
}

// Each multiply of a chain truncates what the one before it left.
void add_chains(std::vector<ConformanceTest>& all) {
  for (int n = 16; n <= 256; n += 16) {
    const bool bf16 = n % 32 != 0;
    for (const bool from_registers : {false, true}) {
      all.push_back(of_hopper(fmt::format("wgmma_{}_x4_n{}", from_registers ? "rs" : "ss", n), "chains",
                              fmt::format("WgmmaX4<{}, {}, {}>", bf16 != from_registers, from_registers, n),
                              from_registers ? "wgmma_rs_x4" : "wgmma_ss_x4", 4 * kThreads));
      all.back().ulps = 32, all.back().floor = 16;
    }
  }
}

void add_layouts(std::vector<ConformanceTest>& all) {
  for (const auto& [bytes, swizzle] : {std::pair{16, TensorSwizzle::kNone}, std::pair{32, TensorSwizzle::k32},
                                       std::pair{64, TensorSwizzle::k64}, std::pair{128, TensorSwizzle::k128}}) {
    all.push_back(of_hopper(fmt::format("tma_swizzle_{}", static_cast<unsigned>(swizzle)), "layouts",
                            fmt::format("TmaSwizzle<{}>", bytes), "tma_load_4d tma_store_4d",
                            kStoredWords + kTensorHeads * kTensorRows * kTensorColumns / 2));
    all.back().swizzle = swizzle;
    for (int form = 0; form < 3; ++form) {
      static constexpr const char* kForms[] = {"ss", "rs", "rs_trans"};
      all.push_back(of_hopper(fmt::format("wgmma_{}_swizzle_{}", kForms[form], static_cast<unsigned>(swizzle)),
                              "layouts", fmt::format("WgmmaLayout<{}, {}>", static_cast<unsigned>(swizzle), form),
                              "wgmma_descriptor", 32 * kThreads));
      all.back().ulps = 16, all.back().floor = 16;
    }
  }
}

// Of 8-bit operands the hardware keeps some 13 bits below the largest addend and cuts the rest, 32 times for each step
// of k: up to 2^-10 of it. Exact operands (fp8.cuh) lose nothing.
void add_fp8(std::vector<ConformanceTest>& all) {
  all.push_back(of_hopper("cvt_e4m3", "fp8_chains", "ToE4m3", "cvt_e4m3x4", kRegionWords));
  all.push_back(of_hopper("cvt_f16_of_e4m3", "fp8_chains", "FromE4m3", "cvt_f16x2_e4m3x2", kRegionWords));
  all.push_back(of_hopper("fresh_accumulator", "fp8_chains", "FreshAccumulator", "fresh_accumulator", 32 * kThreads));
  constexpr double kUlps = 16384, kFloor = 16;
  for (const bool e5m2 : {false, true}) {
    for (const bool exact : {false, true}) {
      const std::string name = std::string(e5m2 ? "e5m2" : "e4m3") + (exact ? "_exact" : "");
      const auto add = [&](std::string test, std::string type, const char* functions, int words) {
        all.push_back(of_hopper(std::move(test), "fp8", std::move(type), functions, words));
        if (!exact) all.back().ulps = kUlps, all.back().floor = kFloor;
      };
      add("mma_" + name, fmt::format("MmaFp8<{}, {}>", e5m2, exact), e5m2 ? "mma_m16n8k32_e5m2" : "mma_m16n8k32_e4m3",
          4 * kThreads);
      add("wgmma_ss_" + name, fmt::format("WgmmaFp8<{}, false, {}>", e5m2, exact), "wgmma_fp8_ss", 32 * kThreads);
      add("wgmma_rs_" + name, fmt::format("WgmmaFp8<{}, true, {}>", e5m2, exact), "wgmma_fp8_rs", 32 * kThreads);
    }
  }
  for (const bool exact : {false, true}) {
    const std::string name = exact ? "e4m3_e5m2_exact" : "e4m3_e5m2";
    const auto add = [&](std::string test, std::string type, const char* functions, int words) {
      all.push_back(of_hopper(std::move(test), "fp8_mixed", std::move(type), functions, words));
      if (!exact) all.back().ulps = kUlps, all.back().floor = kFloor;
    };
    add("mma_" + name, fmt::format("MmaFp8Mixed<{}>", exact), "mma_m16n8k32_e4m3_e5m2", 4 * kThreads);
    add("wgmma_rs_" + name, fmt::format("WgmmaFp8Mixed<{}>", exact), "wgmma_fp8_rs", 32 * kThreads);
  }
  for (int n = 16; n <= 256; n += 16) {
    const bool e5m2 = n % 32 != 0;
    all.push_back(of_hopper(fmt::format("wgmma_fp8_ss_n{}", n), "fp8",
                            fmt::format("WgmmaFp8Width<{}, false, {}>", e5m2, n), "wgmma_fp8_ss", 4 * kThreads));
    all.push_back(of_hopper(fmt::format("wgmma_fp8_rs_n{}", n), "fp8",
                            fmt::format("WgmmaFp8Width<{}, true, {}>", !e5m2, n), "wgmma_fp8_rs", 4 * kThreads));
    all.push_back(of_hopper(fmt::format("wgmma_fp8_mixed_rs_n{}", n), "fp8_mixed",
                            fmt::format("WgmmaFp8MixedWidth<{}>", n), "wgmma_fp8_rs", 4 * kThreads));
  }
}

}  // namespace

// Tolerances. ex2, lg2, rcp: the PTX ISA's maximum relative errors 2^-22, 2^-22 (absolute) and 2^-23, twice, as either
// side may be off. Matrix products: the hardware truncates while it aligns addends, a few ulps of the largest of them.
const std::vector<ConformanceTest>& conformance_tests() {
  constexpr const char* kWgmmaSs =
      "wgmma_ss wgmma_fence wgmma_commit wgmma_wait warpgroup_fence_operand WgmmaDescriptor";
  constexpr const char* kWgmmaRs =
      "wgmma_rs wgmma_fence wgmma_commit wgmma_wait warpgroup_fence_operand WgmmaDescriptor";
  const auto exact = [](std::string name, const char* file, std::string type, const char* functions, int words,
                        bool hopper = false) {
    return ConformanceTest{std::move(name), file, std::move(type), functions, words, hopper};
  };
  const auto close = [](std::string name, const char* file, std::string type, const char* functions, int words,
                        double ulps, double floor, bool hopper = false) {
    return ConformanceTest{std::move(name), file, std::move(type), functions, words, hopper, ulps, floor};
  };
  static const std::vector<ConformanceTest> tests = [&] {
    std::vector<ConformanceTest> all = {
        close("ex2", "arithmetic", "Ex2", "ex2", kRegionWords, 4, 0),
        close("lg2", "arithmetic", "Lg2", "lg2", kRegionWords, 4, 1),
        close("rcp", "arithmetic", "Rcp", "rcp", kRegionWords, 2, 0),
        exact("fma", "arithmetic", "Fma", "fma", kRegionWords),
        exact("max", "arithmetic", "Max", "max", kRegionWords),
        exact("max_u16x2", "arithmetic", "MaxU16x2", "max_u16x2", kRegionWords),
        exact("prmt", "arithmetic", "Prmt", "prmt", kRegionWords),
        exact("cvt_f16x2", "arithmetic", "ToF16", "cvt_f16x2", kRegionWords),
        exact("sub_f16x2", "arithmetic", "SubF16", "sub_f16x2", kRegionWords),
        exact("cvt_bf16x2", "arithmetic", "ToBf16", "cvt_bf16x2", kRegionWords),
        exact("cvt_f32_f16", "arithmetic", "FromF16", "cvt_f32_f16", 65536),
        exact("cvt_f32_bf16", "arithmetic", "FromBf16", "cvt_f32_bf16", 65536),
        exact("constants", "arithmetic", "Constants", "negative_infinity float_of_bits", 2 * kThreads),
        exact("global_memory", "memory", "GlobalMemory",
              "ld_global_f32 ld_global_u16 st_global_f32 st_global_u16 st_global_u32 st_global_v4", 7 * kThreads),
        exact("global_bytes", "memory", "GlobalBytes", "ld_global_u8 st_global_u8", kThreads),
        exact("read_only", "read_only", "ReadOnly", "ld_global_nc_f32 ld_global_nc_u8", 2 * kThreads),
        exact("shared_memory", "memory", "SharedMemory",
              "dynamic_shared st_shared_u32 st_shared_v4 ld_shared_u32 ld_shared_v4 opaque", 10 * kThreads),
        exact("atomics", "memory", "Atomics", "atomic_add_global", kThreads + 1),
        exact("cp_async", "memory", "CpAsync", "cp_async_16 cp_async_commit cp_async_wait", 8 * kThreads),
        exact("ldmatrix", "memory", "Ldmatrix<false>", "ldmatrix_x4", 4 * kThreads),
        exact("ldmatrix_trans", "memory", "Ldmatrix<true>", "ldmatrix_x4_trans", 4 * kThreads),
        exact("movmatrix", "memory", "Movmatrix", "movmatrix_trans", kThreads),
        exact("stmatrix", "memory", "Stmatrix", "stmatrix_x4", 4 * kThreads, true),
        exact("shuffle", "threads", "Shuffle", "shfl_bfly shfl_idx vote_any", 7 * kThreads),
        exact("barriers", "threads", "Barriers", "bar_sync bar_arrive bar_warp_sync", 4 * kThreads),
        exact("mbarrier", "threads", "MBarrier",
              "mbarrier_init fence_mbarrier_init mbarrier_arrive mbarrier_wait mbarrier_try_wait", 3 * kThreads, true),
        exact("setmaxnreg", "threads", "Setmaxnreg", "setmaxnreg_inc setmaxnreg_dec", kThreads, true),
        exact("tma", "tma", "Tma",
              "TensorMap prefetch_tensormap tma_load_4d tma_store_4d bulk_commit bulk_wait_read fence_proxy_async "
              "mbarrier_arrive_expect_tx",
              kStoredWords + kTensorHeads * kTensorRows * kTensorColumns / 2, true),
        close("mma_f16", "matrix", "Mma<false>", "mma_m16n8k16_f16", 4 * kThreads, 16, 16),
        close("mma_bf16", "matrix", "Mma<true>", "mma_m16n8k16_bf16", 4 * kThreads, 16, 16),
        close("wgmma_ss_f16", "matrix", "Wgmma<false, false, false>", kWgmmaSs, 32 * kThreads, 16, 16, true),
        close("wgmma_ss_bf16", "matrix", "Wgmma<true, false, false>", kWgmmaSs, 32 * kThreads, 16, 16, true),
        close("wgmma_rs_f16", "matrix", "Wgmma<false, true, false>", kWgmmaRs, 32 * kThreads, 16, 16, true),
        close("wgmma_rs_f16_trans", "matrix", "Wgmma<false, true, true>", kWgmmaRs, 32 * kThreads, 16, 16, true),
        close("wgmma_rs_bf16_trans", "matrix", "Wgmma<true, true, true>", kWgmmaRs, 32 * kThreads, 16, 16, true),
    };
    all.push_back(exact("special_registers", "memory", "SpecialRegisters",
                        "tid_x ctaid_x ctaid_y ctaid_z nctaid_x nctaid_z", kGridX * kGridY * kGridZ * kThreads));
    all.back().grid = {kGridX, kGridY, kGridZ};
    all.push_back(exact("cluster", "cluster", "Cluster",
                        "cluster_ctarank mapa cluster_arrive_relaxed cluster_arrive cluster_wait st_async_v4 "
                        "mbarrier_wait_cluster",
                        2 * kClusterCtas * 2 * 4 * kThreads, true));
    all.back().grid.x = all.back().cluster = kClusterCtas;
    all.push_back(exact("griddepcontrol", "cluster", "Griddepcontrol",
                        "griddepcontrol_wait griddepcontrol_launch_dependents", kThreads, true));
    all.back().programmatic = true;
    for (int n = 16; n <= 256; n += 16) {
      const bool bf16 = n % 32 != 0;
      all.push_back(close(fmt::format("wgmma_ss_n{}", n), "matrix",
                          fmt::format("WgmmaWidth<{}, false, false, {}>", bf16, n), "wgmma_ss", 4 * kThreads, 16, 16,
                          true));
      all.push_back(close(fmt::format("wgmma_rs_n{}", n), "matrix",
                          fmt::format("WgmmaWidth<{}, true, true, {}>", !bf16, n), "wgmma_rs", 4 * kThreads, 16, 16,
                          true));
    }
    add_chains(all);
    add_copies(all);
    add_layouts(all);
    add_fp8(all);
    return all;
  }();
  return tests;
}

}  // namespace flashcore
