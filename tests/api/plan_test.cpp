// Plans on a driver that lives in host memory: streams, contexts, addresses and allocations can be watched there.
#include "api/plan.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>

#include "api/artifact_cache.h"
#include "api/block_mask.h"
#include "core/error.h"
#include "core/files.h"
#include "device/fake_driver.h"
#include "kernels/registry.h"
#include "kernels/tile/expression_params.h"
#include "kernels/tile/traits.h"

namespace flashcore::api {
namespace {

using testing::FakeDriver;

class FakeGpuPlan : public ::testing::Test {
 protected:
  FakeGpuPlan() {
    const auto no_compiler = [](cuda::Microkernel, const std::string&) -> Artifact { throw_internal("not needed"); };
    context_ = std::make_shared<Context>(std::make_unique<cuda::CudaDevice>(api_, nullptr, 0, no_compiler));
  }
  Plan plan(const char* id, const char* candidate = nullptr) {
    fc_attention problem = request_of_id(id);
    problem.candidate = candidate;
    return Plan(context_, read_request(&problem));
  }
  template <class T>
  static T* address(std::uintptr_t value) {
    return reinterpret_cast<T*>(value);
  }

  FakeDriver driver_;
  cuda::DriverApi api_ = FakeDriver::api();
  std::shared_ptr<Context> context_;
};

const Addresses kTensors = {reinterpret_cast<void*>(0x1000000), reinterpret_cast<void*>(0x2000000),
                            reinterpret_cast<void*>(0x3000000), reinterpret_cast<void*>(0x4000000),
                            reinterpret_cast<void*>(0x5000000), nullptr};

TEST_F(FakeGpuPlan, LaunchesOnTheCallersStreamWithTheCallersAddresses) {
  const Plan made = plan("b1_h2_s128_d64_fp16", "sm80_fwd");
  driver_.param_bytes = sizeof(ForwardParams);
  auto* const stream = address<void>(0x77);
  made.launch(kTensors, stream);
  ASSERT_EQ(driver_.launches.size(), 1u);
  EXPECT_EQ(driver_.launches[0].config.stream, static_cast<cuda::CUstream>(stream));
  ForwardParams params;
  ASSERT_EQ(driver_.launches[0].params.size(), sizeof(params));
  std::memcpy(&params, driver_.launches[0].params.data(), sizeof(params));
  EXPECT_EQ(params.q, kTensors[0]);
  EXPECT_EQ(params.k, kTensors[1]);
  EXPECT_EQ(params.v, kTensors[2]);
  EXPECT_EQ(params.o, kTensors[3]);
  EXPECT_EQ(params.lse, kTensors[4]);
  EXPECT_EQ(params.seqlen_q, 128);
}

TEST_F(FakeGpuPlan, ALaunchAllocatesNothingAndWaitsForNothing) {
  const Plan made = plan("b1_h2_s128_d64_fp16", "sm80_fwd");
  const auto before = driver_.calls;
  for (int i = 0; i < 3; ++i) made.launch(kTensors, nullptr);
  for (const char* call :
       {"mem_alloc", "mem_free", "stream_synchronize", "memset_bytes", "module_load", "stream_create"})
    EXPECT_EQ(driver_.count(call), before.contains(call) ? before.at(call) : 0) << call;
  EXPECT_EQ(driver_.count("launch_kernel"), 3);
}

// A first call while somebody captures: the context is opened, and the kernel loaded, without ending the capture.
TEST_F(FakeGpuPlan, ACaptureSurvivesTheFirstCall) {
  for (const int mode : {cuda::CU_STREAM_CAPTURE_MODE_GLOBAL, cuda::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL}) {
    driver_.foreign_capture = mode;
    {
      const auto context = std::make_shared<Context>(std::make_unique<cuda::CudaDevice>(api_, nullptr, 0, nullptr));
      fc_attention problem = request_of_id("b1_h2_s128_d64_fp16");
      problem.candidate = "sm80_fwd";
      const Plan made(context, read_request(&problem));
      EXPECT_GT(driver_.count("module_load"), 0);
      made.launch(kTensors, FakeDriver::foreign_stream());
      context->free(context->allocate(100));
      char byte = 0;
      void* const memory = context->allocate(1);
      context->device().upload(memory, &byte, 1);
      context->device().download(&byte, memory, 1);
      EXPECT_THROW(context->device().synchronize_stream(FakeDriver::foreign_stream()), Error);
      context->device().synchronize_stream(nullptr);
    }
    EXPECT_EQ(driver_.invalidated_by, "");
    EXPECT_EQ(driver_.thread_mode, cuda::CU_STREAM_CAPTURE_MODE_GLOBAL) << "the thread's own mode is back";
  }
}

TEST_F(FakeGpuPlan, AConflictWithACaptureIsTheCallers) {
  const Plan made = plan("b1_h2_s128_d64_fp16", "sm80_fwd");
  driver_.failures["launch_kernel"] = cuda::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  try {
    made.launch(kTensors, nullptr);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kBadInput);
    EXPECT_NE(std::string(error.what()).find("a CUDA graph is being captured"), std::string::npos) << error.what();
  }
}

TEST_F(FakeGpuPlan, LeavesTheCallersContextCurrent) {
  const Plan made = plan("b1_h2_s128_d64_fp16", "sm80_fwd");
  driver_.current = FakeDriver::handle<cuda::CUcontext>(42);
  made.launch(kTensors, nullptr);
  EXPECT_EQ(driver_.current, FakeDriver::handle<cuda::CUcontext>(42));
  // With the primary context current, as in PyTorch, nothing is switched at all.
  driver_.current = FakeDriver::handle<cuda::CUcontext>(1);
  const int before = driver_.count("context_set_current");
  made.launch(kTensors, nullptr);
  EXPECT_EQ(driver_.count("context_set_current"), before);
}

TEST_F(FakeGpuPlan, PlanningCanBeMadeToLeaveItToo) {
  driver_.current = FakeDriver::handle<cuda::CUcontext>(42);
  {
    const cuda::KeepCurrentContext keep(&api_);
    const Plan made = plan("b1_h2_s128_d64_fp16", "sm80_fwd");
    EXPECT_EQ(driver_.current, FakeDriver::handle<cuda::CUcontext>(1));
  }
  EXPECT_EQ(driver_.current, FakeDriver::handle<cuda::CUcontext>(42));
}

TEST_F(FakeGpuPlan, PlansOfOneKernelShareItsModule) {
  const Plan first = plan("b1_h2_s128_d64_fp16", "sm80_fwd:block_m=64");
  const int loads = driver_.count("module_load");
  const Plan second = plan("b1_h2_s128_d64_fp16_bshd", "sm80_fwd:block_m=64");
  EXPECT_EQ(driver_.count("module_load"), loads);
}

// The second process finds the kernel without the compiler: here a file that is none stands for it.
TEST_F(FakeGpuPlan, ACompiledKernelIsFoundWithoutTheCompiler) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("flashcore-plans-" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  const std::string compiler = (folder / "libnvrtc.so.13").string();
  write_file_atomically(compiler, "not a library");
  setenv("FLASHCORE_CACHE", folder.c_str(), 1);
  const char* const before = std::getenv("FLASHCORE_NVRTC");
  const std::string kept = before ? before : "";
  // The process's one compiler is opened before the file that stands for it is named.
  const Problem problem = Problem::parse("b1_h2_s128_d64_fp16");
  const Candidate candidate = parse_candidate("sm80_fwd", problem, limits_of_arch("sm_90"));
  find_or_compile(candidate, problem, limits_of_arch("sm_90"));
  setenv("FLASHCORE_NVRTC", compiler.c_str(), 1);
  const Artifact first = find_or_compile(candidate, problem, limits_of_arch("sm_90"));
  // Not the folders: one in 256 times two keys share theirs.
  const auto files = [&] {
    int count = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder / "plans"))
      count += entry.is_regular_file() ? 1 : 0;
    return count;
  };
  EXPECT_EQ(files(), 1);
  const Artifact second = find_or_compile(candidate, problem, limits_of_arch("sm_90"));
  EXPECT_TRUE(second.from_cache);
  EXPECT_EQ(second.cubin, first.cubin);
  write_file_atomically(compiler, "another compiler");
  find_or_compile(candidate, problem, limits_of_arch("sm_90"));
  EXPECT_EQ(files(), 2);
  unsetenv("FLASHCORE_CACHE");
  if (before) setenv("FLASHCORE_NVRTC", kept.c_str(), 1);
  else unsetenv("FLASHCORE_NVRTC");
  std::filesystem::remove_all(folder);
}

TEST_F(FakeGpuPlan, AnOldDriverGetsAKernelWithoutTensorMaps) {
  const Plan made = plan("b1_h2_s128_d64_fp16");
  const std::string text = made.describe();
  EXPECT_NE(text.find("\"family\":\"sm80_"), std::string::npos) << text;
  EXPECT_NE(text.find("older than CUDA 12.0"), std::string::npos) << text;
}

// The encoder of a real driver refuses a stride of 0, and what cannot be used is not compiled either.
TEST_F(FakeGpuPlan, ABroadcastReachesNoTensorMap) {
  api_.tensor_map_encode = [](cuda::CUtensorMap*, cuda::CUtensorMapDataType, std::uint32_t, void*, const std::uint64_t*,
                              const std::uint64_t* strides, auto...) {
    return cuda::CUresult{strides[0] == 0 || strides[1] == 0 || strides[2] == 0};
  };
  fc_attention problem = request_of_id("b2_h2_s1024_d64_fp16");
  problem.k = problem.v = {0, 0, 0};
  problem.given = FC_GIVEN_K_STRIDES | FC_GIVEN_V_STRIDES;
  const std::string text = Plan(context_, read_request(&problem)).describe();
  EXPECT_NE(text.find("do not repeat an element"), std::string::npos) << text;
  EXPECT_NE(text.find("\"family\":\"sm80_"), std::string::npos) << text;
}

// A kernel that counts in 32 bits does not see the end of such a tensor; another does.
TEST_F(FakeGpuPlan, ATensorThatReachesFarTakesAnotherKernel) {
  fc_attention problem = request_of_id("b2_h8_sq1_sk64_d64_fp16");
  problem.k.batch = problem.v.batch = std::int64_t{1} << 36;
  problem.candidate = "sm80_short_fwd";
  EXPECT_THROW(Plan(context_, read_request(&problem)), Error);
  problem.candidate = nullptr;
  const std::string text = Plan(context_, read_request(&problem)).describe();
  EXPECT_NE(text.find("reaches 64 GB of a tensor"), std::string::npos) << text;
}

TEST_F(FakeGpuPlan, AFaultOfTheGpuIsSaid) {
  const Plan made = plan("b1_h2_s128_d64_fp16", "sm80_fwd");
  driver_.failures["launch_kernel"] = cuda::CUDA_ERROR_ILLEGAL_ADDRESS;
  EXPECT_THROW(made.launch(kTensors, nullptr), DeviceFault);
}

// Launches that may run side by side share no workspace, however many there are; those of one stream do.
class FakeGpuWorkspaces : public FakeGpuPlan {
 protected:
  const void* address_of(void* stream, std::size_t bytes = 4,
                         Workspace::Contents contents = Workspace::Contents::kLeftZero) {
    const Workspace workspace{bytes, contents};
    Addresses addresses{};
    context_->workspaces().provide(stream, {&workspace, 1}, addresses);
    return addresses[AddressOf::workspace(0).index()];
  }
};

TEST_F(FakeGpuWorkspaces, EachStreamHasItsOwn) {
  std::set<const void*> seen;
  for (std::uintptr_t stream = 1; stream <= 6000; ++stream) seen.insert(address_of(address<void>(stream * 16)));
  EXPECT_EQ(seen.size(), 6000u);
  const int allocations = driver_.count("mem_alloc");
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(seen.contains(address_of(address<void>(16))));
  EXPECT_EQ(address_of(address<void>(16)), address_of(address<void>(16)));
  EXPECT_EQ(driver_.count("mem_alloc"), allocations);
}

TEST_F(FakeGpuWorkspaces, EachCapturedLaunchHasItsOwn) {
  driver_.foreign_capture = cuda::CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::set<const void*> seen;
  for (int i = 0; i < 6000; ++i) seen.insert(address_of(FakeDriver::foreign_stream()));
  EXPECT_EQ(seen.size(), 6000u);
  EXPECT_EQ(driver_.invalidated_by, "");
  driver_.foreign_capture = -1;
  EXPECT_FALSE(seen.contains(address_of(FakeDriver::foreign_stream())));
}

TEST_F(FakeGpuWorkspaces, ScratchIsNotWhereZerosAreExpected) {
  const void* zeros = address_of(nullptr, 1000);
  const void* scratch = address_of(nullptr, 100000, Workspace::Contents::kScratch);
  EXPECT_EQ(address_of(nullptr, 1000), zeros);
  const auto distance = static_cast<const std::byte*>(scratch) - static_cast<const std::byte*>(zeros);
  EXPECT_TRUE(distance >= 1000 || distance <= -100000) << distance;
  // One that needs more moves; what launches under way use stays.
  const int frees = driver_.count("mem_free");
  EXPECT_NE(address_of(nullptr, 1000000, Workspace::Contents::kScratch), scratch);
  EXPECT_EQ(driver_.count("mem_free"), frees);
}

// Masks of the caller's own: what a launch enqueues.
class FakeGpuMasks : public FakeGpuPlan {
 protected:
  struct Function {
    const char* mask;
    const char* score = nullptr;
    const char* tensor = nullptr;  // fp32, of one index
  };
  Plan masked(const char* id, const Function& function) {
    fc_attention problem = request_of_id(id);
    problem.candidate = "sm80_fwd:block_m=64";
    problem.mask = function.mask;
    problem.score = function.score;
    const fc_tensor tensor = {function.tensor, FC_ELEMENT_FLOAT, 1, {4096, 0, 0, 0}, {}};
    if (function.tensor) problem.tensors = &tensor, problem.tensor_count = 1;
    return Plan(context_, read_request(&problem));
  }
  static Addresses operands(bool ragged = false) {
    Addresses all{};
    std::uintptr_t place = 0;
    const auto give = [&](Operand operand) { all[AddressOf(operand).index()] = address<void>(++place << 40); };
    for (const Operand operand : {Operand::kQ, Operand::kK, Operand::kV, Operand::kO, Operand::kTensor0}) give(operand);
    if (ragged) give(Operand::kCuSeqlensQ), give(Operand::kCuSeqlensKv);
    return all;
  }
  std::size_t enqueued(const Plan& made, void* stream, bool ragged = false, const BlockMask* lists = nullptr) {
    const std::size_t before = driver_.launches.size();
    made.launch(operands(ragged), stream, lists);
    return driver_.launches.size() - before;
  }
  // What the last launch, of the kernel that makes lists or of the one that reads them, has for their address.
  template <class Params>
  const void* lists_of_last() {
    Params params;
    EXPECT_EQ(driver_.launches.back().params.size(), sizeof params);
    std::memcpy(&params, driver_.launches.back().params.data(), sizeof params);
    return params.expression.lists;
  }
};

constexpr const char* kMasked = "b1_h2_s300_d64_fp16";

TEST_F(FakeGpuMasks, WithoutTensorsBlocksAreListedOnceAPlan) {
  const Plan made = masked(kMasked, {"j <= i"});
  ASSERT_EQ(driver_.launches.size(), 1u);
  EXPECT_NE(driver_.launches[0].kernel.find("list_blocks"), std::string::npos) << driver_.launches[0].kernel;
  EXPECT_NE(made.describe().find("\"workspace_bytes\":0"), std::string::npos) << made.describe();
  driver_.param_bytes = sizeof(Expressed<ForwardParams>);
  const auto before = driver_.calls;
  std::set<const void*> lists;
  for (const std::uintptr_t stream : {0x50, 0x60, 0x50}) {
    EXPECT_EQ(enqueued(made, address<void>(stream)), 1u);
    Expressed<ForwardParams> params;
    ASSERT_EQ(driver_.launches.back().params.size(), sizeof params);
    std::memcpy(&params, driver_.launches.back().params.data(), sizeof params);
    lists.insert(params.expression.lists);
  }
  EXPECT_EQ(lists.size(), 1u);
  EXPECT_FALSE(lists.contains(nullptr));
  for (const char* call : {"mem_alloc", "stream_synchronize"})
    EXPECT_EQ(driver_.count(call), before.contains(call) ? before.at(call) : 0) << call;
}

TEST_F(FakeGpuMasks, PlansShareListsThatAreTheSame) {
  const auto lists_made = [&](const char* id, const Function& function) {
    const std::size_t before = driver_.launches.size();
    const Plan made = masked(id, function);
    EXPECT_EQ(enqueued(made, nullptr), 1u) << id << " " << function.mask;
    return driver_.launches.size() - before - 1;
  };
  EXPECT_EQ(lists_made(kMasked, {"j <= i"}), 1u);
  EXPECT_EQ(lists_made(kMasked, {"j <= i"}), 0u);
  EXPECT_EQ(lists_made(kMasked, {"j < i"}), 1u);
  // The same kernel, of other lengths.
  EXPECT_EQ(lists_made("b1_h2_s301_d64_fp16", {"j <= i"}), 1u);
  EXPECT_EQ(lists_made(kMasked, {"j <= i", "s + bias[j]", "bias"}), 1u);
}

TEST_F(FakeGpuMasks, WhatDependsOnTheLaunchIsListedInEach) {
  const Plan reads = masked(kMasked, {"doc[i] == doc[j]", nullptr, "doc"}),
             packed = masked("b2_h2_s300_d64_fp16_raggedfull", {"j <= i"});
  EXPECT_TRUE(driver_.launches.empty());
  for (const Plan* made : {&reads, &packed})
    for (int i = 0; i < 2; ++i) EXPECT_EQ(enqueued(*made, nullptr, made == &packed), 2u) << made->describe();
}

// Launches come on other streams: the lists are there when the plan is.
TEST_F(FakeGpuMasks, APlanWaitsForItsLists) {
  masked(kMasked, {"j <= i"});
  driver_.failures["stream_synchronize"] = cuda::CUDA_ERROR_ILLEGAL_ADDRESS;
  masked(kMasked, {"j <= i"});
  const std::size_t before = driver_.launches.size();
  EXPECT_THROW(masked("b1_h2_s302_d64_fp16", {"j <= i"}), DeviceFault);
  driver_.failures.clear();
  EXPECT_EQ(enqueued(masked("b1_h2_s302_d64_fp16", {"j <= i"}), nullptr), 1u);
  EXPECT_EQ(driver_.launches.size() - before, 3u) << "lists that may not be there are not kept";
}

// Beyond what a context keeps.
TEST_F(FakeGpuMasks, ManyListsAreMadeInEachLaunch) {
  const Plan made = masked("b64_h64_s8192_d64_fp16", {"j <= i + b + h"});
  EXPECT_TRUE(driver_.launches.empty());
  EXPECT_EQ(enqueued(made, nullptr), 2u);
}

TEST_F(FakeGpuMasks, ACaptureHasTheListsOfItsPlan) {
  for (const int mode : {cuda::CU_STREAM_CAPTURE_MODE_GLOBAL, cuda::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL}) {
    driver_.foreign_capture = mode;
    const auto context = std::make_shared<Context>(std::make_unique<cuda::CudaDevice>(api_, nullptr, 0, nullptr));
    context_ = context;
    driver_.launches.clear();
    const Plan made = masked(kMasked, {"j <= i"});
    ASSERT_EQ(driver_.launches.size(), 1u);
    EXPECT_NE(driver_.launches[0].config.stream, static_cast<cuda::CUstream>(FakeDriver::foreign_stream()));
    EXPECT_EQ(enqueued(made, FakeDriver::foreign_stream()), 1u);
    EXPECT_EQ(driver_.invalidated_by, "");
    EXPECT_EQ(driver_.thread_mode, cuda::CU_STREAM_CAPTURE_MODE_GLOBAL) << "the thread's own mode is back";
  }
}

// Lists that a block mask holds.
class FakeGpuBlockMasks : public FakeGpuMasks {
 protected:
  std::shared_ptr<Plan> by_documents(const char* id = kMasked) {
    return std::make_shared<Plan>(masked(id, {"doc[i] == doc[j]", nullptr, "doc"}));
  }
};

TEST_F(FakeGpuBlockMasks, ALaunchMakesNoneOfItsOwn) {
  const auto made = by_documents();
  driver_.param_bytes = sizeof(ListParams);
  const auto lists = std::make_unique<BlockMask>(made, operands(), address<void>(0x50));
  ASSERT_EQ(driver_.launches.size(), 1u);
  EXPECT_NE(driver_.launches[0].kernel.find("list_blocks"), std::string::npos) << driver_.launches[0].kernel;
  EXPECT_EQ(driver_.launches[0].config.stream, address<cuda::CUstream_st>(0x50));
  const void* memory = lists_of_last<ListParams>();
  EXPECT_NE(memory, nullptr);
  const auto before = driver_.calls;
  driver_.param_bytes = sizeof(Expressed<ForwardParams>);
  const auto other = by_documents();  // of another layer
  for (const Plan* plan : {made.get(), other.get()})
    for (const std::uintptr_t stream : {0x50, 0x60}) {
      EXPECT_EQ(enqueued(*plan, address<void>(stream), false, lists.get()), 1u);
      EXPECT_EQ(lists_of_last<Expressed<ForwardParams>>(), memory);
    }
  driver_.param_bytes = sizeof(ListParams);
  lists->update(operands(), address<void>(0x60));
  EXPECT_EQ(driver_.launches.back().config.stream, address<cuda::CUstream_st>(0x60));
  EXPECT_EQ(lists_of_last<ListParams>(), memory);
  for (const char* call : {"mem_alloc", "mem_free", "stream_synchronize", "memset_bytes"})
    EXPECT_EQ(driver_.count(call), before.contains(call) ? before.at(call) : 0) << call;
  // The same launch without lists makes them.
  EXPECT_EQ(enqueued(*made, address<void>(0x50)), 2u);
}

TEST_F(FakeGpuBlockMasks, OfRaggedBatchesAndOfMoreThanAContextKeepsToo) {
  const auto packed = std::make_shared<Plan>(masked("b2_h2_s300_d64_fp16_raggedfull", {"j <= i"})),
             large = std::make_shared<Plan>(masked("b64_h64_s8192_d64_fp16", {"j <= i + b + h"}));
  for (const auto& plan : {packed, large}) {
    const BlockMask lists(plan, operands(plan == packed), nullptr);
    EXPECT_EQ(enqueued(*plan, nullptr, plan == packed, &lists), 1u) << plan->describe();
  }
}

// Its pages may be others in each launch.
TEST_F(FakeGpuBlockMasks, ListsOfAPagedCacheNeedNoTable) {
  const auto paged = std::make_shared<Plan>(masked("b2_h2_s300_d64_fp16_raggedfull_page16", {"j <= i"}));
  Addresses all = operands();
  for (const Operand operand : {Operand::kCuSeqlensQ, Operand::kSequsedKv})
    all[AddressOf(operand).index()] = address<void>((32 + static_cast<std::uintptr_t>(operand)) << 40);
  const BlockMask lists(paged, all, nullptr);
  EXPECT_THROW(paged->launch(all, nullptr, &lists), Error);
  all[AddressOf(Operand::kBlockTable).index()] = address<void>(std::uintptr_t{31} << 40);
  const std::size_t before = driver_.launches.size();
  paged->launch(all, nullptr, &lists);
  EXPECT_EQ(driver_.launches.size() - before, 1u);
}

TEST_F(FakeGpuBlockMasks, APlanThatHasItsListsGetsNone) {
  const auto made = std::make_shared<Plan>(masked(kMasked, {"j <= i"}));
  const auto before = driver_.calls;
  const BlockMask lists(made, operands(), nullptr);
  for (const char* call : {"mem_alloc", "launch_kernel"})
    EXPECT_EQ(driver_.count(call), before.contains(call) ? before.at(call) : 0) << call;
  EXPECT_EQ(enqueued(*made, nullptr, false, &lists), 1u);
}

TEST_F(FakeGpuBlockMasks, ACaptureCanUpdateAndReadOneButNotMakeIt) {
  const auto made = by_documents();
  auto lists = std::make_unique<BlockMask>(made, operands(), nullptr);
  driver_.foreign_capture = cuda::CU_STREAM_CAPTURE_MODE_GLOBAL;
  try {
    const BlockMask captured(made, operands(), FakeDriver::foreign_stream());
    ADD_FAILURE() << "made in a capture";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kBadInput);
    EXPECT_NE(std::string(error.what()).find("create it before the capture"), std::string::npos) << error.what();
  }
  const std::size_t before = driver_.launches.size();
  lists->update(operands(), FakeDriver::foreign_stream());
  EXPECT_EQ(enqueued(*made, FakeDriver::foreign_stream(), false, lists.get()), 1u);
  EXPECT_EQ(driver_.launches.size() - before, 2u);
  EXPECT_EQ(driver_.invalidated_by, "");
}

// A graph has the address of what it reads and writes.
TEST_F(FakeGpuBlockMasks, WhatAGraphReadsIsKept) {
  const auto made = by_documents();
  enum class Capture { kNothing, kLaunch, kUpdate };
  for (const Capture capture : {Capture::kNothing, Capture::kLaunch, Capture::kUpdate}) {
    auto lists = std::make_unique<BlockMask>(made, operands(), nullptr);
    driver_.foreign_capture = cuda::CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (capture == Capture::kLaunch) enqueued(*made, FakeDriver::foreign_stream(), false, lists.get());
    if (capture == Capture::kUpdate) lists->update(operands(), FakeDriver::foreign_stream());
    driver_.foreign_capture = -1;
    const int frees = driver_.count("mem_free");
    lists.reset();
    EXPECT_EQ(driver_.count("mem_free") - frees, capture == Capture::kNothing ? 1 : 0) << static_cast<int>(capture);
  }
}

TEST_F(FakeGpuBlockMasks, WhatDiffersIsNamed) {
  const auto made = by_documents();
  const BlockMask lists(made, operands(), nullptr);
  const auto refused = [&](const std::string& words, const Plan& given) {
    try {
      given.launch(operands(), nullptr, &lists);
      ADD_FAILURE() << "taken: " << words;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  };
  const std::size_t before = driver_.launches.size();
  refused("differ in seqlen_q 300 and 301;", *by_documents("b1_h2_s301_d64_fp16"));
  refused("differ in mask 'doc[i] == doc[j]' and 'j <= i';", masked(kMasked, {"j <= i"}));
  refused("differ in score none and 's + doc[j]';", masked(kMasked, {"doc[i] == doc[j]", "s + doc[j]", "doc"}));
  fc_attention problem = request_of_id(kMasked);
  problem.mask = "doc[i] == doc[j]";
  const fc_tensor tensor = {"doc", FC_ELEMENT_FLOAT, 1, {4096, 0, 0, 0}, {}};
  problem.tensors = &tensor, problem.tensor_count = 1;
  problem.candidate = "sm80_fwd:block_m=64,num_stages=2";
  refused("differ in the kernels sm80_fwd:", Plan(context_, read_request(&problem)));
  problem.candidate = "sm80_fwd:block_m=64";
  problem.k = {1 << 20, 1 << 18, 128};
  problem.given = FC_GIVEN_K_STRIDES;
  refused("differ in their strides or the scale;", Plan(context_, read_request(&problem)));
  EXPECT_EQ(driver_.launches.size() - before, 1u) << "the lists of 'j <= i'";
}

// The counter of sm90_fwd's dynamic scheduler.
TEST_F(FakeGpuPlan, AWorkspaceIsTheStreams) {
  api_.tensor_map_encode = [](cuda::CUtensorMap* map, auto...) {
    return *map = {}, cuda::CUresult{cuda::CUDA_SUCCESS};
  };
  const Problem problem = Problem::parse("b1_h8_s512_d64_fp16_causal");
  const DeviceLimits limits = context_->info().limits;
  const Candidate candidate = parse_candidate("sm90_fwd:scheduler=2", problem, limits);
  const Program program =
      candidate.family->program(candidate.config, problem, limits, make_layouts(problem, Layout::kBhsd));
  ASSERT_EQ(program.workspaces.size(), 1u);
  driver_.param_bytes = program.steps[0].launch.params.size();
  const Plan made = plan("b1_h8_s512_d64_fp16_causal", "sm90_fwd:scheduler=2");
  const auto launch_on = [&](std::uintptr_t stream) {
    made.launch(kTensors, address<void>(stream));
    return driver_.launches.back().params;
  };
  const auto first = launch_on(0x50);
  EXPECT_EQ(launch_on(0x50), first);
  EXPECT_NE(launch_on(0x60), first);
}

}  // namespace
}  // namespace flashcore::api
